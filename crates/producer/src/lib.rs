//! An idempotent Kafka producer.

pub mod config;
pub mod connection;
pub mod error;
pub mod metadata;
pub mod partitioner;

pub use config::{Acks, ClientConfig, ProducerConfig};
pub use connection::{Connection, ConnectionError};
pub use error::{ConfigError, MetadataError, ProduceError, SendError};
pub use metadata::Cluster;
