//! The coordinator of transactions. It finds and locks a transactional id, passes an event to the id's state machine,
//! and carries out the effects. The state machine is in [`fullbore_rules::transaction`].
//!
//! Ids are stored in `__transaction_state` through [`coordinator`](crate::coordinator). No lock is held across an
//! await, so an id accepts further events while its record is replicated. Each request gets exactly one answer: that of
//! the state machine, or an error if this broker leaves the shard.

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
use fullbore_host::clock::SteadyClock;
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

/// How many milliseconds a client's request waits for the previous transaction to end. Kafka's client would retry after
/// the same time if it got CONCURRENT_TRANSACTIONS.
pub const WAIT_MS: i64 = 20;
/// How many milliseconds a batch waits for the previous transaction to end, as in Kafka
/// (`add.partitions.to.txn.retry.backoff.max.ms`). If the batch were refused, its client would retry only after a
/// longer pause.
pub const BATCH_WAIT_MS: i64 = 100;
/// Maximum number of milliseconds that one transaction takes in a request of another broker, because the other
/// transactions in the request wait for the same response.
pub const BATCH_ANSWER_MS: u64 = 1_000;
/// How many milliseconds a request waits for the previous transaction if the markers of diskless partitions are not
/// written yet. Such a marker waits for a PUT of 100 to 200 ms, and for a second PUT if the first gets no response.
const DISKLESS_WAIT_MS: i64 = 1_000;

/// The transactional ids that this broker coordinates.
pub struct Transactions {
    ids: Mutex<HashMap<Text, Arc<Entry>>>,
    /// The internal topic `__transaction_state`.
    topic: CoordinatorTopic,
    control: Control,
    logs: Arc<Partitions>,
    /// The other brokers of the cluster.
    peers: Arc<Peers>,
    node_id: i32,
    /// The coordinator of `__consumer_offsets`.
    offsets: Arc<dyn MarkedCoordinator>,
    config: TransactionConfig,
    /// The memory budget for ids and for the partitions of their transactions.
    room: TransactionsRoom,
    clock: SteadyClock,
    /// Limits how often it is logged that an id was refused because there are too many.
    uncounted: LogRateLimit,
    /// Limits how often it is logged that the budget for partitions is used up.
    crowded: LogRateLimit,
    /// Limits how often it is logged that a record could not be appended.
    unkept: LogRateLimit,
    /// Limits how often it is logged that a marker could not be written.
    unmarked: LogRateLimit,
    /// Counts the ids by state.
    tally: Tally,
    metrics: Metrics,
    /// Stores on the disk whether transactions may have lost their state.
    unsettled: Unsettled,
}

/// A transactional id in the result of ListTransactions.
#[derive(Clone, Debug)]
pub struct ListedTransaction {
    /// The id.
    pub transactional_id: Text,
    /// The producer of the transaction.
    pub producer_id: i64,
    /// The present state.
    pub state: TransactionState,
}

/// How many transactional ids a broker coordinates, and the oldest of their transactions.
#[derive(Clone, Debug, Default)]
pub struct TransactionCounts {
    /// How many ids are in each state, in the order of [`TransactionCounts::STATES`].
    pub by_state: [usize; TransactionCounts::STATES.len()],
    /// The oldest transaction that is not complete.
    pub oldest_open: Option<OldestOpen>,
}

/// The oldest transaction that is open or still lacks markers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldestOpen {
    /// Transactional id.
    pub transactional_id: Text,
    /// How many milliseconds ago the transaction began.
    pub age_ms: i64,
}

impl TransactionCounts {
    /// The states that the record of an id may have.
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
    /// Creates a coordinator without ids. [`Transactions::start`] loads them. `offsets` is the coordinator of
    /// `__consumer_offsets`.
    pub fn new(
        config: &BrokerConfig,
        (control, logs, metrics): (Control, Arc<Partitions>, Metrics),
        offsets: Arc<dyn MarkedCoordinator>,
        unsettled: Unsettled,
    ) -> Arc<Transactions> {
        Transactions::by(SteadyClock::start(), config, (control, logs, metrics), offsets, unsettled)
    }

