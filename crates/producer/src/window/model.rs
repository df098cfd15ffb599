//! Tests the window against the broker's own rules, over a network and with brokers that fail in every known way.
//!
//! A schedule is a setup and a list of steps. Proptest makes it from a fixed seed, so that a failure repeats and
//! shrinks. `FULLBORE_SCHEDULES=20` runs twenty times as many schedules, and `FULLBORE_SEED` sets another seed.
//!
//! Each step checks that a record is in the log once, in the order of sending, and never after it was reported as
//! certainly not written. A record reported as written must be in the log at the reported offset, and a correct broker
//! must know that offset. At the end each record must have one result, and must have got it soon after the faults have
//! stopped.
//!
//! Two cases are not covered, because no producer can detect them. One is a broker that forgets a producer while
//! batches are in flight. The other is late copies under an abandoned producer id, which the new id does not fence.

mod broker;
mod world;

use broker::Fault;
use fullbore_schedules::{only_seed, scaled};
use fullbore_wire::ErrorCode;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};
use world::{LANES, World};

/// A violation of an invariant, with the record if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Breach {
    Duplicate(u32),
    Reorder(u32),
    Loss(u32),
    SurelyNotIsThere(u32),
    TwoResults(u32),
    NoResult(u32),
    OffsetForgotten(u32),
    Hangs,
}

/// A planted fault that the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// The producer's window is one larger than the broker's memory.
    WindowOneLarger,
    /// The epoch is bumped while batches are in flight.
    EpochWithoutWaiting,
    /// The sequences of a batch that was given up are used for the next batch.
    SequencesReused,
    /// A batch whose response was lost counts as refused.
    LostMeansRefused,
    /// Some results are never reported.
    NoResult,
    /// The broker appends every batch that it gets.
    NoMemory,
    /// The broker acknowledges some batches that it does not write.
    LosesAppend,
    /// The broker appends a batch that is out of order instead of parking it.
    DoesNotWait,
}

#[derive(Clone, Copy, Debug)]
struct Setup {
    /// How many batches each node retains.
    retain: [usize; 2],
    /// How many batches a node parks. Above 0, a partition uses several connections at once.
    parks: usize,
    /// True if brokers restore only the newest batch, and answer OUT_OF_ORDER_SEQUENCE_NUMBER to batches that they
    /// forgot.
    kafka: bool,
    /// How many records there are before sequences wrap.
    before_wrap: Option<i32>,
    /// How many records are sent in all.
    records: u32,
}

#[derive(Clone, Debug)]
enum Step {
    /// Sends as many batches as may leave, at most `most`, over connections from `lane` on.
    Send {
        lane: u8,
        most: usize,
    },
    /// The broker handles the next requests of a connection.
    Arrive {
        lane: u8,
        most: usize,
    },
    /// The broker handles the next request of a connection, with a fault.
    ArriveTo {
        lane: u8,
        fault: Fault,
    },
    /// The producer gets the next responses of a connection.
    Answer {
        lane: u8,
        most: usize,
    },
    /// A connection ends, as in [`World::cut`].
    Cut {
        lane: u8,
        arrives: usize,
        unsent: usize,
        late: bool,
    },
    /// A request of a connection that has ended arrives.
    Late {
        which: usize,
        twice: bool,
    },
    /// The other node leads.
    Move,
    /// A node changes the number of batches that it retains.
    Retain {
        node: u8,
        batches: usize,
    },
    /// A node changes how large a batch it accepts.
    RecordsMax {
        node: u8,
        records: u32,
    },
    Restart,
    /// The batches that have been parked longest reach the time limit.
    ExpireParked {
        most: usize,
    },
    /// The oldest batches reach delivery.timeout.ms.
    TimeOut {
        batches: usize,
    },
    /// All brokers forget all producers, if nothing is in flight.
    ExpireProducers,
}

fn setup(window: usize) -> impl Strategy<Value = Setup> {
    let other = prop_oneof![2 => Just(window), 1 => Just(5), 1 => 5..=2 * window];
    let kind =
        prop_oneof![2 => Just((0, false)), 1 => Just((0, true)), 2 => Just((window, false)), 1 => Just((3, false))];
    let before_wrap = prop_oneof![1 => Just(None), 1 => (0..3 * window as i32).prop_map(Some)];
    (other, kind, before_wrap).prop_map(move |(other, (parks, kafka), before_wrap)| {
        let records = 9 * window as u32 + 150;
        Setup { retain: [window, other], parks, kafka, before_wrap, records }
    })
}

