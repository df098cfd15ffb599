//! Handles heartbeats. A heartbeat finds its member, stores its fields, computes a new target if one is due, and moves
//! the member a step towards its target.

use super::checks::check_epoch;
use super::member::{
    ConsumerGroupMember, JOINING, LEAVING, LEAVING_TO_RETURN, MemberState, PartitionSet, TopicIdPartition,
};
use super::reconcile::ReconcileInput;
use super::{ConsumerGroup, ConsumerGroupSettings, GroupRefusal, MemberId, Topics};
use crate::group::consumer::assignor::Assignor;
use fullbore_wire::apis::consumer_group_heartbeat::{
    Assignment, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicPartitions,
};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::BTreeSet;

/// A regular expression, and the topics that it matches.
pub type Resolved = (Text, BTreeSet<Text>);

/// A heartbeat and everything that is needed to handle it.
#[derive(Debug)]
pub struct Call<'a> {
    /// The request, which has passed `check_request`.
    pub request: &'a ConsumerGroupHeartbeatRequest,
    /// The id to use if a member joins without one.
    pub fresh_id: MemberId,
    /// An unused random id for the parts of the group, in case the group must be created.
    pub fresh_parts_id: Uuid,
    /// Client id of the request.
    pub client_id: &'a str,
    /// The address of the client.
    pub client_host: &'a str,
    /// The regular expressions that were resolved for this request. This is the request's own expression if it is new
    /// to the group, or all expressions in use if they were due.
    pub resolved: Vec<Resolved>,
    /// The version of the topics for which the expressions were resolved.
    pub resolved_version: u64,
}

impl ConsumerGroup {
    /// Handles the heartbeat of a member that joins, stays or leaves.
    ///
    /// # Errors
    /// Fails with GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, UNRELEASED_INSTANCE_ID or
    /// FENCED_INSTANCE_ID. The group is unchanged then.
    pub fn heartbeat(
        &mut self,
        call: Call<'_>,
        topics: &(impl Topics + ?Sized),
        settings: &ConsumerGroupSettings,
        now: i64,
    ) -> Result<ConsumerGroupHeartbeatResponse, GroupRefusal> {
        let request = call.request;
        if matches!(request.member_epoch, LEAVING | LEAVING_TO_RETURN) {
            return self.leave(request, now);
        }
        let settled_interval_ms = self.settled_interval_ms(settings, now);
        if let Some(member) = self.members.get_mut(&request.member_id)
            && is_only_alive(&call, member)
            && member.is_reconciled_to(self.group_epoch)
            && self.topics_version == Some(topics.version())
        {
            member.session_by = now + i64::from(settings.session_timeout_ms);
            member.expected_by = now + i64::from(settled_interval_ms);
            return Ok(answer(member, settled_interval_ms, false));
        }
        self.check_size(&request.member_id, settings)?;
        let before = self.find_or_create(&call)?;
        let mut member = before.clone();
        note(&mut member, &call, settings);
        let id = member.id.clone();
        let subscription_changed = member.topics != before.topics || member.regex != before.regex;
        member.session_by = now + i64::from(settings.session_timeout_ms);
        self.put(member);
        let matches_changed = self.resolve(call.resolved, call.resolved_version, now);
        self.request_for_regex(&id);
        self.renew(subscription_changed || matches_changed, &id, topics, settings, now);
        let owned = request.topic_partitions.as_deref().map(partitions);
        self.reconcile(&id, owned.as_ref(), subscription_changed, topics, now);

        let member = &self.members[&id];
        let full = request.rebalance_timeout_ms != -1
            && (request.subscribed_topic_names.is_some() || request.subscribed_topic_regex.is_some())
            && request.topic_partitions.is_some();
        let moved = !member.assigned.keys().eq(before.assigned.keys());
        let interval_ms = self.interval_ms(member, settings, now);
        let answer = answer(member, interval_ms, request.member_epoch == JOINING || full || moved);
        if let Some(member) = self.members.get_mut(&id) {
            member.expected_by = now + i64::from(interval_ms);
        }
        Ok(answer)
    }

