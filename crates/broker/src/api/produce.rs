//! Produce 3-14 (0-2 are advertised for librdkafka's sake, KAFKA-18659, and not served).
//!
//! Admission appends: when `admit` returns, the batches have their offsets, and the order is fixed. What may come
//! later is only the fsync a topic asks for, the replicas of acks=all, and the turn of a batch that is early where the request says `reorder`.
//! Of a diskless topic the order is fixed then, too, and the offset comes with the commit.
//! Invariant: an acknowledged batch is in the log exactly once.

use super::call::{Completion, Fault, Reply};
use super::client::LaterRequests;
use super::{nodes, topics};
use crate::control::{Image, Topic, is_internal};
use crate::diskless::DisklessPartition;
use crate::node::Node;
use crate::partitions::{
    Acks, AnswerTicket, AnyPartition, AppendError, Appended, BatchAnswer, EarlyBatches, Lack, LaterAnswer,
    PartitionAppend, Waited,
};
use fullbore_log::validation::{
    Destination, Invalid, LargeBatchPermit, Opening, OpeningBudget, RefusedBatch, SHORT_MAX, Sender, TOLD_MAX,
    claimed_stamp, validate, work_of,
};
use fullbore_wire::apis::produce::{
    PartitionProduceData, PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceData,
    TopicProduceResponse,
};
use fullbore_wire::{ErrorCode, Records, Text};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The first Produce version that may carry zstd (KIP-110).
const ZSTD_FROM: i16 = 7;
const ALL: i16 = -1;
/// Records of more bytes than this take longer than a millisecond or two to be checked and written.
const LONG_BYTES: usize = 2 << 20;
/// After so long the rest of a long request queues for a place anew, behind those who wait for one.
const PLACE_MAX: Duration = Duration::from_millis(50);
/// The longest that a batch before its turn holds up the answer of a request other than Produce on its connection.
const HOLDS_UP_MAX: Duration = Duration::from_secs(1);
/// What Kafka's own tools call themselves, which may write to internal topics (`AdminUtils.ADMIN_CLIENT_ID`).
const ADMIN_CLIENT: &str = "__admin_client";
/// What Produce 14 says of a topic whose settings are not known.
const NOT_SAID: i32 = -1;

/// Checks and appends every batch of a client, which has an address and an id. `None` with acks=0.
///
/// # Errors
/// With acks=0, when anything failed: closing the connection is the only way to tell.
pub async fn admit(
    broker: &Arc<Node>,
    request: ProduceRequest,
    (client, behind): ((SocketAddr, Option<&str>), &Arc<LaterRequests>),
    reply: Reply,
) -> Result<Option<Completion>, Fault> {
    let (acks, timeout_ms) = (request.acks, request.timeout_ms);
    let held_up = HeldUp { behind: Arc::clone(behind), from: behind.count(), until: None };
    let image = broker.control.image();
    let mut is_long = prepare(broker, &image, &request).await;
    let mut appending = Appending::new(broker, &image, &request, reply.version.number, client);
    let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
    let came = tokio::time::Instant::now();
    let (mut turn, mut has_waited) = (None, false);
    loop {
        let mut go_on = || appending.go_on(turn.take(), is_long);
        let paused = if is_long { broker.long_work.run(go_on).await } else { go_on() };
        match paused {
            ControlFlow::Continue(()) => break,
            ControlFlow::Break(Pause::Turn) => turn = Some(broker.decompression.turn().await),
            ControlFlow::Break(Pause::Partition(partition, lack)) => {
                has_waited = true;
                // Without an answer there is nothing to be late with.
                let deadline = (acks != 0).then(|| came + timeout);
                let others = appending.behind(lack);
                Box::pin(partition.wait_for((lack, &others), &mut appending.waited, deadline)).await;
            }
            ControlFlow::Break(Pause::Long) => is_long = true,
            ControlFlow::Break(Pause::Others) => {}
        }
    }
    let (mut response, pending, failed) = appending.done();
    if acks == 0 {
        return if failed.is_err() { Err(Fault::Unacknowledged(failed)) } else { Ok(None) };
    }
    if pending.is_empty() {
        if failed.is_err() {
            tell_leaders(broker, &mut response, reply.listener);
        }
        return Ok(Some(Completion::Ready(reply.frame::<ProduceRequest>(&response)?)));
    }
    let deadline = if has_waited { came } else { tokio::time::Instant::now() } + timeout;
    // Nothing of the request's frame is held for those.
    let is_parked = pending.iter().any(|pending| matches!(pending.awaits, Awaits::Answer(_)));
    if is_parked {
        response.responses.iter_mut().for_each(|topic| topic.name = Text::from(topic.name.to_string()));
    }
    let bytes_held = pending.len() * PENDING_COST + response.responses.iter().map(bytes_of).sum::<usize>();
    let answer = Box::pin(after(Arc::clone(broker), response, (pending, held_up), deadline, reply));
    Ok(Some(if is_parked { Completion::Holding(answer, bytes_held) } else { Completion::Later(answer) }))
}

