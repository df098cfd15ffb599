//! The state that the producer's tasks share, such as topics, brokers and memory, and the tasks that keep this state up
//! to date.
//!
//! Invariant: a topic and its partitions stay known while the producer lives, even if metadata omits them for a while,
//! because their sequence numbers must continue.

use crate::backoff::backoff;
use crate::broker::{Broker, BrokerStatus};
use crate::config::ProducerConfig;
use crate::delivery::BatchOutcome;
use crate::error::{SendError, TransactionError, answer};
use crate::ledger::TransactionLedger;
use crate::limit::BatchLimit;
use crate::notices::Notices;
use crate::partition::{Partition, ProducerLimits};
use crate::partitioner::{Sticky, splitmix};
use crate::pool::Pool;
use crate::window::ProducerIdAndEpoch;
use fullbore_client::tokio::{Cluster, TopicInfo};
use fullbore_wire::apis::init_producer_id::InitProducerIdRequest;
use fullbore_wire::{ErrorCode, Text, Uuid};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// A topic that this producer writes to.
pub(crate) struct Topic {
    name: Text,
    wanted_at: Instant,
    pub(crate) sticky: Sticky,
    limit: Arc<BatchLimit>,
    state: RwLock<TopicState>,
}

/// The state of a topic according to metadata.
#[derive(Default)]
pub(crate) struct TopicState {
    id: Uuid,
    /// The topic's previous id, and the time at which the present id replaced it.
    replaced: Option<(Uuid, Instant)>,
    /// True if a leader of the topic has refused the present id.
    is_doubted: bool,
    /// The partitions by index. Partitions are never removed.
    partitions: Vec<Arc<Partition>>,
    /// The present number of partitions, which may be smaller than before if the topic was recreated.
    count: usize,
    /// The partitions with a leader. All partitions if none has a leader.
    pub(crate) available: Vec<Arc<Partition>>,
    /// The metadata's error for the topic, if no retry can help. The topic cannot be used.
    error: Option<ErrorCode>,
    /// The metadata's error for the topic, if it is retriable.
    doubt: Option<ErrorCode>,
}

impl TopicState {
    /// Returns the present partitions, without those that a former topic of this name had in addition.
    pub(crate) fn partitions(&self) -> &[Arc<Partition>] {
        &self.partitions[..self.count]
    }

    /// Returns true if `id` is the topic's previous id, which was replaced less than [`BEHIND_MAX`] ago, and no leader
    /// has refused the new id. Metadata with `id` is then stale.
    fn was_replaced(&self, id: Uuid) -> bool {
        !self.is_doubted && self.replaced.is_some_and(|(replaced, at)| replaced == id && at.elapsed() < BEHIND_MAX)
    }
}

/// The state that the producer's tasks share.
pub(crate) struct Core {
    pub(crate) config: ProducerConfig,
    pub(crate) limits: Arc<ProducerLimits>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) cluster: Cluster,
    /// `None` without a transactional.id.
    pub(crate) ledger: Option<Arc<TransactionLedger>>,
    pub(crate) runtime: tokio::runtime::Handle,
    begin: Begin,
    topics: RwLock<HashMap<Text, Arc<Topic>>>,
    /// The first topic that was used. Most producers have only one topic, which they thus find without a lock and a
    /// hash look-up.
    first_topic: OnceLock<Arc<Topic>>,
    brokers: Mutex<HashMap<i32, Arc<Broker>>>,
    identity: Mutex<Option<ProducerIdAndEpoch>>,
    wants_identity: AtomicBool,
    identity_wanted: Notify,
    wants_metadata: AtomicBool,
    metadata_wanted: Notify,
    /// The number of requests for metadata that have begun. `topics_changed` notifies of their responses.
    metadata_begun: AtomicU64,
    /// The number of the newest request that got its response.
    metadata_answered: AtomicU64,
    topics_changed: Notify,
    flushes: AtomicUsize,
    refusing: AtomicBool,
    /// The reason why the last fetch of metadata failed.
    metadata_error: Mutex<Option<String>>,
    /// The reason why records have been waiting for at least [`TROUBLE_AFTER`].
    trouble: watch::Sender<Option<String>>,
    pub(crate) notices: Notices,
    stop: watch::Sender<bool>,
}

/// The function that starts the task of a broker. A function type is used so that this module does not depend on
/// `sender`.
pub(crate) type Begin = fn(Arc<Core>, Arc<Broker>);

