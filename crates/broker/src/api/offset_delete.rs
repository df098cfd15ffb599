//! OffsetDelete 0 (KIP-496): the group, then each partition; topics that a member reads keep their offsets.

use super::call::{Call, Fault, Reply};
use crate::control::Image;
use crate::groups::{DeleteOffset, Missing, TopicName};
use crate::node::Node;
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

async fn delete(broker: &Node, request: &OffsetDeleteRequest) -> Result<Vec<OffsetDeleteResponseTopic>, ErrorCode> {
    let id = &request.group_id;
    if id.is_empty() {
        return Err(ErrorCode::INVALID_GROUP_ID);
    }
    broker.groups.prepare(Missing::Refuse(ErrorCode::GROUP_ID_NOT_FOUND), [id]).await?;
    let image = broker.control.image();
    let asked = broker.groups.touch(id, |group, shard, _| {
        expiry::check_delete_offsets(group)?;
        let mut offsets = Vec::new();
        let topics = request.topics.iter().map(|topic| of_topic(&image, group, topic, &mut offsets)).collect();
        Ok((topics, broker.groups.forget_offsets(shard, id, offsets)))
    })?;
    let (topics, asked) = asked.ok_or(ErrorCode::GROUP_ID_NOT_FOUND)??;
    asked.kept().await.map_err(|_| ErrorCode::COORDINATOR_NOT_AVAILABLE)??;
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
            Some(found) if found.partition(index).is_some() => {
                if !is_read {
                    let topic = TopicName { id: found.id, name: Arc::from(found.name.as_str()) };
                    offsets.push(DeleteOffset { topic, partition: index, committed_ms: None });
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
