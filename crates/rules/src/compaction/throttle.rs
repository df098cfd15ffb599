//! Computes pauses that keep reads and writes below a rate of bytes.
//!
//! The caller provides the time and sleeps. Invariant: over any time, no more bytes are read or written than the rate
//! allows, apart from those of the last call. There is one exception: if a pause is cut to [`PAUSE_MAX`], the rate is
//! exceeded.

use std::time::Duration;

/// Maximum length of a pause, whatever the rate.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Keeps reads and writes below a rate. It stores the time at which the bytes so far would have been read and written
/// at that rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Throttle {
    paid_at: Duration,
}

impl Throttle {
    /// Notes that bytes were read or written at `now`, the time since a fixed moment. Returns how long to pause to
    /// keep the rate.
    pub fn pause_after(&mut self, now: Duration, bytes: u64, bytes_per_second: f64) -> Duration {
        let cost = bytes as f64 / bytes_per_second.max(f64::MIN_POSITIVE);
        let cost = Duration::try_from_secs_f64(cost).unwrap_or(PAUSE_MAX).min(PAUSE_MAX);
        self.paid_at = self.paid_at.max(now) + cost;
        (self.paid_at - now).min(PAUSE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_add_up_to_the_rate_and_idle_time_gives_no_credit() {
        let mut throttle = Throttle::default();
        let ms = Duration::from_millis;
        assert_eq!(throttle.pause_after(ms(0), 100, 1000.0), ms(100));
        assert_eq!(throttle.pause_after(ms(40), 100, 1000.0), ms(160));
        assert_eq!(throttle.pause_after(ms(10_000), 100, 1000.0), ms(100));
        assert_eq!(throttle.pause_after(ms(20_000), u64::MAX, f64::MAX), ms(0));
        assert_eq!(throttle.pause_after(ms(20_000), 1, 0.0), PAUSE_MAX);
    }
}
