//! A model of producers that share a transactional id. A seed decides what happens. The coordinator fails and moves,
//! and markers arrive late or twice.
//!
//! Clients add partitions, write, and end transactions with either protocol. They repeat requests that got no response,
//! give up, restart, and continue as zombies. Requests are delayed and duplicated, and responses are lost. Appends
//! fail, although some of their records are written. The coordinator can stop between any two events, and another one
//! loads the last record. At the end the requests in flight are lost, and every append and every marker succeeds.
//!
//! The model checks these promises:
//!
//! - At most one record of the id's state is in flight. A decision is written before its markers, and each partition
//!   has its marker before the transaction is complete.
//! - The epoch never falls. Two clients never get the same producer id with the same epoch, and a zombie gets none.
//! - All records of a transaction have the same outcome, which is the one in the response. If it is a commit, a client
//!   has requested it.
//! - Each request gets one response. At the end no transaction is open.
//!
//! With TV1, the model drops late requests of a client that has continued with the same epoch. The coordinator could
//! not distinguish them from new requests, which is the reason for TV2.
//!
//! The checks are tested: for each [`Fault`], they must find a schedule in which a promise is broken.

mod clients;
mod partitions;
mod world;

use fullbore_schedules::{each_fault_is_found, run_each, same_seed_same_outcome};
use world::World;

const STEPS: usize = 2_000;

/// A planted mistake of a partition, or of the broker around the state machine. The comment of each mistake ends with
/// the moment at which it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// An append is reported as done before it has ended. Happens when `Effect::Persist` is carried out.
    ReportsBeforeAppend,
    /// A failed append is reported as done. Happens at the end of an append.
    TakesFailureForSuccess,
    /// Markers are written when the append of the decision begins. Happens when `Effect::Persist` is carried out.
    MarksBeforeDecision,
    /// A partition is reported as marked although it has no marker. Happens when a marker arrives.
    ReportsUnwrittenMarkers,
    /// A response to any decision counts for the current one. Happens when a response arrives.
    TakesStaleReplies,
    /// A partition accepts markers of coordinators that were replaced. Happens in the partition.
    TakesOldCoordinators,
    /// A record is loaded without one of its partitions. Happens at the load.
    LosesPartition,
    /// The record before the last one is loaded. Happens at the load.
    LoadsOldRecord,
    /// A decision is loaded as the opposite one. Happens at the load.
    FlipsDecision,
    /// A decision is loaded with the previous epoch. Happens at the load.
    LosesEpoch,
    /// A producer id is allocated twice. Happens when `Effect::NeedProducerId` is carried out.
    ReusesProducerIds,
    /// The response to an EndTxn has the former producer. Happens when `Effect::Answer` is carried out.
    AnswersOldEpoch,
    /// The response to a decision is sent, but its markers are dropped. Happens when `Effect::WriteMarkers` is carried
    /// out.
    ForgetsMarkers,
    /// [`Transaction::tick`] is never called.
    NeverTicks,
}

/// How many transactions a schedule has committed, and how many transactions with records it has aborted.
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
