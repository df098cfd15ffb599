//! A group that uses the classic protocol (JoinGroup, SyncGroup; KIP-62, 345, 394, 559, 814). The members join, their
//! leader assigns the partitions, and the group passes each member its assignment without decoding it.
//!
//! ```text
//!            a member joins                 all joined, or time is up
//!   Empty ------------------> Preparing ------------------------------> Completing
//!     ^  <--------------------   ^  ^                                      |
//!     |      no member joined    |  `------- a member joins, leaves, ------'
//!     |                          |          or does not sync               | the leader's assignment
//!     |                          `------------------------------------- Stable
//! ```
//!
//! This module neither looks up topics nor draws member ids. The caller passes an unused id with each join.
//!
//! Invariants: all members of a generation got the same generation, protocol and leader. A member has at most one
//! waiting JoinGroup and one waiting SyncGroup. `joined` is the number of members with a waiting JoinGroup.
//!
//! The rules are those of Kafka's group coordinator (classes GroupMetadataManager and ClassicGroup of Kafka 4.3).

mod commit;
mod describe;
mod heartbeat;
mod join;
mod keep;
mod leave;
mod member;
mod migrate;
#[cfg(test)]
mod model;
mod rebalance;
mod sync;
#[cfg(test)]
mod tests;

use super::{Effect, Effects, GroupAnswer, GroupState, MemberId, RequestTicket};
use fullbore_wire::apis::join_group::JoinGroupResponse;
use fullbore_wire::apis::sync_group::SyncGroupResponse;
use fullbore_wire::{ErrorCode, Text};
use keep::Unsaved;
use member::{ClassicGroupMember, NEVER};
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Clone, Copy, Debug)]
pub struct ClassicGroupSettings {
    /// `group.min.session.timeout.ms`.
    pub session_timeout_min_ms: i32,
    /// `group.max.session.timeout.ms`.
    pub session_timeout_max_ms: i32,
    /// `group.initial.rebalance.delay.ms`.
    pub initial_rebalance_delay_ms: i32,
    /// `group.max.size`.
    pub members_max: usize,
}

/// When the group stops waiting for members to join. It then removes members that have not rejoined.
#[derive(Clone, Copy, Debug)]
enum JoinEnd {
    /// The group was empty before its first member joined, and waits for more members.
    Initial {
        at: i64,
        /// By how much the wait can still be prolonged, in ms.
        left_ms: i64,
        /// True if a member has joined since the wait was last prolonged.
        somebody_came: bool,
    },
    /// Members have until `at` to rejoin.
    Timeout { at: i64 },
}

/// A group that uses the classic protocol.
#[derive(Debug)]
pub struct Classic {
    settings: ClassicGroupSettings,
    state: GroupState,
    /// When the group entered its state, by the wall clock, because the time is stored and must have a meaning after a
    /// restart.
    since: i64,
    /// How far the wall clock is ahead of the clock that events use, in ms.
    clock_ahead_ms: i64,
    protocol_type: Option<Text>,
    generation: i32,
    /// The protocol that the generation uses.
    protocol: Option<Text>,
    leader: Option<MemberId>,
    members: BTreeMap<MemberId, ClassicGroupMember>,
    /// The member ids of static members, by instance id.
    instances: HashMap<Text, MemberId>,
    /// Ids given to clients that have not joined with them yet (KIP-394), each with its deadline.
    pending: BTreeMap<MemberId, i64>,
    /// How many members offer each protocol.
    offered: HashMap<Text, usize>,
    /// The topics that the members of the generation read; None if they are unknown.
    topics: Option<BTreeSet<Text>>,
    joined: usize,
    /// When the group stops waiting for members to join. Set only in PreparingRebalance.
    join_end: Option<JoinEnd>,
    /// The deadline for the members' SyncGroups. Set when the group enters CompletingRebalance, and removed when it has
    /// passed or the next rebalance begins.
    sync_end: Option<i64>,
    /// A lower bound for the deadlines of members and pending ids. A heartbeat prolongs a deadline, but leaves this
    /// bound as it is, because to find the new minimum would take a search.
    sessions_from: i64,
    /// True if a snapshot of the group was ever requested or restored, so that the log may have a record of the group.
    was_kept: bool,
    unsaved: Unsaved,
    /// Approximate memory of the members and the pending ids, in bytes.
    bytes: usize,
}

impl Classic {
    /// Creates an empty group.
    pub fn new(settings: ClassicGroupSettings, now: i64) -> Self {
        Classic {
            settings,
            state: GroupState::Empty,
            since: now,
            clock_ahead_ms: 0,
            protocol_type: None,
            generation: 0,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            instances: HashMap::new(),
            pending: BTreeMap::new(),
            offered: HashMap::new(),
            topics: None,
            joined: 0,
            join_end: None,
            sync_end: None,
            sessions_from: NEVER,
            was_kept: false,
            unsaved: Unsaved::Nothing,
            bytes: 0,
        }
    }

    pub fn state(&self) -> GroupState {
        self.state
    }

    /// Returns the protocol type; None if the group never had a member.
    pub fn protocol_type(&self) -> Option<&str> {
        self.protocol_type.as_deref()
    }

