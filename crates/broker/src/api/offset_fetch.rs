//! OffsetFetch 1-10: for each group, who asks, then each partition or all there are.
//!
//! What is named twice is answered once: a short request must not ask for the same long metadata a million times. There
//! are no transactions, so that every offset is stable.

use super::call::{Call, Completion, Fault, Reply, joined, once};
use crate::groups::{GroupOffsets, Missing, OffsetAndMetadata, TopicOffsets};
use crate::node::Node;
use fullbore_control::{Image, Topic};
use fullbore_rules::group::Group;
use fullbore_wire::apis::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics, OffsetFetchResponse,
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
};
use fullbore_wire::{ErrorCode, Frame, Text};
use std::sync::Arc;

/// The first version with several groups.
const GROUPS: i16 = 8;
/// The first version with topic ids instead of names.
const TOPIC_IDS: i16 = 10;
/// Offset of a partition without a commit.
const NONE: i64 = -1;

/// Looks when the answer's turn has come: commits that the client has sent before, without waiting, are then written.
pub async fn admit(call: &mut Call<'_>, reply: Reply) -> Result<Completion, Fault> {
    let request: OffsetFetchRequest = call.body(reply.version)?;
    // Where there is no topic there are no offsets.
    let mut asked = vec![&request.group_id];
    asked.extend(request.groups.iter().map(|group| &group.group_id));
    let _ = call.broker.groups.prepare(Missing::Refuse(ErrorCode::NONE), asked).await;
    let broker = Arc::clone(call.broker);
    Ok(Completion::Later(Box::pin(async move { fetch(&broker, request, reply) })))
}

fn fetch(broker: &Node, request: OffsetFetchRequest, reply: Reply) -> Result<Frame, Fault> {
    let version = reply.version.number;
    let image = broker.control.image();
    let of = |group| answer(broker, &image, version, group);
    let response = if version >= GROUPS {
        let groups = once(request.groups, |group| group.group_id.clone());
        OffsetFetchResponse { groups: groups.into_iter().map(of).collect(), ..Default::default() }
    } else {
        of_one(of(one_group(request)))
    };
    reply.frame::<OffsetFetchRequest>(&response)
}

/// A request of the versions with one group, as those with several say it.
fn one_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup {
    let topics = request.topics.map(|topics| {
        let topic = |topic: fullbore_wire::apis::offset_fetch::OffsetFetchRequestTopic| OffsetFetchRequestTopics {
            name: topic.name,
            partition_indexes: topic.partition_indexes,
            ..Default::default()
        };
        topics.into_iter().map(topic).collect()
    });
    OffsetFetchRequestGroup { group_id: request.group_id, member_epoch: -1, topics, ..Default::default() }
}

/// The answer in those versions. A group without member and epoch has no error.
fn of_one(group: OffsetFetchResponseGroup) -> OffsetFetchResponse {
    let partition = |partition: OffsetFetchResponsePartitions| OffsetFetchResponsePartition {
        partition_index: partition.partition_index,
        committed_offset: partition.committed_offset,
        committed_leader_epoch: partition.committed_leader_epoch,
        metadata: partition.metadata,
        error_code: partition.error_code,
        ..Default::default()
    };
    let topic = |topic: OffsetFetchResponseTopics| OffsetFetchResponseTopic {
        name: topic.name,
        partitions: topic.partitions.into_iter().map(partition).collect(),
        ..Default::default()
    };
    OffsetFetchResponse {
        topics: group.topics.into_iter().map(topic).collect(),
        error_code: group.error_code,
        ..Default::default()
    }
}

