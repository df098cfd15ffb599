//! The vocabulary of a partition, which classic and diskless ones share: how a batch is stamped, refused and answered,
//! what a read returns, and who waits meanwhile.
//!
//! Not here: a log, an index, a role. Nothing in this folder knows the rest of the crate but `validation`.

pub mod dirty_partitions;
pub mod durability;
pub mod error;
pub mod flushed;
pub mod left_out;
pub mod memory_budget;
pub mod outcome;
pub mod read;
pub mod reorder_buffer;
pub mod stamping;
pub mod terms;
pub mod waiters;
