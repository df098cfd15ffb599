//! Latencies in bounded memory. Invariant: count, mean and maximum are exact, and a percentile is at most 0.1 % too
//! high.

use hdrhistogram::Histogram;

/// The largest latency that is recorded, in microseconds. Longer latencies are recorded as this value.
const LATENCY_US_MAX: u64 = 3_600_000_000;

/// A distribution of latencies. It uses about 200 KiB, however many latencies it contains.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    sum_us: u128,
    max_us: u64,
}

/// The usual percentiles, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentiles {
    /// The 50th percentile.
    pub p50_us: u64,
    /// The 95th percentile.
    pub p95_us: u64,
    /// The 99th percentile.
    pub p99_us: u64,
    /// The 99.9th percentile.
    pub p999_us: u64,
    /// The maximum.
    pub max_us: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are valid");
        Latencies { histogram, sum_us: 0, max_us: 0 }
    }
}

impl Latencies {
    /// Records the same latency, `latency_us`, for `count` records.
    pub fn record(&mut self, latency_us: u64, count: u64) {
        self.histogram.saturating_record_n(latency_us, count);
        self.sum_us += u128::from(latency_us) * u128::from(count);
        self.max_us = self.max_us.max(latency_us);
    }

    /// Returns how many latencies were recorded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the mean in microseconds, or NaN if there are no latencies.
    pub fn mean_us(&self) -> f64 {
        self.sum_us as f64 / self.count() as f64
    }

    /// Returns the maximum in microseconds.
    pub fn max_us(&self) -> u64 {
        self.max_us
    }

    /// Returns a quantile of the latencies, in microseconds. `quantile` is between 0 and 1, so 0.99 returns the p99.
    /// Returns 0 if there are no latencies.
    pub fn quantile_us(&self, quantile: f64) -> u64 {
        self.histogram.value_at_quantile(quantile).min(self.max_us)
    }

    /// Returns the usual percentiles.
    pub fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50_us: self.quantile_us(0.5),
            p95_us: self.quantile_us(0.95),
            p99_us: self.quantile_us(0.99),
            p999_us: self.quantile_us(0.999),
            max_us: self.max_us,
        }
    }

    /// Adds another distribution to this one.
    pub fn add(&mut self, other: &Latencies) {
        self.histogram.add(&other.histogram).expect("both have the same bounds");
        self.sum_us += other.sum_us;
        self.max_us = self.max_us.max(other.max_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_percentiles() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|us| latencies.record(us, 1));
        let p = latencies.percentiles();
        assert_eq!((p.p50_us, p.p95_us, p.p99_us, p.p999_us, p.max_us), (500, 950, 990, 999, 1000));
        assert_eq!((latencies.mean_us(), latencies.count()), (500.5, 1000));
    }

    #[test]
    fn nothing_recorded_is_no_panic() {
        let latencies = Latencies::default();
        assert_eq!((latencies.quantile_us(0.99), latencies.max_us()), (0, 0));
        assert!(latencies.mean_us().is_nan());
    }

    #[test]
    fn beyond_the_largest_keeps_the_true_maximum() {
        let mut latencies = Latencies::default();
        latencies.record(u64::from(u32::MAX) * 10, 1);
        assert_eq!(latencies.max_us(), u64::from(u32::MAX) * 10);
    }

    proptest! {
        #[test]
        fn a_percentile_is_never_too_low_and_at_most_a_thousandth_too_high(
            mut values in prop::collection::vec(1u64..100_000_000, 1..400), quantile in 0.0f64..=1.0,
        ) {
            let mut latencies = Latencies::default();
            let half = values.len() / 2;
            let mut other = Latencies::default();
            values[..half].iter().for_each(|us| latencies.record(*us, 1));
            values[half..].iter().for_each(|us| other.record(*us, 1));
            latencies.add(&other);
            values.sort_unstable();
            let rank = ((quantile * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1];
            let found = latencies.quantile_us(quantile);
            prop_assert!(found >= exact && found as f64 <= exact as f64 * 1.001 + 1.0, "{found} for {exact}");
        }
    }
}
