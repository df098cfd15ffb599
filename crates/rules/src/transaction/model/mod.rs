//! Model of producers that share a transactional id, by seed. The coordinator fails and moves, and markers arrive late
//! or twice.
//!
//! Clients add partitions, write, and end transactions by either protocol. They repeat requests without a response,
//! give up, restart, and continue as zombies. Requests are delayed and duplicated, and responses are lost. Appends
//! fail, although some of their records are written. The coordinator stops between any two events, and another one
//! loads the last record. At the end the requests in flight are lost, and every append and marker succeeds.
//!
//! Checks:
//!
//! - At most one record is in flight. Each record precedes its markers, and each partition has its marker before
//!   Complete.
//! - The epoch never falls. No producer is assigned to two clients, or to a zombie.
//! - The records of a transaction have one outcome: the outcome in the response, and never a commit that no client
//!   requested.
//! - Each request gets one response. At the end no transaction is open.
//!
//! Left out with TV1: requests that arrive after their client has continued with the same epoch. With TV1 such requests
//! look like new ones, which is the reason for TV2.
//!
//! The checks are tested: for each [`Fault`] they must find schedules that break a promise.

mod clients;
mod partitions;
mod world;

use fullbore_schedules::{each_fault_is_found, run_each, same_seed_same_outcome};
use world::World;

const STEPS: usize = 2_000;

/// Planted fault: a mistake made on purpose by a partition, or by the broker around the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// An append is reported as done before its end. Place: the execution of `Effect::Persist`.
    ReportsBeforeAppend,
    /// A failed append is reported as done. Place: the end of an append.
    TakesFailureForSuccess,
    /// Markers are written when the decision's append begins. Place: the execution of `Effect::Persist`.
    MarksBeforeDecision,
    /// A partition is reported as marked without its marker. Place: the arrival of a marker.
    ReportsUnwrittenMarkers,
    /// Any response counts for the present decision. Place: the arrival of a response.
    TakesStaleReplies,
    /// A partition accepts markers of replaced coordinators. Place: the partition.
    TakesOldCoordinators,
    /// A record is loaded without one of its partitions. Place: the load.
    LosesPartition,
    /// The record before the last is loaded. Place: the load.
    LoadsOldRecord,
    /// A decision is loaded as the opposite one. Place: the load.
    FlipsDecision,
    /// A decision is loaded with the previous epoch. Place: the load.
    LosesEpoch,
    /// A producer id is allocated twice. Place: the execution of `Effect::NeedProducerId`.
    ReusesProducerIds,
    /// The response to an EndTxn has the former producer. Place: the execution of `Effect::Answer`.
    AnswersOldEpoch,
    /// The response to a decision is sent, but its markers are dropped. Place: the execution of `Effect::WriteMarkers`.
    ForgetsMarkers,
    /// [`Transaction::tick`] is never called.
    NeverTicks,
}

/// Outcome of a schedule: the number of committed transactions, and of aborted ones with records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    committed: usize,
    aborted: usize,
}

fn run(seed: u64, fault: Option<Fault>) -> Result<Outcome, String> {
    let mut world = World::new(seed, fault);
    for step in 0..STEPS {
        world.step().map_err(|why| format!("step {step}: {why}"))?;
    }
    world.end()
}

#[test]
fn random_schedule_each_transaction_has_one_outcome_as_in_its_response() {
    let outcomes = run_each(10_000, 2, |seed| run(seed, None));
    let mean = |count: fn(&Outcome) -> usize| outcomes.iter().map(count).sum::<usize>() as f64 / outcomes.len() as f64;
    let (committed, aborted) = (mean(|outcome| outcome.committed), mean(|outcome| outcome.aborted));
    assert!(committed > 2.0, "{committed} commits a schedule are so few that nothing may have been tried");
    assert!(aborted > 1.0, "{aborted} aborts a schedule are so few that nothing may have been tried");
}

#[test]
fn each_mutation_is_found() {
    use Fault::*;
    let faults = [
        ReportsBeforeAppend,
        TakesFailureForSuccess,
        MarksBeforeDecision,
        ReportsUnwrittenMarkers,
        TakesStaleReplies,
        TakesOldCoordinators,
        LosesPartition,
        LoadsOldRecord,
        FlipsDecision,
        LosesEpoch,
        ReusesProducerIds,
        AnswersOldEpoch,
        ForgetsMarkers,
        NeverTicks,
    ];
    each_fault_is_found(faults.map(|fault| (fault, 0..3_000)), |seed, fault| run(seed, Some(fault)));
}

#[test]
fn same_seed_has_the_same_outcome() {
    same_seed_same_outcome(0..50, |seed| run(seed, None));
}
