//! Runs many schedules. No schedule may break a promise, a seed must repeat its run, and each planted fault must be
//! found.

use fullbore_schedules::{each_fault_is_found, run_each, same_seed_same_outcome};
use fullbore_sim::fault::FAULTS;
use fullbore_sim::run;
use std::collections::BTreeSet;
use std::ops::Range;

/// A range of seeds, at least one of which must find each planted fault. The first seeds of the range find the rarest
/// faults, so that the test is short.
const FAULT_SEEDS: Range<u64> = 4_300..6_300;

#[test]
fn cluster_with_random_faults_keeps_its_promises() {
    let reports = run_each(4_000, 2, |seed| run(seed, None));
    assert!(reports.iter().all(|report| report.acknowledged > 0));
    let digests: BTreeSet<u64> = reports.iter().map(|report| report.digest).collect();
    assert_eq!(digests.len(), reports.len(), "two seeds have the same events");
}

#[test]
fn same_seed_has_the_same_outcome() {
    same_seed_same_outcome(0..20, |seed| run(seed, None));
}

#[test]
fn each_mutation_is_found() {
    each_fault_is_found(FAULTS.map(|fault| (fault, FAULT_SEEDS)), |seed, fault| run(seed, Some(fault)));
}
