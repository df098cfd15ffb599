//! Compaction of one log's segments: reading, writing, and the exchange of old segments for new ones.
//!
//! Not here: the choice of a log and a time (the broker's
//! `partitions::cleaner`), and of records (`fullbore_rules::compaction`).

pub mod dirty;
pub mod error;
pub mod output;
pub mod reader;
pub mod swap;
