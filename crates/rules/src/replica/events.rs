//! Events of a partition, and their effects.

use super::{AlterPartition, Brokers};
use fullbore_wire::ErrorCode;

/// Settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSettings {
    /// `min.insync.replicas` of the topic.
    pub min_insync_replicas: usize,
    /// `replica.lag.time.max.ms`.
    pub replica_lag_time_max_ms: i64,
}

/// The log as it was found.
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
    /// Milliseconds of a clock that only goes forward.
    pub ms: i64,
    /// The epoch in which this broker is registered.
    pub broker_epoch: i64,
    /// The brokers, as of the newest metadata that this broker has.
    pub brokers: &'a Brokers,
}

/// A follower's fetch, whose log is the beginning of the leader's: one that diverges says nothing of what the
/// follower will keep (see [`super::epochs::divergence`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerFetch {
    /// The follower.
    pub broker_id: i32,
    /// Its broker epoch, or [`super::NO_BROKER_EPOCH`].
    pub broker_epoch: i64,
    /// The leader epoch it follows.
    pub leader_epoch: i32,
    /// End of its log.
    pub offset: i64,
}

/// Effects of an event.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// The role is another, or the same in a new leader epoch. Comes first.
    pub role: Option<RoleChange>,
    /// The high watermark moved to here: readers and producers may go on.
    pub high_watermark: Option<i64>,
    /// To be asked of the control plane, whose answer goes to [`super::Partition::altered`].
    pub propose: Option<AlterPartition>,
}

/// New role of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleChange {
    /// Lead: new batches have this epoch, which begins at this offset. Whoever waited under an earlier epoch asks
    /// [`super::Partition::acknowledgement`] again.
    Lead {
        /// The leader epoch.
        epoch: i32,
        /// The log end.
        start_offset: i64,
    },
    /// Follow: fetches to the leader of an earlier epoch end. Without a leader, there is nothing to do but to wait
    /// for one.
    Follow {
        /// The leader epoch.
        epoch: i32,
        /// The leader.
        leader: Option<i32>,
    },
    /// Neither: this broker has no replica any more.
    Stop,
}

/// State of an answer to acks=all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledgement {
    /// Not yet.
    Wait,
    /// The records are on every replica in sync, and those are enough.
    Done,
    /// They are not, and this is the answer.
    Refused(ErrorCode),
}
