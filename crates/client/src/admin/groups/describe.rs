//! Describes groups and their members, of either protocol.
//!
//! Like Kafka's own client, this module first sends ConsumerGroupDescribe (KIP-848). For groups that do not use the
//! consumer protocol, it then sends DescribeGroups.

use super::coordinator::{GroupAdmin, check, coordinators};
use crate::blocking::{BrokerAddress, Cluster};
use crate::error::ClientError;
use bytes::Bytes;
use fullbore_wire::apis::consumer_group_describe::{self as consumer, ConsumerGroupDescribeRequest};
use fullbore_wire::apis::describe_groups::{self as classic, DescribeGroupsRequest};
use fullbore_wire::consumer_protocol::{self, ConsumerProtocolAssignment};
use fullbore_wire::{ErrorCode, Text};
use std::collections::HashMap;

/// The protocol of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupProtocol {
    /// The classic protocol, with JoinGroup and SyncGroup.
    Classic,
    /// The consumer protocol, with ConsumerGroupHeartbeat.
    Consumer,
}

impl GroupProtocol {
    /// Returns the name of the protocol in Kafka's `group.protocol`.
    pub fn name(self) -> &'static str {
        match self {
            GroupProtocol::Classic => "classic",
            GroupProtocol::Consumer => "consumer",
        }
    }
}

/// The description of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDescription {
    /// The group's id.
    pub id: Text,
    /// The group's protocol.
    pub protocol: GroupProtocol,
    /// The group's state, such as `Stable` or `Empty`.
    pub state: Text,
    /// The group's coordinator.
    pub coordinator: BrokerAddress,
    /// The group's assignor, or empty if it has none.
    pub assignor: Text,
    /// The group's epoch, or `None` for a classic group.
    pub epoch: Option<i32>,
    /// The epoch of the target assignment, or `None` for a classic group.
    pub target_epoch: Option<i32>,
    /// The members, sorted by id.
    pub members: Vec<GroupMember>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// The member's id.
    pub id: Text,
    /// The name of a static member (group.instance.id), or `None` for a dynamic member.
    pub instance_id: Option<Text>,
    /// The client id that the member joined with.
    pub client_id: Text,
    /// The address that the member joined from.
    pub host: Text,
    /// The member's epoch, or `None` in a classic group.
    pub epoch: Option<i32>,
    /// The assigned partitions, in order.
    pub assignment: Vec<(Text, i32)>,
    /// The partitions of the target assignment, or `None` in a classic group.
    pub target: Option<Vec<(Text, i32)>>,
    /// True if the member uses the consumer protocol. False if the group uses the consumer protocol, but the member
    /// still uses the classic one. `None` if the broker does not report this.
    pub is_upgraded: Option<bool>,
}

impl GroupAdmin<'_> {
    /// Describes groups and returns an outcome for each of `ids`, in this order. A group's error is either
    /// [`ClientError::NoGroup`] or the coordinator's error.
    ///
    /// # Errors
    /// Returns [`ClientError`] if a coordinator cannot be found or reached.
    pub fn describe(&mut self, ids: &[Text]) -> Result<Vec<Result<GroupDescription, ClientError>>, ClientError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut found = self.patiently(|cluster| {
            let mut found = HashMap::new();
            for (coordinator, ids) in coordinators(cluster, ids)? {
                found.extend(describe_at(cluster, &coordinator, &ids)?);
            }
            Ok(found)
        })?;
        let missing = |id: &Text| Err(ClientError::NoGroup(id.to_string()));
        Ok(ids.iter().map(|id| found.remove(id).unwrap_or_else(|| missing(id))).collect())
    }
}

type Described = (Text, Result<GroupDescription, ClientError>);

fn describe_at(
    cluster: &mut Cluster,
    coordinator: &BrokerAddress,
    ids: &[Text],
) -> Result<Vec<Described>, ClientError> {
    let address = coordinator.address();
    let (mut described, mut others) = (Vec::new(), Vec::new());
    if cluster.offers::<ConsumerGroupDescribeRequest>(&address)? {
        let request = ConsumerGroupDescribeRequest { group_ids: ids.to_vec(), ..Default::default() };
        for group in cluster.call_at(&address, &request, i16::MAX)?.groups {
            match group.error_code {
                ErrorCode::GROUP_ID_NOT_FOUND | ErrorCode::UNSUPPORTED_VERSION => others.push(group.group_id),
                code => {
                    let outcome = outcome(&group.group_id, code, group.error_message.as_deref())?;
                    let id = group.group_id.clone();
                    described.push((id, outcome.map(|()| of_consumer(group, coordinator))));
                }
            }
        }
    } else {
        others = ids.to_vec();
    }
    if others.is_empty() {
        return Ok(described);
    }
    let request = DescribeGroupsRequest { groups: others, ..Default::default() };
    for group in cluster.call_at(&address, &request, i16::MAX)?.groups {
        let outcome = match (group.error_code, &*group.group_state) {
            (ErrorCode::GROUP_ID_NOT_FOUND, _) | (ErrorCode::NONE, "Dead") => {
                Err(ClientError::NoGroup(group.group_id.to_string()))
            }
            (code, _) => outcome(&group.group_id, code, group.error_message.as_deref())?,
        };
        let outcome = outcome.and_then(|()| check_consumers(&group));
        let id = group.group_id.clone();
        described.push((id, outcome.map(|()| of_classic(group, coordinator))));
    }
    Ok(described)
}

