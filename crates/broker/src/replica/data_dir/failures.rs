//! How many partitions are out of service, for whoever watches the broker: those that a failed write or fsync has
//! stopped, and, counted apart, those whose files are damaged.
//!
//! Not why: the broker's log says it. Invariant: the count is that of the marks alive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The count, shared by every partition.
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        (self.0).0.fetch_sub(1, Relaxed);
    }
}
