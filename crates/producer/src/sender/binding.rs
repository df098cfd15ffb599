//! Notices that the broker's idempotence window keeps a long path from being filled, and reports it once.
//!
//! Pure: time is an argument. A window binds where full batches wait for acknowledgements alone although the pipe has
//! room.

use crate::partition::LONG_PATH;
use std::time::{Duration, Instant};

/// How long that must last.
const PATIENCE: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Binding {
    since: Option<Instant>,
    is_reported: bool,
}

impl Binding {
    /// Takes a look at a lane of this round trip: whether full batches wait for the window alone. Returns true once,
    /// when that has lasted.
    pub(super) fn look(&mut self, binds: bool, rtt: Option<Duration>, now: Instant) -> bool {
        if !binds || self.is_reported || rtt.is_none_or(|rtt| rtt < LONG_PATH) {
            self.since = None;
            return false;
        }
        self.is_reported = now >= *self.since.get_or_insert(now) + PATIENCE;
        self.is_reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_that_binds_for_long_is_reported_once() {
        let (mut binding, start) = (Binding::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let far = Some(Duration::from_millis(150));
        assert!(!binding.look(true, far, at(0)));
        assert!(!binding.look(false, far, at(1)), "it did not last");
        assert!(!binding.look(true, far, at(2)));
        assert!(!binding.look(true, far, at(3)));
        assert!(binding.look(true, far, at(4)));
        assert!(!binding.look(true, far, at(9)), "once");
        let mut near = Binding::default();
        assert!((0..9).all(|seconds| !near.look(true, Some(Duration::from_micros(100)), at(seconds))));
    }
}
