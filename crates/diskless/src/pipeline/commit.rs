//! Commits the uploaded objects at the head of the queue, one commit at a time. Applies each answer of the index, and
//! then answers the batches and markers.
//!
//! The index decides on a commit; the rules are in [`fullbore_rules::commit`].
//!
//! Invariant: a batch is answered after the outcome of its commit is known and its records can be read. Answers are
//! sent without holding the lock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fullbore_host::task;
use fullbore_rules::commit::admission::BatchNumber;
use fullbore_rules::commit::{CommitVerdict, DisklessPartitionId, ObjectId, Refusal};
use parking_lot::MutexGuard;

use super::markers::MarkerAnswer;
use super::queue::{CommitResult, Committed, UnconfirmedBatch};
use super::{PipelineState, Released, Shared};
use crate::index::{CommitAnswer, PartitionRow, ProducerRow, UploadedObject};
use crate::partition_view::PartitionView;
use fullbore_db::StoreError;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::{AppendAnswer, Appended};
use fullbore_log::partition::terms::AwaitedConfirmation;

/// How long to wait before a failed commit is repeated.
const COMMIT_BACKOFF: Duration = Duration::from_millis(200);
/// The grace period: how long an uploaded object, and with it all objects behind it, waits for a coordinator's
/// confirmation. The coordinator confirms once the marker in an earlier object is committed, which normally takes less
/// time.
const CONFIRMATION_GRACE: Duration = Duration::from_millis(50);

/// An admitted batch or marker that is not answered yet.
pub(super) struct UnansweredBatch {
    pub partition: Arc<PartitionView>,
    pub number: DisklessPartitionId,
    pub log_append_time_ms: i64,
    pub producer_id: i64,
    pub answer: PendingAnswer,
}

/// The sender of an answer.
pub(super) enum PendingAnswer {
    /// The answer to the requests with this batch.
    Batch(AppendAnswer),
    /// The answer to the coordinators that wait for the marker.
    Marker(MarkerAnswer),
}

impl Shared {
    /// Starts the next commit if none is under way, and answers the batches of failed uploads. If the first object
    /// waits for confirmations, starts its grace period.
    pub(super) fn go_on(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let (objects, failed) = state.queue.next_commit(self.now());
        let held = state.queue.held_object().filter(|number| state.held != Some(*number));
        if let Some(number) = held {
            state.held = held;
            task::spawn(Arc::clone(self).give_up_confirmations(number));
        }
        if !objects.is_empty() {
            task::spawn(Arc::clone(self).commit(objects));
        }
        self.answer_failed(state, failed);
        self.changed.notify_one();
    }

    /// Releases the lock. Then answers failed batches, and refuses the batches that are parked behind them.
    fn answer_failed(&self, mut state: MutexGuard<'_, PipelineState>, failed: Vec<(BatchNumber, CommitResult)>) {
        let answers = state.answers(failed);
        let given_up = state.give_up_parked(&answers);
        state.drop_left_behind();
        drop(state);
        answers.into_iter().for_each(|(unanswered, answer)| unanswered.answer(answer));
        given_up.into_iter().for_each(|early| early.refuse(AppendError::Again));
    }

    /// Waits for the coordinator's answer about a batch that was admitted before its confirmation. Then continues the
    /// queue.
    pub(super) async fn take_confirmation(
        self: Arc<Self>,
        batch: UnconfirmedBatch,
        mut confirmation: AwaitedConfirmation,
    ) {
        let confirmation = confirmation.given().await;
        let mut state = self.state.lock();
        let failed = state.queue.confirmation_given(&batch, confirmation, self.now());
        self.answer_failed(state, failed);
        self.go_on();
    }

    /// Waits until the grace period ends. If object `number` still waits for confirmations then, refuses its
    /// unconfirmed batches.
    async fn give_up_confirmations(self: Arc<Self>, number: u64) {
        tokio::time::sleep(CONFIRMATION_GRACE).await;
        let mut state = self.state.lock();
        let failed = state.queue.give_up_confirmations(number, self.now());
        if failed.is_empty() {
            return;
        }
        self.answer_failed(state, failed);
        self.go_on();
    }

    /// Commits objects. After a failure, pauses, and then lets the queue repeat the commit.
    async fn commit(self: Arc<Self>, objects: Vec<UploadedObject>) {
        match self.index.commit(objects).await {
            Ok(answer) => self.committed(answer),
            Err(error) => {
                self.log_commit_failure(&error.into());
                tokio::time::sleep(COMMIT_BACKOFF).await;
                self.state.lock().queue.commit_unknown();
                if self.state.lock().is_closed {
                    return;
                }
            }
        }
        self.go_on();
    }

