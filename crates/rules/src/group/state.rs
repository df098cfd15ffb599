//! State and protocol of a group.

use std::fmt;

/// State of a group. Not every protocol has every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupState {
    /// No members; it may have offsets.
    Empty,
    /// Classic: members are asked to join again.
    PreparingRebalance,
    /// Classic: the members are known, the leader assigns.
    CompletingRebalance,
    /// Consumer: a target assignment is worked out.
    Assigning,
    /// Consumer: members move towards their target.
    Reconciling,
    /// Everybody has what it was assigned.
    Stable,
    /// Gone; who still holds it must look the group up anew.
    Dead,
}

impl GroupState {
    /// Every state.
    pub const ALL: [GroupState; 7] = [
        GroupState::Empty,
        GroupState::PreparingRebalance,
        GroupState::CompletingRebalance,
        GroupState::Assigning,
        GroupState::Reconciling,
        GroupState::Stable,
        GroupState::Dead,
    ];

    /// Kafka's word.
    pub const fn name(self) -> &'static str {
        match self {
            GroupState::Empty => "Empty",
            GroupState::PreparingRebalance => "PreparingRebalance",
            GroupState::CompletingRebalance => "CompletingRebalance",
            GroupState::Assigning => "Assigning",
            GroupState::Reconciling => "Reconciling",
            GroupState::Stable => "Stable",
            GroupState::Dead => "Dead",
        }
    }
}

impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which protocol a group speaks: Kafka's group type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// JoinGroup and SyncGroup.
    Classic,
    /// ConsumerGroupHeartbeat (KIP-848).
    Consumer,
}

impl Protocol {
    /// Kafka's word.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Classic => "classic",
            Protocol::Consumer => "consumer",
        }
    }
}
