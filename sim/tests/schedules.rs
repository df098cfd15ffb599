//! Runs many schedules. None may break a promise, a seed must repeat its run, and each planted fault must be found.

use fullbore_sim::fault::FAULTS;
use fullbore_sim::run;

/// Within how many schedules each planted fault must be found.
const FOUND_WITHIN: u64 = 2_000;

/// Returns how many schedules to run. `make soak` runs more.
fn schedules() -> u64 {
    let soak = std::env::var_os("FULLBORE_SOAK").is_some();
    if soak { 200_000 } else { 4_000 }
}

/// Runs `check` for every seed on two threads.
fn on_two_threads(seeds: u64, check: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        for half in 0..2 {
            let check = &check;
            scope.spawn(move || (half..seeds).step_by(2).for_each(check));
        }
    });
}

#[test]
fn cluster_with_random_faults_keeps_its_promises() {
    on_two_threads(schedules(), |seed| {
        if let Err(error) = run(seed, None) {
            panic!("--seed {seed}: {error}");
        }
    });
}

#[test]
fn seed_repeats_itself() {
    for seed in 0..20 {
        let first = run(seed, None).expect("nothing is wrong");
        assert_eq!(run(seed, None).as_ref(), Ok(&first), "--seed {seed}");
        assert_ne!(first.digest, run(seed + 1, None).expect("nothing is wrong").digest);
        assert!(first.acknowledged > 0, "--seed {seed}: {first:?}");
    }
}

#[test]
fn each_mutation_is_found() {
    let found = FAULTS.map(|fault| {
        let first = (0..FOUND_WITHIN).find_map(|seed| run(seed, Some(fault)).err().map(|error| (seed, error)));
        println!("{fault:?}: {first:?}");
        (fault, first.is_some())
    });
    let hidden: Vec<_> = found.iter().filter(|(_, is_found)| !is_found).collect();
    assert!(hidden.is_empty(), "{hidden:?}");
}
