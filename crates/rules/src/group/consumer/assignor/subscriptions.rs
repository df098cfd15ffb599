//! The subscribers of each topic and the owners of partitions. Topics and members are represented by their indexes.

/// The index of a member in its group.
pub type MemberIndex = u32;

/// The value in [`Owners`] for a partition that no member owns.
pub const NO_MEMBER: MemberIndex = MemberIndex::MAX;

/// The owner of each partition, by topic.
pub type Owners = Vec<Vec<MemberIndex>>;

/// Describes which members subscribe to which topics.
#[derive(Clone, Debug, Default)]
pub struct Subscriptions {
    /// Number of members in the group.
    pub members: usize,
    /// The subscribers of each topic in ascending order. `range` assigns in this order.
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
