//! JoinGroup: a new member joins, a known member rejoins, or a static member returns under its instance id.

use super::member::{ClassicGroupMember, NEW_MEMBER_JOIN_MAX_MS, Profile};
use super::{Classic, JoinEnd, pending_bytes, refuse_join};
use crate::group::{Effect, Effects, Event, GroupAnswer, GroupState, Joining, MemberId, RequestTicket};
use bytes::Bytes;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember};
use fullbore_wire::{ErrorCode, Text};

/// The first version of JoinGroup in which a client without a member id is given one and must join again with it
/// (KIP-394).
const MEMBER_ID_REQUIRED_FROM: i16 = 4;
/// The first version of JoinGroup in which a leader can skip the assignment (KIP-814).
const SKIP_ASSIGNMENT_FROM: i16 = 9;

impl Joining<'_> {
    /// Returns the reason that the client gives for joining, for the log.
    fn reason(&self) -> &str {
        self.request.reason.as_deref().filter(|reason| !reason.is_empty()).unwrap_or("not provided")
    }

    fn instance_id(&self) -> Option<Text> {
        self.request.group_instance_id.as_deref().map(Text::from)
    }
}

impl Classic {
    /// Handles a JoinGroup. The response may wait until the rebalance ends.
    pub fn join(&mut self, joining: Joining<'_>, ticket: RequestTicket, now: i64, effects: &mut Effects) {
        let request = joining.request;
        let is_unknown = request.member_id.is_empty();
        let member_id = Text::from(&*request.member_id);
        let refusal = if !(self.settings.session_timeout_min_ms..=self.settings.session_timeout_max_ms)
            .contains(&request.session_timeout_ms)
        {
            Some((member_id, ErrorCode::INVALID_SESSION_TIMEOUT))
        } else if self.state == GroupState::Dead {
            Some((member_id, ErrorCode::COORDINATOR_NOT_AVAILABLE))
        } else if !self.has_room_for(&request.member_id) {
            self.remove(&request.member_id, effects);
            self.complete_join_if_all_there(now, effects);
            Some((Text::default(), ErrorCode::GROUP_MAX_SIZE_REACHED))
        } else if !self.supports(request) {
            Some((member_id, ErrorCode::INCONSISTENT_GROUP_PROTOCOL))
        } else {
            None
        };
        match refusal {
            Some((member_id, code)) => refuse_join(&member_id, Some(ticket), code, effects),
            None if is_unknown => self.join_unknown(joining, ticket, now, effects),
            None => self.join_known(joining, ticket, now, effects),
        }
    }

    /// Returns true if the group has room for the member. During a rebalance only members that have rejoined count. So
    /// if a group has too many members, those that rejoin last are removed.
    fn has_room_for(&self, member_id: &str) -> bool {
        let known = self.members.get(member_id);
        match self.state {
            GroupState::Empty | GroupState::Dead => true,
            GroupState::PreparingRebalance => {
                known.is_some_and(|member| member.joining.is_some()) || self.joined < self.settings.members_max
            }
            _ => known.is_some() || self.members.len() < self.settings.members_max,
        }
    }

    /// Returns true if the member has the group's protocol type and offers a protocol that all members offer.
    fn supports(&self, request: &JoinGroupRequest) -> bool {
        if self.state == GroupState::Empty {
            return !request.protocol_type.is_empty() && !request.protocols.is_empty();
        }
        let all = self.members.len();
        self.protocol_type.as_ref() == Some(&request.protocol_type)
            && request.protocols.iter().any(|protocol| {
                // A group whose members have all left during a rebalance accepts any protocol.
                all == 0 || self.offered.get(&protocol.name).is_some_and(|count| *count == all)
            })
    }

