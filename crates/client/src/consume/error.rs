//! Errors that end a run early, or the read of one partition.

use crate::error::ClientError;
use fullbore_wire::Text;
use std::sync::Arc;
use std::time::Duration;

/// Error that ended a run early.
#[derive(Debug, thiserror::Error)]
pub enum ConsumeError {
    /// Error of the cluster or the connection.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Bytes that are not a record batch, or whose checksum does not match.
    #[error(
        "partition {partition} of topic '{topic}' has a broken batch at offset {offset}: {reason}; check the broker's disk"
    )]
    Corrupt {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// First offset that could not be read.
        offset: i64,
        /// The fault.
        reason: String,
    },
    /// Batch whose checksum holds and whose records cannot be read: its producer sent it so.
    #[error(
        "the producer's batch at offset {offset} of partition {partition} of topic '{topic}' cannot be read: {reason}; \
         --skip-bad-batches skips it"
    )]
    BadBatch {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// First offset of the batch.
        offset: i64,
        /// Last offset of the batch.
        last_offset: i64,
        /// The fault.
        reason: String,
    },
    /// The partition does not have this offset, and the settings forbid another start.
    #[error(
        "partition {partition} of topic '{topic}' has no offset {offset}; start at the oldest record with --offset beginning, \
         or at the end with --offset end"
    )]
    OutOfRange {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// Offset before the first one or past the last.
        offset: i64,
    },
    /// The topic was recreated: the offsets belong to another one.
    #[error("topic '{topic}' was deleted and recreated while it was read; start again with the new one")]
    Recreated {
        /// The topic.
        topic: Text,
    },
    /// The topic does not exist any more.
    #[error("topic '{topic}' was deleted while it was read")]
    Deleted {
        /// The topic.
        topic: Text,
    },
    /// The leader has refused a partition for as long as the run waits.
    #[error(transparent)]
    Refusing(Arc<ClientError>),
    /// The sink refused a record.
    #[error("partition {partition} of topic '{topic}', offset {offset}: {reason}")]
    Refused {
        /// The topic.
        topic: Text,
        /// The partition.
        partition: i32,
        /// The record's offset.
        offset: i64,
        /// Reason that the sink gave.
        reason: String,
    },
    /// The timeout passed while a partition could not be read.
    #[error("no record came in {} ms: {source}", waited.as_millis())]
    Unreachable {
        /// Time waited.
        waited: Duration,
        /// Last reason.
        source: Arc<ClientError>,
    },
    /// The system refused a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}
