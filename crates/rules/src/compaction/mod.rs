//! Compaction's decisions (Kafka's `LogCleaner`): which log is to be cleaned and up to where, which segments are
//! written into one, which records survive.
//!
//! What it is not: reading or writing logs, which the broker does.
//!
//! Invariant: a record goes only if a later one with its key is in the log and committed, if it is a tombstone whose
//! time is up, or if its transaction was aborted; so the last committed value of a key is there at every moment.

mod due;
mod group;
mod offset_map;
mod sip;
mod survive;
mod throttle;
mod transactions;

pub use due::{CleanableLog, Closed, Dirty, Lags, dirty};
pub use group::{SegmentLimits, Source, group};
pub use offset_map::{HashKey, OffsetMap, SLOT_BYTES};
pub use survive::{Horizon, survives};
pub use throttle::Throttle;
pub use transactions::{MarkedData, MarkerFate, TransactionScan, marker_fate};
