//! Coordinator of transactions: finds a transactional id, locks it, passes an event to its state machine, and carries
//! out the effects.
//!
//! Not here: the decisions ([`fullbore_rules::transaction`]). Ids are stored in `__transaction_state`, through
//! [`coordinator`](crate::coordinator). No lock is held across an await: while a record is replicated, the id takes
//! further events.
//!
//! Invariant: each request gets one answer: that of the machine, or an error once its shard is left.

mod carry;
mod entry;
mod flush;
mod load;
mod markers;
mod offsets;
mod peer_queue;
mod peers;
mod records;
mod room;
mod tally;
#[cfg(test)]
mod tests;
mod timers;
mod unknown;
mod unsettled;
mod verifications;
mod verify;

pub use markers::TURN as MARKERS_A_TURN;
pub use unsettled::Unsettled;
pub use verifications::TRANSACTIONS_MAX as VERIFIED_AT_ONCE;

use crate::coordinator::{
    CoordinatorTopic, InternalTopicSettings, MarkedCoordinator, PendingAnswer, Shard, Status, Unwritten,
};
use crate::partitions::Partitions;
use entry::{Entry, EntryState};
use fullbore_config::{BrokerConfig, TransactionConfig};
use fullbore_control::{Control, TRANSACTION_STATE, TRANSACTION_VERSION};
use fullbore_host::files::now_ms;
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_host::metrics::Metrics;
use fullbore_host::task;
use fullbore_rules::transaction::{
    AddPartitions, Effect, ProducerIdAndEpoch, RequestTicket, TopicPartition, Transaction, TransactionAnswer,
    TransactionFilter, TransactionMetadata, TransactionSettings, TransactionState, TransactionVersion, Turn,
};
use fullbore_wire::{ErrorCode, Text};
use parking_lot::Mutex;
use peers::Peers;
use room::TransactionsRoom;
use std::collections::HashMap;
use std::sync::Arc;
use tally::Tally;

/// Longest wait of a client's request for the end of the previous transaction, in ms. Kafka's client pauses for the
/// same time after CONCURRENT_TRANSACTIONS.
pub const WAIT_MS: i64 = 20;
/// Longest wait of a batch for the end of the previous transaction, in ms. Its client would pause longer
/// (`add.partitions.to.txn.retry.backoff.max.ms` of Kafka's brokers).
pub const BATCH_WAIT_MS: i64 = 100;
/// Longest wait of one transaction in a request of another broker, in ms. Other transactions wait for the same
/// response.
pub const BATCH_ANSWER_MS: u64 = 1_000;
/// Longest wait for the end of the previous transaction while its markers of diskless partitions are not written, in
/// ms. A marker waits for a PUT of 100 to 200 ms, and for a second one if the first gets no response.
const DISKLESS_WAIT_MS: i64 = 1_000;

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
    /// Memory budget for ids, and for the partitions of all transactions.
    room: TransactionsRoom,
    /// Rate limit of the log line for an id past the limit.
    uncounted: LogRateLimit,
    /// Rate limit of the log line for transactions that have used up the budget.
    crowded: LogRateLimit,
    /// Rate limit of the log line for a record that could not be appended.
    unkept: LogRateLimit,
    /// Rate limit of the log line for a marker that could not be written.
    unmarked: LogRateLimit,
    /// Counts of the ids.
    tally: Tally,
    metrics: Metrics,
    /// Marker file for transactions that may have lost their state.
    unsettled: Unsettled,
}

/// Description of a transactional id, for ListTransactions.
#[derive(Clone, Debug)]
pub struct ListedTransaction {
    /// The id.
    pub transactional_id: Text,
    /// Producer of the transaction.
    pub producer_id: i64,
    /// State in force.
    pub state: TransactionState,
}

/// Counts of the transactional ids that a broker coordinates.
#[derive(Clone, Debug, Default)]
pub struct TransactionCounts {
    /// Ids by state, in the order of [`TransactionCounts::STATES`].
    pub by_state: [usize; TransactionCounts::STATES.len()],
    /// Oldest transaction that is not complete.
    pub oldest_open: Option<OldestOpen>,
}

/// Oldest transaction that is open, or whose markers are not all written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldestOpen {
    /// Transactional id.
    pub transactional_id: Text,
    /// Time since the transaction began, in ms.
    pub age_ms: i64,
}

