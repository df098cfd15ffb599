//! An object that is to be committed, and what becomes of its batches.

use fullbore_wire::ErrorCode;

use super::batch::{ObjectBatch, ObjectId};
use super::run::BatchRun;
use crate::sequence::SequenceRefusal;

/// An object that is in the store, whose batches are to be appended.
#[derive(Clone, Debug)]
pub struct FinishedObject {
    /// Its number, which was registered before it was uploaded.
    pub id: ObjectId,
    /// Its state.
    pub state: ObjectState,
    /// Its batches: those of a partition lie side by side, in the order of their admission.
    pub batches: Vec<ObjectBatch>,
}

/// State of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectState {
    /// The object may be committed.
    Registered,
    /// The object is committed: an earlier try succeeded, and its answer was lost. With the rows of its batches.
    Live(Vec<BatchRun>),
    /// Nobody uses it, or it was deleted: too late for its batches.
    Gone,
}

/// Verdict on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitVerdict {
    /// Appended at these offsets.
    Appended {
        /// The offset of its first record.
        base_offset: i64,
    },
    /// Appended before, from this or from another object.
    Duplicate {
        /// The offset of its first record.
        base_offset: i64,
        /// The timestamp it was appended with, in ms.
        timestamp: i64,
    },
    /// Not appended.
    Refused(Refusal),
}

/// Why a batch is not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its sequence.
    Sequence(SequenceRefusal),
    /// Its topic is deleted.
    PartitionGone,
    /// Its object came too late, and is deleted: to be sent again.
    ObjectGone,
    /// A batch before it of its producer is refused in the same commit: the client sends it again behind that one.
    Behind,
    /// The batch would open a transaction, and the coordinator's confirmation is missing or was given before a marker
    /// of the same epoch: the client sends the batch again, and its broker has the coordinator verify it first.
    Unverified,
    /// Refused when its object was committed, for a reason that holds no longer: the client sends it again.
    Earlier,
}

impl Refusal {
    /// Kafka's code.
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
