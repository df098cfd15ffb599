//! A hint of how soon a record would leave if it joined a partition: read without a lock by whoever chooses one.
//!
//! Invariant: a hint may be old and is never relied on; only which partition a record without a key joins depends on
//! it.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Prospect {
    /// Bytes that have not been sent.
    unsent: AtomicUsize,
    /// Microseconds since [`START`] before which no further batch leaves; 0 on a short path, where that does not
    /// matter.
    free_at: AtomicU64,
}

/// When the clock of `free_at` began.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Bytes by which two partitions must differ for the one with less to be the better one.
const UNSENT_STEP: usize = 16 << 10;

impl Prospect {
    pub(crate) fn set_unsent(&self, bytes: usize) {
        self.unsent.store(bytes, Ordering::Relaxed);
    }

    /// `at` is when another batch may leave; `None` on a short path.
    pub(crate) fn set_free_at(&self, at: Option<Instant>) {
        let micros = at.map_or(0, |at| at.saturating_duration_since(*START).as_micros() as u64 + 1);
        self.free_at.store(micros, Ordering::Relaxed);
    }

    /// Returns true if all it was given has left.
    #[inline]
    pub(crate) fn is_drained(&self) -> bool {
        self.unsent.load(Ordering::Relaxed) == 0
    }

    /// Returns true if batches wait for acknowledgements longer than is worth waiting beside other partitions.
    #[inline]
    pub(crate) fn is_on_a_long_path(&self) -> bool {
        self.free_at.load(Ordering::Relaxed) > 0
    }

    /// The smaller, the sooner a record that joins now leaves.
    pub(crate) fn rank(&self, now: Instant) -> (usize, u64) {
        let now = now.saturating_duration_since(*START).as_micros() as u64 + 1;
        let unsent = self.unsent.load(Ordering::Relaxed) / UNSENT_STEP;
        (unsent, self.free_at.load(Ordering::Relaxed).max(now) - now)
    }
}
