//! The events of a partition, and their effects.

use super::{AlterPartition, Brokers};
use fullbore_wire::ErrorCode;

/// Settings of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSettings {
    /// The topic's `min.insync.replicas`.
    pub min_insync_replicas: usize,
    /// `replica.lag.time.max.ms`.
    pub replica_lag_time_max_ms: i64,
}

/// The offsets of a partition's log when it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalLog {
    /// The offset at which the log starts.
    pub start_offset: i64,
    /// The offset at which the log ends.
    pub end_offset: i64,
    /// The high watermark in the checkpoint, or 0.
    pub high_watermark: i64,
}

/// The time and the metadata at an event.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    /// The time of a monotonic clock, in milliseconds.
    pub ms: i64,
    /// The epoch in which this broker is registered.
    pub broker_epoch: i64,
    /// The brokers in the newest metadata that this broker has.
    pub brokers: &'a Brokers,
}

/// A fetch of a follower whose log is a prefix of the leader's. The caller does not report a fetch of a diverging log,
/// because the follower will truncate that log (see [`super::epochs::divergence`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerFetch {
    /// The follower that fetches.
    pub broker_id: i32,
    /// The follower's broker epoch, or [`super::NO_BROKER_EPOCH`].
    pub broker_epoch: i64,
    /// The leader epoch in the fetch.
    pub leader_epoch: i32,
    /// The offset at which the follower's log ends.
    pub offset: i64,
}

/// The effects of an event, which the caller carries out.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// A new role, or the same role in a new leader epoch. The caller must handle it before the other effects.
    pub role: Option<RoleChange>,
    /// A new high watermark. The caller checks requests of consumers and producers that wait for it.
    pub high_watermark: Option<i64>,
    /// A request to the control plane. The caller passes the control plane's response to [`super::Partition::altered`].
    pub propose: Option<AlterPartition>,
}

/// A new role of the broker for a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleChange {
    /// The broker leads. New batches get `epoch`, which begins at `start_offset`. For requests that wait since an
    /// earlier epoch, the caller checks [`super::Partition::acknowledgement`] again.
    Lead {
        /// The leader epoch.
        epoch: i32,
        /// The offset at which the log ends.
        start_offset: i64,
    },
    /// The broker is a follower. The caller stops to fetch from the leader of an earlier epoch, and fetches from this
    /// leader, if there is one.
    Follow {
        /// The leader epoch.
        epoch: i32,
        /// The leader; None if the partition has none.
        leader: Option<i32>,
    },
    /// The broker no longer has a replica of the partition.
    Stop,
}

/// The progress of a request with acks=all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledgement {
    /// The request must wait.
    Wait,
    /// All in-sync replicas have the records, and there are at least `min.insync.replicas` of them.
    Done,
    /// The request fails with this code.
    Refused(ErrorCode),
}
