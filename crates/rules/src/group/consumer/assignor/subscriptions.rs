//! Topics and members as indexes: the subscribers and the owners of partitions.

/// Index of a member in its group.
pub type MemberIndex = u32;

/// Index of no member: the partition has no owner.
pub const NO_MEMBER: MemberIndex = MemberIndex::MAX;

/// Owner of each partition of each topic.
pub type Owners = Vec<Vec<MemberIndex>>;

/// Subscriptions of members to topics.
#[derive(Clone, Debug, Default)]
pub struct Subscriptions {
    /// Number of members of the group.
    pub members: usize,
    /// Subscribers of each topic, ascending. `range` assigns in this order.
    pub subscribers: Vec<Vec<MemberIndex>>,
}

impl Subscriptions {
    /// Returns true if all members subscribe to all topics.
    pub(super) fn is_homogeneous(&self) -> bool {
        self.subscribers.iter().all(|subscribers| subscribers.len() == self.members)
    }

    pub(super) fn subscribes(&self, member: MemberIndex, topic: usize) -> bool {
        self.subscribers[topic].binary_search(&member).is_ok()
    }
}
