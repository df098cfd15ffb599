//! Time for which a member has had no partitions. Only a long time shows that an empty assignment is final, and that no
//! partitions will follow.

use std::time::{Duration, Instant};

/// Consecutive responses after which the member has no partition.
#[derive(Debug, Default)]
pub(super) struct EmptySince {
    /// Time of the first of these responses.
    since: Option<Instant>,
    patience: Duration,
}

impl EmptySince {
    /// Records one more such response. Returns true if the longest `patience` of all calls has passed since the first
    /// response.
    pub(super) fn lasts(&mut self, patience: Duration) -> bool {
        self.patience = self.patience.max(patience);
        self.since.get_or_insert_with(Instant::now).elapsed() >= self.patience
    }

    /// Ends the sequence, since the member has a partition, or a request failed.
    pub(super) fn end(&mut self) {
        *self = EmptySince::default();
    }
}
