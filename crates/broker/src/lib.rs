//! The Fullbore broker: Kafka's protocol in front, Kafka's log on disk, one process.
//!
//! A library without a command line; the `fullbore` binary is that.

pub mod admin;
pub mod api;
mod cold;
pub mod config;
pub mod control;
mod coordinator;
pub mod diskless;
mod error;
pub mod exposition;
mod fetch_sessions;
mod folder_check;
mod follow_image;
pub mod groups;
mod log;
pub mod loggers;
mod long_work;
mod lost_ends;
mod membership;
mod memory;
pub mod metrics;
pub mod net;
mod node;
pub mod partitions;
mod replica;
mod replication;
mod seldom;
mod space;
mod start;
mod system;
mod task;
pub mod telemetry;
mod validation;

pub use error::StartError;
pub use folder_check::{FolderFinding, check_folder};
pub use start::{Broker, Starting, Stopping};
