//! ListOffsets 1-11: offsets by time and by position.

use super::call::{Call, Fault, Reply};
use super::topics;
use crate::control::Image;
use crate::node::Node;
use crate::partitions::{ReadError, Replica, TimestampOffset};
use fullbore_wire::apis::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic,
    ListOffsetsTopicResponse,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};
use std::collections::HashSet;

/// The timestamps with a meaning of their own (Kafka's `ListOffsetsRequest`).
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;

pub async fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: ListOffsetsRequest = call.body(reply.version)?;
    let (broker, image) = (call.broker, call.broker.control.image());
    let version = reply.version.number;
    let repeated = repeated(&request.topics);
    let named =
        request.topics.iter().flat_map(|topic| topic.partitions.iter().map(|p| (&topic.name, p.partition_index)));
    topics::open_all(topics::named(broker, &image, named)).await;
    let answer_all = || request.topics.iter().map(|topic| answer(broker, &image, topic, &repeated, version)).collect();
    let topics = if reads_records(&request) { broker.long_work.run(answer_all).await } else { answer_all() };
    reply.frame::<ListOffsetsRequest>(&ListOffsetsResponse { topics, ..Default::default() })
}

/// Whether batches have to be read, and opened where they are compressed.
fn reads_records(request: &ListOffsetsRequest) -> bool {
    let mut asked = request.topics.iter().flat_map(|topic| &topic.partitions);
    asked.any(|partition| partition.timestamp >= 0 || partition.timestamp == MAX_TIMESTAMP)
}

/// Partitions asked for more than once, which Kafka refuses.
fn repeated(topics: &[ListOffsetsTopic]) -> HashSet<(Text, i32)> {
    let mut seen = HashSet::new();
    let asked =
        topics.iter().flat_map(|topic| topic.partitions.iter().map(|p| (topic.name.clone(), p.partition_index)));
    asked.filter(|partition| !seen.insert(partition.clone())).collect()
}

fn answer(
    broker: &Node,
    image: &Image,
    topic: &ListOffsetsTopic,
    repeated: &HashSet<(Text, i32)>,
    version: i16,
) -> ListOffsetsTopicResponse {
    let partition = |asked: &ListOffsetsPartition| {
        let is_repeated = !repeated.is_empty() && repeated.contains(&(topic.name.clone(), asked.partition_index));
        let found =
            if is_repeated { Err(ErrorCode::INVALID_REQUEST) } else { topics::find(image, &topic.name, Uuid::ZERO) };
        let found =
            found.and_then(|topic| topics::opened(broker, topic, asked.partition_index)).and_then(|partition| {
                partition.check_leads(asked.current_leader_epoch)?;
                look_up(&partition, asked.timestamp, version)
            });
        let mut response =
            ListOffsetsPartitionResponse { partition_index: asked.partition_index, ..Default::default() };
        match found {
            Ok(Some(found)) => {
                response.offset = found.offset;
                response.timestamp = found.timestamp;
                response.leader_epoch = found.leader_epoch;
            }
            // No such record: the offset and timestamp stay -1.
            Ok(None) => {}
            Err(code) => response.error_code = code,
        }
        response
    };
    ListOffsetsTopicResponse {
        name: topic.name.clone(),
        partitions: topic.partitions.iter().map(partition).collect(),
        ..Default::default()
    }
}

/// The offset for a timestamp or one of the special ones, as far as `version` knows them.
fn look_up(partition: &Replica, timestamp: i64, version: i16) -> Result<Option<TimestampOffset>, ErrorCode> {
    let code = |error: ReadError| error.code();
    let position = |offset| Ok(Some(TimestampOffset { offset, timestamp: -1, leader_epoch: partition.leader_epoch() }));
    match timestamp {
        LATEST => position(partition.latest_offset()?),
        EARLIEST => position(partition.offsets().map_err(code)?.log_start),
        MAX_TIMESTAMP if version >= 7 => partition.max_timestamp().map_err(code),
        EARLIEST_LOCAL if version >= 8 => position(partition.offsets().map_err(code)?.log_start),
        // Nothing is tiered.
        LATEST_TIERED if version >= 9 => Ok(None),
        EARLIEST_PENDING_UPLOAD if version >= 11 => Ok(None),
        time if time >= 0 => partition.offset_for_timestamp(time).map_err(code),
        _ => Err(ErrorCode::UNSUPPORTED_VERSION),
    }
}
