//! Admits a batch to the queue, after checks of its memory, its sequence and its transaction.
//!
//! Batches out of order are in [`super::out_of_order`]. Invariant: a batch is copied only when nothing blocks it, and
//! without holding the lock.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use fullbore_rules::commit::admission::{Admission, BatchNumber, Freshness, Opening};
use fullbore_rules::commit::{BatchKind, Confirmation, DisklessPartitionId, PartitionState};
use fullbore_rules::sequence::{SequenceRefusal, Stamp};
use fullbore_wire::ErrorCode;

use super::commit::{PendingAnswer, UnansweredBatch};
use super::queue::{NewBatch, UnconfirmedBatch};
use super::{Pipeline, PipelineState, Shared};
use crate::assemble::STORED_EPOCH;
use crate::partition_view::PartitionView;
use fullbore_config::TimestampType;
use fullbore_host::task;
use fullbore_log::Verification;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::left_out::LeftOut;
use fullbore_log::partition::memory_budget::MemoryPermit;
use fullbore_log::partition::outcome::{AppendAnswer, AppendStep, AppendTicket, AwaitedAnswer, Blocker};
use fullbore_log::partition::reorder_buffer::BATCH_COST;
use fullbore_log::partition::stamping::Stamping;
use fullbore_log::partition::terms::{AppendTerms, AwaitedConfirmation};
use fullbore_log::validation::ValidBatch;

/// A partition together with its internal id in the index.
#[derive(Clone, Copy)]
pub struct IndexedPartition<'a> {
    /// This broker's view of the partition.
    pub view: &'a Arc<PartitionView>,
    /// The internal id.
    pub number: DisklessPartitionId,
}

/// The memory for a batch, and the conditions for its admission.
pub struct AdmissionTerms<'a> {
    /// Shows whether this broker's state of the producer is current or possibly stale.
    pub freshness: Freshness,
    /// The memory for the batch.
    pub room: MemoryPermit,
    /// The flag that is set while the metadata lists this broker as one that does not serve diskless topics.
    pub left_out: &'a LeftOut,
    /// The coordinator's confirmation of the transaction, without which the batch must not be committed. `None` if the
    /// batch need not wait for a confirmation.
    pub awaited: Option<AwaitedConfirmation>,
}

/// The properties of a batch that its admission depends on.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The producer, epoch and sequences of the batch.
    pub stamp: Stamp,
    /// True if the batch belongs to a transaction.
    pub is_transactional: bool,
    /// The coordinator's confirmation of the transaction that this batch would open. `None` if the coordinator has not
    /// confirmed it.
    pub confirmation: Option<Confirmation>,
    /// The log end of the partition, as the change feed has reported it. If it is larger than the next offset in the
    /// pipeline's known state, this state may be stale. If the producer uses a new epoch for each transaction, the
    /// epoch shows whether a transaction is new. No comparison is needed then, and this is 0.
    pub known_to: i64,
    /// True if this is the last batch of the transaction in this partition, as the producer has announced.
    pub ends_transaction: bool,
}

impl Candidate {
    fn of(batch: &ValidBatch<'_>, terms: &AppendTerms<'_>, partition: &PartitionView) -> Candidate {
        let &AppendTerms { verification, verified_at, epoch_stays, ends_transaction, .. } = terms;
        let known_to = if epoch_stays { partition.offsets().log_end } else { 0 };
        let confirmed = |is_added| Some(Confirmation { next_offset: verified_at.next_offset, is_added });
        let confirmation = match verification {
            Verification::Unknown => None,
            Verification::Verified => confirmed(false),
            Verification::Added => confirmed(true),
        };
        Candidate { confirmation, known_to, ..Candidate::unverified(batch, ends_transaction) }
    }

    /// Returns the properties of a batch that was parked. Its transaction is not confirmed by the coordinator.
    pub(super) fn unverified(batch: &ValidBatch<'_>, ends_transaction: bool) -> Candidate {
        let (stamp, is_transactional) = (batch.stamp(), batch.is_transactional());
        let ends_transaction = ends_transaction && is_transactional;
        Candidate { stamp, is_transactional, confirmation: None, known_to: 0, ends_transaction }
    }

    fn kind(&self) -> BatchKind {
        if self.is_transactional { BatchKind::Transactional } else { BatchKind::Plain }
    }
}

/// The batch would open a transaction that the coordinator must confirm first (KIP-890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unverified;

/// A batch in the form in which it will be stored, with the properties that its admission depends on.
pub struct Offered {
    /// The partition of the batch.
    pub partition: Arc<PartitionView>,
    /// The internal id of the partition.
    pub number: DisklessPartitionId,
    /// The sequence and transaction of the batch.
    pub candidate: Candidate,
    /// The bytes to store.
    pub bytes: Bytes,
    /// The largest timestamp of the records, in ms.
    pub max_timestamp: i64,
    /// The time of the append in ms, by the append clock. -1 if the topic uses the timestamps of the producer.
    pub log_append_time_ms: i64,
}