fn answer(broker: &Node, image: &Image, version: i16, asked: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup {
    let mut group = OffsetFetchResponseGroup { group_id: asked.group_id, ..Default::default() };
    let member = asked.member_id.as_deref();
    let allows = |group: &Group| group.check_fetch(member, asked.member_epoch);
    let topics = asked.topics.map(|topics| {
        let join = |topic: &mut OffsetFetchRequestTopics, again: OffsetFetchRequestTopics| {
            topic.partition_indexes.extend(again.partition_indexes)
        };
        joined(topics, |topic| (topic.name.clone(), topic.topic_id), join)
    });
    let found = match &topics {
        None => broker.groups.committed(&group.group_id, allows, |held| all(image, version, held)),
        Some(topics) => {
            // Copied out: other groups commit under the same lock, and the request may name a million partitions.
            let held = broker.groups.committed(&group.group_id, allows, |held| of_topics(image, version, topics, held));
            held.map(|held| topics.iter().map(|topic| of_topic(image, version, topic, &held)).collect())
        }
    };
    match found {
        Ok(found) => group.topics = found,
        Err(code) => {
            group.error_code = code;
            group.topics = refused(topics, code);
        }
    }
    group
}

/// Returns the topics of a refused request with the error at each partition, for versions without one for all.
fn refused(topics: Option<Vec<OffsetFetchRequestTopics>>, error_code: ErrorCode) -> Vec<OffsetFetchResponseTopics> {
    let of_topic = |topic: OffsetFetchRequestTopics| {
        let of_partition = |index| OffsetFetchResponsePartitions { error_code, ..partition(index, None) };
        let partitions = once(topic.partition_indexes, |index| *index).into_iter().map(of_partition).collect();
        OffsetFetchResponseTopics { name: topic.name, topic_id: topic.topic_id, partitions, ..Default::default() }
    };
    topics.unwrap_or_default().into_iter().map(of_topic).collect()
}

/// Returns the offsets that a group has of these topics.
fn of_topics(
    image: &Image,
    version: i16,
    asked: &[OffsetFetchRequestTopics],
    held: Option<&GroupOffsets>,
) -> GroupOffsets {
    let Some(held) = held else { return GroupOffsets::new() };
    let ids = asked.iter().filter_map(|topic| Some(find(image, version, topic)?.id));
    ids.filter_map(|id| Some((id, held.get(&id)?.clone()))).collect()
}

fn find<'i>(image: &'i Image, version: i16, asked: &OffsetFetchRequestTopics) -> Option<&'i Arc<Topic>> {
    if version >= TOPIC_IDS { image.topic_by_id(asked.topic_id) } else { image.topic(&asked.name) }
}

fn of_topic(
    image: &Image,
    version: i16,
    asked: &OffsetFetchRequestTopics,
    held: &GroupOffsets,
) -> OffsetFetchResponseTopics {
    let found = find(image, version, asked);
    // By name, what does not exist has no offsets; an id nobody knows is an error.
    let is_unknown = version >= TOPIC_IDS && found.is_none();
    let error_code = if is_unknown { ErrorCode::UNKNOWN_TOPIC_ID } else { ErrorCode::NONE };
    let of_topic = found.and_then(|topic| held.get(&topic.id));
    let partition = |index: i32| OffsetFetchResponsePartitions {
        error_code,
        ..partition(index, of_topic.and_then(|of_topic| of_topic.partitions.get(&index)))
    };
    let partitions = once(asked.partition_indexes.clone(), |index| *index).into_iter().map(partition).collect();
    OffsetFetchResponseTopics { name: asked.name.clone(), topic_id: asked.topic_id, partitions, ..Default::default() }
}

fn all(image: &Image, version: i16, held: Option<&GroupOffsets>) -> Vec<OffsetFetchResponseTopics> {
    let topic = |(id, of_topic): (&_, &TopicOffsets)| {
        // It is being deleted.
        let topic = image.topic_by_id(*id)?;
        let name = if version >= TOPIC_IDS { Text::default() } else { Text::from(topic.name.as_str()) };
        let partitions =
            of_topic.partitions.iter().map(|(index, committed)| partition(*index, Some(committed))).collect();
        Some(OffsetFetchResponseTopics { name, topic_id: *id, partitions, ..Default::default() })
    };
    held.into_iter().flatten().filter_map(topic).collect()
}

fn partition(partition_index: i32, committed: Option<&OffsetAndMetadata>) -> OffsetFetchResponsePartitions {
    let none = || OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: NONE,
        metadata: Some(Text::default()),
        ..Default::default()
    };
    committed.map_or_else(none, |committed| OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: committed.offset,
        committed_leader_epoch: committed.leader_epoch,
        metadata: Some(Text::from(&*committed.metadata)),
        ..Default::default()
    })
}
