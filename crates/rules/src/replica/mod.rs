//! Role of a partition on one broker: leader, follower or neither, the high watermark, and the ISR.
//!
//! A [`Partition`] takes an event and its circumstances ([`Now`]), and returns [`Effects`].
//!
//! - `registration`: partition and broker in the cluster's metadata; requests for changes of the ISR.
//! - `events`: events, and their effects.
//! - `partition`: the role, and its changes by events.
//! - `leader`: decisions of a leader: high watermark, changes of the ISR.
//! - `state`: the ISR, and its one requested change.
//! - `follower`: state of one follower at its leader.
//! - [`epochs`]: divergence of two logs, and truncation of a follower.
//! - [`pipe`]: several fetches in flight; [`spacing`]: the times at which a leader responds to them.
//!
//! Not here: the log, sockets, the metadata store, and elections. This module relies on these promises:
//!
//! - Leaders are elected from the ISR, and a leader epoch has one leader.
//! - A change of the ISR is made only if its leader epoch and partition epoch are the current ones.
//! - A restarted broker has a new broker epoch, and the partitions that it led have a new leader epoch.
//! - A broker whose log an unclean shutdown truncated leaves the ISR before it fetches again.
//!
//! Invariants: the high watermark falls only if the log is truncated below it. It never passes the log end of a replica
//! that is in the ISR, or may be in it.
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
