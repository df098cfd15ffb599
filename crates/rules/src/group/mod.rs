//! Consumer groups: their members, generations and assignments, and who may commit offsets.
//!
//! A [`Group`] uses one protocol at a time, [`classic`] or [`consumer`]. Each is a state machine of its own, and
//! `migration` converts between them. A state machine takes an event and the time, and returns [`Effect`]s in order. It
//! never blocks. If a request must wait, a later event responds to its [`RequestTicket`].
//!
//! Sockets, the database, topics and random member ids are in other crates.
//!
//! Invariant: every ticket gets exactly one response, at the latest when its deadline has passed and [`Group::tick`] is
//! called.
//!
//! Times are in milliseconds since 1970, from a monotonic clock. The exception is the time since which a group is
//! empty. That time is from the wall clock, which may be set.

mod change;
pub mod classic;
#[cfg(test)]
mod compacted_log;
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

pub use change::{Change, PartKey, PartKind, Parts};
pub use effects::{Effect, Effects, Event, GroupAnswer, RequestTicket};
pub use member::{Committer, Joining, MemberId};
pub use pending_offsets::{EndedOffsets, PendingOffsets, RemovedOffsets};
pub use settings::GroupSettings;
pub use snapshot::{Snapshot, SnapshotError};
pub use state::{GroupState, Protocol};

use classic::Classic;
use consumer::{ConsumerGroup, TopicIdPartition, Topics};
use fullbore_wire::apis::describe_groups::DescribedGroup;
use fullbore_wire::apis::heartbeat::HeartbeatRequest;
use fullbore_wire::apis::leave_group::{LeaveGroupResponse, MemberIdentity};
use fullbore_wire::apis::sync_group::SyncGroupRequest;
use fullbore_wire::{ErrorCode, Uuid};
use observed::{Consumer, observed};

/// A group. It uses one of the two protocols.
#[derive(Debug)]
pub enum Group {
    /// A classic group (JoinGroup and SyncGroup), or a group that only has offsets.
    Classic(Box<Classic>),
    /// A group that uses the consumer protocol (ConsumerGroupHeartbeat).
    Consumer(Box<Consumer>),
}

/// Everything that the restoration of a group depends on, besides its records.
#[derive(Clone, Copy)]
pub struct Restoring<'a> {
    pub topics: &'a dyn Topics,
    pub settings: GroupSettings,
    /// An unused random id for the group's parts, in case its records have none.
    pub fresh_parts_id: Uuid,
    pub now: i64,
}

impl Group {
    /// Creates an empty group.
    pub fn new(settings: GroupSettings, now: i64) -> Group {
        Group::Classic(Box::new(Classic::new(settings.classic, now)))
    }

    /// Restores a group from its own record and its parts. The session of every member restarts.
    ///
    /// # Errors
    /// Returns [`SnapshotError`] if the records are not valid.
    pub fn restore(snapshot: &Snapshot, parts: &Parts, restoring: &Restoring<'_>) -> Result<Group, SnapshotError> {
        let Restoring { topics, settings, fresh_parts_id, now } = *restoring;
        let mut bytes = snapshot.state.clone();
        if !snapshot.is_known() || bytes.is_empty() {
            return Err(SnapshotError::Version(snapshot.version));
        }
        let group = match (bytes.split_to(1)[0], snapshot.version) {
            (snapshot::CLASSIC, snapshot::WHOLE) => {
                return Ok(Group::Classic(Box::new(Classic::restore(bytes, settings.classic, now)?)));
            }
            (snapshot::CONSUMER, snapshot::WHOLE) => {
                ConsumerGroup::restore_whole(bytes, fresh_parts_id, &settings.consumer, now)?
            }
            (snapshot::CONSUMER, _) => ConsumerGroup::restore(bytes, parts, topics, &settings.consumer, now)?,
            (other, _) => return Err(SnapshotError::Protocol(other)),
        };
        Ok(Group::Consumer(Box::new(Consumer { group, settings })))
    }

    /// Returns all records of the group.
    pub fn records(&self) -> Change {
        match self {
            Group::Classic(group) => Change::whole(group.snapshot()),
            Group::Consumer(consumer) => consumer.group.records(),
        }
    }

    /// Takes the group's own record if it must be written but no [`Effect::Keep`] contains it. This is the record of a
    /// classic group. It contains the whole group, so it is encoded only once for all changes in a write.
    pub fn take_snapshot(&mut self) -> Option<Snapshot> {
        match self {
            Group::Classic(group) => group.take_snapshot(),
            Group::Consumer(_) => None,
        }
    }

    /// Returns how many parts the group has.
    pub fn parts_len(&self) -> usize {
        match self {
            Group::Classic(_) => 0,
            Group::Consumer(consumer) => consumer.group.parts_len(),
        }
    }

    /// Gives the parts the new id `parts_id`. The caller must then write [`Group::records`]. The parts with the former
    /// id become garbage.
    pub fn renew_parts(&mut self, parts_id: Uuid) {
        if let Group::Consumer(consumer) = self {
            consumer.group.renew_parts(parts_id);
        }
    }

    /// Returns the protocol that the group uses.
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

    /// Returns the protocol type, such as `consumer` or `connect`. It is empty if the group has only ever had offsets.
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

    /// Handles a SyncGroup. The response may wait for the leader's assignments.
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