impl Offered {
    pub(super) fn new(
        partition: IndexedPartition<'_>,
        batch: &ValidBatch<'_>,
        candidate: Candidate,
        now_ms: i64,
    ) -> Offered {
        let clock = partition.view.config().message_timestamp_type;
        let (bytes, max_timestamp) = Stamping::stored(&batch.view(), clock, now_ms, STORED_EPOCH);
        let log_append_time_ms = match clock {
            TimestampType::CreateTime => -1,
            TimestampType::LogAppendTime => now_ms,
        };
        Offered {
            partition: Arc::clone(partition.view),
            number: partition.number,
            candidate,
            bytes,
            max_timestamp,
            log_append_time_ms,
        }
    }
}

impl Pipeline {
    /// Admits or parks a batch whose memory is reserved. Copies the bytes only if nothing blocks the batch, and without
    /// holding the lock.
    ///
    /// # Errors
    /// Returns an [`AppendError`] if the batch is refused. No record of a refused batch is or will be in the partition.
    pub fn append(
        &self,
        partition: IndexedPartition<'_>,
        batch: &ValidBatch<'_>,
        terms: AppendTerms<'_>,
        admission_terms: AdmissionTerms<'_>,
    ) -> Result<AppendStep, AppendError> {
        let candidate = Candidate::of(batch, &terms, partition.view);
        let admission_terms = match self.park_or_pass(partition, batch, candidate, terms, admission_terms)? {
            ControlFlow::Break(step) => return Ok(step),
            ControlFlow::Continue(unused) => unused,
        };
        let offered = Offered::new(partition, batch, candidate, self.shared.index.clock().at(terms.now_ms));
        self.admit(offered, admission_terms)
    }

