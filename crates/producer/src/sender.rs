//! One task per broker: gathers the batches that may leave into Produce requests, and acts on the answers.
//!
//! Not here: what an answer means (see `verdict`), and the order within a partition (see `window`). Invariant: at most
//! max.in.flight.requests.per.connection requests of this task are without a response, and each batch taken from a
//! partition comes back to it exactly once: acknowledged, failed or set back.

mod grant;
mod verdict;

use crate::accumulator::{Outgoing, Partition, Round, Take};
use crate::config::Acks;
use crate::connection::{Connection, ConnectionError};
use crate::delivery::Written;
use crate::error::{self, MetadataError, ProduceError};
use crate::producer::Core;
use crate::window::{Setback, WINDOW_DEFAULT, WINDOW_MAX};
use fullbore_wire::apis::produce::{
    PartitionProduceData, PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceData,
    TopicProduceResponse,
};
use fullbore_wire::{ErrorCode, Records, Text, Uuid};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use verdict::Verdict;

pub(crate) use grant::Grants;

/// The first version that names topics by id.
const TOPIC_IDS: i16 = 13;

/// A broker as the partitions it leads see it.
pub(crate) struct Broker {
    pub(crate) id: i32,
    /// Partitions with work that the task has not seen yet.
    incoming: Mutex<Vec<Arc<Partition>>>,
    wake: Notify,
    in_flight: AtomicUsize,
    /// What it said of windows; written by the answers, read by the task.
    grants: Mutex<Grants>,
}

impl Broker {
    pub(crate) fn new(id: i32) -> Arc<Self> {
        Arc::new(Broker {
            id,
            incoming: Mutex::default(),
            wake: Notify::new(),
            in_flight: AtomicUsize::new(0),
            grants: Mutex::default(),
        })
    }

    /// Gives the task a partition to look after.
    pub(crate) fn list(&self, partition: Arc<Partition>) {
        self.incoming.lock().push(partition);
        self.wake.notify_one();
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Takes what an answer says of windows, and that a batch got through.
    fn learn(&self, response: &ProduceResponse, batches: &[Outgoing], core: &Core) {
        let mut grants = self.grants.lock();
        let mut nonsense = grants.learn(response).then_some(response.max_idempotence_batches_to_retain);
        for outgoing in batches {
            let partition = &outgoing.partition;
            let found = find(response, &partition.topic, core.topic_id(&partition.topic), partition.index);
            let Some((topic, answer)) = found else { continue };
            if grants.learn_topic(&partition.topic, topic) {
                nonsense = nonsense.or(Some(topic.producer_state_batches_to_retain));
            }
            grants.proven |= verdict::of(answer.error_code, false) == Verdict::Written;
        }
        if let Some(batches) = nonsense {
            let (low, high) = (WINDOW_DEFAULT, WINDOW_MAX);
            tracing::warn!(broker = self.id, "it says it remembers {batches} batches; taken as within {low} to {high}");
        }
    }
}

/// The task's own state.
struct Sender {
    core: Arc<Core>,
    broker: Arc<Broker>,
    /// Partitions with work, in the order in which they are asked.
    active: Vec<Arc<Partition>>,
    connection: Option<Connection>,
    connect_failures: u32,
}

/// Runs until the producer closes.
pub(crate) async fn run(core: Arc<Core>, broker: Arc<Broker>) {
    let mut sender = Sender { core, broker, active: Vec::new(), connection: None, connect_failures: 0 };
    while !sender.core.is_stopped() {
        sender.active.append(&mut sender.broker.incoming.lock());
        if sender.active.is_empty() || sender.broker.in_flight.load(Ordering::Acquire) >= sender.in_flight_max() {
            sender.broker.wake.notified().await;
            continue;
        }
        let Some(connection) = sender.connect().await else { continue };
        let (batches, next) = sender.gather();
        if batches.is_empty() {
            sender.rest(next).await;
        } else {
            sender.send(&connection, batches).await;
        }
    }
}

impl Sender {
    /// Until something happens, or `next`.
    async fn rest(&self, next: Option<Instant>) {
        let wake = self.broker.wake.notified();
        match next {
            Some(at) => drop(tokio::time::timeout_at(at.into(), wake).await),
            None => wake.await,
        }
    }