    fn join_unknown(&mut self, joining: Joining<'_>, ticket: RequestTicket, now: i64, effects: &mut Effects) {
        let new_id = joining.new_member_id;
        if let Some(instance_id) = &joining.request.group_instance_id {
            return match self.instances.get(instance_id).cloned() {
                Some(old_id) => self.replace(&old_id, joining, ticket, now, effects),
                None => self.add(new_id.clone(), joining, ticket, now, effects),
            };
        }
        if joining.version < MEMBER_ID_REQUIRED_FROM {
            return self.add(new_id.clone(), joining, ticket, now, effects);
        }
        let until = now.saturating_add(i64::from(joining.request.session_timeout_ms));
        self.sessions_from = self.sessions_from.min(until);
        self.bytes += pending_bytes(new_id);
        self.pending.insert(new_id.clone(), until);
        refuse_join(new_id, Some(ticket), ErrorCode::MEMBER_ID_REQUIRED, effects);
    }

    fn join_known(&mut self, joining: Joining<'_>, ticket: RequestTicket, now: i64, effects: &mut Effects) {
        let request = joining.request;
        let member_id = Text::from(&*request.member_id);
        if request.group_instance_id.is_none() && self.forget_pending(&member_id) {
            return self.add(member_id, joining, ticket, now, effects);
        }
        if let Err(code) = self.check_member(&member_id, request.group_instance_id.as_deref()) {
            return refuse_join(&member_id, Some(ticket), code, effects);
        }
        let is_same = self.members[&member_id].profile.protocols == Profile::of(request).protocols;
        match self.state {
            GroupState::PreparingRebalance => {
                self.rejoin(&member_id, joining, ticket, effects);
                self.complete_join_if_all_there(now, effects);
            }
            // The member may have sent its JoinGroup again because the first response was lost.
            GroupState::CompletingRebalance if is_same => {
                effects.push(Effect::Answer(ticket, self.generation_for(&member_id, true, false)));
            }
            // A leader is excluded: it rejoins after a change that only the leader has noticed, such as new partitions
            // of a topic.
            GroupState::Stable if is_same && !self.is_leader(&member_id) => {
                effects.push(Effect::Answer(ticket, self.generation_for(&member_id, false, false)));
            }
            GroupState::CompletingRebalance | GroupState::Stable => {
                let reason = format!("member {member_id} joined again: {}", joining.reason());
                self.rejoin(&member_id, joining, ticket, effects);
                self.prepare_rebalance(reason, now, effects);
            }
            _ => refuse_join(&member_id, Some(ticket), ErrorCode::UNKNOWN_MEMBER_ID, effects),
        }
    }

    fn add(&mut self, id: MemberId, joining: Joining<'_>, ticket: RequestTicket, now: i64, effects: &mut Effects) {
        let request = joining.request;
        let member = ClassicGroupMember {
            instance_id: joining.instance_id(),
            client_id: Text::from(joining.client_id),
            client_host: Text::from(joining.client_host),
            profile: Profile::of(request),
            assignment: Bytes::new(),
            joining: Some(ticket),
            syncing: None,
            is_new: true,
            owes_sync: false,
            deadline: now.saturating_add(NEW_MEMBER_JOIN_MAX_MS),
        };
        if self.members.is_empty() {
            self.protocol_type = Some(Text::from(&*request.protocol_type));
        }
        if let Some(JoinEnd::Initial { somebody_came, .. }) = &mut self.join_end {
            *somebody_came = true;
        }
        let reason = format!("member {id} joined: {}", joining.reason());
        self.insert(id, member);
        match self.state {
            GroupState::PreparingRebalance => self.complete_join_if_all_there(now, effects),
            _ => self.prepare_rebalance(reason, now, effects),
        }
    }

    /// Replaces the member's fields by those of its new JoinGroup, which then waits for a response.
    fn rejoin(&mut self, member_id: &str, joining: Joining<'_>, ticket: RequestTicket, effects: &mut Effects) {
        let Some((id, mut member)) = self.take(member_id) else { return };
        // If a client repeats its JoinGroup, it no longer waits for the response to the first one.
        refuse_join(&id, member.joining.replace(ticket), ErrorCode::REBALANCE_IN_PROGRESS, effects);
        member.profile = Profile::of(joining.request);
        self.insert(id, member);
    }

