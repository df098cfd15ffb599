//! Writes the markers of transactions. A marker becomes part of the next object, behind those batches of its producer
//! that this broker has admitted. The index decides on the marker when it commits this object.
//!
//! A marker uses no memory of the budget, because producers may have used up the budget while they wait for the end of
//! their transactions.
//!
//! If a marker fails, the coordinator retries.
//!
//! Invariants: at most [`MARKERS_MAX`] markers are queued, and each of them only once.

use std::collections::HashMap;
use std::sync::Arc;

use fullbore_host::files::now_ms;
use fullbore_rules::commit::admission::BatchNumber;
use fullbore_rules::commit::rotation::OBJECT_BATCHES_MAX;
use fullbore_rules::commit::{BatchKind, Confirmation, DisklessPartitionId};
use fullbore_rules::sequence::{Marker, Stamp};
use fullbore_wire::batch::{BatchView, EndTransactionMarker};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::admit::IndexedPartition;
use super::commit::{PendingAnswer, UnansweredBatch};
use super::queue::NewBatch;
use super::{Pipeline, Shared};
use crate::assemble::STORED_EPOCH;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::stamping::Stamping;

/// Maximum number of queued markers: as many as one object can have. Further markers wait for a slot.
const MARKERS_MAX: usize = OBJECT_BATCHES_MAX;
/// Maximum number of requests that wait for the same marker. A coordinator that has lost the answer sends the request
/// again.
const WAITS_MAX: usize = 8;

type MarkerOutcome = Result<(), AppendError>;

/// The slots for queued markers.
pub(super) struct MarkerSlots(Arc<Semaphore>);

impl Default for MarkerSlots {
    fn default() -> MarkerSlots {
        MarkerSlots(Arc::new(Semaphore::new(MARKERS_MAX)))
    }
}

impl MarkerSlots {
    /// Makes all current and later waits for a slot fail.
    pub fn close(&self) {
        self.0.close();
    }
}

/// The answer to the requests that wait for a marker.
pub(super) struct MarkerAnswer {
    waiting: Vec<oneshot::Sender<MarkerOutcome>>,
    _slot: OwnedSemaphorePermit,
}

impl MarkerAnswer {
    fn join(&mut self) -> oneshot::Receiver<MarkerOutcome> {
        self.waiting.retain(|waiting| !waiting.is_closed());
        if self.waiting.len() >= WAITS_MAX {
            let _ = self.waiting.remove(0).send(Err(AppendError::Again));
        }
        let (answer, awaited) = oneshot::channel();
        self.waiting.push(answer);
        awaited
    }

    pub fn send(self, outcome: MarkerOutcome) {
        for waiting in self.waiting {
            // Sending fails if the coordinator has given up. It then writes the marker again.
            let _ = waiting.send(outcome);
        }
    }
}

/// The queued markers by partition and producer.
#[derive(Default)]
pub(super) struct QueuedMarkers(HashMap<(DisklessPartitionId, i64), Vec<(Marker, BatchNumber)>>);

impl QueuedMarkers {
    /// Returns the number of a queued marker that is equal to `marker`, or `None` if there is none.
    fn find(&self, number: DisklessPartitionId, marker: &Marker) -> Option<BatchNumber> {
        let queued = self.0.get(&(number, marker.producer_id))?;
        queued.iter().find(|(of, _)| of == marker).map(|(_, batch_number)| *batch_number)
    }

    fn push(&mut self, number: DisklessPartitionId, marker: &Marker, batch_number: BatchNumber) {
        self.0.entry((number, marker.producer_id)).or_default().push((*marker, batch_number));
    }

    /// Removes a marker that has an outcome.
    pub fn ended(&mut self, number: DisklessPartitionId, producer_id: i64, batch_number: BatchNumber) {
        if let Some(queued) = self.0.get_mut(&(number, producer_id)) {
            queued.retain(|(_, of)| *of != batch_number);
            if queued.is_empty() {
                self.0.remove(&(number, producer_id));
            }
        }
    }
}

