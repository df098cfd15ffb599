//! The batch coordinator of diskless topics: which batches of finished objects are appended, and at which offsets.
//!
//! A broker gathers batches of any partitions into an object, puts it into the object store, and commits it here. Until then a
//! batch has no offset. What a commit decides is written in one transaction together with what it was decided on, so that this is the
//! one authority on the order of every partition, whichever brokers take its batches.
//!
//! - [`decide`](fn@commit): objects and the partitions that they touch in, verdicts and rows out.
//! - [`run`]: the rows, one for the adjacent batches of a partition in an object.
//! - [`admission`]: what a broker may take of a producer before anything of it is committed.
//! - [`rotation`]: when an object is closed and uploaded.
//!
//! What it is not: it knows no tables, no object store, no wire format and no clock.
//!
//! Invariants: offsets are dense and given once; an object is committed once, however often that is asked for; within a producer's
//! epoch no sequence is appended twice and none is skipped.

pub mod admission;
mod decide;
#[cfg(test)]
mod model;
pub mod rotation;
pub mod run;
#[cfg(test)]
mod tests;

pub use decide::{AppendedBatches, Commit, CommittedObject, Coordinator, commit};
pub use run::{PackedBatch, Run};

use crate::sequence::{Producers, SequenceRefusal, Stamp};

/// A partition of a diskless topic, by a number that is given once.
pub type PartitionId = i64;

/// An object in the store, by a number that is given once.
pub type ObjectId = i64;

/// What the coordinator knows of one partition.
#[derive(Clone, Debug)]
pub struct PartitionState {
    /// The first offset that may be read.
    pub log_start: i64,
    /// The offset of the next record.
    pub next_offset: i64,
    /// Bytes of all batches that may be read.
    pub bytes: i64,
    /// The largest timestamp so far, in ms; -1 before the first batch.
    pub max_timestamp: i64,
    /// What was appended of each producer.
    pub producers: Producers,
    /// Whether producers were forgotten for want of room: then one that is not known may have written.
    pub has_forgotten: bool,
    /// Batches retained of each producer, at least what any broker of the cluster grants.
    pub window: usize,
}

impl PartitionState {
    /// A partition that was never written.
    pub fn new(window: usize) -> PartitionState {
        PartitionState {
            log_start: 0,
            next_offset: 0,
            bytes: 0,
            max_timestamp: -1,
            producers: Producers::default(),
            has_forgotten: false,
            window,
        }
    }

    /// What to do with a batch that is next in its object. A producer that is not known here must begin at 0 if all it may have
    /// written is known: nothing was ever written, or its id was handed out so lately that its state cannot have expired
    /// (KAFKA-15591).
    fn check(&self, stamp: &Stamp, fresh_from: i64) -> crate::sequence::Verdict {
        let is_fresh = stamp.producer_id >= fresh_from && !self.has_forgotten;
        self.producers.check(stamp, if is_fresh { 0 } else { self.next_offset })
    }
}

/// One batch in an object, in the order in which its broker has admitted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Whose it is.
    pub partition: PartitionId,
    /// Where it begins in the object, in bytes.
    pub position: u32,
    /// Its length in bytes.
    pub size: u32,
    /// What its producer stamped on it; its `record_count` is the number of offsets that it takes.
    pub stamp: Stamp,
    /// The largest timestamp of its records in ms, or the broker's time where the topic has LogAppendTime.
    pub max_timestamp: i64,
}

/// An object that is in the store, whose batches are to be appended.
#[derive(Clone, Debug)]
pub struct FinishedObject {
    /// Its number, which was registered before it was uploaded.
    pub id: ObjectId,
    /// What has become of it.
    pub state: ObjectState,
    /// Its batches: those of a partition lie side by side, in the order of their admission.
    pub batches: Vec<Batch>,
}

/// What has become of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectState {
    /// It may be committed.
    Registered,
    /// It was committed: an earlier try got through, and its answer did not. With the rows of its batches.
    Live(Vec<Run>),
    /// Nobody uses it, or it was deleted: too late for its batches.
    Gone,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has these offsets.
    Appended {
        /// The offset of its first record.
        base_offset: i64,
    },
    /// It was appended before, from this or from another object.
    Duplicate {
        /// The offset of its first record.
        base_offset: i64,
        /// The timestamp it was appended with, in ms.
        timestamp: i64,
    },
    /// It is not appended.
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
    /// It was refused when its object was committed, for a reason that holds no longer: to be sent again.
    Earlier,
}
