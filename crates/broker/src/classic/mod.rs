//! The classic log: partitions as Kafka keeps them on disk, and what a leader does with them.
//!
//! [`Logs`] holds every partition of one data folder, a [`Partition`] is one of them. All calls are
//! synchronous; the only things to await are [`Partition::opened`], a [`FlushTicket`], a [`ParkedAnswer`] and a waiter's wake-up. No wire formats
//! but the record batch, no topics' metadata, no replication.
//!
//! An append goes `partition` -> `log` -> `stamping` -> `segment` -> `index`, a fetch `partition` ->
//! `lookup`, a start `logs` -> `opener` -> `opening` -> `recovery`.
//!
//! Invariant: a batch is answered only when it is whole in the log at its offset; offsets are dense
//! and never used twice.

mod answer;
mod aside;
mod boot;
mod checkpoints;
mod cleaner;
mod deletion;
mod epochs;
mod failures;
mod files;
mod flush;
mod flusher;
mod following;
mod granted;
mod housekeeping;
mod index;
mod log;
mod log_dir;
mod logs;
mod lookup;
mod opener;
mod opening;
mod page_cache;
mod parking;
mod partition;
mod recent;
mod recovery;
mod retention;
mod role;
mod scan;
mod segment;
mod snapshot;
mod stamping;
mod steps;
mod succession;
mod times;
mod truncate;
mod waiters;

use rustix::process::setpriority_process;
use rustix::thread::gettid;

pub use answer::{
    AppendError, Appended, EpochEnd, FlushTicket, Offsets, OpenError, Read, ReadError, StorageError, TimestampOffset,
};
pub use aside::SetAside;
pub use cleaner::{CleanerSettings, CleanerStatus, OPENED_MAX};
pub(crate) use files::is_momentary;
pub use following::{FollowError, FollowerRead, FromLeader};
pub use logs::{Logs, Origin, Settings};
pub use parking::{Admission, ParkedAnswer, Reordering};
pub use partition::Partition;
pub use role::{Acks, ReplicationTicket, Ticket, led_by};
pub use waiters::Registration;

/// The nice level of threads that nobody waits for, or that take long.
const NICE: i32 = 10;

/// Lets the threads that serve connections go first where there are too few processors for all: on Linux a thread has a
/// nice level of its own.
fn give_way() {
    if let Err(error) = setpriority_process(Some(gettid()), NICE) {
        tracing::debug!(%error, "a thread in the background runs at the priority of all others");
    }
}

/// The system's clock, in ms; for what no request brings its time to.
pub(crate) fn now_ms() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_epoch.map_or(0, |time| time.as_millis() as i64)
}
