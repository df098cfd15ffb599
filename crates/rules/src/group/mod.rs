//! Consumer groups: who is in a group, what its members agreed on, and who may commit.
//!
//! A [`Group`] speaks one protocol at a time, each a machine of its own: [`classic`]. A machine takes an event and the
//! time, and says what follows as [`Effect`]s, in order. It never waits: who must wait leaves a [`Ticket`], which a later
//! event answers. What it is not: it knows no sockets, no database, no topics, and draws no random member ids.
//!
//! Invariant: every ticket handed to a machine is answered exactly once, at the latest when its deadline has passed and
//! [`Group::tick`] was called.
//!
//! Time is in milliseconds since 1970, from a clock that only goes forward.

pub mod classic;
pub mod consumer;
mod effects;
pub mod expiry;
mod snapshot;

pub use effects::{Answer, Effect, Effects, Event, Ticket};
pub use snapshot::{Snapshot, SnapshotError};

use classic::{Classic, Joining};
use fullbore_wire::apis::describe_groups::DescribedGroup;
use fullbore_wire::apis::heartbeat::HeartbeatRequest;
use fullbore_wire::apis::leave_group::MemberIdentity;
use fullbore_wire::apis::sync_group::SyncGroupRequest;
use fullbore_wire::{ErrorCode, Text};
use std::fmt;

/// The id of a member: what the coordinator gave it, or what it chose itself (KIP-848).
pub type MemberId = Text;

/// Where a group is between two assignments. Not every protocol has every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// No members; it may have offsets.
    Empty,
    /// Classic: members are asked to join again.
    PreparingRebalance,
    /// Classic: the members are known, the leader assigns.
    CompletingRebalance,
    /// Consumer: a target assignment is worked out.
    Assigning,
    /// Consumer: members move towards their target.
    Reconciling,
    /// Everybody has what it was assigned.
    Stable,
    /// Gone; who still holds it must look the group up anew.
    Dead,
}

impl State {
    /// Every state.
    pub const ALL: [State; 7] = [
        State::Empty,
        State::PreparingRebalance,
        State::CompletingRebalance,
        State::Assigning,
        State::Reconciling,
        State::Stable,
        State::Dead,
    ];

    /// Kafka's word.
    pub const fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::PreparingRebalance => "PreparingRebalance",
            State::CompletingRebalance => "CompletingRebalance",
            State::Assigning => "Assigning",
            State::Reconciling => "Reconciling",
            State::Stable => "Stable",
            State::Dead => "Dead",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which protocol a group speaks: Kafka's group type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// JoinGroup and SyncGroup.
    Classic,
}

impl Protocol {
    /// Kafka's word.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Classic => "classic",
        }
    }
}

/// What of the broker's settings groups are held to.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Of the classic protocol.
    pub classic: classic::Settings,
}

/// Who commits offsets, as OffsetCommit says it.
#[derive(Clone, Copy, Debug)]
pub struct Committer<'a> {
    /// Empty from outside the group.
    pub member_id: &'a str,
    /// The static name.
    pub instance_id: Option<&'a str>,
    /// The generation in a classic group, the member epoch in one of the consumer protocol; -1 from outside the group.
    pub generation: i32,
}

/// One group.
#[derive(Debug)]
pub enum Group {
    /// JoinGroup and SyncGroup; also a group that only has offsets.
    Classic(Box<Classic>),
}

impl Group {
    /// An empty group.
    pub fn new(settings: Settings, now: i64) -> Group {
        Group::Classic(Box::new(Classic::new(settings.classic, now)))
    }

    /// The group as it was kept. Every member's session begins anew.
    ///
    /// # Errors
    /// [`SnapshotError`] when `snapshot` is none of ours.
    pub fn restore(snapshot: &Snapshot, settings: Settings, now: i64) -> Result<Group, SnapshotError> {
        let mut bytes = snapshot.state.clone();
        if snapshot.version != snapshot::VERSION || bytes.is_empty() {
            return Err(SnapshotError::Version(snapshot.version));
        }
        match bytes.split_to(1)[0] {
            snapshot::CLASSIC => Ok(Group::Classic(Box::new(Classic::restore(bytes, settings.classic, now)?))),
            other => Err(SnapshotError::Protocol(other)),
        }
    }

    /// What is to be kept of it: as [`Effect::Keep`] says it.
    pub fn snapshot(&self) -> Snapshot {
        match self {
            Group::Classic(group) => group.snapshot(),
        }
    }

