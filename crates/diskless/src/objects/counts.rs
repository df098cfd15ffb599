//! Counts requests to the object store, and records for how long they have been failing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::ObjectError;

/// How long the store counts as full after it has last refused a PUT for lack of space. Producers retry much sooner.
const FULL_FOR: Duration = Duration::from_secs(10);

/// The counts of requests since the broker started.
#[derive(Debug, Default)]
pub struct StoreCounts {
    /// Number of objects that were put.
    pub puts: AtomicU64,
    /// Number of bytes in these objects.
    pub put_bytes: AtomicU64,
    /// Number of failed attempts to put an object.
    pub put_failures: AtomicU64,
    /// Number of PUTs of an object after its first one, which were sent because an earlier PUT took too long.
    pub hedged_puts: AtomicU64,
    /// Number of successful GETs.
    pub gets: AtomicU64,
    /// Number of bytes that these GETs have read.
    pub get_bytes: AtomicU64,
    /// Number of failed attempts to get an object.
    pub get_failures: AtomicU64,
    failing: Mutex<FailingSince>,
}

/// The times of failed requests. `put` and `get` are the times of the first failure since the last success, or `None`
/// if there was no failure since then.
#[derive(Debug, Default)]
struct FailingSince {
    put: Option<Instant>,
    get: Option<Instant>,
    /// The times at which the disk first and last refused a PUT because it is full. A successful probe does not clear
    /// them: the small object of a probe may fit even on a disk that counts as full.
    full: Option<(Instant, Instant)>,
}

/// The counts at one moment, with the bytes of batches that wait for a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUse {
    pub puts: u64,
    pub put_bytes: u64,
    pub put_failures: u64,
    pub hedged_puts: u64,
    pub gets: u64,
    pub get_bytes: u64,
    pub get_failures: u64,
    /// Bytes of the batches that are admitted but not committed yet.
    pub uncommitted_bytes: usize,
}

impl StoreUse {
    /// Returns the counts since an earlier moment. `uncommitted_bytes` is the current value, not a difference.
    pub fn since(&self, before: &StoreUse) -> StoreUse {
        StoreUse {
            puts: self.puts - before.puts,
            put_bytes: self.put_bytes - before.put_bytes,
            put_failures: self.put_failures - before.put_failures,
            hedged_puts: self.hedged_puts - before.hedged_puts,
            gets: self.gets - before.gets,
            get_bytes: self.get_bytes - before.get_bytes,
            get_failures: self.get_failures - before.get_failures,
            uncommitted_bytes: self.uncommitted_bytes,
        }
    }
}

impl FailingSince {
    /// Returns when the disk first refused an object, or `None` if it has not refused any for [`FULL_FOR`].
    fn full_since(&self) -> Option<Instant> {
        self.full.filter(|(_, last)| last.elapsed() < FULL_FOR).map(|(first, _)| first)
    }
}

impl StoreCounts {
    /// Records that a PUT succeeded. This clears the failures of PUTs and GETs.
    pub fn put_succeeded(&self) {
        *self.failing.lock() = FailingSince::default();
    }

    /// Records that a probe succeeded. This clears the failures of PUTs and GETs, but not the refusals of a full disk.
    pub fn probe_succeeded(&self) {
        let mut failing = self.failing.lock();
        (failing.put, failing.get) = (None, None);
    }

    /// Records that a PUT of an object failed because the disk is full.
    pub fn refused_as_full(&self) {
        let (mut failing, now) = (self.failing.lock(), Instant::now());
        let first = failing.full_since().unwrap_or(now);
        failing.full = Some((first, now));
    }

    /// Records that a GET succeeded. Failures of PUTs are not cleared, because the store may still refuse every PUT.
    pub fn get_succeeded(&self) {
        self.failing.lock().get = None;
    }

    /// Records that an attempt to put an object, or a probe, has failed.
    pub fn put_failed(&self) {
        self.put_failures.fetch_add(1, Ordering::Relaxed);
        self.failing.lock().put.get_or_insert_with(Instant::now);
    }

    /// Counts `count` PUTs as failed, because they have been hanging for too long.
    pub fn put_hung(&self, count: usize) {
        self.put_failures.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Records a failed attempt of a GET. If the object is missing or too short, the attempt is counted, but the store
    /// does not count as failing, because it has answered.
    pub fn get_failed(&self, error: &ObjectError) {
        self.get_failures.fetch_add(1, Ordering::Relaxed);
        if !matches!(error, ObjectError::NotFound(_) | ObjectError::Short { .. }) {
            self.failing.lock().get.get_or_insert_with(Instant::now);
        }
    }

    /// Returns how long requests have been failing: the time since the first failure that no later success has cleared.
    /// Returns `None` if there is no such failure.
    pub fn failing_for(&self) -> Option<Duration> {
        let failing = self.failing.lock();
        failing.put.into_iter().chain(failing.get).min().map(|since| since.elapsed())
    }

    /// Returns how long the store has not accepted objects, or `None` if it accepts them. Unlike in
    /// [`StoreCounts::failing_for`], a full disk counts too, although its objects can be read and deleted.
    pub fn unusable_for(&self) -> Option<Duration> {
        let full = self.failing.lock().full_since().map(|since| since.elapsed());
        full.max(self.failing_for())
    }

    /// Returns the current counts.
    pub fn so_far(&self, uncommitted_bytes: usize) -> StoreUse {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        StoreUse {
            puts: now(&self.puts),
            put_bytes: now(&self.put_bytes),
            put_failures: now(&self.put_failures),
            hedged_puts: now(&self.hedged_puts),
            gets: now(&self.gets),
            get_bytes: now(&self.get_bytes),
            get_failures: now(&self.get_failures),
            uncommitted_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn full_store_answers_probes_the_time_since_the_first_refusal_stays() {
        let counts = StoreCounts::default();
        for _ in 0..20 {
            counts.put_failed();
            counts.refused_as_full();
            sleep(Duration::from_secs(1)).await;
            counts.probe_succeeded();
        }
        assert_eq!(counts.failing_for(), None, "it is not lost, since its objects can be read");
        assert_eq!(counts.unusable_for(), Some(Duration::from_secs(20)));
        sleep(FULL_FOR).await;
        assert_eq!(counts.unusable_for(), None, "nothing was refused for a while");
        counts.refused_as_full();
        counts.put_succeeded();
        assert_eq!(counts.unusable_for(), None);
    }
}
