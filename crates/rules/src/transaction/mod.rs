//! Transactions: the machine of one transactional id, with the decisions of Kafka 4.3's transaction coordinator (KIPs
//! 98, 360, 447, 664, 890, 1228).
//!
//! A [`Transaction`] takes an event and the time, and returns [`Effect`]s in order. Not here: the log, connections, and
//! other ids. While the broker passes an event in and carries out the effects, it holds a lock of the id.
//!
//! ```
//! use fullbore_rules::transaction::*;
//!
//! # let settings = TransactionSettings {
//! #     timeout_max_ms: 900_000, partitions_max: 1_000, waiters_max: 16, server_version: TransactionVersion::V2,
//! # };
//! # let coordinator_epoch = 3;
//! let mut transaction = Transaction::new(coordinator_epoch);
//! let mut effects = Vec::new();
//! let request = InitProducerId { current: None, timeout_ms: 60_000, wait_until: None };
//! let mut turn = Turn { settings: &settings, now: 0, effects: &mut effects };
//! transaction.init_producer_id(request, RequestTicket(1), &mut turn);
//!
//! let mut events = 0;
//! while !effects.is_empty() {
//!     for effect in std::mem::take(&mut effects) {
//!         let turn = &mut Turn { settings: &settings, now: 0, effects: &mut effects };
//!         match effect {
//!             // Appended by the shard, which reports once the record is replicated. Here: at once.
//!             Effect::Persist(_record) => transaction.persisted(Ok(()), turn),
//!             Effect::NeedProducerId => transaction.producer_id(Ok(4_711), turn),
//!             Effect::WriteMarkers(markers) => {
//!                 transaction.markers_written(markers.decision, &markers.partitions, turn)
//!             }
//!             Effect::Answer(ticket, answer) => {
//!                 let producer = ProducerIdAndEpoch { id: 4_711, epoch: 0 };
//!                 assert_eq!((ticket, answer), (RequestTicket(1), TransactionAnswer::InitProducerId(Ok(producer))));
//!                 events += 1;
//!             }
//!         }
//!     }
//! }
//! assert_eq!(events, 1);
//! ```
//!
//! A broker also calls [`Transaction::tick`] when [`Transaction::next_deadline`] has passed,
//! [`Transaction::time_out`] and [`Transaction::expire`] at Kafka's cleanup intervals, and [`Transaction::kill`] when
//! it no longer leads the shard.
//!
//! Invariants: at most one record is in flight. A decision is written before its markers. Each partition has its
//! marker, or is deleted, before the transaction is complete. Each ticket gets exactly one response: at the latest at
//! the first [`Transaction::tick`] after its deadline, or at the end of the transition that its request started.

mod effects;
mod epochs;
mod metadata;
#[cfg(test)]
mod model;
mod progress;
mod requests;
mod settings;
mod state;
#[cfg(test)]
mod tests;
mod unsure;

pub use effects::{DecisionId, Effect, Markers, RequestTicket, TransactionAnswer, Turn, persist_error};
pub use metadata::{
    NO_PRODUCER_EPOCH, NO_TIMEOUT_MS, NO_TIMESTAMP, ProducerIdAndEpoch, TopicPartition, TransactionMetadata,
};
pub use requests::{AddPartitions, EndTxn, InitProducerId};
pub use settings::TransactionSettings;
pub use state::{TransactionState, TransactionVersion};

use epochs::Decision;
use fullbore_wire::ErrorCode;
use requests::Request;
use std::collections::VecDeque;
use std::sync::Arc;

/// Longest wait of a request, in milliseconds.
pub const WAIT_MAX_MS: i64 = 1_000;

/// Machine of one transactional id at its coordinator.
#[derive(Debug)]
pub struct Transaction {
    coordinator_epoch: i32,
    /// State in force: written and replicated. None if the id is unknown.
    state: Option<Arc<TransactionMetadata>>,
    stage: Stage,
    /// Number of decisions so far, for [`DecisionId`].
    decisions: u64,
    /// Requests that wait for the end of the stage, in the order of their arrival; empty in [`Stage::Idle`].
    waiters: VecDeque<Request>,
    /// True from [`Transaction::load_unsure`] until the fencing of the id's clients is written.
    is_unsure: bool,
}

