//! Registrations of a partition and of a broker in the cluster's metadata, and a leader's request to change the ISR.

use std::collections::BTreeMap;

/// Unknown broker epoch, which is not checked.
pub const NO_BROKER_EPOCH: i64 = -1;
/// Unknown leader epoch or partition epoch.
pub const NO_EPOCH: i32 = -1;

/// Registered partition (Kafka's `PartitionRegistration`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionRegistration {
    /// Brokers with a replica, the preferred leader first.
    pub replicas: Vec<i32>,
    /// Replicas in sync: each has every record below the high watermark.
    pub isr: Vec<i32>,
    /// Replicas that left an ISR below `min.insync.replicas`, and still have every record below the high watermark
    /// (KIP-966). While the ELR is not empty, the leader commits nothing, whatever its own settings.
    pub elr: Vec<i32>,
    /// Replicas that left ISR or ELR because their logs may lack records at the end, after an unclean shutdown or a
    /// failed write (Kafka's `lastKnownElr`). They lead only after an election among such replicas, or an unclean one.
    pub lost: Vec<i32>,
    /// Leader; None if there is none.
    pub leader: Option<i32>,
    /// Epoch that rises with each election.
    pub leader_epoch: i32,
    /// Epoch that rises with each change of this partition.
    pub partition_epoch: i32,
}

impl PartitionRegistration {
    /// Returns true if the leader is in the ISR, and ISR, ELR and `lost` are disjoint sets of the partition's replicas.
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
    /// Epoch that rises each time a broker with this id registers.
    pub epoch: i64,
    /// True if the broker is fenced, and must not serve.
    pub is_fenced: bool,
    /// True if the broker is about to stop.
    pub is_shutting_down: bool,
    /// True if the broker's disk is full or hangs: its logs are whole, but do not grow.
    pub is_full: bool,
}

impl BrokerRegistration {
    /// Returns true if the broker serves, and is not about to stop.
    pub fn stays(&self) -> bool {
        !self.is_fenced && !self.is_shutting_down
    }

    /// Returns true if the broker may join ISRs, and is preferred as a leader: it serves, is not about to stop, and its
    /// disk has room.
    pub fn is_fit(&self) -> bool {
        self.stays() && !self.is_full
    }
}

/// Brokers of the cluster by id.
pub type Brokers = BTreeMap<i32, BrokerRegistration>;

/// Member of a requested ISR, with the broker epoch of its last fetch (KIP-903).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerState {
    pub broker_id: i32,
    /// Broker epoch, or [`NO_BROKER_EPOCH`].
    pub broker_epoch: i64,
}

/// Change of the ISR that a leader requests (KIP-497). The control plane makes the change only if both epochs are the
/// current ones and every member may be in the ISR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlterPartition {
    /// Epoch of the requesting leader.
    pub leader_epoch: i32,
    /// Partition epoch on which the change is based.
    pub partition_epoch: i32,
    /// Whole new ISR.
    pub new_isr: Vec<BrokerState>,
}
