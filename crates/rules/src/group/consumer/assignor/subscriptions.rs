//! Topics and members as numbers: who subscribes to what, and who owns what.

/// The number of a member among those of the group.
pub type MemberIndex = u32;

/// In place of a member: the partition has no owner.
pub const NOBODY: MemberIndex = MemberIndex::MAX;

/// The owner of each partition of each topic.
pub type Owners = Vec<Vec<MemberIndex>>;

/// Members' subscriptions to topics.
#[derive(Clone, Debug, Default)]
pub struct Subscriptions {
    /// How many members the group has.
    pub members: usize,
    /// For each topic its subscribers, ascending. `range` deals in this order.
    pub subscribers: Vec<Vec<MemberIndex>>,
}

impl Subscriptions {
    /// Returns true if everybody subscribes to everything.
    pub(super) fn is_homogeneous(&self) -> bool {
        self.subscribers.iter().all(|subscribers| subscribers.len() == self.members)
    }

    pub(super) fn subscribes(&self, member: MemberIndex, topic: usize) -> bool {
        self.subscribers[topic].binary_search(&member).is_ok()
    }
}
