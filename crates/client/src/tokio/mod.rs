//! The client on tokio: connections that carry any number of concurrent requests, and a cluster of them.

mod cluster;
mod connection;
mod coordinator;

pub use crate::protocol::CoordinatorKind;
pub use cluster::{Cluster, Leader, TopicInfo};
pub use connection::Connection;
