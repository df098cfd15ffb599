//! Consumer groups: who is in a group, what its members agreed on, and who may commit.
//!
//! A [`Group`] speaks one protocol at a time, each a machine of its own: [`classic`] or [`consumer`]; `migration`
//! changes it from one to the other. A machine takes an event and the time, and says what follows as
//! [`Effect`]s, in order. It never waits: who must wait leaves a [`RequestTicket`], which a later event answers. What
//! it is not: it knows no sockets, no database, no topics, and draws no random member ids.
//!
//! Invariant: every ticket handed to a machine is answered exactly once, at the latest when its deadline has passed and
//! [`Group::tick`] was called.
//!
//! Time is in milliseconds since 1970, from a clock that only goes forward. Only since when a group is empty is told by
//! the clock on the wall, which may be set.

pub mod classic;
pub mod consumer;
mod effects;
pub mod expiry;
mod member;
mod migration;
#[cfg(test)]
mod migration_tests;
mod observed;
mod pending_offsets;
mod settings;
mod snapshot;
mod state;

pub use effects::{Effect, Effects, Event, GroupAnswer, RequestTicket};
pub use member::{Committer, Joining, MemberId};
pub use pending_offsets::{EndedOffsets, PendingOffsets, RemovedOffsets};
pub use settings::GroupSettings;
pub use snapshot::{Snapshot, SnapshotError};
pub use state::{GroupState, Protocol};

use classic::Classic;
use consumer::{ConsumerGroup, TopicIdPartition, Topics};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::describe_groups::DescribedGroup;
use fullbore_wire::apis::heartbeat::HeartbeatRequest;
use fullbore_wire::apis::leave_group::{LeaveGroupResponse, MemberIdentity};
use fullbore_wire::apis::sync_group::SyncGroupRequest;
use observed::{Consumer, observed};

/// Group of either protocol.
#[derive(Debug)]
pub enum Group {
    /// JoinGroup and SyncGroup; also a group that only has offsets.
    Classic(Box<Classic>),
    /// ConsumerGroupHeartbeat.
    Consumer(Box<Consumer>),
}

impl Group {
    /// An empty group.
    pub fn new(settings: GroupSettings, now: i64) -> Group {
        Group::Classic(Box::new(Classic::new(settings.classic, now)))
    }

    /// The group as it was kept. Every member's session begins anew.
    ///
    /// # Errors
    /// [`SnapshotError`] when `snapshot` is none of ours.
    pub fn restore(snapshot: &Snapshot, settings: GroupSettings, now: i64) -> Result<Group, SnapshotError> {
        let mut bytes = snapshot.state.clone();
        if snapshot.version != snapshot::VERSION || bytes.is_empty() {
            return Err(SnapshotError::Version(snapshot.version));
        }
        match bytes.split_to(1)[0] {
            snapshot::CLASSIC => Ok(Group::Classic(Box::new(Classic::restore(bytes, settings.classic, now)?))),
            snapshot::CONSUMER => {
                let group = ConsumerGroup::restore(bytes, &settings.consumer, now)?;
                Ok(Group::Consumer(Box::new(Consumer { group, settings })))
            }
            other => Err(SnapshotError::Protocol(other)),
        }
    }

    /// Returns the snapshot for [`Effect::Keep`].
    pub fn snapshot(&self) -> Snapshot {
        match self {
            Group::Classic(group) => group.snapshot(),
            Group::Consumer(consumer) => consumer.group.snapshot(),
        }
    }

    /// The protocol it speaks.
    pub fn protocol(&self) -> Protocol {
        match self {
            Group::Classic(_) => Protocol::Classic,
            Group::Consumer(_) => Protocol::Consumer,
        }
    }

    /// The group's state.
    pub fn state(&self) -> GroupState {
        match self {
            Group::Classic(group) => group.state(),
            Group::Consumer(consumer) => consumer.group.state(),
        }
    }

