//! Prints lines on standard error about the problems of a running reader: obstacles, and partitions that it gives up.
//!
//! Invariant: obstacles of one source cause at most one line a minute, even if the reason changes, or passes for a
//! moment.

use crate::output;
use fullbore_client::consume::ConsumeProgress;
use std::time::{Duration, Instant};

/// An obstacle is printed after this time. The move of a coordinator takes less.
const AFTER: Duration = Duration::from_secs(1);
/// The minimum time between two lines of the same source.
const EVERY: Duration = Duration::from_secs(60);

/// The state of the lines about the obstacles of one source.
#[derive(Default)]
pub struct Troubles {
    /// When the present obstacle began, and when it was last seen.
    seen: Option<(Instant, Instant)>,
    printed: Option<Instant>,
}

impl Troubles {
    /// Notes the present obstacle, and prints it if a line is due. `None` means that there is no obstacle.
    pub fn observe(&mut self, trouble: Option<String>) {
        if let Some(trouble) = self.due(trouble, Instant::now()) {
            output::remark(format!("waiting: {trouble}"));
        }
    }

    /// Notes why the latest attempt failed, and prints the reason if a line is due. The first attempt was at `since`.
    /// Meant for callers whose attempts take longer than [`AFTER`]. [`Troubles::observe`] would take each of these
    /// attempts for a new obstacle.
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
        // If an obstacle is not seen for a moment, because the caller retries, it still counts as the same obstacle.
        let begun = self.seen.filter(|(_, last)| now - *last < AFTER).map_or(now, |(begun, _)| begun);
        self.seen = Some((begun, now));
        (now - begun >= AFTER && self.is_due(now)).then_some(trouble)
    }

    /// Returns true if no line was printed within the last minute, so that the caller prints one now. The minute then
    /// begins anew.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.printed.is_none_or(|printed| now - printed >= EVERY);
        self.printed = if is_due { Some(now) } else { self.printed };
        is_due
    }

    /// Prints the notices and the present obstacle of a running read. Leaves out the notice `fails_with`, because the
    /// command will fail with this text.
    pub fn of_run(&mut self, progress: &ConsumeProgress, fails_with: Option<&str>) {
        let notices = progress.take_notices().into_iter();
        notices.filter(|notice| Some(&**notice) != fails_with).for_each(output::remark);
        progress.take_deleted_offsets().into_iter().for_each(output::remark);
        // The obstacle is printed without a wait, because `progress` has only partitions that have waited long enough.
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
