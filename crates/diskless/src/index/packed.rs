//! The binary format of batches in one column of a row. Numbers have a fixed width and are big endian.
//!
//! Invariants: rows of older releases stay readable. Unpacking returns the batches that were packed, with one
//! exception: the format has no `is_commit`, so every marker is unpacked as an abort.

use std::time::Duration;

use fullbore_rules::commit::{AppendedBatch, BatchKind, PackedBatch};
use fullbore_rules::sequence::{NO_PRODUCER_ID, Stamp};

use super::damaged;
use fullbore_db::StoreError;

/// The offset of a [`forgotten_row`], which records that a partition has forgotten some producers. The row has
/// [`NO_PRODUCER_ID`] as its producer.
///
/// Rows at lower offsets than this were copied from the predecessor, the deleted partition of the same name. Their
/// producers have not written to the partition itself.
pub const FORGOTTEN_AT: i64 = -1;

/// Time limit for copying producer rows when a topic is deleted. The deleted partition gets copies of the rows of
/// producers that wrote only to its predecessors, the earlier partitions of its name. Producers whose rows are not
/// copied in time count as forgotten.
pub const CARRIED_FOR: Duration = Duration::from_secs(2);

/// Packed size of a batch in an extent: size, record count, largest timestamp.
const RUN_BATCH: usize = 4 + 4 + 8;
/// Packed size of a batch of a producer: epoch, first sequence, record count, first offset, timestamp.
///
/// In a batch of a transaction, the highest bit of the record count is set. A marker has the coordinator's epoch in
/// place of the record count. Its first sequence is negative: the bitwise complement of the producer's next sequence.
/// The highest bit of its producer epoch is set if the marker left the epoch unchanged.
const PRODUCER_BATCH: usize = 2 + 4 + 4 + 8 + 8;

/// Packs the batches of an extent.
pub fn pack_run(batches: &[PackedBatch]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(batches.len() * RUN_BATCH);
    for batch in batches {
        packed.extend(batch.size.to_be_bytes());
        packed.extend(batch.record_count.to_be_bytes());
        packed.extend(batch.max_timestamp.to_be_bytes());
    }
    packed
}

/// Returns the packed row of a deleted partition that has forgotten some of its producers. All producer ids below
/// `bound` count as forgotten. These producers may have written to that partition or to an earlier one of the same
/// name.
///
/// The row has one batch without records. The timestamp of this batch is `bound`, or negative if no bound is known.
pub fn forgotten_row(bound: i64) -> Vec<u8> {
    let nobody = Stamp { producer_id: NO_PRODUCER_ID, producer_epoch: -1, base_sequence: -1, record_count: 0 };
    pack_producer(&[AppendedBatch::plain(nobody, FORGOTTEN_AT, bound)])
}

/// Returns the bound of a [`forgotten_row`], or `i64::MAX` if no bound is known.
pub fn forgotten_below(batches: &[AppendedBatch]) -> i64 {
    batches.first().map_or(i64::MAX, |row| if row.timestamp < 0 { i64::MAX } else { row.timestamp })
}

/// Returns the largest producer id that a [`forgotten_row`] may stand for, or -1 if the row has no bound.
pub fn last_of_forgotten_row(packed: &[u8]) -> i64 {
    let bound = unpack_producer(NO_PRODUCER_ID, packed).map_or(i64::MAX, |batches| forgotten_below(&batches));
    if bound == i64::MAX { -1 } else { bound - 1 }
}

/// Unpacks the batches of an extent. An empty column is an error.
pub fn unpack_run(packed: &[u8]) -> Result<Vec<PackedBatch>, StoreError> {
    each(RUN_BATCH, packed, |batch| {
        let (size, batch) = split(batch);
        let (record_count, batch) = split(batch);
        let (max_timestamp, _) = split(batch);
        PackedBatch {
            size: u32::from_be_bytes(size),
            record_count: i32::from_be_bytes(record_count),
            max_timestamp: i64::from_be_bytes(max_timestamp),
        }
    })
}

/// Sign bit of a 16-bit number.
const SIGN: u16 = 1 << 15;

/// Packs the batches of one producer.
pub fn pack_producer(batches: &[AppendedBatch]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(batches.len() * PRODUCER_BATCH);
    for AppendedBatch { stamp, base_offset, timestamp, kind } in batches {
        let epoch = stamp.producer_epoch.cast_unsigned();
        let (epoch, sequence, count) = match *kind {
            BatchKind::Plain => (epoch, stamp.base_sequence, stamp.record_count),
            BatchKind::Transactional => (epoch, stamp.base_sequence, stamp.record_count | i32::MIN),
            BatchKind::Marker { coordinator_epoch, has_next_epoch, .. } => {
                (if has_next_epoch { epoch } else { epoch | SIGN }, !stamp.base_sequence.max(0), coordinator_epoch)
            }
        };
        packed.extend(epoch.to_be_bytes());
        packed.extend(sequence.to_be_bytes());
        packed.extend(count.to_be_bytes());
        packed.extend(base_offset.to_be_bytes());
        packed.extend(timestamp.to_be_bytes());
    }
    packed
}

/// Distance from the start of the last batch's offset to the end of the column, in bytes. SQL statements use it.
pub const LAST_BASE_OFFSET: i64 = 16;

/// Distance from the start of the last batch's record count to the end of the column, in bytes. SQL statements use it.
/// The producer's transaction is open if the highest bit of the record count is set and the sequence is not negative.
pub const LAST_COUNT: i64 = 20;
/// Distance from the start of the last batch's sequence to the end of the column, in bytes. SQL statements use it.
pub const LAST_SEQUENCE: i64 = 24;