/// Step of a transition. All stages but [`Stage::Idle`] are Kafka's `pendingTransitionInProgress`.
#[derive(Debug)]
enum Stage {
    /// No transition is pending.
    Idle,
    /// This request waits for a new producer id.
    ProducerId(Box<Request>),
    /// A record is in flight.
    Persisting(Persisting),
    /// Markers of the decision in force are being written.
    Marking(DecisionId),
    /// Every marker is written, but the append of the last record has failed. Contains the time of the next attempt, in
    /// ms.
    Completing(i64),
    /// Another broker coordinates this id; every request gets this error.
    Gone(ErrorCode),
}

/// Record in flight.
#[derive(Debug)]
struct Persisting {
    /// State in the record; None for a tombstone.
    next: Option<Arc<TransactionMetadata>>,
    /// Requests that get their responses by the outcome of the append.
    requests: Vec<Request>,
}

impl Transaction {
    /// Creates the machine of an id without a record.
    pub fn new(coordinator_epoch: i32) -> Transaction {
        Transaction {
            coordinator_epoch,
            state: None,
            stage: Stage::Idle,
            decisions: 0,
            waiters: VecDeque::new(),
            is_unsure: false,
        }
    }

    /// Creates the machine of an id from its last record. A decision is continued: its markers are written again in
    /// this coordinator's epoch. A decision without partitions is completed at once.
    pub fn load(coordinator_epoch: i32, record: TransactionMetadata, turn: &mut Turn<'_>) -> Transaction {
        let mut transaction = Transaction::new(coordinator_epoch);
        transaction.state = as_loaded(record).map(Arc::new);
        transaction.write_markers_if_prepared(turn);
        transaction
    }

    /// Handles an InitProducerId.
    pub fn init_producer_id(&mut self, request: InitProducerId, ticket: RequestTicket, turn: &mut Turn<'_>) {
        self.offer(Request::InitProducerId(ticket, request), turn);
    }

    /// Handles an AddPartitionsToTxn that is not verify-only, or an AddOffsetsToTxn ([`AddPartitions::offsets`]).
    pub fn add_partitions(&mut self, request: AddPartitions, ticket: RequestTicket, turn: &mut Turn<'_>) {
        self.offer(Request::AddPartitions(ticket, request), turn);
    }

    /// Handles an EndTxn, which never waits.
    pub fn end_txn(&mut self, request: EndTxn, ticket: RequestTicket, turn: &mut Turn<'_>) {
        match self.stage {
            Stage::Gone(code) => Request::EndTxn(ticket, request).refuse(code, turn),
            _ => self.decide(Request::EndTxn(ticket, request), None, turn),
        }
    }