    fn by(
        clock: SteadyClock,
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
            configs: config.log.configs(control.heartbeats().is_some()),
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
            clock,
            uncounted: LogRateLimit::default(),
            crowded: LogRateLimit::default(),
            unkept: LogRateLimit::default(),
            unmarked: LogRateLimit::default(),
            tally: Tally::default(),
            metrics,
            unsettled,
        })
    }

    /// Waits for a limited time until the shards of `ids` are loaded. With `creates`, first creates the topic if it is
    /// missing.
    ///
    /// # Errors
    /// Fails with COORDINATOR_NOT_AVAILABLE if the topic cannot be created.
    pub async fn prepare<'a>(
        self: &Arc<Self>,
        creates: bool,
        ids: impl IntoIterator<Item = &'a str, IntoIter: Send> + Send,
    ) -> Result<(), ErrorCode> {
        CoordinatorTopic::prepare(self, creates, ids).await
    }

    /// Passes an event to an id, which is created if it is unknown. The event gets the ticket under which the id will
    /// send its answer. If a connection sends the answer to a client, `behind` is the [`Unwritten`] of that connection,
    /// which carries out the remaining effects after the response.
    ///
    /// # Errors
    /// Fails as `InternalTopic::serving` does. Fails with COORDINATOR_NOT_AVAILABLE if there are too many ids.
    pub fn put_to(
        self: &Arc<Self>,
        id: &str,
        behind: Option<&Unwritten>,
        event: impl FnOnce(&mut Transaction, RequestTicket, &mut Turn<'_>),
    ) -> Result<PendingAnswer<TransactionAnswer>, ErrorCode> {
        loop {
            let entry = self.known_or_new(id)?;
            let mut state = entry.lock();
            // If the id was removed between the lookup and the lock, for example because its shard was left, looks it
            // up again.
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

    /// Returns the present time for deadlines and timeouts, from a clock that is never set back.
    pub fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Returns the time on the clock of [`Transactions::now_ms`] until which a request may wait for the previous
    /// transaction of an id. This is `wait_ms` from now, or later if that transaction has yet to write markers of
    /// diskless partitions.
    pub fn wait_until(&self, id: &str, wait_ms: i64) -> Option<i64> {
        let awaits_store = || {
            let image = self.control.image();
            let is_diskless = |name: &str| image.topic(name).is_some_and(|topic| topic.config.diskless);
            let lacks_marker = |transaction: &Transaction| {
                let state = transaction.describe()?;
                // Partitions of the same topic are neighbours in this list, so `dedup` leaves one entry for each topic.
                let mut topics: Vec<_> = state.partitions.iter().map(|partition| &partition.topic).collect();
                topics.dedup();
                // An open transaction counts as well, because InitProducerId aborts it and its markers must then be
                // written.
                let has_markers_to_come = state.state.is_prepared() || state.state == TransactionState::Ongoing;
                Ok(has_markers_to_come && topics.into_iter().any(|topic| is_diskless(topic)))
            };
            self.inspect(id, lacks_marker).unwrap_or(false)
        };
        let wait_ms = if awaits_store() { wait_ms.max(DISKLESS_WAIT_MS) } else { wait_ms };
        Some(self.now_ms().saturating_add(wait_ms))
    }

    /// Adds partitions to the transaction of an id. Returns once the new partitions are recorded.
    ///
    /// # Errors
    /// Returns the errors of AddPartitionsToTxn, and those of `InternalTopic::serving`.
    pub async fn add_partitions(self: &Arc<Self>, id: &str, added: AddPartitions) -> Result<(), ErrorCode> {
        let pending =
            self.put_to(id, None, |transaction, ticket, turn| transaction.add_partitions(added, ticket, turn))?;
        match pending.answer().await? {
            TransactionAnswer::AddPartitions(added) => added,
            _ => Err(ErrorCode::UNKNOWN_SERVER_ERROR),
        }
    }

    /// Calls `read` with the state machine of an id and returns its result.
    ///
    /// # Errors
    /// Fails with TRANSACTIONAL_ID_NOT_FOUND if the id does not exist. Also returns the errors of
    /// `InternalTopic::serving` and of `read`.
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

    /// Returns the leader epoch in which this broker coordinates an id. A caller that needs the epoch of an answer
    /// calls this before it requests the answer, so that the epoch is never newer than the answer.
    ///
    /// # Errors
    /// Fails as `InternalTopic::serving` does.
    pub fn coordinator_epoch(&self, id: &str) -> Result<i32, ErrorCode> {
        Ok(self.serving(id)?.leader_epoch())
    }

    /// Checks if partitions are part of this producer's transaction. Returns NONE for each partition that is, and
    /// TRANSACTION_ABORTABLE for the others.
    ///
    /// # Errors
    /// Fails with INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED or CONCURRENT_TRANSACTIONS, depending on the state of
    /// the id. Also fails as `InternalTopic::serving` does.
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

    /// Returns the present state of an id. The times in it are converted to those of the system's clock.
    ///
    /// # Errors
    /// Fails as [`Transactions::inspect`] does.
    pub fn describe(&self, id: &str) -> Result<TransactionMetadata, ErrorCode> {
        let found = self.inspect(id, |transaction| transaction.describe().cloned())?;
        Ok(found.shifted(self.clock.ahead_ms()))
    }

    /// Returns the ids that pass `filter` and for which `matches` returns true. Takes long if there are many ids.
    ///
    /// # Errors
    /// Fails with COORDINATOR_LOAD_IN_PROGRESS while any shard is loading.
    pub fn list(
        &self,
        filter: &TransactionFilter<'_>,
        matches: impl Fn(&str) -> bool,
    ) -> Result<Vec<ListedTransaction>, ErrorCode> {
        if self.topic.read().as_ref().is_some_and(|topic| topic.is_loading()) {
            return Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS);
        }
        let now = self.now_ms();
        // The table is locked only to copy the entries, because there may be very many ids and the pattern may be slow.
        let entries: Vec<_> = self.ids.lock().values().cloned().collect();
        let listed = |entry: &Arc<Entry>| {
            let (producer_id, state) = entry.lock().transaction.list(filter, now)?;
            Some(ListedTransaction { transactional_id: entry.id.clone(), producer_id, state })
        };
        Ok(entries.iter().filter(|entry| matches(&entry.id)).filter_map(listed).collect())
    }

    /// Returns the partitions of `__transaction_state` that this broker serves, with their leader epochs. A caller that
    /// reads all ids calls this before and after. It has seen every id of a partition that both results contain.
    pub fn served(&self) -> Vec<(i32, i32)> {
        let topic = self.topic.read();
        let shards = topic.iter().flat_map(|topic| topic.shards());
        let serving = shards.filter(|shard| shard.status() == Status::Serving);
        serving.map(|shard| (shard.partition().index(), shard.leader_epoch())).collect()
    }

    /// Returns the number of ids and the sum of their lengths in bytes.
    pub fn ids_size(&self) -> (usize, usize) {
        (self.ids.lock().len(), self.room.id_bytes())
    }

    /// Returns how many ids are in each state, and the oldest transaction. Does not read all ids, because the counts
    /// are updated with each event.
    pub fn counts(&self) -> TransactionCounts {
        self.tally.counts(self.now_ms())
    }

    /// Returns the settings.
    pub fn config(&self) -> &TransactionConfig {
        &self.config
    }

    /// Returns the settings of the state machines, with the present level of `transaction.version`.
    fn settings(&self) -> TransactionSettings {
        let level = self.control.image().feature_level(&TRANSACTION_VERSION);
        let server_version = TransactionVersion::from_level(level).unwrap_or(self.config.rules.server_version);
        TransactionSettings { server_version, ..self.config.rules }
    }

    /// Returns true if older clients' batches must be verified with the coordinator before they begin a transaction in
    /// a partition.
    fn verifies_partitions(&self) -> bool {
        self.control.image().live().verifies_partitions
    }

    /// Passes an event to the state machine of an id and returns the effects.
    fn turn(&self, state: &mut EntryState, event: impl FnOnce(&mut Transaction, &mut Turn<'_>)) -> Vec<Effect> {
        let (mut effects, mut settings) = (Vec::new(), self.settings());
        if self.room.is_full() {
            settings.partitions_max = settings.partitions_max.min(state.transaction.partitions());
            if let Some(left_out) = self.crowded.due() {
                tracing::warn!(
                    left_out,
                    "cannot add partitions to transactions: the open transactions of this broker have two million \
                     partitions, the maximum"
                );
            }
        }
        event(&mut state.transaction, &mut Turn { settings: &settings, now: self.now_ms(), effects: &mut effects });
        state.share.set(state.transaction.partitions());
        effects
    }

    /// Returns the shard of an id, if it is serving.
    ///
    /// # Errors
    /// Fails with COORDINATOR_NOT_AVAILABLE if `__transaction_state` does not exist, and otherwise as
    /// `InternalTopic::serving` does.
    fn serving(&self, id: &str) -> Result<Arc<Shard>, ErrorCode> {
        self.topic.read().as_ref().ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)?.serving(id).cloned()
    }

    /// Returns the entry of an id, and creates it if the id is unknown. Holds the topic's lock, so that this broker
    /// cannot leave the shard before the id is added.
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
                    "cannot add a transactional id: raise fullbore.transactional.ids.max, or use shorter ids, since \
                     all ids together may take 128 MiB"
                );
            }
            return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE);
        }
        // Copies the id, which would otherwise keep its whole request in memory.
        let id = Text::from(id);
        let transaction = Transaction::new(shard.leader_epoch());
        let entry = Entry::new(id.clone(), transaction, Arc::clone(shard), &self.room);
        ids.insert(id, Arc::clone(&entry));
        Ok(entry)
    }

    /// Takes an id out of service. Requests that wait for the id get `code`.
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

    /// Removes an entry from the table, unless another entry of the same id has already replaced it.
    fn forget(&self, entry: &Arc<Entry>) {
        let mut ids = self.ids.lock();
        if ids.get(&entry.id).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            ids.remove(&entry.id);
        }
    }
}
