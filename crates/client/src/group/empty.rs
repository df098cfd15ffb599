//! Since when a member has nothing to read: whether that is what the group has for it, or whether something is on its
//! way, only time tells.

use std::time::{Duration, Instant};

/// The answers in a row by which the member is to read nothing, and has nothing.
#[derive(Debug, Default)]
pub(super) struct EmptySince {
    /// The first of them.
    since: Option<Instant>,
    patience: Duration,
}

impl EmptySince {
    /// Notes one more of them. Whether they go on for `patience`, the longest that was named since the first.
    pub(super) fn lasts(&mut self, patience: Duration) -> bool {
        self.patience = self.patience.max(patience);
        self.since.get_or_insert_with(Instant::now).elapsed() >= self.patience
    }

    /// The member has something, or was not answered.
    pub(super) fn end(&mut self) {
        *self = EmptySince::default();
    }
}
