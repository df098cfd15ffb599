//! Compaction of one log's segments: what is read, what is written, and how the new takes the place of the old.
//!
//! Not which log and when ([`crate::partitions::cleaner`]), nor which records stay (`fullbore_rules::compaction`).

pub(crate) mod dirty;
pub(crate) mod error;
pub(crate) mod output;
pub(crate) mod reader;
pub(crate) mod swap;
