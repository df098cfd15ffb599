//! State and protocol of a group.

use std::fmt;

/// State of a group. Some states occur in one protocol only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupState {
    /// The group has no members, and may have offsets.
    Empty,
    /// Classic: the members must rejoin.
    PreparingRebalance,
    /// Classic: the members are known, the leader assigns.
    CompletingRebalance,
    /// Consumer: a target assignment is being computed.
    Assigning,
    /// Consumer: members move towards their target.
    Reconciling,
    /// All members have their assignments.
    Stable,
    /// The group is removed. A holder of this object must look the group up again.
    Dead,
}

impl GroupState {
    /// All states.
    pub const ALL: [GroupState; 7] = [
        GroupState::Empty,
        GroupState::PreparingRebalance,
        GroupState::CompletingRebalance,
        GroupState::Assigning,
        GroupState::Reconciling,
        GroupState::Stable,
        GroupState::Dead,
    ];

    /// Returns Kafka's name of the state.
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

/// Protocol of a group: Kafka's group type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Protocol of JoinGroup and SyncGroup.
    Classic,
    /// Protocol of ConsumerGroupHeartbeat (KIP-848).
    Consumer,
}

impl Protocol {
    /// Returns Kafka's name of the protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Classic => "classic",
            Protocol::Consumer => "consumer",
        }
    }
}