/// Waits until no log has to be opened; whether the request takes long all the same.
async fn prepare(broker: &Node, image: &Image, request: &ProduceRequest) -> bool {
    let (mut bytes, mut work, mut is_unwritten, mut unsettled) = (0, 0_usize, false, Vec::new());
    for topic in &request.topic_data {
        let Ok(found) = topics::find(image, &topic.name, topic.topic_id) else { continue };
        for data in &topic.partition_data {
            if let Some(records) = data.records.as_ref().and_then(Records::memory) {
                bytes += records.len();
                work = work.saturating_add(work_of(records, &found.config));
            }
            let Ok(partition) = topics::partition(broker, found, data.index) else { continue };
            is_unwritten |= partition.is_unwritten();
            if !partition.is_settled() {
                unsettled.push(partition);
            }
        }
    }
    topics::open_all(unsettled).await;
    bytes > LONG_BYTES || work > SHORT_MAX || is_unwritten
}

fn bytes_of(topic: &TopicProduceResponse) -> usize {
    size_of::<TopicProduceResponse>()
        + topic.name.len()
        + topic.partition_responses.len() * size_of::<PartitionProduceResponse>()
}

/// Where in the response a batch is of which something is still to come.
struct PendingBatch {
    topic: usize,
    partition: usize,
    awaits: Awaits,
}

enum Awaits {
    /// Its fsync, and its replicas.
    Ticket(AnswerTicket),
    /// Its turn, and then the same; or its commit.
    Answer(LaterAnswer),
}

/// Bytes of one of them, and of what it waits for.
const PENDING_COST: usize = 256;

/// Answers that a request holds up: those of other requests than Produce that came after it on its connection. A client may need
/// them to learn where its batches go, and its answers keep the order of its requests.
struct HeldUp {
    behind: Arc<LaterRequests>,
    /// Such requests that came before it.
    from: u64,
    /// The end of the time for which the first of them is held up, once it has come.
    until: Option<tokio::time::Instant>,
}

impl HeldUp {
    /// Waits until one has been held up for [`HOLDS_UP_MAX`].
    async fn for_long(&mut self) {
        let until = match self.until {
            Some(until) => until,
            None => {
                self.behind.passes(self.from).await;
                *self.until.insert(tokio::time::Instant::now() + HOLDS_UP_MAX)
            }
        };
        tokio::time::sleep_until(until).await;
    }
}

/// Waits for what is pending, then answers.
async fn after(
    broker: Arc<Node>,
    mut response: ProduceResponse,
    (pending, mut held_up): (Vec<PendingBatch>, HeldUp),
    deadline: tokio::time::Instant,
    reply: Reply,
) -> Result<fullbore_wire::Frame, Fault> {
    for PendingBatch { topic, partition, awaits } in pending {
        let topic = &mut response.responses[topic];
        let at = &mut topic.partition_responses[partition];
        let ticket = match awaits {
            Awaits::Ticket(ticket) => Some(ticket),
            Awaits::Answer(later) => match later.wait(deadline, held_up.for_long()).await {
                Ok(mut appended) => {
                    let ticket = appended.ticket.take();
                    *at = of_appended(at.index, &appended);
                    lower(&mut topic.producer_state_batches_to_retain, &appended);
                    ticket
                }
                Err(error) => {
                    *at = refused(at.index, not_appended(error));
                    None
                }
            },
        };
        if let Some(ticket) = ticket
            && let Err(error) = ticket.wait(deadline).await
        {
            broker.metrics.produce_failed(error.code());
            *at = refused(at.index, not_appended(error));
        }
    }
    tell_leaders(&broker, &mut response, reply.listener);
    reply.frame::<ProduceRequest>(&response)
}

