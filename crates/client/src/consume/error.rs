//! Errors that end a run early, or end the read of one partition.

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
        /// Name of the topic.
        topic: Text,
        /// Number of the partition.
        partition: i32,
        /// First offset that could not be read.
        offset: i64,
        /// Fault of the batch.
        reason: String,
    },
    /// Batch whose checksum matches, but whose records cannot be read: the producer has sent it like this.
    #[error(
        "the producer's batch at offset {offset} of partition {partition} of topic '{topic}' cannot be read: {reason}; \
         --skip-bad-batches skips it"
    )]
    BadBatch {
        /// Name of the topic.
        topic: Text,
        /// Number of the partition.
        partition: i32,
        /// First offset of the batch.
        offset: i64,
        /// Last offset of the batch.
        last_offset: i64,
        /// Fault of the batch.
        reason: String,
    },
    /// Offset that the partition does not have, under settings that forbid another start.
    #[error(
        "partition {partition} of topic '{topic}' has no offset {offset}; start at the oldest record with --offset beginning, \
         or at the end with --offset end"
    )]
    OutOfRange {
        /// Name of the topic.
        topic: Text,
        /// Number of the partition.
        partition: i32,
        /// Offset before the first record, or past the last one.
        offset: i64,
    },
    /// Topic that was recreated: the offsets belong to the former topic.
    #[error("topic '{topic}' was deleted and recreated while it was read; start again with the new one")]
    Recreated {
        /// Name of the topic.
        topic: Text,
    },
    /// Topic that does not exist any more.
    #[error("topic '{topic}' was deleted while it was read")]
    Deleted {
        /// Name of the topic.
        topic: Text,
    },
    /// Refusal of a partition by its leader, for as long as the run waits.
    #[error(transparent)]
    Refusing(Arc<ClientError>),
    /// Refusal of a record by the sink.
    #[error("partition {partition} of topic '{topic}', offset {offset}: {reason}")]
    Refused {
        /// Name of the topic.
        topic: Text,
        /// Number of the partition.
        partition: i32,
        /// Offset of the record.
        offset: i64,
        /// Reason of the sink, as a sentence.
        reason: String,
    },
    /// Timeout while a partition could not be read.
    #[error("no record came in {} ms: {source}", waited.as_millis())]
    Unreachable {
        /// Time waited.
        waited: Duration,
        /// Last reason why the partition could not be read.
        source: Arc<ClientError>,
    },
    /// Refusal of a thread by the system.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}
