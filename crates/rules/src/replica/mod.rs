//! A partition's role on one broker: whether it leads, follows or neither, what readers may see, and who is in sync.
//!
//! A [`Partition`] takes an event and what holds at that moment ([`Now`]), and says what follows as [`Effects`].
//!
//! - `registration`: a partition and a broker as the cluster's metadata has them; the change of the ISR that a
//!   leader asks for.
//! - `events`: what comes with an event, and what follows from it.
//! - `partition`: the role, and how an event changes it.
//! - `leader`: what a leader decides: high watermark, who joins the ISR, who leaves it.
//! - `state`: the ISR, and the one change of it that is asked for.
//! - `follower`: what a leader knows of one follower.
//! - [`epochs`]: where two logs part, and what a follower truncates to.
//! - [`pipe`]: how a follower keeps several fetches under way; [`spacing`]: when its leader answers them.
//!
//! What it is not: it knows no log, no sockets and no metadata store, and elects nobody. It relies on these: leaders
//! are elected from the ISR; a leader epoch has one leader; a change of the ISR is carried out only where leader
//! epoch and partition epoch are the current ones; a broker that comes back has a new broker epoch, and what it led
//! has a new leader epoch; a broker whose log lost its end is out of the ISR before it fetches again.
//!
//! Invariants: the high watermark never goes back unless the log was truncated below it, and is never past what every
//! replica has that is in the ISR, or may be.
//!
//! Rules: `kafka.cluster.Partition` and `Replica` of Kafka 4.3; KIP-101 and KIP-279 (truncation by epoch), KIP-207
//! (offsets after an election), KIP-497 (AlterPartition), KIP-841 and KIP-903 (who may join the ISR), KIP-966 (the
//! high watermark stands still below the least ISR). One rule is stricter than Kafka's: see [`Partition::apply`].

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
