//! Lines of the log that one cause could write thousands of times a second: each is told at most once a minute.
//!
//! Invariant: what is left out is counted, and told with the next line.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Between two lines.
const EVERY: Duration = Duration::from_secs(60);

/// Limit of one kind of line.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    told: Mutex<(Option<Instant>, u64)>,
}

impl LogRateLimit {
    /// How many times it was left out before, if it is to be told now.
    pub fn due(&self) -> Option<u64> {
        let mut told = self.told.lock();
        let (at, left_out) = &mut *told;
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
    fn a_line_is_told_once_and_then_with_the_number_of_those_left_out() {
        let line = LogRateLimit::default();
        assert_eq!(line.due(), Some(0));
        assert_eq!([line.due(), line.due(), line.due()], [None; 3]);
        line.told.lock().0 = Instant::now().checked_sub(EVERY);
        assert_eq!(line.due(), Some(3));
    }
}