impl TransactionCounts {
    /// States that a recorded id can have.
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
    /// Creates the coordinator without ids; [`Transactions::start`] loads them. `offsets` coordinates
    /// `__consumer_offsets`.
    pub fn new(
        config: &BrokerConfig,
        (control, logs, metrics): (Control, Arc<Partitions>, Metrics),
        offsets: Arc<dyn MarkedCoordinator>,
        unsettled: Unsettled,
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
            tally: Tally::default(),
            metrics,
            unsettled,
        })
    }

    /// Waits for a limited time until the shards of `ids` are loaded. With `creates`, first creates a missing topic.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE if the topic cannot be created.
    pub async fn prepare<'a>(
        self: &Arc<Self>,
        creates: bool,
        ids: impl IntoIterator<Item = &'a str, IntoIter: Send> + Send,
    ) -> Result<(), ErrorCode> {
        CoordinatorTopic::prepare(self, creates, ids).await
    }

    /// Passes an event to an id, which is created if it is unknown. The event gets the ticket of its answer. `behind`
    /// is the [`Unwritten`] of the connection that sends the answer, if there is one: it carries out the remaining
    /// effects after the response.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE if the id is new and the limit of ids is reached; the code of `InternalTopic::serving`
    /// if the id's shard does not serve here.
    pub fn put_to(
        self: &Arc<Self>,
        id: &str,
        behind: Option<&Unwritten>,
        event: impl FnOnce(&mut Transaction, RequestTicket, &mut Turn<'_>),
    ) -> Result<PendingAnswer<TransactionAnswer>, ErrorCode> {
        loop {
            let entry = self.known_or_new(id)?;
            let mut state = entry.lock();
            // The shard may have been left between the search and the lock, and the id is then out of the table.
            if state.is_gone {
                continue;
            }
            let (ticket, pending) = state.ticket();
            let effects = self.turn(&mut state, |transaction, turn| event(transaction, ticket, turn));
            match (self.follow_here(&entry, state, effects), behind) {
                (None, _) => {}
                (Some(rest), Some(behind)) if pending.is_answered() => behind.follow(rest),
                (Some(rest), _) => drop(task::spawn(rest)),
            }
            return Ok(pending);
        }
    }

    /// Returns the time, in ms, at which a request stops waiting for the previous transaction of an id. It is `wait_ms`
    /// from now, or later if markers of diskless partitions are to be written.
    pub fn wait_until(&self, id: &str, wait_ms: i64) -> Option<i64> {
        let awaits_store = || {
            let image = self.control.image();
            let is_diskless = |name: &str| image.topic(name).is_some_and(|topic| topic.config.diskless);
            let lacks_marker = |transaction: &Transaction| {
                let state = transaction.describe()?;
                // Partitions of a topic are adjacent.
                let mut topics: Vec<_> = state.partitions.iter().map(|partition| &partition.topic).collect();
                topics.dedup();
                // An InitProducerId aborts the open transaction, which then has markers to come.
                let has_markers_to_come = state.state.is_prepared() || state.state == TransactionState::Ongoing;
                Ok(has_markers_to_come && topics.into_iter().any(|topic| is_diskless(topic)))
            };
            self.inspect(id, lacks_marker).unwrap_or(false)
        };
        let wait_ms = if awaits_store() { wait_ms.max(DISKLESS_WAIT_MS) } else { wait_ms };
        Some(now_ms().saturating_add(wait_ms))
    }

    /// Adds partitions to the transaction of an id. Returns once the addition is recorded.
    ///
    /// # Errors
    /// The error code of the AddPartitionsToTxn response, if the transaction or the id's shard refuses the addition.
    pub async fn add_partitions(self: &Arc<Self>, id: &str, added: AddPartitions) -> Result<(), ErrorCode> {
        let pending =
            self.put_to(id, None, |transaction, ticket, turn| transaction.add_partitions(added, ticket, turn))?;
        match pending.answer().await? {
            TransactionAnswer::AddPartitions(added) => added,
            _ => Err(ErrorCode::UNKNOWN_SERVER_ERROR),
        }
    }

    /// Returns the result of `read` on the machine of an id.
    ///
    /// # Errors
    /// TRANSACTIONAL_ID_NOT_FOUND if the id is unknown; the code of
    /// `InternalTopic::serving` if the id's shard does not serve here; the code that `read` returns.
    pub fn inspect<T>(
        &self,
        id: &str,
        read: impl FnOnce(&Transaction) -> Result<T, ErrorCode>,
    ) -> Result<T, ErrorCode> {
        self.serving(id)?;
        let entry = self.ids.lock().get(id).cloned().ok_or(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND)?;
        let state = entry.lock();
        read(&state.transaction)
    }

    /// Returns the leader epoch in which this broker coordinates an id. Callers read it before an answer about the id,
    /// so that the epoch is never newer than the answer.
    ///
    /// # Errors
    /// The code of `InternalTopic::serving` if the id's shard does not serve here.
    pub fn coordinator_epoch(&self, id: &str) -> Result<i32, ErrorCode> {
        Ok(self.serving(id)?.leader_epoch())
    }

    /// Returns NONE for each partition in the transaction of this producer, and TRANSACTION_ABORTABLE for others.
    ///
    /// # Errors
    /// INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED or CONCURRENT_TRANSACTIONS by the state of the id; the code of
    /// `InternalTopic::serving` if the id's shard does not serve here.
    pub fn verify_partitions(
        &self,
        id: &str,
        producer: ProducerIdAndEpoch,
        partitions: &[TopicPartition],
    ) -> Result<Vec<ErrorCode>, ErrorCode> {
        let found = self.inspect(id, |transaction| {
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
    /// The error code of [`Transactions::inspect`] if the id is unknown here.
    pub fn describe(&self, id: &str) -> Result<TransactionMetadata, ErrorCode> {
        self.inspect(id, |transaction| transaction.describe().cloned())
    }

    /// Returns the ids that pass `filter` and for which `matches` returns true. Takes long if there are many.
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
        // The table is not locked below: a pattern may be slow, and there may be very many ids.
        let entries: Vec<_> = self.ids.lock().values().cloned().collect();
        let listed = |entry: &Arc<Entry>| {
            let (producer_id, state) = entry.lock().transaction.list(filter, now)?;
            Some(ListedTransaction { transactional_id: entry.id.clone(), producer_id, state })
        };
        Ok(entries.iter().filter(|entry| matches(&entry.id)).filter_map(listed).collect())
    }

    /// Returns the served partitions of `__transaction_state`, each with its leader epoch. If a partition is served
    /// both before and after a pass over the ids, the pass has seen all ids of the partition.
    pub fn served(&self) -> Vec<(i32, i32)> {
        let topic = self.topic.read();
        let shards = topic.iter().flat_map(|topic| topic.shards());
        let serving = shards.filter(|shard| shard.status() == Status::Serving);
        serving.map(|shard| (shard.partition().index(), shard.leader_epoch())).collect()
    }

    /// Returns the counts of the ids, without a pass over them.
    pub fn counts(&self, now_ms: i64) -> TransactionCounts {
        self.tally.counts(now_ms)
    }

    /// Returns the settings.
    pub fn config(&self) -> &TransactionConfig {
        &self.config
    }

    /// Returns the settings of the machines at this moment: the level of `transaction.version` may change.
    fn settings(&self) -> TransactionSettings {
        let level = self.control.image().feature_level(&TRANSACTION_VERSION);
        let server_version = TransactionVersion::from_level(level).unwrap_or(self.config.rules.server_version);
        TransactionSettings { server_version, ..self.config.rules }
    }

    /// Returns true if the coordinator verifies a batch of an older client before it begins a transaction in a
    /// partition.
    fn verifies_partitions(&self) -> bool {
        self.control.image().live().verifies_partitions
    }

    /// Passes an event to the machine of an id, and returns the effects.
    fn turn(&self, state: &mut EntryState, event: impl FnOnce(&mut Transaction, &mut Turn<'_>)) -> Vec<Effect> {
        let (mut effects, mut settings) = (Vec::new(), self.settings());
        if self.room.is_full() {
            settings.partitions_max = settings.partitions_max.min(state.transaction.partitions());
            if let Some(left_out) = self.crowded.due() {
                tracing::warn!(
                    left_out,
                    "cannot add partitions to transactions: all open transactions together have too many"
                );
            }
        }
        event(&mut state.transaction, &mut Turn { settings: &settings, now: now_ms(), effects: &mut effects });
        state.share.set(state.transaction.partitions());
        effects
    }

    /// Returns the shard of an id, if it serves.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE if `__transaction_state` does not exist; the code of `InternalTopic::serving` if the
    /// id's shard does not serve here.
    fn serving(&self, id: &str) -> Result<Arc<Shard>, ErrorCode> {
        self.topic.read().as_ref().ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?.serving(id).cloned()
    }

    /// Returns the entry of an id, and creates it if the id is unknown. Holds the topic's lock, because no id may be
    /// added to a shard that was left.
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
                    "cannot add a transactional id: raise fullbore.transactional.ids.max, or use shorter ids, of which 128 MiB fit"
                );
            }
            return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE);
        }
        // A copy, since the id shares memory with its frame.
        let id = Text::from(id);
        let transaction = Transaction::new(shard.leader_epoch());
        let entry = Entry::new(id.clone(), transaction, Arc::clone(shard), &self.room);
        ids.insert(id, Arc::clone(&entry));
        Ok(entry)
    }

    /// Takes an id out of service, and answers every request about it with `code`.
    fn kill(&self, entry: &Arc<Entry>, code: ErrorCode) {
        let mut state = entry.lock();
        state.is_gone = true;
        let effects = self.turn(&mut state, |transaction, turn| transaction.kill(code, turn));
        for effect in effects {
            if let Effect::Answer(ticket, answer) = effect {
                state.answer(ticket, answer);
            }
        }
        let known = &mut *state;
        self.tally.count(&entry.id, &mut known.counted, &known.transaction);
        drop(state);
        self.forget(entry);
    }

    /// Removes an id from the table, unless another entry has replaced it.
    fn forget(&self, entry: &Arc<Entry>) {
        let mut ids = self.ids.lock();
        if ids.get(&entry.id).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            ids.remove(&entry.id);
        }
    }
}
