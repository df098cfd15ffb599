//! Stores the state of a coordinator in an internal topic. Each change of the state is written there as records, from
//! which a broker restores the state.
//!
//! A coordinator is a pure state machine. A change is written as records to the partition to which its key belongs
//! ([`shard`]). Once these records are replicated, the change takes effect and the request is answered. A broker that
//! begins to lead a partition first reads all of it ([`replay`]) and only then serves requests. The records have a
//! meaning only to their coordinators, [`groups`](crate::groups) and [`transactions`](crate::transactions).

mod coordinator_topic;
mod ended;
mod marked;
mod pending;
mod replay;
mod shard;
#[cfg(test)]
mod tests;
mod topic;
mod unreplicated;
mod unwritten;
mod waiting;

pub use coordinator_topic::{Coordinator, CoordinatorTopic, InternalTopicSettings};
pub use ended::MarkersSeen;
pub use marked::{MarkedCoordinator, MarkerOutcome};
pub use pending::PendingWrite;
pub use replay::{LogEntry, ReplayError, replay};
pub use shard::{KeyValue, Records, Shard, Status, VerifiedProducer, size_of_record};
pub use topic::InternalTopic;
pub use unwritten::Unwritten;
pub use waiting::{PendingAnswer, Waiting};