/// Tells who leads the partitions that another broker leads, and where that is (KIP-951).
fn tell_leaders(broker: &Node, response: &mut ProduceResponse, listener: usize) {
    let is_moved = |at: &PartitionProduceResponse| at.error_code == ErrorCode::NOT_LEADER_OR_FOLLOWER;
    if !response.responses.iter().any(|topic| topic.partition_responses.iter().any(is_moved)) {
        return;
    }
    let image = broker.control.image();
    let mut leaders = BTreeSet::new();
    for topic in &mut response.responses {
        let Ok(found) = topics::find(&image, &topic.name, topic.topic_id) else { continue };
        for at in topic.partition_responses.iter_mut().filter(|at| is_moved(at)) {
            if let Some(leader) = nodes::leader_elsewhere(broker, &image, listener, (found, at.index)) {
                leaders.insert(leader.leader_id);
                at.current_leader = leader;
            }
        }
    }
    response.node_endpoints = nodes::endpoints(broker, &image, listener, &leaders);
}

/// One request on its way through its partitions, in order: what is answered of it shows how far it has come.
struct Appending<'a> {
    broker: &'a Node,
    image: &'a Image,
    request: &'a ProduceRequest,
    version: i16,
    peer: SocketAddr,
    may_write_internal: bool,
    responses: Vec<TopicProduceResponse>,
    pending: Vec<PendingBatch>,
    /// The last error, for acks=0.
    failed: ErrorCode,
    /// How many more records may be told one by one: a request of a megabyte may have ten thousand batches of a thousand.
    told_left: usize,
    /// Look-ups and memory that the request has waited for.
    waited: Waited,
    /// Records that the request may still open.
    budget: OpeningBudget,
}

/// A batch that is taken.
enum Taken {
    Appended(Appended),
    Later(LaterAnswer),
}

/// Why a batch is not appended, at least not yet.
enum Stopped {
    Invalid(Invalid),
    Lacks(AnyPartition, Lack),
}

impl<E: Into<Invalid>> From<E> for Stopped {
    fn from(error: E) -> Self {
        Stopped::Invalid(error.into())
    }
}

/// Why a request gives its place for long work back before it is done.
enum Pause {
    /// The next batch opens to much, and must have its turn.
    Turn,
    /// The rest of the request takes longer than other connections should wait.
    Long,
    /// Its partition has to be waited for.
    Partition(AnyPartition, Lack),
    /// It has had the place for long.
    Others,
}

impl<'a> Appending<'a> {
    fn new(
        broker: &'a Node,
        image: &'a Image,
        request: &'a ProduceRequest,
        version: i16,
        (peer, client_id): (SocketAddr, Option<&str>),
    ) -> Self {
        let may_write_internal = client_id == Some(ADMIN_CLIENT);
        let responses = Vec::with_capacity(request.topic_data.len());
        let (pending, failed) = (Vec::new(), ErrorCode::NONE);
        let (told_left, waited) = (TOLD_MAX, Waited::default());
        let budget = OpeningBudget::short();
        Appending {
            broker,
            image,
            request,
            version,
            peer,
            may_write_internal,
            responses,
            pending,
            failed,
            told_left,
            waited,
            budget,
        }
    }

