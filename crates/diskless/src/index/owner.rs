//! The thread that owns the index. It carries out commits and all other changes one at a time, in the order of the
//! requests.
//!
//! The work itself is in [`Index`].
//!
//! The queue of the thread contains at most one commit, and only a few reads and moves of log starts, even if their
//! callers give up. Changes to topics have no such limit, because they follow the metadata. However, no topic is
//! deleted while [`CHANGES_MAX`] of them are queued.
//!
//! Invariant: after a request has panicked, the thread carries out no other request, because its state in memory might
//! differ from the store.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fullbore_rules::commit::{DisklessPartitionId, ObjectId};
use fullbore_rules::sequence::ProducerTails;
use fullbore_wire::Uuid;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::{
    ClassicTails, CommitAnswer, Index, IndexStore, KnownStore, PartitionRow, RefreshedPartition, UnusedObject,
    UploadedObject,
};
use crate::append_clock::AppendClock;
use fullbore_db::{CommitError, StoreError};
use fullbore_host::files::now_ms;

/// How long the thread waits before it repeats a failed change. Also how long an idle thread waits before it runs the
/// GC.
pub(super) const RETRY: Duration = Duration::from_secs(1);
/// Maximum time for which requests without a pause delay the GC.
const TIDY_WITHIN: Duration = Duration::from_millis(50);
/// While this many changes of topics are queued, no topic can be deleted. Each partition to be created and each topic
/// to be deleted counts as one change. The limit equals the largest number of partitions in a cluster.
const CHANGES_MAX: usize = 200_000;
/// Maximum number of extents that one transaction deletes. Other requests wait until the transaction ends, so it must
/// be short.
pub(super) const RUNS_CLEARED: usize = 256;
/// Maximum number of queued requests that move log starts. The number is small because a commit may have to wait for
/// them.
const MOVES_MAX: usize = 2;
/// Maximum number of log starts that one transaction moves.
pub const MOVED_MAX: usize = 500;

/// A callback that runs after a topic is created. It gets the rows of the partitions, ordered by partition number.
pub type Created = Box<dyn FnOnce(Vec<PartitionRow>) + Send>;

/// A callback that returns the last sequences of producers on a deleted classic partition, the predecessor of a
/// diskless one. Its argument is the partition's number within the topic. The callback may block until the log of the
/// classic partition is closed.
pub type TailsBefore = Box<dyn Fn(i32) -> ProducerTails + Send>;

/// A callback that runs after a topic is deleted. Some of the topic's rows may still exist then; the GC removes them
/// later.
pub type Deleted = Box<dyn FnOnce() + Send>;

/// A slot that a queued request holds until it is carried out, even if its caller gives up.
pub type QueueSlot = Option<OwnedSemaphorePermit>;

pub(super) enum IndexRequest {
    Commit(Vec<UploadedObject>, oneshot::Sender<Result<CommitAnswer, CommitError>>),
    Refresh(
        Vec<(DisklessPartitionId, i64)>,
        oneshot::Sender<Result<Vec<Option<RefreshedPartition>>, StoreError>>,
        QueueSlot,
    ),
    Register(usize, oneshot::Sender<Result<Vec<ObjectId>, CommitError>>),
    Create {
        name: Arc<str>,
        topic_id: Uuid,
        count: i32,
        tails_before: TailsBefore,
        created: Created,
    },
    Delete(Uuid, Vec<DisklessPartitionId>, Deleted),
    RetainBatches(Vec<DisklessPartitionId>, usize),
    ExpireProducersAfter(i64),
    MoveLogStarts(
        Vec<(DisklessPartitionId, i64)>,
        oneshot::Sender<Result<Vec<Option<PartitionRow>>, CommitError>>,
        QueueSlot,
    ),
    Unused(usize, u64, oneshot::Sender<Result<Vec<UnusedObject>, CommitError>>),
    DeleteFailed(Vec<ObjectId>),
    Forget(Vec<ObjectId>),
    JudgedAt(oneshot::Sender<Result<i64, StoreError>>),
    KnownStore(oneshot::Sender<Result<KnownStore, StoreError>>),
    AdoptStore(String, oneshot::Sender<Result<String, CommitError>>),
    /// Wakes the thread so that it notices that it must stop.
    Nothing,
}

