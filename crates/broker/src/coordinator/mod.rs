//! What every coordinator that keeps its state in an internal topic needs: the way of a change into the log, and back at the
//! next start.
//!
//! A coordinator is a pure machine. What it says must be kept becomes records of the topic's partition that its key
//! belongs to ([`shard`]); once they are kept, what was asked for is true and answered. A start reads the partition from its
//! start to its end ([`replay`]) and then serves. What the records mean is the coordinator's matter:
//! [`groups`](crate::groups), and one day transactions.

mod pending;
mod replay;
mod shard;
#[cfg(test)]
mod tests;
mod topic;
mod unreplicated;
mod unwritten;

pub use pending::PendingWrite;
pub use replay::{ReplayError, replay};
pub use shard::{KeyValue, Records, Shard, Status, size_of_record};
pub use topic::InternalTopic;
pub use unwritten::Unwritten;