fn step(window: usize) -> impl Strategy<Value = Step> {
    let lane = || 0..2 * LANES as u8;
    let many = || prop_oneof![3 => 1..4usize, 2 => Just(window), 1 => 1..=window];
    let fault = prop::sample::select(&World::FAULTS[..]);
    let often = prop_oneof![
        8 => (lane(), many()).prop_map(|(lane, most)| Step::Send { lane, most }),
        8 => (lane(), many()).prop_map(|(lane, most)| Step::Arrive { lane, most }),
        8 => (lane(), many()).prop_map(|(lane, most)| Step::Answer { lane, most }),
        2 => (lane(), fault).prop_map(|(lane, fault)| Step::ArriveTo { lane, fault }),
        2 => (0..4usize, any::<bool>()).prop_map(|(which, twice)| Step::Late { which, twice }),
        2 => (lane(), many(), 0..3usize, any::<bool>()).prop_map(|(lane, arrives, unsent, late)| {
            Step::Cut { lane, arrives: arrives - 1, unsent, late }
        }),
    ];
    let seldom = prop_oneof![
        2 => Just(Step::Move),
        2 => Just(Step::Restart),
        2 => many().prop_map(|batches| Step::TimeOut { batches }),
        2 => many().prop_map(|most| Step::ExpireParked { most }),
        1 => (0..2u8, 5..=2 * window).prop_map(|(node, batches)| Step::Retain { node, batches }),
        1 => (0..2u8, 1..8u32).prop_map(|(node, records)| Step::RecordsMax { node, records }),
        1 => Just(Step::ExpireProducers),
    ];
    prop_oneof![10 => often, 1 => seldom]
}

fn schedule(window: usize, steps: usize) -> impl Strategy<Value = (Setup, Vec<Step>)> {
    (setup(window), prop::collection::vec(step(window), 1..steps))
}

/// Returns schedules with few kinds of steps and few records. Late copies, restarts and parking then often coincide,
/// and the order of responses decides what each response proves.
fn narrow() -> impl Strategy<Value = (Setup, Vec<Step>)> {
    let kind = prop_oneof![1 => Just((0, true)), 2 => Just((5, false))];
    let setup = kind.prop_map(|(parks, kafka)| Setup { retain: [5; 2], parks, kafka, before_wrap: None, records: 40 });
    let lane = || 0..LANES as u8;
    let refused = Fault::Refused(ErrorCode::NOT_ENOUGH_REPLICAS);
    let step = prop_oneof![
        4 => (lane(), 1..4usize).prop_map(|(lane, most)| Step::Send { lane, most }),
        6 => (lane(), 1..3usize).prop_map(|(lane, most)| Step::Arrive { lane, most }),
        6 => (lane(), 1..3usize).prop_map(|(lane, most)| Step::Answer { lane, most }),
        1 => lane().prop_map(move |lane| Step::ArriveTo { lane, fault: refused }),
        2 => lane().prop_map(|lane| Step::Cut { lane, arrives: 0, unsent: 0, late: true }),
        3 => (0..3usize).prop_map(|which| Step::Late { which, twice: false }),
        2 => (1..3usize).prop_map(|most| Step::ExpireParked { most }),
        1 => Just(Step::Restart),
    ];
    (setup, prop::collection::vec(step, 1..80))
}

/// Runs a schedule and then lets everything complete.
fn run(setup: Setup, steps: &[Step], bug: Option<Bug>) -> Result<(), Breach> {
    let mut world = World::new(setup, bug);
    for step in steps {
        world.step(step);
        world.cluster.breach.clone().map_or(Ok(()), Err)?;
    }
    for _ in 0..200 + setup.records {
        if world.is_done() {
            return world.check_end();
        }
        world.calm();
        world.cluster.breach.clone().map_or(Ok(()), Err)?;
    }
    Err(Breach::Hangs)
}

fn runner(schedules: u32) -> TestRunner {
    let cases = u32::try_from(scaled(schedules.into())).unwrap_or(u32::MAX);
    let rng_seed = RngSeed::Fixed(only_seed().unwrap_or(1269));
    TestRunner::new(Config { cases, rng_seed, failure_persistence: None, ..Config::default() })
}

fn holds(schedules: u32, schedule: impl Strategy<Value = (Setup, Vec<Step>)>) {
    let result = runner(schedules).run(&schedule, |(setup, steps)| {
        run(setup, &steps, None).map_err(|breach| TestCaseError::fail(format!("{breach:?}")))
    });
    match result {
        Err(TestError::Fail(breach, schedule)) => panic!("{breach} by {schedule:?}"),
        other => other.expect("a schedule can be made"),
    }
}

