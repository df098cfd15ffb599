//! What a reader tells on standard error while it goes on: what waits and why, and what it will not read any more.
//!
//! Invariant: what waits is told at most once a minute, however often its reason changes or passes for a moment.

use crate::output;
use fullbore_client::consume::ConsumeProgress;
use std::time::{Duration, Instant};

/// How long something may stand in the way before it is told: coordinators move.
const AFTER: Duration = Duration::from_secs(1);
/// Between two lines of the same source.
const EVERY: Duration = Duration::from_secs(60);

/// What is told of one source of trouble.
#[derive(Default)]
pub struct Troubles {
    /// When it began, and when it was last seen.
    seen: Option<(Instant, Instant)>,
    told: Option<Instant>,
}

impl Troubles {
    /// Takes what stands in the way just now, and tells it if it is time.
    pub fn observe(&mut self, trouble: Option<String>) {
        if let Some(trouble) = self.due(trouble, Instant::now()) {
            output::tell(format!("waiting: {trouble}"));
        }
    }

    /// Takes the reason of an attempt that failed, the latest of those since `since`; an attempt may take longer than a
    /// trouble is remembered.
    pub fn observe_attempts(&mut self, since: Instant, trouble: impl Into<String>) {
        if let Some(trouble) = self.due_attempts(since, trouble.into(), Instant::now()) {
            output::tell(format!("waiting: {trouble}"));
        }
    }

    fn due_attempts(&mut self, since: Instant, trouble: String, now: Instant) -> Option<String> {
        (now.saturating_duration_since(since) >= AFTER && self.is_due(now)).then_some(trouble)
    }

    fn due(&mut self, trouble: Option<String>, now: Instant) -> Option<String> {
        let trouble = trouble?;
        // What is tried again and again is no trouble in between.
        let begun = self.seen.filter(|(_, last)| now - *last < AFTER).map_or(now, |(begun, _)| begun);
        self.seen = Some((begun, now));
        (now - begun >= AFTER && self.is_due(now)).then_some(trouble)
    }

    /// Returns true if the last line is a minute old; then there is another one.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.told.is_none_or(|told| now - told >= EVERY);
        self.told = if is_due { Some(now) } else { self.told };
        is_due
    }

    /// Tells what a run has to tell, but for what the command will fail with.
    pub fn of_run(&mut self, progress: &ConsumeProgress, fails_with: Option<&str>) {
        let notices = progress.take_notices().into_iter();
        notices.filter(|notice| Some(&**notice) != fails_with).for_each(output::tell);
        progress.take_deleted_offsets().into_iter().for_each(output::tell);
        // A run knows how long each partition waits.
        if let Some(trouble) = progress.trouble()
            && self.is_due(Instant::now())
        {
            output::tell(format!("waiting: {trouble}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_fail_more_rarely_than_once_a_second_the_first_late_one_is_printed_and_then_one_a_minute() {
        let (mut troubles, since) = (Troubles::default(), Instant::now());
        for (ms, is_printed) in [(900, false), (5_900, true), (10_900, false), (65_800, false), (66_000, true)] {
            let printed = troubles.due_attempts(since, "a".to_owned(), since + Duration::from_millis(ms));
            assert_eq!(printed.is_some(), is_printed, "{ms}");
        }
    }

    #[test]
    fn a_trouble_is_told_after_a_moment_and_then_once_a_minute() {
        let (mut troubles, start) = (Troubles::default(), Instant::now());
        let mut told = |ms: u64, trouble: &str| {
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
            assert_eq!(told(ms, trouble), line, "{ms}");
        }
    }
}
