//! A group of the classic protocol (JoinGroup, SyncGroup; KIP-62, 345, 394, 559, 814): the members meet, one of them,
//! the leader, decides who reads what, and the group passes its decision on without reading it.
//!
//! ```text
//!            a member joins                 all joined, or time is up
//!   Empty ------------------> Preparing ------------------------------> Completing
//!     ^  <--------------------   ^  ^                                      |
//!     |      nobody joined       |  `------- a member comes, goes, --------'
//!     |                          |          or does not sync               | the leader's assignment
//!     |                          `------------------------------------- Stable
//! ```
//!
//! What it is not: it knows no topics, and draws no member ids: the caller brings a new one along with each join.
//!
//! Invariants: who is a member of a generation was told the same generation, protocol and leader as the others; a
//! member waits with at most one JoinGroup and one SyncGroup; `joined` is the number of members whose JoinGroup waits.
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
use member::{ClassicGroupMember, NEVER};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Settings of a classic group.
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

/// When members that have not joined are given up.
#[derive(Clone, Copy, Debug)]
enum JoinEnd {
    /// The group was empty: it waits for more to come.
    Initial {
        at: i64,
        /// How much longer it may be put off.
        left_ms: i64,
        /// Somebody joined since it was last put off.
        somebody_came: bool,
    },
    /// Members were asked to join again.
    Timeout { at: i64 },
}

/// Group of the classic protocol.
#[derive(Debug)]
pub struct Classic {
    settings: ClassicGroupSettings,
    state: GroupState,
    /// When it came into this state, by the clock on the wall: it outlives the process.
    since: i64,
    /// How far that is ahead of the clock of events.
    clock_ahead_ms: i64,
    protocol_type: Option<Text>,
    generation: i32,
    /// The protocol of the generation.
    protocol: Option<Text>,
    leader: Option<MemberId>,
    members: BTreeMap<MemberId, ClassicGroupMember>,
    /// Member ids by static name.
    instances: HashMap<Text, MemberId>,
    /// Ids given out that have not joined yet (KIP-394), and until when they may.
    pending: BTreeMap<MemberId, i64>,
    /// How many members offer each protocol.
    offered: HashMap<Text, usize>,
    /// Topics that the members of the generation read, if they are known.
    topics: Option<BTreeSet<Text>>,
    joined: usize,
    /// In PreparingRebalance.
    join_end: Option<JoinEnd>,
    /// From CompletingRebalance until every member has synced.
    sync_end: Option<i64>,
    /// No deadline of a member or a pending id is earlier. Heartbeats move deadlines back and leave this as it is.
    sessions_from: i64,
    /// True if a snapshot of it was ever to be kept.
    was_kept: bool,
    /// Memory of the members and pending ids, about.
    bytes: usize,
}

impl Classic {
    /// An empty group.
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
            bytes: 0,
        }
    }

    /// The group's state.
    pub fn state(&self) -> GroupState {
        self.state
    }

    /// Returns the protocol type; `None` when the group never had a member.
    pub fn protocol_type(&self) -> Option<&str> {
        self.protocol_type.as_deref()
    }

    /// Memory it holds for its members, about.
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
        self.state = state;
        self.since = now.saturating_add(self.clock_ahead_ms);
    }

    fn is_leader(&self, member_id: &str) -> bool {
        self.leader.as_deref() == Some(member_id)
    }

    /// Checks that the member is the one that has this id and, if it says so, this static name.
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

    /// The member's session begins anew.
    fn renew(&mut self, member_id: &str, now: i64) {
        if let Some(member) = self.members.get_mut(member_id) {
            member.deadline = member.session_end(now);
            self.sessions_from = self.sessions_from.min(member.deadline);
        }
    }

    fn insert(&mut self, id: MemberId, member: ClassicGroupMember) {
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

    /// Takes the member out; who asked for it is still to be answered.
    fn take(&mut self, member_id: &str) -> Option<(MemberId, ClassicGroupMember)> {
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

    /// Removes the member for good. Whatever it waited for is answered UNKNOWN_MEMBER_ID, so that it joins anew if it
    /// is still there.
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

    /// Without members: emptied maps keep kilobytes for the next ones, and there may be many groups that were left.
    fn give_room_back(&mut self) {
        self.members = BTreeMap::new();
        self.instances = HashMap::new();
        self.offered = HashMap::new();
    }
}

/// Returns the bytes of a pending member id.
fn pending_bytes(member_id: &str) -> usize {
    member_id.len() + 128
}

/// Answers a JoinGroup that failed.
fn refuse_join(member_id: &Text, ticket: Option<RequestTicket>, error_code: ErrorCode, effects: &mut Effects) {
    let Some(ticket) = ticket else { return };
    let response =
        JoinGroupResponse { error_code, member_id: member_id.clone(), protocol_name: None, ..Default::default() };
    effects.push(Effect::Answer(ticket, GroupAnswer::Join(Box::new(response))));
}

/// Answers a SyncGroup that failed.
fn refuse_sync(ticket: Option<RequestTicket>, error_code: ErrorCode, effects: &mut Effects) {
    let Some(ticket) = ticket else { return };
    let response = SyncGroupResponse { error_code, ..Default::default() };
    effects.push(Effect::Answer(ticket, GroupAnswer::Sync(Box::new(response))));
}
