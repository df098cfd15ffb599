//! The coordinator of transactions: finds a transactional id, locks it, puts an event to its machine, and carries its effects out.
//!
//! Not the decisions, which are [`fullbore_rules::transaction`]'s. Ids are kept in `__transaction_state`, by way of
//! [`coordinator`](crate::coordinator). No lock is held across an await: while a record is being replicated, the id takes further events.
//!
//! Invariant: each request gets one answer: the machine's, or that of the shard's end.

mod carry;
mod entry;
mod lane;
mod load;
mod markers;
mod offsets;
mod peers;
mod records;
mod room;
mod timers;
mod verifications;
mod verify;

pub use entry::PendingAnswer;
pub use markers::TURN as MARKERS_A_TURN;
pub use verifications::TRANSACTIONS_MAX as VERIFIED_AT_ONCE;

use crate::coordinator::{CoordinatorTopic, InternalTopicSettings, MarkedCoordinator, Shard};
use crate::partitions::Partitions;
use entry::{Entry, EntryState};
use fullbore_config::{BrokerConfig, TransactionConfig};
use fullbore_control::{Control, TRANSACTION_STATE};
use fullbore_host::files::now_ms;
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_rules::transaction::{
    Effect, ProducerIdAndEpoch, RequestTicket, TopicPartition, Transaction, TransactionFilter, TransactionMetadata,
    TransactionState, Turn,
};
use fullbore_wire::{ErrorCode, Text};
use parking_lot::Mutex;
use peers::Peers;
use room::TransactionsRoom;
use std::collections::HashMap;
use std::sync::Arc;

/// The longest that a client's request waits for the end of the transaction before, in ms. Kafka's client pauses as long at CONCURRENT_TRANSACTIONS.
pub const WAIT_MS: i64 = 20;
/// The same of a broker's request for a batch, whose client pauses longer (`add.partitions.to.txn.retry.backoff.max.ms` of Kafka's brokers).
pub const BATCH_WAIT_MS: i64 = 100;
/// The longest that a broker's request waits for one of its transactions, in ms: others wait for the same answer.
pub const BATCH_ANSWER_MS: u64 = 1_000;

/// Transactional ids that this broker coordinates.
pub struct Transactions {
    ids: Mutex<HashMap<Text, Arc<Entry>>>,
    /// `__transaction_state`.
    topic: CoordinatorTopic,
    control: Control,
    logs: Arc<Partitions>,
    /// Other brokers of the cluster.
    peers: Arc<Peers>,
    node_id: i32,
    /// The coordinator of `__consumer_offsets`.
    offsets: Arc<dyn MarkedCoordinator>,
    config: TransactionConfig,
    /// Room for ids, and for the partitions of all transactions.
    room: TransactionsRoom,
    /// The line of an id that is one too many.
    uncounted: LogRateLimit,
    /// The line of transactions that have all the room.
    crowded: LogRateLimit,
    /// The line of a record that could not be kept.
    unkept: LogRateLimit,
    /// The line of a marker that could not be written.
    unmarked: LogRateLimit,
}

/// Description of a transactional id, for ListTransactions.
#[derive(Clone, Debug)]
pub struct ListedTransaction {
    /// The id.
    pub transactional_id: Text,
    /// Its producer.
    pub producer_id: i64,
    /// The state in force.
    pub state: TransactionState,
}

/// Counts of the transactional ids that a broker coordinates.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransactionCounts {
    /// Ids by state, in the order of [`TransactionCounts::STATES`].
    pub by_state: [usize; TransactionCounts::STATES.len()],
    /// Age of the eldest transaction that is not complete, in ms; 0 without one.
    pub oldest_open_ms: i64,
}

impl TransactionCounts {
    /// States that an id on record can be in.
    pub const STATES: [TransactionState; 6] = [
        TransactionState::Empty,
        TransactionState::Ongoing,
        TransactionState::PrepareCommit,
        TransactionState::PrepareAbort,
        TransactionState::CompleteCommit,
        TransactionState::CompleteAbort,
    ];
}

