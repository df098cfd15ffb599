//! An idempotent Kafka producer that makes full use of the network path.
//!
//! This is how a record travels. [`Producer::send`] finds the topic, chooses the partition ([`partitioner`]) and copies
//! the record into the partition's open batch (`partition`, in a buffer of the `pool`). The broker's `sender` takes the
//! batch when it is ready and the partition's `window` permits it. It seals the batch (`batch`) and writes it to the
//! [connection](fullbore_client::tokio::Connection). The response resolves every [`Delivery`] of the batch, or returns
//! the batch to the window for another attempt.
//!
//! With a `transactional.id` every record belongs to a [`Transaction`], which has an example. The `ledger` keeps the
//! open and ending transactions, and the task of `coordinator` sends requests to the transaction coordinator.
//!
//! Records are sent while the application continues. Each [`Delivery`] returns the position of its record or an error,
//! and every error answers two questions:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use fullbore_producer::{Header, Producer, ProducerRecord};
//!
//! let settings = [("bootstrap.servers", "localhost:9092"), ("compression.type", "zstd"), ("linger.ms", "20")];
//! let producer = Producer::from_properties(settings)?;
//! let headers = [Header { key: b"source", value: Some(b"sensor 7") }];
//! let mut deliveries = Vec::new();
//! for number in 0..1000 {
//!     let value = format!("reading {number}");
//!     deliveries.push(producer.send(ProducerRecord::new("readings", value.as_bytes()).headers(&headers)).await?);
//! }
//! producer.flush().await;
//! for delivery in deliveries {
//!     if let Err(error) = delivery.await {
//!         let (again, maybe) = (error.is_retryable(), error.may_have_been_written());
//!         eprintln!("{error}; sending it again may help: {again}; it may be in the log: {maybe}");
//!     }
//! }
//! # Ok(()) }
//! ```

mod backoff;
mod batch;
mod broker;
mod clock;
pub mod config;
mod coordinator;
mod core;
mod delivery;
pub mod error;
mod grant;
mod ledger;
mod limit;
mod notices;
mod partition;
pub mod partitioner;
mod pipe;
mod pool;
mod producer;
mod prospect;
mod record;
mod scope;
mod sender;
mod transaction;
mod transaction_pass;
mod window;
mod worklist;

pub use broker::{Answered, BrokerStatus, LaneStatus};
pub use config::{Acks, InFlight, ProducerConfig};
pub use delivery::{Delivery, RecordMetadata};
pub use error::{ProduceError, SendError, TransactionError};
pub use fullbore_client::{ClientConfig, ConfigError, Security};
pub use ledger::{GroupMetadata, TransactionOffset};
pub use producer::Producer;
pub use record::{Header, ProducerRecord};
pub use transaction::{Ending, Transaction};
