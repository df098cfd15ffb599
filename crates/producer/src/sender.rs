//! The task that sends to one broker. It gathers batches into Produce requests and distributes the requests over the
//! connections to the broker.
//!
//! Responses are handled in `answer`. Invariants: a connection has no more in flight than its estimate permits. Until a
//! broker has acknowledged a batch, at most one request to it is in flight. Each batch that was taken from a partition
//! returns to the partition exactly once: acknowledged, failed, or for another attempt.
//!
//! Five events wake the task: a response, a batch that became ready, a completed write, a new connection, and a time
//! set by a partition. The task of the connection handles a response: it returns the batches to their partitions, and
//! then wakes this task. This task therefore does not have to poll for responses and misses none.

mod answer;
mod binding;
mod demand;
mod gather;
mod lane;
mod lanes;
mod oversize;
pub(crate) mod verdict;

use crate::backoff::backoff;
use crate::broker::Broker;
use crate::clock;
use crate::config::{Acks, InFlight};
use crate::core::Core;
use crate::partition::{Listing, Outgoing, Partition, Path, Round};
use binding::{Binding, BindingLook};
use demand::{Demand, Look};
use fullbore_client::tokio::Connection;
use fullbore_client::{ConnectionError, MetadataError};
use fullbore_wire::apis::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use fullbore_wire::batch::Compression;
use fullbore_wire::{ErrorCode, Records, Uuid};
use gather::{Gathered, earlier, gather};
use lanes::Lanes;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

/// The first version of Produce that names topics by id.
const TOPIC_IDS: i16 = 13;
/// The first version of Produce that adds partitions to their transaction (KIP-890).
const ADDS_PARTITIONS: i16 = 12;
/// The first version of Produce whose requests may set `reorder`.
const REORDER: i16 = 14;

/// Number of failed attempts in a row to open another connection, after which the sender assumes that the broker
/// accepts no more.
const LANE_FAILURES: u32 = 3;

/// How long the sender waits for a response before the response counts as overdue. The sender then requests metadata
/// from another broker, because another broker may have become the leader.
const OVERDUE: Duration = Duration::from_secs(1);

/// The state of the task.
struct Sender {
    core: Arc<Core>,
    broker: Arc<Broker>,
    /// The partitions that have or may soon have batches, in the order in which the next request takes batches from
    /// them.
    active: Vec<Listing>,
    lanes: Lanes,
    /// Decides how many connections there should be. `None` if the configuration sets the number.
    demand: Option<Demand>,
    binding: Binding,
    connect_failures: u32,
    /// When metadata was last requested because a response was overdue.
    requested_at: Option<Instant>,
    /// The value of [`Lanes::changes`] when the status was last published.
    published: u64,
}

/// Starts the broker's task.
pub(crate) fn begin(core: Arc<Core>, broker: Arc<Broker>) {
    let runtime = core.runtime.clone();
    runtime.spawn(run(core, broker));
}

/// Runs until the producer closes.
async fn run(core: Arc<Core>, broker: Arc<Broker>) {
    let (setting, in_flight) = (core.config.connections_per_broker, core.config.max_in_flight);
    let lanes = Lanes::new(setting.unwrap_or(1));
    // A configured number of requests in flight is meant for the whole broker. The sender then uses only one
    // connection, unless the number of connections is configured as well.
    let demand = (setting.is_none() && in_flight == InFlight::Auto).then(Demand::new);
    let (active, binding) = (Vec::new(), Binding::default());
    let mut sender =
        Sender { core, broker, active, lanes, demand, binding, connect_failures: 0, requested_at: None, published: 0 };
    while !sender.core.is_stopped() {
        sender.broker.turns.fetch_add(1, Ordering::Relaxed);
        sender.active.append(&mut sender.broker.work.incoming.lock());
        sender.lanes.prune();
        let look_again = sender.mind_overdue();
        sender.publish();
        if sender.active.is_empty() {
            sender.rest(look_again).await;
            continue;
        }
        if sender.lanes.open.is_empty() && !sender.connect().await {
            continue;
        }
        sender.publish();
        let next = sender.fill().await;
        sender.look();
        let next = earlier(next, sender.grow());
        // Without any other event, the task wakes up when the oldest request in flight becomes overdue.
        let look_again = look_again.or_else(|| sender.oldest().map(|sent_at| sent_at + OVERDUE));
        sender.rest(earlier(next, look_again)).await;
    }
    sender.lanes.close();
}

