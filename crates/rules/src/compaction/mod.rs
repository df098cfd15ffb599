//! Decisions of log compaction (Kafka's `LogCleaner`): when and up to which offset a log is cleaned, which segments are
//! written into one, and which records survive.
//!
//! The broker reads and writes the logs.
//!
//! Invariant: a record is removed only for one of three reasons. A later committed record has its key, it is a
//! tombstone whose delete horizon has passed, or its transaction was aborted. So the log has the last committed value
//! of each key at every moment.

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
