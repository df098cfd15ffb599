//! Measures how long a member has had no partitions. An empty assignment counts as final only after a long time,
//! because other members may still give up partitions for this member.

use std::time::{Duration, Instant};

/// A sequence of consecutive responses with an empty assignment.
#[derive(Debug, Default)]
pub(super) struct EmptySince {
    /// The time of the first response of the sequence.
    since: Option<Instant>,
    patience: Duration,
}

impl EmptySince {
    /// Notes one more response with an empty assignment. Returns true if the time since the first response of the
    /// sequence exceeds the largest `patience` that was passed for the sequence.
    pub(super) fn lasts(&mut self, patience: Duration) -> bool {
        self.patience = self.patience.max(patience);
        self.since.get_or_insert_with(Instant::now).elapsed() >= self.patience
    }

    /// Ends the sequence, because the member has a partition or a request failed.
    pub(super) fn end(&mut self) {
        *self = EmptySince::default();
    }
}
