//! Consumer groups: their members, generations, assignments and permissions to commit.
//!
//! A [`Group`] has one protocol at a time, each a machine of its own: [`classic`] or [`consumer`]; `migration` converts
//! between them. A machine takes an event and the time, and returns [`Effect`]s in order. It never waits: a waiting
//! request leaves a [`RequestTicket`], to which a later event responds.
//!
//! Not here: sockets, the database, topics, and random member ids.
//!
//! Invariant: every ticket gets exactly one response, at the latest once its deadline has passed and [`Group::tick`]
//! was called.
//!
//! Times are in milliseconds since 1970, from a monotonic clock. One exception: the time since which a group is empty
//! is by the wall clock, which may be set.

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
    /// Classic group (JoinGroup and SyncGroup), or a group with offsets only.
    Classic(Box<Classic>),
    /// Group of the consumer protocol (ConsumerGroupHeartbeat).
    Consumer(Box<Consumer>),
}

impl Group {
    /// Creates an empty group.
    pub fn new(settings: GroupSettings, now: i64) -> Group {
        Group::Classic(Box::new(Classic::new(settings.classic, now)))
    }

    /// Returns the group of a snapshot. Every member's session restarts.
    ///
    /// # Errors
    /// [`SnapshotError`] if `snapshot` is not a valid snapshot.
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

    /// Returns the group's protocol.
    pub fn protocol(&self) -> Protocol {
        match self {
            Group::Classic(_) => Protocol::Classic,
            Group::Consumer(_) => Protocol::Consumer,
        }
    }

    pub fn state(&self) -> GroupState {
        match self {
            Group::Classic(group) => group.state(),
            Group::Consumer(consumer) => consumer.group.state(),
        }
    }

    /// Returns the protocol type: `consumer`, `connect` or another word; empty if the group only ever had offsets.
    pub fn protocol_type(&self) -> &str {
        match self {
            Group::Classic(group) => group.protocol_type().unwrap_or_default(),
            Group::Consumer(_) => consumer::PROTOCOL_TYPE,
        }
    }

    /// Handles a JoinGroup. The response may wait until the rebalance ends.
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