    /// Checks that the group has room for this member, which is always true for a present member.
    pub(super) fn check_size(&self, member_id: &str, settings: &ConsumerGroupSettings) -> Result<(), GroupRefusal> {
        if self.members.len() < settings.members_max || self.members.contains_key(member_id) {
            return Ok(());
        }
        let message =
            format!("The consumer group has reached its maximum capacity of {} members.", settings.members_max);
        Err(GroupRefusal::new(ErrorCode::GROUP_MAX_SIZE_REACHED, message))
    }

    /// Finds the member that has sent a heartbeat. A new member is created but not added to the group yet. A static
    /// member that returns replaces its former incarnation.
    fn find_or_create(&mut self, call: &Call<'_>) -> Result<ConsumerGroupMember, GroupRefusal> {
        let request = call.request;
        let id = if request.member_id.is_empty() { &call.fresh_id } else { &request.member_id };
        let owned = request.topic_partitions.as_deref();
        let joins = request.member_epoch == JOINING;
        let Some(instance_id) = &request.instance_id else {
            return match self.members.get(id) {
                Some(member) => check_epoch(member, request.member_epoch, owned).map(|()| member.clone()),
                None if joins => Ok(ConsumerGroupMember::new(Text::from(&**id))),
                None => Err(unknown_member(id)),
            };
        };
        match self.statics.get(instance_id).cloned() {
            None if joins => {
                let new = || ConsumerGroupMember::new(Text::from(&**id));
                Ok(self.members.get(id).cloned().unwrap_or_else(new))
            }
            None => {
                let message = format!("Instance id {} is unknown.", &**instance_id);
                Err(GroupRefusal::new(ErrorCode::UNKNOWN_MEMBER_ID, message))
            }
            Some(existing) if existing == *id => {
                let member = &self.members[&existing];
                check_epoch(member, request.member_epoch, owned).map(|()| member.clone())
            }
            Some(existing) if joins => {
                let member = &self.members[&existing];
                if member.epoch != LEAVING_TO_RETURN && member.classic.is_none() {
                    return Err(unreleased(id, instance_id, &existing));
                }
                Ok(self.replace(&existing, Text::from(&**id)))
            }
            Some(existing) => Err(fenced_instance(id, instance_id, &existing)),
        }
    }

    /// Gives a returning static member its new id. The member keeps its target and its partitions.
    pub(super) fn replace(&mut self, old: &MemberId, new: MemberId) -> ConsumerGroupMember {
        let mut member = self.take(old).expect("a static name leads to a member");
        member.id = new;
        member.epoch = JOINING;
        member.previous_epoch = JOINING;
        member.revoke_by = None;
        self.put(member.clone());
        member
    }

    /// Brings a member a step closer to its target. Does nothing if the member has reached the target and its
    /// subscription has not changed.
    pub(super) fn reconcile(
        &mut self,
        id: &MemberId,
        owned: Option<&PartitionSet>,
        subscription_changed: bool,
        topics: &(impl Topics + ?Sized),
        now: i64,
    ) {
        let member = &self.members[id];
        if member.is_reconciled_to(self.assignment_epoch) && !subscription_changed {
            return;
        }
        let subscribed: BTreeSet<_> =
            self.subscribed(member).filter_map(|name| topics.find(name)).map(|(topic, _)| topic).collect();
        let situation = ReconcileInput {
            epoch: self.assignment_epoch,
            owned,
            subscription_changed,
            subscribes: |partition: &TopicIdPartition| subscribed.contains(&partition.topic),
            is_free: |partition: &TopicIdPartition| self.holders.get(partition).is_none_or(|holder| holder == id),
        };
        let Some(step) = situation.step(member) else { return };
        let mut member = member.clone();
        let still_revoking = step.state == MemberState::UnrevokedPartitions;
        if !still_revoking {
            member.revoke_by = None;
        } else if member.classic.is_none() && (member.revoke_by.is_none() || member.revoking != step.revoking) {
            member.revoke_by = Some(now + i64::from(member.rebalance_timeout_ms));
        }
        if step.epoch != member.epoch {
            member.previous_epoch = member.epoch;
        }
        (member.state, member.epoch) = (step.state, step.epoch);
        (member.assigned, member.revoking) = (step.assigned, step.revoking);
        self.put(member);
    }
}