    /// Parks an out-of-order batch together with its memory. Returns `Break` if the batch is parked or blocked. Returns
    /// `Continue` with `admission_terms` if the batch can be admitted or refused now.
    ///
    /// # Errors
    /// Returns an [`AppendError`] if the batch is refused. No record of a refused batch is or will be in the partition.
    fn park_or_pass<'a>(
        &self,
        of: IndexedPartition<'_>,
        batch: &ValidBatch<'_>,
        candidate: Candidate,
        terms: AppendTerms<'_>,
        admission_terms: AdmissionTerms<'a>,
    ) -> Result<ControlFlow<AppendStep, AdmissionTerms<'a>>, AppendError> {
        let IndexedPartition { view: partition, number } = of;
        let (early, freshness) = (terms.early, admission_terms.freshness);
        let mut state = self.shared.state.lock();
        if state.is_closed || partition.is_gone() {
            return Err(partition.gone());
        }
        let stamp = candidate.stamp;
        if !stamp.is_idempotent() {
            return Ok(ControlFlow::Continue(admission_terms));
        }
        let is_stale = AppendStep::Blocked(Blocker::StaleState(stamp.producer_id));
        let may_wait = early.are_sent || state.others_commit;
        let committed = match state.known.get(&number) {
            None if may_wait && freshness == Freshness::MayBeStale => return Ok(ControlFlow::Break(is_stale)),
            known => known.filter(|known| may_wait && state.queue.ahead(number, &stamp, known) > 0),
        };
        let Some(committed) = committed else { return Ok(state.pass(number, &candidate, admission_terms)) };
        // If the producer sends out of order and already has a pending batch of this epoch here, the missing batch will
        // arrive at this broker over another connection. A refresh would not find it.
        let comes_here = early.are_sent && state.queue.has_pending_of_epoch(number, &stamp);
        if state.others_commit && freshness == Freshness::MayBeStale && !comes_here {
            return Ok(ControlFlow::Break(is_stale));
        }
        let awaits_others = || state.queue.awaits_others(number, &stamp, committed, self.shared.now());
        if !early.are_sent && (early.wait_in.is_none() || !awaits_others()) {
            return Ok(ControlFlow::Continue(admission_terms));
        }
        let ticket = self.park_early(&mut state, of, batch, terms, admission_terms)?;
        Ok(ControlFlow::Break(AppendStep::Pending(ticket)))
    }

    fn admit(&self, offered: Offered, mut admission_terms: AdmissionTerms<'_>) -> Result<AppendStep, AppendError> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        if state.is_closed || offered.partition.is_gone() {
            return Err(offered.partition.gone());
        }
        let stamp = offered.candidate.stamp;
        // Only the first batch of a transaction waits for the confirmation.
        let awaited = admission_terms.awaited.take_if(|_| state.opens(offered.number, &offered.candidate));
        if awaited.is_some() && state.queue.gathers_marker_of(stamp.producer_id) {
            return Ok(AppendStep::Blocked(Blocker::Verification));
        }
        let answer = match state.check(offered.number, &offered.candidate, admission_terms.freshness) {
            Err(Unverified) => return Ok(AppendStep::Blocked(Blocker::Verification)),
            Ok(Admission::Ask) => return Ok(AppendStep::Blocked(Blocker::StaleState(stamp.producer_id))),
            Ok(Admission::Refuse(why)) => {
                // Later batches of this producer may already be in flight. Record the refusal, so that they are refused
                // as well.
                state.queue.turned_away(offered.number, &stamp, why.code(), shared.now());
                return Err(AppendError::Sequence(why));
            }
            Ok(Admission::Duplicate { base_offset, timestamp }) => {
                return Ok(AppendStep::Done(offered.partition.appended_before(base_offset, timestamp)));
            }
            Ok(Admission::Shares(batch_number)) => match state.unanswered.get_mut(&batch_number) {
                // If too many copies of one batch wait for its outcome, the oldest copy gets REQUEST_TIMED_OUT. A
                // sequence error would be wrong: the batch may be the next one of its producer, and some clients treat
                // sequence errors as fatal.
                Some(UnansweredBatch { answer: PendingAnswer::Batch(answer), .. }) => {
                    answer.join(AppendError::Role(ErrorCode::REQUEST_TIMED_OUT))
                }
                Some(_) | None => return Err(AppendError::Sequence(SequenceRefusal::OutOfOrderSequence)),
            },
            Ok(Admission::Admit) => shared.take(&mut state, offered, admission_terms.room, awaited),
        };
        Ok(AppendStep::Pending(AppendTicket::committing(answer, admission_terms.left_out.clone())))
    }

    /// Reserves memory for a batch of `size` bytes and its bookkeeping, which came over the connection from `peer`.
    /// Returns `None` if there is no memory now, so that the producer must wait.
    ///
    /// # Errors
    /// Returns [`AppendError::Gone`] if the broker is stopping.
    pub fn try_reserve(&self, peer: SocketAddr, size: usize) -> Result<Option<MemoryPermit>, AppendError> {
        self.shared.budget.try_take(peer, size + BATCH_COST).map_err(|_| AppendError::Gone)
    }

    /// Waits until the memory for a batch can be reserved; see [`Pipeline::try_reserve`]. Meanwhile, the broker reads
    /// nothing from the connection. Returns `None` if the broker stops.
    pub async fn reserve(&self, peer: SocketAddr, size: usize) -> Option<MemoryPermit> {
        self.shared.budget.take(peer, size + BATCH_COST).await
    }

    /// Records that a batch was refused with `code` before its sequence was checked. Later batches of its producer that
    /// are in flight are then refused too.
    pub fn turned_away(&self, number: DisklessPartitionId, stamp: &Stamp, code: ErrorCode) {
        self.shared.state.lock().queue.turned_away(number, stamp, code, self.shared.now());
    }
}

impl Shared {
    /// Queues a batch, and the batches that are parked behind it. Returns the receiver of the answer to the batch.
    fn take(
        self: &Arc<Self>,
        state: &mut PipelineState,
        offered: Offered,
        room: MemoryPermit,
        awaited_confirmation: Option<AwaitedConfirmation>,
    ) -> AwaitedAnswer {
        let was_idle = state.queue.is_closed_up();
        let (number, stamp) = (offered.number, offered.candidate.stamp);
        let (answer, awaited) = AppendAnswer::new(offered.bytes.len(), stamp.record_count, &self.metrics);
        let partition = Arc::clone(&offered.partition);
        let batch_number = self.enqueue(state, offered, answer, Some(room));
        if let Some(confirmation) = awaited_confirmation {
            let batch = UnconfirmedBatch { partition: number, stamp, batch_number };
            state.queue.await_confirmation(batch);
            task::spawn(Arc::clone(self).take_confirmation(batch, confirmation));
        }
        self.close_due(state);
        self.release_followers(state, IndexedPartition { view: &partition, number }, stamp);
        if was_idle {
            self.changed.notify_one();
        }
        awaited
    }

    pub(super) fn enqueue(
        self: &Arc<Self>,
        state: &mut PipelineState,
        offered: Offered,
        answer: AppendAnswer,
        room: Option<MemoryPermit>,
    ) -> BatchNumber {
        let Offered { partition, number, candidate, bytes, max_timestamp, log_append_time_ms } = offered;
        let (stamp, kind, confirmation) =
            (candidate.stamp, candidate.kind(), state.confirmation_of(number, &candidate));
        let ends_transaction = candidate.ends_transaction;
        let batch =
            NewBatch { partition: number, bytes, stamp, max_timestamp, kind, confirmation, ends_transaction, room };
        let batch_number = state.queue.admit(batch, self.now());
        let (producer_id, answer) = (stamp.producer_id, PendingAnswer::Batch(answer));
        state
            .unanswered
            .insert(batch_number, UnansweredBatch { partition, number, log_append_time_ms, producer_id, answer });
        batch_number
    }
}

