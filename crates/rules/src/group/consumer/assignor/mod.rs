//! Decides which member should own each partition. These are Kafka's server-side assignors, `uniform` and `range`.
//!
//! `reconcile.rs` decides when a member gets the partitions of its target. Racks are ignored, as in Kafka 4.3.
//!
//! Topics and members are represented by indexes, so that an assignment is an array. Invariant: if a topic has
//! subscribers, each of its partitions has exactly one owner, and the owner subscribes to the topic.

mod balance;
mod range;
mod subscriptions;
#[cfg(test)]
mod tests;
mod uniform;

pub use subscriptions::{MemberIndex, NO_MEMBER, Owners, Subscriptions};

/// An assignor that runs in the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignor {
    /// Makes the loads even, and moves as few partitions as possible.
    Uniform,
    /// Assigns each member the same range of partitions in every topic. Records with the same key in several topics
    /// thus go to the same member.
    Range,
}

impl Assignor {
    /// All assignors, in the order of Kafka's default setting.
    pub const ALL: [Assignor; 2] = [Assignor::Uniform, Assignor::Range];

    /// Returns the name by which clients request the assignor.
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Uniform => "uniform",
            Assignor::Range => "range",
        }
    }

    /// Returns the assignor of this name; None if the name is unknown.
    pub fn from_name(name: &str) -> Option<Assignor> {
        Assignor::ALL.into_iter().find(|assignor| assignor.name() == name)
    }

    /// Parses a list of names as in `group.consumer.assignors`. Returns None if a name is unknown or repeated.
    pub fn list(names: &str) -> Option<&'static [Assignor]> {
        const LISTS: [&[Assignor]; 4] = [
            &[Assignor::Uniform, Assignor::Range],
            &[Assignor::Range, Assignor::Uniform],
            &[Assignor::Uniform],
            &[Assignor::Range],
        ];
        let names: Option<Vec<Assignor>> = names.split(',').map(|name| Assignor::from_name(name.trim())).collect();
        LISTS.into_iter().find(|list| Some(*list) == names.as_deref())
    }

    /// Assigns all partitions again. `owners` has a row for each topic of `group`, with the present owners, or
    /// [`NO_MEMBER`] for new partitions. A member that no longer subscribes to a topic loses the topic's partitions.
    pub fn assign(self, group: &Subscriptions, owners: &mut Owners) {
        debug_assert_eq!(group.subscribers.len(), owners.len(), "a row for each topic");
        match self {
            Assignor::Uniform => uniform::assign(group, owners),
            Assignor::Range => range::assign(group, owners),
        }
    }
}