    /// Checks and appends one batch after the other, at least one, the first one in its turn if it has that. With a
    /// place for long work it stops after [`PLACE_MAX`].
    fn go_on(&mut self, mut turn: Option<LargeBatchPermit<'_>>, is_long: bool) -> ControlFlow<Pause> {
        let (image, request) = (self.image, self.request);
        let until = is_long.then(|| Instant::now() + PLACE_MAX);
        if is_long {
            self.budget = OpeningBudget::long();
        }
        for (at, topic) in request.topic_data.iter().enumerate().skip(self.responses.len().saturating_sub(1)) {
            let found = topics::find(image, &topic.name, topic.topic_id);
            if at == self.responses.len() {
                self.responses.push(begun(topic, found.ok()));
            }
            let answered = self.responses[at].partition_responses.len();
            for data in &topic.partition_data[answered..] {
                let outcome = match found {
                    Ok(topic) => self.partition(topic, data, turn.take().as_ref()),
                    Err(code) => Err(Stopped::from(code)),
                };
                match outcome {
                    Ok(taken) => self.taken(at, data.index, taken),
                    Err(Stopped::Lacks(partition, lack)) => {
                        return ControlFlow::Break(Pause::Partition(partition, lack));
                    }
                    Err(Stopped::Invalid(Invalid::Large)) => return ControlFlow::Break(Pause::Turn),
                    Err(Stopped::Invalid(Invalid::Long)) => return ControlFlow::Break(Pause::Long),
                    Err(Stopped::Invalid(Invalid::Refused(why))) => self.refused(at, data.index, why),
                }
                if until.is_some_and(|until| Instant::now() > until) {
                    return ControlFlow::Break(Pause::Others);
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Partitions of the batches behind the next one that lack the same: they are looked at together, once a request.
    fn behind(&self, lack: Lack) -> Vec<Arc<DisklessPartition>> {
        let Lack::Known(producer_id) = lack else { return Vec::new() };
        if self.waited.has_looked() {
            return Vec::new();
        }
        let from = self.responses.len().saturating_sub(1);
        let answered = self.responses.last().map_or(0, |topic| topic.partition_responses.len());
        let mut behind = Vec::new();
        for (at, topic) in self.request.topic_data.iter().enumerate().skip(from) {
            let Ok(found) = topics::find(self.image, &topic.name, topic.topic_id) else { continue };
            let is_behind = if at == from { answered + 1 } else { 0 };
            for data in topic.partition_data.iter().skip(is_behind) {
                if let Ok(AnyPartition::Diskless(partition)) = topics::partition(self.broker, found, data.index)
                    && partition.lacks(producer_id)
                {
                    behind.push(partition);
                }
            }
        }
        behind
    }

    /// The response so far, what is still to come, and the last error.
    fn done(self) -> (ProduceResponse, Vec<PendingBatch>, ErrorCode) {
        let response = ProduceResponse {
            responses: self.responses,
            max_idempotence_batches_to_retain: self.image.batches_to_retain(),
            reorder_batches: self.broker.reordering.batches_max(),
            ..Default::default()
        };
        (response, self.pending, self.failed)
    }

    fn partition(
        &mut self,
        topic: &Topic,
        data: &PartitionProduceData,
        turn: Option<&LargeBatchPermit<'_>>,
    ) -> Result<Taken, Stopped> {
        let acks = match self.request.acks {
            0 | 1 => Acks::Leader,
            ALL => Acks::All,
            _ => return Err(ErrorCode::INVALID_REQUIRED_ACKS.into()),
        };
        if !self.may_write_internal && is_internal(&topic.name) {
            let message = format!("Cannot append to internal topic {}", topic.name);
            return Err(RefusedBatch::new(ErrorCode::INVALID_TOPIC_EXCEPTION, message).into());
        }
        let partition = topics::opened_or_new(self.broker, topic, data.index)
            .inspect_err(|code| turned_away(self.broker, topic, data, *code))?;
        let now_ms = self.broker.now_ms();
        let from =
            Sender { may_zstd: self.version >= ZSTD_FROM, is_transactional: self.request.transactional_id.is_some() };
        let to = Destination { topic: &topic.name, partition: data.index, config: &topic.config, now_ms };
        let opening = Opening { decompression: &self.broker.decompression, turn, budget: &mut self.budget };
        let batch = validate(data.records.as_ref(), from, to, opening)?;
        let (size, records) = (batch.view().size(), batch.view().record_count());
        // Nobody would hear what became of a batch that waits without an answer.
        let wait_in = Some(&self.broker.reordering).filter(|_| self.request.acks != 0);
        let early = EarlyBatches { are_sent: self.request.reorder, wait_in };
        let how = PartitionAppend { acks, now_ms, early, peer: self.peer };
        match partition.append(&batch, how, &mut self.waited).map_err(not_appended)? {
            BatchAnswer::Appended(appended) => {
                self.broker.metrics.appended(size, records);
                Ok(Taken::Appended(appended))
            }
            BatchAnswer::Later(answer) => Ok(Taken::Later(answer)),
            BatchAnswer::Lacks(lack) => Err(Stopped::Lacks(partition, lack)),
        }
    }

    /// Answers for the partition, as far as the answer is known.
    fn taken(&mut self, topic: usize, index: i32, taken: Taken) {
        self.waited.next_batch();
        let response = &mut self.responses[topic];
        let partition = response.partition_responses.len();
        let (known, awaits) = match taken {
            Taken::Appended(mut appended) => {
                lower(&mut response.producer_state_batches_to_retain, &appended);
                let ticket = appended.ticket.take();
                (of_appended(index, &appended), ticket.map(Awaits::Ticket))
            }
            Taken::Later(answer) => {
                (PartitionProduceResponse { index, ..Default::default() }, Some(Awaits::Answer(answer)))
            }
        };
        response.partition_responses.push(known);
        self.pending.extend(awaits.map(|awaits| PendingBatch { topic, partition, awaits }));
    }

    fn refused(&mut self, topic: usize, index: i32, mut why: RefusedBatch) {
        self.waited.next_batch();
        why.tell_at_most(self.told_left);
        self.told_left -= why.records.len();
        self.broker.metrics.produce_failed(why.code);
        self.failed = why.code;
        self.responses[topic].partition_responses.push(refused(index, why));
    }
}

/// Notes that a batch is refused before it was validated. Its header is believed: at worst a batch that is out of order is answered with `code`.
fn turned_away(broker: &Node, topic: &Topic, data: &PartitionProduceData, code: ErrorCode) {
    if let Some(partition) = broker.partitions.find_any(&topic.id, data.index)
        && let Some(stamp) = data.records.as_ref().and_then(Records::memory).and_then(|bytes| claimed_stamp(bytes))
    {
        partition.turned_away(&stamp, code);
    }
}

/// The answer for a topic of which no partition has been looked at.
fn begun(asked: &TopicProduceData, found: Option<&Arc<Topic>>) -> TopicProduceResponse {
    let retained = found.and_then(|topic| i32::try_from(topic.config.producer_state_batches_to_retain).ok());
    TopicProduceResponse {
        name: asked.name.clone(),
        topic_id: asked.topic_id,
        partition_responses: Vec::with_capacity(asked.partition_data.len()),
        producer_state_batches_to_retain: retained.unwrap_or(NOT_SAID),
        ..Default::default()
    }
}

/// The least that any partition of the topic had set: they learn of a change one after the other.
fn lower(retained: &mut i32, appended: &Appended) {
    *retained = i32::try_from(appended.batches_retained).map_or(*retained, |then| then.min(*retained));
}

fn of_appended(index: i32, appended: &Appended) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index,
        base_offset: appended.base_offset,
        log_append_time_ms: appended.log_append_time_ms,
        log_start_offset: appended.log_start_offset,
        ..Default::default()
    }
}

/// Why a batch was not appended, for its client.
fn not_appended(error: AppendError) -> RefusedBatch {
    let refused = RefusedBatch::new(error.code(), error.to_string());
    match error {
        AppendError::UnknownProducer { log_start_offset } => RefusedBatch { log_start_offset, ..refused },
        _ => refused,
    }
}

/// The answer for a partition whose batch was not taken.
fn refused(index: i32, why: RefusedBatch) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index,
        error_code: why.code,
        error_message: Some(Text::from(why.message)),
        record_errors: why.records,
        log_start_offset: why.log_start_offset,
        ..Default::default()
    }
}