    /// Applies the answer to a commit. First makes the records readable, then answers the batches.
    fn committed(self: &Arc<Self>, answer: CommitAnswer) {
        let CommitAnswer { verdicts, partitions, producers, runs } = answer;
        if verdicts.iter().flatten().any(|verdict| *verdict == CommitVerdict::Refused(Refusal::ObjectGone)) {
            self.object_ids.forget();
        }
        let mut state = self.state.lock();
        let mut released = self.take_over(&mut state, &partitions, &producers);
        let outcomes = state.queue.committed(&verdicts, self.now());
        let answers = state.answers(outcomes);
        if state.others_commit {
            // A batch that another broker has already committed is a duplicate, and the answer has no row for it. It
            // has now left the queue. The batches that are parked behind it must be released here, because no row
            // releases them.
            let committed = answers.iter().filter(|(_, answer)| answer.is_ok());
            let of = committed.map(|(unanswered, _)| (unanswered.number, unanswered.producer_id));
            released.extend(self.release(&mut state, of));
        }
        let given_up = state.give_up_parked(&answers);
        let objects = state.take_committed();
        drop(state);
        let rows: Vec<_> = partitions.into_iter().map(|(row, _)| row).collect();
        self.reader.committed(objects, &rows, runs);
        self.answer_released(released);
        answers.into_iter().for_each(|(unanswered, answer)| unanswered.answer(answer));
        given_up.into_iter().for_each(|early| early.refuse(AppendError::Again));
    }

    /// Applies committed rows, and releases the parked batches that waited for these commits. Queues the released
    /// batches, or returns them if they already have an outcome.
    pub(super) fn take_over(
        self: &Arc<Self>,
        state: &mut PipelineState,
        partitions: &[(PartitionRow, i64)],
        producers: &[ProducerRow],
    ) -> Vec<Released> {
        state.take_over(partitions, producers);
        if !state.others_commit {
            return Vec::new();
        }
        self.release(state, producers.iter().map(|row| (row.batches.partition, row.batches.producer_id)))
    }

    pub(super) fn log_commit_failure(&self, error: &StoreError) {
        if let Some(left_out) = self.commit_failures.due(&error.to_string()) {
            tracing::error!(%error, left_out, "cannot commit records to the index of diskless topics: their producers wait, and the broker retries; check the index");
        }
    }
}

impl PipelineState {
    /// Removes the pending batches that have an outcome, and returns them with their answers.
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

    /// Applies committed rows to the known states of partitions. The second value of each pair in `partitions` is an
    /// offset: `producers` has all batches of the partition from this offset on.
    ///
    /// If a known state ends before this offset, the rows in between are missing, and nothing is applied to the state.
    /// If other brokers commit, the state stays outdated until its next refresh. Otherwise there is no later refresh,
    /// so the state is dropped. It is read again when it is needed.
    fn take_over(&mut self, partitions: &[(PartitionRow, i64)], producers: &[ProducerRow]) {
        let up_to_date = |(row, since): &(PartitionRow, i64)| {
            let known = self.known.get(&row.id).filter(|known| *since <= known.next_offset)?;
            Some((row.id, known.next_offset))
        };
        let from: HashMap<_, _> = partitions.iter().filter_map(up_to_date).collect();
        for ProducerRow { batches: of, written_ms } in producers {
            let Some((from, known)) = from.get(&of.partition).zip(self.known.get_mut(&of.partition)) else { continue };
            for batch in of.batches.iter().filter(|batch| batch.base_offset >= *from) {
                known.take_over(batch, *written_ms);
            }
        }
        for (row, _) in partitions.iter().filter(|(row, _)| from.contains_key(&row.id)) {
            if let Some(known) = self.known.get_mut(&row.id).filter(|known| row.next_offset >= known.next_offset) {
                row.put_into(known);
            }
        }
        if !self.others_commit {
            // A state lacks rows if the answers arrived in another order than the queries were sent. It is read again
            // when it is needed.
            let missed = partitions.iter().filter(|(row, _)| !from.contains_key(&row.id));
            missed.for_each(|(row, _)| drop(self.known.remove(&row.id)));
        }
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

    /// Returns true for a batch of records and false for a marker. If a batch is refused, later batches of its producer
    /// fail too. If a marker is refused, they do not fail.
    pub fn is_batch(&self) -> bool {
        matches!(self.answer, PendingAnswer::Batch(_))
    }
}