impl Transactions {
    /// Creates the coordinator, which knows no ids yet: see [`Transactions::start`]. `offsets` has `__consumer_offsets`.
    pub fn new(
        config: &BrokerConfig,
        control: Control,
        logs: Arc<Partitions>,
        offsets: Arc<dyn MarkedCoordinator>,
    ) -> Arc<Transactions> {
        let (peers, node_id) = (Arc::new(Peers::new(config, control.clone())), config.node.id);
        let config = config.transactions.clone();
        let settings = InternalTopicSettings {
            name: TRANSACTION_STATE,
            partitions: config.log.partitions,
            replication_factor: config.log.replication_factor,
            compression: fullbore_wire::batch::Compression::None,
            configs: config.log.configs(control.beats().is_some()),
        };
        Arc::new(Transactions {
            ids: Mutex::default(),
            topic: CoordinatorTopic::new(settings, control.clone(), Arc::clone(&logs)),
            control,
            logs,
            peers,
            node_id,
            offsets,
            config,
            room: TransactionsRoom::default(),
            uncounted: LogRateLimit::default(),
            crowded: LogRateLimit::default(),
            unkept: LogRateLimit::default(),
            unmarked: LogRateLimit::default(),
        })
    }

    /// Waits a while until the shards of these ids are loaded. Where an id may begin, the topic is created first if there is none.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE: the topic cannot be created.
    pub async fn prepare<'a>(
        self: &Arc<Self>,
        creates: bool,
        ids: impl IntoIterator<Item = &'a str, IntoIter: Send> + Send,
    ) -> Result<(), ErrorCode> {
        CoordinatorTopic::prepare(self, creates, ids).await
    }

    /// Puts an event to an id, which begins with it if it is not known. The event is given the ticket by which its answer is awaited.
    ///
    /// # Errors
    /// COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE.
    pub fn put_to(
        self: &Arc<Self>,
        id: &str,
        event: impl FnOnce(&mut Transaction, RequestTicket, &mut Turn<'_>),
    ) -> Result<PendingAnswer, ErrorCode> {
        loop {
            let entry = self.known_or_new(id)?;
            let mut state = entry.lock();
            // Its shard may have been left between the search and the lock; it is not in the table then.
            if state.is_gone {
                continue;
            }
            let (ticket, pending) = state.ticket();
            let effects = self.turn(&mut state, |transaction, turn| event(transaction, ticket, turn));
            self.follow(&entry, state, effects);
            return Ok(pending);
        }
    }

    /// Looks at an id.
    ///
    /// # Errors
    /// TRANSACTIONAL_ID_NOT_FOUND; the errors of its shard.
    pub fn look<T>(&self, id: &str, look: impl FnOnce(&Transaction) -> Result<T, ErrorCode>) -> Result<T, ErrorCode> {
        self.serving(id)?;
        let entry = self.ids.lock().get(id).cloned().ok_or(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND)?;
        let state = entry.lock();
        look(&state.transaction)
    }

    /// Returns for each partition if it is in the transaction of this producer: NONE, or TRANSACTION_ABORTABLE.
    ///
    /// # Errors
    /// INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS; the errors of the id's shard.
    pub fn verify_partitions(
        &self,
        id: &str,
        producer: ProducerIdAndEpoch,
        partitions: &[TopicPartition],
    ) -> Result<Vec<ErrorCode>, ErrorCode> {
        let found = self.look(id, |transaction| {
            let found = transaction.verify_partitions(producer, partitions)?;
            Ok(found.into_iter().map(|(_, code)| code).collect())
        });
        found.map_err(|code| match code {
            ErrorCode::TRANSACTIONAL_ID_NOT_FOUND => ErrorCode::INVALID_PRODUCER_ID_MAPPING,
            code => code,
        })
    }

    /// Returns the state in force of an id.
    ///
    /// # Errors
    /// As [`Transactions::look`].
    pub fn describe(&self, id: &str) -> Result<TransactionMetadata, ErrorCode> {
        self.look(id, |transaction| transaction.describe().cloned())
    }

    /// Returns the ids that the filter takes and whose name `matches`. Takes its time where there are many.
    ///
    /// # Errors
    /// COORDINATOR_LOAD_IN_PROGRESS while a shard is loaded.
    pub fn list(
        &self,
        filter: &TransactionFilter<'_>,
        matches: impl Fn(&str) -> bool,
    ) -> Result<Vec<ListedTransaction>, ErrorCode> {
        if self.topic.read().as_ref().is_some_and(|topic| topic.is_loading()) {
            return Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
        }
        let now = now_ms();
        // A pattern takes its time, and there may be very many ids.
        let entries: Vec<_> = self.ids.lock().values().cloned().collect();
        let listed = |entry: &Arc<Entry>| {
            let (producer_id, state) = entry.lock().transaction.list(filter, now)?;
            Some(ListedTransaction { transactional_id: entry.id.clone(), producer_id, state })
        };
        Ok(entries.iter().filter(|entry| matches(&entry.id)).filter_map(listed).collect())
    }

    /// Counts the ids. Waits for the lock of each.
    pub fn counts(&self, now_ms: i64) -> TransactionCounts {
        let entries: Vec<_> = self.ids.lock().values().cloned().collect();
        let mut counts = TransactionCounts::default();
        for entry in entries {
            let state = entry.lock();
            let Ok(found) = state.transaction.describe() else { continue };
            if let Some(at) = TransactionCounts::STATES.iter().position(|state| *state == found.state) {
                counts.by_state[at] += 1;
            }
            if found.state == TransactionState::Ongoing || found.state.is_prepared() {
                counts.oldest_open_ms = counts.oldest_open_ms.max(now_ms.saturating_sub(found.start_ms));
            }
        }
        counts
    }

    /// Returns the settings.
    pub fn config(&self) -> &TransactionConfig {
        &self.config
    }

    /// Gives an event to the machine of an id, and returns what follows.
    fn turn(&self, state: &mut EntryState, event: impl FnOnce(&mut Transaction, &mut Turn<'_>)) -> Vec<Effect> {
        let (mut effects, mut settings) = (Vec::new(), self.config.rules);
        if self.room.is_full() {
            settings.partitions_max = settings.partitions_max.min(state.transaction.partitions());
            if let Some(left_out) = self.crowded.due() {
                tracing::warn!(left_out, "open transactions have too many partitions together: no more can be added");
            }
        }
        event(&mut state.transaction, &mut Turn { settings: &settings, now: now_ms(), effects: &mut effects });
        state.share.set(state.transaction.partitions());
        effects
    }

    /// Returns the shard that an id is in.
    ///
    /// # Errors
    /// COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE.
    fn serving(&self, id: &str) -> Result<Arc<Shard>, ErrorCode> {
        self.topic.read().as_ref().ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?.serving(id).cloned()
    }

    /// The topic stays meanwhile: what leaves a shard takes out of service the ids in it, and none may come into it after that.
    fn known_or_new(&self, id: &str) -> Result<Arc<Entry>, ErrorCode> {
        let topic = self.topic.read();
        let shard = topic.as_ref().ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?.serving(id)?;
        let mut ids = self.ids.lock();
        if let Some(entry) = ids.get(id) {
            return Ok(Arc::clone(entry));
        }
        if ids.len() >= self.config.ids_max || !self.room.has_room_for(id) {
            if let Some(left_out) = self.uncounted.due() {
                tracing::warn!(
                    ids = ids.len(),
                    left_out,
                    "a new transactional id is refused: fullbore.transactional.ids.max, or 128 MiB of them"
                );
            }
            return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE);
        }
        // A copy: the id came in a frame.
        let id = Text::from(id);
        let transaction = Transaction::new(shard.leader_epoch());
        let entry = Entry::new(id.clone(), transaction, Arc::clone(shard), &self.room);
        ids.insert(id, Arc::clone(&entry));
        Ok(entry)
    }

    /// Takes an id out of service; every request about it is answered with `code`.
    fn kill(&self, entry: &Arc<Entry>, code: ErrorCode) {
        let mut state = entry.lock();
        state.is_gone = true;
        let effects = self.turn(&mut state, |transaction, turn| transaction.kill(code, turn));
        for effect in effects {
            if let Effect::Answer(ticket, answer) = effect {
                state.answer(ticket, answer);
            }
        }
        drop(state);
        self.forget(entry);
    }

    /// Removes an id from the table, unless another entry has its place.
    fn forget(&self, entry: &Arc<Entry>) {
        let mut ids = self.ids.lock();
        if ids.get(&entry.id).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            ids.remove(&entry.id);
        }
    }
}
