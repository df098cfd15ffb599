//! Measures how long a member has had no partitions. Only after a long time is an empty assignment certainly final.

use std::time::{Duration, Instant};

/// Consecutive responses that leave the member without a partition.
#[derive(Debug, Default)]
pub(super) struct EmptySince {
    /// When the first of the consecutive responses came.
    since: Option<Instant>,
    patience: Duration,
}

impl EmptySince {
    /// Notes one more response that leaves the member without a partition. Returns true if the longest `patience` of
    /// all calls has passed since the first response.
    pub(super) fn lasts(&mut self, patience: Duration) -> bool {
        self.patience = self.patience.max(patience);
        self.since.get_or_insert_with(Instant::now).elapsed() >= self.patience
    }

    /// Ends the sequence, because the member has a partition or a request failed.
    pub(super) fn end(&mut self) {
        *self = EmptySince::default();
    }
}
