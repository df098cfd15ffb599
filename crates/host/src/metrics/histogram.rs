//! A histogram of durations with fixed buckets.
//!
//! Invariant: a duration is counted in the first bucket whose upper bound is not below the duration. The sum of the
//! buckets up to a bound is therefore exactly the number of durations up to this bound (`le` in Prometheus).

use super::counter::Counter;
use std::time::Duration;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const S: u64 = 1_000 * MS;

/// The upper bounds of the buckets in nanoseconds. A response from memory over loopback takes about as long as the
/// smallest bound. The largest bound is as long as a client's request timeout.
const BOUNDS_NS: [u64; 20] = [
    50 * US,
    100 * US,
    200 * US,
    500 * US,
    MS,
    2 * MS,
    5 * MS,
    10 * MS,
    20 * MS,
    50 * MS,
    100 * MS,
    200 * MS,
    500 * MS,
    S,
    2 * S,
    5 * S,
    10 * S,
    20 * S,
    30 * S,
    60 * S,
];

/// Counts durations.
#[derive(Debug, Default)]
pub struct Histogram {
    /// The count of each bucket. The last bucket is for durations above all bounds.
    buckets: [Counter; BOUNDS_NS.len() + 1],
    sum_ns: Counter,
}

/// The values of a histogram at one moment.
pub struct Seen {
    /// Each bound in seconds, with the count of its own bucket. The last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    pub count: u64,
    pub sum_s: f64,
}

impl Histogram {
    pub fn observe(&self, elapsed: Duration) {
        let ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        self.buckets[bucket].add(1);
        self.sum_ns.add(ns);
    }

    pub fn seen(&self) -> Seen {
        let bounds = BOUNDS_NS.iter().map(|ns| *ns as f64 / S as f64).chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(self.buckets.iter().map(Counter::get)).collect();
        // Use the sum of the buckets that were just read, so that the metrics page never shows a count that differs
        // from the buckets.
        let count = buckets.iter().map(|(_, count)| count).sum();
        Seen { buckets, count, sum_s: self.sum_ns.get() as f64 / S as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bucket_of(elapsed: Duration) -> f64 {
        let histogram = Histogram::default();
        histogram.observe(elapsed);
        let seen = histogram.seen();
        assert_eq!(seen.count, 1);
        seen.buckets.iter().find(|(_, count)| *count == 1).map(|(bound, _)| *bound).expect("counted once")
    }

    #[test]
    fn a_duration_equal_to_a_bound_is_in_its_bucket() {
        assert_eq!(bucket_of(Duration::ZERO), 0.000_05);
        assert_eq!(bucket_of(Duration::from_micros(50)), 0.000_05);
        assert_eq!(bucket_of(Duration::from_nanos(50_001)), 0.000_1);
        assert_eq!(bucket_of(Duration::from_secs(60)), 60.0);
        assert_eq!(bucket_of(Duration::from_nanos(60_000_000_001)), f64::INFINITY);
        assert_eq!(bucket_of(Duration::MAX), f64::INFINITY);
    }

    proptest! {
        #[test]
        fn a_duration_is_in_the_first_bucket_that_holds_it(ns in 0..120 * S) {
            let seconds = ns as f64 / S as f64;
            let bound = bucket_of(Duration::from_nanos(ns));
            prop_assert!(seconds <= bound);
            let below = BOUNDS_NS.iter().map(|b| *b as f64 / S as f64).rfind(|b| *b < bound);
            prop_assert!(below.is_none_or(|below| below < seconds));
        }
    }

    #[test]
    fn the_sum_is_in_seconds() {
        let histogram = Histogram::default();
        histogram.observe(Duration::from_millis(250));
        histogram.observe(Duration::from_millis(500));
        assert_eq!(histogram.seen().sum_s, 0.75);
    }
}
