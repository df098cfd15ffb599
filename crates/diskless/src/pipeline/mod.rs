//! The path of a batch from its admission to its answer.
//!
//! The task of a connection admits a batch ([`admit`]) under a lock for the whole queue. The driver task closes objects
//! when they are due. Each object is uploaded by its own task ([`upload`]). The objects at the head of the queue are
//! then committed, one commit at a time ([`commit`]).
//!
//! [`out_of_order`] handles batches that arrive out of order, [`refresh`] refreshes stale state, and [`markers`] writes
//! the markers of transactions. The verdicts on batches come from [`crate::index`].
//!
//! Invariant: an answer is sent after the outcome of its commit is known and its records can be read.

mod admit;
mod commit;
mod markers;
mod object_ids;
mod out_of_order;
pub mod queue;
mod refresh;
pub mod upload;

use fullbore_host::task;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fullbore_rules::commit::admission::BatchNumber;
use fullbore_rules::commit::rotation::RotationSettings;
use fullbore_rules::commit::{DisklessPartitionId, ObjectId, PartitionState};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::index::IndexOwner;
use crate::reader::Reader;
use fullbore_host::log_rate_limit::CauseRateLimit;
use fullbore_host::metrics::Metrics;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::memory_budget::MemoryBudget;
use fullbore_log::partition::outcome::Appended;
use fullbore_log::partition::reorder_buffer::{OutOfOrderBatch, OutOfOrderBatches};

pub use admit::{AdmissionTerms, IndexedPartition};
pub use refresh::Refreshed;

use commit::UnansweredBatch;
use markers::{MarkerSlots, QueuedMarkers};
use object_ids::ObjectIds;
use queue::CommitQueue;
use refresh::RefreshLimit;
use upload::Uploader;

/// A batch that has left the reorder buffer without being queued, because it already has an outcome.
type Released = (OutOfOrderBatch, Result<Appended, AppendError>);

/// A handle of the pipeline.
#[derive(Clone)]
pub struct Pipeline {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<PipelineState>,
    /// Wakes the driver task.
    changed: Notify,
    budget: Arc<MemoryBudget>,
    refreshes: RefreshLimit,
    marker_slots: MarkerSlots,
    index: IndexOwner,
    object_ids: ObjectIds,
    uploader: Uploader,
    reader: Reader,
    /// The moment at which the queue's clock was 0.
    started: Instant,
    metrics: Metrics,
    commit_failures: CauseRateLimit,
    upload_failures: CauseRateLimit,
}

struct PipelineState {
    queue: CommitQueue,
    /// The moment at which the queue's clock was 0.
    started: Instant,
    /// The known states of partitions. A refresh adds the state of a partition, and later commits update it.
    known: HashMap<DisklessPartitionId, PartitionState>,
    unanswered: HashMap<BatchNumber, UnansweredBatch>,
    /// The bytes of objects that are in the store but not committed yet, ordered by object number.
    stored: VecDeque<(u64, ObjectId, Vec<Bytes>)>,
    /// The batches that arrived out of order.
    parked: HashMap<DisklessPartitionId, OutOfOrderBatches>,
    markers: QueuedMarkers,
    /// The number of the last object whose commit had to wait for a confirmation. `None` before the first one.
    held: Option<u64>,
    /// True if other brokers also commit to the index.
    others_commit: bool,
    is_closed: bool,
}

