//! Compacts the segments of one log: reads them, writes new ones, and replaces the old ones.
//!
//! The broker's `partitions::cleaner` chooses the log and the time, and `fullbore_rules::compaction` chooses the
//! records that are kept.

pub mod dirty;
pub mod error;
pub mod output;
pub mod reader;
pub mod swap;