    /// Handles a SyncGroup; the response may wait for the leader's assignments.
    pub fn sync(&mut self, request: &SyncGroupRequest, ticket: RequestTicket, now: i64, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.sync(request, ticket, now, effects),
            Group::Consumer(consumer) => {
                let response = consumer.group.classic_sync(request, now);
                effects.push(Effect::Answer(ticket, GroupAnswer::Sync(Box::new(response))));
            }
        }
    }

    /// Handles a Heartbeat of the classic protocol.
    pub fn heartbeat(&mut self, request: &HeartbeatRequest, ticket: RequestTicket, now: i64, effects: &mut Effects) {
        let code = match self {
            Group::Classic(group) => group.heartbeat(request, now),
            Group::Consumer(consumer) => consumer.group.classic_heartbeat(request, now),
        };
        effects.push(Effect::Answer(ticket, GroupAnswer::Heartbeat(code)));
    }

    /// Handles a LeaveGroup; the first versions' single member is in the list.
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

    /// Returns the group in the form of DescribeGroups, without its id; None for a consumer group.
    pub fn describe_classic(&self) -> Option<DescribedGroup> {
        match self {
            Group::Classic(group) => Some(group.describe()),
            Group::Consumer(_) => None,
        }
    }

    /// Returns the group of the consumer protocol; None for a classic one.
    pub fn consumer(&self) -> Option<&ConsumerGroup> {
        match self {
            Group::Classic(_) => None,
            Group::Consumer(consumer) => Some(&consumer.group),
        }
    }

    /// Returns the earliest time at which [`Group::tick`] has something to do; None if there is none.
    pub fn next_deadline(&self) -> Option<i64> {
        match self {
            Group::Classic(group) => group.next_deadline(),
            Group::Consumer(consumer) => consumer.group.next_deadline(),
        }
    }

    /// Handles passed deadlines.
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

    /// Checks that this member may commit now. In a classic group a commit counts as a heartbeat.
    ///
    /// # Errors
    /// Error code for the response, if the member may not commit.
    pub fn check_commit(&mut self, committer: &Committer<'_>, now: i64) -> Result<(), ErrorCode> {
        match self {
            Group::Classic(group) => group.check_commit(committer, now),
            Group::Consumer(consumer) => consumer.group.check_committer(committer).map(drop),
        }
    }

    /// Checks that a committing member may commit this partition. In a consumer group, a past epoch is valid for
    /// partitions that the member has held since that epoch (KIP-1251).
    ///
    /// # Errors
    /// Error code for the partition, if the member may not commit it.
    pub fn check_commit_of(&self, committer: &Committer<'_>, partition: &TopicIdPartition) -> Result<(), ErrorCode> {
        let Group::Consumer(consumer) = self else { return Ok(()) };
        let may = consumer.group.check_committer(committer)?;
        may.check(partition).map_err(|code| committer.as_known(code))
    }

    /// Checks that a client may fetch offsets. A client without member and epoch always may do so.
    ///
    /// # Errors
    /// Error code for the response, if the client may not fetch the offsets.
    pub fn check_fetch(&self, member_id: Option<&str>, epoch: i32) -> Result<(), ErrorCode> {
        match self {
            Group::Classic(_) => Ok(()),
            Group::Consumer(consumer) => consumer.group.check_fetch(member_id, epoch).map_err(|refusal| refusal.code),
        }
    }

    /// Checks that the group may be deleted.
    ///
    /// # Errors
    /// NON_EMPTY_GROUP if the group has members, GROUP_ID_NOT_FOUND if it is removed.
    pub fn check_delete(&self) -> Result<(), ErrorCode> {
        match self.state() {
            GroupState::Empty => Ok(()),
            GroupState::Dead => Err(ErrorCode::GROUP_ID_NOT_FOUND),
            _ => Err(ErrorCode::NON_EMPTY_GROUP),
        }
    }

    /// Checks that single offsets of the group may be deleted.
    ///
    /// # Errors
    /// NON_EMPTY_GROUP if a classic group has members that are not consumers, since their topics are unknown;
    /// GROUP_ID_NOT_FOUND if the group is removed.
    pub fn check_offset_delete(&self) -> Result<(), ErrorCode> {
        match self {
            Group::Classic(group) => group.check_offset_delete(),
            Group::Consumer(_) => Ok(()),
        }
    }

    /// Returns true if a member reads this topic, or if the group cannot exclude that. The topic's offsets must then
    /// neither be deleted nor expire.
    pub fn reads(&self, topic: &str) -> bool {
        match self {
            Group::Classic(group) => group.reads(topic),
            Group::Consumer(consumer) => consumer.group.reads(topic),
        }
    }

    /// Sets the difference in ms by which the wall clock is ahead of the clock that events use.
    pub fn set_clock_ahead(&mut self, ahead_ms: i64) {
        match self {
            Group::Classic(group) => group.set_clock_ahead(ahead_ms),
            // A consumer group needs no wall clock: its offsets expire by the times of their commits.
            Group::Consumer(_) => {}
        }
    }

    /// Returns the time since which the group is empty, in milliseconds since 1970 by the wall clock; None while it has
    /// members. Offsets of a group that never had a member (no protocol type) expire by their own age.
    pub fn empty_since(&self) -> Option<i64> {
        match self {
            Group::Classic(group) => group.empty_since(),
            Group::Consumer(consumer) => consumer.group.empty_since(),
        }
    }

    /// Returns the approximate memory of the group's members, in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            Group::Classic(group) => group.bytes(),
            Group::Consumer(consumer) => consumer.group.bytes(),
        }
    }

    /// Returns true if a removal of the group would lose its offsets only. Such a group has no member and no pending
    /// id, and never had a snapshot.
    pub fn is_blank(&self) -> bool {
        match self {
            Group::Classic(group) => group.is_blank(),
            Group::Consumer(_) => false,
        }
    }

    /// Ends the group: all waiting requests get `code`, and its state is [`GroupState::Dead`].
    pub fn kill(&mut self, code: ErrorCode, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.kill(code, effects),
            Group::Consumer(consumer) => {
                // No request waits in a consumer group.
                let mut classic = Classic::new(consumer.settings.classic, 0);
                classic.kill(code, effects);
                *self = Group::Classic(Box::new(classic));
            }
        }
    }
}