impl Pipeline {
    /// Creates the pipeline and spawns its driver task. Must be called within a tokio runtime.
    pub fn start(
        settings: RotationSettings,
        memory_bytes: usize,
        others_commit: bool,
        index: IndexOwner,
        uploader: Uploader,
        reader: Reader,
        metrics: Metrics,
    ) -> Pipeline {
        let mut queue = CommitQueue::new(settings);
        queue.set_slots(uploader.window());
        let started = Instant::now();
        let state = PipelineState {
            queue,
            started,
            known: HashMap::new(),
            unanswered: HashMap::new(),
            stored: VecDeque::new(),
            parked: HashMap::new(),
            markers: QueuedMarkers::default(),
            held: None,
            others_commit,
            is_closed: false,
        };
        let budget = MemoryBudget::new(memory_bytes);
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Notify::new(),
            budget,
            refreshes: RefreshLimit::default(),
            marker_slots: MarkerSlots::default(),
            object_ids: ObjectIds::new(index.clone()),
            index,
            uploader,
            reader,
            started,
            metrics,
            commit_failures: CauseRateLimit::default(),
            upload_failures: CauseRateLimit::default(),
        });
        task::spawn(Arc::clone(&shared).drive());
        task::spawn(Arc::clone(&shared).close_without_index());
        Pipeline { shared }
    }

    /// Plants faults in the pipeline. Must be called before the first batch.
    #[cfg(test)]
    pub fn plant(&self, faults: queue::PlantedFaults) {
        self.shared.state.lock().queue.faults = faults;
    }

    /// Retains at least `window` batches of each producer of these partitions. If a larger number was set earlier, it
    /// stays in force.
    pub fn retain_batches(&self, numbers: &[DisklessPartitionId], window: usize) {
        let mut state = self.shared.state.lock();
        for number in numbers {
            if let Some(known) = state.known.get_mut(number) {
                known.window = known.window.max(window);
            }
        }
    }

    /// Forgets producers that have not written for `expiration_ms`, and batches that were refused long ago.
    pub fn expire_producers(&self, now_ms: i64, expiration_ms: i64) {
        self.shared.state.lock().queue.forget_old(self.shared.now());
        // Lock the state once for each partition, so that batches wait for at most one of them.
        let numbers: Vec<_> = self.shared.state.lock().known.keys().copied().collect();
        for number in numbers {
            if let Some(known) = self.shared.state.lock().known.get_mut(&number) {
                known.expire(now_ms, expiration_ms);
            }
        }
    }

    /// Calls `of` with the state of a partition and returns the result. Returns `None` if no [`Pipeline::refresh`] has
    /// read the state yet.
    pub fn known<T>(&self, number: DisklessPartitionId, of: impl FnOnce(&PartitionState) -> T) -> Option<T> {
        self.shared.state.lock().known.get(&number).map(of)
    }

    /// Forgets a deleted partition.
    pub fn forget(&self, number: DisklessPartitionId) {
        let mut state = self.shared.state.lock();
        state.known.remove(&number);
        state.queue.forget(number);
        let parked = state.parked.remove(&number);
        drop(state);
        if let Some(parked) = parked {
            parked.refuse(AppendError::Deleted);
        }
    }

    /// Returns the number of bytes that are admitted but not answered yet.
    pub fn bytes(&self) -> usize {
        self.shared.state.lock().queue.bytes()
    }

    /// Uploads the admitted batches at once, so that they are answered soon, and refuses the parked ones.
    pub fn hurry(&self) {
        let mut state = self.shared.state.lock();
        state.queue.hurry();
        let parked = std::mem::take(&mut state.parked);
        drop(state);
        self.shared.changed.notify_one();
        parked.into_values().for_each(|parked| parked.refuse(AppendError::Gone));
    }

    /// Stops admission, and refuses the pending and parked batches. A pending batch may still be committed. If its
    /// producer is idempotent and sends it again, the index recognises the duplicate.
    pub fn close(&self) {
        self.shared.close();
    }
}

impl Shared {
    /// Closes the pipeline if the thread of the index panics. Otherwise, batches could wait until the broker stops.
    async fn close_without_index(self: Arc<Self>) {
        if self.index.ended().await {
            self.close();
        }
    }

    fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let unanswered = std::mem::take(&mut state.unanswered);
        let parked = std::mem::take(&mut state.parked);
        drop(state);
        self.budget.close();
        self.marker_slots.close();
        self.changed.notify_one();
        parked.into_values().for_each(|parked| parked.refuse(AppendError::Gone));
        unanswered.into_values().for_each(|unanswered| unanswered.answer(Err(AppendError::Gone)));
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}
