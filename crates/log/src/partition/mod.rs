//! The vocabulary that classic and diskless partitions share: stamps, refusals and outcomes of batches, results of
//! reads, and waiters.
//!
//! Not here: a log, an index, a role. Of the rest of the crate, this module uses `validation`, and one type each of
//! `append` and `txn_index`.

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
