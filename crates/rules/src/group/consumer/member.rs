//! A member of a consumer group: its subscription, its partitions, and its progress towards its target.
//!
//! The decisions about a member are in other modules. Invariant: no partition is both assigned and being revoked.

use super::assignor::Assignor;
use super::classic_member::ClassicMember;
use crate::group::MemberId;
use bytes::Bytes;
use fullbore_wire::{Text, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// The epoch in the request of a member that joins.
pub const JOINING: i32 = 0;
/// The epoch in the request of a member that leaves.
pub const LEAVING: i32 = -1;
/// The epoch in the request of a static member that leaves and will return. The member keeps this epoch until it
/// returns.
pub const LEAVING_TO_RETURN: i32 = -2;

/// A partition, identified by its topic's id. If a topic is recreated with the same name, it has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicIdPartition {
    /// Id of the topic.
    pub topic: Uuid,
    /// Index of the partition.
    pub index: i32,
}

/// A set of partitions.
pub type PartitionSet = BTreeSet<TopicIdPartition>;

/// The partitions of a member, each with the epoch in which the member got it (KIP-1251).
pub type HeldPartitions = BTreeMap<TopicIdPartition, i32>;

/// The progress of a member towards its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// The member has all partitions of the target that was computed for its epoch.
    Stable,
    /// The member must first give up partitions, and has not confirmed this yet.
    UnrevokedPartitions,
    /// The member waits for partitions that other members have not given up yet.
    UnreleasedPartitions,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerGroupMember {
    pub id: MemberId,
    /// The number in the keys of the member's records; `None` until the member is in a group.
    pub(in crate::group) number: Option<i64>,
    /// Instance id of a static member (group.instance.id).
    pub instance_id: Option<Text>,
    /// The member's rack. It is shown to clients, but the assignors ignore it.
    pub rack_id: Option<Text>,
    /// The client id in the member's last heartbeat.
    pub client_id: Text,
    /// The address from which the member sent its last heartbeat.
    pub client_host: Text,
    /// How long the member may take to give up partitions, in ms.
    pub rebalance_timeout_ms: i32,
    /// The topics that the member subscribes to by name.
    pub topics: BTreeSet<Text>,
    /// The regular expression for further topics that the member subscribes to.
    pub regex: Option<Text>,
    /// The assignor that the member votes for.
    pub assignor: Option<Assignor>,
    /// The assignment epoch that the member has reached, or [`LEAVING_TO_RETURN`].
    pub epoch: i32,
    /// The epoch before `epoch`. A request with it is accepted, because the response with the new epoch may have been
    /// lost.
    pub previous_epoch: i32,
    /// The progress of the member towards its target.
    pub state: MemberState,
    /// The partitions that the member may read.
    pub assigned: HeldPartitions,
    /// The partitions that the member must give up. The member may read them until it has given them up.
    pub revoking: HeldPartitions,
    /// The partitions that the member is to have, by the last assignment of the group.
    pub target: PartitionSet,
    /// The member's state in the classic protocol; `None` if it uses the consumer protocol.
    pub classic: Option<ClassicMember>,
    /// The deadline for the next heartbeat, in milliseconds since 1970. The member is fenced if it sends none before.
    pub session_by: i64,
    /// When the member's next heartbeat is expected, by the interval in the last response; `i64::MAX` if no heartbeat
    /// is expected.
    pub expected_by: i64,
    /// The deadline to give up the partitions in `revoking`. The member is fenced if it still has one of them then.
    pub revoke_by: Option<i64>,
}

impl ConsumerGroupMember {
    /// Creates a member that has an id and nothing else.
    pub(in crate::group) fn new(id: MemberId) -> ConsumerGroupMember {
        ConsumerGroupMember {
            id,
            number: None,
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

    /// Returns true if the member is in this assignment epoch and has all partitions of its target.
    pub fn is_reconciled_to(&self, assignment_epoch: i32) -> bool {
        self.state == MemberState::Stable && self.epoch == assignment_epoch
    }

    /// Returns all partitions that the member may read, including those that it has not given up yet.
    pub fn holds(&self) -> impl Iterator<Item = (&TopicIdPartition, &i32)> {
        self.assigned.iter().chain(&self.revoking)
    }

    /// Returns true if the two members have sent the same fields about themselves.
    pub(super) fn has_same_fields(&self, other: &ConsumerGroupMember) -> bool {
        fn texts(member: &ConsumerGroupMember) -> [Option<&Text>; 6] {
            let ConsumerGroupMember { id, instance_id, rack_id, client_id, client_host, regex, .. } = member;
            let [instance_id, rack_id, regex] = [instance_id, rack_id, regex].map(Option::as_ref);
            [Some(id), instance_id, rack_id, Some(client_id), Some(client_host), regex]
        }
        fn classic(member: &ConsumerGroupMember) -> Option<(i32, &[(Text, Bytes)])> {
            member.classic.as_ref().map(|classic| (classic.session_timeout_ms, &classic.protocols[..]))
        }
        (self.rebalance_timeout_ms, self.assignor) == (other.rebalance_timeout_ms, other.assignor)
            && texts(self) == texts(other)
            && self.topics == other.topics
            && classic(self) == classic(other)
    }

    /// Returns true if the two members have the same epochs, partitions and target.
    pub(super) fn has_same_assignment(&self, other: &ConsumerGroupMember) -> bool {
        (self.epoch, self.previous_epoch, self.state) == (other.epoch, other.previous_epoch, other.state)
            && self.assigned == other.assigned
            && self.revoking == other.revoking
            && self.target == other.target
    }

    /// Returns the member's next deadline.
    pub(super) fn deadline(&self) -> i64 {
        let classic = self.classic.as_ref().and_then(ClassicMember::deadline);
        self.session_by.min(self.revoke_by.unwrap_or(i64::MAX)).min(classic.unwrap_or(i64::MAX))
    }
}
