//! An idempotent Kafka producer that fills the pipe.
//!
//! The way of a record: [`Producer::send`] finds the topic, chooses the partition ([`partitioner`]) and copies the record
//! into the partition's open batch (`accumulator`, in a buffer of the `pool`). The broker's `sender` takes the batch when
//! it is worth sending and the partition's `window` lets it, seals it (`batch`), and writes it to the [`connection`]. The
//! answer resolves every [`Delivery`] of the batch, or sets the batch back into the window to go again.
//!
//! Not here: transactions.

mod accumulator;
mod batch;
pub mod config;
pub mod connection;
mod delivery;
pub mod error;
pub mod metadata;
pub mod partitioner;
mod pipe;
mod pool;
mod producer;
mod security;
mod sender;
mod window;

pub use config::{Acks, ClientConfig, InFlight, ProducerConfig};
pub use connection::{Connection, ConnectionError};
pub use delivery::{Delivery, RecordMetadata};
pub use error::{ConfigError, MetadataError, ProduceError, SendError};
pub use metadata::Cluster;
pub use producer::{Header, Producer, Record};
pub use security::Security;
pub use sender::{BrokerStatus, LaneStatus};