/// How long records must have waited before the reason is reported.
const TROUBLE_AFTER: Duration = Duration::from_secs(1);
/// How long the producer ignores metadata with a topic's previous id, because it may come from a broker with stale
/// metadata. The time ends early if a leader refuses the new id. After this time the previous id is accepted as the
/// topic's id again. Its return then means that the new id was the stale one, or that an older copy of the cluster's
/// metadata was restored.
const BEHIND_MAX: Duration = Duration::from_secs(30);
/// Maximum interval between checks of conditions that change without a notification, such as the age of a batch.
const TICK_MAX: Duration = Duration::from_secs(1);

/// The size of a chunk of buffer.memory. If a producer writes to a thousand partitions, each has few records and wastes
/// the rest of its last chunk. Chunks are therefore small.
const CHUNK: usize = 4 << 10;
/// The size of a chunk if each record is a batch of its own.
const CHUNK_OF_ONE: usize = 1 << 10;

fn chunk_size(config: &ProducerConfig) -> usize {
    let chunk = if config.batch_size == 0 { CHUNK_OF_ONE } else { CHUNK };
    chunk.min(config.max_request_size).max(1)
}

impl Core {
    pub(crate) fn new(config: ProducerConfig, runtime: tokio::runtime::Handle, begin: Begin) -> Arc<Self> {
        let ledger = config.transactional_id.as_deref().map(TransactionLedger::new);
        let limits = ProducerLimits {
            batch_size: config.batch_size,
            one_record: config.batch_size == 0,
            batch_bytes_max: config.max_request_size,
            linger: config.linger,
            delivery_timeout: config.delivery_timeout,
            compression: config.compression,
            level: config.compression_level,
            idempotent: config.is_idempotent(),
            coordinator: ledger.as_ref().map(|ledger| ledger.wake.clone()),
        };
        Arc::new(Core {
            limits: Arc::new(limits),
            pool: Pool::new(config.buffer_memory, chunk_size(&config)),
            cluster: Cluster::new(config.bootstrap_servers.clone(), config.client.clone()),
            config,
            ledger,
            runtime,
            begin,
            topics: RwLock::default(),
            first_topic: OnceLock::new(),
            brokers: Mutex::default(),
            identity: Mutex::new(None),
            wants_identity: AtomicBool::new(false),
            identity_wanted: Notify::new(),
            wants_metadata: AtomicBool::new(false),
            metadata_wanted: Notify::new(),
            metadata_begun: AtomicU64::new(0),
            metadata_answered: AtomicU64::new(0),
            topics_changed: Notify::new(),
            flushes: AtomicUsize::new(0),
            refusing: AtomicBool::new(false),
            metadata_error: Mutex::default(),
            trouble: watch::Sender::new(None),
            notices: Notices::new(),
            stop: watch::Sender::new(false),
        })
    }

    /// Calls `f` with a topic if its metadata is known and the topic can be used.
    #[inline]
    pub(crate) fn with_topic<T>(
        &self,
        name: &str,
        f: impl FnOnce(&Topic, &TopicState) -> Result<T, SendError>,
    ) -> Result<T, SendError> {
        if self.refusing.load(Ordering::Relaxed) {
            return Err(SendError::Closed);
        }
        let other;
        let topic = match self.first_topic.get() {
            Some(first) if first.name == *name => first,
            _ => {
                other = self.look_up(name);
                &other
            }
        };
        let state = topic.state.read();
        if state.partitions().is_empty() {
            return Err(self.not_usable(topic, &state));
        }
        f(topic, &state)
    }

    fn look_up(&self, name: &str) -> Arc<Topic> {
        let found = self.topics.read().get(name).cloned();
        found.unwrap_or_else(|| self.add_topic(name))
    }

    /// Requests the metadata of a topic, and a producer id if none is known. Returns the error for the caller.
    #[cold]
    fn not_usable(&self, topic: &Topic, state: &TopicState) -> SendError {
        self.want_metadata();
        if self.limits.idempotent {
            // The producer id is requested together with the metadata, so that the first batch waits for one round trip
            // instead of two.
            self.identity(None);
        }
        match state.error {
            Some(code) => SendError::Topic { topic: topic.name.to_string(), code },
            None => SendError::NoMetadata,
        }
    }

