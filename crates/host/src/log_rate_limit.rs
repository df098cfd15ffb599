//! Limits how often a log line is written. A line that might otherwise be written thousands of times a second appears
//! at most once a minute.
//!
//! Invariant: suppressed lines are counted, and the next line shows their number. When a cause is removed from the list
//! of causes, its count is added to the shared count of all causes that are not in the list. A line with many causes
//! appears at most [`CAUSES_MAX`] + 1 times a minute.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Minimum time between two lines.
const EVERY: Duration = Duration::from_secs(60);

/// Maximum number of causes that are distinguished.
const CAUSES_MAX: usize = 8;

/// The limit for one kind of log line.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    last: Mutex<(Option<Instant>, u64)>,
}

impl LogRateLimit {
    /// If the last line was written less than a minute ago, counts this one as suppressed and returns `None`. Otherwise
    /// returns how many lines were suppressed since the last one, and the caller should write the line.
    pub fn due(&self) -> Option<u64> {
        let mut last = self.last.lock();
        let (at, left_out) = &mut *last;
        if at.is_some_and(|at| at.elapsed() < EVERY) {
            *left_out += 1;
            return None;
        }
        *at = Some(Instant::now());
        Some(std::mem::take(left_out))
    }
}

impl LogRateLimit {
    /// Returns true if no line was written within the last minute.
    fn is_idle(&self) -> bool {
        self.last.lock().0.is_none_or(|at| at.elapsed() >= EVERY)
    }
}

/// The limit for a kind of log line that has several causes. The first line of a new cause is written at once.
#[derive(Debug, Default)]
pub struct CauseRateLimit {
    causes: Mutex<Vec<(String, LogRateLimit)>>,
    /// The shared limit of all causes that do not fit into the list.
    others: LogRateLimit,
}

impl CauseRateLimit {
    /// Works like [`LogRateLimit::due`], but separately for each cause. Before causes are compared, words with digits
    /// or slashes are removed, such as the names of objects.
    pub fn due(&self, cause: &str) -> Option<u64> {
        let is_common = |word: &&str| !word.contains(|byte: char| byte.is_ascii_digit() || byte == '/');
        let cause = cause.split_whitespace().filter(is_common).collect::<Vec<_>>().join(" ");
        let mut causes = self.causes.lock();
        if let Some((_, limit)) = causes.iter().find(|(known, _)| *known == cause) {
            return limit.due();
        }
        if causes.len() == CAUSES_MAX {
            let idle = causes.extract_if(.., |(_, limit)| limit.is_idle());
            self.others.last.lock().1 += idle.map(|(_, limit)| limit.last.into_inner().1).sum::<u64>();
        }
        if causes.len() == CAUSES_MAX {
            return self.others.due();
        }
        let limit = LogRateLimit::default();
        let due = limit.due();
        causes.push((cause, limit));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_due_line_counts_the_lines_suppressed_before_it() {
        let line = LogRateLimit::default();
        assert_eq!(line.due(), Some(0));
        assert_eq!([line.due(), line.due(), line.due()], [None; 3]);
        line.last.lock().0 = Instant::now().checked_sub(EVERY);
        assert_eq!(line.due(), Some(3));
    }

    #[test]
    fn new_cause_is_due_at_once_and_each_is_limited() {
        let line = CauseRateLimit::default();
        assert_eq!(line.due("cannot write /a/1f: No space left (os error 28)"), Some(0));
        assert_eq!(line.due("cannot write /a/2f: No space left (os error 28)"), None, "another object");
        assert_eq!(line.due("cannot write /a/2f: Read-only file system (os error 30)"), Some(0));
        assert_eq!(line.due("cannot write /a/3f: No space left (os error 28)"), None);
        let causes = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        assert_eq!(causes.iter().filter(|cause| line.due(cause).is_some()).count(), CAUSES_MAX - 2 + 1);
        assert_eq!(line.due("a"), None);
        for (_, limit) in line.causes.lock().iter() {
            limit.last.lock().0 = Instant::now().checked_sub(EVERY);
        }
        assert_eq!(line.due("cannot write /a/4f: No space left (os error 28)"), Some(2));
        assert_eq!(line.due("x"), Some(0), "the others are a minute old");
        let others = ["b", "c", "d", "e", "f", "g"].map(|cause| line.due(cause));
        assert_eq!(others, [Some(0); 6], "the list is full again");
        line.others.last.lock().0 = None;
        assert_eq!(line.due("y"), Some(3), "one of a, which left the list, and those of h and i");
    }
}
