//! Ends transitions: an append has ended, a producer id was allocated, or markers were written. Afterwards the waiting
//! requests are decided.
//!
//! Invariant: a state is in force only once it is written. Until then, and if the append fails, the former state stays
//! in force.

use super::effects::persist_error;
use super::{DecisionId, Effect, Markers, Persisting, Stage, TopicPartition, Transaction, TransactionAnswer};
use super::{TransactionMetadata, TransactionState, Turn};
use crate::transaction::requests::Request;
use fullbore_wire::ErrorCode;
use std::sync::Arc;

/// How long to wait after a failed append of the last record of a transaction before the next attempt, in ms.
const COMPLETE_RETRY_MS: i64 = 100;

impl Transaction {
    /// Handles the end of the append in flight: its record is replicated, or the append has failed. An append with an
    /// unknown outcome counts as failed. If its record is replicated after all, a later record replaces it, or the next
    /// coordinator continues from it.
    pub fn persisted(&mut self, result: Result<(), ErrorCode>, turn: &mut Turn<'_>) {
        // If no append is awaited, this broker no longer coordinates the id, and the append has ended late.
        let Stage::Persisting(persisting) = &mut self.stage else { return };
        let requests = std::mem::take(&mut persisting.requests);
        let next = persisting.next.take();
        match result {
            Ok(()) => self.enter(next, &requests, turn),
            Err(code) => self.undo(next, &requests, persist_error(code), turn),
        }
        self.resume(turn);
    }

    /// Handles the producer id that [`Effect::NeedProducerId`] has requested. On an error, the waiting request gets the
    /// error.
    pub fn producer_id(&mut self, result: Result<i64, ErrorCode>, turn: &mut Turn<'_>) {
        let Stage::ProducerId(_) = &self.stage else { return };
        let Stage::ProducerId(request) = std::mem::replace(&mut self.stage, Stage::Idle) else { return };
        match result {
            Ok(id) => self.decide(*request, Some(id), turn),
            Err(code) => request.refuse(code, turn),
        }
        self.resume(turn);
    }