    fn add_topic(&self, name: &str) -> Arc<Topic> {
        let name = Text::from(name);
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), name.as_str());
        let new = || {
            Arc::new(Topic {
                name: name.clone(),
                wanted_at: Instant::now(),
                sticky: Sticky::new(splitmix(seed)),
                limit: Arc::new(BatchLimit::new(self.limits.batch_bytes_max)),
                state: RwLock::default(),
            })
        };
        let topic = self.topics.write().entry(name.clone()).or_insert_with(new).clone();
        self.first_topic.get_or_init(|| topic.clone());
        topic
    }

    /// Notes that a leader has refused the topic's id, or its name if the request had no id.
    pub(crate) fn doubt_topic(&self, name: &Text, id: Uuid) {
        if let Some(topic) = self.topics.read().get(name) {
            let mut state = topic.state.write();
            state.is_doubted |= state.id == id;
        }
    }

    /// Returns the broker with this id. The first call starts its task.
    pub(crate) fn broker(self: &Arc<Self>, id: i32) -> Arc<Broker> {
        let mut brokers = self.brokers.lock();
        if let Some(broker) = brokers.get(&id) {
            return broker.clone();
        }
        let broker = Broker::new(id);
        brokers.insert(id, broker.clone());
        (self.begin)(self.clone(), broker.clone());
        broker
    }

    /// Returns a producer id and epoch whose id is not `spent`. If there is none yet, requests one and returns `None`.
    pub(crate) fn identity(&self, spent: Option<i64>) -> Option<ProducerIdAndEpoch> {
        if self.ledger.is_some() {
            // With transactions, a partition gets its producer id and epoch from the ledger, together with the
            // permission to send.
            return None;
        }
        let mut identity = self.identity.lock();
        if identity.is_some_and(|known| Some(known.producer_id) == spent) {
            *identity = None;
        }
        if identity.is_none() {
            self.wants_identity.store(true, Ordering::Release);
            self.identity_wanted.notify_one();
        }
        *identity
    }

    /// Requests fresh metadata.
    pub(crate) fn want_metadata(&self) {
        if !self.wants_metadata.swap(true, Ordering::AcqRel) {
            self.metadata_wanted.notify_one();
        }
    }

    /// Requests metadata from a fetch that begins after this call. That metadata has arrived when
    /// [`Core::metadata_answered`] reaches the returned number.
    pub(crate) fn want_newer_metadata(&self) -> u64 {
        let newer = self.metadata_begun.load(Ordering::Acquire) + 1;
        self.want_metadata();
        newer
    }

    /// Returns the number of the newest request for metadata that has a response.
    pub(crate) fn metadata_answered(&self) -> u64 {
        self.metadata_answered.load(Ordering::Acquire)
    }

    /// Resolves when metadata was applied after the call, or when the producer stops.
    pub(crate) fn topics_changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.topics_changed.notified()
    }

    /// Returns true if batches should be sent without lingering, because a caller waits for a flush or for memory.
    pub(crate) fn is_hurried(&self) -> bool {
        self.is_flushing() || self.pool.is_wanted()
    }

    /// Returns true if a caller waits for a flush.
    pub(crate) fn is_flushing(&self) -> bool {
        self.flushes.load(Ordering::Acquire) > 0
    }

    /// Sends batches without lingering until the guard is dropped.
    pub(crate) fn flushing(&self) -> Flushing<'_> {
        self.flushes.fetch_add(1, Ordering::AcqRel);
        self.wake_all();
        Flushing(self)
    }

    pub(crate) fn wake_all(&self) {
        self.brokers.lock().values().for_each(|broker| broker.work.wake());
    }

    /// Returns the status of each broker, by id.
    pub(crate) fn statuses(&self) -> Vec<BrokerStatus> {
        let mut found: Vec<BrokerStatus> = self.brokers.lock().values().map(|broker| broker.status()).collect();
        found.sort_unstable_by_key(|broker| broker.id);
        found
    }

    pub(crate) fn partitions(&self) -> Vec<Arc<Partition>> {
        let topics = self.topics.read();
        topics.values().flat_map(|topic| topic.state.read().partitions.clone()).collect()
    }

    /// Returns every batch that is not finished.
    pub(crate) fn unfinished(&self) -> Vec<Arc<BatchOutcome>> {
        self.partitions().iter().flat_map(|partition| partition.unfinished()).collect()
    }

    /// Returns the reason why a record has been waiting, or the metadata of a topic has been missing, for longer than
    /// `patience`. Returns `None` if there is no such delay or its reason is not known.
    pub(crate) fn trouble(&self, now: Instant, patience: Duration) -> Option<String> {
        let since = now.checked_sub(patience)?;
        let of_partition = self.partitions().iter().find_map(|partition| partition.trouble(since));
        of_partition.or_else(|| self.topics.read().values().find_map(|topic| self.trouble_of(topic, since)))
    }

    fn trouble_of(&self, topic: &Topic, since: Instant) -> Option<String> {
        let state = topic.state.read();
        if !state.partitions().is_empty() || topic.wanted_at > since {
            return None;
        }
        let metadata_error = self.metadata_error.lock().clone();
        metadata_error.or_else(|| state.doubt.map(|code| format!("topic {}: {}", topic.name, answer(code, ""))))
    }

    /// Returns a receiver of the reason why records have been waiting for more than a second.
    pub(crate) fn troubles(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    fn watch_trouble(&self, now: Instant) {
        let trouble = self.trouble(now, TROUBLE_AFTER);
        self.trouble.send_if_modified(|known| {
            let changed = *known != trouble;
            if changed && let Some(trouble) = &trouble {
                tracing::warn!("cannot deliver records: {trouble}");
            }
            *known = trouble;
            changed
        });
    }

    /// Makes the producer refuse further records.
    pub(crate) fn refuse_records(&self) {
        self.refusing.store(true, Ordering::Release);
    }

    /// Fails every unfinished batch and stops every task.
    pub(crate) fn stop(&self) {
        self.refuse_records();
        self.stop.send_replace(true);
        for partition in self.partitions() {
            partition.shut(Instant::now());
        }
        self.topics_changed.notify_waiters();
        if let Some(ledger) = &self.ledger {
            ledger.end(|possibly_committed| TransactionError::Closed { possibly_committed });
        }
        self.wake_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Resolves when the producer stops.
    pub(crate) async fn stopped(&self) {
        let mut stop = self.stop.subscribe();
        // The wait would fail only if the sender were dropped, but the core owns the sender.
        drop(stop.wait_for(|stopped| *stopped).await);
    }

    /// Fetches metadata and producer ids, and fails batches after delivery.timeout.ms, until the producer stops. These
    /// activities do not wait for each other. Batches therefore fail in time even if the cluster sends no responses.
    pub(crate) async fn run(self: Arc<Self>) {
        tokio::select! {
            () = self.keep_metadata() => {}
            () = self.keep_identity() => {}
            () = self.keep_time() => {}
            () = self.stopped() => {}
        }
        // Ends the requests in flight. Their handlers refer to the core, and the core to the connections. In the
        // caller's runtime, core and connections would otherwise stay in memory until the last response.
        self.cluster.close();
    }
}

/// The guard of [`Core::flushing`].
pub(crate) struct Flushing<'a>(&'a Core);

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.flushes.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The time of the next attempt, and how many attempts in a row have failed.
struct Attempts {
    at: Instant,
    failures: u32,
}