#[test]
fn once_in_order_and_with_one_result_at_a_window_of_5() {
    holds(2500, schedule(5, 300));
}

#[test]
fn once_in_order_and_with_one_result_at_a_window_of_64() {
    holds(1200, schedule(64, 300));
}

#[test]
fn once_in_order_and_with_one_result_at_a_window_of_1024() {
    holds(40, schedule(1024, 200));
}

#[test]
fn once_in_order_and_with_one_result_where_late_copies_meet_parking_and_restarts() {
    holds(6000, narrow());
}

/// Schedules that are too special to occur by chance. Each would violate an invariant if one rule of the window or of
/// the table of errors were missing.
#[test]
fn once_in_order_and_with_one_result_by_schedules_made_for_one_rule_each() {
    let (send, arrive) = (|lane, most| Step::Send { lane, most }, |lane, most| Step::Arrive { lane, most });
    let (answer, late) = (|lane, most| Step::Answer { lane, most }, || Step::Late { which: 0, twice: false });
    let cut = || Step::Cut { lane: 0, arrives: 0, unsent: 0, late: true };
    let first = || vec![send(0, 1), arrive(0, 1), answer(0, 1)];
    let setup = Setup { retain: [5; 2], parks: 0, kafka: false, before_wrap: None, records: 40 };

    // The second of two batches overtakes the first, waits in vain and is refused. Then the first is acknowledged, and
    // its response overtakes that refusal. A late copy of the second is appended after that, so the refusal is no
    // evidence.
    let mut overtaken = first();
    overtaken.extend([send(0, 2), cut(), send(0, 1), send(1, 1), arrive(1, 1), Step::ExpireParked { most: 1 }]);
    overtaken.extend([arrive(0, 1), answer(0, 1), answer(1, 1), send(0, 1), late(), late(), arrive(0, 1)]);
    assert_eq!(run(Setup { parks: 5, ..setup }, &overtaken, None), Ok(()));

    // Two of three batches are out of order in one round, and late copies of all three are appended. The broker forgets
    // all but the last, so the first is out of order in the next round. The responses of the previous round are no
    // evidence for the others.
    let mut forgotten = first();
    let refused = Step::ArriveTo { lane: 0, fault: Fault::Refused(ErrorCode::NOT_ENOUGH_REPLICAS) };
    forgotten.extend([send(0, 3), cut(), send(0, 3), refused, arrive(0, 2), answer(0, 3), late(), late(), late()]);
    forgotten.extend([Step::Restart, send(0, 1), arrive(0, 1), answer(0, 1), send(0, 3), arrive(0, 3)]);
    assert_eq!(run(Setup { kafka: true, ..setup }, &forgotten, None), Ok(()));

    // A batch is written and its response is lost. The next leader finds the batch too large. The batch must not be
    // split, because its parts would count as other batches.
    let split = [
        send(0, 1),
        arrive(0, 1),
        Step::RecordsMax { node: 1, records: 1 },
        cut(),
        Step::Move,
        send(0, 1),
        arrive(LANES as u8, 1),
    ];
    assert_eq!(run(setup, &split, None), Ok(()));
}

/// Each planted fault must be found, and reported as the right violation.
#[test]
fn planted_faults_are_found() {
    let found = |bug: Bug, window: usize| {
        let result = runner(12_000).run(&schedule(window, 300), |(setup, steps)| {
            run(setup, &steps, Some(bug)).map_err(|breach| TestCaseError::fail(format!("{breach:?}")))
        });
        match result {
            Err(TestError::Fail(breach, _)) => breach.message().to_owned(),
            other => panic!("{bug:?} at a window of {window} is not found: {other:?}"),
        }
    };
    let expected: [(Bug, &[&str]); 8] = [
        (Bug::WindowOneLarger, &["OffsetForgotten"]),
        (Bug::EpochWithoutWaiting, &["Duplicate", "Reorder"]),
        (Bug::SequencesReused, &["Loss"]),
        (Bug::LostMeansRefused, &["Duplicate", "SurelyNotIsThere"]),
        (Bug::NoResult, &["NoResult"]),
        (Bug::NoMemory, &["Duplicate", "Reorder"]),
        (Bug::LosesAppend, &["Loss"]),
        (Bug::DoesNotWait, &["Duplicate", "Reorder"]),
    ];
    for (bug, breaches) in expected {
        for window in [5, 64] {
            let message = found(bug, window);
            assert!(breaches.iter().any(|breach| message.starts_with(breach)), "{bug:?}: {message}");
        }
    }
}
