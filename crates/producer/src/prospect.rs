//! A hint about how soon a record would leave if it joined a partition. The partitioner reads it without a lock.
//!
//! Invariant: a hint may be out of date. Only the choice of a partition for a record without a key depends on it.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// The hint for one partition.
#[derive(Debug, Default)]
pub(crate) struct Prospect {
    /// How many bytes have not been sent.
    unsent: AtomicUsize,
    /// The time before which no further batch leaves, in microseconds since [`START`]. 0 on a short path, where this
    /// time does not matter.
    free_at: AtomicU64,
}

/// When the clock of `free_at` started.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The unit in which unsent bytes are compared. Of two partitions, the one with fewer whole units is preferred.
const UNSENT_STEP: usize = 16 << 10;

impl Prospect {
    pub(crate) fn set_unsent(&self, bytes: usize) {
        self.unsent.store(bytes, Ordering::Relaxed);
    }

    /// Sets when another batch may leave. `None` on a short path.
    pub(crate) fn set_free_at(&self, at: Option<Instant>) {
        let micros = at.map_or(0, |at| at.saturating_duration_since(*START).as_micros() as u64 + 1);
        self.free_at.store(micros, Ordering::Relaxed);
    }

    /// Returns true if all records of the partition have left.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) == 0
    }

    /// Returns true if the round trip to the leader is long. A record that joins another partition then leaves sooner
    /// than one that waits for the next acknowledgement of this partition.
    #[inline]
    pub(crate) fn is_on_a_long_path(&self) -> bool {
        self.free_at.load(Ordering::Relaxed) > 0
    }

    /// Returns a rank for a record that joins now. The smaller the rank, the sooner the record leaves.
    pub(crate) fn rank(&self, now: Instant) -> (usize, u64) {
        let now = now.saturating_duration_since(*START).as_micros() as u64 + 1;
        let unsent = self.unsent.load(Ordering::Relaxed) / UNSENT_STEP;
        (unsent, self.free_at.load(Ordering::Relaxed).max(now) - now)
    }
}