/// Reads an offset from the bytes at [`LAST_BASE_OFFSET`].
pub fn unpack_offset(bytes: &[u8]) -> Result<i64, StoreError> {
    bytes.try_into().map(i64::from_be_bytes).map_err(|_| damaged("an offset does not have eight bytes"))
}

/// Unpacks the batches of one producer.
pub fn unpack_producer(producer_id: i64, packed: &[u8]) -> Result<Vec<AppendedBatch>, StoreError> {
    each(PRODUCER_BATCH, packed, |batch| {
        let (epoch, batch) = split(batch);
        let (sequence, batch) = split(batch);
        let (count, batch) = split(batch);
        let (base_offset, batch) = split(batch);
        let (timestamp, _) = split(batch);
        let (epoch, sequence) = (u16::from_be_bytes(epoch), i32::from_be_bytes(sequence));
        let (stamp, kind) = unpack_stamp(producer_id, epoch, sequence, i32::from_be_bytes(count));
        let (base_offset, timestamp) = (i64::from_be_bytes(base_offset), i64::from_be_bytes(timestamp));
        AppendedBatch { stamp, base_offset, timestamp, kind }
    })
}

fn unpack_stamp(producer_id: i64, epoch: u16, sequence: i32, count: i32) -> (Stamp, BatchKind) {
    let stamp = |epoch: u16, base_sequence, record_count| {
        let producer_epoch = epoch.cast_signed();
        Stamp { producer_id, producer_epoch, base_sequence, record_count }
    };
    if producer_id == NO_PRODUCER_ID {
        return (stamp(epoch, sequence, count), BatchKind::Plain);
    }
    if sequence < 0 {
        let has_next_epoch = epoch & SIGN == 0;
        let kind = BatchKind::Marker { coordinator_epoch: count, is_commit: false, has_next_epoch };
        return (stamp(epoch & !SIGN, !sequence, 1), kind);
    }
    let kind = if count < 0 { BatchKind::Transactional } else { BatchKind::Plain };
    (stamp(epoch, sequence, count & i32::MAX), kind)
}

fn each<T>(width: usize, packed: &[u8], unpack: impl Fn(&[u8]) -> T) -> Result<Vec<T>, StoreError> {
    if packed.is_empty() || !packed.len().is_multiple_of(width) {
        return Err(damaged(format!("{} bytes are not a list of batches of {width} bytes each", packed.len())));
    }
    Ok(packed.chunks_exact(width).map(unpack).collect())
}

/// Splits the next number off the front of the bytes. [`each`] has already checked that they are long enough.
fn split<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    let (number, rest) = bytes.split_first_chunk().expect("the widths add up");
    (*number, rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_batch() -> impl Strategy<Value = AppendedBatch> {
        let kind = prop_oneof![
            Just(BatchKind::Plain),
            Just(BatchKind::Transactional),
            (any::<i32>(), any::<bool>()).prop_map(|(coordinator_epoch, has_next_epoch)| BatchKind::Marker {
                coordinator_epoch,
                is_commit: false,
                has_next_epoch
            }),
        ];
        let sequences = (0..=i16::MAX, 0..=i32::MAX, 1..=1 << 30);
        (sequences, 0..=i64::MAX, any::<i64>(), kind).prop_map(|(of, base_offset, timestamp, kind)| {
            let (producer_epoch, base_sequence, count) = of;
            let record_count = if kind.is_marker() { 1 } else { count };
            let stamp = Stamp { producer_id: 7, producer_epoch, base_sequence, record_count };
            AppendedBatch { stamp, base_offset, timestamp, kind }
        })
    }

    proptest! {
        #[test]
        fn batches_of_a_producer_are_read_as_they_were(batches in prop::collection::vec(any_batch(), 1..20)) {
            let packed = pack_producer(&batches);
            prop_assert_eq!(packed.len(), batches.len() * PRODUCER_BATCH);
            prop_assert_eq!(&unpack_producer(7, &packed).expect("read"), &batches);
            let last = batches[batches.len() - 1];
            let from_end = |bytes: i64| packed.len() - usize::try_from(bytes).expect("few");
            prop_assert_eq!(unpack_offset(&packed[from_end(LAST_BASE_OFFSET)..][..8]), Ok(last.base_offset));
            let is_open = packed[from_end(LAST_COUNT)] >= 128 && packed[from_end(LAST_SEQUENCE)] < 128;
            prop_assert_eq!(is_open, last.kind == BatchKind::Transactional);
        }
    }

    /// Older builds without transactions wrote this row.
    #[test]
    fn row_is_of_an_older_build_its_batches_are_plain() {
        let packed = [&[0, 3][..], &[0, 0, 0, 9], &[0, 0, 0, 2], &[0; 7], &[5], &[0; 7], &[8]].concat();
        let stamp = Stamp { producer_id: 7, producer_epoch: 3, base_sequence: 9, record_count: 2 };
        let batch = AppendedBatch::plain(stamp, 5, 8);
        assert_eq!(unpack_producer(7, &packed), Ok(vec![batch]));
        assert_eq!(pack_producer(&[batch]), packed, "and is written so");
        assert_eq!(last_of_forgotten_row(&forgotten_row(100)), 99);
        assert_eq!(last_of_forgotten_row(&forgotten_row(i64::MAX)), -1);
        unpack_producer(7, &packed[1..]).expect_err("torn");
    }
}
