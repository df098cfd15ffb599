//! Limits how often a log line is written. A line that might otherwise be written thousands of times a second appears
//! at most once a minute.
//!
//! Invariant: suppressed lines are counted, and the next line shows how many there were.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Minimum time between two lines.
const EVERY: Duration = Duration::from_secs(60);

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
}
