//! Produce 3-14. Versions 0-2 are advertised only for librdkafka (KAFKA-18659) and are not served.
//!
//! Admission appends: when `admit` returns, the batches have their offsets and their order is fixed. A response may
//! then still have to wait for three things. These are the fsync that a topic demands, the replicas of acks=all, and
//! the missing earlier batches of an out-of-order batch with `reorder`. A diskless topic also fixes the order at
//! admission, but the commit assigns the offsets. An acknowledged batch is in the log exactly once.

use super::call::{Call, Completion, Fault, Reply, words};
use super::client::LaterRequests;
use super::{nodes, topics};
use crate::node::ProduceServices;
use crate::partitions::append::{
    AppendedBatches, BatchResult, RequestBatch, RequestTerms, RequestTransaction, RequestedPartition, append_each,
    refusal_of,
};
use crate::partitions::{Acks, AppendStep, AppendTicket, Appended, EarlyBatches};
use fullbore_control::{Image, Topic, is_internal};
use fullbore_log::validation::{RefusedBatch, Sender};
use fullbore_wire::apis::produce::{
    PartitionProduceData, PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceData,
    TopicProduceResponse,
};
use fullbore_wire::{ErrorCode, Text};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// First version whose batches may be compressed with zstd (KIP-110).
const ZSTD_FROM: i16 = 7;
const ALL: i16 = -1;
/// Maximum time that an out-of-order batch may delay the response of another API on its connection.
const HOLDS_UP_MAX: Duration = Duration::from_secs(1);
/// The client id of Kafka's own tools. They may write to internal topics (`AdminUtils.ADMIN_CLIENT_ID`).
const ADMIN_CLIENT: &str = "__admin_client";
/// The number of retained batches in a response of Produce 14, if the settings of the topic are unknown.
const NOT_SAID: i32 = -1;

/// Checks and appends every batch of the request. Returns `None` for acks=0, which has no response.
///
/// # Errors
/// With acks=0, returns any failure as an error, because only a closed connection can report it.
pub async fn admit(
    call: &Call<'_>,
    services: &Arc<ProduceServices>,
    request: ProduceRequest,
    reply: Reply,
) -> Result<Option<Completion>, Fault> {
    let (behind, peer) = (&call.client.behind, call.client.peer);
    let held_up = HeldUp { behind: Arc::clone(behind), from: behind.count(), until: None };
    let image = services.metadata.control.image();
    let is_admin = call.header.client_id.as_deref() == Some(ADMIN_CLIENT);
    let (batches, responses) = resolve(services, &image, &request, is_admin);
    let is_answered = request.acks != 0;
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let came = tokio::time::Instant::now();
    let terms = RequestTerms {
        acks: if request.acks == ALL { Acks::All } else { Acks::Leader },
        from: Sender {
            may_zstd: reply.version.number >= ZSTD_FROM,
            is_transactional: request.transactional_id.is_some(),
        },
        // With acks=0 there is no response that could report the loss of a batch. So an out-of-order batch is refused
        // instead of parked.
        early: EarlyBatches { are_sent: request.reorder, wait_in: Some(&services.reordering).filter(|_| is_answered) },
        transaction: request
            .transactional_id
            .as_deref()
            .map(|transactional_id| RequestTransaction { transactional_id, produce_version: reply.version.number }),
        peer,
        // With acks=0 there is no response, and so no deadline for it.
        deadline: is_answered.then(|| came + timeout),
        ends_transaction: request.ends_transaction,
    };
    let AppendedBatches { results, failed, has_waited } = append_each(&services.append, &batches, terms).await;
    if !is_answered {
        return if failed.is_err() { Err(Fault::Unacknowledged(failed)) } else { Ok(None) };
    }
    let (mut response, pending) = respond(services, &image, &request, responses, results);
    if pending.is_empty() {
        if failed.is_err() {
            add_leaders(services, &mut response, reply.listener);
        }
        return Ok(Some(Completion::Ready(reply.frame::<ProduceRequest>(&response)?)));
    }
    let deadline = if has_waited { came } else { tokio::time::Instant::now() } + timeout;
    // If a batch is not in a log yet, its bytes were copied. The topic names are now copied as well, so that the
    // request's frame is freed before the response is sent.
    let is_copied = pending.iter().any(|pending| !pending.ticket.is_written());
    if is_copied {
        response.responses.iter_mut().for_each(|topic| topic.name = Text::from(topic.name.to_string()));
    }
    let bytes_held = pending.len() * PENDING_COST + response.responses.iter().map(bytes_of).sum::<usize>();
    let answer = Box::pin(after(Arc::clone(services), response, pending, held_up, deadline, reply));
    Ok(Some(if is_copied { Completion::Holding(answer, bytes_held) } else { Completion::Later(answer) }))
}

