//! Members that leave, and members that are fenced because they have missed a deadline.

use super::heartbeat::{fenced_instance, unknown_member};
use super::member::{HeldPartitions, LEAVING_TO_RETURN, MemberState};
use super::subscriptions::SubscriptionCounts;
use super::topics::SubscribedTopics;
use super::{ConsumerGroup, GroupRefusal, MemberId};
use fullbore_wire::apis::consumer_group_heartbeat::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};
use fullbore_wire::{ErrorCode, Text};
use std::collections::BTreeMap;

/// A member that was fenced, and the deadline that it missed.
#[derive(Clone, Debug, PartialEq)]
pub struct Fenced {
    pub member_id: MemberId,
    /// The step that the member has not taken in time.
    pub waited_for: &'static str,
}

impl ConsumerGroup {
    /// Removes a member for good, or pauses a static member that will return under its instance id. The member's own
    /// epoch is not checked.
    pub(super) fn leave(
        &mut self,
        request: &ConsumerGroupHeartbeatRequest,
        now: i64,
    ) -> Result<ConsumerGroupHeartbeatResponse, GroupRefusal> {
        let id = self.find_leaving(&request.member_id, request.instance_id.as_deref())?;
        if request.member_epoch == LEAVING_TO_RETURN {
            self.pause(&id);
        } else {
            self.remove(&[id], now);
        }
        Ok(ConsumerGroupHeartbeatResponse {
            member_id: Some(Text::from(&*request.member_id)),
            member_epoch: request.member_epoch,
            ..ConsumerGroupHeartbeatResponse::default()
        })
    }

    pub(super) fn find_leaving(&self, id: &str, instance_id: Option<&str>) -> Result<MemberId, GroupRefusal> {
        let Some(instance_id) = instance_id else {
            return self.members.get(id).map(|member| member.id.clone()).ok_or_else(|| unknown_member(id));
        };
        match self.statics.get(instance_id) {
            None => {
                let message = format!("Instance id {instance_id} is unknown.");
                Err(GroupRefusal::new(ErrorCode::UNKNOWN_MEMBER_ID, message))
            }
            Some(existing) if **existing != *id => Err(fenced_instance(id, instance_id, existing)),
            Some(existing) => Ok(existing.clone()),
        }
    }

    /// Pauses a static member. It keeps its assigned partitions until its session ends, but loses those that were being
    /// revoked.
    fn pause(&mut self, id: &MemberId) {
        let mut member = self.members[id].clone();
        member.epoch = LEAVING_TO_RETURN;
        member.state = MemberState::Stable;
        member.revoking = HeldPartitions::new();
        member.revoke_by = None;
        member.expected_by = i64::MAX;
        self.put(member);
    }

    /// Removes members from the group and raises the group epoch. The next heartbeat of another member computes a new
    /// target.
    pub(super) fn remove(&mut self, ids: &[MemberId], now: i64) {
        for id in ids {
            self.take(id);
        }
        self.strike_regexes();
        self.bump(now);
        if self.members.is_empty() {
            self.empty_since = Some(now);
            // A map that has become empty can still use kilobytes, and there may be many abandoned groups.
            (self.members, self.statics) = (BTreeMap::new(), BTreeMap::new());
            (self.holders, self.regexes) = (BTreeMap::new(), BTreeMap::new());
            (self.subscriptions, self.topics) = (SubscriptionCounts::default(), SubscribedTopics::default());
            self.topics_hash = self.topics.hash();
        }
    }

    /// Fences the members that have missed a deadline, and returns them.
    pub fn tick(&mut self, now: i64) -> Vec<Fenced> {
        let overdue: Vec<Fenced> = self
            .members
            .values()
            .filter_map(|member| {
                let classic = member.classic.as_ref().and_then(|classic| classic.overdue(now));
                let waited_for = match () {
                    () if member.session_by <= now => "a heartbeat",
                    () if member.revoke_by.is_some_and(|by| by <= now) => "the revocation of partitions",
                    () => classic?,
                };
                Some(Fenced { member_id: member.id.clone(), waited_for })
            })
            .collect();
        if !overdue.is_empty() {
            let ids: Vec<MemberId> = overdue.iter().map(|fenced| fenced.member_id.clone()).collect();
            self.remove(&ids, now);
        }
        overdue
    }
}
