//! A clock for deadlines, timeouts and expirations, which only runs forward.
//!
//! The clock begins at the system's time and then runs at its own pace. If an administrator or NTP sets the system's
//! clock, no timeout becomes longer or shorter. Times that are stored or sent are times of the system's clock. To
//! convert a time of this clock, the caller adds [`SteadyClock::ahead_ms`] to it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock that starts at the system's time and then runs at its own pace. All copies show the same time.
#[derive(Clone, Copy, Debug)]
pub struct SteadyClock {
    started: Instant,
    /// The time since 1970 at which the clock began.
    began_at: Duration,
}

impl SteadyClock {
    /// Creates a clock that begins at the system's time.
    pub fn start() -> SteadyClock {
        SteadyClock { started: Instant::now(), began_at: system_time() }
    }

    /// Creates a clock for tests, as if the system's clock had been set `forward_ms` ahead after the start. A negative
    /// number sets the system's clock back.
    pub fn before_step(forward_ms: i64) -> SteadyClock {
        let SteadyClock { started, began_at } = SteadyClock::start();
        let step = Duration::from_millis(forward_ms.unsigned_abs());
        let began_at = if forward_ms < 0 { began_at.saturating_add(step) } else { began_at.saturating_sub(step) };
        SteadyClock { started, began_at }
    }

    /// Returns the present time of this clock, in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        i64::try_from(self.now().as_millis()).unwrap_or(i64::MAX / 2)
    }

    /// Returns how many milliseconds the system's clock is ahead of this clock. The number is 0 until the system's
    /// clock is set.
    pub fn ahead_ms(&self) -> i64 {
        let (here, there) = (self.now(), system_time());
        // Round to the nearest millisecond. The few microseconds between the readings of the two clocks then have no
        // effect.
        let rounded = |apart: Duration| i64::try_from((apart.as_micros() + 500) / 1_000).unwrap_or(i64::MAX / 2);
        if there < here { -rounded(here - there) } else { rounded(there - here) }
    }

    fn now(&self) -> Duration {
        self.began_at.saturating_add(self.started.elapsed())
    }
}

/// Returns the time since 1970 by the system's clock.
fn system_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_of_the_systems_clock_changes_only_the_difference() {
        for step_ms in [-120_000, 0, 120_000] {
            let clock = SteadyClock::before_step(step_ms);
            let (before, system) = (clock.now_ms(), crate::files::now_ms());
            assert!((step_ms - 100..=step_ms + 100).contains(&clock.ahead_ms()), "{step_ms}: {}", clock.ahead_ms());
            assert!((system - step_ms - before).abs() <= 100, "{step_ms}: {before} of {system}");
            assert!(clock.now_ms() >= before, "{step_ms}");
        }
    }
}
