//! Splits a command that changes many partitions into pieces. This module decides the number of partitions in a piece,
//! such that the store commits the piece in a fraction of a second. Consecutive partitions that share a registration
//! count as one.
//!
//! Invariant: the size of a piece is limited. A broker that waits for the lock, or a caller that waits for its commit,
//! therefore waits for at most one piece.

use std::time::Duration;

use super::decide::ChangeBudget;

/// Number of partitions in the first piece of a broker's own command. If this piece is refused because it is too large,
/// the broker sends the command again.
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

/// The size of the next piece, adapted to the speed of the store.
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
    /// Returns the size of the first piece of a request for elections. The piece is so small that even a slow store
    /// commits it in time, because a refused piece would end the request.
    pub fn of_request() -> Self {
        Self { registrations: FIRST_OF_REQUEST }
    }

    /// Returns the budget for the number of partitions that the next piece may change.
    pub fn room(&self) -> ChangeBudget {
        ChangeBudget::new(self.registrations)
    }

    /// Returns the number of partitions that the next piece of a request may contain.
    pub fn partitions(&self) -> usize {
        self.registrations
    }

    /// Adapts the size of the next piece to the `time` that a full piece took. For a command, `time` is how long it
    /// held the lock. For a request for elections, `time` also includes the wait for the lock.
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
