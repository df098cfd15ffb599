//! Compaction of one log's segments: what is read, what is written, and how the new takes the place of the old.
//!
//! Not which log and when ([`crate::partitions::cleaner`]), nor which records stay (`fullbore_rules::compaction`).

pub mod dirty;
pub mod error;
pub mod output;
pub mod reader;
pub mod swap;
