//! Size of the pieces in which many partitions change: as many registrations as the store commits in a fraction of a
//! second.
//!
//! Invariant: a piece is bounded. Brokers that need the lock, and callers that wait for a commit, wait for one piece at
//! most.

use std::time::Duration;

use super::decide::ChangeBudget;

/// Number of registrations in the first piece.
const FIRST: usize = 1_000;
/// Smallest number of registrations in a piece.
const MIN: usize = 50;
/// Largest number of registrations in a piece.
const MAX: usize = 10_000;
/// Desired range of the time for which a full piece holds the lock. After a shorter time the next piece is larger,
/// after a longer time smaller.
const BRIEF: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_millis(500);

/// Adaptive size of the next piece.
#[derive(Debug)]
pub struct Pieces {
    registrations: usize,
}

impl Default for Pieces {
    fn default() -> Self {
        Self { registrations: FIRST }
    }
}

impl Pieces {
    /// Returns the budget of the next piece.
    pub fn room(&self) -> ChangeBudget {
        ChangeBudget::new(self.registrations)
    }

    /// Adapts the size to the time for which a full piece held the lock.
    pub fn took(&mut self, time: Duration) {
        if time < BRIEF {
            self.registrations = (self.registrations * 2).min(MAX);
        } else if time > LONG {
            self.registrations = (self.registrations / 2).max(MIN);
        }
    }

    /// Reduces the size after a failed commit, since the size may be the cause.
    pub fn failed(&mut self) {
        self.registrations = (self.registrations / 4).max(MIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_the_store_within_bounds() {
        let mut pieces = Pieces::default();
        (0..20).for_each(|_| pieces.took(BRIEF / 2));
        assert_eq!(pieces.registrations, MAX);
        pieces.took((BRIEF + LONG) / 2);
        assert_eq!(pieces.registrations, MAX);
        pieces.took(LONG * 2);
        assert_eq!(pieces.registrations, MAX / 2);
        (0..20).for_each(|_| pieces.failed());
        assert_eq!(pieces.registrations, MIN);
    }
}
