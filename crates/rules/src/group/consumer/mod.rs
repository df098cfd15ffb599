//! A group under the consumer protocol (KIP-848): the coordinator assigns, and each member is brought to its target on
//! its own, heartbeat by heartbeat.
//!
//! Three epochs. The *group epoch* rises with each change of members, subscriptions or topics. The *assignment epoch*
//! is the group epoch that the current target is for. A *member's epoch* is the assignment epoch it has been brought
//! to.
//!
//! - `checks.rs`: what a heartbeat must look like, and which epochs are taken.
//! - `heartbeat.rs`: the way of a heartbeat through the rest; `leave.rs`: how members go.
//! - `target.rs`: subscriptions, topics, the group epoch, the target; [`assignor`]: who is to own what.
//! - `reconcile.rs`: brings one member a step nearer to its target.
//! - `interval.rs`: when a member is to come again.
//! - `classic.rs`: members of a group on its way between the protocols, who speak the classic one.
//!
//! What it is not: the matching of regular expressions, which comes in as lists of topics; a random source for member
//! ids; a timer. Nothing here waits: every request is answered at once.
//!
//! Invariant: no partition is held by two members, where a member holds it from the answer that assigns it until the
//! heartbeat that no longer has it among the owned ones, or until the member is fenced.

pub mod assignor;
mod checks;
mod classic;
mod classic_member;
mod commit;
mod heartbeat;
mod interval;
mod keep;
mod leave;
mod member;
#[cfg(test)]
mod model;
mod reconcile;
mod target;
#[cfg(test)]
mod tests;

pub use checks::check_request;
pub use classic_member::ClassicMember;
pub use commit::CommitPermission;
pub use heartbeat::{Call, Resolved};
pub use leave::Fenced;
pub use member::{
    ConsumerGroupMember, HeldPartitions, JOINING, LEAVING, LEAVING_TO_RETURN, MemberState, PartitionSet,
    TopicIdPartition,
};

use super::{GroupState, MemberId};
use assignor::Assignor;
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// The word for a consumer's protocol type.
pub const PROTOCOL_TYPE: &str = "consumer";

/// About what a member costs beside its partitions.
const MEMBER_BYTES: usize = 1024;
/// About what a text costs beside its characters.
const TEXT_BYTES: usize = 64;
/// About what a partition that a member holds costs: in its target, among what it has, and in the books.
const PARTITION_BYTES: usize = 256;

/// Settings of a consumer group.
#[derive(Clone, Copy, Debug)]
pub struct ConsumerGroupSettings {
    /// True if there are groups of the consumer protocol (`group.coordinator.rebalance.protocols`).
    pub is_enabled: bool,
    /// `group.consumer.session.timeout.ms`, or the group's own.
    pub session_timeout_ms: i32,
    /// `group.consumer.heartbeat.interval.ms`, or the group's own.
    pub heartbeat_interval_ms: i32,
    /// `fullbore.group.consumer.unsettled.heartbeat.interval.ms`: for those whom a change concerns; 0 for none.
    pub unsettled_interval_ms: i32,
    /// `group.consumer.assignment.interval.ms`: a new target at most so often.
    pub assignment_interval_ms: i32,
    /// `group.consumer.max.size`.
    pub members_max: usize,
    /// `group.consumer.assignors`; the first is for groups that do not vote.
    pub assignors: &'static [Assignor],
    /// `group.consumer.regex.refresh.interval.ms`.
    pub regex_refresh_ms: i32,
    /// `group.consumer.migration.policy`.
    pub migration: Migration,
}

impl Default for ConsumerGroupSettings {
    /// Kafka's.
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

/// Which way a group may change its protocol while it has members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration {
    /// To the consumer protocol and back.
    Bidirectional,
    /// From the classic protocol to the consumer protocol.
    Upgrade,
    /// From the consumer protocol to the classic one.
    Downgrade,
    /// Neither way; and nobody speaks the other protocol than the group does.
    Disabled,
}

impl Migration {
    /// Returns true if a member of the consumer protocol may join a classic group.
    pub fn upgrades(self) -> bool {
        matches!(self, Migration::Bidirectional | Migration::Upgrade)
    }

    /// Returns true if a group goes back when its last member of the consumer protocol has gone.
    pub fn downgrades(self) -> bool {
        matches!(self, Migration::Bidirectional | Migration::Downgrade)
    }
}

/// The topics there are.
pub trait Topics {
    /// Another number whenever a topic was created, deleted or grew.
    fn version(&self) -> u64;
    /// A topic's id and how many partitions it has.
    fn find(&self, name: &str) -> Option<(Uuid, i32)>;
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupRefusal {
    /// The code.
    pub code: ErrorCode,
    /// Why, as a sentence.
    pub message: String,
}

impl GroupRefusal {
    pub(super) fn new(code: ErrorCode, message: impl Into<String>) -> GroupRefusal {
        GroupRefusal { code, message: message.into() }
    }
}

/// A group under the consumer protocol.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConsumerGroup {
    group_epoch: i32,
    assignment_epoch: i32,
    /// When the target was last worked out.
    assigned_ms: Option<i64>,
    /// When the group epoch last rose, since the start of the broker.
    changed_ms: Option<i64>,
    members: BTreeMap<MemberId, ConsumerGroupMember>,
    /// Which member has a static name.
    statics: BTreeMap<Text, MemberId>,
    /// Which member holds a partition.
    holders: BTreeMap<TopicIdPartition, MemberId>,
    /// The topics that each regular expression in use matches.
    regexes: BTreeMap<Text, Matched>,
    /// Memory they hold, about.
    regexes_bytes: usize,
    /// When the expressions were last resolved.
    resolved_ms: Option<i64>,
    /// Subscribed topics as of the group epoch.
    topics: BTreeMap<Text, (Uuid, i32)>,
    /// The version of the topics that was last looked at.
    topics_version: Option<u64>,
    /// Since when it has had no members.
    empty_since: Option<i64>,
    /// Memory the members hold, about.
    bytes: usize,
    /// True if something changed that is to be kept.
    dirty: bool,
}

