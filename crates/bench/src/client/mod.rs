//! A blocking client for the tools: one request after another to a named broker, and pipelined fetches.
//!
//! Not the producer's connection, which is asynchronous and never blocks a thread: a fetcher wants a thread of its own
//! and one buffer that it reads into again and again.

mod admin;
mod cluster;
mod configs;
mod connection;
mod error;
mod groups;
mod kept;
mod log_dirs;
mod socket;

pub use admin::{
    Layout, PARTITIONS_PER_ANSWER, TopicDescription, TopicPartition, create_partitions, create_topic, create_topic_as,
    delete_topics, describe_topics, list_topics, topic_name,
};
pub use cluster::{Broker, Cluster, EARLIEST, LATEST, PartitionPlace};
pub use configs::{
    Change, ConfigEntry, ConfigOf, ConfigSource, ResourceKind, Synonym, alter_configs, config_resources,
    describe_configs,
};
pub use connection::{Connection, Stopper};
pub use error::ClientError;
pub(crate) use groups::coordinator_of;
pub use groups::{Committed, GroupDescription, GroupListing, GroupMember, GroupProtocol, Groups};
pub(crate) use kept::Kept;
pub use log_dirs::{SetAside, set_aside};
