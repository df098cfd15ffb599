//! ConsumerGroupDescribe 0-1: describes groups of the consumer protocol, with their members, assignments and target
//! assignments.

use super::call::{Call, Fault, Reply, once, words};
use super::operations;
use crate::groups::Missing;
use crate::node::CoordinatorServices;
use fullbore_control::Image;
use fullbore_rules::group::consumer::{ConsumerGroup, ConsumerGroupSettings, TopicIdPartition};
use fullbore_rules::group::{Group, GroupState};
use fullbore_wire::apis::consumer_group_describe::{
    Assignment, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, DescribedGroup, Member, TopicPartitions,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};
use std::collections::BTreeMap;

/// The value of [`Member::member_type`] for a member that uses the classic protocol.
const SPEAKS_CLASSIC: i8 = 0;
/// The value of [`Member::member_type`] for a member that uses the consumer protocol.
const SPEAKS_CONSUMER: i8 = 1;

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let request: ConsumerGroupDescribeRequest = call.body(reply.version)?;
    let authorized_operations =
        operations::where_requested(request.include_authorized_operations, operations::OF_A_GROUP);
    let _ = services.groups.prepare(Missing::Refuse(ErrorCode::NONE), &request.group_ids).await;
    let image = services.metadata.control.image();
    let groups = once(request.group_ids, Text::clone).into_iter().map(|group_id| {
        let settings = services.groups.settings_of(&image, &group_id).consumer;
        let described = |group: &Group| group.consumer().map(|group| describe(group, &settings, &image));
        let group = services.groups.inspect(&group_id, described);
        match group {
            Err(error_code) => DescribedGroup { error_code, group_id, ..Default::default() },
            Ok(Some(Some(group))) => DescribedGroup { group_id, authorized_operations, ..group },
            Ok(Some(None)) => not_found(&group_id, "is not a consumer group"),
            Ok(None) => not_found(&group_id, "not found"),
        }
    });
    let response = ConsumerGroupDescribeResponse { groups: groups.collect(), ..Default::default() };
    reply.frame::<ConsumerGroupDescribeRequest>(&response)
}

fn not_found(group_id: &Text, why: &str) -> DescribedGroup {
    DescribedGroup {
        error_code: if group_id.is_empty() { ErrorCode::INVALID_GROUP_ID } else { ErrorCode::GROUP_ID_NOT_FOUND },
        error_message: Some(words(format!("Group {group_id} {why}."))),
        group_id: group_id.clone(),
        group_state: Text::from_static(GroupState::Dead.name()),
        ..Default::default()
    }
}

fn describe(group: &ConsumerGroup, settings: &ConsumerGroupSettings, image: &Image) -> DescribedGroup {
    let member = |member: &fullbore_rules::group::consumer::ConsumerGroupMember| Member {
        member_id: member.id.clone(),
        instance_id: member.instance_id.clone(),
        rack_id: member.rack_id.clone(),
        member_epoch: member.epoch,
        client_id: member.client_id.clone(),
        client_host: member.client_host.clone(),
        subscribed_topic_names: member.topics.iter().cloned().collect(),
        subscribed_topic_regex: member.regex.clone(),
        assignment: assignment(member.assigned.keys(), image),
        target_assignment: assignment(member.target.iter(), image),
        member_type: if member.classic.is_some() { SPEAKS_CLASSIC } else { SPEAKS_CONSUMER },
        ..Default::default()
    };
    DescribedGroup {
        group_state: Text::from_static(group.state().name()),
        group_epoch: group.group_epoch(),
        assignment_epoch: group.assignment_epoch(),
        assignor_name: Text::from_static(group.assignor(settings).name()),
        members: group.members().map(member).collect(),
        ..Default::default()
    }
}

/// Groups partitions by topic. Deleted topics are left out, as in Kafka.
fn assignment<'p>(partitions: impl Iterator<Item = &'p TopicIdPartition>, image: &Image) -> Assignment {
    let mut topics: BTreeMap<Uuid, Vec<i32>> = BTreeMap::new();
    for partition in partitions {
        topics.entry(partition.topic).or_default().push(partition.index);
    }
    let topic = |(topic_id, partitions): (Uuid, Vec<i32>)| {
        let topic_name = Text::from(image.topic_by_id(topic_id)?.name.as_str());
        Some(TopicPartitions { topic_id, topic_name, partitions, ..Default::default() })
    };
    Assignment { topic_partitions: topics.into_iter().filter_map(topic).collect(), ..Default::default() }
}
