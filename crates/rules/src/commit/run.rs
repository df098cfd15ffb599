//! An extent: the adjacent batches of a partition in an object, stored as one row.
//!
//! Invariant: there is no gap in the offsets or in the bytes of an extent.

use super::batch::{DisklessPartitionId, ObjectBatch, ObjectId};

/// A row for adjacent batches of a partition in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRun {
    /// The partition of the batches.
    pub partition: DisklessPartitionId,
    /// The object that contains the batches.
    pub object: ObjectId,
    /// The offset of the first record.
    pub base_offset: i64,
    /// The position of the first batch in the object, in bytes.
    pub position: u32,
    /// The largest timestamp in the partition up to the end of this extent, in ms. It never falls from one extent to
    /// the next, so the database can use an index to find the first extent that reaches a timestamp.
    pub max_timestamp_so_far: i64,
    /// The batches, in the order of their offsets.
    pub batches: Vec<PackedBatch>,
}

/// A batch in an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedBatch {
    /// Length of the batch in bytes.
    pub size: u32,
    /// Number of offsets that the batch takes.
    pub record_count: i32,
    /// The largest timestamp in the batch, in ms.
    pub max_timestamp: i64,
}

impl BatchRun {
    /// Creates an extent with a single batch.
    pub(super) fn of(batch: &ObjectBatch, object: ObjectId, base_offset: i64, max_timestamp_so_far: i64) -> BatchRun {
        BatchRun {
            partition: batch.partition,
            object,
            base_offset,
            position: batch.position,
            max_timestamp_so_far,
            batches: vec![PackedBatch::of(batch)],
        }
    }

    /// Adds the partition's next batch, which must begin in the object where the extent ends.
    pub(super) fn push(&mut self, batch: &ObjectBatch, max_timestamp_so_far: i64) {
        self.batches.push(PackedBatch::of(batch));
        self.max_timestamp_so_far = max_timestamp_so_far;
    }

    /// Returns the offset after the last record.
    pub fn end_offset(&self) -> i64 {
        self.base_offset + self.batches.iter().map(|batch| i64::from(batch.record_count)).sum::<i64>()
    }

    /// Returns the size of all batches in bytes.
    pub fn bytes(&self) -> u32 {
        self.batches.iter().map(|batch| batch.size).sum()
    }

    /// Returns the total size in bytes of the batch that contains `offset` and of all batches after it.
    pub fn bytes_from(&self, offset: i64) -> u64 {
        let placed = self.placed();
        let is_there =
            |(_, base_offset, batch): &(u32, i64, &PackedBatch)| base_offset + i64::from(batch.record_count) > offset;
        placed.filter(is_there).map(|(.., batch)| u64::from(batch.size)).sum()
    }

    /// Returns the position in the object at which the extent ends, in bytes.
    pub fn end_position(&self) -> u32 {
        self.position + self.bytes()
    }

    /// Returns the first offset of the batch that begins at `position` in the object, if there is one.
    pub fn offset_at(&self, position: u32) -> Option<i64> {
        self.placed().find(|(at, ..)| *at == position).map(|(_, offset, _)| offset)
    }

    /// Returns each batch with its position in the object and its first offset.
    pub fn placed(&self) -> impl Iterator<Item = (u32, i64, &PackedBatch)> {
        let begin = (self.position, self.base_offset);
        self.batches.iter().scan(begin, |(position, offset), batch| {
            let placed = (*position, *offset, batch);
            *position += batch.size;
            *offset += i64::from(batch.record_count);
            Some(placed)
        })
    }
}

impl PackedBatch {
    fn of(batch: &ObjectBatch) -> PackedBatch {
        PackedBatch { size: batch.size, record_count: batch.stamp.record_count, max_timestamp: batch.max_timestamp }
    }
}
