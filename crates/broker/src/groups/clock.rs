//! The two clocks groups live by: one for deadlines, and the system's for what is kept and compared after a restart.
//!
//! Invariant: the first only goes forward, at its own pace; to set the system's clock ends no member's session.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub(super) struct GroupClock {
    started: Instant,
    started_ms: i64,
}

impl GroupClock {
    /// A clock that begins at the system's time.
    pub fn start() -> GroupClock {
        GroupClock::starting_at(wall_ms())
    }

    /// A clock that begins at this time, in milliseconds since 1970.
    pub fn starting_at(started_ms: i64) -> GroupClock {
        GroupClock { started: Instant::now(), started_ms }
    }

    /// For deadlines.
    pub fn now_ms(&self) -> i64 {
        let elapsed = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX / 2);
        self.started_ms.saturating_add(elapsed)
    }

    /// By how much the system's clock was set since.
    pub fn ahead_ms(&self) -> i64 {
        wall_ms().saturating_sub(self.now_ms())
    }
}

/// Milliseconds since 1970 by the system's clock, which may be set.
pub(super) fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX / 2)
}
