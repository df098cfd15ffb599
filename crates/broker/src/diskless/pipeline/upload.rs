//! Puts objects into the store: as many at a time as the window has, each until it is there or was tried often enough.
//!
//! Invariants: an object whose upload succeeded is in the store; an upload whose bytes move is never given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fullbore_rules::commit::{ObjectId, UploadWindow};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};

use crate::diskless::objects::{ObjectError, Objects};
use crate::diskless::tries::{BUFFERED_MAX, Tries};

/// The longest pause between two attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// What was asked of the store since the start.
#[derive(Debug, Default)]
pub struct StoreCounts {
    /// Objects that were put.
    pub puts: AtomicU64,
    /// Their bytes.
    pub put_bytes: AtomicU64,
    /// Attempts of that which failed.
    pub put_failures: AtomicU64,
    /// PUTs that were sent again beside themselves.
    pub hedged_puts: AtomicU64,
    /// GETs that succeeded.
    pub gets: AtomicU64,
    /// Their bytes.
    pub get_bytes: AtomicU64,
    /// Attempts of that which failed.
    pub get_failures: AtomicU64,
    failing: Mutex<FailingSince>,
}

/// The first attempts that failed since the store was last seen to answer.
#[derive(Debug, Default)]
struct FailingSince {
    put: Option<Instant>,
    get: Option<Instant>,
}

/// The same at one moment, with what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUse {
    pub puts: u64,
    pub put_bytes: u64,
    pub put_failures: u64,
    pub hedged_puts: u64,
    pub gets: u64,
    pub get_bytes: u64,
    pub get_failures: u64,
    /// Bytes of batches that are admitted and not committed.
    pub uncommitted_bytes: usize,
}

impl StoreUse {
    /// What came between.
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

impl StoreCounts {
    /// Notes a PUT that succeeded.
    pub fn put_succeeded(&self) {
        *self.failing.lock() = FailingSince::default();
    }

    /// Notes a GET that succeeded: a store may still refuse each PUT.
    pub fn get_succeeded(&self) {
        self.failing.lock().get = None;
    }

    /// Notes an attempt of a PUT that failed.
    pub fn put_failed(&self) {
        self.put_failures.fetch_add(1, Ordering::Relaxed);
        self.failing.lock().put.get_or_insert_with(Instant::now);
    }