impl Sender {
    /// Waits for an event, at most until `next`.
    async fn rest(&mut self, next: Option<Instant>) {
        let broker = self.broker.clone();
        let mut wake = pin!(broker.work.wake.notified());
        let (lanes, config) = (&mut self.lanes, &self.core.config);
        // Each poll covers both the connections and the worklist. Otherwise a steady flow of records could prevent the
        // completion of a write.
        let news = poll_fn(|cx| match (lanes.poll(cx, config), wake.as_mut().poll(cx)) {
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            _ => Poll::Ready(()),
        });
        match next {
            Some(at) => drop(tokio::time::timeout_at(at.into(), news).await),
            None => news.await,
        }
    }

    /// Returns when the oldest request in flight was sent. Returns `None` without idempotence, because such a request
    /// must not be abandoned before its timeout: a retry could write its batches twice.
    fn oldest(&self) -> Option<Instant> {
        self.lanes.oldest().filter(|_| self.core.limits.idempotent)
    }

    /// Fetches metadata if a response is overdue. If another broker has become the leader of a partition since the
    /// overdue request was sent, closes the connections. The batches are then sent to the new leader, although the
    /// replaced broker may never respond. Returns the time of the next check, or `None` if no request is in flight.
    fn mind_overdue(&mut self) -> Option<Instant> {
        let (oldest, now) = (self.oldest()?, Instant::now());
        if now < oldest + OVERDUE {
            return Some(oldest + OVERDUE);
        }
        if self.broker.work.has_left_since(oldest) {
            tracing::debug!(
                broker = self.broker.id,
                "closed the connections to a broker: a response is overdue, and another broker leads its partitions now"
            );
            self.lanes.close();
            self.give_away();
            return None;
        }
        let again = self.requested_at.map_or(now, |at| at + OVERDUE);
        if now < again {
            return Some(again);
        }
        self.requested_at = Some(now);
        self.core.want_metadata();
        Some(now + OVERDUE)
    }

    /// Publishes the open connections for the status.
    fn publish(&mut self) {
        if std::mem::replace(&mut self.published, self.lanes.changes) != self.lanes.changes {
            *self.broker.pipes.lock() = self.lanes.open.iter().map(|lane| lane.pipe.clone()).collect();
        }
    }

