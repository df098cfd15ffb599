//! Objects to be committed, and the verdicts on their batches.

use fullbore_wire::ErrorCode;

use super::batch::{ObjectBatch, ObjectId};
use super::run::BatchRun;
use crate::sequence::SequenceRefusal;

/// Object in the store whose batches are to be appended.
#[derive(Clone, Debug)]
pub struct FinishedObject {
    /// Id, registered before the upload.
    pub id: ObjectId,
    pub state: ObjectState,
    /// Batches: those of a partition are adjacent, in the order of their admission.
    pub batches: Vec<ObjectBatch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectState {
    /// The object may be committed.
    Registered,
    /// The object is committed already, with these extents: an earlier attempt succeeded, and its response was lost.
    Live(Vec<BatchRun>),
    /// The object is an orphan, or deleted: its batches can no longer be committed.
    Gone,
}

/// Verdict on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitVerdict {
    /// The batch is appended.
    Appended {
        /// Offset of the batch's first record.
        base_offset: i64,
    },
    /// The batch was appended before, from this object or another one.
    Duplicate {
        /// Offset of the batch's first record.
        base_offset: i64,
        /// Timestamp at which the batch was appended, in ms.
        timestamp: i64,
    },
    /// The batch is not appended.
    Refused(Refusal),
}

/// Reason for which a batch is not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The sequence of the batch is refused.
    Sequence(SequenceRefusal),
    /// The topic is deleted.
    PartitionGone,
    /// The object came too late, and is deleted: the client resends the batch.
    ObjectGone,
    /// An earlier batch of its producer is refused in the same commit: the client resends both in order.
    Behind,
    /// The batch would open a transaction, but the coordinator's confirmation is missing, or older than a marker of the
    /// same epoch. The client resends the batch, and its broker lets the coordinator verify it first.
    Unverified,
    /// The batch was refused when its object was committed, for a reason that no longer holds: the client resends it.
    Earlier,
}

impl Refusal {
    /// Returns Kafka's error code.
    pub fn code(self) -> ErrorCode {
        match self {
            Refusal::Sequence(why) => why.code(),
            Refusal::PartitionGone => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            Refusal::ObjectGone | Refusal::Behind | Refusal::Unverified | Refusal::Earlier => {
                ErrorCode::KAFKA_STORAGE_ERROR
            }
        }
    }
}
