//! Count of partitions with one kind of failure, such as broken logs or damaged files. A data directory has a count for
//! each kind.
//!
//! Not here: the causes, which are in the broker's log. Invariant: the count is the number of marks that exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of failed partitions, shared by all partitions of a data directory.
#[derive(Debug, Clone, Default)]
pub struct Failures(Arc<AtomicUsize>);

/// Mark that counts one partition as failed until it is dropped.
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
