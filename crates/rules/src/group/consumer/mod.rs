//! A group that uses the consumer protocol (KIP-848). The coordinator computes a target for each member, and moves the
//! member towards it with each of the member's heartbeats.
//!
//! There are three kinds of epochs. The *group epoch* rises with each change of members, subscriptions or topics. The
//! *assignment epoch* is the group epoch for which the current target was computed. A *member's epoch* is the
//! assignment epoch that the member has reached.
//!
//! - `checks.rs`: which heartbeats are valid, and which epochs are accepted.
//! - `heartbeat.rs`: handles heartbeats. `leave.rs`: removes members.
//! - `target.rs`: subscriptions, topics, the group epoch and the target. [`assignor`]: computes the target owners.
//! - `subscriptions.rs`: counts subscriptions, and stores the topics that expressions match.
//! - `unsaved.rs`: which records have changed. `keep.rs`: packs and restores them.
//! - `reconcile.rs`: brings a member a step closer to its target.
//! - `interval.rs`: chooses heartbeat intervals.
//! - `classic.rs`: classic members of a group that is migrating between the protocols.
//!
//! The caller provides the topics, matches regular expressions, draws random member ids and has a timer. Every request
//! gets its response at once.
//!
//! Invariant: no two members hold the same partition. A member holds a partition from the response that assigns it.
//! This ends when a heartbeat of the member no longer lists the partition as owned, or when the member is fenced.

pub mod assignor;
mod checks;
mod classic;
mod classic_member;
mod commit;
mod heartbeat;
mod interval;
mod keep;
mod keep_whole;
mod leave;
mod member;
#[cfg(test)]
mod model;
mod reconcile;
mod subscriptions;
mod target;
#[cfg(test)]
mod tests;
mod topics;
mod unsaved;

pub use checks::check_request;
pub use classic_member::ClassicMember;
pub use commit::CommitPermission;
pub use heartbeat::{Call, Resolved};
pub use leave::Fenced;
pub use member::{
    ConsumerGroupMember, HeldPartitions, JOINING, LEAVING, LEAVING_TO_RETURN, MemberState, PartitionSet,
    TopicIdPartition,
};

use super::{GroupState, MemberId, PartKind};
use assignor::Assignor;
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use subscriptions::SubscriptionCounts;
use topics::{SubscribedTopics, TopicsHash};
use unsaved::Unsaved;

/// The protocol type of consumers.
pub const PROTOCOL_TYPE: &str = "consumer";

/// Approximate size of a member in bytes, without its partitions.
const MEMBER_BYTES: usize = 1024;
/// Approximate size of a text in bytes, without its characters. Most texts are topic names. Each name is stored twice:
/// with its member, and with the counts of subscriptions.
pub const TEXT_BYTES: usize = 144;
/// Approximate size of a held partition in bytes. It is stored in three maps: the member's target, the member's
/// partitions, and the holders.
const PARTITION_BYTES: usize = 256;

#[derive(Clone, Copy, Debug)]
pub struct ConsumerGroupSettings {
    /// True if the consumer protocol is enabled (`group.coordinator.rebalance.protocols`).
    pub is_enabled: bool,
    /// `group.consumer.session.timeout.ms`, or the group's own session timeout.
    pub session_timeout_ms: i32,
    /// `group.consumer.heartbeat.interval.ms`, or the group's own heartbeat interval.
    pub heartbeat_interval_ms: i32,
    /// `fullbore.group.consumer.unsettled.heartbeat.interval.ms`: the short interval after a change; 0 if there is
    /// none.
    pub unsettled_interval_ms: i32,
    /// `group.consumer.assignment.interval.ms`: the minimum time between two targets.
    pub assignment_interval_ms: i32,
    /// `group.consumer.max.size`.
    pub members_max: usize,
    /// `group.consumer.assignors`. The first one is used in groups without votes.
    pub assignors: &'static [Assignor],
    /// `group.consumer.regex.refresh.interval.ms`.
    pub regex_refresh_ms: i32,
    /// `group.consumer.migration.policy`.
    pub migration: Migration,
}

impl Default for ConsumerGroupSettings {
    /// Returns Kafka's defaults.
    fn default() -> ConsumerGroupSettings {
        ConsumerGroupSettings {
            is_enabled: true,
            session_timeout_ms: 45_000,
            heartbeat_interval_ms: 5_000,
            unsettled_interval_ms: 0,
            assignment_interval_ms: 1_000,
            members_max: i32::MAX as usize,
            assignors: &Assignor::ALL,
            regex_refresh_ms: 600_000,
            migration: Migration::Bidirectional,
        }
    }
}

/// In which direction a group with members may change its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// To the consumer protocol and back.
    Bidirectional,
    /// From the classic protocol to the consumer protocol.
    Upgrade,
    /// From the consumer protocol to the classic one.
    Downgrade,
    /// No change is allowed: all members must use the group's protocol.
    Disabled,
}