/// A handle that sends requests to the thread.
#[derive(Clone)]
pub struct IndexOwner {
    pub(super) requests: Sender<IndexRequest>,
    /// The number of queued changes of topics. Each partition to be created and each topic to be deleted counts as one
    /// change.
    pub(super) changes: Arc<watch::Sender<usize>>,
    /// The slots for queued requests that move log starts.
    moves: Arc<Semaphore>,
    /// Receives true if the thread panics.
    panicked: watch::Receiver<bool>,
    clock: Arc<AppendClock>,
    /// Notified after each request is queued, for tests that run without the thread.
    #[cfg(test)]
    pub(super) rung: Arc<tokio::sync::Notify>,
}

/// The running thread. If this is dropped, the thread finishes the current request and stops. All queued and later
/// requests are refused.
pub struct IndexThread {
    requests: Sender<IndexRequest>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl IndexOwner {
    /// Starts the thread.
    ///
    /// # Errors
    /// Returns an [`io::Error`] if the system cannot start a thread.
    pub fn start<S: IndexStore + 'static>(index: Index<S>) -> io::Result<(IndexOwner, IndexThread)> {
        let (requests, received) = channel();
        let stopping = Arc::new(AtomicBool::new(false));
        let changes = Arc::new(watch::Sender::new(0));
        let (until, made) = (Arc::clone(&stopping), Arc::clone(&changes));
        let (failure, panicked) = watch::channel(false);
        let clock = index.store.append_clock();
        let of_thread = Arc::clone(&clock);
        let work = move || {
            run_guarded(index, received, &Progress { stopping: &until, changes: &made, clock: &of_thread }, &failure)
        };
        let thread = thread::Builder::new().name("diskless-index".into()).spawn(work)?;
        let owner = IndexOwner::requesting(requests.clone(), changes, panicked, clock);
        Ok((owner, IndexThread { requests, stopping, thread: Some(thread) }))
    }

    /// Creates a handle that sends to `requests`. `clock` is the append clock of the index.
    pub(super) fn requesting(
        requests: Sender<IndexRequest>,
        changes: Arc<watch::Sender<usize>>,
        panicked: watch::Receiver<bool>,
        clock: Arc<AppendClock>,
    ) -> IndexOwner {
        IndexOwner {
            requests,
            changes,
            moves: Arc::new(Semaphore::new(MOVES_MAX)),
            panicked,
            clock,
            #[cfg(test)]
            rung: Arc::default(),
        }
    }

    /// Sends a request. If the thread has stopped, the request is dropped together with the sender of its answer, so
    /// the caller gets an error.
    fn request(&self, request: IndexRequest) {
        let _ = self.requests.send(request);
        #[cfg(test)]
        self.rung.notify_one();
    }

    /// Returns true if the thread has panicked. Only a restart of the broker starts it again.
    pub fn has_panicked(&self) -> bool {
        *self.panicked.borrow()
    }

    /// Waits until the thread ends. Returns true if it has panicked.
    pub async fn ended(&self) -> bool {
        self.panicked.clone().wait_for(|panicked| *panicked).await.is_ok()
    }

    /// Returns the clock that dates appended records.
    pub fn clock(&self) -> &AppendClock {
        &self.clock
    }

    /// Commits objects; see [`Index::commit`].
    ///
    /// # Errors
    /// Returns an error if [`Index::commit`] does, or if the thread has stopped.
    pub async fn commit(&self, objects: Vec<UploadedObject>) -> Result<CommitAnswer, CommitError> {
        let (answer, answered) = oneshot::channel();
        self.request(IndexRequest::Commit(objects, answer));
        answered.await.unwrap_or_else(|_| Err(CommitError::Refused(closed())))
    }

    /// Refreshes partitions; see [`Index::refresh`].
    ///
    /// # Errors
    /// Returns an error if [`Index::refresh`] does, or if the thread has stopped.
    pub async fn refresh(
        &self,
        partitions: Vec<(DisklessPartitionId, i64)>,
        slot: QueueSlot,
    ) -> Result<Vec<Option<RefreshedPartition>>, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.request(IndexRequest::Refresh(partitions, answer, slot));
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Registers new objects; see [`IndexStore::register`].
    ///
    /// # Errors
    /// Returns an error if [`IndexStore::register`] does, or if the thread has stopped.
    pub async fn register(&self, count: usize) -> Result<Vec<ObjectId>, CommitError> {
        let (answer, answered) = oneshot::channel();
        self.request(IndexRequest::Register(count, answer));
        answered.await.unwrap_or_else(|_| Err(CommitError::Refused(closed())))
    }

    /// Waits for one of the few slots for requests that move log starts.
    pub async fn slot_to_move(&self) -> QueueSlot {
        Arc::clone(&self.moves).acquire_owned().await.ok()
    }

