//! Transactions: the state machine of a transactional id, which decides like Kafka 4.3's transaction coordinator (KIPs
//! 98, 360, 447, 664, 890, 1228).
//!
//! A [`Transaction`] takes an event and the time, and returns [`Effect`]s in order. It has no log and no connections,
//! and does not know other ids. The broker holds the id's lock while it passes an event in and carries out the effects.
//! TV1 and TV2 are clients' protocols: that of KIP-98, and that of KIP-890 part 2 (see [`TransactionVersion`]).
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
//! The broker also calls [`Transaction::tick`] when [`Transaction::next_deadline`] has passed, and
//! [`Transaction::time_out`] and [`Transaction::expire`] at Kafka's cleanup intervals. It calls [`Transaction::kill`]
//! when it no longer leads the shard.
//!
//! Invariants: at most one record is in flight. A decision is written before its markers. Before a transaction is
//! complete, each partition has its marker or is deleted. Each ticket gets exactly one response. A waiting request gets
//! it at the latest at the first [`Transaction::tick`] after its deadline. A request that has started a transition gets
//! it at the end of the transition.

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
    shifted_time,
};
pub use requests::{AddPartitions, EndTxn, InitProducerId};
pub use settings::TransactionSettings;
pub use state::{TransactionState, TransactionVersion};

use epochs::Decision;
use fullbore_wire::ErrorCode;
use requests::Request;
use std::collections::VecDeque;
use std::sync::Arc;

/// The state machine of a transactional id, which runs at the id's coordinator.
#[derive(Debug)]
pub struct Transaction {
    coordinator_epoch: i32,
    /// The state in force: the last one that was written and replicated. `None` if the id is unknown.
    state: Option<Arc<TransactionMetadata>>,
    stage: Stage,
    /// How many decisions were made so far, for [`DecisionId`].
    decisions: u64,
    /// The requests that wait for the end of the transition, in the order of their arrival. Empty in [`Stage::Idle`].
    waiters: VecDeque<Request>,
    /// True after [`Transaction::load_unsure`], until a record that fences the id's clients is written.
    is_unsure: bool,
}

/// The progress of a transition. Every stage except [`Stage::Idle`] is Kafka's `pendingTransitionInProgress`.
#[derive(Debug)]
enum Stage {
    /// No transition is pending.
    Idle,
    /// This request waits for a new producer id.
    ProducerId(Box<Request>),
    /// A record is in flight.
    Persisting(Persisting),
    /// The markers of the decision in force are being written.
    Marking(DecisionId),
    /// Every marker is written, but the append of the last record of the transaction has failed. The next attempt is at
    /// this time, in ms.
    Completing(i64),
    /// Another broker coordinates this id. Every request gets this error.
    Gone(ErrorCode),
}

/// A record that is in flight.
#[derive(Debug)]
struct Persisting {
    /// The state in the record; `None` if it is a tombstone.
    next: Option<Arc<TransactionMetadata>>,
    /// The requests that get their responses when the outcome of the append is known.
    requests: Vec<Request>,
}

impl Transaction {
    /// Creates the state machine of an id that has no record.
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

    /// Creates the state machine of an id from its last record. If the record is a decision, its markers are written
    /// again with this coordinator's epoch. If there are no partitions, the transaction is completed at once.
    pub fn load(coordinator_epoch: i32, record: TransactionMetadata, turn: &mut Turn<'_>) -> Transaction {
        let mut transaction = Transaction::new(coordinator_epoch);
        transaction.state = as_loaded(record, turn.now).map(Arc::new);
        transaction.write_markers_if_prepared(turn);
        transaction
    }

    /// Handles an InitProducerId.
    pub fn init_producer_id(&mut self, request: InitProducerId, ticket: RequestTicket, turn: &mut Turn<'_>) {
        self.offer(Request::InitProducerId(ticket, request), turn);
    }

    /// Handles an AddPartitionsToTxn that is not verify-only. An AddOffsetsToTxn is handled in the same way (see
    /// [`AddPartitions::offsets`]).
    pub fn add_partitions(&mut self, request: AddPartitions, ticket: RequestTicket, turn: &mut Turn<'_>) {
        self.offer(Request::AddPartitions(ticket, request), turn);
    }

    /// Handles an EndTxn. The request never waits for a pending transition.
    pub fn end_txn(&mut self, request: EndTxn, ticket: RequestTicket, turn: &mut Turn<'_>) {
        match self.stage {
            Stage::Gone(code) => Request::EndTxn(ticket, request).refuse(code, turn),
            _ => self.decide(Request::EndTxn(ticket, request), None, turn),
        }
    }

    /// Handles a verify-only AddPartitionsToTxn, and returns NONE for each partition that is in the transaction. Other
    /// partitions get TRANSACTION_ABORTABLE, which Produce below version 11 sends as INVALID_TXN_STATE. Partitions that
    /// a pending transition adds do not count.
    ///
    /// # Errors
    /// Fails with INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED if the producer is not the current one, and with
    /// CONCURRENT_TRANSACTIONS while markers are written. After [`Transaction::kill`], fails with the code that was
    /// passed to it.
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

    /// Aborts the transaction and fences its producer if it has been open for longer than its timeout. Does nothing
    /// during a transition.
    pub fn time_out(&mut self, turn: &mut Turn<'_>) {
        if self.is_idle() && self.state.as_deref().is_some_and(|state| state.has_timed_out(turn.now)) {
            self.decide(Request::TimeOut, None, turn);
        }
    }

