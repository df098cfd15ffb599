//! Compaction's decisions (Kafka's `LogCleaner`): which log is to be cleaned and up to where, which segments are written
//! into one, which records survive.
//!
//! What it is not: reading or writing logs, which the broker does.
//!
//! Invariant: a record goes only if a later one with its key is in the log, or if it is a tombstone whose time is up; so
//! the last value of a key is there at every moment.

mod due;
mod group;
mod offset_map;
mod sip;
mod survive;
mod throttle;

pub use due::{CleanableLog, Closed, Dirty, Lags, dirty};
pub use group::{SegmentLimits, Source, group};
pub use offset_map::{HashKey, OffsetMap, SLOT_BYTES};
pub use survive::{Horizon, survives};
pub use throttle::Throttle;