impl PipelineState {
    /// Returns `Continue` if a batch that is in order can be admitted, or `Break` with the reason that blocks it.
    fn pass<'a>(
        &self,
        number: DisklessPartitionId,
        candidate: &Candidate,
        admission_terms: AdmissionTerms<'a>,
    ) -> ControlFlow<AppendStep, AdmissionTerms<'a>> {
        ControlFlow::Break(AppendStep::Blocked(match self.check(number, candidate, admission_terms.freshness) {
            Ok(Admission::Ask) => Blocker::StaleState(candidate.stamp.producer_id),
            Err(Unverified) => Blocker::Verification,
            // The batch would be in the same object as the marker of its producer's previous transaction. That object
            // cannot wait for the confirmation, because the coordinator confirms only after this marker is committed.
            Ok(Admission::Admit) if self.is_beside_marker(number, candidate, &admission_terms) => Blocker::Verification,
            Ok(_) => return ControlFlow::Continue(admission_terms),
        }))
    }

    fn is_beside_marker(
        &self,
        number: DisklessPartitionId,
        candidate: &Candidate,
        admission_terms: &AdmissionTerms<'_>,
    ) -> bool {
        let is_ahead = admission_terms.awaited.is_some() && self.opens(number, candidate);
        is_ahead && self.queue.gathers_marker_of(candidate.stamp.producer_id)
    }

    /// Decides whether a batch is admitted, by its sequence and its transaction.
    ///
    /// # Errors
    /// Returns [`Unverified`] if the coordinator must confirm the transaction first.
    pub(super) fn check(
        &self,
        number: DisklessPartitionId,
        candidate: &Candidate,
        freshness: Freshness,
    ) -> Result<Admission, Unverified> {
        let admission = self.check_sequence(number, &candidate.stamp, freshness);
        if admission != Admission::Admit || !candidate.is_transactional {
            return Ok(admission);
        }
        match self.opening(number, &candidate.stamp) {
            // The known state has an open transaction, but another broker may have ended it. In that case the batch
            // would begin the next transaction, so the state must be refreshed first.
            Opening::Open { confirmation: None } if self.is_behind(number, candidate, freshness) => Ok(Admission::Ask),
            Opening::Unverified if candidate.confirmation.is_none() => Err(Unverified),
            Opening::Open { .. } | Opening::Unverified => Ok(Admission::Admit),
        }
    }

    /// Returns true if a batch would open a transaction, because its producer has no open transaction in the known
    /// committed state or among the pending batches.
    fn opens(&self, number: DisklessPartitionId, candidate: &Candidate) -> bool {
        candidate.is_transactional && self.opening(number, &candidate.stamp) == Opening::Unverified
    }

    fn opening(&self, number: DisklessPartitionId, stamp: &Stamp) -> Opening {
        match self.known.get(&number) {
            Some(committed) => self.queue.transaction_of(number, stamp, committed),
            None => self.queue.transaction_of(number, stamp, &PartitionState::new(0)),
        }
    }

    fn is_behind(&self, number: DisklessPartitionId, candidate: &Candidate, freshness: Freshness) -> bool {
        let known_to = self.known.get(&number).map_or(0, |known| known.next_offset);
        self.others_commit && freshness == Freshness::MayBeStale && candidate.known_to > known_to
    }

    /// Returns the confirmation of a batch's transaction, or `None` if there is none. The confirmation belongs to this
    /// batch or to an earlier pending one.
    fn confirmation_of(&self, number: DisklessPartitionId, candidate: &Candidate) -> Option<Confirmation> {
        if !candidate.is_transactional {
            return None;
        }
        candidate.confirmation.or_else(|| match self.opening(number, &candidate.stamp) {
            Opening::Open { confirmation } => confirmation,
            Opening::Unverified => None,
        })
    }

    /// Decides whether a batch is admitted, by its sequence alone. If no other broker commits, the known state is
    /// always current.
    pub(super) fn check_sequence(&self, number: DisklessPartitionId, stamp: &Stamp, freshness: Freshness) -> Admission {
        let nothing = PartitionState::new(0);
        #[cfg(test)]
        let freshness = if self.queue.faults.skips_refresh { Freshness::Current } else { freshness };
        let now = self.started.elapsed();
        match self.known.get(&number) {
            Some(committed) if !self.others_commit => {
                self.queue.check(number, stamp, committed, Freshness::Current, now)
            }
            Some(committed) => self.queue.check(number, stamp, committed, freshness, now),
            None => self.queue.check(number, stamp, &nothing, freshness, now),
        }
    }
}
