//! The Fullbore broker. It speaks Kafka's protocol, stores Kafka's log format on disk, and runs as one process.
//!
//! This is a library. The `fullbore` binary is its command line.

pub mod admin;
pub mod api;
mod coordinator;
mod directory_check;
mod error;
pub mod exposition;
mod fetch_sessions;
mod follow_image;
pub mod groups;
mod log_end_reports;
pub mod loggers;
mod membership;
pub mod net;
mod node;
pub mod partitions;
mod replica;
mod replication;
mod start;
pub mod telemetry;
mod transactions;

pub use directory_check::{DirectoryFinding, check_directory};
pub use error::StartError;
pub use fullbore_diskless::StoreUse;
pub use start::{Broker, Starting, Stopping};