impl Attempts {
    fn new() -> Self {
        Attempts { at: Instant::now(), failures: 0 }
    }

    /// Notes the result of an attempt. There is a pause even after a success. A partition without a leader requests
    /// metadata again at once, and would otherwise cause fetches without a pause.
    fn made(&mut self, succeeded: bool, config: &ProducerConfig) {
        self.failures = if succeeded { 0 } else { self.failures + 1 };
        self.at = Instant::now() + backoff(config.retry_backoff, config.retry_backoff_max, self.failures);
    }
}

impl Core {
    /// Fails batches after delivery.timeout.ms, and reports why records are delayed.
    async fn keep_time(&self) {
        let tick = (self.config.delivery_timeout / 10).clamp(Duration::from_millis(10), TICK_MAX);
        loop {
            let now = Instant::now();
            self.partitions().iter().for_each(|partition| partition.expire(now));
            self.watch_trouble(now);
            tokio::time::sleep(tick).await;
        }
    }

    /// Fetches metadata when it is old, when it is requested, and while a partition with records has no leader.
    async fn keep_metadata(self: &Arc<Self>) {
        let mut attempts = Attempts::new();
        let mut fetched_at = Instant::now();
        loop {
            if self.partitions().iter().any(|partition| partition.lacks_leader()) {
                self.wants_metadata.store(true, Ordering::Release);
            }
            let now = Instant::now();
            let old_at = fetched_at + self.config.metadata_max_age;
            let wanted_at = if self.wants_metadata.load(Ordering::Acquire) { now } else { old_at };
            let next = wanted_at.max(attempts.at);
            if next <= now {
                attempts.made(self.fetch_metadata().await, &self.config);
                fetched_at = now;
                continue;
            }
            let next = next.min(now + TICK_MAX);
            drop(tokio::time::timeout_at(next.into(), self.metadata_wanted.notified()).await);
        }
    }

    /// Fetches a producer id whenever one is requested.
    async fn keep_identity(&self) {
        let mut attempts = Attempts::new();
        loop {
            self.identity_wanted.notified().await;
            while self.wants_identity.load(Ordering::Acquire) {
                tokio::time::sleep_until(attempts.at.into()).await;
                attempts.made(self.fetch_identity().await, &self.config);
            }
        }
    }

