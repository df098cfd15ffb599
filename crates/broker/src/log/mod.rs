//! The log of one partition on the disk, as Kafka keeps it: segments with their indexes, producers' state and leader epochs.
//!
//! It knows neither who leads nor who else has the partition, has no lock and starts no thread but that of the page cache;
//! [`crate::replica`] has those. All calls block on the disk.
//!
//! An append goes `log` -> `stamping` -> `segment` -> `index`; a read is planned by `lookup` and done without the log; a log
//! is opened by `recovery`.
//!
//! Invariant: offsets are dense but for what compaction takes out, and never used twice; what a start finds is what was
//! whole in the files.

pub(crate) mod aside;
pub(crate) mod boot;
pub(crate) mod cleaner;
pub(crate) mod epochs;
pub(crate) mod error;
pub(crate) mod files;
pub(crate) mod flush;
pub(crate) mod granted;
pub(crate) mod index;
pub(crate) mod log;
pub(crate) mod lookup;
pub(crate) mod page_cache;
pub(crate) mod recent;
pub(crate) mod recovery;
pub(crate) mod retention;
pub(crate) mod scan;
pub(crate) mod segment;
pub(crate) mod snapshot;
pub(crate) mod stamping;
pub(crate) mod steps;
pub(crate) mod truncate;