    /// Handles a LeaveGroup. The first versions of the request have a single member, which the caller passes as a list.
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

    /// Returns the group as DescribeGroups shows it, without its id; None for a consumer group.
    pub fn describe_classic(&self) -> Option<DescribedGroup> {
        match self {
            Group::Classic(group) => Some(group.describe()),
            Group::Consumer(_) => None,
        }
    }

    /// Returns the group if it uses the consumer protocol; None if it is classic.
    pub fn consumer(&self) -> Option<&ConsumerGroup> {
        match self {
            Group::Classic(_) => None,
            Group::Consumer(consumer) => Some(&consumer.group),
        }
    }

    /// Returns the earliest time at which [`Group::tick`] has something to do, if there is one.
    pub fn next_deadline(&self) -> Option<i64> {
        match self {
            Group::Classic(group) => group.next_deadline(),
            Group::Consumer(consumer) => consumer.group.next_deadline(),
        }
    }

    /// Handles the deadlines that have passed.
    pub fn tick(&mut self, now: i64, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.tick(now, effects),
            Group::Consumer(consumer) => {
                let fenced = observed(&mut consumer.group, effects, |group| group.tick(now));
                for consumer::Fenced { member_id, waited_for } in fenced {
                    effects.push(Effect::Report(Event::Expired { member_id, waited_for }));
                }
                self.keep_if_changed(effects);
                self.downgrade_if_due(now, effects);
            }
        }
    }

    /// Checks that this member may commit offsets now. In a classic group, a commit counts as a heartbeat.
    ///
    /// # Errors
    /// Returns the error code for the response.
    pub fn check_commit(&mut self, committer: &Committer<'_>, now: i64) -> Result<(), ErrorCode> {
        match self {
            Group::Classic(group) => group.check_commit(committer, now),
            Group::Consumer(consumer) => consumer.group.check_committer(committer).map(drop),
        }
    }

    /// Checks that a member may commit an offset of this partition. In a consumer group, an older epoch is valid for
    /// partitions that the member has held since that epoch (KIP-1251).
    ///
    /// # Errors
    /// Returns the error code for this partition in the response.
    pub fn check_commit_of(&self, committer: &Committer<'_>, partition: &TopicIdPartition) -> Result<(), ErrorCode> {
        let Group::Consumer(consumer) = self else { return Ok(()) };
        let may = consumer.group.check_committer(committer)?;
        may.check(partition).map_err(|code| committer.as_known(code))
    }

    /// Checks that a client may fetch offsets. A request without a member id and an epoch is always allowed.
    ///
    /// # Errors
    /// Returns the error code for the response.
    pub fn check_fetch(&self, member_id: Option<&str>, epoch: i32) -> Result<(), ErrorCode> {
        match self {
            Group::Classic(_) => Ok(()),
            Group::Consumer(consumer) => consumer.group.check_fetch(member_id, epoch).map_err(|refusal| refusal.code),
        }
    }

    /// Checks that the group may be deleted.
    ///
    /// # Errors
    /// Fails with NON_EMPTY_GROUP if the group has members, and with GROUP_ID_NOT_FOUND if it is already removed.
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
    /// Fails with NON_EMPTY_GROUP if a classic group has members that are not consumers, because their topics are
    /// unknown. Fails with GROUP_ID_NOT_FOUND if the group is already removed.
    pub fn check_offset_delete(&self) -> Result<(), ErrorCode> {
        match self {
            Group::Classic(group) => group.check_offset_delete(),
            Group::Consumer(_) => Ok(()),
        }
    }

    /// Returns true if a member reads this topic, or if the group does not know which topics its members read. The
    /// topic's offsets must then not be deleted, and must not expire.
    pub fn reads(&self, topic: &str) -> bool {
        match self {
            Group::Classic(group) => group.reads(topic),
            Group::Consumer(consumer) => consumer.group.reads(topic),
        }
    }

    /// Sets how far the wall clock is ahead of the clock that events use, in ms.
    pub fn set_clock_ahead(&mut self, ahead_ms: i64) {
        match self {
            Group::Classic(group) => group.set_clock_ahead(ahead_ms),
            // A consumer group needs no wall clock, because its offsets expire by the times of their commits.
            Group::Consumer(_) => {}
        }
    }

    /// Returns the time since which the group has been without members, in milliseconds since 1970 by the wall clock.
    /// None while it has members. In a group that never had a member, and so has no protocol type, each offset expires
    /// by its own age.
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

    /// Returns true if the group can be dropped without loss of anything but offsets. Such a group has no members and
    /// no pending ids, and never had a snapshot.
    pub fn is_blank(&self) -> bool {
        match self {
            Group::Classic(group) => group.is_blank(),
            Group::Consumer(_) => false,
        }
    }

    /// Ends the group. All waiting requests get `code`, and the state becomes [`GroupState::Dead`].
    pub fn kill(&mut self, code: ErrorCode, effects: &mut Effects) {
        match self {
            Group::Classic(group) => group.kill(code, effects),
            Group::Consumer(consumer) => {
                // In a consumer group, no requests wait.
                let mut classic = Classic::new(consumer.settings.classic, 0);
                classic.kill(code, effects);
                *self = Group::Classic(Box::new(classic));
            }
        }
    }
}
