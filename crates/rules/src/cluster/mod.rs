//! The cluster as its metadata has it: who is a member, who leads a partition, who is in sync, who is held for dead.
//!
//! Every decision is a function of the newest metadata and of what is asked, so that any broker may decide, any number
//! of times: what was decided already changes nothing.
//!
//! - `registration`: a broker joins, and what its log may have lost.
//! - `election`: who leads, and who leaves the ISR, by who is there.
//! - `isr`: the ISR that a leader asks for.
//! - [`lease`]: when a broker is held for dead.
//! - [`room`]: reports of full disks.
//! - [`store`]: reports of lost object stores.
//! - `zones`: which broker a client is to use for a partition that every broker serves.
//!
//! What it is not: it knows no database, no sockets and no clock. What is decided is true once it is committed, and
//! only on the metadata that it was decided on. Nothing here is needed for safety but the epochs and the ISR: a lease
//! only says when to look for another leader.
//!
//! Invariants: whoever leads was in the ISR or the ELR and has not lost its log's end since, but for an election that
//! says so ([`elect_unclean`], [`elect_among_lost`]). An ISR gets smaller without its leader's asking only where a
//! member that lives leads on. Each election has a leader epoch of its own, each change a partition epoch.
//!
//! Rules: Kafka's `ReplicationControlManager`, `PartitionChangeBuilder` and `ClusterControlManager` (4.3), KIP-966
//! (ELR), KIP-841 and KIP-903 (who may be in an ISR). Two are ours. A broker that was killed, and whose machine goes
//! on, has lost nothing: its pages are the system's. And the last ISR stays where nobody lives, so that whoever of it
//! comes back whole leads.

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
    LogEnd, contenders, elect_among_lost, elect_preferred, elect_unclean, follow_up, is_fit, is_settled, min_insync,
    relax, settle,
};
pub use isr::alter_isr;
pub use registration::{
    FolderMarks, Joining, Member, PreviousShutdown, ResignedLog, lose, register, replace, without, without_room,
};
pub use zones::Zones;