    /// The protocol it speaks.
    pub fn protocol(&self) -> Protocol {
        match self {
            Group::Classic(_) => Protocol::Classic,
        }
    }

    /// Its state.
    pub fn state(&self) -> State {
        match self {
            Group::Classic(group) => group.state(),
        }
    }

    /// What it is for: `consumer`, `connect` or another word; empty when it only ever had offsets.
    pub fn protocol_type(&self) -> &str {
        match self {
            Group::Classic(group) => group.protocol_type().unwrap_or_default(),
        }
    }

    /// A JoinGroup; its answer may be long in coming.
    pub fn join(&mut self, joining: Joining<'_>, ticket: Ticket, now: i64, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.join(joining, ticket, now, effects),
        }
    }

    /// A SyncGroup; its answer may be long in coming.
    pub fn sync(&mut self, request: &SyncGroupRequest, ticket: Ticket, now: i64, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.sync(request, ticket, now, effects),
        }
    }

    /// A Heartbeat of the classic protocol.
    pub fn heartbeat(&mut self, request: &HeartbeatRequest, ticket: Ticket, now: i64, effects: &mut Effects) {
        let code = match self {
            Group::Classic(group) => group.heartbeat(request, now),
        };
        effects.push(Effect::Answer(ticket, Answer::Heartbeat(code)));
    }

    /// A LeaveGroup, in whose first versions the one member was put into the list.
    pub fn leave(&mut self, members: &[MemberIdentity], ticket: Ticket, now: i64, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.leave(members, ticket, now, effects),
        }
    }

    /// As DescribeGroups shows it, without its id; `None` for a group of another protocol.
    pub fn describe_classic(&self) -> Option<DescribedGroup> {
        match self {
            Group::Classic(group) => Some(group.describe()),
        }
    }

    /// When [`Group::tick`] has something to do, at the earliest.
    pub fn next_deadline(&self) -> Option<i64> {
        match self {
            Group::Classic(group) => group.next_deadline(),
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: i64, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.tick(now, effects),
        }
    }

    /// Whether this member may commit now. Where the protocol says so, committing counts as a heartbeat.
    ///
    /// # Errors
    /// What the commit is to be answered.
    pub fn check_commit(&mut self, committer: &Committer<'_>, now: i64) -> Result<(), ErrorCode> {
        match self {
            Group::Classic(group) => group.check_commit(committer, now),
        }
    }

    /// Whether who asks for offsets may have them; a client that names neither member nor epoch may.
    ///
    /// # Errors
    /// What the fetch is to be answered.
    pub fn check_fetch(&self, _member_id: Option<&str>, _epoch: i32) -> Result<(), ErrorCode> {
        match self {
            Group::Classic(_) => Ok(()),
        }
    }

    /// Whether the group may be deleted.
    ///
    /// # Errors
    /// NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
    pub fn check_delete(&self) -> Result<(), ErrorCode> {
        match self.state() {
            State::Empty => Ok(()),
            State::Dead => Err(ErrorCode::GROUP_ID_NOT_FOUND),
            _ => Err(ErrorCode::NON_EMPTY_GROUP),
        }
    }

    /// Whether offsets of the group may be deleted one by one.
    ///
    /// # Errors
    /// NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
    pub fn check_offset_delete(&self) -> Result<(), ErrorCode> {
        match self {
            Group::Classic(group) => group.check_offset_delete(),
        }
    }

    /// Whether a member reads this topic, as far as can be told: its offsets must then neither be deleted nor expire.
    pub fn reads(&self, topic: &str) -> bool {
        match self {
            Group::Classic(group) => group.reads(topic),
        }
    }

    /// Since when it has been empty, in milliseconds since 1970; `None` while it has members. Offsets of a group that
    /// never had any (no protocol type) expire by their own age.
    pub fn empty_since(&self) -> Option<i64> {
        match self {
            Group::Classic(group) => group.empty_since(),
        }
    }

    /// Memory it holds for its members, about.
    pub fn bytes(&self) -> usize {
        match self {
            Group::Classic(group) => group.bytes(),
        }
    }

    /// Whether nothing would be lost with it but its offsets: nobody is or is about to be in it, and it was never kept.
    pub fn is_blank(&self) -> bool {
        match self {
            Group::Classic(group) => group.is_blank(),
        }
    }

    /// Takes it out of service: everybody who waits is answered, and its state is [`State::Dead`].
    pub fn kill(&mut self, code: ErrorCode, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.kill(code, effects),
        }
    }
}
