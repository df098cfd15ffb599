//! A partition and a broker as the cluster's metadata has them, and the change of the ISR that a leader asks for.

use std::collections::BTreeMap;

/// A broker epoch that nobody knows; it is not checked.
pub const NO_BROKER_EPOCH: i64 = -1;
/// A leader epoch or partition epoch that nobody knows.
pub const NO_EPOCH: i32 = -1;

/// Registered partition (Kafka's `PartitionRegistration`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionRegistration {
    /// The brokers that have a replica, the preferred leader first.
    pub replicas: Vec<i32>,
    /// The replicas in sync: each has every record below the high watermark.
    pub isr: Vec<i32>,
    /// Replicas that left the ISR below the least one and still have every record below the high watermark (KIP-966).
    /// As long as there are any, a leader commits nothing, whatever its own settings say.
    pub elr: Vec<i32>,
    /// Replicas that left ISR or ELR because their log lost its end (Kafka's `lastKnownElr`). They lead again by an
    /// election that says so.
    pub lost: Vec<i32>,
    /// The leader, if there is one.
    pub leader: Option<i32>,
    /// Goes up with each election.
    pub leader_epoch: i32,
    /// Goes up with each change of this partition.
    pub partition_epoch: i32,
}

impl PartitionRegistration {
    /// Returns true if the leader is in the ISR, and each replica of ISR, ELR and `lost` is one of the partition's and
    /// in no other of them.
    pub fn is_consistent(&self) -> bool {
        let mut known: Vec<i32> = [&self.isr, &self.elr, &self.lost].into_iter().flatten().copied().collect();
        let count = known.len();
        known.sort_unstable();
        known.dedup();
        let is_led_in_sync = self.leader.is_none_or(|leader| self.isr.contains(&leader));
        is_led_in_sync && known.len() == count && known.iter().all(|id| self.replicas.contains(id))
    }
}

/// Registered broker (Kafka's `BrokerRegistration`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerRegistration {
    /// Goes up each time a broker of this id registers.
    pub epoch: i64,
    /// True if the broker is not to serve (fenced).
    pub is_fenced: bool,
    /// True if the broker is about to stop.
    pub is_shutting_down: bool,
    /// True if the broker's disk is full, or hangs: its logs are whole, and do not grow.
    pub is_full: bool,
}

impl BrokerRegistration {
    /// Returns true if the broker serves, and is not about to stop.
    pub fn stays(&self) -> bool {
        !self.is_fenced && !self.is_shutting_down
    }

    /// Returns true if the broker may join ISRs, and lead where another could as well: it stays, and has room.
    pub fn is_fit(&self) -> bool {
        self.stays() && !self.is_full
    }
}

/// The cluster's brokers by id.
pub type Brokers = BTreeMap<i32, BrokerRegistration>;

/// A member of the ISR that is asked for, with the broker epoch that its last fetch had (KIP-903).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerState {
    /// The broker.
    pub broker_id: i32,
    /// The broker's epoch, or [`NO_BROKER_EPOCH`].
    pub broker_epoch: i64,
}

/// Change of the ISR that a leader asks for (KIP-497). The control plane carries it out only if both epochs are the
/// current ones and every member may be in the ISR; otherwise it refuses with INELIGIBLE_REPLICA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlterPartition {
    /// The asking leader's epoch.
    pub leader_epoch: i32,
    /// The partition epoch that this is a change of.
    pub partition_epoch: i32,
    /// The whole new ISR.
    pub new_isr: Vec<BrokerState>,
}
