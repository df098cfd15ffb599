//! Tests the window against the broker's own rules, with a modelled network and modelled brokers that fail in every
//! known way.
//!
//! A schedule is a setup and a list of steps. Proptest generates it from a fixed seed, so that a failure can be
//! repeated and shrunk. `FULLBORE_SCHEDULES=20` runs twenty times as many schedules, and `FULLBORE_SEED` sets another
//! seed.
//!
//! After each step, the log must have no record twice and must have the records in the order of sending. A record that
//! was reported as certainly not written must not be in the log. A record that was reported as written must be in the
//! log at the reported offset, and a correct broker must have returned that offset. At the end each record must have
//! exactly one result, at the latest soon after the faults have stopped.
//!
//! Two cases are excluded, because no producer can detect them. In the first, a broker forgets a producer while batches
//! are in flight. In the second, late copies arrive with an abandoned producer id, which the new producer id does not
//! fence.

mod broker;
mod world;

use broker::Fault;
use fullbore_schedules::{only_seed, scaled};
use fullbore_wire::ErrorCode;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};
use world::{LANES, World};

/// A violation of an invariant, with the number of the record if it concerns one.
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
    /// The next batch reuses the sequences of a batch that was given up.
    SequencesReused,
    /// A batch whose response was lost counts as certainly not written.
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
    /// True if brokers behave like Kafka: a restart restores only the newest batch of a producer, and a retry of a
    /// forgotten batch is refused with OUT_OF_ORDER_SEQUENCE_NUMBER.
    kafka: bool,
    /// The number of records before the sequences wrap.
    before_wrap: Option<i32>,
    /// How many records are sent in all.
    records: u32,
}

#[derive(Clone, Debug)]
enum Step {
    /// The producer sends up to `most` batches: two over connection `lane`, two over the next one, and so on.
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
    /// A connection ends ([`World::cut`] explains the fields).
    Cut {
        lane: u8,
        arrives: usize,
        unsent: usize,
        late: bool,
    },
    /// A late request arrives at its broker. Its connection has already ended.
    Late {
        which: usize,
        twice: bool,
    },
    /// The other node becomes the leader.
    Move,
    /// A node changes the number of batches that it retains.
    Retain {
        node: u8,
        batches: usize,
    },
    /// A node changes the maximum size of a batch.
    RecordsMax {
        node: u8,
        records: u32,
    },
    Restart,
    /// The batches that have been parked longest are refused.
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

/// Returns schedules with few kinds of steps and few records. Late copies, restarts and parking thus often coincide, so
/// that the schedules test what responses prove in each order.
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

/// Runs a schedule, and then ends the faults until every record has its result.
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

/// Schedules that random generation hardly finds. Each would violate an invariant if one certain rule of the window or
/// of the table of errors were missing.
#[test]
fn once_in_order_and_with_one_result_by_schedules_made_for_one_rule_each() {
    let (send, arrive) = (|lane, most| Step::Send { lane, most }, |lane, most| Step::Arrive { lane, most });
    let (answer, late) = (|lane, most| Step::Answer { lane, most }, || Step::Late { which: 0, twice: false });
    let cut = || Step::Cut { lane: 0, arrives: 0, unsent: 0, late: true };
    let first = || vec![send(0, 1), arrive(0, 1), answer(0, 1)];
    let setup = Setup { retain: [5; 2], parks: 0, kafka: false, before_wrap: None, records: 40 };

    // The second of two batches overtakes the first one, is parked, and is refused when its wait ends. Then the first
    // one is acknowledged, and its response overtakes that refusal. A late copy of the second batch can now be
    // appended, so the refusal proves nothing.
    let mut overtaken = first();
    overtaken.extend([send(0, 2), cut(), send(0, 1), send(1, 1), arrive(1, 1), Step::ExpireParked { most: 1 }]);
    overtaken.extend([arrive(0, 1), answer(0, 1), answer(1, 1), send(0, 1), late(), late(), arrive(0, 1)]);
    assert_eq!(run(Setup { parks: 5, ..setup }, &overtaken, None), Ok(()));

    // Two of three batches are refused as out of order in one round. Then late copies of all three are appended, and
    // the broker forgets all but the last one. It therefore refuses the first one as out of order in the next round.
    // The refusals of the previous round prove nothing any more.
    let mut forgotten = first();
    let refused = Step::ArriveTo { lane: 0, fault: Fault::Refused(ErrorCode::NOT_ENOUGH_REPLICAS) };
    forgotten.extend([send(0, 3), cut(), send(0, 3), refused, arrive(0, 2), answer(0, 3), late(), late(), late()]);
    forgotten.extend([Step::Restart, send(0, 1), arrive(0, 1), answer(0, 1), send(0, 3), arrive(0, 3)]);
    assert_eq!(run(Setup { kafka: true, ..setup }, &forgotten, None), Ok(()));

    // A batch is written and its response is lost. The next leader refuses the retry as too large. The batch must not
    // be split, because the broker would append its parts as new batches.
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

/// The checks must find each planted fault, and report it as the right violation.
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
