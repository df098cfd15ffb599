//! Closes the objects that are due, marks their batches with the object's id, and uploads the objects to the store. The
//! upload window limits the number of concurrent uploads. A setting limits the number of attempts of each upload.
//!
//! [`UploadWindow`] computes the size of the window, and [`crate::tries`] hedges PUTs.
//!
//! Invariants: after a successful upload, the object is in the store. An upload continues as long as its bytes move.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fullbore_host::task;
use fullbore_rules::commit::rotation::Close;
use fullbore_rules::commit::{ObjectId, UploadWindow};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};

use super::queue::ClosedObject;
use super::{PipelineState, Shared};
use crate::assemble::MARK;
use crate::objects::counts::StoreCounts;
use crate::objects::{ObjectError, Objects};
use crate::tries::{BUFFERED_MAX, Tries};

/// Maximum pause between two attempts. The configured first pause may be longer.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// The settings of uploads.
#[derive(Clone, Copy, Debug)]
pub struct UploadSettings {
    /// `diskless.produce.max.upload.attempts`
    pub attempts_max: u32,
    /// `diskless.produce.upload.backoff.ms`
    pub backoff: Duration,
    /// `diskless.produce.upload.thread.pool.size`
    pub slots: usize,
}

/// Uploads objects within the limits of the settings and the window.
#[derive(Clone)]
pub struct Uploader {
    objects: Objects,
    settings: UploadSettings,
    slots: Arc<Slots>,
    tries: Arc<Tries>,
    counts: Arc<StoreCounts>,
}

/// The permits for concurrent uploads, as many as the upload window allows. After the window has shrunk, each attempt
/// that ends removes its permit, until the numbers are equal. An upload waits for a new permit before each attempt.
#[derive(Debug)]
struct Slots {
    permits: Semaphore,
    window: Mutex<SlotWindow>,
    began: Instant,
}

#[derive(Debug)]
struct SlotWindow {
    window: UploadWindow,
    /// The total number of permits, both free and in use.
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

    /// Waits for the permit of an upload of `bytes`.
    async fn begin(&self, bytes: u64) -> SemaphorePermit<'_> {
        self.adjust(None, |window, _| window.begins(bytes));
        let Ok(permit) = self.permits.acquire().await else { unreachable!("the semaphore is never closed") };
        permit
    }

    /// Records a successful upload.
    fn done(&self, permit: SemaphorePermit<'_>, took: Duration, bytes: u64) {
        let now = self.began.elapsed();
        self.adjust(Some(permit), |window, under_way| window.note(now, took, bytes, under_way));
    }

    /// Records an attempt that has failed after `took`. The upload needs another permit for its next attempt.
    fn failed(&self, permit: SemaphorePermit<'_>, took: Duration) {
        let now = self.began.elapsed();
        self.adjust(Some(permit), |window, _| window.failed(now, took));
    }

    /// Calls `change` with the window and the number of permits in use. Then adjusts the number of permits to the
    /// window: adds the missing ones, or removes idle ones and that of the upload that has ended, `ended`.
    fn adjust(&self, ended: Option<SemaphorePermit<'_>>, change: impl FnOnce(&mut UploadWindow, usize)) {
        let mut state = self.window.lock();
        let under_way = state.permits.saturating_sub(self.permits.available_permits());
        change(&mut state.window, under_way);
        let size = state.window.size();
        if size >= state.permits {
            self.permits.add_permits(size - state.permits);
            state.permits = size;
            return;
        }
        state.permits -= self.permits.forget_permits(state.permits - size);
        if let Some(permit) = ended
            && state.permits > size
        {
            state.permits -= 1;
            permit.forget();
        }
    }
}

impl Uploader {
    /// Creates an uploader with the limits of `settings`.
    pub fn new(objects: Objects, settings: UploadSettings, counts: Arc<StoreCounts>) -> Uploader {
        let (slots, tries) = (Arc::new(Slots::new(settings.slots)), Arc::new(Tries::new("PUT", BUFFERED_MAX)));
        Uploader { objects, settings, slots, tries, counts }
    }

    /// Returns how many uploads may currently run at the same time.
    pub fn window(&self) -> usize {
        self.slots.window.lock().window.size()
    }

    /// Returns the [`Tries`] of all PUTs, which sends a second PUT if the first one is slow.
    pub fn tries(&self) -> &Arc<Tries> {
        &self.tries
    }

