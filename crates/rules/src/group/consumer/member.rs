//! A member of a group under the consumer protocol: what it asked for, what it has, and how far it is.
//!
//! What it is not: decided here. Invariant: no partition is both assigned and being revoked.

use super::assignor::Assignor;
use super::classic_member::ClassicMember;
use crate::group::MemberId;
use fullbore_wire::{Text, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// The epoch of a member that joins.
pub const JOINING: i32 = 0;
/// In a request: the member leaves.
pub const LEAVING: i32 = -1;
/// In a request: a static member leaves and means to come back. Then it is the member's epoch.
pub const LEAVING_TO_RETURN: i32 = -2;

/// A partition, by its topic's id: a topic created anew under the same name is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicIdPartition {
    /// The topic's id.
    pub topic: Uuid,
    /// The partition's index.
    pub index: i32,
}

/// Some partitions.
pub type PartitionSet = BTreeSet<TopicIdPartition>;

/// Partitions a member holds, each with the epoch in which it got it (KIP-1251).
pub type HeldPartitions = BTreeMap<TopicIdPartition, i32>;

/// How far a member is on its way to its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// The member has what it should have, as of its epoch.
    Stable,
    /// The member must give partitions up first, and has not said that it did.
    UnrevokedPartitions,
    /// The member waits for partitions that others have not given up.
    UnreleasedPartitions,
}

/// Member of a consumer group.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerGroupMember {
    /// The member's id.
    pub id: MemberId,
    /// The static member's name (group.instance.id).
    pub instance_id: Option<Text>,
    /// The member's rack. Kept and shown; the assignors do not look at it.
    pub rack_id: Option<Text>,
    /// The client id of its last heartbeat.
    pub client_id: Text,
    /// The address of its last heartbeat.
    pub client_host: Text,
    /// How long it may take to give partitions up, in milliseconds.
    pub rebalance_timeout_ms: i32,
    /// The topics it subscribes to by name.
    pub topics: BTreeSet<Text>,
    /// The regular expression of topics it subscribes to.
    pub regex: Option<Text>,
    /// The assignor it votes for.
    pub assignor: Option<Assignor>,
    /// The member's epoch: the assignment epoch it has been brought to, or [`LEAVING_TO_RETURN`].
    pub epoch: i32,
    /// The epoch before that: the answer with the new one may have been lost.
    pub previous_epoch: i32,
    /// How far it is.
    pub state: MemberState,
    /// Partitions that the member may read.
    pub assigned: HeldPartitions,
    /// Partitions that the member must give up, and may still read.
    pub revoking: HeldPartitions,
    /// Partitions that the member gets in the end.
    pub target: PartitionSet,
    /// How it speaks the classic protocol; `None` under the consumer protocol.
    pub classic: Option<ClassicMember>,
    /// When it is fenced unless it is heard of, in milliseconds since 1970.
    pub session_by: i64,
    /// When its next heartbeat is expected by what it was told; the end of time if it was not told.
    pub expected_by: i64,
    /// When it is fenced unless it has given up what it must.
    pub revoke_by: Option<i64>,
}

impl ConsumerGroupMember {
    /// A member of which nothing is known but its id.
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

    /// Returns true if it is where the assignment of this epoch wants it.
    pub fn is_reconciled_to(&self, assignment_epoch: i32) -> bool {
        self.state == MemberState::Stable && self.epoch == assignment_epoch
    }

    /// Everything it may read from: what is assigned to it and what it has not given up.
    pub fn holds(&self) -> impl Iterator<Item = (&TopicIdPartition, &i32)> {
        self.assigned.iter().chain(&self.revoking)
    }

    /// Returns true if only times differ.
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

    /// Returns its next deadline.
    pub(super) fn deadline(&self) -> i64 {
        let classic = self.classic.as_ref().and_then(ClassicMember::deadline);
        self.session_by.min(self.revoke_by.unwrap_or(i64::MAX)).min(classic.unwrap_or(i64::MAX))
    }
}
