//! A hint about how soon a record would be sent from a partition. The partitioner reads it without a lock.
//!
//! A hint may be out of date. Invariant: only the choice of a partition for a record without a key depends on hints.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// The hint for one partition.
#[derive(Debug, Default)]
pub(crate) struct Prospect {
    /// The size of the records without an attempt, in bytes.
    unsent: AtomicUsize,
    /// The earliest time of the next batch, in microseconds since [`START`]. 0 on a short path, where batches are not
    /// spaced.
    free_at: AtomicU64,
}

/// The time from which `free_at` is measured.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The unit for the comparison of unsent bytes. A partition with fewer whole units is preferred, and smaller
/// differences are ignored.
const UNSENT_STEP: usize = 16 << 10;

impl Prospect {
    pub(crate) fn set_unsent(&self, bytes: usize) {
        self.unsent.store(bytes, Ordering::Relaxed);
    }

    /// Sets the earliest time of the next batch, or `None` on a short path.
    pub(crate) fn set_free_at(&self, at: Option<Instant>) {
        let micros = at.map_or(0, |at| at.saturating_duration_since(*START).as_micros() as u64 + 1);
        self.free_at.store(micros, Ordering::Relaxed);
    }

    /// Returns true if every record of the partition has been sent.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) == 0
    }

    /// Returns true if the round trip to the leader is long. Another partition may then send a record sooner than this
    /// one, which may have to wait for an acknowledgement.
    #[inline]
    pub(crate) fn is_on_a_long_path(&self) -> bool {
        self.free_at.load(Ordering::Relaxed) > 0
    }

    /// Returns the rank of the partition for a record that is added now. The smaller the rank, the sooner the record is
    /// sent.
    pub(crate) fn rank(&self, now: Instant) -> (usize, u64) {
        let now = now.saturating_duration_since(*START).as_micros() as u64 + 1;
        let unsent = self.unsent.load(Ordering::Relaxed) / UNSENT_STEP;
        (unsent, self.free_at.load(Ordering::Relaxed).max(now) - now)
    }
}
