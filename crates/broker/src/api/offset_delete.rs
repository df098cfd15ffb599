//! OffsetDelete 0 (KIP-496): the group, then each partition; topics that a member reads keep their offsets.

use super::{Call, Fault, Reply};
use crate::broker::Shared;
use crate::control::{Command, DeleteOffset, DeleteOffsets, Image, Refusal};
use fullbore_rules::group::{Group, expiry};
use fullbore_wire::apis::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteRequestTopic, OffsetDeleteResponse, OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
};
use fullbore_wire::{ErrorCode, Frame};
use std::sync::Arc;

pub async fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: OffsetDeleteRequest = call.body(reply.version)?;
    let response = match delete(call.broker, &request).await {
        Ok(topics) => OffsetDeleteResponse { topics, ..Default::default() },
        Err(error_code) => OffsetDeleteResponse { error_code, ..Default::default() },
    };
    reply.frame::<OffsetDeleteRequest>(&response)
}

async fn delete(broker: &Shared, request: &OffsetDeleteRequest) -> Result<Vec<OffsetDeleteResponseTopic>, ErrorCode> {
    let id = &request.group_id;
    if id.is_empty() {
        return Err(ErrorCode::INVALID_GROUP_ID);
    }
    let image = broker.control.image();
    let place = broker.control.enter().await.map_err(unavailable)?;
    let asked = broker.groups.touch(id, |group, _| {
        expiry::check_delete_offsets(group)?;
        let mut offsets = Vec::new();
        let topics = request.topics.iter().map(|topic| of_topic(&image, group, topic, &mut offsets)).collect();
        Ok((topics, place.ask(Command::DeleteOffsets(DeleteOffsets { group: Arc::from(&**id), offsets }))))
    });
    let (topics, asked) = asked.ok_or(ErrorCode::GROUP_ID_NOT_FOUND)??;
    asked.done().await.map_err(unavailable)?;
    Ok(topics)
}

fn of_topic(
    image: &Image,
    group: &Group,
    topic: &OffsetDeleteRequestTopic,
    offsets: &mut Vec<DeleteOffset>,
) -> OffsetDeleteResponseTopic {
    let found = image.topic(&topic.name);
    let is_read = group.reads(&topic.name);
    let mut of_partition = |index: i32| {
        let error_code = match found {
            Some(found) if (0..found.partitions).contains(&index) => {
                if !is_read {
                    offsets.push(DeleteOffset { topic: found.id, partition: index, committed_ms: None });
                }
                if is_read { ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC } else { ErrorCode::NONE }
            }
            _ => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        };
        OffsetDeleteResponsePartition { partition_index: index, error_code, ..Default::default() }
    };
    let partitions = topic.partitions.iter().map(|partition| of_partition(partition.partition_index)).collect();
    OffsetDeleteResponseTopic { name: topic.name.clone(), partitions, ..Default::default() }
}

fn unavailable(_: Refusal) -> ErrorCode {
    ErrorCode::COORDINATOR_NOT_AVAILABLE
}
