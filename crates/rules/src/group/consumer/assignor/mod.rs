//! Target owners of partitions: Kafka's server-side assignors, `uniform` and `range`.
//!
//! Not here: the time at which a member gets a partition (`reconcile.rs`). Racks play no role, as in Kafka 4.3.
//!
//! Topics and members are numbers here, so that an assignment is an array. Invariant: every partition of a topic with
//! subscribers has exactly one owner, who subscribes to the topic.

mod balance;
mod range;
mod subscriptions;
#[cfg(test)]
mod tests;
mod uniform;

pub use subscriptions::{MemberIndex, NOBODY, Owners, Subscriptions};

/// A server-side assignor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignor {
    /// Even, with as few moves as possible.
    Uniform,
    /// Gives each member the same range of partitions of every topic, so that equal keys meet.
    Range,
}

impl Assignor {
    /// All of them, in the order of Kafka's default.
    pub const ALL: [Assignor; 2] = [Assignor::Uniform, Assignor::Range];

    /// The name that clients ask for.
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Uniform => "uniform",
            Assignor::Range => "range",
        }
    }

    /// The assignor of a name.
    pub fn from_name(name: &str) -> Option<Assignor> {
        Assignor::ALL.into_iter().find(|assignor| assignor.name() == name)
    }

    /// A list of them as `group.consumer.assignors` has it; `None` when a name is not known or comes twice.
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

    /// The new owners. `owners` has those so far, [`NOBODY`] for a partition that is new, and a row for each topic of
    /// `group`; what they own against their subscription is taken from them.
    pub fn assign(self, group: &Subscriptions, owners: &mut Owners) {
        debug_assert_eq!(group.subscribers.len(), owners.len(), "a row for each topic");
        match self {
            Assignor::Uniform => uniform::assign(group, owners),
            Assignor::Range => range::assign(group, owners),
        }
    }
}
