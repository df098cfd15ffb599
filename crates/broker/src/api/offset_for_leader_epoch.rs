//! OffsetForLeaderEpoch 2-4: where an epoch's records end, for clients that check for truncation (KIP-320).

use super::call::{Call, Fault, Reply};
use super::topics;
use crate::partitions::{EpochEnd, ReadError};
use fullbore_wire::apis::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};

pub async fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: OffsetForLeaderEpochRequest = call.body(reply.version)?;
    let image = call.broker.control.image();
    let named = request.topics.iter().flat_map(|topic| topic.partitions.iter().map(|p| (&topic.topic, p.partition)));
    let refreshed = Box::pin(topics::open_and_refresh(topics::named(call.broker, &image, named))).await;
    let topics = request
        .topics
        .into_iter()
        .map(|topic| OffsetForLeaderTopicResult {
            partitions: topic.partitions.iter().map(|asked| answer(call, &topic.topic, asked, refreshed)).collect(),
            topic: topic.topic,
            ..Default::default()
        })
        .collect();
    reply.frame::<OffsetForLeaderEpochRequest>(&OffsetForLeaderEpochResponse { topics, ..Default::default() })
}

fn answer(
    call: &Call<'_>,
    topic: &Text,
    asked: &OffsetForLeaderPartition,
    refreshed: Result<(), ReadError>,
) -> EpochEndOffset {
    let mut response = EpochEndOffset { partition: asked.partition, ..Default::default() };
    match look_up(call, topic, asked, refreshed) {
        Ok(end) => {
            response.leader_epoch = end.leader_epoch;
            response.end_offset = end.end_offset;
        }
        Err(code) => response.error_code = code,
    }
    response
}

fn look_up(
    call: &Call<'_>,
    topic: &Text,
    asked: &OffsetForLeaderPartition,
    refreshed: Result<(), ReadError>,
) -> Result<EpochEnd, ErrorCode> {
    let broker = call.broker;
    let image = broker.control.image();
    let partition = topics::opened(broker, topics::find(&image, topic, Uuid::ZERO)?, asked.partition)?;
    partition.check_leads(asked.current_leader_epoch)?;
    partition.is_refreshed(refreshed).map_err(|error| error.code())?;
    partition.epoch_end_offset(asked.leader_epoch).map_err(|error| error.code())
}
