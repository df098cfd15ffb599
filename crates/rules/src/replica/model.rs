//! A model with three brokers, a controller, and a network that loses and reorders messages. No acknowledged record may
//! be lost, and no reader may see a record that is removed later.
//!
//! Brokers are killed and return. A power loss removes the end of a log. Live brokers are fenced, metadata arrives
//! late, and messages are lost or overtaken. `world::check` runs after every step. At the end all brokers run without
//! faults, and their logs must become equal.
//!
//! The check itself is tested: each [`Fault`] breaks an assumption of the partitions, and the check must find a
//! schedule in which a promise is then broken.

mod controller;
mod world;

use fullbore_schedules::{Random, each_fault_is_found, run_each_list};
use world::World;

/// Index of a broker, 0 to 2.
type At = usize;

#[derive(Clone, Copy, Debug)]
enum Action {
    /// A client writes to a broker. The broker accepts the record if it considers itself the leader.
    Produce { at: At, is_acks_all: bool },
    /// A follower sends a fetch, which is then in flight.
    Fetch { at: At },
    /// A follower fetches. The request and its response arrive at once, and so overtake all messages in flight.
    Round { at: At },
    /// A message in flight arrives.
    Deliver { pick: usize },
    /// A message in flight is lost.
    Drop { pick: usize },
    /// A broker gets the newest metadata.
    Image { at: At },
    /// A broker checks whether followers lag.
    Tick { at: At },
    /// Time passes.
    Pass { ms: i64 },
    /// A broker is killed. Its log stays.
    Kill { at: At },
    /// A broker starts again, with a new broker epoch.
    Start { at: At },
    /// A broker loses the end of its log and starts again at once.
    PowerCut { at: At, lost: usize },
    /// The controller considers a broker failed.
    Fence { at: At },
    /// The controller considers a broker alive again.
    Unfence { at: At },
    /// The controller makes an in-sync broker the leader, as in a preferred leader election.
    Elect { at: At },
}

/// An assumption that the model breaks on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The leader acknowledges an acks=all request as soon as its own log has the record.
    AnswersEarly,
    /// A follower reports a longer log than it has.
    FetchesAhead,
    /// A leader counts the fetch of a follower whose log diverges.
    CountsDiverging,
    /// A follower truncates its log by a response to a fetch from before its last truncation.
    TruncatesTwice,
    /// A follower truncates to its high watermark when a new leader begins, as before KIP-101.
    TruncatesToHighWatermark,
    /// A follower takes over the leader's high watermark before it has truncated its log (KAFKA-14704).
    BelievesBeforeTruncation,
    /// A follower appends records from a response of an earlier epoch's leader.
    FollowsOldLeaders,
    /// A leader counts fetches of any leader epoch.
    AcceptsOldFollowers,
    /// Leaders are elected from all replicas.
    UncleanElection,
    /// The controller accepts changes of the ISR with any partition epoch.
    AnyPartitionEpoch,
    /// Replicas join the ISR even if their broker has registered again (KIP-903).
    AnyBrokerEpoch,
    /// If a response to a change of the ISR is lost, the leader assumes that the change was refused.
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

/// Maximum number of schedules that are tried to find a planted fault.
const SCHEDULES_MAX: u64 = 40_000;

fn action(random: &mut Random) -> Action {
    let at = random.below(3);
    match random.below(65) {
        0..8 => Action::Produce { at, is_acks_all: random.one_in(2) },
        8..16 => Action::Fetch { at },
        16..24 => Action::Round { at },
        24..40 => Action::Deliver { pick: random.below(64) },
        40..42 => Action::Drop { pick: random.below(64) },
        42..50 => Action::Image { at },
        50..52 => Action::Tick { at },
        52..54 => Action::Pass { ms: random.between(0, 2 * world::LAG_MS) },
        54 => Action::Kill { at },
        55..57 => Action::Start { at },
        57 => Action::PowerCut { at, lost: random.between(1, 4) },
        58..60 => Action::Fence { at },
        60..63 => Action::Unfence { at },
        _ => Action::Elect { at },
    }
}

fn actions(random: &mut Random) -> Vec<Action> {
    random.list(1..160, action)
}

fn run(actions: &[Action], min_insync_replicas: usize, fault: Option<Fault>) -> Result<(), String> {
    let mut world = World::new(min_insync_replicas, fault);
    for action in actions {
        world.act(*action)?;
    }
    world.end()
}

#[test]
fn random_actions_replicas_keep_their_promises() {
    let draw = |random: &mut Random| (random.between(1, 4), actions(random));
    run_each_list(2000, draw, |min_insync_replicas, actions| run(actions, *min_insync_replicas, None));
}

