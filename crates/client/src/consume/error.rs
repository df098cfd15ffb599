//! Errors that end a run early, or the read of one partition.

use crate::error::ClientError;
use fullbore_wire::Text;
use std::sync::Arc;
use std::time::Duration;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum ConsumeError {
    /// The cluster's or the connection's.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Bytes that are no record batch, or whose checksum does not match.
    #[error(
        "partition {partition} of topic '{topic}' has a broken batch at offset {offset}: {reason}; check the broker's disk"
    )]
    Corrupt {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// The first offset that could not be read.
        offset: i64,
        /// The fault.
        reason: String,
    },
    /// A batch whose checksum holds and whose records cannot be read: its producer has sent it so.
    #[error(
        "the producer's batch at offset {offset} of partition {partition} of topic '{topic}' cannot be read: {reason}; \
         --skip-bad-batches goes on behind it"
    )]
    BadBatch {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// The batch's first offset.
        offset: i64,
        /// The batch's last offset.
        last_offset: i64,
        /// The fault.
        reason: String,
    },
    /// The partition has no such offset, and may not be started again.
    #[error(
        "partition {partition} of topic '{topic}' has no offset {offset}; start with the oldest it has by --offset beginning, \
         with those to come by --offset end"
    )]
    OutOfRange {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// Before its first or past its last.
        offset: i64,
    },
    /// The topic was made again: the offsets are another one's.
    #[error("topic '{topic}' was deleted and made again while it was read; start again with the new one")]
    Recreated {
        /// The topic.
        topic: Text,
    },
    /// There is no such topic any more.
    #[error("topic '{topic}' was deleted while it was read")]
    Deleted {
        /// The topic.
        topic: Text,
    },
    /// The leader has refused a partition for as long as the run waits for it.
    #[error(transparent)]
    Refusing(Arc<ClientError>),
    /// The sink did not accept a record.
    #[error("partition {partition} of topic '{topic}', offset {offset}: {reason}")]
    Refused {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// The record's offset.
        offset: i64,
        /// In the sink's words.
        reason: String,
    },
    /// The timeout passed while some partition could not be read.
    #[error("no record came in {} ms: {source}", waited.as_millis())]
    Unreachable {
        /// How long.
        waited: Duration,
        /// Why, as last seen.
        source: Arc<ClientError>,
    },
    /// The system gave no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}
