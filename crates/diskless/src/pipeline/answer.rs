//! Sends the answers to admitted batches and markers.
//!
//! The outcomes themselves are decided in [`super::queue`].
//!
//! Invariant: an answer is sent when the outcome of its commit is known and its records can be read.

use std::sync::Arc;

use bytes::Bytes;
use fullbore_rules::commit::admission::BatchNumber;
use fullbore_rules::commit::{DisklessPartitionId, ObjectId};

use super::PipelineState;
use super::markers::MarkerAnswer;
use super::queue::{CommitResult, Committed};
use crate::partition_view::PartitionView;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::{AppendAnswer, Appended};

/// An admitted batch or marker that was not answered yet.
pub(super) struct UnansweredBatch {
    pub partition: Arc<PartitionView>,
    pub number: DisklessPartitionId,
    pub log_append_time_ms: i64,
    pub producer_id: i64,
    pub answer: PendingAnswer,
}

/// The sender of an answer.
pub(super) enum PendingAnswer {
    /// Answers the requests that have sent the batch.
    Batch(AppendAnswer),
    /// Answers the coordinators that wait for the marker.
    Marker(MarkerAnswer),
}

impl PipelineState {
    /// Removes the pending batches that have an outcome. Returns each of them with its answer.
    pub(super) fn answers(
        &mut self,
        outcomes: Vec<(BatchNumber, CommitResult)>,
    ) -> Vec<(UnansweredBatch, Result<Appended, AppendError>)> {
        let answer = |(batch_number, outcome): (BatchNumber, CommitResult)| {
            let unanswered = self.unanswered.remove(&batch_number);
            debug_assert!(unanswered.is_some() || self.is_closed, "a batch in the queue has an answer");
            let unanswered = unanswered?;
            if unanswered.partition.is_gone() {
                self.queue.forget(unanswered.number);
            }
            if let PendingAnswer::Marker(_) = unanswered.answer {
                self.markers.ended(unanswered.number, unanswered.producer_id, batch_number);
            }
            let answer = outcome.map(|committed| unanswered.appended(committed));
            Some((unanswered, answer))
        };
        outcomes.into_iter().filter_map(answer).collect()
    }

    /// Removes and returns the bytes of the objects that have left the queue.
    pub(super) fn take_committed(&mut self) -> Vec<(ObjectId, Vec<Bytes>)> {
        let first = self.queue.first_number();
        let mut left = Vec::new();
        while self.stored.front().is_some_and(|(number, ..)| *number < first) {
            left.extend(self.stored.pop_front().map(|(_, id, parts)| (id, parts)));
        }
        left
    }

    /// Drops the bytes of objects that have left the queue without being committed.
    pub(super) fn drop_left_behind(&mut self) {
        drop(self.take_committed());
    }
}

impl UnansweredBatch {
    fn appended(&self, Committed { base_offset, timestamp }: Committed) -> Appended {
        let first_time = timestamp.filter(|_| self.log_append_time_ms != -1);
        self.partition.appended(base_offset, first_time.unwrap_or(self.log_append_time_ms))
    }

    pub fn answer(self, answer: Result<Appended, AppendError>) {
        match (self.answer, answer) {
            (PendingAnswer::Batch(of), Ok(appended)) => of.written(&appended.into()),
            (PendingAnswer::Batch(of), Err(error)) => of.failed(error),
            (PendingAnswer::Marker(of), outcome) => of.send(outcome.map(drop)),
        }
    }

    /// Returns true for a batch of records and false for a marker. If a batch is refused, the later batches of its
    /// producer fail. If a marker is refused, they do not.
    pub fn is_batch(&self) -> bool {
        matches!(self.answer, PendingAnswer::Batch(_))
    }
}
