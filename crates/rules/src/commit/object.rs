//! Uploaded objects that are to be committed, and the verdicts on their batches.

use fullbore_wire::ErrorCode;

use super::batch::{ObjectBatch, ObjectId};
use super::run::BatchRun;
use crate::sequence::SequenceRefusal;

/// An uploaded object whose batches are to be appended.
#[derive(Clone, Debug)]
pub struct FinishedObject {
    /// The id, which was registered before the upload.
    pub id: ObjectId,
    pub state: ObjectState,
    /// The batches. Those of the same partition are adjacent, in the order of their admission.
    pub batches: Vec<ObjectBatch>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectState {
    /// The object may be committed.
    Registered,
    /// The object is already committed with these extents. An earlier attempt succeeded, but its response was lost.
    Live(Vec<BatchRun>),
    /// The object is an orphan or was deleted, so its batches can no longer be committed.
    Gone,
}

/// The decision about a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitVerdict {
    /// The batch is appended.
    Appended {
        /// The offset of the batch's first record.
        base_offset: i64,
    },
    /// The batch was already appended, from this object or another one.
    Duplicate {
        /// The offset of the batch's first record; -1 for a marker whose extent is deleted.
        base_offset: i64,
        /// When the batch was appended, in ms; -1 for a marker whose extent is deleted.
        timestamp: i64,
    },
    /// The batch is not appended.
    Refused(Refusal),
}

/// The reason why a batch is not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The batch is refused because of its producer's sequence, epoch or transaction.
    Sequence(SequenceRefusal),
    /// The topic was deleted.
    PartitionGone,
    /// The commit was too late: the object is an orphan or was deleted. The client resends the batch.
    ObjectGone,
    /// An earlier batch of the same producer is refused in this commit. The client resends both batches in order.
    Behind,
    /// The batch would open a transaction, but the coordinator's confirmation is missing, or is older than a marker of
    /// the same epoch. The client resends the batch, and the broker then requests a confirmation first.
    Unverified,
    /// An earlier attempt has committed the object and refused the batch, for a reason that no longer holds. The client
    /// resends the batch.
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
