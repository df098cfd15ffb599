//! Hint of how soon a record would leave if it joined a partition; the partitioner reads it without a lock.
//!
//! Invariant: a hint may be out of date. Only the choice of a partition for a record without a key depends on it.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Hint of one partition.
#[derive(Debug, Default)]
pub(crate) struct Prospect {
    /// Bytes that have not been sent.
    unsent: AtomicUsize,
    /// Microseconds from [`START`] to the time before which no further batch leaves; 0 on a short path, where that does
    /// not matter.
    free_at: AtomicU64,
}

/// Start of the clock of `free_at`.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Step of unsent bytes: of two partitions, the one with fewer whole steps is the better one.
const UNSENT_STEP: usize = 16 << 10;

impl Prospect {
    pub(crate) fn set_unsent(&self, bytes: usize) {
        self.unsent.store(bytes, Ordering::Relaxed);
    }

    /// Sets the time at which another batch may leave; `None` on a short path.
    pub(crate) fn set_free_at(&self, at: Option<Instant>) {
        let micros = at.map_or(0, |at| at.saturating_duration_since(*START).as_micros() as u64 + 1);
        self.free_at.store(micros, Ordering::Relaxed);
    }

    /// Returns true if all records of the partition have left.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) == 0
    }

    /// Returns true if the round trip to the leader is long: a record then leaves sooner in another partition than
    /// after this partition's next acknowledgement.
    #[inline]
    pub(crate) fn is_on_a_long_path(&self) -> bool {
        self.free_at.load(Ordering::Relaxed) > 0
    }

    /// Returns the rank of a record that joins now: the smaller, the sooner it leaves.
    pub(crate) fn rank(&self, now: Instant) -> (usize, u64) {
        let now = now.saturating_duration_since(*START).as_micros() as u64 + 1;
        let unsent = self.unsent.load(Ordering::Relaxed) / UNSENT_STEP;
        (unsent, self.free_at.load(Ordering::Relaxed).max(now) - now)
    }
}