    /// A broker that has acknowledged nothing yet gets one request at a time: those before Kafka 4.5 take any first
    /// sequence of a producer (KAFKA-15591).
    fn in_flight_max(&self) -> usize {
        let proven = !self.core.limits.idempotent || self.broker.grants.lock().proven;
        if proven { self.core.config.max_in_flight } else { 1 }
    }

    /// The connection, made anew if it ended. A failure costs the backoff and makes metadata fresh.
    async fn connect(&mut self) -> Option<Connection> {
        if let Some(connection) = self.connection.as_ref().filter(|c| !c.is_closed()) {
            return Some(connection.clone());
        }
        match self.core.cluster.broker(self.broker.id).await {
            Ok(connection) => {
                self.connect_failures = 0;
                self.broker.grants.lock().forget();
                self.connection = Some(connection.clone());
                Some(connection)
            }
            Err(error) => {
                tracing::debug!(broker = self.broker.id, %error, "no connection");
                let why = match &error {
                    MetadataError::Connection(error) => format!("broker {}: {error}", self.broker.id),
                    other => other.to_string(),
                };
                self.active.iter().for_each(|partition| partition.hindered(&why));
                self.core.want_metadata();
                let client = &self.core.config.client;
                let pause = backoff(client.reconnect_backoff, client.reconnect_backoff_max, self.connect_failures);
                self.connect_failures = self.connect_failures.saturating_add(1);
                self.give_away();
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = self.core.stopped() => {}
                }
                None
            }
        }
    }

    /// Partitions that another broker leads by now do not wait for this one.
    fn give_away(&mut self) {
        let broker = self.broker.clone();
        let grants = broker.grants.lock();
        let round = Round { now: Instant::now(), hurry: false, room: Some(0), grants: &grants };
        self.active.retain(|partition| !matches!(partition.take(&broker, &round), Take::Gone));
    }

    /// One request's worth of batches, and when to look again if there are none.
    fn gather(&mut self) -> (Vec<Outgoing>, Option<Instant>) {
        let max = self.core.config.max_request_size;
        let hurry = self.core.is_hurried();
        let grants = self.broker.grants.lock();
        let mut round = Round { now: Instant::now(), hurry, room: None, grants: &grants };
        let (mut batches, mut next): (Vec<Outgoing>, Option<Instant>) = (Vec::new(), None);
        let mut at = 0;
        while at < self.active.len() {
            let take = match self.active[at].take(&self.broker, &round) {
                Take::Identity(spent) => match self.core.identity(spent) {
                    Some(identity) => {
                        self.active[at].adopt(identity);
                        self.active[at].take(&self.broker, &round)
                    }
                    None => Take::NotYet(None),
                },
                take => take,
            };
            match take {
                Take::Batch(outgoing) => {
                    round.room = Some(round.room.unwrap_or(max).saturating_sub(outgoing.batch.size()));
                    batches.push(outgoing);
                    at += 1;
                }
                Take::NotYet(when) => {
                    next = [next, when].into_iter().flatten().min();
                    at += 1;
                }
                Take::NoRoom => break,
                Take::Gone => drop(self.active.swap_remove(at)),
                Take::Identity(_) => at += 1,
            }
        }
        // The first that found no room is the first to be asked next time.
        if at < self.active.len() {
            self.active.rotate_left(at);
        }
        (batches, next)
    }

