//! Schedules that are lists of steps. A failed schedule is reported without the steps that the failure does not need.

use crate::{Random, guarded, run_seeds, seeds_of};
use std::fmt::Debug;

/// Draws a setup and a list of steps from each seed, and runs them. The seeds are those of
/// [`run_each`](crate::run_each).
///
/// # Panics
///
/// Panics if a schedule fails. The message has the first failed seed, its setup, and the steps that the failure needs.
pub fn run_each_list<W: Debug, S: Clone + Debug>(
    count: u64,
    draw: impl Fn(&mut Random) -> (W, Vec<S>) + Sync,
    run: impl Fn(&W, &[S]) -> Result<(), String> + Sync,
) {
    let results = run_seeds(seeds_of(count), 1, |seed| {
        let (setup, steps) = draw(&mut Random::new(seed));
        run(&setup, &steps)
    });
    let mut wrong = results.into_iter().filter_map(|(seed, result)| result.err().map(|why| (seed, why)));
    if let Some((seed, mut why)) = wrong.next() {
        let (setup, steps) = draw(&mut Random::new(seed));
        let steps = shrink(steps, |steps| match guarded(|| run(&setup, steps)) {
            Ok(()) => false,
            Err(shorter) => {
                why = shorter;
                true
            }
        });
        panic!("{} schedules are wrong:\nFULLBORE_SEED={seed}: {why} by {setup:?} {steps:?}", 1 + wrong.count());
    }
}

/// Returns fewer steps that still fail. Leaves out many steps at a time at first, and then fewer.
fn shrink<S: Clone>(mut steps: Vec<S>, mut fails: impl FnMut(&[S]) -> bool) -> Vec<S> {
    let mut size = steps.len();
    while size > 0 {
        let before = steps.len();
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..steps.len().min(at + size));
            if fails(&fewer) { steps = fewer } else { at += size }
        }
        if size > 1 || steps.len() == before {
            size /= 2;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "both are there by () [3, 7]")]
    fn failed_list_is_reported_with_the_steps_that_it_needs() {
        let numbers = |_: &mut Random| ((), (0..100).collect::<Vec<_>>());
        run_each_list(5, numbers, |(), steps| {
            assert!(!(steps.contains(&3) && steps.contains(&7)), "both are there");
            Ok(())
        });
    }
}
