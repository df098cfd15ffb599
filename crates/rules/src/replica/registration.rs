//! The registrations of partitions and brokers in the cluster's metadata, and a leader's request to change the ISR.

use std::collections::BTreeMap;

/// A broker epoch that is unknown and is not checked.
pub const NO_BROKER_EPOCH: i64 = -1;
/// A leader epoch or partition epoch that is unknown.
pub const NO_EPOCH: i32 = -1;

/// A registered partition (Kafka's `PartitionRegistration`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionRegistration {
    /// The brokers that have a replica, beginning with the preferred leader.
    pub replicas: Vec<i32>,
    /// The in-sync replicas. Each of them has every record below the high watermark.
    pub isr: Vec<i32>,
    /// The replicas that left the ISR when it was below `min.insync.replicas` afterwards (Kafka's ELR, KIP-966). They
    /// still have every record below the high watermark. While there are such replicas, the leader commits nothing,
    /// whatever its own settings.
    pub elr: Vec<i32>,
    /// Replicas that left ISR or ELR because their logs may lack records at the end, after an unclean shutdown or a
    /// failed write (Kafka's `lastKnownElr`). Only an election among them or an unclean election can make one of them
    /// the leader.
    pub lost: Vec<i32>,
    /// The leader; None if there is none.
    pub leader: Option<i32>,
    /// The leader epoch, which rises with each election.
    pub leader_epoch: i32,
    /// The partition epoch, which rises with each change of this partition.
    pub partition_epoch: i32,
}

impl PartitionRegistration {
    /// Returns true if the leader is in the ISR, and if ISR, ELR and `lost` are disjoint sets of the partition's
    /// replicas.
    pub fn is_consistent(&self) -> bool {
        let mut known: Vec<i32> = [&self.isr, &self.elr, &self.lost].into_iter().flatten().copied().collect();
        let count = known.len();
        known.sort_unstable();
        known.dedup();
        let is_led_in_sync = self.leader.is_none_or(|leader| self.isr.contains(&leader));
        is_led_in_sync && known.len() == count && known.iter().all(|id| self.replicas.contains(id))
    }
}

/// A registered broker (Kafka's `BrokerRegistration`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerRegistration {
    /// The broker epoch, which rises each time a process registers with this id.
    pub epoch: i64,
    /// True if the broker is fenced and must not serve clients.
    pub is_fenced: bool,
    /// True if the broker is about to stop.
    pub is_shutting_down: bool,
    /// True if the broker's disk is full or hangs. Its logs are complete but do not grow.
    pub is_full: bool,
}

impl BrokerRegistration {
    /// Returns true if the broker is unfenced and not about to stop.
    pub fn stays(&self) -> bool {
        !self.is_fenced && !self.is_shutting_down
    }

    /// Returns true if the broker may join ISRs and is preferred as a leader. It must be unfenced and not about to
    /// stop, and its disk must have room.
    pub fn is_fit(&self) -> bool {
        self.stays() && !self.is_full
    }
}

/// The brokers of a cluster, by id.
pub type Brokers = BTreeMap<i32, BrokerRegistration>;

/// A member of a requested ISR, with the broker epoch in its last fetch (KIP-903).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerState {
    pub broker_id: i32,
    /// The broker epoch, or [`NO_BROKER_EPOCH`].
    pub broker_epoch: i64,
}

/// A change of the ISR that a leader requests (KIP-497). The control plane makes the change only if both epochs are the
/// current ones and every member may be in the ISR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlterPartition {
    /// The epoch of the leader that requests the change.
    pub leader_epoch: i32,
    /// The partition epoch that the change is based on.
    pub partition_epoch: i32,
    /// The whole ISR after the change.
    pub new_isr: Vec<BrokerState>,
}
