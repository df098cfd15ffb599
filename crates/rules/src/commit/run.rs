//! Extent: the adjacent batches of one partition in one object, stored as one row.
//!
//! Invariant: neither the offsets nor the bytes of an extent have a gap.

use super::batch::{DisklessPartitionId, ObjectBatch, ObjectId};

/// Row of the adjacent batches of a partition in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRun {
    /// Partition of the batches.
    pub partition: DisklessPartitionId,
    /// Object with the batches.
    pub object: ObjectId,
    /// Offset of the first record.
    pub base_offset: i64,
    /// Position of the first batch in the object, in bytes.
    pub position: u32,
    /// Largest timestamp of the partition up to the end of this extent, in ms. It never falls from extent to extent, so
    /// that an index can search for the first extent with a timestamp.
    pub max_timestamp_so_far: i64,
    /// The batches, in their order.
    pub batches: Vec<PackedBatch>,
}

/// Batch of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedBatch {
    /// Length of the batch in bytes.
    pub size: u32,
    /// Number of offsets that the batch takes.
    pub record_count: i32,
    /// Largest timestamp of the batch in ms.
    pub max_timestamp: i64,
}

impl BatchRun {
    /// Returns an extent of one batch.
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

    /// Adds the batch that follows this extent in the partition and in the object.
    pub(super) fn push(&mut self, batch: &ObjectBatch, max_timestamp_so_far: i64) {
        self.batches.push(PackedBatch::of(batch));
        self.max_timestamp_so_far = max_timestamp_so_far;
    }

    /// Returns the offset after the last record.
    pub fn end_offset(&self) -> i64 {
        self.base_offset + self.batches.iter().map(|batch| i64::from(batch.record_count)).sum::<i64>()
    }

    /// Returns the bytes of all batches.
    pub fn bytes(&self) -> u32 {
        self.batches.iter().map(|batch| batch.size).sum()
    }

    /// Returns the bytes of the batches from the batch with this offset on.
    pub fn bytes_from(&self, offset: i64) -> u64 {
        let placed = self.placed();
        let is_there =
            |(_, base_offset, batch): &(u32, i64, &PackedBatch)| base_offset + i64::from(batch.record_count) > offset;
        placed.filter(is_there).map(|(.., batch)| u64::from(batch.size)).sum()
    }

    /// Returns the end of the extent in the object, in bytes.
    pub fn end_position(&self) -> u32 {
        self.position + self.bytes()
    }

    /// Returns the offset of the batch that begins at `position` in the object; None if there is none.
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
