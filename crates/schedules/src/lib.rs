//! Runs schedules by seed, for tests of state machines that must handle any order of events.
//!
//! A seed determines a schedule. `FULLBORE_SCHEDULES=20` runs twenty times as many schedules, and `FULLBORE_SEED=7`
//! only that of seed 7. Each state machine has its modelled world and its checks beside it.

mod random;

pub use random::Random;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Mutex;

/// Maximum number of failed seeds that are listed.
const NAMED_MAX: usize = 20;

/// Returns the number in an environment variable, or `None` if the variable is not set.
///
/// # Panics
/// Panics if the variable is not a number.
pub fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Returns the only seed to run, or `None` if `FULLBORE_SEED` is not set.
pub fn only_seed() -> Option<u64> {
    variable("FULLBORE_SEED")
}

/// Returns how many schedules to run. This is `count`, multiplied by `FULLBORE_SCHEDULES` if that is set.
pub fn scaled(count: u64) -> u64 {
    count.saturating_mul(variable("FULLBORE_SCHEDULES").unwrap_or(1))
}

/// Runs the schedules of seeds `0..scaled(count)`, or of the only seed, on `threads` threads. Returns the outcomes in
/// the order in which the schedules ended.
///
/// # Panics
///
/// Panics if a schedule fails. The message lists the first failed seeds, with their reasons.
pub fn run_each<T: Send>(count: u64, threads: usize, run: impl Fn(u64) -> Result<T, String> + Sync) -> Vec<T> {
    let seeds = only_seed().map_or(0..scaled(count), |seed| seed..seed + 1);
    let (outcomes, wrong) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for first in 0..threads {
            let (run, outcomes, wrong, seeds) = (&run, &outcomes, &wrong, seeds.clone());
            scope.spawn(move || {
                for seed in seeds.skip(first).step_by(threads) {
                    match run(seed) {
                        Ok(outcome) => outcomes.lock().expect("no schedule panics").push(outcome),
                        Err(why) => wrong.lock().expect("no schedule panics").push((seed, why)),
                    }
                }
            });
        }
    });
    let mut wrong = wrong.into_inner().expect("no schedule panics");
    wrong.sort();
    let lines: Vec<_> =
        wrong.iter().take(NAMED_MAX).map(|(seed, why)| format!("FULLBORE_SEED={seed}: {why}")).collect();
    assert!(wrong.is_empty(), "{} schedules are wrong:\n{}", wrong.len(), lines.join("\n"));
    outcomes.into_inner().expect("no schedule panics")
}

/// Checks that each planted fault is found by one of its seeds.
///
/// # Panics
///
/// Panics if a planted fault is found by none of its seeds.
pub fn each_fault_is_found<F: Copy + Debug, T>(
    faults: impl IntoIterator<Item = (F, Range<u64>)>,
    run: impl Fn(u64, F) -> Result<T, String>,
) {
    for (fault, mut seeds) in faults {
        assert!(seeds.any(|seed| run(seed, fault).is_err()), "{fault:?} is not found");
    }
}

/// Checks that two runs of a seed have the same outcome.
///
/// # Panics
/// Panics if two runs of a seed differ.
pub fn same_seed_same_outcome<T: PartialEq + Debug>(seeds: Range<u64>, run: impl Fn(u64) -> T) {
    for seed in seeds {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_threads_run_each_seed_once() {
        let mut seeds = run_each(10, 3, Ok);
        seeds.sort_unstable();
        let expected: Vec<u64> = only_seed().map_or((0..scaled(10)).collect(), |seed| vec![seed]);
        assert_eq!(seeds, expected);
    }

    #[test]
    #[should_panic(expected = "schedules are wrong:\nFULLBORE_SEED=")]
    fn failed_schedule_is_listed_with_its_seed() {
        run_each(10, 2, |seed| if seed == u64::MAX { Ok(()) } else { Err("broken".to_owned()) });
    }

    #[test]
    #[should_panic(expected = "\"second\" is not found")]
    fn fault_found_by_no_seed_is_named() {
        each_fault_is_found([("first", 0..4), ("second", 0..4)], |seed, fault| {
            if fault == "first" && seed == 3 { Err("found".to_owned()) } else { Ok(()) }
        });
    }

    #[test]
    #[should_panic(expected = "seed 0")]
    fn seed_with_two_outcomes_is_named() {
        let calls = std::cell::Cell::new(0);
        same_seed_same_outcome(0..1, |_| calls.replace(calls.get() + 1));
    }
}
