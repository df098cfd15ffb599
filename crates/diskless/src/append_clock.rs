//! The clock that dates the records and producers that this broker appends. In a cluster it is the later of two clocks:
//! the clock of this machine, and the clock of the database that all brokers share.
//!
//! Brokers compute the age of a record from the earlier of the two clocks. If a broker with a slow clock dated records
//! by that clock alone, other brokers would delete the new records at once.
//!
//! A broker with SQLite uses only the machine's clock. Invariant: the append clock is never behind the machine's clock.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use fullbore_host::clock::SteadyClock;
use fullbore_host::files::now_ms;

/// Maximum difference between the machine's clock and the database's clock, in ms. A larger difference is logged.
const APART_MAX_MS: i64 = 60_000;
/// The value of `database_ahead_ms` until the database has answered for the first time.
const UNKNOWN: i64 = i64::MIN;

/// The clock of appends. Between two answers of the database, a steady clock continues from the last answer.
#[derive(Debug)]
pub struct AppendClock {
    steady: SteadyClock,
    /// How far the database's clock is ahead of `steady`, the steady clock of this process, in ms, or [`UNKNOWN`].
    database_ahead_ms: AtomicI64,
    /// True after a large difference was logged, until the difference falls to half of [`APART_MAX_MS`].
    is_apart: AtomicBool,
}

impl Default for AppendClock {
    fn default() -> AppendClock {
        AppendClock {
            steady: SteadyClock::start(),
            database_ahead_ms: AtomicI64::new(UNKNOWN),
            is_apart: AtomicBool::new(false),
        }
    }
}

impl AppendClock {
    /// Returns the time for an append when the machine's clock shows `own_ms`.
    pub fn at(&self, own_ms: i64) -> i64 {
        match self.database_ahead_ms.load(Relaxed) {
            UNKNOWN => own_ms,
            ahead_ms => own_ms.max(self.steady.now_ms().saturating_add(ahead_ms)),
        }
    }

    /// Records `database_ms`, the time that the database sent in an answer `took` after the request. Logs a warning if
    /// the machine's clock differs from it by more than [`APART_MAX_MS`].
    pub fn saw(&self, database_ms: i64, took: Duration) {
        match self.apart(now_ms(), database_ms, took) {
            Some(ahead_ms) if ahead_ms < 0 => tracing::warn!(
                behind_s = -ahead_ms / 1000,
                "the clock of this machine is behind the database's: records with LogAppendTime get the database's time; synchronize the clocks"
            ),
            Some(ahead_ms) => tracing::warn!(
                ahead_s = ahead_ms / 1000,
                "the clock of this machine is ahead of the database's: records with LogAppendTime are kept for longer; synchronize the clocks"
            ),
            None => {}
        }
    }

    /// Records the database's time. The database read its clock between the request and the answer, which took `took`.
    /// If a warning is due, returns by how many ms the machine's clock is ahead of the database's.
    fn apart(&self, own_ms: i64, database_ms: i64, took: Duration) -> Option<i64> {
        self.database_ahead_ms.store(database_ms.saturating_sub(self.steady.now_ms()), Relaxed);
        let took_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
        let ahead_ms = own_ms.saturating_sub(database_ms);
        let ahead_ms = if ahead_ms > 0 { ahead_ms.saturating_sub(took_ms).max(0) } else { ahead_ms };
        let was_apart = self.is_apart.load(Relaxed);
        // After a warning, the difference must fall to half the limit before the next warning. A difference that varies
        // around the limit is therefore logged only once.
        let apart_max_ms = if was_apart { APART_MAX_MS / 2 } else { APART_MAX_MS };
        let is_apart = ahead_ms.saturating_abs() > apart_max_ms;
        self.is_apart.store(is_apart, Relaxed);
        (is_apart && !was_apart).then_some(ahead_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: i64 = 1_700_000_000_000;
    const HOUR: i64 = 3_600_000;

    /// Returns true if `ms` is `expected`, or at most a minute later.
    fn is_about(ms: i64, expected: i64) -> bool {
        (expected..expected + 60_000).contains(&ms)
    }

    #[test]
    fn machine_is_behind_the_database_appends_get_the_time_of_the_database() {
        let clock = AppendClock::default();
        assert_eq!(clock.at(OWN), OWN, "the database has not answered");
        clock.saw(now_ms() + HOUR, Duration::ZERO);
        assert!(is_about(clock.at(now_ms()), now_ms() + HOUR - 1_000), "{}", clock.at(now_ms()) - now_ms());
        // The machine's clock is set back by an hour, but appends still follow the database's clock.
        assert!(is_about(clock.at(now_ms() - HOUR), now_ms() + HOUR - 1_000));
        clock.saw(now_ms() - HOUR, Duration::ZERO);
        assert_eq!(clock.at(OWN), OWN.max(clock.at(0)), "the database's clock was set back");
        let own_ms = now_ms();
        assert_eq!(clock.at(own_ms), own_ms);
    }

    #[test]
    fn clocks_differ_by_more_than_a_minute_it_is_logged_once_until_they_agree() {
        let clock = AppendClock::default();
        let apart = |ahead_ms: i64, took| clock.apart(OWN, OWN - ahead_ms, Duration::from_millis(took));
        assert_eq!([apart(60_000, 0), apart(-60_000, 0), apart(0, 0)], [None; 3]);
        assert_eq!([apart(-60_001, 0), apart(-59_000, 0), apart(-90_000, 0)], [Some(-60_001), None, None]);
        assert_eq!([apart(-30_000, 0), apart(-60_000, 0)], [None; 2], "they agreed, and differ by a minute");
        assert_eq!(apart(70_000, 10_000), None, "the answer may be ten seconds old");
        assert_eq!([apart(70_001, 10_000), apart(120_000, 0)], [Some(60_001), None]);
        assert_eq!(apart(5_000, 10_000), None);
        assert_eq!(apart(-HOUR, 10_000), Some(-HOUR));
    }
}