    /// Fetches the metadata of every topic in use. Returns false if no broker responded.
    async fn fetch_metadata(self: &Arc<Self>) -> bool {
        // `wants_metadata` is cleared before `metadata_begun` is incremented. A caller of [`Core::want_newer_metadata`]
        // that reads the incremented number thus sets `wants_metadata` again, and causes another fetch.
        self.wants_metadata.store(false, Ordering::Release);
        let begun = self.metadata_begun.fetch_add(1, Ordering::AcqRel) + 1;
        let names: Vec<Text> = self.topics.read().keys().cloned().collect();
        let response = match self.cluster.describe(Some(&names), true).await {
            Ok(response) => response,
            Err(error) => {
                tracing::debug!(%error, "cannot fetch metadata");
                *self.metadata_error.lock() = Some(format!("no metadata: {error}"));
                self.wants_metadata.store(true, Ordering::Release);
                return false;
            }
        };
        *self.metadata_error.lock() = None;
        for described in &response.topics {
            let topic = described.name.as_ref().and_then(|name| self.topics.read().get(name).cloned());
            if let Some(topic) = topic {
                self.learn(&topic, &TopicInfo::from_response(described));
            }
        }
        self.metadata_answered.store(begun, Ordering::Release);
        // Wakes all callers that wait for metadata. A caller whose topic is still unknown requests metadata again.
        self.topics_changed.notify_waiters();
        true
    }

    /// Applies metadata of a topic.
    fn learn(self: &Arc<Self>, topic: &Topic, info: &TopicInfo) {
        if info.error.is_err() {
            // The partitions are kept, because brokers often report a topic as unknown while its leaders move.
            let (error, retriable) = (Some(info.error), info.error.is_retriable());
            let mut state = topic.state.write();
            (state.error, state.doubt) = if retriable { (None, error) } else { (error, None) };
            return;
        }
        let mut state = topic.state.write();
        if state.was_replaced(info.id) {
            // The metadata is stale. It is requested again, and that request goes to another broker.
            return self.want_metadata();
        }
        (state.error, state.doubt) = (None, None);
        let recreated = state.id != Uuid::default() && info.id != Uuid::default() && state.id != info.id;
        if recreated {
            (state.replaced, state.is_doubted) = (Some((state.id, Instant::now())), false);
            topic.limit.reset();
        }
        state.id = info.id;
        // A topic never loses partitions, so metadata with fewer partitions of the same topic is stale.
        state.count = if recreated { info.leaders.len() } else { state.count.max(info.leaders.len()) };
        for index in state.partitions.len()..info.leaders.len() {
            let (limits, limit) = (self.limits.clone(), topic.limit.clone());
            state.partitions.push(Partition::new(topic.name.clone(), index as i32, limits, limit, &self.pool));
        }
        state.partitions.iter().for_each(|partition| partition.set_topic(info.id));
        for gone in &state.partitions[state.count..] {
            gone.set_leader(info.id, None, -1);
        }
        for (partition, leader) in state.partitions.iter().zip(&info.leaders) {
            let broker = (leader.id >= 0).then(|| self.broker(leader.id).work.clone());
            partition.set_leader(info.id, broker, leader.epoch);
        }
        let is_led = |(i, _): &(usize, &Arc<Partition>)| info.leaders.get(*i).is_some_and(|leader| leader.id >= 0);
        let led = state.partitions().iter().enumerate().filter(is_led).map(|(_, partition)| partition.clone());
        let mut available: Vec<_> = led.collect();
        if available.is_empty() {
            available = state.partitions().to_vec();
        }
        state.available = available;
    }

    async fn fetch_identity(&self) -> bool {
        let request = InitProducerIdRequest { transaction_timeout_ms: i32::MAX, ..Default::default() };
        match self.cluster.call(request).await {
            Ok(given) if !given.error_code.is_err() && given.producer_id >= 0 => {
                let identity = ProducerIdAndEpoch { producer_id: given.producer_id, epoch: given.producer_epoch };
                *self.identity.lock() = Some(identity);
                self.wants_identity.store(false, Ordering::Release);
                self.wake_all();
                true
            }
            Ok(refused) => self.has_no_identity(&answer(refused.error_code, "")),
            Err(error) => self.has_no_identity(&error.to_string()),
        }
    }

    fn has_no_identity(&self, error: &str) -> bool {
        tracing::debug!(error, "cannot get a producer id");
        let why = format!("no producer id: {error}");
        self.partitions()
            .iter()
            .filter(|partition| partition.lacks_identity())
            .for_each(|partition| partition.hindered(&why));
        false
    }
}
