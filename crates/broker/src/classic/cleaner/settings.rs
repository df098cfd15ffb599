//! The broker-wide settings of compaction, which are part of the broker's configuration.

pub use crate::config::CleanerSettings;
