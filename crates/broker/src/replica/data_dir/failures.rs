//! Count of partitions out of service: those that a failed write or fsync has stopped and, counted apart, those with
//! damaged files.
//!
//! Not the cause, which is in the broker's log. Invariant: the count is the number of marks that exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Count that every partition shares.
#[derive(Debug, Clone, Default)]
pub struct Failures(Arc<AtomicUsize>);

/// Mark of a partition out of service, until it is dropped.
#[derive(Debug)]
pub struct Mark(Failures);

impl Failures {
    /// Counts one more partition.
    pub fn mark(&self) -> Mark {
        self.0.fetch_add(1, Relaxed);
        Mark(self.clone())
    }

    /// Returns the number of marked partitions.
    pub fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        (self.0).0.fetch_sub(1, Relaxed);
    }
}
