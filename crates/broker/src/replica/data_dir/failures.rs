//! Counts the partitions that have a certain kind of failure, such as a broken log or damaged files. A data directory
//! has one count for each kind.
//!
//! The causes of failures are logged, but not stored here. Invariant: the count equals the number of [`Mark`]s that
//! exist.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The number of partitions in a data directory that have this kind of failure.
#[derive(Debug, Clone, Default)]
pub struct Failures(Arc<AtomicUsize>);

/// Counts one partition as failed until this mark is dropped.
#[derive(Debug)]
pub struct Mark(Failures);

impl Failures {
    /// Counts one more partition as failed, until the returned mark is dropped.
    pub fn mark(&self) -> Mark {
        self.0.fetch_add(1, Relaxed);
        Mark(self.clone())
    }

    /// Returns how many partitions are currently failed.
    pub fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        (self.0).0.fetch_sub(1, Relaxed);
    }
}