impl Pipeline {
    /// Writes a marker, and returns when its outcome is known. If a slot is free, the first poll of the future queues
    /// the marker. If an equal marker is already queued, only waits for its outcome. A queued marker is written even if
    /// the future is dropped.
    ///
    /// # Errors
    /// Returns [`AppendError::Sequence`] if a later coordinator or epoch has ended the transaction, or
    /// [`AppendError::Deleted`] if the partition is deleted. After any other error, the marker may be written
    /// nevertheless, and the caller must repeat the request.
    pub async fn write_marker(
        &self,
        partition: IndexedPartition<'_>,
        marker: &Marker,
        transaction_version: i8,
    ) -> Result<(), AppendError> {
        let slot = Arc::clone(&self.shared.marker_slots.0).acquire_owned().await.map_err(|_| AppendError::Gone)?;
        let awaited = self.shared.queue_marker(partition, marker, transaction_version, slot)?;
        awaited.await.unwrap_or(Err(AppendError::Gone))
    }
}

impl Shared {
    /// Queues a marker, unless an equal one is queued. Returns the receiver of its outcome. Refuses parked batches of
    /// older epochs. Parked batches of the marker's epoch stay parked until the batch with sequence 0 arrives.
    fn queue_marker(
        self: &Arc<Self>,
        partition: IndexedPartition<'_>,
        marker: &Marker,
        transaction_version: i8,
        slot: OwnedSemaphorePermit,
    ) -> Result<oneshot::Receiver<MarkerOutcome>, AppendError> {
        let IndexedPartition { view, number } = partition;
        let mut batch = batch_of(partition, marker, self.index.clock().at(now_ms()))?;
        batch.kind = BatchKind::marker(marker, transaction_version);
        let mut state = self.state.lock();
        if state.is_closed || view.is_gone() {
            return Err(view.gone());
        }
        let queued = state.markers.find(number, marker);
        if let Some(unanswered) = queued.and_then(|batch_number| state.unanswered.get_mut(&batch_number))
            && let PendingAnswer::Marker(answer) = &mut unanswered.answer
        {
            return Ok(answer.join());
        }
        let was_idle = state.queue.is_closed_up();
        let stamp = batch.stamp;
        let batch_number = state.queue.admit(batch, self.now());
        let mut answer = MarkerAnswer { waiting: Vec::new(), _slot: slot };
        let awaited = answer.join();
        let unanswered = UnansweredBatch {
            partition: Arc::clone(view),
            number,
            log_append_time_ms: -1,
            producer_id: stamp.producer_id,
            answer: PendingAnswer::Marker(answer),
        };
        state.unanswered.insert(batch_number, unanswered);
        state.markers.push(number, marker, batch_number);
        // The sequence after `i32::MAX` is 0, the first one of the marker's epoch. With this stamp, the call releases
        // the parked batches from sequence 0 on.
        self.release_followers(&mut state, partition, Stamp { base_sequence: i32::MAX, ..stamp });
        self.close_due(&mut state);
        if was_idle {
            self.changed.notify_one();
        }
        Ok(awaited)
    }
}

/// Returns the marker as a control batch for the next object. Its time is `now_ms`.
fn batch_of(partition: IndexedPartition<'_>, marker: &Marker, now_ms: i64) -> Result<NewBatch, AppendError> {
    let &Marker { producer_id, producer_epoch, coordinator_epoch, is_commit } = marker;
    let bytes = EndTransactionMarker { producer_id, producer_epoch, is_commit, coordinator_epoch }.batch(now_ms);
    let view = BatchView::first(&bytes).map_err(|_| AppendError::Storage)?;
    let clock = partition.view.config().message_timestamp_type;
    let (bytes, max_timestamp) = Stamping::stored(&view, clock, now_ms, STORED_EPOCH);
    Ok(NewBatch {
        partition: partition.number,
        bytes,
        stamp: Stamp { producer_id, producer_epoch, base_sequence: -1, record_count: 1 },
        max_timestamp,
        kind: BatchKind::Plain,
        confirmation: Some(Confirmation { next_offset: partition.view.offsets().log_end, is_added: false }),
        ends_transaction: true,
        room: None,
    })
}
