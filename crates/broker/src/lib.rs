//! The Fullbore broker: Kafka's protocol in front, Kafka's log on disk, one process.
//!
//! A library; its command line is the `fullbore` binary.

pub mod admin;
pub mod api;
mod coordinator;
pub mod diskless;
mod error;
pub mod exposition;
mod fetch_sessions;
mod folder_check;
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

pub use error::StartError;
pub use folder_check::{FolderFinding, check_folder};
pub use start::{Broker, Starting, Stopping};
