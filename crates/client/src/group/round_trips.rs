//! Measures how long the coordinator takes to answer the requests of a member.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The times of answered requests, which the connections of a member share.
#[derive(Debug)]
pub(super) struct RoundTrips {
    /// The time in microseconds of the slowest recent request, among those that the coordinator answers at once.
    slowest: AtomicU64,
    /// The time in microseconds of the fastest request, among those whose answer the coordinator may delay for other
    /// members.
    fastest_waiting: AtomicU64,
}

impl Default for RoundTrips {
    fn default() -> Self {
        RoundTrips { slowest: AtomicU64::new(0), fastest_waiting: AtomicU64::new(u64::MAX) }
    }
}

impl RoundTrips {
    /// Notes how long a request took. `waits` is true if the coordinator may have delayed the answer for other members.
    /// Each faster answer reduces the slowest time by an eighth, so that a single slow answer is soon forgotten.
    pub(super) fn note(&self, time: Duration, waits: bool) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        if waits {
            self.fastest_waiting.fetch_min(micros, Ordering::Relaxed);
            return;
        }
        let noted = |slowest: u64| Some(micros.max(slowest - slowest / 8));
        let _ = self.slowest.fetch_update(Ordering::Relaxed, Ordering::Relaxed, noted);
    }

    /// Returns the time to expect for a slow request, or zero before the first answer. Of requests that may wait for
    /// other members only the fastest counts, because the others may have waited for a whole rebalance.
    pub(super) fn slowest(&self) -> Duration {
        let waiting = Some(self.fastest_waiting.load(Ordering::Relaxed)).filter(|micros| *micros < u64::MAX);
        Duration::from_micros(self.slowest.load(Ordering::Relaxed).max(waiting.unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rebalance_does_not_count_as_a_slow_answer() {
        let times = RoundTrips::default();
        let ms = Duration::from_millis;
        assert_eq!(times.slowest(), Duration::ZERO);
        times.note(ms(3_000), true);
        times.note(ms(400), true);
        assert_eq!(times.slowest(), ms(400));
        times.note(ms(20), false);
        assert_eq!(times.slowest(), ms(400));
        times.note(ms(700), false);
        assert_eq!(times.slowest(), ms(700));
    }

    #[test]
    fn slow_answer_counts_less_after_each_faster_one() {
        let times = RoundTrips::default();
        let ms = Duration::from_millis;
        times.note(ms(8_000), false);
        times.note(ms(30), false);
        assert_eq!(times.slowest(), ms(7_000));
        (0..100).for_each(|_| times.note(ms(30), false));
        assert_eq!(times.slowest(), ms(30));
    }
}