fn answer(
    member: &ConsumerGroupMember,
    heartbeat_interval_ms: i32,
    with_assignment: bool,
) -> ConsumerGroupHeartbeatResponse {
    ConsumerGroupHeartbeatResponse {
        member_id: Some(member.id.clone()),
        member_epoch: member.epoch,
        heartbeat_interval_ms,
        assignment: with_assignment
            .then(|| Assignment { topic_partitions: by_topic(member.assigned.keys()), ..Assignment::default() }),
        ..ConsumerGroupHeartbeatResponse::default()
    }
}

/// Returns true if a heartbeat changes nothing of its member but the deadlines. Then no copy of the member is needed,
/// which saves time because nine of ten heartbeats are of this kind.
fn is_only_alive(call: &Call<'_>, member: &ConsumerGroupMember) -> bool {
    let request = call.request;
    request.member_epoch == member.epoch
        && request.member_epoch > JOINING
        && request.instance_id.as_deref() == member.instance_id.as_deref()
        && request.rack_id.is_none()
        && request.rebalance_timeout_ms == -1
        && request.subscribed_topic_names.is_none()
        && request.subscribed_topic_regex.is_none()
        && request.server_assignor.is_none()
        && request.topic_partitions.is_none()
        && call.resolved.is_empty()
        && member.classic.is_none()
        && *member.client_id == *call.client_id
        && *member.client_host == *call.client_host
}

/// Stores the fields of a heartbeat in its member. A field that is not in the heartbeat keeps its value.
fn note(member: &mut ConsumerGroupMember, call: &Call<'_>, settings: &ConsumerGroupSettings) {
    let request = call.request;
    if let Some(instance_id) = &request.instance_id {
        member.instance_id = Some(Text::from(&**instance_id));
    }
    if let Some(rack_id) = &request.rack_id {
        member.rack_id = Some(Text::from(&**rack_id));
    }
    if request.rebalance_timeout_ms != -1 {
        member.rebalance_timeout_ms = request.rebalance_timeout_ms;
    }
    if let Some(name) = &request.server_assignor {
        member.assignor = Assignor::from_name(name).filter(|assignor| settings.assignors.contains(assignor));
    }
    if let Some(names) = &request.subscribed_topic_names {
        member.topics = names.iter().map(|name| Text::from(&**name)).collect();
    }
    if let Some(regex) = &request.subscribed_topic_regex {
        member.regex = Some(Text::from(&**regex)).filter(|regex| !regex.is_empty());
    }
    if *member.client_id != *call.client_id {
        member.client_id = Text::from(call.client_id);
    }
    if *member.client_host != *call.client_host {
        member.client_host = Text::from(call.client_host);
    }
    member.classic = None;
}

fn partitions(owned: &[TopicPartitions]) -> PartitionSet {
    let of = |topic: &TopicPartitions| {
        let id = topic.topic_id;
        topic.partitions.iter().map(move |&index| TopicIdPartition { topic: id, index }).collect::<Vec<_>>()
    };
    owned.iter().flat_map(of).collect()
}

/// Groups partitions by topic. `partitions` must be sorted.
pub(super) fn by_topic<'a>(partitions: impl Iterator<Item = &'a TopicIdPartition>) -> Vec<TopicPartitions> {
    let mut topics: Vec<TopicPartitions> = Vec::new();
    for partition in partitions {
        match topics.last_mut() {
            Some(last) if last.topic_id == partition.topic => last.partitions.push(partition.index),
            _ => topics.push(TopicPartitions {
                topic_id: partition.topic,
                partitions: vec![partition.index],
                ..TopicPartitions::default()
            }),
        }
    }
    topics
}

pub(super) fn unknown_member(id: &str) -> GroupRefusal {
    let message = format!("Member {id} is not a member of the group.");
    GroupRefusal::new(ErrorCode::UNKNOWN_MEMBER_ID, message)
}

fn unreleased(id: &str, instance_id: &str, owner: &str) -> GroupRefusal {
    let message = format!(
        "Static member {id} with instance id {instance_id} cannot join the group because the instance id is owned by \
         {owner} member."
    );
    GroupRefusal::new(ErrorCode::UNRELEASED_INSTANCE_ID, message)
}

pub(super) fn fenced_instance(id: &str, instance_id: &str, owner: &str) -> GroupRefusal {
    let message = format!("Static member {id} with instance id {instance_id} was fenced by member {owner}.");
    GroupRefusal::new(ErrorCode::FENCED_INSTANCE_ID, message)
}
