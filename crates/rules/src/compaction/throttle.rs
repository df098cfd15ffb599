//! Computes how long to pause after reads and writes, so that they stay below a rate in bytes per second.
//!
//! The caller provides the time and sleeps. Invariant: in any period, no more bytes are read and written than the rate
//! allows, apart from those of the last call. The rate is exceeded only if a pause is cut to [`PAUSE_MAX`].

use std::time::Duration;

/// Maximum length of a pause, whatever the rate.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Keeps reads and writes below a rate. Stores the time at which the rate would have allowed all bytes so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Throttle {
    paid_at: Duration,
}

impl Throttle {
    /// Counts `bytes` that were read or written until `now`, the time since a fixed moment. Returns how long the caller
    /// must pause.
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