/// Topics that a regular expression matches.
#[derive(Clone, Debug, Default, PartialEq)]
struct Matched {
    topics: BTreeSet<Text>,
    /// The version of the topics in which it was resolved, since the start of the broker.
    version: Option<u64>,
}

impl ConsumerGroup {
    /// A group without members, that goes on after `epoch` of whatever it was before.
    pub fn new(epoch: i32, now: i64) -> ConsumerGroup {
        ConsumerGroup {
            group_epoch: epoch.max(0),
            assignment_epoch: epoch.max(0),
            empty_since: Some(now),
            ..ConsumerGroup::default()
        }
    }

    /// A group that was classic until now, in the generation it had. A partition that several say they have stays with
    /// the first of them.
    pub(in crate::group) fn of_classic(
        generation: i32,
        members: Vec<ConsumerGroupMember>,
        topics: &(impl Topics + ?Sized),
        now: i64,
    ) -> ConsumerGroup {
        let mut group = ConsumerGroup::new(generation, now);
        for mut member in members {
            member.assigned.retain(|partition, _| !group.holders.contains_key(partition));
            group.put(member);
        }
        group.look_at(topics);
        group
    }

    /// The group's state.
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

    /// The epoch of the group.
    pub fn group_epoch(&self) -> i32 {
        self.group_epoch
    }

    /// The epoch of the target.
    pub fn assignment_epoch(&self) -> i32 {
        self.assignment_epoch
    }

    /// Memory it holds for its members, about.
    pub fn bytes(&self) -> usize {
        self.bytes + self.regexes_bytes
    }

    /// Everybody, by id.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &ConsumerGroupMember> {
        self.members.values()
    }

    /// Returns a member.
    pub fn member(&self, id: &str) -> Option<&ConsumerGroupMember> {
        self.members.get(id)
    }

    /// Since when it has had no members.
    pub fn empty_since(&self) -> Option<i64> {
        self.empty_since
    }

    /// The regular expressions in use.
    pub fn regexes(&self) -> impl Iterator<Item = &Text> {
        self.regexes.keys()
    }

    /// Returns true if a regular expression is in use.
    pub fn has_regex(&self, regex: &str) -> bool {
        self.regexes.contains_key(regex)
    }

    /// Returns true if the regular expressions in use are to be resolved anew.
    pub fn regexes_are_due(&self, topics_version: u64, settings: &ConsumerGroupSettings, now: i64) -> bool {
        let is_older = |matched: &Matched| matched.version.is_none_or(|version| version < topics_version);
        let is_long_ago = |at| now >= at + i64::from(settings.regex_refresh_ms);
        !self.regexes.is_empty() && (self.resolved_ms.is_none_or(is_long_ago) || self.regexes.values().any(is_older))
    }

    /// Returns true if a member subscribes to this topic.
    pub fn reads(&self, topic: &str) -> bool {
        self.members.values().any(|member| {
            let matched = member.regex.as_ref().and_then(|regex| self.regexes.get(regex));
            member.topics.contains(topic) || matched.is_some_and(|matched| matched.topics.contains(topic))
        })
    }

    /// The assignor that most members vote for, of those the broker has; its first one if nobody votes.
    pub fn assignor(&self, settings: &ConsumerGroupSettings) -> Assignor {
        let votes =
            |assignor: Assignor| self.members.values().filter(|member| member.assignor == Some(assignor)).count();
        let first = settings.assignors.first().copied().unwrap_or(Assignor::Uniform);
        let most = settings.assignors.iter().map(|&assignor| votes(assignor)).max().unwrap_or(0);
        settings.assignors.iter().copied().find(|&assignor| votes(assignor) == most).unwrap_or(first)
    }

    /// When [`ConsumerGroup::tick`] has something to do, at the earliest.
    pub fn next_deadline(&self) -> Option<i64> {
        self.members.values().map(ConsumerGroupMember::deadline).min()
    }

    /// Returns true if something changed since this was last asked that must be kept before anybody learns of it.
    pub fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    /// Puts a member in place of what it was, and keeps the books of who holds what.
    fn put(&mut self, member: ConsumerGroupMember) {
        if self.members.get(&member.id) == Some(&member) {
            return;
        }
        if let Some(before) = self.members.remove(&member.id) {
            self.dirty |= !before.is_same_but_for_time(&member);
            self.forget(&before);
        } else {
            self.dirty = true;
        }
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

    /// Strikes what a member holds and its static name.
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

/// About what a member costs: what it said, and what it holds.
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