    /// Counts PUTs as failed that are under way, and have hung for long.
    pub fn put_hung(&self, count: usize) {
        self.put_failures.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Notes an attempt of a GET that failed. An object that is not there, or too short, is an answer of the store.
    pub fn get_failed(&self, error: &ObjectError) {
        self.get_failures.fetch_add(1, Ordering::Relaxed);
        if !matches!(error, ObjectError::NotFound(_) | ObjectError::Short { .. }) {
            self.failing.lock().get.get_or_insert_with(Instant::now);
        }
    }

    /// The time since the first attempt that failed, where none of its kind has succeeded since.
    pub fn failing_for(&self) -> Option<Duration> {
        let failing = self.failing.lock();
        failing.put.into_iter().chain(failing.get).min().map(|since| since.elapsed())
    }

    /// What was counted so far.
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

/// How objects are put.
#[derive(Clone, Copy, Debug)]
pub struct UploadSettings {
    /// `diskless.produce.max.upload.attempts`
    pub attempts_max: u32,
    /// `diskless.produce.upload.backoff.ms`
    pub backoff: Duration,
    /// `diskless.produce.upload.thread.pool.size`
    pub slots: usize,
}

/// Puts objects.
#[derive(Clone)]
pub struct Uploader {
    objects: Objects,
    settings: UploadSettings,
    slots: Arc<Slots>,
    tries: Arc<Tries>,
    counts: Arc<StoreCounts>,
}

/// Uploads that may be under way, by a window.
#[derive(Debug)]
struct Slots {
    permits: Semaphore,
    window: Mutex<SlotWindow>,
    began: Instant,
}

#[derive(Debug)]
struct SlotWindow {
    window: UploadWindow,
    /// Permits that there are, taken or not.
    permits: usize,
}

impl Slots {
    fn new(slots_max: usize) -> Slots {
        let window = UploadWindow::new(slots_max);
        let permits = window.size();
        Slots {
            permits: Semaphore::new(permits),
            window: Mutex::new(SlotWindow { window, permits }),
            began: Instant::now(),
        }
    }

    /// Notes an upload that has ended, and opens or closes the window by its permit.
    fn done(&self, permit: SemaphorePermit<'_>, took: Duration, bytes: u64) {
        let mut state = self.window.lock();
        state.window.note(self.began.elapsed(), took, bytes);
        let size = state.window.size();
        if state.permits > size {
            state.permits -= 1;
            permit.forget();
        } else {
            self.permits.add_permits(size - state.permits);
            state.permits = size;
        }
    }
}

impl Uploader {
    /// Nothing is under way.
    pub fn new(objects: Objects, settings: UploadSettings, counts: Arc<StoreCounts>) -> Uploader {
        let (slots, tries) = (Arc::new(Slots::new(settings.slots)), Arc::new(Tries::new("PUT", BUFFERED_MAX)));
        Uploader { objects, settings, slots, tries, counts }
    }

    /// Uploads that may be under way now.
    pub fn window(&self) -> usize {
        self.slots.window.lock().window.size()
    }

    /// The PUTs.
    pub fn tries(&self) -> &Arc<Tries> {
        &self.tries
    }

    /// Puts an object, once there is a slot. Dropping the future gives it up.
    ///
    /// # Errors
    /// The last attempt's.
    pub async fn upload(&self, id: ObjectId, parts: Vec<Bytes>) -> Result<(), ObjectError> {
        let Ok(slot) = self.slots.permits.acquire().await else { unreachable!("the semaphore is never closed") };
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let mut backoff = self.settings.backoff;
        for attempt in 1.. {
            let began = Instant::now();
            match self.attempt(id, &parts, bytes).await {
                Ok(()) => {
                    self.slots.done(slot, began.elapsed(), bytes);
                    self.counts.put_succeeded();
                    self.counts.puts.fetch_add(1, Ordering::Relaxed);
                    self.counts.put_bytes.fetch_add(bytes, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) => {
                    self.counts.put_failed();
                    if attempt >= self.settings.attempts_max || !error.is_retriable() {
                        return Err(error);
                    }
                }
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX.max(self.settings.backoff));
        }
        unreachable!("it is tried until there is an outcome")
    }

    /// One PUT, and another one beside it when it takes too long; the first that succeeds counts.
    async fn attempt(&self, id: ObjectId, parts: &[Bytes], bytes: u64) -> Result<(), ObjectError> {
        let put = |progress| {
            let (objects, parts) = (self.objects.clone(), parts.to_vec());
            async move { objects.put(id, parts, progress).await }
        };
        self.tries
            .run(bytes, put, || {
                self.counts.hedged_puts.fetch_add(1, Ordering::Relaxed);
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diskless::objects::BodyProgress;
    use crate::diskless::objects::double::StoreDouble;
    use crate::diskless::tries::{GIVEN_UP_AFTER, SILENT_MAX};

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn uploader(store: &Arc<StoreDouble>, attempts_max: u32, slots: usize) -> Uploader {
        let objects = Objects::over(store.clone(), "one");
        let settings = UploadSettings { attempts_max, backoff: MS(10), slots };
        Uploader::new(objects, settings, Arc::default())
    }

    fn object() -> Vec<Bytes> {
        vec![Bytes::from_static(b"an "), Bytes::from_static(b"object")]
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_tried_as_often_as_is_set() {
        let store = StoreDouble::taking(MS(100));
        let uploader = uploader(&store, 3, 1);
        store.fail_next(2);
        assert_eq!(uploader.upload(1, object()).await, Ok(()));
        store.fail_next(3);
        assert!(uploader.upload(2, object()).await.is_err_and(|error| error.is_retriable()));
        assert_eq!(store.puts(), 6);
        assert_eq!(uploader.counts.failing_for(), Some(MS(100 + 10 + 100 + 20)), "since the first that failed");
        assert_eq!(uploader.counts.put_failures.load(Ordering::Relaxed), 5);
        assert_eq!(
            uploader.objects.get(1, 0..100, BodyProgress::default()).await,
            Ok(Bytes::from_static(b"an object"))
        );
        assert_eq!(uploader.upload(3, object()).await, Ok(()));
        assert_eq!(uploader.counts.failing_for(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_hangs_is_overtaken_by_itself() {
        let store = StoreDouble::taking(MS(100));
        let uploader = uploader(&store, 3, 8);
        for id in 0..8 {
            uploader.upload(id, object()).await.expect("put");
        }
        let began = Instant::now();
        store.hang_next(1);
        assert_eq!(uploader.upload(8, object()).await, Ok(()));
        assert_eq!(began.elapsed(), MS(350), "2.5 times the usual, and once more");
        assert_eq!(uploader.counts.hedged_puts.load(Ordering::Relaxed), 1);
        // Where the other one hangs, too, another takes its place.
        let began = Instant::now();
        store.hang_next(2);
        assert_eq!(uploader.upload(9, object()).await, Ok(()));
        assert!(began.elapsed() < MS(6000), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn after_an_outage_in_which_all_hang_it_is_put_soon() {
        for (outage, attempts_max) in [(4, 3), (12, 3), (19, 3), (7, 1)] {
            let store = StoreDouble::taking(MS(100));
            let uploader = uploader(&store, attempts_max, 8);
            let began = Instant::now();
            store.hang_next(outage);
            assert_eq!(uploader.upload(1, object()).await, Ok(()));
            assert!(began.elapsed() < SILENT_MAX * outage as u32 + MS(1000), "{outage}: {:?}", began.elapsed());
        }
        let store = StoreDouble::taking(MS(100));
        store.hang_next(1000);
        let began = Instant::now();
        assert!(uploader(&store, 3, 8).upload(1, object()).await.is_err_and(|error| error.is_retriable()));
        assert!(began.elapsed() < 3 * GIVEN_UP_AFTER + MS(1000), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_there_are_slots_are_under_way() {
        let store = StoreDouble::taking(MS(100));
        let uploader = uploader(&store, 1, 2);
        let began = Instant::now();
        let uploads = (0..6).map(|id| {
            let uploader = uploader.clone();
            tokio::spawn(async move { uploader.upload(id, object()).await })
        });
        for upload in uploads.collect::<Vec<_>>() {
            assert_eq!(upload.await.expect("no panic"), Ok(()));
        }
        assert_eq!(began.elapsed(), MS(300));
    }
}
