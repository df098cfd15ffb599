//! A client of a Kafka cluster: connections, administration, consumers and groups. It works with any Kafka and does not
//! depend on Fullbore's broker.
//!
//! * [`config`], [`security`]: settings by Kafka's names.
//! * [`protocol`]: the protocol of a connection, without its socket.
//! * [`mod@tokio`]: connections that carry any number of concurrent requests, and a cluster of them.
//! * [`blocking`]: connections that block their thread, for one request after another or for pipelined fetches.
//! * [`admin`]: requests that describe and change topics, configurations and groups.
//! * [`consume`]: reads whole topics.
//! * [`group`]: a member of a consumer group.
//! * [`consumer_config`]: settings of readers and members by Kafka's names.
//! * [`error`]: errors with their remedies.

pub mod admin;
pub mod blocking;
pub mod config;
pub mod consume;
pub mod consumer_config;
pub mod error;
pub mod group;
pub mod key;
pub mod protocol;
pub mod security;
pub mod tokio;
mod unanswering;

pub use config::ClientConfig;
pub use consumer_config::ConsumerConfig;
pub use error::{ClientError, ConfigError, ConnectionError, MetadataError};
pub use security::Security;
