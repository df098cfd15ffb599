//! Moves the group to the next generation, and handles members that do not join, sync or send heartbeats in time.

use super::member::{ClassicGroupMember, NEVER};
use super::{Classic, JoinEnd, refuse_sync};
use crate::group::{Effect, Effects, Event, GroupState, MemberId};
use bytes::Bytes;
use fullbore_wire::{ErrorCode, Text};

/// Minimum time that a group in which no member has rejoined waits before it checks again, in ms.
const NOBODY_JOINED_MS: i64 = 1000;

impl Classic {
    pub(in crate::group) fn next_deadline(&self) -> Option<i64> {
        let join_end = self.join_end.map(|end| match end {
            JoinEnd::Initial { at, .. } | JoinEnd::Timeout { at } => at,
        });
        let sessions = (self.sessions_from != NEVER).then_some(self.sessions_from);
        [join_end, self.sync_end, sessions].into_iter().flatten().min()
    }

    pub(in crate::group) fn tick(&mut self, now: i64, effects: &mut Effects) {
        match self.join_end {
            Some(JoinEnd::Initial { at, left_ms, somebody_came: true }) if at <= now && left_ms > 0 => {
                let delay = i64::from(self.settings.initial_rebalance_delay_ms);
                let at = now.saturating_add(delay.min(left_ms));
                let left_ms = (left_ms - delay).max(0);
                self.join_end = Some(JoinEnd::Initial { at, left_ms, somebody_came: false });
            }
            Some(JoinEnd::Initial { at, .. } | JoinEnd::Timeout { at }) if at <= now => {
                self.complete_join(now, effects)
            }
            _ => {}
        }
        if self.sync_end.is_some_and(|end| end <= now) {
            self.sync_end = None;
            self.expire_syncs(now, effects);
        }
        if self.sessions_from <= now {
            self.expire_sessions(now, effects);
        }
    }

    /// Makes all members rejoin. If all of them have already joined, completes the rebalance at once.
    pub(super) fn prepare_rebalance(&mut self, reason: String, now: i64, effects: &mut Effects) {
        if self.state == GroupState::CompletingRebalance {
            self.refuse_waiting_syncs(ErrorCode::REBALANCE_IN_PROGRESS, now, effects);
        }
        self.sync_end = None;
        self.members.values_mut().for_each(|member| member.owes_sync = false);
        effects.push(Effect::Report(Event::RebalanceBegun { generation: self.generation, reason }));
        let was_empty = self.state == GroupState::Empty;
        self.enter(GroupState::PreparingRebalance, now);
        if was_empty {
            let delay = i64::from(self.settings.initial_rebalance_delay_ms);
            let left_ms = (self.rebalance_timeout() - delay).max(0);
            self.join_end = Some(JoinEnd::Initial { at: now.saturating_add(delay), left_ms, somebody_came: false });
            return;
        }
        self.join_end = Some(JoinEnd::Timeout { at: now.saturating_add(self.rebalance_timeout()) });
        self.complete_join_if_all_there(now, effects);
    }

    /// Completes the rebalance if all members have joined and no client still has an unused member id. A group that was
    /// empty always waits for the initial delay.
    pub(super) fn complete_join_if_all_there(&mut self, now: i64, effects: &mut Effects) {
        let all_there = self.joined == self.members.len() && self.pending.is_empty();
        if all_there && matches!(self.join_end, Some(JoinEnd::Timeout { .. })) {
            self.complete_join(now, effects);
        }
    }

    /// Starts the next generation with the members that have joined, and with static members whose session is still
    /// valid.
    fn complete_join(&mut self, now: i64, effects: &mut Effects) {
        self.join_end = None;
        let late = |(id, member): (&MemberId, &ClassicGroupMember)| {
            (member.joining.is_none() && !member.is_static()).then(|| id.clone())
        };
        let late: Vec<MemberId> = self.members.iter().filter_map(late).collect();
        for member_id in late {
            self.remove(&member_id, effects);
            effects.push(Effect::Report(Event::Expired { member_id, waited_for: "JoinGroup" }));
        }
        if !self.members.is_empty() && !self.elect_leader() {
            // Only static members are left, and none of them has joined. The group waits until one of them joins or
            // their sessions end.
            let wait = self.rebalance_timeout().max(NOBODY_JOINED_MS);
            self.join_end = Some(JoinEnd::Timeout { at: now.saturating_add(wait) });
            return;
        }
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.protocol = self.choose_protocol();
        self.note_topics();
        let (generation, members) = (self.generation, self.members.len());
        effects.push(Effect::Report(Event::RebalanceCompleted { generation, members }));
        if members == 0 {
            self.leader = None;
            self.give_room_back();
            self.enter(GroupState::Empty, now);
            self.keep(effects);
            return;
        }
        self.enter(GroupState::CompletingRebalance, now);
        self.sync_end = Some(now.saturating_add(self.rebalance_timeout()));
        self.answer_joins(now, effects);
    }