    /// Waits for a permit, and then puts an object into the store, with retries. Dropping the future ends the upload.
    ///
    /// # Errors
    /// Returns the [`ObjectError`] of the last attempt.
    pub async fn upload(&self, id: ObjectId, parts: Vec<Bytes>) -> Result<(), ObjectError> {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let mut slot = self.slots.begin(bytes).await;
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
                    if matches!(error, ObjectError::Full(_)) {
                        self.counts.refused_as_full();
                    }
                    if attempt >= self.settings.attempts_max || !error.is_retriable() {
                        return Err(error);
                    }
                }
            }
            self.slots.failed(slot, began.elapsed());
            sleep(backoff).await;
            slot = self.slots.begin(bytes).await;
            backoff = (backoff * 2).min(BACKOFF_MAX.max(self.settings.backoff));
        }
        unreachable!("it is tried until there is an outcome")
    }

    /// Puts an object. If the PUT takes too long, sends a second one beside it. The first success counts.
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

/// The tasks of the pipeline.
impl Shared {
    /// Closes objects when they are due, until the broker stops.
    pub(super) async fn drive(self: Arc<Self>) {
        loop {
            let wait = {
                let mut state = self.state.lock();
                if state.is_closed {
                    return;
                }
                self.close_due(&mut state)
            };
            let changed = self.changed.notified();
            match wait {
                Some(wait) => drop(tokio::time::timeout(wait, changed).await),
                None => changed.await,
            }
        }
    }

    /// Closes the objects that are due, and starts their uploads. Returns the time until the next object is due.
    /// Returns `None` if no batch is waiting or no upload slot is idle.
    pub(super) fn close_due(self: &Arc<Self>, state: &mut PipelineState) -> Option<Duration> {
        loop {
            let now = self.now();
            match state.queue.due(now)? {
                Close::At(then) => return Some(then.saturating_sub(now)),
                Close::Now => drop(task::spawn(Arc::clone(self).upload_object(state.queue.close(now)))),
            }
        }
    }

    /// Puts one object into the store, records the outcome, and continues the queue.
    async fn upload_object(self: Arc<Self>, object: ClosedObject) {
        let ClosedObject { number, mut parts } = object;
        let uploaded = match self.object_ids.next().await {
            Ok(id) => {
                parts = parts.into_iter().map(|batch| marked(batch, id)).collect();
                match self.uploader.upload(id, parts.clone()).await {
                    Ok(()) => Some(id),
                    Err(error) => {
                        if let Some(left_out) = self.upload_failures.due(&error.to_string()) {
                            tracing::error!(%error, left_out, "cannot upload an object: producers get KAFKA_STORAGE_ERROR and retry; check the store");
                        }
                        None
                    }
                }
            }
            Err(error) => {
                self.log_commit_failure(&error.into());
                None
            }
        };
        {
            let mut state = self.state.lock();
            state.queue.set_slots(self.uploader.window());
            state.queue.uploaded(number, uploaded.ok_or(()));
            if let Some(id) = uploaded {
                let at = state.stored.partition_point(|(other, ..)| *other < number);
                state.stored.insert(at, (number, id, parts));
            }
        }
        self.go_on();
    }
}

/// Puts the object's id into a batch, as required in a stored batch. Copies the batch only if other owners share its
/// bytes.
pub(crate) fn marked(batch: Bytes, object: ObjectId) -> Bytes {
    let mut batch = batch.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    if let Some(mark) = batch.get_mut(MARK) {
        mark.copy_from_slice(&object.to_be_bytes());
    }
    batch.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::BodyProgress;
    use crate::objects::double::StoreDouble;
    use crate::tries::{GIVEN_UP_AFTER, SILENT_MAX};

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
    async fn uploads_fail_they_are_attempted_up_to_the_configured_maximum() {
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
    async fn upload_hangs_a_second_put_of_it_succeeds() {
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
        // The second PUT hangs as well, so a third PUT is sent.
        let began = Instant::now();
        store.hang_next(2);
        assert_eq!(uploader.upload(9, object()).await, Ok(()));
        assert!(began.elapsed() < MS(6000), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn outage_ends_in_which_all_puts_hang_the_upload_succeeds_soon() {
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
    async fn uploads_are_more_than_slots_they_wait() {
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