    /// Returns NONE for each partition that is in the transaction, for a verify-only AddPartitionsToTxn. Other
    /// partitions get TRANSACTION_ABORTABLE, which Produce below version 11 sends as INVALID_TXN_STATE. Partitions of a
    /// pending transition do not count.
    ///
    /// # Errors
    /// INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED if the producer is not the present one; CONCURRENT_TRANSACTIONS
    /// while markers are written.
    pub fn verify_partitions<'a>(
        &self,
        producer: ProducerIdAndEpoch,
        partitions: impl IntoIterator<Item = &'a TopicPartition>,
    ) -> Result<Vec<(&'a TopicPartition, ErrorCode)>, ErrorCode> {
        self.check_coordinator()?;
        epochs::verify(self.state.as_deref(), producer)?;
        let is_added = |partition| self.state.as_deref().is_some_and(|state| state.partitions.contains(partition));
        let code = |partition| if is_added(partition) { ErrorCode::NONE } else { ErrorCode::TRANSACTION_ABORTABLE };
        Ok(partitions.into_iter().map(|partition| (partition, code(partition))).collect())
    }

    /// Aborts the transaction if it has been open for longer than its timeout, and fences its producer. Does nothing
    /// during a transition.
    pub fn time_out(&mut self, turn: &mut Turn<'_>) {
        if self.is_idle() && self.state.as_deref().is_some_and(|state| state.has_timed_out(turn.now)) {
            self.decide(Request::TimeOut, None, turn);
        }
    }

    /// Removes the id by a tombstone if it has been without a transaction for `expiration_ms`
    /// (`transactional.id.expiration.ms`). Once the tombstone is written, [`Transaction::is_vacant`] is true, unless a
    /// request has arrived before.
    pub fn expire(&mut self, expiration_ms: i64, turn: &mut Turn<'_>) {
        let has_expired = |state: &TransactionMetadata| state.has_expired(turn.now, expiration_ms);
        if self.is_idle() && self.state.as_deref().is_some_and(has_expired) {
            self.persist(None, Vec::new(), turn);
        }
    }

    /// Returns the earliest time at which [`Transaction::tick`] has something to do; None if there is none.
    pub fn next_deadline(&self) -> Option<i64> {
        let retry = match self.stage {
            Stage::Completing(at) => Some(at),
            _ => None,
        };
        self.waiters.iter().filter_map(Request::wait_until).chain(retry).min()
    }

    /// Refuses requests whose deadline has passed, and retries the last record of a transaction. A deadline further
    /// away than the longest wait counts as passed, because the clock has been set back.
    pub fn tick(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        let is_over = |until: i64| until <= now || until > now.saturating_add(WAIT_MAX_MS);
        let is_due = |request: &Request| request.wait_until().is_none_or(is_over);
        let (due, waiting) = std::mem::take(&mut self.waiters).into_iter().partition(is_due);
        self.waiters = waiting;
        let due: VecDeque<Request> = due;
        due.iter().for_each(|request| request.refuse(ErrorCode::CONCURRENT_TRANSACTIONS, turn));
        if matches!(self.stage, Stage::Completing(at) if is_over(at)) {
            self.complete(turn);
        }
    }

    /// Ends the machine: every request gets `code` from now on, and late events have no effect. A record in flight may
    /// still be written; the next coordinator loads it.
    pub fn kill(&mut self, code: ErrorCode, turn: &mut Turn<'_>) {
        match std::mem::replace(&mut self.stage, Stage::Gone(code)) {
            Stage::ProducerId(request) => request.refuse(code, turn),
            Stage::Persisting(persisting) => persisting.requests.iter().for_each(|request| request.refuse(code, turn)),
            Stage::Idle | Stage::Marking(_) | Stage::Completing(_) | Stage::Gone(_) => {}
        }
        self.waiters.drain(..).for_each(|request| request.refuse(code, turn));
    }

    /// Returns true from [`Transaction::load_unsure`] until the fencing of the id is written.
    pub fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Returns the state in force, for DescribeTransactions.
    ///
    /// # Errors
    /// TRANSACTIONAL_ID_NOT_FOUND for an unknown id; after [`Transaction::kill`] the code passed to it.
    pub fn describe(&self) -> Result<&TransactionMetadata, ErrorCode> {
        self.check_coordinator()?;
        self.state.as_deref().ok_or(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND)
    }

    /// Returns the number of partitions of the transaction in force; 0 without one, and after [`Transaction::kill`].
    pub fn partitions(&self) -> usize {
        self.describe().map_or(0, |state| state.partitions.len())
    }

    /// Returns producer id and state for ListTransactions; None if the filter excludes the id, if the id is unknown, or
    /// after [`Transaction::kill`].
    pub fn list(&self, filter: &TransactionFilter<'_>, now: i64) -> Option<(i64, TransactionState)> {
        let state = self.describe().ok()?;
        filter.takes(state, now).then_some((state.producer_id, state.state))
    }

    /// Returns true if the id has no state and no transition is pending. The caller can then drop it.
    pub fn is_vacant(&self) -> bool {
        self.state.is_none() && self.is_idle()
    }

    fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    fn check_coordinator(&self) -> Result<(), ErrorCode> {
        match self.stage {
            Stage::Gone(code) => Err(code),
            _ => Ok(()),
        }
    }

    /// Decides on a request, or queues it until the pending transition ends.
    fn offer(&mut self, request: Request, turn: &mut Turn<'_>) {
        match self.stage {
            Stage::Idle => self.decide(request, None, turn),
            Stage::Gone(code) => request.refuse(code, turn),
            _ => self.wait(request, turn),
        }
    }

    /// Queues a request if it may wait and the queue has room. Otherwise refuses it with CONCURRENT_TRANSACTIONS.
    fn wait(&mut self, request: Request, turn: &mut Turn<'_>) {
        let may_wait = request.wait_until().is_some_and(|until| until > turn.now);
        // As in Kafka, an invalid timeout is refused in any state.
        let is_bad = matches!(&request, Request::InitProducerId(_, init) if !init.has_valid_timeout(turn.settings));
        match is_bad {
            true => request.refuse(ErrorCode::INVALID_TRANSACTION_TIMEOUT, turn),
            false if may_wait && self.waiters.len() < turn.settings.waiters_max => self.waiters.push_back(request),
            false => request.refuse(ErrorCode::CONCURRENT_TRANSACTIONS, turn),
        }
    }

    /// Decides on a request. `id` is a new producer id, if one was allocated. An EndTxn is allowed in any stage, other
    /// requests only in [`Stage::Idle`].
    fn decide(&mut self, request: Request, id: Option<i64>, turn: &mut Turn<'_>) {
        let state = self.state.as_deref();
        let (settings, now) = (turn.settings, turn.now);
        let decision = match &request {
            Request::InitProducerId(_, init) => epochs::init(state, init, id, settings, now),
            Request::AddPartitions(_, add) => epochs::add(state, add, settings, now),
            Request::EndTxn(_, end) => epochs::end(state, end, !self.is_idle(), id, now),
            Request::TimeOut => match state {
                Some(state) => epochs::fence(state, id, settings.server_version, now),
                None => return,
            },
        };
        match decision {
            Decision::Refuse(code) => request.refuse(code, turn),
            Decision::Done => self.answer(&request, turn),
            Decision::NeedProducerId => {
                self.stage = Stage::ProducerId(Box::new(request));
                turn.effects.push(Effect::NeedProducerId);
            }
            Decision::Persist(next) => self.persist(Some(*next), vec![request], turn),
        }
    }
}

