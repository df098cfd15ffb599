//! Errors of an append and of a read; each names its Kafka error code.
//!
//! Not responses on the wire.

use fullbore_rules::sequence::SequenceRefusal;
use fullbore_wire::ErrorCode;

use crate::validation::InvalidBatch;

/// Why a batch was not appended. The log is as it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The producer's sequence does not allow it.
    #[error("{0}")]
    Sequence(SequenceRefusal),
    /// A batch that may not be appended.
    #[error("{0}")]
    Invalid(#[from] InvalidBatch),
    /// The disk is broken, or the object store or the index of a diskless topic is; the broker's own log says more.
    #[error("the records cannot be stored; the broker's log says why")]
    Storage,
    /// A batch before it was not stored, or was stored over another broker, so that the client sends this one again. Of
    /// diskless topics.
    #[error("the batch was not stored, since what came before it was not, or came another way; send it again")]
    Again,
    /// The disk has no room for it.
    #[error("the disk is full")]
    Full,
    /// The partition is deleted, or the broker is stopping.
    #[error("the partition is gone")]
    Gone,
    /// The partition's role on this broker does not allow it, or it is not on enough replicas.
    #[error("{}", .0.message())]
    Role(ErrorCode),
    /// The producer is not known here any more, and does not begin at 0. Java's producer begins a new epoch if the
    /// answer has the log start offset, and sends the batch again for ever otherwise.
    #[error("{}", ErrorCode::UNKNOWN_PRODUCER_ID.message())]
    UnknownProducer {
        /// The partition's.
        log_start_offset: i64,
    },
    /// The batch would open a transaction that is not verified.
    #[error("the partition is not known to be in the producer's transaction")]
    Unverified,
    /// The topic was deleted while the batch was parked.
    #[error("the topic is deleted")]
    Deleted,
}

impl AppendError {
    /// Kafka's code.
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

/// Why nothing could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Before the log start or after the log end; `LogOffsets` says which.
    #[error("the offset is not in the partition")]
    OffsetOutOfRange,
    /// The disk, or the object store, does not give the records back.
    #[error("the records cannot be read; the broker's log says why")]
    Storage,
    /// The object store does not have the records of a diskless topic any more.
    #[error("the object store does not have the records any more")]
    Lost {
        /// The first offset of those records.
        from: i64,
        /// The offset after the last one.
        next: i64,
    },
    /// The partition is deleted, or the broker is stopping.
    #[error("the partition is gone")]
    Gone,
    /// This broker does not lead the partition, or not in the epoch that is asked for.
    #[error("{}", .0.message())]
    Role(ErrorCode),
}

impl ReadError {
    /// Kafka's code.
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
    /// Returns what it says of a read from this offset: records that are lost are so for who reads them.
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