    /// Moves at most [`MOVED_MAX`] log starts; see [`IndexStore::move_log_starts`]. Queues the request at once. The
    /// thread carries it out even if the caller never polls the returned future.
    ///
    /// # Errors
    /// Returns an error if [`IndexStore::move_log_starts`] does, or if the thread has stopped.
    pub fn move_log_starts(
        &self,
        moves: Vec<(DisklessPartitionId, i64)>,
        slot: QueueSlot,
    ) -> impl Future<Output = Result<Vec<Option<PartitionRow>>, CommitError>> + use<> {
        let (answer, answered) = oneshot::channel();
        self.request(IndexRequest::MoveLogStarts(moves, answer, slot));
        async { answered.await.unwrap_or_else(|_| Err(CommitError::Refused(closed()))) }
    }

    /// Returns unused objects; see [`IndexStore::unused`].
    ///
    /// # Errors
    /// Returns an error if [`IndexStore::unused`] does, or if the thread has stopped.
    pub async fn unused(&self, count: usize, for_ms: u64) -> Result<Vec<UnusedObject>, CommitError> {
        let (answer, answered) = oneshot::channel();
        self.request(IndexRequest::Unused(count, for_ms, answer));
        answered.await.unwrap_or_else(|_| Err(CommitError::Refused(closed())))
    }

    /// Returns the time by which ages are computed; see [`IndexStore::judged_at`].
    ///
    /// # Errors
    /// Returns an error if [`IndexStore::judged_at`] does, or if the thread has stopped.
    pub async fn judged_at(&self) -> Result<i64, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.request(IndexRequest::JudgedAt(answer));
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Records in the index that DELETEs of these objects have failed, without waiting; see
    /// [`IndexStore::delete_failed`]. If the index cannot record this, [`IndexOwner::unused`] returns the objects again
    /// after a day.
    pub fn delete_failed(&self, ids: Vec<ObjectId>) {
        self.request(IndexRequest::DeleteFailed(ids));
    }

    /// Removes deleted objects from the index, without waiting; see [`IndexStore::forget`]. If this fails,
    /// [`IndexOwner::unused`] returns the objects again after a day.
    pub fn forget(&self, ids: Vec<ObjectId>) {
        self.request(IndexRequest::Forget(ids));
    }

    /// Returns the object store that the index knows; see [`IndexStore::known_store`].
    ///
    /// # Errors
    /// Returns an error if [`IndexStore::known_store`] does, or if the thread has stopped.
    pub async fn known_store(&self) -> Result<KnownStore, StoreError> {
        let (answer, answered) = oneshot::channel();
        self.request(IndexRequest::KnownStore(answer));
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Adopts an object store; see [`IndexStore::adopt_store`].
    ///
    /// # Errors
    /// Returns an error if [`IndexStore::adopt_store`] does, or if the thread has stopped.
    pub async fn adopt_store(&self, store_id: String) -> Result<String, CommitError> {
        let (answer, answered) = oneshot::channel();
        self.request(IndexRequest::AdoptStore(store_id, answer));
        answered.await.unwrap_or_else(|_| Err(CommitError::Refused(closed())))
    }

    /// Deletes a topic without waiting; see [`Index::delete`]. The thread repeats the deletion until it succeeds.
    pub fn delete(&self, topic_id: Uuid, known: Vec<DisklessPartitionId>, deleted: Deleted) {
        self.changes.send_modify(|changes| *changes += 1);
        self.request(IndexRequest::Delete(topic_id, known, deleted));
    }

    /// Sets the number of retained batches without waiting; see [`Index::retain_batches`]. The thread repeats the
    /// change until it succeeds.
    pub fn retain_batches(&self, partitions: Vec<DisklessPartitionId>, window: usize) {
        self.request(IndexRequest::RetainBatches(partitions, window));
    }

    /// Sets the expiration time of producers without waiting; see [`Index::expire_producers_after`].
    pub fn expire_producers_after(&self, expiration_ms: i64) {
        self.request(IndexRequest::ExpireProducersAfter(expiration_ms));
    }

    /// Waits until fewer than [`CHANGES_MAX`] changes of topics are queued.
    pub async fn has_room(&self) {
        let _ = self.changes.subscribe().wait_for(|changes| *changes < CHANGES_MAX).await;
    }

    /// Queues the creation of a topic's missing partitions, without waiting. The thread repeats the creation until it
    /// succeeds.
    pub fn create(&self, name: Arc<str>, topic_id: Uuid, count: i32, tails_before: TailsBefore, created: Created) {
        self.changes.send_modify(|changes| *changes += partitions(count));
        self.request(IndexRequest::Create { name, topic_id, count, tails_before, created });
    }
}

impl Drop for IndexThread {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        let _ = self.requests.send(IndexRequest::Nothing);
        // Ignore the result of `join`, because a thread that panics reports the panic itself.
        self.thread.take().map(JoinHandle::join);
    }
}