/// Finds the partition of each batch. Also returns the entry of each topic in the response, which has no partitions
/// yet.
fn resolve<'r>(
    services: &ProduceServices,
    image: &'r Image,
    request: &'r ProduceRequest,
    may_write_internal: bool,
) -> (Vec<RequestBatch<'r>>, Vec<TopicProduceResponse>) {
    let count = request.topic_data.iter().map(|topic| topic.partition_data.len()).sum();
    let (mut batches, mut responses) = (Vec::with_capacity(count), Vec::with_capacity(request.topic_data.len()));
    for requested in &request.topic_data {
        let found = topics::find(image, &requested.name, requested.topic_id);
        responses.push(begun(requested, found.ok()));
        let to = |index| {
            let topic = found?;
            if !matches!(request.acks, 0 | 1 | ALL) {
                return Err(ErrorCode::INVALID_REQUIRED_ACKS.into());
            }
            if !may_write_internal && is_internal(&topic.name) {
                let message = format!("Cannot append to internal topic {}", topic.name);
                return Err(RefusedBatch::new(ErrorCode::INVALID_TOPIC_EXCEPTION, message));
            }
            let partition = topics::existing(&services.partitions, topic, index)?;
            Ok(RequestedPartition { partition, topic: &topic.name, config: &topic.config, index })
        };
        let batch =
            |data: &'r PartitionProduceData| RequestBatch { to: to(data.index), records: data.records.as_ref() };
        batches.extend(requested.partition_data.iter().map(batch));
    }
    (batches, responses)
}

/// Returns the response with the results that are already known, and the appends that are still pending.
fn respond(
    services: &ProduceServices,
    image: &Image,
    request: &ProduceRequest,
    mut responses: Vec<TopicProduceResponse>,
    results: Vec<BatchResult>,
) -> (ProduceResponse, Vec<PendingAppend>) {
    let (mut results, mut pending) = (results.into_iter(), Vec::new());
    for (topic, (requested, response)) in request.topic_data.iter().zip(&mut responses).enumerate() {
        for (data, result) in requested.partition_data.iter().zip(&mut results) {
            let index = data.index;
            let answer = match result {
                Ok(AppendStep::Done(appended)) => {
                    lower(&mut response.producer_state_batches_to_retain, appended);
                    of_appended(index, appended)
                }
                Ok(AppendStep::Pending(ticket)) => {
                    pending.push(PendingAppend { topic, partition: response.partition_responses.len(), ticket });
                    PartitionProduceResponse { index, ..Default::default() }
                }
                Ok(AppendStep::Blocked(never)) => match never {},
                Err(why) => refused(index, why),
            };
            response.partition_responses.push(answer);
        }
    }
    let response = ProduceResponse {
        responses,
        max_idempotence_batches_to_retain: image.batches_to_retain(),
        reorder_batches: services.reordering.batches_max(),
        ..Default::default()
    };
    (response, pending)
}

fn bytes_of(topic: &TopicProduceResponse) -> usize {
    size_of::<TopicProduceResponse>()
        + topic.name.len()
        + topic.partition_responses.len() * size_of::<PartitionProduceResponse>()
}

/// A batch whose append is pending, with the indexes of its topic and partition in the response.
struct PendingAppend {
    topic: usize,
    partition: usize,
    ticket: AppendTicket,
}

