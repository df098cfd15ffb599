//! State of a coordinator in an internal topic: the path of a change into the log, and back when a broker loads the
//! log.
//!
//! A coordinator is a pure state machine. Changes to be stored become records of the partition that their key belongs
//! to ([`shard`]). Once the records are replicated, the change is valid and its request is answered. A broker that
//! begins to lead a partition reads it whole ([`replay`]) before it serves requests. Only the coordinators know the
//! meaning of their records: [`groups`](crate::groups), [`transactions`](crate::transactions).

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
