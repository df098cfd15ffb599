//! Time for which a member has had nothing to read. Only time shows whether an empty assignment is final, or partitions
//! are still to come.

use std::time::{Duration, Instant};

/// Consecutive responses by which the member has and gets no partition.
#[derive(Debug, Default)]
pub(super) struct EmptySince {
    /// Time of the first such response.
    since: Option<Instant>,
    patience: Duration,
}

impl EmptySince {
    /// Notes one more such response. Returns true if they have gone on for the longest `patience` since the first.
    pub(super) fn lasts(&mut self, patience: Duration) -> bool {
        self.patience = self.patience.max(patience);
        self.since.get_or_insert_with(Instant::now).elapsed() >= self.patience
    }

    /// Ends the sequence: the member has a partition, or a request failed.
    pub(super) fn end(&mut self) {
        *self = EmptySince::default();
    }
}