    /// Opens the first connection. Returns true on success. After a failure, pauses and refreshes the metadata.
    async fn connect(&mut self) -> bool {
        let error = match self.connection().await {
            Some(Ok(connection)) => {
                self.connect_failures = 0;
                self.broker.grants.lock().forget();
                self.lanes.add(connection, &self.core.config);
                return true;
            }
            Some(Err(error)) => error,
            None => return false,
        };
        tracing::debug!(broker = self.broker.id, %error, "cannot connect");
        let why = match &error {
            MetadataError::Connection(error) => format!("broker {}: {error}", self.broker.id),
            other => other.to_string(),
        };
        self.active.iter().for_each(|listing| listing.partition.hindered(&why));
        self.core.want_metadata();
        let client = &self.core.config.client;
        let pause = backoff(client.reconnect_backoff, client.reconnect_backoff_max, self.connect_failures);
        self.connect_failures = self.connect_failures.saturating_add(1);
        self.give_away();
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = self.core.stopped() => {}
        }
        false
    }

    /// Connects to the broker. Returns `None` once no partition needs the connection any more. Otherwise the task could
    /// wait for long, because a broker that hangs may accept the connection and never respond to the handshake.
    async fn connection(&mut self) -> Option<Result<Connection, MetadataError>> {
        let core = self.core.clone();
        let mut connecting = pin!(core.cluster.broker(self.broker.id));
        loop {
            tokio::select! {
                connected = &mut connecting => return Some(connected),
                () = tokio::time::sleep(OVERDUE) => {}
                () = core.stopped() => return None,
            }
            self.active.append(&mut self.broker.work.incoming.lock());
            self.give_away();
            if self.active.is_empty() {
                return None;
            }
            core.want_metadata();
        }
    }

    /// If the number of connections is automatic, checks if more connections could raise the throughput.
    fn look(&mut self) {
        let now = Instant::now();
        let Some(mut demand) = self.demand.take_if(|demand| demand.is_due(now)) else { return };
        let lanes = self.lanes.open.len();
        if self.lanes.failures >= LANE_FAILURES {
            self.lanes.failures = 0;
            demand.refused(lanes, now);
        }
        if let Some(least) = self.lanes.least() {
            let full = self.lanes.freest(0).is_none();
            let (delivered, pressed) = (self.lanes.delivered(), full && self.could_use_more(now));
            demand.look(&Look { now, lanes, delivered, least, pressed });
            if demand.wanted() != self.lanes.wanted {
                let (broker, wanted) = (self.broker.id, demand.wanted());
                tracing::debug!(
                    broker,
                    lanes,
                    wanted,
                    ?least,
                    ?demand,
                    "the number of connections to a broker changes"
                );
            }
            self.lanes.wanted = demand.wanted();
            self.lanes.shrink();
        }
        self.demand = Some(demand);
    }

    /// Returns true if batches are waiting that another connection could send. If each partition uses only one
    /// connection, this requires waiting batches of more partitions than there are connections.
    fn could_use_more(&self, now: Instant) -> bool {
        let hurry = self.core.is_hurried();
        let striped = self.broker.grants.lock().reorder > 0 && self.core.limits.idempotent;
        let wait = self.active.iter().filter(|listing| listing.partition.waits(now, hurry, striped));
        let enough = if striped { 1 } else { self.lanes.open.len() + 1 };
        wait.take(enough).count() == enough
    }

    /// Begins to open another connection if one is wanted. Returns the time of the next attempt after a failed one, or
    /// `None` if there is nothing to wait for.
    fn grow(&mut self) -> Option<Instant> {
        let (core, id) = (self.core.clone(), self.broker.id);
        self.lanes.grow(Instant::now(), || Box::pin(async move { core.cluster.another(id).await }))
    }

    /// Removes partitions that another broker leads now from the list of active partitions.
    fn give_away(&mut self) {
        let work = &self.broker.work;
        self.active.retain(|listing| !listing.leaves(work));
    }

    /// Sends requests until no connection accepts another one. Returns the time of the next check for batches that are
    /// not ready, or `None` if an event will wake the task.
    async fn fill(&mut self) -> Option<Instant> {
        let (mut next, mut tried, mut binds) = (None, 0, false);
        while self.may_send()
            && let Some(at) = self.lanes.freest(tried)
        {
            let gathered = self.gather(at, false);
            if gathered.batches.is_empty() {
                self.lanes.open[at].pipe.lock().limited();
                next = earlier(next, gathered.next);
                tried |= 1 << at;
                binds |= gathered.window_binds;
            } else {
                self.send(at, gathered.batches).await;
            }
        }
        self.look_at_window(binds);
        earlier(next, self.fill_gaps(tried).await)
    }

    /// Measures how long full batches wait only for the broker's window. Reports it once if this limits throughput.
    fn look_at_window(&mut self, binds: bool) {
        let (rtt, delivered, now) = (self.lanes.least(), self.lanes.delivered(), clock::now());
        let is_long = self.binding.look(&BindingLook { binds, rtt, delivered, now });
        *self.broker.window_full.lock() = self.binding.bound();
        if is_long {
            let (broker, batches) = (self.broker.id, self.broker.grants.lock().of_node());
            self.core.notices.add(format!(
                "the idempotence window of broker {broker} limits throughput: {batches} batches of a partition, the \
                 maximum, wait for acknowledgements and are of maximum size; raise max.idempotence.batches.to.retain \
                 of the broker, or max.request.size of this producer (at most to max.message.bytes of the topics)"
            ));
        }
    }

    /// Sends missing batches, for which other batches wait at the broker. Sends them even over a full connection,
    /// because the waiting batches may be what fills it. Returns the time of the next check, or `None` if an event will
    /// wake the task.
    async fn fill_gaps(&mut self, tried: u32) -> Option<Instant> {
        let mut next = None;
        if self.broker.grants.lock().reorder == 0 || !self.may_send() {
            return None;
        }
        for at in (0..self.lanes.open.len()).filter(|at| tried & 1 << at == 0) {
            while self.lanes.open[at].has_room_for_missing() {
                let gathered = self.gather(at, true);
                next = earlier(next, gathered.next);
                if gathered.batches.is_empty() {
                    break;
                }
                self.send(at, gathered.batches).await;
            }
        }
        next
    }

    /// Returns true if another request may be sent. Until a broker has acknowledged a batch, an idempotent producer
    /// sends it one request at a time. Otherwise a broker before Kafka 4.5 could refuse the first request and accept
    /// the second, because it accepts any first sequence of a producer (KAFKA-15591).
    fn may_send(&self) -> bool {
        !self.core.limits.idempotent || self.broker.grants.lock().proven || self.lanes.requests() == 0
    }

    /// Gathers batches for one request over a connection.
    fn gather(&mut self, lane: usize, missing: bool) -> Gathered {
        let grants = self.broker.grants.lock();
        let (lanes, reorders) = (self.lanes.open.len(), grants.reorder > 0 && self.core.limits.idempotent);
        let striped = reorders && lanes > 1;
        let path = Path { connection: self.lanes.open[lane].path, lane, lanes };
        let (hurry, flush) = (self.core.is_hurried(), self.core.is_flushing());
        let (now, rtt) = (clock::now(), self.lanes.open[lane].pipe.lock().min_rtt());
        let pass = self.core.ledger.as_ref().and_then(|ledger| ledger.pass());
        let round =
            Round { now, hurry, flush, rtt, room: None, grants: &grants, missing, path, striped, reorders, pass };
        let (core, max) = (&self.core, self.core.config.max_request_size);
        let join = |partition: &Arc<Partition>| {
            if let Some(ledger) = &core.ledger {
                ledger.join(partition.clone());
            }
        };
        gather(&mut self.active, &self.broker.work, round, max, |spent| core.identity(spent), join)
    }

    /// Seals and writes one request. The connection's reader handles its response.
    async fn send(&mut self, at: usize, batches: Vec<Outgoing>) {
        let lane = &mut self.lanes.open[at];
        let connection = lane.connection.clone();
        let newest = match connection.version::<ProduceRequest>() {
            Ok(version) => version,
            Err(error) => return self.core.resolve_unsent(batches, &error),
        };
        let (mut request, version, batches) = build(&self.core, batches, newest);
        if batches.is_empty() {
            return;
        }
        request.reorder = version >= REORDER && batches.iter().any(|outgoing| outgoing.reorder);
        request.ends_transaction = version >= REORDER && batches.iter().any(|outgoing| outgoing.ends_transaction);
        let (core, broker) = (self.core.clone(), self.broker.clone());
        if self.core.config.acks == Acks::None {
            let mut unanswered = Unanswered { core, batches, address: connection.address().to_owned() };
            let unanswered = async move {
                let written = connection.send_unanswered(&request, version).await;
                unanswered.resolve(written);
            };
            return lane.write(Box::pin(unanswered)).await;
        }
        let bytes = batches.iter().map(|outgoing| outgoing.batch.size()).sum();
        let begun = Instant::now();
        let sent = lane.pipe.lock().sent(bytes, begun);
        let pipe = lane.pipe.clone();
        let handler = move |result: Result<_, _>| {
            match &result {
                Ok(_) => {
                    let now = Instant::now();
                    pipe.lock().answered(&sent, now);
                    broker.count(batches.len(), bytes, now.saturating_duration_since(begun));
                }
                Err(_) => pipe.lock().lost(&sent),
            }
            core.resolve(&broker, batches, result);
            broker.work.wake();
        };
        lane.write(Box::pin(async move { connection.send(&request, version, handler).await })).await;
    }
}

