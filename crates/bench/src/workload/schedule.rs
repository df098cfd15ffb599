//! Computes when each record should be sent. It returns times and never sleeps.
//!
//! Invariant: the intended times stay the same if the sender is late. A latency that is measured from them includes the
//! time that a record waited to be sent (no coordinated omission).

use std::time::{Duration, Instant};

/// The times at which the records of a run should be sent.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    start: Instant,
    /// The nanoseconds from one record to the next, or `None` for no limit.
    interval_ns: Option<f64>,
}

impl Schedule {
    /// Creates a schedule. `records_per_sec` below zero means no limit. With zero, only the first record is ever sent,
    /// as in Kafka's tool.
    pub fn new(start: Instant, records_per_sec: f64) -> Self {
        let interval_ns = (records_per_sec >= 0.0).then(|| 1e9 / records_per_sec);
        Schedule { start, interval_ns }
    }

    /// Returns the time at which record `number` should be sent, or `None` without a rate.
    pub fn intended(&self, number: u64) -> Option<Instant> {
        let interval_ns = self.interval_ns?;
        if number == 0 {
            return Some(self.start);
        }
        // A century stands for "never", because an Instant cannot represent much later times on every system.
        let ns = (interval_ns * number as f64).min(3e18);
        Some(self.start + Duration::from_nanos(ns as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_evenly_spaced_and_do_not_drift() {
        let start = Instant::now();
        let schedule = Schedule::new(start, 3.0);
        assert_eq!(schedule.intended(0), Some(start));
        let third = schedule.intended(3).expect("paced");
        assert_eq!((third - start).as_micros(), 1_000_000);
        let late = schedule.intended(3_000_000).expect("paced");
        assert_eq!((late - start).as_secs(), 1_000_000);
    }

    #[test]
    fn unthrottled_has_no_times() {
        assert_eq!(Schedule::new(Instant::now(), -1.0).intended(7), None);
    }

    #[test]
    fn a_rate_of_zero_is_never() {
        let start = Instant::now();
        let schedule = Schedule::new(start, 0.0);
        assert_eq!(schedule.intended(0), Some(start));
        assert!(schedule.intended(1).expect("paced") > start + Duration::from_secs(1 << 30));
    }
}