    /// Writes a tombstone for the id if it has had no transaction for `expiration_ms`
    /// (`transactional.id.expiration.ms`). When the tombstone is written, [`Transaction::is_vacant`] becomes true,
    /// unless a request is waiting.
    pub fn expire(&mut self, expiration_ms: i64, turn: &mut Turn<'_>) {
        let has_expired = |state: &TransactionMetadata| state.has_expired(turn.now, expiration_ms);
        if self.is_idle() && self.state.as_deref().is_some_and(has_expired) {
            self.persist(None, Vec::new(), turn);
        }
    }

    /// Returns the earliest time at which [`Transaction::tick`] has something to do, if there is one.
    pub fn next_deadline(&self) -> Option<i64> {
        let retry = match self.stage {
            Stage::Completing(at) => Some(at),
            _ => None,
        };
        self.waiters.iter().filter_map(Request::wait_until).chain(retry).min()
    }

    /// Refuses requests whose deadline has passed. Appends the last record of a transaction again if its append has
    /// failed.
    pub fn tick(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        let is_over = |until: i64| until <= now;
        let is_due = |request: &Request| request.wait_until().is_none_or(is_over);
        let (due, waiting) = std::mem::take(&mut self.waiters).into_iter().partition(is_due);
        self.waiters = waiting;
        let due: VecDeque<Request> = due;
        due.iter().for_each(|request| request.refuse(ErrorCode::CONCURRENT_TRANSACTIONS, turn));
        if matches!(self.stage, Stage::Completing(at) if is_over(at)) {
            self.complete(turn);
        }
    }

    /// Stops the state machine. From now on every request gets `code`, and late events have no effect. A record in
    /// flight may still be written, and the next coordinator will load it.
    pub fn kill(&mut self, code: ErrorCode, turn: &mut Turn<'_>) {
        match std::mem::replace(&mut self.stage, Stage::Gone(code)) {
            Stage::ProducerId(request) => request.refuse(code, turn),
            Stage::Persisting(persisting) => persisting.requests.iter().for_each(|request| request.refuse(code, turn)),
            Stage::Idle | Stage::Marking(_) | Stage::Completing(_) | Stage::Gone(_) => {}
        }
        self.waiters.drain(..).for_each(|request| request.refuse(code, turn));
    }

    /// Returns true after [`Transaction::load_unsure`], until the record is written that fences the id's clients.
    pub fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Returns the state in force, for DescribeTransactions.
    ///
    /// # Errors
    /// Fails with TRANSACTIONAL_ID_NOT_FOUND if the id is unknown, and after [`Transaction::kill`] with the code that
    /// was passed to it.
    pub fn describe(&self) -> Result<&TransactionMetadata, ErrorCode> {
        self.check_coordinator()?;
        self.state.as_deref().ok_or(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND)
    }

    /// Returns how many partitions the transaction in force has. This is 0 if there is no transaction, and after
    /// [`Transaction::kill`].
    pub fn partitions(&self) -> usize {
        self.describe().map_or(0, |state| state.partitions.len())
    }

    /// Returns the producer id and the state for ListTransactions. Returns None if the filter excludes the id, if the
    /// id is unknown, or after [`Transaction::kill`].
    pub fn list(&self, filter: &TransactionFilter<'_>, now: i64) -> Option<(i64, TransactionState)> {
        let state = self.describe().ok()?;
        filter.takes(state, now).then_some((state.producer_id, state.state))
    }

    /// Returns true if the id has no state and no transition is pending, so that the caller can drop it.
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

    /// Decides on a request, or queues it until the pending transition has ended.
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

    /// Decides on a request. `id` is a new producer id, if one was allocated. An EndTxn is allowed in any stage, and
    /// all other requests only in [`Stage::Idle`].
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

/// Returns the state in force for a record that is loaded at `now`; None if the record shows that the id has expired.
fn as_loaded(record: TransactionMetadata, now: i64) -> Option<TransactionMetadata> {
    let record = record.begun_by(now);
    match record.state {
        TransactionState::Dead => None,
        // Kafka never writes a record with this state. If there is one, its transaction counts as ongoing.
        TransactionState::PrepareEpochFence => Some(TransactionMetadata { state: TransactionState::Ongoing, ..record }),
        _ => Some(record),
    }
}

/// The filter of ListTransactions (KIP-664, KIP-1152), except for the pattern of ids, which the caller matches.
#[derive(Clone, Copy, Debug)]
pub struct TransactionFilter<'a> {
    /// The states to list. If there are none, all are listed.
    pub states: &'a [TransactionState],
    /// The producer ids to list. If there are none, all are listed.
    pub producer_ids: &'a [i64],
    /// The minimum time that a listed transaction has been running, in ms. If negative, all are listed. The start time
    /// of an id without a transaction is -1, so it counts as running since then.
    pub duration_ms: i64,
}

impl TransactionFilter<'_> {
    fn takes(&self, state: &TransactionMetadata, now: i64) -> bool {
        (self.producer_ids.is_empty() || self.producer_ids.contains(&state.producer_id))
            && (self.states.is_empty() || self.states.contains(&state.state))
            && (self.duration_ms < 0 || now.saturating_sub(state.start_ms) > self.duration_ms)
    }
}
