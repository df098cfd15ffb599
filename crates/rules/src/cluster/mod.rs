//! Decisions about a cluster's metadata: its brokers, leaders, ISRs and failures.
//!
//! Every decision is a function of the newest metadata and a request. Any broker may make a decision, and several may
//! make the same one, because a repeated decision changes nothing.
//!
//! - `registration`: a broker joins, and its log may have lost records.
//! - `election`: who leads a partition and who leaves its ISR, given the live brokers.
//! - `isr`: changes of the ISR that a leader requests.
//! - [`cut_off`]: when a broker stands down, because it alone has lost the database.
//! - [`lease`]: which brokers are considered failed.
//! - [`room`]: when a broker reports a full disk.
//! - [`store`]: when a broker reports that it has lost the object store.
//! - `zones`: which broker of a zone serves a partition that every broker can serve.
//!
//! Databases, sockets and clocks are in other crates. A decision takes effect when it is committed, and can be
//! committed only if the metadata has not changed since. The epochs and the ISR alone prevent the loss of records. The
//! failure detector only triggers elections.
//!
//! Invariants: a new leader comes from the ISR or the ELR, and its log has lost no records at its end. Only
//! [`elect_unclean`] and [`elect_among_lost`] choose others. The cluster removes members from an ISR without a request
//! of the leader only if a live member leads afterwards. Each election has its own leader epoch, and each change its
//! own partition epoch.
//!
//! The rules are those of Kafka's `ReplicationControlManager`, `PartitionChangeBuilder` and `ClusterControlManager`
//! (4.3), KIP-966 (ELR), KIP-841 and KIP-903 (eligible members of an ISR). Two rules are ours. A killed broker whose
//! machine stays up has lost nothing, because the system's page cache still has its writes. And the last ISR stays
//! while all its members are down, so the first of them that returns with a complete log leads.

pub mod cut_off;
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
    DirectoryMarks, Joining, Member, PreviousShutdown, ResignedLog, lose, register, replace, without, without_room,
};
pub use zones::Zones;
