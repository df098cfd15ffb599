//! The errors of appends and reads, and their Kafka error codes.
//!
//! Responses are built elsewhere.

use fullbore_rules::sequence::SequenceRefusal;
use fullbore_wire::ErrorCode;

use crate::validation::InvalidBatch;

/// The reason why a batch was not appended, or cannot be acknowledged although it was appended. In the second case, a
/// flush or the replication has failed, and the batch stays in the leader's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The producer's sequence numbers, epoch or transaction do not allow the batch.
    #[error("{0}")]
    Sequence(SequenceRefusal),
    /// The batch is not valid.
    #[error("{0}")]
    Invalid(#[from] InvalidBatch),
    /// The disk has failed. In a diskless topic, the object store or the index has failed. The broker's log shows the
    /// cause.
    #[error("cannot store the records; the broker's log has the cause")]
    Storage,
    /// An earlier batch of the producer was not stored, or was sent to another broker. The client must send this batch
    /// again. This error only occurs in diskless topics.
    #[error(
        "cannot store the batch: an earlier batch of the producer was not stored, or was sent to another broker; send \
         the batch again"
    )]
    Again,
    /// The disk is full.
    #[error("the disk is full")]
    Full,
    /// The partition has been deleted, or the broker is stopping.
    #[error("the partition was deleted, or the broker is stopping")]
    Gone,
    /// The broker may not append because of its role, for example as a follower, or too few replicas have the batch.
    #[error("{}", .0.message())]
    Role(ErrorCode),
    /// The partition has no state of the producer, and the batch does not begin at sequence 0. The log start offset in
    /// the response makes Java's producer begin a new epoch. Without this offset, it would retry the batch forever.
    #[error("{}", ErrorCode::UNKNOWN_PRODUCER_ID.message())]
    UnknownProducer {
        /// The partition's log start offset.
        log_start_offset: i64,
    },
    /// The batch would open a transaction that has not been verified.
    #[error("the coordinator has not confirmed that the partition is in the producer's transaction")]
    Unverified,
    /// The topic was deleted while the batch waited in the reorder buffer.
    #[error("the topic was deleted while the batch waited")]
    Deleted,
}

impl AppendError {
    /// Returns Kafka's error code.
    pub fn code(&self) -> ErrorCode {
        match self {
            AppendError::Sequence(why) => why.code(),
            AppendError::Invalid(why) => why.code(),
            AppendError::Storage | AppendError::Again | AppendError::Full => ErrorCode::KAFKA_STORAGE_ERROR,
            AppendError::Gone => ErrorCode::NOT_LEADER_OR_FOLLOWER,
            AppendError::Role(code) => *code,
            AppendError::UnknownProducer { .. } => ErrorCode::UNKNOWN_PRODUCER_ID,
            AppendError::Unverified => ErrorCode::INVALID_TXN_STATE,
            AppendError::Deleted => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        }
    }
}

/// The reason why nothing could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The offset is before the log start or after the log end. Both are in `LogOffsets`.
    #[error("the offset is not in the partition")]
    OffsetOutOfRange,
    /// The disk or the object store did not return the records.
    #[error("cannot read the records; the broker's log has the cause")]
    Storage,
    /// The object store no longer has the records of a diskless topic.
    #[error("the object store does not have the records any more")]
    Lost {
        /// The first offset of the lost records.
        from: i64,
        /// The offset after the last lost record.
        next: i64,
    },
    /// The partition has been deleted, or the broker is stopping.
    #[error("the partition was deleted, or the broker is stopping")]
    Gone,
    /// This broker does not lead the partition, or not in the requested epoch.
    #[error("{}", .0.message())]
    Role(ErrorCode),
}

impl ReadError {
    /// Returns Kafka's error code.
    pub fn code(&self) -> ErrorCode {
        match self {
            ReadError::OffsetOutOfRange => ErrorCode::OFFSET_OUT_OF_RANGE,
            ReadError::Storage | ReadError::Lost { .. } => ErrorCode::KAFKA_STORAGE_ERROR,
            ReadError::Gone => ErrorCode::NOT_LEADER_OR_FOLLOWER,
            ReadError::Role(code) => *code,
        }
    }
}

impl ReadError {
    /// Returns the error for a read at `offset`. If that offset is not among the lost ones, [`ReadError::Lost`] becomes
    /// [`ReadError::Storage`].
    #[must_use]
    pub fn at(self, offset: i64) -> ReadError {
        match self {
            ReadError::Lost { from, next } if !(from..next).contains(&offset) => ReadError::Storage,
            why => why,
        }
    }
}

impl From<AppendError> for ReadError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::Role(ErrorCode::NOT_LEADER_OR_FOLLOWER) | AppendError::Gone | AppendError::Deleted => {
                ReadError::Gone
            }
            _ => ReadError::Storage,
        }
    }
}
