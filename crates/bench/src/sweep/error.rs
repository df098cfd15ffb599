//! The reason why a point has no figures.

use crate::produce::ProduceFailure;
use fullbore_client::ClientError;
use fullbore_producer::ConfigError;
use std::io;
use std::time::Duration;

/// How long to wait for the leaders of a new topic.
pub(super) const TOPIC_READY_MAX: Duration = Duration::from_secs(30);

/// The reason why a point has no figures.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A request to the cluster failed.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The topic's partitions did not get leaders in time.
    #[error("topic '{topic}' has no leaders after {} s; see the broker's log", TOPIC_READY_MAX.as_secs())]
    NotReady {
        /// The name of the topic.
        topic: String,
    },
    /// The producer could not be started.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The value of a setting is not allowed.
    #[error("{0}")]
    Value(String),
    /// The producer refused a record.
    #[error("{0}")]
    Send(#[from] ProduceFailure),
    /// Records were not acknowledged.
    #[error("{records} records failed; the first: {first}")]
    Failed {
        /// The number of records.
        records: u64,
        /// The reason of the first failure.
        first: String,
    },
    /// No record was acknowledged in this time.
    #[error("no record was acknowledged in {} ms", .0.as_millis())]
    Silent(Duration),
    /// A relay cannot be created.
    #[error("cannot create a link in front of the brokers: {0}")]
    Link(io::Error),
}