/// Memory that a pending append takes, with the future that waits for it.
const PENDING_COST: usize = 256;

/// Limits the time that a Produce request may delay later requests of its connection. Responses leave in the order of
/// the requests, and a client may need a later response to find the new leader of its partitions.
struct HeldUp {
    behind: Arc<LaterRequests>,
    /// How many requests other than Produce the connection had before this one.
    from: u64,
    /// Time at which the first later request has been delayed for long enough. `None` until a later request arrives.
    until: Option<tokio::time::Instant>,
}

impl HeldUp {
    /// Waits until a later request has arrived and has then been delayed for [`HOLDS_UP_MAX`].
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

/// Waits for the pending appends, then responds.
async fn after(
    services: Arc<ProduceServices>,
    mut response: ProduceResponse,
    pending: Vec<PendingAppend>,
    mut held_up: HeldUp,
    deadline: tokio::time::Instant,
    reply: Reply,
) -> Result<fullbore_wire::Frame, Fault> {
    for PendingAppend { topic, partition, ticket } in pending {
        let topic = &mut response.responses[topic];
        let at = &mut topic.partition_responses[partition];
        match ticket.wait(deadline, held_up.for_long(), &services.append.metrics).await {
            Ok(appended) => {
                *at = of_appended(at.index, appended);
                lower(&mut topic.producer_state_batches_to_retain, appended);
            }
            Err(error) => *at = refused(at.index, refusal_of(error)),
        }
    }
    add_leaders(&services, &mut response, reply.listener);
    reply.frame::<ProduceRequest>(&response)
}

/// Adds the leader to each entry with NOT_LEADER_OR_FOLLOWER, and the addresses of these leaders to the response
/// (KIP-951).
fn add_leaders(services: &ProduceServices, response: &mut ProduceResponse, listener: usize) {
    let is_moved = |at: &PartitionProduceResponse| at.error_code == ErrorCode::NOT_LEADER_OR_FOLLOWER;
    if !response.responses.iter().any(|topic| topic.partition_responses.iter().any(is_moved)) {
        return;
    }
    let image = services.metadata.control.image();
    let mut leaders = BTreeSet::new();
    for topic in &mut response.responses {
        let Ok(found) = topics::find(&image, &topic.name, topic.topic_id) else { continue };
        for at in topic.partition_responses.iter_mut().filter(|at| is_moved(at)) {
            if let Some(leader) = nodes::leader_elsewhere(&services.metadata, &image, listener, found, at.index) {
                leaders.insert(leader.leader_id);
                at.current_leader = leader;
            }
        }
    }
    response.node_endpoints = nodes::endpoints(&services.metadata, &image, listener, &leaders);
}

/// Returns the entry of a topic, without its partitions.
fn begun(requested: &TopicProduceData, found: Option<&Arc<Topic>>) -> TopicProduceResponse {
    let retained = found.and_then(|topic| i32::try_from(topic.config.producer_state_batches_to_retain).ok());
    TopicProduceResponse {
        name: requested.name.clone(),
        topic_id: requested.topic_id,
        partition_responses: Vec::with_capacity(requested.partition_data.len()),
        producer_state_batches_to_retain: retained.unwrap_or(NOT_SAID),
        ..Default::default()
    }
}

/// Lowers `retained` to the number of batches that this partition retains, if that number is smaller. After a change of
/// the setting, the partitions of a topic may have different numbers for a moment.
fn lower(retained: &mut i32, appended: Appended) {
    *retained = i32::try_from(appended.batches_retained).map_or(*retained, |then| then.min(*retained));
}

fn of_appended(index: i32, appended: Appended) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index,
        base_offset: appended.base_offset,
        log_append_time_ms: appended.log_append_time_ms,
        log_start_offset: appended.log_start_offset,
        ..Default::default()
    }
}

/// Returns the response entry of a partition whose batch was refused.
fn refused(index: i32, why: RefusedBatch) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index,
        error_code: why.code,
        error_message: Some(words(why.message)),
        record_errors: why.records,
        log_start_offset: why.log_start_offset,
        ..Default::default()
    }
}
