//! SyncGroup: the leader sends all assignments, and the other members wait for theirs.

use super::{Classic, refuse_sync};
use crate::group::{Effect, Effects, Event, GroupAnswer, GroupState, MemberId, RequestTicket};
use bytes::Bytes;
use fullbore_wire::apis::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse};
use fullbore_wire::{ErrorCode, Text};
use std::collections::HashMap;

impl Classic {
    /// Handles a SyncGroup. The response waits until the leader has sent the assignments.
    pub fn sync(&mut self, request: &SyncGroupRequest, ticket: RequestTicket, now: i64, effects: &mut Effects) {
        if let Err(code) = self.check_sync(request) {
            return refuse_sync(Some(ticket), code, effects);
        }
        let member_id = &request.member_id;
        let Some(member) = self.members.get_mut(member_id) else { return };
        member.owes_sync = false;
        if self.state == GroupState::Stable {
            self.renew(member_id, now);
            effects.push(Effect::Answer(ticket, self.assignment_of(member_id)));
            return;
        }
        // If a client repeats its SyncGroup, it no longer waits for the response to the first one.
        refuse_sync(member.syncing.replace(ticket), ErrorCode::REBALANCE_IN_PROGRESS, effects);
        if self.is_leader(member_id) {
            self.assign(&request.assignments, now, effects);
        }
    }

    fn check_sync(&self, request: &SyncGroupRequest) -> Result<(), ErrorCode> {
        if self.state == GroupState::Dead {
            return Err(ErrorCode::COORDINATOR_NOT_AVAILABLE);
        }
        self.check_member(&request.member_id, request.group_instance_id.as_deref())?;
        let differs = |named: &Option<Text>, known: &Option<Text>| named.is_some() && named != known;
        if request.generation_id != self.generation {
            return Err(ErrorCode::ILLEGAL_GENERATION);
        }
        if differs(&request.protocol_type, &self.protocol_type) || differs(&request.protocol_name, &self.protocol) {
            return Err(ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
        }
        match self.state {
            GroupState::PreparingRebalance => Err(ErrorCode::REBALANCE_IN_PROGRESS),
            _ => Ok(()),
        }
    }

    /// Stores the leader's assignments, after which the group is stable. The snapshot is written before the responses
    /// are sent, so that members still find their generation after a restart.
    fn assign(&mut self, assignments: &[SyncGroupRequestAssignment], now: i64, effects: &mut Effects) {
        let by_member: HashMap<&Text, &Bytes> =
            assignments.iter().map(|one| (&one.member_id, &one.assignment)).collect();
        for (id, member) in &mut self.members {
            self.bytes -= member.assignment.len();
            member.assignment = by_member.get(id).map(|bytes| Bytes::copy_from_slice(bytes)).unwrap_or_default();
            self.bytes += member.assignment.len();
        }
        self.enter(GroupState::Stable, now);
        self.keep(effects);
        let waiting: Vec<(MemberId, RequestTicket)> =
            self.members.iter_mut().filter_map(|(id, member)| Some((id.clone(), member.syncing.take()?))).collect();
        for (id, ticket) in waiting {
            self.renew(&id, now);
            effects.push(Effect::Answer(ticket, self.assignment_of(&id)));
        }
        effects.push(Effect::Report(Event::Assigned { generation: self.generation }));
    }

    fn assignment_of(&self, member_id: &str) -> GroupAnswer {
        GroupAnswer::Sync(Box::new(SyncGroupResponse {
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol.clone(),
            assignment: self.members.get(member_id).map(|member| member.assignment.clone()).unwrap_or_default(),
            ..Default::default()
        }))
    }
}