/// The batches of a request with acks=0, which has no response, while it is being written. If the write is dropped
/// together with its connection, these batches fail.
struct Unanswered {
    core: Arc<Core>,
    batches: Vec<Outgoing>,
    address: String,
}

impl Unanswered {
    fn resolve(&mut self, written: Result<(), ConnectionError>) {
        self.core.resolve_unanswered(std::mem::take(&mut self.batches), written);
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let (address, reason) = (std::mem::take(&mut self.address), "the connection ended during a write".to_owned());
        if !self.batches.is_empty() {
            self.resolve(Err(ConnectionError::Disconnected { address, reason }));
        }
    }
}

/// Builds a request from these batches. Omits and fails batches whose compression fails.
fn build(core: &Arc<Core>, batches: Vec<Outgoing>, newest: i16) -> (ProduceRequest, i16, Vec<Outgoing>) {
    let mut request = ProduceRequest {
        acks: core.config.acks as i16,
        timeout_ms: core.config.client.request_timeout.as_millis() as i32,
        ..Default::default()
    };
    let mut version = newest;
    if let Some(ledger) = &core.ledger {
        request.transactional_id = Some(ledger.id.clone());
        // If AddPartitionsToTxn has added the partitions, the request must have an older version, in which Produce does
        // not add them.
        if ledger.pass().is_some_and(|pass| !pass.adds_partitions) {
            version = version.min(ADDS_PARTITIONS - 1);
        }
    }
    let mut sent = Vec::with_capacity(batches.len());
    for outgoing in batches {
        let Some((outgoing, records)) = seal(core, outgoing) else { continue };
        let data =
            PartitionProduceData { index: outgoing.partition.index, records: Some(records), ..Default::default() };
        let (topic, topic_id) = (&outgoing.partition.topic, outgoing.topic_id);
        match request.topic_data.iter_mut().find(|t| t.name == *topic && t.topic_id == topic_id) {
            Some(topic) => topic.partition_data.push(data),
            None => {
                if topic_id == Uuid::default() {
                    version = version.min(TOPIC_IDS - 1);
                }
                let partition_data = vec![data];
                request.topic_data.push(TopicProduceData {
                    name: topic.clone(),
                    topic_id,
                    partition_data,
                    ..Default::default()
                });
            }
        }
        sent.push(outgoing);
    }
    sent.iter_mut().for_each(|outgoing| outgoing.by_name = version < TOPIC_IDS);
    (request, version, sent)
}

/// Seals a batch and returns it with its bytes. If the codec fails, fails the batch and returns `None`. If a new batch
/// is larger than its topic accepts, splits it and also returns `None`. The parts are then sent later.
fn seal(core: &Arc<Core>, mut outgoing: Outgoing) -> Option<(Outgoing, Records)> {
    let (before, is_new) = (outgoing.batch.size(), !outgoing.batch.is_sealed());
    let records = match outgoing.batch.seal(outgoing.stamp) {
        Ok(records) => records,
        Err(error) => {
            core.fail(outgoing, false, ErrorCode::CORRUPT_MESSAGE, &error.to_string());
            return None;
        }
    };
    if !is_new {
        return Some((outgoing, records));
    }
    if core.limits.compression != Compression::None {
        outgoing.partition.compressed(before, outgoing.batch.size());
    }
    if outgoing.partition.allows(&outgoing.batch) {
        return Some((outgoing, records));
    }
    let Outgoing { partition, ticket, batch, .. } = outgoing;
    let batch = *partition.part_unsent(ticket, batch).err()?;
    Some((Outgoing { partition, batch, ..outgoing }, records))
}
