//! The role of a partition on a broker, which is leader, follower or neither, with the high watermark and the ISR.
//!
//! A [`Partition`] takes an event with the time and the metadata ([`Now`]), and returns [`Effects`].
//!
//! - `registration`: partitions and brokers in the cluster's metadata, and requests to change the ISR.
//! - `events`: events and their effects.
//! - `partition`: the role, and the events that change it.
//! - `leader`: the leader's decisions about the high watermark and the ISR.
//! - `state`: the ISR, and the change that is requested.
//! - `follower`: the state of a follower, as its leader knows it.
//! - [`epochs`]: where two logs diverge, and how a follower truncates its log.
//! - [`pipe`]: several fetches in flight. [`spacing`]: when a leader responds to them.
//!
//! The log, sockets, the metadata store and elections are not here. This module relies on these promises:
//!
//! - Leaders are elected from the ISR or the ELR, and a leader epoch has only one leader.
//! - A change of the ISR is made only if its leader epoch and its partition epoch are the current ones.
//! - A restarted broker has a new broker epoch, and the partitions that it led have a new leader epoch.
//! - If an unclean shutdown truncated a broker's log, the broker leaves the ISR before it fetches again.
//!
//! Invariants: the high watermark falls only if the log is truncated below it. It is never above the log end of a
//! replica that is in the ISR or may be in it.
//!
//! The rules are those of `kafka.cluster.Partition` and `Replica` of Kafka 4.3. KIPs: 101 and 279 (truncation by
//! epoch), 207 (offsets after an election), 497 (AlterPartition), 841 and 903 (eligible members of the ISR), 966 (no
//! commits below `min.insync.replicas`). One rule is stricter than Kafka's: see [`Partition::apply`].

pub mod epochs;
mod events;
mod follower;
mod leader;
mod partition;
pub mod pipe;
mod registration;
pub mod spacing;
mod state;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use events::{Acknowledgement, Effects, FollowerFetch, LocalLog, Now, ReplicaSettings, RoleChange};
pub use partition::Partition;
pub use registration::{
    AlterPartition, BrokerRegistration, BrokerState, Brokers, NO_BROKER_EPOCH, NO_EPOCH, PartitionRegistration,
};
