//! Runs many schedules of transactions. No schedule may break a promise, a seed must repeat its run, and each planted
//! fault must be found.

use fullbore_schedules::{each_fault_is_found, run_each, same_seed_same_outcome};
use fullbore_sim::transactions::fault::{FAULTS, Fault};
use fullbore_sim::transactions::run;

/// Returns how many schedules may run before one of them must find the fault.
fn found_within(fault: Fault) -> u64 {
    match fault {
        // The checks find the fault only if a message is late by at least a whole transaction of the old protocol.
        Fault::TakesOldCoordinators | Fault::BelievesOldConfirmation => 6_000,
        Fault::IndexTakesLateMarkers => 6_000,
        // The checks find the fault only if the power fails between two certain steps, and only one in four worlds has
        // power losses.
        Fault::LoadsUnflushed => 6_000,
        _ => 300,
    }
}

#[test]
fn random_faults_leave_transactions_whole_and_consumers_with_committed_records() {
    let reports = run_each(4_000, 2, |seed| run(seed, None));
    let count = reports.len() as f64;
    let mean =
        |of: fn(&fullbore_sim::transactions::Report) -> usize| reports.iter().map(of).sum::<usize>() as f64 / count;
    let (committed, aborted) = (mean(|report| report.committed), mean(|report| report.aborted));
    assert!(committed > 2.0, "{committed} commits a schedule are so few that nothing may have been tried");
    assert!(aborted > 2.0, "{aborted} aborts a schedule are so few that nothing may have been tried");
}

#[test]
fn each_mutation_is_found_by_one_of_its_seeds() {
    each_fault_is_found(FAULTS.map(|fault| (fault, 0..found_within(fault))), |seed, fault| run(seed, Some(fault)));
}

#[test]
fn same_seed_has_the_same_outcome() {
    same_seed_same_outcome(0..20, |seed| run(seed, None));
}
