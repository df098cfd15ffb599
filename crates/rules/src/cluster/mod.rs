//! Decisions on the cluster's metadata: members, leaders, ISRs, failed brokers.
//!
//! Every decision is a function of the newest metadata and of a request. Any broker may decide, any number of times: a
//! repeated decision changes nothing.
//!
//! - `registration`: a broker joins; its log may have lost records.
//! - `election`: leaders and departures from the ISR, by the live brokers.
//! - `isr`: changes of the ISR that a leader requests.
//! - [`lease`]: brokers that are considered failed.
//! - [`room`]: reports of full disks.
//! - [`store`]: reports of lost object stores.
//! - `zones`: the broker of each zone for a partition that every broker serves.
//!
//! Not here: databases, sockets and clocks. A decision is valid once it is committed, and only on the metadata that it
//! was made on. Safety rests on the epochs and the ISR alone: a lease only triggers an election.
//!
//! Invariants: a new leader comes from the ISR or the ELR, with a log that has kept its end. Only [`elect_unclean`] and
//! [`elect_among_lost`] choose others. An ISR shrinks without a request of its leader only if a live member leads on.
//! Each election has its own leader epoch, each change its own partition epoch.
//!
//! Rules: Kafka's `ReplicationControlManager`, `PartitionChangeBuilder` and `ClusterControlManager` (4.3), KIP-966
//! (ELR), KIP-841 and KIP-903 (eligible members of an ISR). Two rules are ours. A killed broker whose machine stays up
//! has lost nothing: the system has its pages. The last ISR stays while all its members are down, and the first of them
//! that returns whole leads.

mod election;
mod isr;
pub mod lease;
mod registration;
pub mod room;
pub mod store;
mod zones;

#[cfg(test)]
mod tests;

pub use election::{
    LogEndReport, contenders, elect_among_lost, elect_preferred, elect_unclean, follow_up, is_fit, is_settled,
    min_insync, relax, settle,
};
pub use isr::alter_isr;
pub use registration::{
    FolderMarks, Joining, Member, PreviousShutdown, ResignedLog, lose, register, replace, without, without_room,
};
pub use zones::Zones;