impl Migration {
    /// Returns true if a member that uses the consumer protocol may join a classic group.
    pub fn upgrades(self) -> bool {
        matches!(self, Migration::Bidirectional | Migration::Upgrade)
    }

    /// Returns true if a group returns to the classic protocol when its last member that uses the consumer protocol has
    /// left.
    pub fn downgrades(self) -> bool {
        matches!(self, Migration::Bidirectional | Migration::Downgrade)
    }
}

/// The topics that exist in the cluster.
pub trait Topics {
    /// Returns a number that grows whenever a topic is created, deleted, or gets more partitions.
    fn version(&self) -> u64;
    /// Returns a topic's id and its number of partitions; None if the topic does not exist.
    fn find(&self, name: &str) -> Option<(Uuid, i32)>;
}

/// An error that a request is refused with.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupRefusal {
    pub code: ErrorCode,
    /// The reason as a sentence.
    pub message: String,
}

impl GroupRefusal {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> GroupRefusal {
        GroupRefusal { code, message: message.into() }
    }
}

/// A group that uses the consumer protocol.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsumerGroup {
    group_epoch: i32,
    assignment_epoch: i32,
    /// When the last target was computed.
    assigned_ms: Option<i64>,
    /// When the group epoch last rose, or when the group was restored during a rebalance. `None` if neither has
    /// happened since the broker's start.
    changed_ms: Option<i64>,
    members: BTreeMap<MemberId, ConsumerGroupMember>,
    /// The member with each instance id.
    statics: BTreeMap<Text, MemberId>,
    /// The member that holds each partition.
    holders: BTreeMap<TopicIdPartition, MemberId>,
    /// The topics that each regular expression in use matches.
    regexes: BTreeMap<Text, Matched>,
    /// Approximate memory of the expressions, in bytes.
    regexes_bytes: usize,
    /// When the expressions were last resolved.
    resolved_ms: Option<i64>,
    subscriptions: SubscriptionCounts,
    /// The subscribed topics as they were last looked up.
    topics: SubscribedTopics,
    /// The hash of the subscribed topics when they were last compared. The hash is stored in the group's record, so a
    /// change of the topics is noticed even if the broker was down.
    topics_hash: TopicsHash,
    /// The version of the topics when they were last checked.
    topics_version: Option<u64>,
    /// The time since which the group has been without members.
    empty_since: Option<i64>,
    /// Approximate memory of the members, in bytes.
    bytes: usize,
    unsaved: Unsaved,
}

/// The topics that a regular expression matches.
#[derive(Clone, Debug, Default, PartialEq)]
struct Matched {
    topics: BTreeSet<Text>,
    /// The version of the topics for which the expression was resolved; `None` if it must be resolved again, as after a
    /// restart.
    version: Option<u64>,
    /// The number in the key of the expression's record.
    number: i64,
}

impl ConsumerGroup {
    /// Creates a group without members, whose next group epoch is greater than `epoch`. `parts_id` is an unused random
    /// id.
    pub fn new(epoch: i32, parts_id: Uuid, now: i64) -> ConsumerGroup {
        ConsumerGroup {
            group_epoch: epoch.max(0),
            assignment_epoch: epoch.max(0),
            empty_since: Some(now),
            unsaved: Unsaved { parts_id, ..Unsaved::default() },
            ..ConsumerGroup::default()
        }
    }

    /// Creates a group from the members of a classic group, whose generation becomes the epoch. If several members
    /// claim a partition, the first of them keeps it.
    pub(in crate::group) fn of_classic(
        generation: i32,
        parts_id: Uuid,
        members: Vec<ConsumerGroupMember>,
        topics: &(impl Topics + ?Sized),
        now: i64,
    ) -> ConsumerGroup {
        let mut group = ConsumerGroup::new(generation, parts_id, now);
        for mut member in members {
            member.assigned.retain(|partition, _| !group.holders.contains_key(partition));
            group.put(member);
        }
        group.refresh_topics(topics);
        group
    }

    pub fn state(&self) -> GroupState {
        if self.members.is_empty() {
            GroupState::Empty
        } else if self.group_epoch > self.assignment_epoch {
            GroupState::Assigning
        } else if self.members.values().all(|member| member.is_reconciled_to(self.assignment_epoch)) {
            GroupState::Stable
        } else {
            GroupState::Reconciling
        }
    }

    pub fn group_epoch(&self) -> i32 {
        self.group_epoch
    }

    /// Returns the epoch for which the target was computed.
    pub fn assignment_epoch(&self) -> i32 {
        self.assignment_epoch
    }

