//! The clocks of groups. One is for deadlines. The system's clock is for times that are stored and compared after a
//! restart.
//!
//! The clock for deadlines only runs forward, at its own pace. A change of the system's clock therefore never ends a
//! member's session.

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

    /// Returns the present time for deadlines.
    pub fn now_ms(&self) -> i64 {
        let elapsed = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX / 2);
        self.started_ms.saturating_add(elapsed)
    }

    /// Returns how many milliseconds the system's clock is ahead of this clock.
    pub fn ahead_ms(&self) -> i64 {
        wall_ms().saturating_sub(self.now_ms())
    }
}

/// Returns the milliseconds since 1970 by the system's clock. They may jump if that clock is set.
pub(super) fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX / 2)
}