/// Returns a schedule that reveals a fault, if random schedules rarely find it.
fn schedule(fault: Fault) -> Option<Vec<Action>> {
    use Action::*;
    let (round, lag) = (|at| Round { at }, Pass { ms: world::LAG_MS + 1 });
    let next = Deliver { pick: 0 };
    let then: Vec<Action> = match fault {
        // Broker 3 has records of the first leader, which are truncated under the second leader. After that, the first
        // leader leads again.
        Fault::AcceptsOldFollowers => {
            let begin = [write(0), round(2), Fetch { at: 2 }, Elect { at: 1 }, Image { at: 1 }, Image { at: 2 }];
            let back = [round(2), Elect { at: 0 }, Image { at: 0 }, Image { at: 1 }, round(1), round(1), next];
            [&begin[..], &back].concat()
        }
        // Broker 2 lags, and its leader proposes to remove it from the ISR. Before the proposal arrives, broker 3
        // leaves the ISR and broker 2 catches up.
        Fault::AnyPartitionEpoch => {
            let begin = [write(0), round(2), round(2), lag, Tick { at: 0 }, Fence { at: 2 }, Unfence { at: 2 }];
            let without = [Image { at: 0 }, write(0), round(1), round(1), next];
            [&begin[..], &without].concat()
        }
        // Broker 2 joins the ISR, but its leader does not get the response.
        Fault::ForgetsProposals => {
            let alone = [Fence { at: 1 }, Fence { at: 2 }, Unfence { at: 1 }, Image { at: 0 }, Image { at: 1 }];
            let joins = [Fetch { at: 1 }, next, next, Drop { pick: 1 }, write(0), lag, Tick { at: 0 }];
            [&alone[..], &joins].concat()
        }
        // A response of the first leader reaches broker 3 late, with records that the second leader does not have.
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

/// Brokers 1 and 2 commit a record that broker 3 does not have. Broker 2 becomes the leader, but does not know yet that
/// the record is committed. Broker 3 must not join the ISR without the record.
#[test]
fn replica_without_the_records_from_before_the_epoch_does_not_join() {
    use Action::*;
    let next = Deliver { pick: 0 };
    let commit = [Fence { at: 2 }, Image { at: 0 }, write(0), Round { at: 1 }, Fetch { at: 1 }, next, Drop { pick: 0 }];
    let lead =
        [Unfence { at: 2 }, Elect { at: 1 }, Image { at: 1 }, Image { at: 2 }, Fetch { at: 2 }, next, next, next];
    assert_eq!(run(&[&IMAGES[..], &commit, &lead].concat(), 1, None), Ok(()));
}

/// Broker 1 leads, then broker 2, then broker 1 again, which never gets the metadata of broker 2's epoch. While broker
/// 2 leads, broker 3 truncates its log. Broker 1 may still remember the former, larger log end of broker 3, which must
/// not count.
#[test]
fn log_ends_of_an_earlier_epoch_do_not_count() {
    use Action::*;
    let begin = [write(0), Round { at: 2 }, Round { at: 2 }, Elect { at: 1 }, Image { at: 1 }, Image { at: 2 }];
    let back = [Round { at: 2 }, Elect { at: 0 }, Image { at: 0 }, Image { at: 1 }, Round { at: 1 }, Round { at: 1 }];
    assert_eq!(run(&[&IMAGES[..], &begin, &back].concat(), 1, None), Ok(()));
}

#[test]
fn each_mutation_is_found() {
    for (fault, schedule) in FAULTS.iter().filter_map(|fault| Some((fault, schedule(*fault)?))) {
        assert_eq!(run(&schedule, 1, None), Ok(()), "{fault:?} is not what is wrong");
    }
    each_fault_is_found(FAULTS.map(|fault| (fault, 0..SCHEDULES_MAX)), |seed, fault| match schedule(fault) {
        Some(schedule) => run(&schedule, 1, Some(fault)),
        None => run(&actions(&mut Random::new(seed)), 1 + seed as usize % 2, Some(fault)),
    });
}

#[test]
fn undisturbed_brokers_acknowledge_at_once() {
    let mut world = World::new(3, None);
    (0..3).for_each(|at| world.act(Action::Image { at }).expect("kept"));
    world.act(Action::Produce { at: 0, is_acks_all: true }).expect("kept");
    for at in [1, 2, 1, 2] {
        world.act(Action::Round { at }).expect("kept");
    }
    assert_eq!(world.acknowledged(), 1);
    assert_eq!(world.end(), Ok(()));
}