    /// Seals and writes one request; its answer is acted upon by the connection's reader.
    async fn send(&mut self, connection: &Connection, batches: Vec<Outgoing>) {
        let newest = match connection.version::<ProduceRequest>() {
            Ok(version) => version,
            Err(error) => return self.core.resolve_unsent(batches, &error),
        };
        let (request, version, batches) = build(&self.core, batches, newest);
        if batches.is_empty() {
            return;
        }
        if self.core.config.acks == Acks::None {
            let written = connection.send_unanswered(&request, version).await;
            return self.core.resolve_unanswered(batches, written);
        }
        self.broker.in_flight.fetch_add(1, Ordering::AcqRel);
        let (core, broker) = (self.core.clone(), self.broker.clone());
        let handler = move |result| {
            core.resolve(&broker, batches, result);
            broker.in_flight.fetch_sub(1, Ordering::AcqRel);
            broker.wake();
        };
        connection.send(&request, version, handler).await;
    }
}

/// The request for these batches; those whose codec fails are failed and left out.
fn build(core: &Core, batches: Vec<Outgoing>, newest: i16) -> (ProduceRequest, i16, Vec<Outgoing>) {
    let mut request = ProduceRequest {
        acks: core.config.acks as i16,
        timeout_ms: core.config.client.request_timeout.as_millis() as i32,
        ..Default::default()
    };
    let mut version = newest;
    let mut sent = Vec::with_capacity(batches.len());
    for mut outgoing in batches {
        let bytes = match outgoing.batch.seal(outgoing.stamp) {
            Ok(bytes) => bytes,
            Err(error) => {
                core.fail(outgoing, false, ErrorCode::CORRUPT_MESSAGE, &error.to_string());
                continue;
            }
        };
        let data = PartitionProduceData {
            index: outgoing.partition.index,
            records: Some(Records::Memory(bytes)),
            ..Default::default()
        };
        let topic = &outgoing.partition.topic;
        match request.topic_data.iter_mut().find(|t| t.name == *topic) {
            Some(topic) => topic.partition_data.push(data),
            None => {
                let topic_id = core.topic_id(topic);
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
    (request, version, sent)
}

impl Core {
    fn resolve(
        self: &Arc<Self>,
        broker: &Broker,
        batches: Vec<Outgoing>,
        result: Result<ProduceResponse, ConnectionError>,
    ) {
        match result {
            Ok(response) => {
                broker.learn(&response, &batches, self);
                self.resolve_answered(batches, &response);
            }
            Err(error) => self.resolve_unsent(batches, &error),
        }
    }

    fn resolve_answered(self: &Arc<Self>, batches: Vec<Outgoing>, response: &ProduceResponse) {
        for node in &response.node_endpoints {
            self.cluster.learn_broker(node.node_id, &node.host, node.port);
        }
        let now = Instant::now();
        for outgoing in batches {
            let id = self.topic_id(&outgoing.partition.topic);
            match find(response, &outgoing.partition.topic, id, outgoing.partition.index) {
                Some((_, answer)) => self.act(outgoing, answer, now),
                None => self.set_back(
                    outgoing,
                    Setback::Retry { maybe: true },
                    "the response leaves the partition out",
                    now,
                ),
            }
        }
    }

    /// No response came; perhaps no request arrived.
    fn resolve_unsent(self: &Arc<Self>, batches: Vec<Outgoing>, error: &ConnectionError) {
        let now = Instant::now();
        self.want_metadata();
        for outgoing in batches {
            let maybe = error.may_have_been_received();
            if error.is_retryable() || maybe {
                self.set_back(outgoing, Setback::Retry { maybe }, &error.to_string(), now);
            } else {
                self.fail(outgoing, false, ErrorCode::UNSUPPORTED_VERSION, &error.to_string());
            }
        }
    }

    fn resolve_unanswered(self: &Arc<Self>, batches: Vec<Outgoing>, written: Result<(), ConnectionError>) {
        match written {
            Ok(()) => {
                let now = Instant::now();
                for Outgoing { partition, ticket, batch, .. } in batches {
                    partition.acked(ticket, batch, Written::NOWHERE, now);
                }
            }
            Err(error) => self.resolve_unsent(batches, &error),
        }
    }

    fn act(self: &Arc<Self>, mut outgoing: Outgoing, answer: &PartitionProduceResponse, now: Instant) {
        let message = answer.error_message.as_deref().unwrap_or_default();
        let verdict = verdict::of(answer.error_code, outgoing.batch.ambiguous);
        if verdict::is_stale_metadata(answer.error_code) {
            self.follow(&outgoing.partition, answer);
        }
        match verdict {
            Verdict::Written => {
                let written = Written { base_offset: answer.base_offset, log_append_time: answer.log_append_time_ms };
                let Outgoing { partition, ticket, batch, .. } = outgoing;
                partition.acked(ticket, batch, written, now);
            }
            Verdict::SetBack(setback) => {
                let why = format!("the broker answered {}", error::answer(answer.error_code, message));
                self.set_back(outgoing, setback, &why, now);
            }
            Verdict::TooLarge => {
                outgoing.batch.note_attempt(false);
                let size = outgoing.batch.size();
                match outgoing.batch.split(self.limits.codec, self.config.buffer_memory) {
                    Some(halves) => outgoing.partition.split(outgoing.ticket, size, halves, now),
                    None => self.fail(outgoing, false, answer.error_code, message),
                }
            }
            Verdict::Unresolved => {
                let Outgoing { partition, ticket, batch, .. } = outgoing;
                partition.failed(ticket, batch, true, ProduceError::Unresolved(answer.error_code), now);
            }
            Verdict::Failed { maybe } => self.fail(outgoing, maybe, answer.error_code, message),
        }
    }

    fn fail(&self, outgoing: Outgoing, maybe: bool, code: ErrorCode, message: &str) {
        let Outgoing { partition, ticket, batch, .. } = outgoing;
        let possibly_written = maybe || batch.ambiguous;
        let error = ProduceError::Broker { code, message: message.to_owned(), possibly_written };
        partition.failed(ticket, batch, possibly_written, error, Instant::now());
    }

    fn set_back(&self, outgoing: Outgoing, setback: Setback, why: &str, now: Instant) {
        let Outgoing { partition, ticket, mut batch, .. } = outgoing;
        batch.note_attempt(setback == Setback::Retry { maybe: true });
        let finished = batch.outcome.is_finished();
        if finished || batch.attempts > self.config.retries {
            let (waited, possibly_written) = (now.duration_since(batch.outcome.opened_at), batch.ambiguous);
            let error = ProduceError::Timeout { waited, last: why.to_owned(), possibly_written };
            return partition.failed(ticket, batch, possibly_written, error, now);
        }
        tracing::debug!(topic = %partition.topic, partition = partition.index, why, "a batch goes again");
        let (first, max) = (self.config.retry_backoff, self.config.retry_backoff_max);
        partition.set_back(ticket, batch, setback, why, |failures| backoff(first, max, failures), now);
    }

    /// Goes to the leader that the answer names (KIP-951), or asks who it is.
    fn follow(self: &Arc<Self>, partition: &Arc<Partition>, answer: &PartitionProduceResponse) {
        let named = &answer.current_leader;
        if named.leader_id >= 0 && self.cluster.address(named.leader_id).is_some() {
            partition.set_leader(Some(self.broker(named.leader_id)), named.leader_epoch);
        } else {
            self.want_metadata();
        }
    }
}

/// The answer for a partition, by name or by id as the version has it.
fn find<'a>(
    response: &'a ProduceResponse,
    name: &Text,
    id: Uuid,
    index: i32,
) -> Option<(&'a TopicProduceResponse, &'a PartitionProduceResponse)> {
    let by_id = id != Uuid::default();
    let mut topics = response.responses.iter().filter(|t| t.name == *name || (by_id && t.topic_id == id));
    topics.find_map(|topic| Some((topic, topic.partition_responses.iter().find(|p| p.index == index)?)))
}

/// A pause that doubles with each failure, with a fifth of it at random so that clients do not move in step.
pub(crate) fn backoff(first: Duration, max: Duration, failures: u32) -> Duration {
    let full = first.saturating_mul(1 << failures.min(20)).min(max);
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), failures) % 401;
    full * (800 + random as u32) / 1000
}
