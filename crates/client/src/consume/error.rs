//! The errors that end a run early, or that end the read of one partition.

use crate::error::ClientError;
use fullbore_wire::Text;
use std::sync::Arc;
use std::time::Duration;

/// The error that ended a run early.
#[derive(Debug, thiserror::Error)]
pub enum ConsumeError {
    /// The cluster or the connection failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Some bytes are not a record batch, or the checksum of a batch does not match.
    #[error(
        "partition {partition} of topic '{topic}' has a broken batch at offset {offset}: {reason}; check the broker's disk"
    )]
    Corrupt {
        /// The name of the topic.
        topic: Text,
        /// The number of the partition.
        partition: i32,
        /// The first offset that could not be read.
        offset: i64,
        /// The fault of the batch.
        reason: String,
    },
    /// The records of a batch cannot be read although its checksum matches, so the batch was already broken when the
    /// producer sent it.
    #[error(
        "the producer's batch at offset {offset} of partition {partition} of topic '{topic}' cannot be read: {reason}; \
         --skip-bad-batches skips it"
    )]
    BadBatch {
        /// The name of the topic.
        topic: Text,
        /// The number of the partition.
        partition: i32,
        /// The first offset of the batch.
        offset: i64,
        /// The last offset of the batch.
        last_offset: i64,
        /// The fault of the batch.
        reason: String,
    },
    /// The log does not have this offset, and auto.offset.reset does not allow a reset to another offset.
    #[error(
        "partition {partition} of topic '{topic}' has no offset {offset}; start at the oldest record with --offset beginning, \
         or at the end with --offset end"
    )]
    OutOfRange {
        /// The name of the topic.
        topic: Text,
        /// The number of the partition.
        partition: i32,
        /// The offset, which is before the first record or past the last one.
        offset: i64,
    },
    /// The log was truncated before the reader's position, and the settings forbid another start.
    #[error(
        "partition {partition} of topic '{topic}' lost offsets {first} to {last} after they were read; start again at \
         offset {first} to read the records that replace them"
    )]
    Truncated {
        /// The name of the topic.
        topic: Text,
        /// The number of the partition.
        partition: i32,
        /// The first offset whose record is lost.
        first: i64,
        /// The last offset that was read.
        last: i64,
    },
    /// The topic was recreated, so the offsets belong to the former topic.
    #[error("topic '{topic}' was deleted and recreated while it was read; start again to read the new topic")]
    Recreated {
        /// The name of the topic.
        topic: Text,
    },
    /// The topic does not exist any more.
    #[error("topic '{topic}' was deleted while it was read")]
    Deleted {
        /// The name of the topic.
        topic: Text,
    },
    /// A partition had no leader, or its leader refused requests, until the run gave the partition up.
    #[error(transparent)]
    Refusing(Arc<ClientError>),
    /// The sink refused a record.
    #[error("partition {partition} of topic '{topic}', offset {offset}: {reason}")]
    Refused {
        /// The name of the topic.
        topic: Text,
        /// The number of the partition.
        partition: i32,
        /// The offset of the record.
        offset: i64,
        /// The reason for the refusal, as a sentence that the sink has returned.
        reason: String,
    },
    /// The timeout passed while a partition could not be read.
    #[error("no record came in {} ms: {source}", waited.as_millis())]
    Unreachable {
        /// How long the run waited.
        waited: Duration,
        /// The last reason why the partition could not be read.
        source: Arc<ClientError>,
    },
    /// The system refused to start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}
