//! Three brokers, a controller and a network that loses and reorders: whatever happens, no acknowledged record is
//! lost and nobody reads what goes away again.
//!
//! What may happen: brokers are killed and come back, one at a time loses the end of its log in a power cut, brokers
//! are fenced although they live, metadata arrives late, any message is lost or overtaken. What is checked after
//! every step: see `world::check`. In the end everything is well, and must become one log again.
//!
//! The check itself is tested: with each [`Fault`] of what surrounds the machine it finds schedules that break a
//! promise.

mod controller;
mod world;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use world::World;

/// A broker by its place, 0 to 2.
type At = usize;

#[derive(Clone, Copy, Debug)]
enum Action {
    /// A client writes to a broker, which takes it if it believes that it leads.
    Produce { at: At, is_acks_all: bool },
    /// A follower sends a fetch.
    Fetch { at: At },
    /// A follower fetches, and everything arrives at once.
    Round { at: At },
    /// One message arrives.
    Deliver { pick: usize },
    /// One message is lost.
    Drop { pick: usize },
    /// A broker hears of the newest metadata.
    Image { at: At },
    /// A broker looks who lags.
    Tick { at: At },
    /// Time passes.
    Pass { ms: i64 },
    /// A broker is killed; its log stays.
    Kill { at: At },
    /// It comes back, as a new broker epoch.
    Start { at: At },
    /// A broker loses the end of its log and is back at once.
    PowerCut { at: At, lost: usize },
    /// The controller holds a broker for dead.
    Fence { at: At },
    /// It hears of it again.
    Unfence { at: At },
    /// The controller lets a broker lead, if that is in sync (a preferred leader election).
    Elect { at: At },
}

/// What the machine relies on, broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// acks=all is answered once the leader has the record.
    AnswersEarly,
    /// A follower tells a longer log than it has.
    FetchesAhead,
    /// A leader counts a fetch of a log that diverges.
    CountsDiverging,
    /// A follower truncates for an answer that is older than its log.
    TruncatesTwice,
    /// A follower truncates to its high watermark when a leader begins (before KIP-101).
    TruncatesToHighWatermark,
    /// A follower believes the high watermark before it has truncated (KAFKA-14704).
    BelievesBeforeTruncation,
    /// A follower appends what the leader of an older epoch answered.
    FollowsOldLeaders,
    /// A leader counts the fetches of any epoch.
    AcceptsOldFollowers,
    /// Leaders are elected from all replicas.
    UncleanElection,
    /// Changes of the ISR are carried out whatever they are changes of.
    AnyPartitionEpoch,
    /// Replicas join whatever became of their broker since (KIP-903).
    AnyBrokerEpoch,
    /// A lost answer to a change of the ISR is taken for a refusal.
    ForgetsProposals,
}

const FAULTS: [Fault; 12] = [
    Fault::AnswersEarly,
    Fault::FetchesAhead,
    Fault::CountsDiverging,
    Fault::TruncatesTwice,
    Fault::TruncatesToHighWatermark,
    Fault::BelievesBeforeTruncation,
    Fault::FollowsOldLeaders,
    Fault::AcceptsOldFollowers,
    Fault::UncleanElection,
    Fault::AnyPartitionEpoch,
    Fault::AnyBrokerEpoch,
    Fault::ForgetsProposals,
];

/// Schedules after which a fault that was never found is not found at all.
const SCHEDULES_MAX: usize = 40_000;

fn action() -> impl Strategy<Value = Action> {
    let at = || 0..3usize;
    let pick = || 0..64usize;
    prop_oneof![
        8 => (at(), any::<bool>()).prop_map(|(at, is_acks_all)| Action::Produce { at, is_acks_all }),
        8 => at().prop_map(|at| Action::Fetch { at }),
        8 => at().prop_map(|at| Action::Round { at }),
        16 => pick().prop_map(|pick| Action::Deliver { pick }),
        2 => pick().prop_map(|pick| Action::Drop { pick }),
        8 => at().prop_map(|at| Action::Image { at }),
        2 => at().prop_map(|at| Action::Tick { at }),
        2 => (0..2 * world::LAG_MS).prop_map(|ms| Action::Pass { ms }),
        1 => at().prop_map(|at| Action::Kill { at }),
        2 => at().prop_map(|at| Action::Start { at }),
        1 => (at(), 1..4usize).prop_map(|(at, lost)| Action::PowerCut { at, lost }),
        2 => at().prop_map(|at| Action::Fence { at }),
        3 => at().prop_map(|at| Action::Unfence { at }),
        2 => at().prop_map(|at| Action::Elect { at }),
    ]
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    prop::collection::vec(action(), 1..160)
}

fn run(actions: &[Action], min_insync_replicas: usize, fault: Option<Fault>) -> Result<(), String> {
    let mut world = World::new(min_insync_replicas, fault);
    for action in actions {
        world.act(*action)?;
    }
    world.end()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn the_replicas_keep_their_promises(actions in actions(), min_insync_replicas in 1..4usize) {
        prop_assert_eq!(run(&actions, min_insync_replicas, None), Ok(()));
    }
}

