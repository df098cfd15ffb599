//! The size of the pieces in which many partitions are settled: as large as the store commits in a fraction of a
//! second.
//!
//! Invariant: a piece is bounded, so that other brokers, which need the lock, and the answer to a commit never wait for
//! all pieces.

use std::time::Duration;

use super::decide::ChangeBudget;

/// Registrations of the first piece.
const FIRST: usize = 1_000;
/// Bounds of a piece.
const MIN: usize = 50;
const MAX: usize = 10_000;
/// A piece that took less is followed by a larger one, and a piece that took longer by a smaller one.
const BRIEF: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_millis(500);

/// The size of the next piece.
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
    /// Room for the next piece.
    pub fn room(&self) -> ChangeBudget {
        ChangeBudget::new(self.registrations)
    }

    /// Adapts to the time that a full piece took, with the lock held.
    pub fn took(&mut self, time: Duration) {
        if time < BRIEF {
            self.registrations = (self.registrations * 2).min(MAX);
        } else if time > LONG {
            self.registrations = (self.registrations / 2).max(MIN);
        }
    }

    /// Adapts to a commit that failed: its size may be why.
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