    /// Notes that partitions have the marker of this decision, or are deleted. Responses to markers of an earlier
    /// decision or coordinator are ignored.
    pub fn markers_written<'a>(
        &mut self,
        decision: DecisionId,
        partitions: impl IntoIterator<Item = &'a TopicPartition>,
        turn: &mut Turn<'_>,
    ) {
        let Some(state) = self.state.as_mut() else { return };
        if !matches!(self.stage, Stage::Marking(current) if current == decision) {
            return;
        }
        let left = &mut Arc::make_mut(state).partitions;
        for partition in partitions {
            left.remove(partition);
        }
        if left.is_empty() {
            self.complete(turn);
        }
    }

    /// Writes a state, or a tombstone for None. `requests` get their responses when the outcome of the write is known.
    pub(super) fn persist(
        &mut self,
        next: Option<TransactionMetadata>,
        mut requests: Vec<Request>,
        turn: &mut Turn<'_>,
    ) {
        let next = next.map(|mut next| {
            self.join(&mut next, &mut requests, turn);
            Arc::new(next)
        });
        turn.effects.push(Effect::Persist(next.clone()));
        self.stage = Stage::Persisting(Persisting { next, requests });
    }

    /// Adds waiting AddPartitions requests of the same producer to a record that adds partitions, so that one append
    /// serves all of them. Stops at the first waiting request that cannot share the record, such as an EndTxn.
    fn join(&mut self, next: &mut TransactionMetadata, requests: &mut Vec<Request>, turn: &Turn<'_>) {
        while let Some(Request::AddPartitions(_, add)) = self.waiters.front() {
            let same = next.state == TransactionState::Ongoing
                && next.producer() == add.producer
                && next.client_version == add.version;
            if !same || next.partitions.len().saturating_add(add.partitions.len()) > turn.settings.partitions_max {
                return;
            }
            next.partitions.extend(add.owned());
            requests.extend(self.waiters.pop_front());
        }
    }

    /// Puts the next state in force.
    fn enter(&mut self, next: Option<Arc<TransactionMetadata>>, requests: &[Request], turn: &mut Turn<'_>) {
        self.stage = Stage::Idle;
        self.is_unsure &= next.as_deref().is_some_and(|next| next.state.is_prepared());
        self.state = next;
        self.write_markers_if_prepared(turn);
        requests.iter().for_each(|request| self.answer(request, turn));
    }

    /// Keeps the state in force, because the next one could not be written, and refuses the requests. Schedules another
    /// attempt only for the last record of a transaction, after all its markers.
    fn undo(
        &mut self,
        next: Option<Arc<TransactionMetadata>>,
        requests: &[Request],
        code: ErrorCode,
        turn: &mut Turn<'_>,
    ) {
        let is_marked = self.state.as_deref().is_some_and(|state| state.state.is_prepared());
        self.stage = match next {
            Some(next) if is_marked && next.state.is_complete() => {
                Stage::Completing(turn.now.saturating_add(COMPLETE_RETRY_MS))
            }
            _ => Stage::Idle,
        };
        requests.iter().for_each(|request| request.refuse(code, turn));
    }

    /// If the state in force is a decision, starts to write its markers. If there are no partitions, completes the
    /// transaction at once.
    pub(super) fn write_markers_if_prepared(&mut self, turn: &mut Turn<'_>) {
        let Some(state) = self.state.as_deref().filter(|state| state.state.is_prepared()) else { return };
        if state.partitions.is_empty() {
            return self.complete(turn);
        }
        self.decisions += 1;
        let decision = DecisionId { coordinator_epoch: self.coordinator_epoch, number: self.decisions };
        turn.effects.push(Effect::WriteMarkers(Markers {
            decision,
            producer_id: state.producer_id,
            producer_epoch: state.producer_epoch,
            is_commit: state.state == TransactionState::PrepareCommit,
            partitions: state.partitions.iter().cloned().collect(),
            transaction_version: state.client_version,
        }));
        self.stage = Stage::Marking(decision);
    }

    /// Writes the last record of a transaction that has all its markers.
    pub(super) fn complete(&mut self, turn: &mut Turn<'_>) {
        let Some(state) = self.state.as_deref() else { return };
        let next = state.completed(turn.now);
        let next = if self.is_unsure { next.retired() } else { next };
        self.persist(Some(next), Vec::new(), turn);
    }

    /// Responds to a request from the state in force. An InitProducerId that has fenced a producer waits for the end of
    /// the abort, and is then decided again.
    pub(super) fn answer(&mut self, request: &Request, turn: &mut Turn<'_>) {
        let Some(state) = self.state.as_deref() else { return };
        match request {
            Request::InitProducerId(_, _) if state.state.is_prepared() => self.wait(request.clone(), turn),
            Request::InitProducerId(ticket, _) => {
                turn.answer(*ticket, TransactionAnswer::InitProducerId(Ok(state.producer())));
            }
            Request::AddPartitions(ticket, _) => turn.answer(*ticket, TransactionAnswer::AddPartitions(Ok(()))),
            Request::EndTxn(ticket, end) => {
                let next = end.version.supports_epoch_bump().then(|| state.next_producer());
                turn.answer(*ticket, TransactionAnswer::EndTxn(Ok(next)));
            }
            Request::TimeOut => {}
        }
    }

    /// Decides on the waiting requests, in the order of their arrival, until one starts the next transition.
    fn resume(&mut self, turn: &mut Turn<'_>) {
        while matches!(self.stage, Stage::Idle) {
            let Some(request) = self.waiters.pop_front() else { return };
            match request.wait_until() {
                Some(until) if until > turn.now => self.decide(request, None, turn),
                _ => request.refuse(ErrorCode::CONCURRENT_TRANSACTIONS, turn),
            }
        }
    }
}
