//! Detects that the window of an idempotent producer limits throughput on a long path, and reports it once.
//!
//! A window *binds* if full batches wait only for acknowledgements, although the connection could carry more. A long
//! pause between acknowledgements restarts the measurement, because the broker is then the limit and not the window.
//! Time is an argument.

use crate::partition::LONG_PATH;
use std::time::{Duration, Instant};

/// How long the window must bind before it is reported.
const PATIENCE: Duration = Duration::from_secs(2);
/// A pause between acknowledgements is long if it exceeds both two round trips and this time.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Detects that a producer's window limits throughput (*binds*).
#[derive(Debug, Default)]
pub(super) struct Binding {
    since: Option<Instant>,
    /// The time of the last check, if the window bound at that time. Otherwise `None`.
    bound_at: Option<Instant>,
    /// Total time in which the window has bound.
    bound: Duration,
    /// The number of acknowledged bytes, and the time of the check at which this number was last found to have grown.
    delivered: Option<(u64, Instant)>,
    is_reported: bool,
}

/// The observations of one check of a broker's connections.
pub(super) struct BindingLook {
    /// True if full batches wait only for the window.
    pub(super) binds: bool,
    /// The shortest round trip, or `None` before the first response.
    pub(super) rtt: Option<Duration>,
    /// How many bytes were acknowledged on all connections.
    pub(super) delivered: u64,
    pub(super) now: Instant,
}

impl Binding {
    /// Returns the total time in which the window has bound.
    pub(super) fn bound(&self) -> Duration {
        self.bound
    }

    /// Evaluates a check. Returns true only once: when the window has bound for [`PATIENCE`] without interruption.
    pub(super) fn look(&mut self, look: &BindingLook) -> bool {
        let now = look.now;
        if let Some(before) = self.bound_at {
            self.bound += now.saturating_duration_since(before);
        }
        self.bound_at = (look.binds && look.rtt.is_some_and(|rtt| rtt >= LONG_PATH)).then_some(now);
        let Some(rtt) = look.rtt.filter(|rtt| *rtt >= LONG_PATH && look.binds && !self.is_reported) else {
            (self.since, self.delivered) = (None, None);
            return false;
        };
        let (delivered, at) = *self.delivered.get_or_insert((look.delivered, now));
        if now > at + (2 * rtt).max(PAUSE_MAX) {
            self.since = None;
        }
        if delivered != look.delivered {
            self.delivered = Some((look.delivered, now));
        }
        self.is_reported = now >= *self.since.get_or_insert(now) + PATIENCE;
        self.is_reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Option<Duration> = Some(Duration::from_millis(150));

    /// Makes a check every 100 ms, from `from` up to but not including `to`. Both are tenths of a second after `start`.
    /// `delivered` returns the bytes acknowledged at such a time. Returns the time of the first report in tenths of a
    /// second, or `None` without a report.
    fn reported(
        binding: &mut Binding,
        start: Instant,
        from: u64,
        to: u64,
        rtt: Option<Duration>,
        delivered: impl Fn(u64) -> u64,
    ) -> Option<u64> {
        (from..to).find(|tenths| {
            let now = start + Duration::from_millis(100 * tenths);
            binding.look(&BindingLook { binds: true, rtt, delivered: delivered(*tenths), now })
        })
    }

    #[test]
    fn a_window_that_binds_for_long_is_reported_once() {
        let (mut binding, start) = (Binding::default(), Instant::now());
        assert_eq!(reported(&mut binding, start, 0, 10, FAR, |at| at), None);
        let now = start + Duration::from_secs(1);
        assert!(!binding.look(&BindingLook { binds: false, rtt: FAR, delivered: 10, now }), "it did not last");
        assert_eq!(reported(&mut binding, start, 20, 90, FAR, |at| at), Some(40));
        assert_eq!(reported(&mut binding, start, 90, 190, FAR, |at| at), None, "once");
        // The window binds until 1 s, and again from 2 s on.
        assert_eq!(binding.bound(), Duration::from_millis(1_000 + 16_900));
        let near = Some(Duration::from_micros(100));
        assert_eq!(reported(&mut Binding::default(), start, 0, 90, near, |at| at), None);
    }

    #[test]
    fn a_broker_that_stalls_is_not_reported_as_a_window_that_binds() {
        let (mut binding, start) = (Binding::default(), Instant::now());
        // Batches are acknowledged until 1 s, and again from 4 s on.
        let delivered = |tenths: u64| if tenths < 40 { tenths.min(10) } else { tenths };
        assert_eq!(reported(&mut binding, start, 0, 59, FAR, delivered), None);
        assert_eq!(reported(&mut binding, start, 59, 90, FAR, delivered), Some(60), "2 s after the stall");
        let mut unanswered = Binding::default();
        assert_eq!(reported(&mut unanswered, start, 0, 90, FAR, |_| 7), None);
    }
}
