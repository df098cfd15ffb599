//! OffsetForLeaderEpoch 2-4: where an epoch's records end, for clients that check for truncation (KIP-320).

use super::call::{Call, Fault, Reply};
use super::topics;
use crate::partitions::EpochEnd;
use fullbore_wire::apis::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, OffsetForLeaderPartition,
    OffsetForLeaderTopic, OffsetForLeaderTopicResult,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};

pub async fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: OffsetForLeaderEpochRequest = call.body(reply.version)?;
    let image = call.broker.control.image();
    let named = request.topics.iter().flat_map(|topic| topic.partitions.iter().map(|p| (&topic.topic, p.partition)));
    topics::open_all(topics::named(call.broker, &image, named)).await;
    let mut topics = Vec::with_capacity(request.topics.len());
    for OffsetForLeaderTopic { topic, partitions: asked, .. } in request.topics {
        let mut partitions = Vec::with_capacity(asked.len());
        for asked in &asked {
            partitions.push(answer(call, &topic, asked).await);
        }
        topics.push(OffsetForLeaderTopicResult { topic, partitions, ..Default::default() });
    }
    reply.frame::<OffsetForLeaderEpochRequest>(&OffsetForLeaderEpochResponse { topics, ..Default::default() })
}

async fn answer(call: &Call<'_>, topic: &Text, asked: &OffsetForLeaderPartition) -> EpochEndOffset {
    let mut response = EpochEndOffset { partition: asked.partition, ..Default::default() };
    match look_up(call, topic, asked).await {
        Ok(end) => {
            response.leader_epoch = end.leader_epoch;
            response.end_offset = end.end_offset;
        }
        Err(code) => response.error_code = code,
    }
    response
}

async fn look_up(call: &Call<'_>, topic: &Text, asked: &OffsetForLeaderPartition) -> Result<EpochEnd, ErrorCode> {
    let broker = call.broker;
    let image = broker.control.image();
    let partition = topics::opened(broker, topics::find(&image, topic, Uuid::ZERO)?, asked.partition)?;
    partition.check_leads(asked.current_leader_epoch)?;
    partition.refresh().await.map_err(|error| error.code())?;
    partition.epoch_end_offset(asked.leader_epoch).map_err(|error| error.code())
}
