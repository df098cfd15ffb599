//! Prints lines on standard error about the problems of a running reader: failures that it retries (obstacles), and
//! partitions that it gives up.
//!
//! Invariant: obstacles of one source cause at most one line a minute, even if the reason changes or an obstacle
//! disappears for a moment.

use crate::output;
use fullbore_client::consume::ConsumeProgress;
use std::time::{Duration, Instant};

/// How long an obstacle must last before it is printed. The move of a coordinator to another broker takes less time.
const AFTER: Duration = Duration::from_secs(1);
/// The minimum time between two lines of the same source.
const EVERY: Duration = Duration::from_secs(60);

/// The obstacles of one source, and the time of their last line.
#[derive(Default)]
pub struct Troubles {
    /// When the present obstacle began, and when it was last seen.
    seen: Option<(Instant, Instant)>,
    printed: Option<Instant>,
}

impl Troubles {
    /// Records the present obstacle, or `None` if there is none, and prints it if a line is due.
    pub fn observe(&mut self, trouble: Option<String>) {
        if let Some(trouble) = self.due(trouble, Instant::now()) {
            output::remark(format!("waiting: {trouble}"));
        }
    }

    /// Prints why the latest attempt has failed, if a line is due. The first attempt was at `since`. Callers whose
    /// attempts take longer than [`AFTER`] use this, because [`Troubles::observe`] would treat each attempt as a new
    /// obstacle.
    pub fn observe_attempts(&mut self, since: Instant, trouble: impl Into<String>) {
        if let Some(trouble) = self.due_attempts(since, trouble.into(), Instant::now()) {
            output::remark(format!("waiting: {trouble}"));
        }
    }

    fn due_attempts(&mut self, since: Instant, trouble: String, now: Instant) -> Option<String> {
        (now.saturating_duration_since(since) >= AFTER && self.is_due(now)).then_some(trouble)
    }

    fn due(&mut self, trouble: Option<String>, now: Instant) -> Option<String> {
        let trouble = trouble?;
        // While the caller retries, it reports no obstacle for a moment. The next one then still counts as the same
        // obstacle.
        let begun = self.seen.filter(|(_, last)| now - *last < AFTER).map_or(now, |(begun, _)| begun);
        self.seen = Some((begun, now));
        (now - begun >= AFTER && self.is_due(now)).then_some(trouble)
    }

    /// Returns true if no line was printed within the last minute. The caller must then print one, and a new minute
    /// begins.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.printed.is_none_or(|printed| now - printed >= EVERY);
        self.printed = if is_due { Some(now) } else { self.printed };
        is_due
    }

    /// Prints the notices and the present obstacle of a running read. Leaves out a notice that equals `fails_with`,
    /// because the command will fail with this text.
    pub fn of_run(&mut self, progress: &ConsumeProgress, fails_with: Option<&str>) {
        let notices = progress.take_notices().into_iter();
        notices.filter(|notice| Some(&**notice) != fails_with).for_each(output::remark);
        progress.take_deleted_offsets().into_iter().for_each(output::remark);
        // The obstacle is printed at once, because `progress` reports a partition only after it has waited for some
        // time.
        if let Some(trouble) = progress.trouble()
            && self.is_due(Instant::now())
        {
            output::remark(format!("waiting: {trouble}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_failing_attempts_are_printed_late_and_once_a_minute() {
        let (mut troubles, since) = (Troubles::default(), Instant::now());
        for (ms, is_printed) in [(900, false), (5_900, true), (10_900, false), (65_800, false), (66_000, true)] {
            let printed = troubles.due_attempts(since, "a".to_owned(), since + Duration::from_millis(ms));
            assert_eq!(printed.is_some(), is_printed, "{ms}");
        }
    }

    #[test]
    fn an_obstacle_is_printed_after_a_moment_and_then_once_a_minute() {
        let (mut troubles, start) = (Troubles::default(), Instant::now());
        let mut reported = |ms: u64, trouble: &str| {
            let trouble = (!trouble.is_empty()).then(|| trouble.to_owned());
            troubles.due(trouble, start + Duration::from_millis(ms)).unwrap_or_default()
        };
        for (ms, trouble, line) in [
            (0, "a", ""),
            (500, "", ""),
            (600, "b", ""),
            (1_600, "a", ""),
            (2_300, "", ""),
            (2_500, "a", ""),
            (2_600, "b", "b"),
            (3_000, "a", ""),
            (62_000, "a", ""),
            (62_599, "a", ""),
            (63_000, "c", "c"),
        ] {
            assert_eq!(reported(ms, trouble), line, "{ms}");
        }
    }
}
