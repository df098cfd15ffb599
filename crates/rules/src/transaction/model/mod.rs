//! Producers that share a transactional id, a coordinator that fails and moves, markers that are late or come twice: by
//! seed.
//!
//! Clients add partitions, write, and end transactions by either protocol; they repeat requests without an answer, give
//! up, come back, and go on as zombies. Requests are delayed and doubled, answers lost; appends fail, and some of those
//! are on record all the same. The coordinator stops between any two events, and another one loads the last record. In
//! the end everything arrives.
//!
//! Checked: one record in flight; each record before its markers, each partition marked before Complete; the epoch
//! never falls; no producer is given to two clients, or to a zombie; the records of a transaction have one outcome,
//! which is the answered one and never a commit that no client wanted; each request is answered once; in the end no
//! record is open.
//!
//! Left out with TV1: requests that arrive after their client has gone on with the same epoch. With TV1 they look like
//! new ones, which is the reason for TV2.
//!
//! The checks are tested: with each [`Fault`] they find schedules that break a promise.

mod clients;
mod partitions;
mod world;

use fullbore_schedules::{each_fault_is_found, run_each, same_seed_same_outcome};
use world::World;

const STEPS: usize = 2_000;

/// A mistake that the broker around the machine, or a partition, makes on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// An append is reported as done before it is. Planted where `Effect::Persist` is carried out.
    ReportsBeforeAppend,
    /// An append that failed is reported as done. Planted where an append ends.
    TakesFailureForSuccess,
    /// Markers are written when the decision's append begins. Planted where `Effect::Persist` is carried out.
    MarksBeforeDecision,
    /// A partition is reported as marked without its marker. Planted where a marker arrives.
    ReportsUnwrittenMarkers,
    /// A reply counts for the decision of now. Planted where a reply arrives.
    TakesStaleReplies,
    /// A partition takes markers of coordinators that were replaced. Planted in the partition.
    TakesOldCoordinators,
    /// A record is loaded without one of its partitions. Planted in the load.
    LosesPartition,
    /// The record before the last is loaded. Planted in the load.
    LoadsOldRecord,
    /// A decision is loaded as the other one. Planted in the load.
    FlipsDecision,
    /// A decision is loaded with the epoch before. Planted in the load.
    LosesEpoch,
    /// A producer id is handed out twice. Planted where `Effect::NeedProducerId` is carried out.
    ReusesProducerIds,
    /// The producer that an EndTxn answers is the one before. Planted where `Effect::Answer` is carried out.
    AnswersOldEpoch,
    /// A decision is answered and its markers forgotten. Planted where `Effect::WriteMarkers` is carried out.
    ForgetsMarkers,
    /// Time never reaches the machine. Planted where time passes.
    NeverTicks,
}

/// Outcome of a schedule: transactions whose commit was answered, and those that were aborted with records.
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
fn whatever_happens_each_transaction_has_one_outcome_and_is_as_it_was_answered() {
    let outcomes = run_each(10_000, 2, |seed| run(seed, None));
    let mean = |count: fn(&Outcome) -> usize| outcomes.iter().map(count).sum::<usize>() as f64 / outcomes.len() as f64;
    let (committed, aborted) = (mean(|outcome| outcome.committed), mean(|outcome| outcome.aborted));
    assert!(committed > 2.0, "{committed} commits a schedule are so few that nothing may have been tried");
    assert!(aborted > 1.0, "{aborted} aborts a schedule are so few that nothing may have been tried");
}

#[test]
fn each_planted_fault_is_found() {
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
fn seed_runs_twice_outcome_is_the_same() {
    same_seed_same_outcome(0..50, |seed| run(seed, None));
}
