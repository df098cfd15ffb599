//! OffsetForLeaderEpoch 2-4: returns where the records of a leader epoch end. Clients use it to check for truncation
//! (KIP-320).

use super::call::{Call, Fault, Reply};
use super::topics;
use crate::node::MetadataServices;
use crate::partitions::{EpochEnd, Partitions, ReadError};
use fullbore_control::Image;
use fullbore_wire::apis::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};

pub async fn handle(
    call: &mut Call<'_>,
    metadata: &MetadataServices,
    hosted: &Partitions,
    reply: Reply,
) -> Result<Frame, Fault> {
    let request: OffsetForLeaderEpochRequest = call.body(reply.version)?;
    let image = metadata.control.image();
    let named = request.topics.iter().flat_map(|topic| topic.partitions.iter().map(|p| (&topic.topic, p.partition)));
    let refreshed = Box::pin(topics::open_and_refresh(topics::named(hosted, &image, named))).await;
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for requested in &topic.partitions {
            partitions.push(answer(hosted, &image, &topic.topic, requested, refreshed).await);
        }
        topics.push(OffsetForLeaderTopicResult { topic: topic.topic, partitions, ..Default::default() });
    }
    reply.frame::<OffsetForLeaderEpochRequest>(&OffsetForLeaderEpochResponse { topics, ..Default::default() })
}

async fn answer(
    hosted: &Partitions,
    image: &Image,
    topic: &Text,
    requested: &OffsetForLeaderPartition,
    refreshed: Result<(), ReadError>,
) -> EpochEndOffset {
    let mut response = EpochEndOffset { partition: requested.partition, ..Default::default() };
    match look_up(hosted, image, topic, requested, refreshed).await {
        Ok(end) => {
            response.leader_epoch = end.leader_epoch;
            response.end_offset = end.end_offset;
        }
        Err(code) => response.error_code = code,
    }
    response
}

async fn look_up(
    hosted: &Partitions,
    image: &Image,
    topic: &Text,
    requested: &OffsetForLeaderPartition,
    refreshed: Result<(), ReadError>,
) -> Result<EpochEnd, ErrorCode> {
    let topic = topics::find(image, topic, Uuid::ZERO)?;
    let partition = topics::opened(hosted, topic, requested.partition).await?;
    partition.check_leads(requested.current_leader_epoch)?;
    partition.is_refreshed(refreshed).map_err(|error| error.code())?;
    partition.epoch_end_offset(requested.leader_epoch).map_err(|error| error.code())
}
