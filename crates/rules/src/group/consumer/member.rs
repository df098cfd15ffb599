//! Member of a group under the consumer protocol: its subscription, its partitions, its progress to the target.
//!
//! Not here: decisions about a member. Invariant: no partition is both assigned and being revoked.

use super::assignor::Assignor;
use super::classic_member::ClassicMember;
use crate::group::MemberId;
use fullbore_wire::{Text, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// Epoch of a member that joins.
pub const JOINING: i32 = 0;
/// Epoch of a request by which the member leaves.
pub const LEAVING: i32 = -1;
/// Epoch of a request by which a static member leaves to return later. The member keeps this epoch until it returns.
pub const LEAVING_TO_RETURN: i32 = -2;

/// Partition, named by its topic's id. A topic recreated under the same name has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicIdPartition {
    /// Id of the topic.
    pub topic: Uuid,
    /// Index of the partition.
    pub index: i32,
}

/// Set of partitions.
pub type PartitionSet = BTreeSet<TopicIdPartition>;

/// Partitions of a member, each with the epoch in which the member got it (KIP-1251).
pub type HeldPartitions = BTreeMap<TopicIdPartition, i32>;

/// Progress of a member to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// The member has the target of its epoch.
    Stable,
    /// The member must first give partitions up, and has not confirmed that it has done so.
    UnrevokedPartitions,
    /// The member waits for partitions that other members have not given up.
    UnreleasedPartitions,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerGroupMember {
    pub id: MemberId,
    /// Instance id of a static member (group.instance.id).
    pub instance_id: Option<Text>,
    /// Rack of the member, which is stored and described; the assignors ignore it.
    pub rack_id: Option<Text>,
    /// Client id in the member's last heartbeat.
    pub client_id: Text,
    /// Client's address at the member's last heartbeat.
    pub client_host: Text,
    /// Longest time, in ms, until the member must have given partitions up.
    pub rebalance_timeout_ms: i32,
    /// Topics that the member subscribes to by name.
    pub topics: BTreeSet<Text>,
    /// Regular expression of the topics that the member subscribes to.
    pub regex: Option<Text>,
    /// Assignor that the member votes for.
    pub assignor: Option<Assignor>,
    /// Assignment epoch that the member has been brought to, or [`LEAVING_TO_RETURN`].
    pub epoch: i32,
    /// Epoch before `epoch`. A request with it is accepted, since the response with the new epoch may have been lost.
    pub previous_epoch: i32,
    /// Progress to the target.
    pub state: MemberState,
    /// Partitions that the member may read.
    pub assigned: HeldPartitions,
    /// Partitions that the member must give up, and may still read.
    pub revoking: HeldPartitions,
    /// Partitions that the member gets at the end of the reconciliation.
    pub target: PartitionSet,
    /// State of the classic protocol; None under the consumer protocol.
    pub classic: Option<ClassicMember>,
    /// Time at which the member is fenced without a heartbeat, in milliseconds since 1970.
    pub session_by: i64,
    /// Time at which the member's next heartbeat is expected, by its last interval; `i64::MAX` if it has none.
    pub expected_by: i64,
    /// Time at which the member is fenced unless it has given up the partitions being revoked.
    pub revoke_by: Option<i64>,
}

impl ConsumerGroupMember {
    /// Returns a member with this id and no other data.
    pub(in crate::group) fn new(id: MemberId) -> ConsumerGroupMember {
        ConsumerGroupMember {
            id,
            instance_id: None,
            rack_id: None,
            client_id: Text::default(),
            client_host: Text::default(),
            rebalance_timeout_ms: -1,
            topics: BTreeSet::new(),
            regex: None,
            assignor: None,
            epoch: JOINING,
            previous_epoch: JOINING,
            state: MemberState::Stable,
            assigned: HeldPartitions::new(),
            revoking: HeldPartitions::new(),
            target: PartitionSet::new(),
            classic: None,
            session_by: i64::MAX,
            expected_by: i64::MAX,
            revoke_by: None,
        }
    }

    /// Returns true if the member has the target of this assignment epoch.
    pub fn is_reconciled_to(&self, assignment_epoch: i32) -> bool {
        self.state == MemberState::Stable && self.epoch == assignment_epoch
    }

    /// Returns all partitions that the member may read: the assigned ones, and those that it has not given up.
    pub fn holds(&self) -> impl Iterator<Item = (&TopicIdPartition, &i32)> {
        self.assigned.iter().chain(&self.revoking)
    }

    /// Returns true if the two members differ in times only.
    pub(super) fn is_same_but_for_time(&self, other: &ConsumerGroupMember) -> bool {
        let timeless = |member: &ConsumerGroupMember| {
            let ConsumerGroupMember { epoch, previous_epoch, state, rebalance_timeout_ms, assignor, .. } = *member;
            (epoch, previous_epoch, state, rebalance_timeout_ms, assignor)
        };
        let texts = |member: &ConsumerGroupMember| {
            let ConsumerGroupMember { instance_id, rack_id, client_id, client_host, regex, .. } = member.clone();
            (instance_id, rack_id, client_id, client_host, regex)
        };
        timeless(self) == timeless(other)
            && texts(self) == texts(other)
            && self.topics == other.topics
            && self.assigned == other.assigned
            && self.revoking == other.revoking
            && self.target == other.target
            && self.classic.as_ref().map(|c| &c.protocols) == other.classic.as_ref().map(|c| &c.protocols)
    }

    /// Returns the member's next deadline.
    pub(super) fn deadline(&self) -> i64 {
        let classic = self.classic.as_ref().and_then(ClassicMember::deadline);
        self.session_by.min(self.revoke_by.unwrap_or(i64::MAX)).min(classic.unwrap_or(i64::MAX))
    }
}