/// State that the thread shares with its handles.
pub(super) struct Progress<'a> {
    pub stopping: &'a AtomicBool,
    pub changes: &'a watch::Sender<usize>,
    pub clock: &'a AppendClock,
}

fn partitions(count: i32) -> usize {
    usize::try_from(count).unwrap_or(0)
}

/// Runs the thread. If a request panics, this request and all later ones get an error, until the broker is restarted.
fn run_guarded<S: IndexStore>(
    index: Index<S>,
    received: Receiver<IndexRequest>,
    progress: &Progress<'_>,
    failure: &watch::Sender<bool>,
) {
    if catch_unwind(AssertUnwindSafe(|| run(index, received, progress))).is_err() {
        tracing::error!(
            "cannot change the index of diskless topics, since its thread has panicked: this broker accepts no \
             records of diskless topics. Restart the broker, and report the log lines before this one"
        );
        failure.send_replace(true);
    }
}

fn run<S: IndexStore>(mut index: Index<S>, received: Receiver<IndexRequest>, progress: &Progress<'_>) {
    let (mut is_tidy, mut tidied) = (false, Instant::now());
    loop {
        // Requests have priority: the GC runs only when no request is queued.
        let wait = if is_tidy { RETRY } else { Duration::ZERO };
        match received.recv_timeout(wait) {
            _ if progress.stopping.load(Ordering::SeqCst) => return,
            Ok(request) => {
                carry_out(&mut index, request, now_ms(), progress);
                is_tidy = false;
                // If requests arrive without a pause, the queue is never empty. The GC then runs between two requests,
                // once `TIDY_WITHIN` has passed.
                if tidied.elapsed() < TIDY_WITHIN {
                    continue;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // After a failed step of the GC, the thread waits as if the GC had no work, and then repeats the step.
        is_tidy = !index.tidy(RUNS_CLEARED, now_ms()).unwrap_or(false);
        tidied = Instant::now();
    }
}

pub(super) fn carry_out<S: IndexStore>(
    index: &mut Index<S>,
    request: IndexRequest,
    now_ms: i64,
    progress: &Progress<'_>,
) {
    // An answer cannot be sent if its caller no longer waits for it. Such a failure is ignored.
    match request {
        // A commit does not check for idle producers. The GC expires them, and records in each partition's state which
        // producer ids may have expired.
        IndexRequest::Commit(objects, answer) => {
            drop(answer.send(index.commit(&objects, progress.clock.at(now_ms))));
        }
        // Skip a read whose caller has given up. It would only delay other requests.
        IndexRequest::Refresh(_, answer, _) if answer.is_closed() => {}
        IndexRequest::Refresh(partitions, answer, _slot) => drop(answer.send(index.refresh(&partitions))),
        // An id has the time of its registration, which dates records without a timestamp.
        IndexRequest::Register(count, answer) => {
            drop(answer.send(index.store.register(count, progress.clock.at(now_ms))));
        }
        IndexRequest::MoveLogStarts(moves, answer, _slot) => drop(answer.send(index.store.move_log_starts(&moves))),
        IndexRequest::Unused(count, for_ms, answer) => drop(answer.send(index.store.unused(count, for_ms, now_ms))),
        IndexRequest::JudgedAt(answer) => drop(answer.send(index.store.judged_at(now_ms))),
        IndexRequest::DeleteFailed(ids) => drop(index.store.delete_failed(&ids, now_ms)),
        IndexRequest::Forget(ids) => drop(index.store.forget(&ids)),
        IndexRequest::KnownStore(answer) => drop(answer.send(index.store.known_store())),
        IndexRequest::AdoptStore(store_id, answer) => drop(answer.send(index.store.adopt_store(&store_id))),
        IndexRequest::Create { name, topic_id, count, tails_before, created } => {
            let before = ClassicTails::of_topic(count, tails_before);
            let make = || {
                if !before.is_empty() {
                    index.store.succeed_classic(&name, topic_id, &before)?;
                }
                index.store.create(&name, topic_id, count)
            };
            if let Some(rows) = until_done(progress.stopping, make) {
                created(rows);
            }
            progress.changes.send_modify(|changes| *changes -= partitions(count));
        }
        IndexRequest::Delete(topic_id, known, deleted) => {
            if until_done(progress.stopping, || index.delete(topic_id, &known)).is_some() {
                deleted();
            }
            progress.changes.send_modify(|changes| *changes -= 1);
        }
        IndexRequest::RetainBatches(partitions, window) => {
            until_done(progress.stopping, || index.retain_batches(&partitions, window));
        }
        IndexRequest::ExpireProducersAfter(expiration_ms) => index.expire_producers_after(expiration_ms),
        IndexRequest::Nothing => {}
    }
}

/// Repeats a change until it succeeds. Returns `None` if the broker stops first.
fn until_done<T>(stopping: &AtomicBool, mut change: impl FnMut() -> Result<T, CommitError>) -> Option<T> {
    let mut is_logged = false;
    loop {
        match change() {
            Ok(done) => return Some(done),
            Err(_) if stopping.load(Ordering::SeqCst) => return None,
            Err(error) => {
                if !std::mem::replace(&mut is_logged, true) {
                    tracing::error!(
                        ?error,
                        "cannot record a created, changed or deleted topic in the index of diskless topics: the \
                         broker retries each second; check the index"
                    );
                }
                thread::sleep(RETRY);
            }
        }
    }
}

fn closed() -> StoreError {
    StoreError::Failed("the broker stops, or the index's thread has panicked".into())
}

#[cfg(test)]
mod tests {
    use fullbore_rules::commit::{BatchKind, ObjectBatch};
    use fullbore_rules::sequence::{NO_PRODUCER_ID, Stamp};

    use super::super::SqliteIndex;
    use super::*;
    use fullbore_rules::commit::drawn_ms;

    #[test]
    fn requests_follow_each_other_without_a_pause_the_gc_still_runs() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut store = SqliteIndex::open(directory.path()).expect("made");
        let partition = store.create("topic", Uuid([1; 16]), 1).expect("made")[0].id;
        let object = store.register(1, 0).expect("registered")[0];
        let stamp = Stamp { producer_id: NO_PRODUCER_ID, producer_epoch: 0, base_sequence: 0, record_count: 1 };
        let batches = vec![ObjectBatch {
            partition,
            position: 0,
            size: 100,
            stamp,
            max_timestamp: 7,
            kind: BatchKind::Plain,
            confirmation: None,
        }];
        let mut index = Index::new(store, 5);
        index.commit(&[UploadedObject { id: object, batches }], 0).expect("committed");
        index.store.move_log_start(partition, 1).expect("moved");
        let beside = SqliteIndex::open(directory.path()).expect("opened");
        let (requests, received) = channel();
        let (stopping, changes, clock) = (AtomicBool::new(false), watch::Sender::new(0), AppendClock::default());
        // The next group of requests is queued before the previous one is answered, so the queue is never empty.
        let request_for_many = || {
            (0..10_000).for_each(|_| drop(requests.send(IndexRequest::Forget(Vec::new()))));
            let (answer, answered) = oneshot::channel();
            drop(requests.send(IndexRequest::KnownStore(answer)));
            answered
        };
        thread::scope(|scope| {
            let progress = Progress { stopping: &stopping, changes: &changes, clock: &clock };
            scope.spawn(move || run(index, received, &progress));
            let (mut first, began) = (request_for_many(), Instant::now());
            while beside.objects() != [(object, false, None)] && began.elapsed() < Duration::from_secs(60) {
                let second = request_for_many();
                drop(std::mem::replace(&mut first, second).blocking_recv());
            }
            stopping.store(true, Ordering::SeqCst);
            drop(requests.send(IndexRequest::Nothing));
        });
        assert_eq!(beside.objects(), [(object, false, None)], "its run is cleared");
    }

    #[test]
    fn machine_clock_is_behind_the_database_ids_have_the_database_time() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut index = Index::new(SqliteIndex::open(directory.path()).expect("made"), 5);
        let (stopping, changes, clock) = (AtomicBool::new(false), watch::Sender::new(0), AppendClock::default());
        let (own_ms, ahead_ms) = (now_ms(), 8 * 86_400_000);
        clock.saw(own_ms + ahead_ms, Duration::ZERO);
        let (answer, answered) = oneshot::channel();
        let progress = Progress { stopping: &stopping, changes: &changes, clock: &clock };
        carry_out(&mut index, IndexRequest::Register(1, answer), own_ms, &progress);
        let id = answered.blocking_recv().expect("answered").expect("registered")[0];
        // An id has whole seconds.
        assert!(drawn_ms(id) > own_ms + ahead_ms - 1000, "{}", drawn_ms(id));
    }
}