    fn answer_joins(&mut self, now: i64, effects: &mut Effects) {
        let ids: Vec<MemberId> = self.members.keys().cloned().collect();
        for id in ids {
            let Some(member) = self.members.get_mut(&id) else { continue };
            // A static member that has not joined has no request to respond to. It stays in the group until its session
            // ends.
            let Some(ticket) = member.joining.take() else { continue };
            member.is_new = false;
            member.owes_sync = true;
            self.joined -= 1;
            self.renew(&id, now);
            effects.push(Effect::Answer(ticket, self.generation_for(&id, true, false)));
        }
    }

    /// Elects a leader among the members that have joined, and keeps the present one if possible. Returns false if no
    /// member has joined.
    fn elect_leader(&mut self) -> bool {
        let has_joined = |id: &MemberId| self.members.get(id).is_some_and(|member| member.joining.is_some());
        if !self.leader.as_ref().is_some_and(has_joined) {
            let Some((id, _)) = self.members.iter().find(|(_, member)| member.joining.is_some()) else { return false };
            self.leader = Some(id.clone());
        }
        true
    }

    /// Returns the protocol that most members prefer among those that all members offer; None if there is no such
    /// protocol. In a tie, the protocol with the first vote in the order of member ids wins.
    pub(super) fn choose_protocol(&self) -> Option<Text> {
        let all = self.members.len();
        let mut votes: Vec<(&Text, usize)> = Vec::new();
        for member in self.members.values() {
            let mut offers = member.profile.protocols.iter().map(|(name, _)| name);
            let Some(vote) = offers.find(|name| self.offered.get(*name).is_some_and(|count| *count == all)) else {
                continue;
            };
            match votes.iter_mut().find(|(name, _)| *name == vote) {
                Some((_, count)) => *count += 1,
                None => votes.push((vote, 1)),
            }
        }
        let most = votes.iter().map(|(_, count)| *count).max()?;
        votes.iter().find(|(_, count)| *count == most).map(|(name, _)| (*name).clone())
    }

    /// Returns the longest rebalance timeout of all members, in milliseconds.
    fn rebalance_timeout(&self) -> i64 {
        let timeouts = self.members.values().map(|member| member.profile.rebalance_timeout_ms);
        i64::from(timeouts.max().unwrap_or(0))
    }

    /// Responds with an error to all SyncGroups that wait for an assignment.
    fn refuse_waiting_syncs(&mut self, code: ErrorCode, now: i64, effects: &mut Effects) {
        for member in self.members.values_mut() {
            self.bytes -= member.assignment.len();
            member.assignment = Bytes::new();
            if member.syncing.is_some() {
                refuse_sync(member.syncing.take(), code, effects);
                member.deadline = member.session_end(now);
                self.sessions_from = self.sessions_from.min(member.deadline);
            }
        }
    }

    /// Removes members that got the generation but have not sent a SyncGroup for it (KAFKA-13452).
    fn expire_syncs(&mut self, now: i64, effects: &mut Effects) {
        let owing: Vec<MemberId> =
            self.members.iter().filter(|(_, member)| member.owes_sync).map(|(id, _)| id.clone()).collect();
        if owing.is_empty() || !matches!(self.state, GroupState::CompletingRebalance | GroupState::Stable) {
            return;
        }
        let count = owing.len();
        for member_id in owing {
            self.remove(&member_id, effects);
            effects.push(Effect::Report(Event::Expired { member_id, waited_for: "SyncGroup" }));
        }
        self.prepare_rebalance(format!("{count} members did not request their assignment (SyncGroup)"), now, effects);
    }

    fn expire_sessions(&mut self, now: i64, effects: &mut Effects) {
        let late: Vec<MemberId> =
            self.pending.iter().filter(|(_, until)| **until <= now).map(|(id, _)| id.clone()).collect();
        for member_id in late {
            self.forget_pending(&member_id);
            effects.push(Effect::Report(Event::Expired { member_id, waited_for: "second JoinGroup" }));
        }
        let mut dead = Vec::new();
        for (id, member) in self.members.iter_mut().filter(|(_, member)| member.deadline <= now) {
            match !member.is_new && (member.joining.is_some() || member.syncing.is_some()) {
                // A member sends no heartbeats while its request waits. Its session restarts with the response.
                true => member.deadline = NEVER,
                false => dead.push(id.clone()),
            }
        }
        let reason = dead.first().map(|first| format!("the session of {first} ended ({} sessions in all)", dead.len()));
        for member_id in dead {
            self.remove(&member_id, effects);
            effects.push(Effect::Report(Event::Expired { member_id, waited_for: "Heartbeat" }));
        }
        let deadlines = self.members.values().map(|member| member.deadline).chain(self.pending.values().copied());
        self.sessions_from = deadlines.min().unwrap_or(NEVER);
        match (self.state, reason) {
            (GroupState::Stable | GroupState::CompletingRebalance, Some(reason)) => {
                self.prepare_rebalance(reason, now, effects)
            }
            _ => self.complete_join_if_all_there(now, effects),
        }
    }
}
