//! Checks a member's heartbeat and the epochs in it, in the same order as Kafka.

use super::member::{ConsumerGroupMember, JOINING, LEAVING, LEAVING_TO_RETURN, TopicIdPartition};
use super::{ConsumerGroupSettings, GroupRefusal};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::consumer_group_heartbeat::{ConsumerGroupHeartbeatRequest, TopicPartitions};

/// The first version of ConsumerGroupHeartbeat in which the member chooses its own id (KIP-1082).
const MEMBER_MAKES_ID: i16 = 1;

/// Checks that the fields of a request are consistent, without looking at the group.
///
/// # Errors
/// Fails with INVALID_REQUEST if fields are inconsistent, and with UNSUPPORTED_ASSIGNOR if the assignor is unknown.
pub fn check_request(
    request: &ConsumerGroupHeartbeatRequest,
    version: i16,
    settings: &ConsumerGroupSettings,
) -> Result<(), GroupRefusal> {
    let wrong = |message: &str| Err(GroupRefusal::new(ErrorCode::INVALID_REQUEST, message));
    let blank = |text: Option<&str>| text.is_some_and(|text| text.trim().is_empty());
    let epoch = request.member_epoch;
    let needs_id = version >= MEMBER_MAKES_ID || epoch > JOINING || epoch == LEAVING;
    if needs_id && blank(Some(&request.member_id)) {
        return wrong("MemberId can't be empty.");
    }
    if blank(Some(&request.group_id)) {
        return wrong("GroupId can't be empty.");
    }
    if blank(request.instance_id.as_deref()) {
        return wrong("InstanceId can't be empty.");
    }
    if blank(request.rack_id.as_deref()) {
        return wrong("RackId can't be empty.");
    }
    if epoch == JOINING {
        if request.rebalance_timeout_ms == -1 {
            return wrong("RebalanceTimeoutMs must be provided in first request.");
        }
        if request.topic_partitions.as_ref().is_none_or(|owned| !owned.is_empty()) {
            return wrong("TopicPartitions must be empty when (re-)joining.");
        }
        if request.subscribed_topic_names.is_none() && request.subscribed_topic_regex.is_none() {
            return wrong("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.");
        }
    } else if epoch == LEAVING_TO_RETURN {
        if request.instance_id.is_none() {
            return wrong("InstanceId can't be null.");
        }
    } else if epoch < LEAVING_TO_RETURN {
        return wrong("MemberEpoch is invalid.");
    }
    if let Some(name) = &request.server_assignor
        && !settings.assignors.iter().any(|assignor| assignor.name() == &**name)
    {
        let known: Vec<&str> = settings.assignors.iter().map(|assignor| assignor.name()).collect();
        return Err(GroupRefusal::new(
            ErrorCode::UNSUPPORTED_ASSIGNOR,
            format!("ServerAssignor {} is not supported. Supported assignors: {}.", &**name, known.join(", ")),
        ));
    }
    Ok(())
}

/// Checks that a member may send this epoch. The response with the new epoch may have been lost. So the previous epoch
/// is accepted as well, if all partitions that the member claims in the request are assigned to the member.
pub(super) fn check_epoch(
    member: &ConsumerGroupMember,
    epoch: i32,
    owned: Option<&[TopicPartitions]>,
) -> Result<(), GroupRefusal> {
    if epoch == JOINING || epoch == member.epoch {
        return Ok(());
    }
    if epoch == member.previous_epoch && epoch < member.epoch && owned.is_some_and(|owned| is_assigned(member, owned)) {
        return Ok(());
    }
    let relation = if epoch > member.epoch { "greater" } else { "smaller" };
    Err(GroupRefusal::new(
        ErrorCode::FENCED_MEMBER_EPOCH,
        format!(
            "The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group \
             coordinator ({}). The member must abandon all its partitions and rejoin.",
            member.epoch
        ),
    ))
}

fn is_assigned(member: &ConsumerGroupMember, owned: &[TopicPartitions]) -> bool {
    owned.iter().all(|topic| {
        let mut partitions = topic.partitions.iter().map(|&index| TopicIdPartition { topic: topic.topic_id, index });
        partitions.all(|partition| member.assigned.contains_key(&partition))
    })
}