/// Refuses a group whose protocol type is not `consumer`, as Kafka's client does. Accepts an empty protocol type,
/// because a group without one only has committed offsets.
fn check_consumers(group: &classic::DescribedGroup) -> Result<(), ClientError> {
    match &*group.protocol_type {
        "" | "consumer" => Ok(()),
        other => Err(ClientError::NotConsumers { id: group.group_id.to_string(), protocol_type: other.to_owned() }),
    }
}

/// Returns the outcome of one group as the inner result. A retriable error concerns the coordinator and not the group.
/// Such an error is the outer result, so that the caller repeats the request.
fn outcome(id: &Text, code: ErrorCode, message: Option<&str>) -> Result<Result<(), ClientError>, ClientError> {
    let outcome = check(format!("cannot describe group '{id}'"), code, message);
    if code.is_retriable() { outcome.map(Ok) } else { Ok(outcome) }
}

fn of_consumer(group: consumer::DescribedGroup, coordinator: &BrokerAddress) -> GroupDescription {
    let mut members: Vec<GroupMember> = group
        .members
        .into_iter()
        .map(|member| GroupMember {
            id: member.member_id,
            instance_id: member.instance_id,
            client_id: member.client_id,
            host: member.client_host,
            epoch: Some(member.member_epoch),
            assignment: partitions(member.assignment),
            target: Some(partitions(member.target_assignment)),
            is_upgraded: match member.member_type {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            },
        })
        .collect();
    members.sort_by(|a, b| a.id.cmp(&b.id));
    GroupDescription {
        id: group.group_id,
        protocol: GroupProtocol::Consumer,
        state: group.group_state,
        coordinator: coordinator.clone(),
        assignor: group.assignor_name,
        epoch: Some(group.group_epoch),
        target_epoch: Some(group.assignment_epoch),
        members,
    }
}

fn partitions(assignment: consumer::Assignment) -> Vec<(Text, i32)> {
    let of_topic = |topic: consumer::TopicPartitions| {
        topic.partitions.into_iter().map(move |partition| (topic.topic_name.clone(), partition))
    };
    let mut partitions: Vec<(Text, i32)> = assignment.topic_partitions.into_iter().flat_map(of_topic).collect();
    partitions.sort();
    partitions
}

fn of_classic(group: classic::DescribedGroup, coordinator: &BrokerAddress) -> GroupDescription {
    let mut members: Vec<GroupMember> = group
        .members
        .into_iter()
        .map(|member| GroupMember {
            id: member.member_id,
            instance_id: member.group_instance_id,
            client_id: member.client_id,
            host: member.client_host,
            epoch: None,
            assignment: assigned(member.member_assignment),
            target: None,
            is_upgraded: None,
        })
        .collect();
    members.sort_by(|a, b| a.id.cmp(&b.id));
    GroupDescription {
        id: group.group_id,
        protocol: GroupProtocol::Classic,
        state: group.group_state,
        coordinator: coordinator.clone(),
        assignor: group.protocol_data,
        epoch: None,
        target_epoch: None,
        members,
    }
}

/// Decodes the assignment of a classic member. The bytes were encoded by the group's leader, which is a client. Returns
/// no partitions if they are malformed.
fn assigned(bytes: Bytes) -> Vec<(Text, i32)> {
    let Ok((_, assignment)) = consumer_protocol::decode::<ConsumerProtocolAssignment>(bytes) else { return Vec::new() };
    let of_topic = |topic: consumer_protocol::TopicPartition| {
        topic.partitions.into_iter().map(move |partition| (topic.topic.clone(), partition))
    };
    let mut partitions: Vec<(Text, i32)> = assignment.assigned_partitions.into_iter().flat_map(of_topic).collect();
    partitions.sort();
    partitions
}
