//! ListOffsets 1-11: finds offsets by timestamp, and the first and last ones.

use super::call::{Call, Fault, Reply};
use super::topics;
use crate::node::MetadataServices;
use crate::partitions::{AnyPartition, Partitions, ReadError, TimeQuery, TimestampOffset};
use fullbore_control::Image;
use fullbore_host::long_work::LongWork;
use fullbore_log::partition::read::Isolation;
use fullbore_wire::apis::list_offsets::{
    ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic,
    ListOffsetsTopicResponse,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};
use std::collections::HashSet;

/// Timestamps with a special meaning (Kafka's `ListOffsetsRequest`).
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;

pub async fn handle(
    call: &mut Call<'_>,
    metadata: &MetadataServices,
    hosted: &Partitions,
    long: &LongWork,
    reply: Reply,
) -> Result<Frame, Fault> {
    let request: ListOffsetsRequest = call.body(reply.version)?;
    let image = metadata.control.image();
    let (version, isolation) = (reply.version.number, Isolation::from_code(request.isolation_level));
    let repeated = repeated(&request.topics);
    let named =
        request.topics.iter().flat_map(|topic| topic.partitions.iter().map(|p| (&topic.name, p.partition_index)));
    let refreshed = Box::pin(topics::open_and_refresh(topics::named(hosted, &image, named))).await;
    let mut looked_up = Vec::new();
    for topic in &request.topics {
        for requested in &topic.partitions {
            let is_repeated =
                !repeated.is_empty() && repeated.contains(&(topic.name.clone(), requested.partition_index));
            looked_up.push(match isolation {
                Some(isolation) if !is_repeated => {
                    let terms = RequestTerms { version, isolation, refreshed };
                    look_up(hosted, &image, &topic.name, requested, terms).await
                }
                _ => Err(ErrorCode::INVALID_REQUEST),
            });
        }
    }
    if let Some(isolation) = isolation {
        find_by_time(&mut looked_up, isolation, long).await;
    }
    let mut found = looked_up.into_iter();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in &request.topics {
        let answered = topic.partitions.iter().zip(found.by_ref());
        let partitions = answered.map(|(requested, found)| answer(requested.partition_index, found)).collect();
        topics.push(ListOffsetsTopicResponse { name: topic.name.clone(), partitions, ..Default::default() });
    }
    reply.frame::<ListOffsetsRequest>(&ListOffsetsResponse { topics, ..Default::default() })
}

/// The result of looking up a partition of a request.
enum LookedUp {
    /// The answer, or `None` if no record matches.
    Known(Option<TimestampOffset>),
    /// A query by time, which still has to be answered.
    ByTime(AnyPartition, TimeQuery),
}

/// Answers the queries by time among `looked_up`, all of them together.
async fn find_by_time(looked_up: &mut [Result<LookedUp, ErrorCode>], isolation: Isolation, long: &LongWork) {
    let (mut queries, mut open) = (Vec::new(), Vec::new());
    for one in looked_up {
        if let Ok(LookedUp::ByTime(partition, query)) = one {
            queries.push((partition.clone(), *query));
            open.push(one);
        }
    }
    let found = Box::pin(AnyPartition::offsets_by_time(&queries, isolation, long)).await;
    for (one, found) in open.into_iter().zip(found) {
        *one = found.map(LookedUp::Known).map_err(|error| error.code());
    }
}

/// Returns the partitions that a request names more than once. Kafka refuses them.
fn repeated(topics: &[ListOffsetsTopic]) -> HashSet<(Text, i32)> {
    let mut seen = HashSet::new();
    let requested =
        topics.iter().flat_map(|topic| topic.partitions.iter().map(|p| (topic.name.clone(), p.partition_index)));
    requested.filter(|partition| !seen.insert(partition.clone())).collect()
}

fn answer(partition_index: i32, found: Result<LookedUp, ErrorCode>) -> ListOffsetsPartitionResponse {
    let mut response = ListOffsetsPartitionResponse { partition_index, ..Default::default() };
    match found {
        Ok(LookedUp::Known(Some(found))) => {
            response.offset = found.offset;
            response.timestamp = found.timestamp;
            response.leader_epoch = found.leader_epoch;
        }
        // No record was found, so the offset and the timestamp stay -1.
        Ok(_) => {}
        Err(code) => response.error_code = code,
    }
    response
}

/// The parts of a request that apply to all of its partitions.
#[derive(Clone, Copy)]
struct RequestTerms {
    version: i16,
    isolation: Isolation,
    /// Ok, or the error with which refreshing the offsets of diskless partitions has failed.
    refreshed: Result<(), ReadError>,
}

/// Looks up the partition and the offset for one of the special timestamps that `version` knows. Returns a query if the
/// offset must be found by time.
async fn look_up(
    hosted: &Partitions,
    image: &Image,
    topic: &Text,
    requested: &ListOffsetsPartition,
    of: RequestTerms,
) -> Result<LookedUp, ErrorCode> {
    let RequestTerms { version, isolation, refreshed } = of;
    let topic = topics::find(image, topic, Uuid::ZERO)?;
    let partition = topics::opened(hosted, topic, requested.partition_index).await?;
    partition.check_leads(requested.current_leader_epoch)?;
    let code = |error: ReadError| error.code();
    partition.is_refreshed(refreshed).map_err(code)?;
    let known = match requested.timestamp {
        LATEST => {
            let (offset, leader_epoch) = (partition.latest_offset(isolation)?, partition.leader_epoch());
            Some(TimestampOffset { offset, timestamp: -1, leader_epoch })
        }
        EARLIEST => Some(partition.earliest().map_err(code)?),
        MAX_TIMESTAMP if version >= 7 => return Ok(LookedUp::ByTime(partition, TimeQuery::Largest)),
        EARLIEST_LOCAL if version >= 8 => Some(partition.earliest().map_err(code)?),
        // Without tiered storage, no record is found.
        LATEST_TIERED if version >= 9 => None,
        EARLIEST_PENDING_UPLOAD if version >= 11 => None,
        time if time >= 0 => return Ok(LookedUp::ByTime(partition, TimeQuery::Since(time))),
        _ => return Err(ErrorCode::UNSUPPORTED_VERSION),
    };
    Ok(LookedUp::Known(known))
}
