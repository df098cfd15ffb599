//! What every group has: the state it is in, and the protocol it speaks.

use std::fmt;

/// Where a group is between two assignments. Not every protocol has every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
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

impl State {
    /// Every state.
    pub const ALL: [State; 7] = [
        State::Empty,
        State::PreparingRebalance,
        State::CompletingRebalance,
        State::Assigning,
        State::Reconciling,
        State::Stable,
        State::Dead,
    ];

    /// Kafka's word.
    pub const fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::PreparingRebalance => "PreparingRebalance",
            State::CompletingRebalance => "CompletingRebalance",
            State::Assigning => "Assigning",
            State::Reconciling => "Reconciling",
            State::Stable => "Stable",
            State::Dead => "Dead",
        }
    }
}

impl fmt::Display for State {
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