/// Returns the state that a record puts in force; None for an expired id.
fn as_loaded(record: TransactionMetadata) -> Option<TransactionMetadata> {
    match record.state {
        TransactionState::Dead => None,
        // No record that Kafka writes has this state; its transaction is ongoing.
        TransactionState::PrepareEpochFence => Some(TransactionMetadata { state: TransactionState::Ongoing, ..record }),
        _ => Some(record),
    }
}

/// Filter of ListTransactions (KIP-664, KIP-1152). The caller matches the pattern of ids.
#[derive(Clone, Copy, Debug)]
pub struct TransactionFilter<'a> {
    /// States to list; empty for all.
    pub states: &'a [TransactionState],
    /// Producer ids to list; empty for all.
    pub producer_ids: &'a [i64],
    /// Shortest duration, in milliseconds, of the transactions to list; negative for all. An id without a transaction
    /// counts as begun at -1.
    pub duration_ms: i64,
}

impl TransactionFilter<'_> {
    fn takes(&self, state: &TransactionMetadata, now: i64) -> bool {
        (self.producer_ids.is_empty() || self.producer_ids.contains(&state.producer_id))
            && (self.states.is_empty() || self.states.contains(&state.state))
            && (self.duration_ms < 0 || now.saturating_sub(state.start_ms) > self.duration_ms)
    }
}
