//! The states and protocols of groups.

use std::fmt;

/// The state of a group. Some states exist only in one of the protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupState {
    /// The group has no members, but may have offsets.
    Empty,
    /// Classic protocol: the members must rejoin.
    PreparingRebalance,
    /// Classic protocol: the members are known, and the leader assigns the partitions.
    CompletingRebalance,
    /// Consumer protocol: a target assignment is being computed.
    Assigning,
    /// Consumer protocol: members are moving towards their target.
    Reconciling,
    /// All members have their assignments.
    Stable,
    /// The group was removed. A caller that still has this object must look the group up again.
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

    /// Returns the name that Kafka gives the state.
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

/// The protocol of a group, which Kafka calls the group type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The protocol with JoinGroup and SyncGroup.
    Classic,
    /// The protocol with ConsumerGroupHeartbeat (KIP-848).
    Consumer,
}

impl Protocol {
    /// Returns the name that Kafka gives the protocol.
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Classic => "classic",
            Protocol::Consumer => "consumer",
        }
    }
}
