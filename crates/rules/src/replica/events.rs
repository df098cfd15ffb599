//! Events of a partition, and their effects.

use super::{AlterPartition, Brokers};
use fullbore_wire::ErrorCode;

/// Settings of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSettings {
    /// `min.insync.replicas` of the topic.
    pub min_insync_replicas: usize,
    /// `replica.lag.time.max.ms`.
    pub replica_lag_time_max_ms: i64,
}

/// State in which the log was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalLog {
    /// Start of the log.
    pub start_offset: i64,
    /// End of the log.
    pub end_offset: i64,
    /// High watermark of the checkpoint, or 0.
    pub high_watermark: i64,
}

/// Time and brokers of an event.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    /// Milliseconds of a monotonic clock.
    pub ms: i64,
    /// Epoch in which this broker is registered.
    pub broker_epoch: i64,
    /// Brokers in the newest metadata of this broker.
    pub brokers: &'a Brokers,
}

/// Fetch of a follower whose log is a prefix of the leader's. The fetch of a diverging log is no event, because the
/// follower will truncate that log (see [`super::epochs::divergence`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerFetch {
    /// Follower that fetches.
    pub broker_id: i32,
    /// Broker epoch of the follower, or [`super::NO_BROKER_EPOCH`].
    pub broker_epoch: i64,
    /// Leader epoch of the fetch.
    pub leader_epoch: i32,
    /// End of the follower's log.
    pub offset: i64,
}

/// Effects of an event.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// New role, or the same role in a new leader epoch. Must be handled first.
    pub role: Option<RoleChange>,
    /// New high watermark: waiting readers and producers may continue.
    pub high_watermark: Option<i64>,
    /// Request for the control plane, whose response goes to [`super::Partition::altered`].
    pub propose: Option<AlterPartition>,
}

/// New role of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleChange {
    /// The broker leads: new batches get this epoch, which begins at this offset. The caller checks
    /// [`super::Partition::acknowledgement`] again for requests that wait under an earlier epoch.
    Lead {
        /// The leader epoch.
        epoch: i32,
        /// Log end.
        start_offset: i64,
    },
    /// The broker follows: its fetches to the leader of an earlier epoch end. Without a leader it waits for one.
    Follow {
        /// The leader epoch.
        epoch: i32,
        /// Leader; None if the partition has none.
        leader: Option<i32>,
    },
    /// This broker no longer has a replica.
    Stop,
}

/// State of an acks=all request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledgement {
    /// The request must wait.
    Wait,
    /// All replicas in sync have the records, and their number is at least `min.insync.replicas`.
    Done,
    /// The request fails with this code.
    Refused(ErrorCode),
}
