//! Clocks of groups: one for deadlines, and the system's for times that are kept and compared after a restart.
//!
//! Invariant: the clock for deadlines only goes forward, at its own pace, so that a change of the system's clock ends
//! no member's session.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub(super) struct GroupClock {
    started: Instant,
    started_ms: i64,
}

impl GroupClock {
    /// Creates a clock that begins at the system's time.
    pub fn start() -> GroupClock {
        GroupClock::starting_at(wall_ms())
    }

    /// Creates a clock that begins at `started_ms`, in milliseconds since 1970.
    pub fn starting_at(started_ms: i64) -> GroupClock {
        GroupClock { started: Instant::now(), started_ms }
    }

    /// Returns the time for deadlines.
    pub fn now_ms(&self) -> i64 {
        let elapsed = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX / 2);
        self.started_ms.saturating_add(elapsed)
    }

    /// Returns the milliseconds by which the system's clock is ahead of this one.
    pub fn ahead_ms(&self) -> i64 {
        wall_ms().saturating_sub(self.now_ms())
    }
}

/// Returns the milliseconds since 1970 by the system's clock, which may be set.
pub(super) fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX / 2)
}