/// Schedules for the faults that chance takes long to find.
fn schedule(fault: Fault) -> Option<Vec<Action>> {
    use Action::*;
    let (round, lag) = (|at| Round { at }, Pass { ms: world::LAG_MS + 1 });
    let next = Deliver { pick: 0 };
    let then: Vec<Action> = match fault {
        // What 3 had of the first leader's is cut off under the second; then the first leads again.
        Fault::AcceptsOldFollowers => {
            let begin = [write(0), round(2), Fetch { at: 2 }, Elect { at: 1 }, Image { at: 1 }, Image { at: 2 }];
            let back = [round(2), Elect { at: 0 }, Image { at: 0 }, Image { at: 1 }, round(1), round(1), next];
            [&begin[..], &back].concat()
        }
        // 2 lags, and is to leave; then 3 leaves, and 2 catches up.
        Fault::AnyPartitionEpoch => {
            let begin = [write(0), round(2), round(2), lag, Tick { at: 0 }, Fence { at: 2 }, Unfence { at: 2 }];
            let without = [Image { at: 0 }, write(0), round(1), round(1), next];
            [&begin[..], &without].concat()
        }
        // 2 joins, and its leader does not hear of it.
        Fault::ForgetsProposals => {
            let alone = [Fence { at: 1 }, Fence { at: 2 }, Unfence { at: 1 }, Image { at: 0 }, Image { at: 1 }];
            let joins = [Fetch { at: 1 }, next, next, Drop { pick: 1 }, write(0), lag, Tick { at: 0 }];
            [&alone[..], &joins].concat()
        }
        // 3 hears from its first leader what the second has not.
        Fault::FollowsOldLeaders => {
            let begin = [write(0), write(0), Fetch { at: 2 }, next, Elect { at: 1 }, Image { at: 1 }, write(1)];
            [&begin[..], &[Image { at: 2 }, round(2), next]].concat()
        }
        _ => return None,
    };
    Some([&IMAGES[..], &then].concat())
}

const IMAGES: [Action; 3] = [Action::Image { at: 0 }, Action::Image { at: 1 }, Action::Image { at: 2 }];

const fn write(at: At) -> Action {
    Action::Produce { at, is_acks_all: false }
}

/// The second leader does not know yet that the record is committed, and the third broker has not got it.
#[test]
fn nobody_joins_before_it_has_what_there_was_when_the_leader_began() {
    use Action::*;
    let next = Deliver { pick: 0 };
    let commit = [Fence { at: 2 }, Image { at: 0 }, write(0), Round { at: 1 }, Fetch { at: 1 }, next, Drop { pick: 0 }];
    let lead =
        [Unfence { at: 2 }, Elect { at: 1 }, Image { at: 1 }, Image { at: 2 }, Fetch { at: 2 }, next, next, next];
    assert_eq!(run(&[&IMAGES[..], &commit, &lead].concat(), 1, None), Ok(()));
}

/// A leader that does not hear of the leader in between, under which the third broker truncated.
#[test]
fn what_followers_had_in_another_epoch_says_nothing() {
    use Action::*;
    let begin = [write(0), Round { at: 2 }, Round { at: 2 }, Elect { at: 1 }, Image { at: 1 }, Image { at: 2 }];
    let back = [Round { at: 2 }, Elect { at: 0 }, Image { at: 0 }, Image { at: 1 }, Round { at: 1 }, Round { at: 1 }];
    assert_eq!(run(&[&IMAGES[..], &begin, &back].concat(), 1, None), Ok(()));
}

#[test]
fn every_planted_fault_is_found() {
    let strategy = actions();
    let find = |fault| {
        if let Some(schedule) = schedule(fault) {
            assert_eq!(run(&schedule, 1, None), Ok(()), "{fault:?} is not what is wrong");
            return run(&schedule, 1, Some(fault)).err().map(|why| (0, why));
        }
        let mut runner = TestRunner::deterministic();
        (0..SCHEDULES_MAX).find_map(|schedule| {
            let actions = strategy.new_tree(&mut runner).expect("no rejects").current();
            run(&actions, 1 + schedule % 2, Some(fault)).err().map(|why| (schedule, why))
        })
    };
    let found = FAULTS.map(|fault| (fault, find(fault)));
    found.iter().for_each(|found| println!("{found:?}"));
    let hidden: Vec<_> = found.iter().filter(|(_, found)| found.is_none()).map(|(fault, _)| fault).collect();
    assert!(hidden.is_empty(), "{hidden:?}");
}

#[test]
fn three_brokers_that_nothing_happens_to_acknowledge_at_once() {
    let mut world = World::new(3, None);
    (0..3).for_each(|at| world.act(Action::Image { at }).expect("kept"));
    world.act(Action::Produce { at: 0, is_acks_all: true }).expect("kept");
    for at in [1, 2, 1, 2] {
        world.act(Action::Round { at }).expect("kept");
    }
    assert_eq!(world.acknowledged(), 1);
    assert_eq!(world.end(), Ok(()));
}