    /// Returns the approximate memory of the group's members, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn set_clock_ahead(&mut self, ahead_ms: i64) {
        self.clock_ahead_ms = ahead_ms;
    }

    pub(super) fn empty_since(&self) -> Option<i64> {
        (self.state == GroupState::Empty).then_some(self.since)
    }

    pub(super) fn is_blank(&self) -> bool {
        self.state == GroupState::Empty && self.pending.is_empty() && !self.was_kept
    }

    pub(super) fn kill(&mut self, code: ErrorCode, effects: &mut Effects) {
        for (id, member) in &mut self.members {
            refuse_join(id, member.joining.take(), code, effects);
            refuse_sync(member.syncing.take(), code, effects);
        }
        *self = Classic { state: GroupState::Dead, ..Classic::new(self.settings, self.since) };
    }

    fn enter(&mut self, state: GroupState, now: i64) {
        self.retain_unsaved();
        self.state = state;
        self.since = now.saturating_add(self.clock_ahead_ms);
    }

    fn is_leader(&self, member_id: &str) -> bool {
        self.leader.as_deref() == Some(member_id)
    }

    /// Checks that there is a member with this id, and that the instance id, if given, is the member's.
    fn check_member(&self, member_id: &str, instance_id: Option<&str>) -> Result<(), ErrorCode> {
        if let Some(instance_id) = instance_id {
            match self.instances.get(instance_id) {
                None => return Err(ErrorCode::UNKNOWN_MEMBER_ID),
                Some(known) if *known != member_id => return Err(ErrorCode::FENCED_INSTANCE_ID),
                Some(_) => {}
            }
        }
        if self.members.contains_key(member_id) { Ok(()) } else { Err(ErrorCode::UNKNOWN_MEMBER_ID) }
    }

    /// Restarts the member's session.
    fn renew(&mut self, member_id: &str, now: i64) {
        if let Some(member) = self.members.get_mut(member_id) {
            member.deadline = member.session_end(now);
            self.sessions_from = self.sessions_from.min(member.deadline);
        }
    }

    fn insert(&mut self, id: MemberId, member: ClassicGroupMember) {
        self.retain_unsaved();
        self.attach(id, member);
    }

    /// Adds a member, but does not encode an unsaved snapshot before. For the successor of a member that
    /// [`Classic::detach`] has removed.
    fn attach(&mut self, id: MemberId, member: ClassicGroupMember) {
        for (name, _) in &member.profile.protocols {
            *self.offered.entry(name.clone()).or_default() += 1;
        }
        if let Some(instance_id) = &member.instance_id {
            self.instances.insert(instance_id.clone(), id.clone());
        }
        self.joined += usize::from(member.joining.is_some());
        self.sessions_from = self.sessions_from.min(member.deadline);
        self.bytes += member.bytes(&id);
        self.leader.get_or_insert_with(|| id.clone());
        self.members.insert(id, member);
    }

    /// Removes the member from the group and returns it, if it exists. The caller must respond to the member's waiting
    /// requests.
    fn take(&mut self, member_id: &str) -> Option<(MemberId, ClassicGroupMember)> {
        self.retain_unsaved();
        self.detach(member_id)
    }

    /// Removes a member like [`Classic::take`], but does not encode an unsaved snapshot before. The caller then
    /// attaches the member's successor, and a later snapshot shows the successor.
    fn detach(&mut self, member_id: &str) -> Option<(MemberId, ClassicGroupMember)> {
        let (id, member) = self.members.remove_entry(member_id)?;
        self.withdraw_offers(&member);
        self.joined -= usize::from(member.joining.is_some());
        self.bytes -= member.bytes(&id);
        if let Some(instance_id) = &member.instance_id
            && self.instances.get(instance_id) == Some(&id)
        {
            self.instances.remove(instance_id);
        }
        Some((id, member))
    }

    fn withdraw_offers(&mut self, member: &ClassicGroupMember) {
        for (name, _) in &member.profile.protocols {
            if let Some(count) = self.offered.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    self.offered.remove(name);
                }
            }
        }
    }

    /// Removes the member for good. Its waiting requests get UNKNOWN_MEMBER_ID, so a client that is still alive joins
    /// again.
    fn remove(&mut self, member_id: &str, effects: &mut Effects) {
        self.forget_pending(member_id);
        let Some((_, member)) = self.take(member_id) else { return };
        refuse_join(&Text::default(), member.joining, ErrorCode::UNKNOWN_MEMBER_ID, effects);
        refuse_sync(member.syncing, ErrorCode::UNKNOWN_MEMBER_ID, effects);
        if self.is_leader(member_id) {
            self.leader = self.members.keys().next().cloned();
        }
    }

    fn forget_pending(&mut self, member_id: &str) -> bool {
        let was_there = self.pending.remove(member_id).is_some();
        if was_there {
            self.bytes -= pending_bytes(member_id);
        }
        if self.pending.is_empty() {
            self.pending = BTreeMap::new();
        }
        was_there
    }

    /// Frees the maps of a group without members. A map that has become empty can still use kilobytes, and there may be
    /// many abandoned groups.
    fn give_room_back(&mut self) {
        self.members = BTreeMap::new();
        self.instances = HashMap::new();
        self.offered = HashMap::new();
    }
}

/// Returns the approximate size of a pending member id, in bytes.
fn pending_bytes(member_id: &str) -> usize {
    member_id.len() + 128
}

/// Responds with an error to a JoinGroup.
fn refuse_join(member_id: &Text, ticket: Option<RequestTicket>, error_code: ErrorCode, effects: &mut Effects) {
    let Some(ticket) = ticket else { return };
    let response =
        JoinGroupResponse { error_code, member_id: member_id.clone(), protocol_name: None, ..Default::default() };
    effects.push(Effect::Answer(ticket, GroupAnswer::Join(Box::new(response))));
}

/// Responds with an error to a SyncGroup.
fn refuse_sync(ticket: Option<RequestTicket>, error_code: ErrorCode, effects: &mut Effects) {
    let Some(ticket) = ticket else { return };
    let response = SyncGroupResponse { error_code, ..Default::default() };
    effects.push(Effect::Answer(ticket, GroupAnswer::Sync(Box::new(response))));
}
