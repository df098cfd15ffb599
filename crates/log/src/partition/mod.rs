//! Types that classic and diskless partitions share: stamps of batches, errors, results of appends and reads, and
//! waiters.
//!
//! There is no log, index or role here. From the rest of the crate, this module only uses `validation`, and one type
//! each from `append` and `txn_index`.

pub mod dirty_partitions;
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