    /// Gives a static member that joins without a member id a new id. From then on, requests with the old id are
    /// fenced.
    ///
    /// A snapshot of the stable group that is not saved yet will show the new id, even if this join starts a rebalance.
    /// If the broker then crashes, the client repeats its JoinGroup, which starts the rebalance again.
    fn replace(&mut self, old_id: &str, joining: Joining<'_>, ticket: RequestTicket, now: i64, effects: &mut Effects) {
        let new_id = joining.new_member_id;
        let Some((old_id, mut member)) = self.detach(old_id) else { return };
        refuse_join(&old_id, member.joining.take(), ErrorCode::FENCED_INSTANCE_ID, effects);
        super::refuse_sync(member.syncing.take(), ErrorCode::FENCED_INSTANCE_ID, effects);
        let was_leader = self.is_leader(&old_id);
        member.profile = Profile::of(joining.request);
        member.joining = Some(ticket);
        member.is_new = false;
        member.owes_sync = false;
        member.deadline = member.session_end(now);
        member.client_id = Text::from(joining.client_id);
        member.client_host = Text::from(joining.client_host);
        if was_leader {
            self.leader = Some(new_id.clone());
        }
        let instance_id = joining.instance_id().unwrap_or_default();
        effects.push(Effect::Report(Event::Replaced { instance_id, old: old_id.clone(), new: new_id.clone() }));
        self.attach(new_id.clone(), member);
        match self.state {
            GroupState::Stable if self.choose_protocol() == self.protocol => {
                self.take_up_again(new_id, was_leader.then_some(old_id), joining.version, effects);
            }
            GroupState::Stable | GroupState::CompletingRebalance => {
                let reason = format!("static member {new_id} came back: {}", joining.reason());
                self.prepare_rebalance(reason, now, effects);
            }
            _ => self.complete_join_if_all_there(now, effects),
        }
    }

    /// Sends the current generation to a static member that has returned. Below version 9 of JoinGroup, a client whose
    /// response names it as the leader would assign the partitions again. So the response to a leader with such a
    /// version names its old id as the leader.
    fn take_up_again(&mut self, id: &MemberId, led_as: Option<MemberId>, version: i16, effects: &mut Effects) {
        self.keep(effects);
        let can_skip = version >= SKIP_ASSIGNMENT_FROM;
        let Some(member) = self.members.get_mut(id) else { return };
        let Some(ticket) = member.joining.take() else { return };
        self.joined -= 1;
        let mut answer = self.generation_for(id, can_skip, can_skip);
        if let (GroupAnswer::Join(response), Some(old_id), false) = (&mut answer, led_as, can_skip) {
            response.leader = old_id;
        }
        effects.push(Effect::Answer(ticket, answer));
    }

    /// Returns a JoinGroup response with the current generation. A response to the leader lists all members if
    /// `with_members` is true.
    pub(super) fn generation_for(&self, id: &MemberId, with_members: bool, skip_assignment: bool) -> GroupAnswer {
        let is_leader = self.is_leader(id);
        let protocol = self.protocol.clone().unwrap_or_default();
        let one = |(id, member): (&MemberId, &ClassicGroupMember)| JoinGroupResponseMember {
            member_id: id.clone(),
            group_instance_id: member.instance_id.clone(),
            metadata: member.metadata(&protocol),
            ..Default::default()
        };
        let members = match is_leader && with_members {
            true => self.members.iter().map(one).collect(),
            false => Vec::new(),
        };
        GroupAnswer::Join(Box::new(JoinGroupResponse {
            generation_id: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            skip_assignment: is_leader && skip_assignment,
            member_id: id.clone(),
            members,
            ..Default::default()
        }))
    }
}
