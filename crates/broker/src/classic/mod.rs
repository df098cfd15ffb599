//! The classic log: partitions as Kafka keeps them on disk, and what a leader does with them.
//!
//! [`Logs`] holds every partition of one data folder, a [`Partition`] is one of them. All calls are
//! synchronous; the only thing to await is a [`FlushTicket`] or a waiter's wake-up. No wire formats
//! but the record batch, no topics' metadata, no replication.
//!
//! Invariant: a batch is answered only when it is whole in the log at its offset; offsets are dense
//! and never used twice.

mod answer;
mod logs;
mod partition;
mod waiters;

pub use answer::{
    AppendError, Appended, EpochEnd, FlushTicket, Offsets, OpenError, Read, ReadError,
    StorageError, TimestampOffset,
};
pub use logs::{Logs, Settings};
pub use partition::Partition;
pub use waiters::Registration;