    /// Returns the protocol type: `consumer`, `connect` or another word; empty when the group only ever had offsets.
    pub fn protocol_type(&self) -> &str {
        match self {
            Group::Classic(group) => group.protocol_type().unwrap_or_default(),
            Group::Consumer(_) => consumer::PROTOCOL_TYPE,
        }
    }

    /// A JoinGroup; its answer may be long in coming.
    pub fn join(
        &mut self,
        joining: Joining<'_>,
        topics: &dyn Topics,
        ticket: RequestTicket,
        now: i64,
        effects: &mut Effects,
    ) {
        match self {
            Group::Classic(group) => group.join(joining, ticket, now, effects),
            Group::Consumer(_) => self.join_consumer(joining, topics, ticket, now, effects),
        }
    }

    /// A SyncGroup; its answer may be long in coming.
    pub fn sync(&mut self, request: &SyncGroupRequest, ticket: RequestTicket, now: i64, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.sync(request, ticket, now, effects),
            Group::Consumer(consumer) => {
                let response = consumer.group.classic_sync(request, now);
                effects.push(Effect::Answer(ticket, GroupAnswer::Sync(Box::new(response))));
            }
        }
    }

    /// A Heartbeat of the classic protocol.
    pub fn heartbeat(&mut self, request: &HeartbeatRequest, ticket: RequestTicket, now: i64, effects: &mut Effects) {
        let code = match self {
            Group::Classic(group) => group.heartbeat(request, now),
            Group::Consumer(consumer) => consumer.group.classic_heartbeat(request, now),
        };
        effects.push(Effect::Answer(ticket, GroupAnswer::Heartbeat(code)));
    }

    /// A LeaveGroup, in whose first versions the one member was put into the list.
    pub fn leave(&mut self, members: &[MemberIdentity], ticket: RequestTicket, now: i64, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.leave(members, ticket, now, effects),
            Group::Consumer(consumer) => {
                let members = observed(&mut consumer.group, effects, |group| group.classic_leave(members, now));
                self.keep_if_changed(effects);
                let response = LeaveGroupResponse { members, ..LeaveGroupResponse::default() };
                effects.push(Effect::Answer(ticket, GroupAnswer::Leave(Box::new(response))));
                self.downgrade_if_due(now, effects);
            }
        }
    }

    /// Returns the group as DescribeGroups shows it, without its id; `None` for a group of another protocol.
    pub fn describe_classic(&self) -> Option<DescribedGroup> {
        match self {
            Group::Classic(group) => Some(group.describe()),
            Group::Consumer(_) => None,
        }
    }

    /// The group under the consumer protocol; `None` if it is of another.
    pub fn consumer(&self) -> Option<&ConsumerGroup> {
        match self {
            Group::Classic(_) => None,
            Group::Consumer(consumer) => Some(&consumer.group),
        }
    }

    /// When [`Group::tick`] has something to do, at the earliest.
    pub fn next_deadline(&self) -> Option<i64> {
        match self {
            Group::Classic(group) => group.next_deadline(),
            Group::Consumer(consumer) => consumer.group.next_deadline(),
        }
    }

    /// Does what is due.
    pub fn tick(&mut self, now: i64, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.tick(now, effects),
            Group::Consumer(consumer) => {
                let fenced = observed(&mut consumer.group, effects, |group| group.tick(now));
                for consumer::Fenced { member_id, waited_for } in fenced {
                    effects.push(Effect::Tell(Event::Expired { member_id, waited_for }));
                }
                self.keep_if_changed(effects);
                self.downgrade_if_due(now, effects);
            }
        }
    }

    /// Checks that this member may commit now. Where the protocol says so, committing counts as a heartbeat.
    ///
    /// # Errors
    /// What the commit is to be answered.
    pub fn check_commit(&mut self, committer: &Committer<'_>, now: i64) -> Result<(), ErrorCode> {
        match self {
            Group::Classic(group) => group.check_commit(committer, now),
            Group::Consumer(consumer) => consumer.group.check_committer(committer).map(drop),
        }
    }

    /// Checks that a member that may commit may commit this partition: under the consumer protocol, an epoch that the
    /// member has left counts for what it has had since (KIP-1251).
    ///
    /// # Errors
    /// What the partition is to be answered.
    pub fn check_commit_of(&self, committer: &Committer<'_>, partition: &TopicIdPartition) -> Result<(), ErrorCode> {
        let Group::Consumer(consumer) = self else { return Ok(()) };
        let may = consumer.group.check_committer(committer)?;
        may.check(partition).map_err(|code| committer.as_known(code))
    }

    /// Checks that who asks for offsets may have them; a client that names neither member nor epoch may.
    ///
    /// # Errors
    /// What the fetch is to be answered.
    pub fn check_fetch(&self, member_id: Option<&str>, epoch: i32) -> Result<(), ErrorCode> {
        match self {
            Group::Classic(_) => Ok(()),
            Group::Consumer(consumer) => consumer.group.check_fetch(member_id, epoch).map_err(|refusal| refusal.code),
        }
    }

    /// Checks that the group may be deleted.
    ///
    /// # Errors
    /// NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
    pub fn check_delete(&self) -> Result<(), ErrorCode> {
        match self.state() {
            GroupState::Empty => Ok(()),
            GroupState::Dead => Err(ErrorCode::GROUP_ID_NOT_FOUND),
            _ => Err(ErrorCode::NON_EMPTY_GROUP),
        }
    }

    /// Checks that offsets of the group may be deleted one by one.
    ///
    /// # Errors
    /// NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND.
    pub fn check_offset_delete(&self) -> Result<(), ErrorCode> {
        match self {
            Group::Classic(group) => group.check_offset_delete(),
            Group::Consumer(_) => Ok(()),
        }
    }

    /// Returns true if a member reads this topic, as far as can be told: its offsets must then neither be deleted nor
    /// expire.
    pub fn reads(&self, topic: &str) -> bool {
        match self {
            Group::Classic(group) => group.reads(topic),
            Group::Consumer(consumer) => consumer.group.reads(topic),
        }
    }

    /// How far the clock on the wall is ahead of the one that the next events are stamped with.
    pub fn set_clock_ahead(&mut self, ahead_ms: i64) {
        match self {
            Group::Classic(group) => group.set_clock_ahead(ahead_ms),
            // The retention of its offsets counts from each commit.
            Group::Consumer(_) => {}
        }
    }

    /// Since when it has been empty, in milliseconds since 1970 by the clock on the wall; `None` while it has members.
    /// Offsets of a group that never had any (no protocol type) expire by their own age.
    pub fn empty_since(&self) -> Option<i64> {
        match self {
            Group::Classic(group) => group.empty_since(),
            Group::Consumer(consumer) => consumer.group.empty_since(),
        }
    }

    /// Memory it holds for its members, about.
    pub fn bytes(&self) -> usize {
        match self {
            Group::Classic(group) => group.bytes(),
            Group::Consumer(consumer) => consumer.group.bytes(),
        }
    }

    /// Returns true if nothing would be lost with it but its offsets: nobody is or is about to be in it, and it was
    /// never kept.
    pub fn is_blank(&self) -> bool {
        match self {
            Group::Classic(group) => group.is_blank(),
            Group::Consumer(_) => false,
        }
    }

    /// Takes it out of service: everybody who waits is answered, and its state is [`GroupState::Dead`].
    pub fn kill(&mut self, code: ErrorCode, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.kill(code, effects),
            Group::Consumer(consumer) => {
                // Nobody waits in such a group.
                let mut classic = Classic::new(consumer.settings.classic, 0);
                classic.kill(code, effects);
                *self = Group::Classic(Box::new(classic));
            }
        }
    }
}
