//! A batch on its way into a diskless topic, and the numbers of what it belongs to.

use crate::sequence::Stamp;

/// A partition of a diskless topic, by a number that is given once.
pub type DisklessPartitionId = i64;

/// An object in the store, by a number that is given once.
pub type ObjectId = i64;

/// Batch in an object, in the order in which its broker has admitted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectBatch {
    /// Its partition.
    pub partition: DisklessPartitionId,
    /// Begin in the object, in bytes.
    pub position: u32,
    /// Its length in bytes.
    pub size: u32,
    /// Stamp of its producer; its `record_count` is the number of offsets that it takes.
    pub stamp: Stamp,
    /// The largest timestamp of its records in ms, or the broker's time where the topic has LogAppendTime.
    pub max_timestamp: i64,
}