    /// Returns the approximate memory of the group, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes + self.regexes_bytes
    }

    /// Returns all members in the order of their ids.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &ConsumerGroupMember> {
        self.members.values()
    }

    /// Returns the member with this id; None if there is none.
    pub fn member(&self, id: &str) -> Option<&ConsumerGroupMember> {
        self.members.get(id)
    }

    /// Returns the time since which the group has been without members; None if it has members.
    pub fn empty_since(&self) -> Option<i64> {
        self.empty_since
    }

    /// Returns the regular expressions in use.
    pub fn regexes(&self) -> impl Iterator<Item = &Text> {
        self.regexes.keys()
    }

    /// Returns true if a regular expression is in use.
    pub fn has_regex(&self, regex: &str) -> bool {
        self.regexes.contains_key(regex)
    }

    /// Returns true if the regular expressions in use must be resolved again.
    pub fn regexes_are_due(&self, topics_version: u64, settings: &ConsumerGroupSettings, now: i64) -> bool {
        let is_older = |matched: &Matched| matched.version.is_none_or(|version| version < topics_version);
        let is_long_ago = |at| now >= at + i64::from(settings.regex_refresh_ms);
        !self.regexes.is_empty() && (self.resolved_ms.is_none_or(is_long_ago) || self.regexes.values().any(is_older))
    }

    /// Returns true if a member subscribes to this topic.
    pub fn reads(&self, topic: &str) -> bool {
        self.subscriptions.names.contains_key(topic)
    }

    /// Returns the configured assignor that has the most votes. In a tie, or if there are no votes, the assignor that
    /// comes first in the settings wins.
    pub fn assignor(&self, settings: &ConsumerGroupSettings) -> Assignor {
        let votes =
            |assignor: Assignor| self.members.values().filter(|member| member.assignor == Some(assignor)).count();
        let first = settings.assignors.first().copied().unwrap_or(Assignor::Uniform);
        let most = settings.assignors.iter().map(|&assignor| votes(assignor)).max().unwrap_or(0);
        settings.assignors.iter().copied().find(|&assignor| votes(assignor) == most).unwrap_or(first)
    }

    /// Returns the earliest time at which [`ConsumerGroup::tick`] has something to do; None if the group has no
    /// members.
    pub fn next_deadline(&self) -> Option<i64> {
        self.members.values().map(ConsumerGroupMember::deadline).min()
    }

    /// Adds or replaces a member, and updates the holders of partitions and the counts of subscriptions.
    fn put(&mut self, mut member: ConsumerGroupMember) {
        if self.members.get(&member.id) == Some(&member) {
            return;
        }
        let before = self.members.remove(&member.id);
        if let Some(before) = &before {
            self.forget(before);
        }
        member.number.get_or_insert_with(|| self.unsaved.number());
        self.note_changes(before.as_ref(), &member);
        self.count_subscriptions(before.as_ref(), Some(&member));
        self.bytes += member_bytes(&member);
        for (partition, _) in member.holds() {
            let other = self.holders.insert(*partition, member.id.clone());
            assert!(other.is_none(), "a partition is assigned only when nobody holds it");
        }
        if let Some(instance_id) = &member.instance_id {
            self.statics.insert(instance_id.clone(), member.id.clone());
        }
        self.members.insert(member.id.clone(), member);
        self.empty_since = None;
    }

    /// Notes which records of a member have changed.
    fn note_changes(&mut self, before: Option<&ConsumerGroupMember>, after: &ConsumerGroupMember) {
        if !before.is_some_and(|before| before.has_same_fields(after)) {
            self.unsaved.mark_member(PartKind::Member, after);
        }
        if !before.is_some_and(|before| before.has_same_assignment(after)) {
            self.unsaved.mark_member(PartKind::Assignment, after);
        }
    }

    /// Removes a member from the group and returns it.
    fn take(&mut self, id: &MemberId) -> Option<ConsumerGroupMember> {
        let member = self.members.remove(id)?;
        self.forget(&member);
        self.count_subscriptions(Some(&member), None);
        self.unsaved.mark_member(PartKind::Member, &member);
        self.unsaved.mark_member(PartKind::Assignment, &member);
        Some(member)
    }

    /// Removes a member's partitions and its instance id from the indexes.
    fn forget(&mut self, member: &ConsumerGroupMember) {
        self.bytes -= member_bytes(member);
        for (partition, _) in member.holds() {
            self.holders.remove(partition);
        }
        if let Some(instance_id) = &member.instance_id
            && self.statics.get(instance_id) == Some(&member.id)
        {
            self.statics.remove(instance_id);
        }
    }
}

/// Returns the approximate memory of a member and its partitions, in bytes.
fn member_bytes(member: &ConsumerGroupMember) -> usize {
    let names: usize = member.topics.iter().map(|name| name.len() + TEXT_BYTES).sum();
    let metadata = |classic: &ClassicMember| {
        classic.protocols.iter().map(|(name, metadata)| name.len() + metadata.len() + TEXT_BYTES).sum::<usize>()
    };
    let of = |text: &Option<Text>| text.as_deref().map_or(0, str::len);
    MEMBER_BYTES
        + member.id.len()
        + of(&member.instance_id)
        + of(&member.rack_id)
        + member.client_id.len()
        + names
        + of(&member.regex)
        + member.classic.as_ref().map_or(0, metadata)
        + (member.assigned.len() + member.revoking.len()) * PARTITION_BYTES
}
