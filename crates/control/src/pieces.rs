//! A command that changes many partitions is split into pieces. This module decides how many partitions a piece has,
//! such that the store commits it in a fraction of a second. Consecutive partitions that share a registration count as
//! one.
//!
//! Invariant: the size of a piece is bounded. A broker that waits for the lock, or a caller that waits for its commit,
//! therefore waits for one piece at most.

use std::time::Duration;

use super::decide::ChangeBudget;

/// Number of partitions in the first piece of a broker's command. If this piece is too large and is refused, the broker
/// sends the command again.
const FIRST: usize = 1_000;
/// Number of partitions in the first piece of a request for elections. If a piece is refused, the rest of the request
/// is refused too.
const FIRST_OF_REQUEST: usize = 100;
/// Minimum number of partitions in a piece.
const MIN: usize = 50;
/// Maximum number of partitions in a piece.
const MAX: usize = 10_000;
/// If a full piece takes less than this time, the next piece is larger.
const BRIEF: Duration = Duration::from_millis(150);
/// If a full piece takes more than this time, the next piece is smaller.
const LONG: Duration = Duration::from_millis(500);

/// The size of the next piece, adapted to the store's speed.
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
    /// Returns the size of the first piece of a request for elections. The piece is small, so that even a slow store
    /// commits it in time: a refused piece would end the request.
    pub fn of_request() -> Self {
        Self { registrations: FIRST_OF_REQUEST }
    }

    /// Returns the budget that limits how many partitions the next piece may change.
    pub fn room(&self) -> ChangeBudget {
        ChangeBudget::new(self.registrations)
    }

    /// Returns how many partitions the next piece of a request may name.
    pub fn partitions(&self) -> usize {
        self.registrations
    }

    /// Adapts the size of the next piece to the time that a full piece took. A command's time is that for which it held
    /// the lock. For a request for elections, the wait for the lock counts too.
    pub fn took(&mut self, time: Duration) {
        if time < BRIEF {
            self.registrations = (self.registrations * 2).min(MAX);
        } else if time > LONG {
            self.registrations = (self.registrations / 2).max(MIN);
        }
    }

    /// Makes the next piece smaller after a failed commit, since the piece may have been too large.
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
