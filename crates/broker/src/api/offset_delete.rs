//! OffsetDelete 0 (KIP-496): deletes offsets of a group. Offsets of a topic that a member reads are not deleted.

use super::call::{Call, Fault, Reply, joined, once};
use crate::groups::{COMMIT_BYTES_MAX, DeleteOffset, Missing, TopicName};
use crate::node::CoordinatorServices;
use fullbore_control::Image;
use fullbore_rules::group::{Group, expiry};
use fullbore_wire::apis::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteRequestTopic, OffsetDeleteResponse, OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
};
use fullbore_wire::{ErrorCode, Frame, Text};
use std::sync::Arc;

/// Approximate size of a record that deletes an offset, without the names of group and topic.
const RECORD_BYTES: usize = 32;

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let mut request: OffsetDeleteRequest = call.body(reply.version)?;
    request.topics = merged(request.topics);
    let response = match delete(services, &request).await {
        Ok(topics) => OffsetDeleteResponse { topics, ..Default::default() },
        Err(error_code) => OffsetDeleteResponse { error_code, ..Default::default() },
    };
    reply.frame::<OffsetDeleteRequest>(&response)
}

/// Returns each topic once, with each of its partitions once.
fn merged(topics: Vec<OffsetDeleteRequestTopic>) -> Vec<OffsetDeleteRequestTopic> {
    let mut merged =
        joined(topics, |topic| topic.name.clone(), |topic, again| topic.partitions.extend(again.partitions));
    for topic in &mut merged {
        topic.partitions = once(std::mem::take(&mut topic.partitions), |partition| partition.partition_index);
    }
    merged
}

async fn delete(
    services: &CoordinatorServices,
    request: &OffsetDeleteRequest,
) -> Result<Vec<OffsetDeleteResponseTopic>, ErrorCode> {
    let id = &request.group_id;
    if id.is_empty() {
        return Err(ErrorCode::INVALID_GROUP_ID);
    }
    services.groups.prepare(Missing::Refuse(ErrorCode::GROUP_ID_NOT_FOUND), [id]).await?;
    let image = services.metadata.control.image();
    let requested = services.groups.touch(id, |group, shard, _| {
        expiry::check_delete_offsets(group)?;
        let mut deletion = OffsetDeletion { image: &image, group, id, offsets: Vec::new(), bytes: 0 };
        let topics = request.topics.iter().map(|topic| deletion.of_topic(topic)).collect();
        let offsets = deletion.offsets;
        Ok((topics, services.groups.forget_offsets(shard, id, offsets)))
    })?;
    let (topics, requested) = requested.ok_or(ErrorCode::GROUP_ID_NOT_FOUND)??;
    requested.kept().await.map_err(|_| ErrorCode::COORDINATOR_NOT_AVAILABLE)??;
    Ok(topics)
}

/// The offsets to delete, collected while the request is checked.
struct OffsetDeletion<'a> {
    image: &'a Image,
    group: &'a Group,
    id: &'a Text,
    offsets: Vec<DeleteOffset>,
    /// About how many bytes the records that delete these offsets will take.
    bytes: usize,
}

impl OffsetDeletion<'_> {
    fn of_topic(&mut self, topic: &OffsetDeleteRequestTopic) -> OffsetDeleteResponseTopic {
        let is_read = self.group.reads(&topic.name);
        let found = self.image.topic(&topic.name);
        let named = found.map(|found| TopicName { id: found.id, name: Arc::from(found.name.as_str()) });
        let mut of_partition = |index: i32| {
            let is_there = found.is_some_and(|found| found.partition(index).is_some());
            let error_code = match named.as_ref().filter(|_| is_there) {
                None => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
                Some(_) if is_read => ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC,
                Some(_) if self.bytes > COMMIT_BYTES_MAX => ErrorCode::INVALID_COMMIT_OFFSET_SIZE,
                Some(topic) => {
                    self.bytes += self.id.len() + topic.name.len() + RECORD_BYTES;
                    self.offsets.push(DeleteOffset { topic: topic.clone(), partition: index, committed_ms: None });
                    ErrorCode::NONE
                }
            };
            OffsetDeleteResponsePartition { partition_index: index, error_code, ..Default::default() }
        };
        let partitions = topic.partitions.iter().map(|partition| of_partition(partition.partition_index)).collect();
        OffsetDeleteResponseTopic { name: topic.name.clone(), partitions, ..Default::default() }
    }
}
