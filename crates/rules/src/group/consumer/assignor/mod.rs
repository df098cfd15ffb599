//! Target owners of partitions: Kafka's server-side assignors, `uniform` and `range`.
//!
//! Not here: the time at which a member gets a partition (`reconcile.rs`). Racks play no role, as in Kafka 4.3.
//!
//! Topics and members are indexes here, so that an assignment is an array. Invariant: every partition of a topic with
//! subscribers has exactly one owner, which subscribes to the topic.

mod balance;
mod range;
mod subscriptions;
#[cfg(test)]
mod tests;
mod uniform;

pub use subscriptions::{MemberIndex, NO_MEMBER, Owners, Subscriptions};

/// Server-side assignor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignor {
    /// Even loads, with as few moves as possible.
    Uniform,
    /// Assigns each member the same range of partitions of every topic, so that equal keys of all topics are with one
    /// member.
    Range,
}

impl Assignor {
    /// All assignors, in the order of Kafka's default.
    pub const ALL: [Assignor; 2] = [Assignor::Uniform, Assignor::Range];

    /// Returns the name that clients request.
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

    /// Returns a list of assignors in the form of `group.consumer.assignors`; None if a name is unknown or repeated.
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

    /// Replaces the owners. `owners` has a row for each topic of `group`, with the present owners, or [`NO_MEMBER`] for
    /// a new partition. An owner loses a partition of a topic that it does not subscribe to.
    pub fn assign(self, group: &Subscriptions, owners: &mut Owners) {
        debug_assert_eq!(group.subscribers.len(), owners.len(), "a row for each topic");
        match self {
            Assignor::Uniform => uniform::assign(group, owners),
            Assignor::Range => range::assign(group, owners),
        }
    }
}
