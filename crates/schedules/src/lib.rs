//! Runs schedules by seed, for tests of state machines that must handle any order of events.
//!
//! A seed determines a schedule. `FULLBORE_SCHEDULES=20` runs twenty times as many schedules, `make soak` fifty times
//! as many, and `FULLBORE_SEED=7` only the schedule of seed 7. A schedule fails if it returns an error or panics. The
//! models and their checks are not here, but with the state machines.

mod random;
mod steps;
mod timeline;

pub use random::Random;
use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
pub use steps::run_each_list;
pub use timeline::Timeline;

/// Maximum number of failed seeds that a message lists.
const NAMED_MAX: usize = 20;

/// The factor by which `make soak` multiplies the number of schedules.
const SOAK: u64 = 50;

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

/// Returns how many schedules to run: `count`, multiplied by `FULLBORE_SCHEDULES`, or by 50 if `FULLBORE_SOAK` is set
/// (as by `make soak`).
pub fn scaled(count: u64) -> u64 {
    let soak = || std::env::var_os("FULLBORE_SOAK").map(|_| SOAK);
    count.saturating_mul(variable("FULLBORE_SCHEDULES").or_else(soak).unwrap_or(1))
}

fn seeds_of(count: u64) -> Range<u64> {
    only_seed().map_or(0..scaled(count), |seed| seed..seed + 1)
}

/// Calls `run`, and returns its result, or an error with the text of its panic.
fn guarded<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text =
            panic.downcast::<String>().or_else(|panic| panic.downcast::<&str>().map(|text| text.to_string().into()));
        Err(text.map_or_else(|_| "panicked".to_owned(), |text| *text))
    })
}

/// Runs the schedule of each of `seeds` on `threads` threads. Returns the results by seed.
pub fn run_seeds<T: Send>(
    seeds: Range<u64>,
    threads: usize,
    run: impl Fn(u64) -> Result<T, String> + Sync,
) -> Vec<(u64, Result<T, String>)> {
    let (next, results) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let claim = || Some(next.fetch_add(1, Relaxed)).filter(|seed| *seed < seeds.end);
    let work = || {
        while let Some(seed) = claim() {
            let result = guarded(|| run(seed));
            results.lock().expect("no holder panics").push((seed, result));
        }
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut results = results.into_inner().expect("no holder panics");
    results.sort_unstable_by_key(|(seed, _)| *seed);
    results
}

/// Runs the schedules of seeds `0..scaled(count)`, or of the only seed, on `threads` threads. Returns the outcomes by
/// seed.
///
/// # Panics
///
/// Panics if a schedule fails. The message lists the first failed seeds, with their reasons.
pub fn run_each<T: Send>(count: u64, threads: usize, run: impl Fn(u64) -> Result<T, String> + Sync) -> Vec<T> {
    let (mut outcomes, mut wrong) = (Vec::new(), Vec::new());
    for (seed, result) in run_seeds(seeds_of(count), threads, run) {
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(why) => wrong.push(format!("FULLBORE_SEED={seed}: {why}")),
        }
    }
    let listed = wrong[..wrong.len().min(NAMED_MAX)].join("\n");
    assert!(wrong.is_empty(), "{} schedules are wrong:\n{listed}", wrong.len());
    outcomes
}

/// Checks that for each planted fault, at least one of its seeds gives a schedule that fails.
///
/// # Panics
///
/// Panics if all schedules of a planted fault succeed.
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
        let expected: Vec<u64> = seeds_of(10).collect();
        assert_eq!(run_each(10, 3, Ok), expected);
    }

    #[test]
    #[should_panic(expected = "schedules are wrong:\nFULLBORE_SEED=")]
    fn failed_schedule_is_listed_with_its_seed() {
        run_each(10, 2, |seed| if seed == u64::MAX { Ok(()) } else { Err("broken".to_owned()) });
    }

    #[test]
    #[should_panic(expected = "schedules are wrong:\nFULLBORE_SEED=")]
    fn panic_is_listed_with_its_seed() {
        run_each(10, 2, |_| -> Result<(), String> { panic!("broken") });
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
