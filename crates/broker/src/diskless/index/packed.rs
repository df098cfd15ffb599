//! Batches as they lie packed in one column: fixed widths, big endian.

use std::time::Duration;

use fullbore_rules::commit::PackedBatch;
use fullbore_rules::sequence::{NO_PRODUCER_ID, Stamp};

use super::damaged;
use fullbore_db::StoreError;

/// Offset, before all others, of the row of [`forgotten_row`]. Its producer is [`NO_PRODUCER_ID`].
///
/// Before it are the rows that are carried over from the deleted partition before, of producers that have written nothing to this one.
pub const FORGOTTEN_AT: i64 = -1;

/// Time in which a deletion carries over the stops of producers that have written nothing to what is deleted. What is left out then counts as forgotten.
pub const CARRIED_FOR: Duration = Duration::from_secs(2);

/// Bytes of a batch of a run: size, offsets, largest timestamp.
const RUN_BATCH: usize = 4 + 4 + 8;
/// Bytes of a batch of a producer: epoch, first sequence, offsets, first offset, timestamp.
const PRODUCER_BATCH: usize = 2 + 4 + 4 + 8 + 8;

/// The batches of a run.
pub fn pack_run(batches: &[PackedBatch]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(batches.len() * RUN_BATCH);
    for batch in batches {
        packed.extend(batch.size.to_be_bytes());
        packed.extend(batch.record_count.to_be_bytes());
        packed.extend(batch.max_timestamp.to_be_bytes());
    }
    packed
}

/// The batches of the row that a deleted partition leaves where it has forgotten producers: they may have written to it, or before it to its name, and have
/// ids below `bound`. The only batch has no records, and the bound in place of a timestamp; a negative one bounds nothing.
pub fn forgotten_row(bound: i64) -> Vec<u8> {
    let nobody = Stamp { producer_id: NO_PRODUCER_ID, producer_epoch: -1, base_sequence: -1, record_count: 0 };
    pack_producer(&[(nobody, FORGOTTEN_AT, bound)])
}

/// Returns the bound of a [`forgotten_row`].
pub fn forgotten_below(batches: &[(Stamp, i64, i64)]) -> i64 {
    batches.first().map_or(i64::MAX, |(_, _, bound)| if *bound < 0 { i64::MAX } else { *bound })
}

/// Returns the largest id of the producers of a [`forgotten_row`], if there is a bound; else -1.
pub fn last_of_forgotten_row(packed: &[u8]) -> i64 {
    let bound = unpack_producer(NO_PRODUCER_ID, packed).map_or(i64::MAX, |batches| forgotten_below(&batches));
    if bound == i64::MAX { -1 } else { bound - 1 }
}

/// The batches of a run, of which there is at least one.
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

/// Stamp, first offset and timestamp of each.
pub fn pack_producer(batches: &[(Stamp, i64, i64)]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(batches.len() * PRODUCER_BATCH);
    for (stamp, base_offset, timestamp) in batches {
        packed.extend(stamp.producer_epoch.to_be_bytes());
        packed.extend(stamp.base_sequence.to_be_bytes());
        packed.extend(stamp.record_count.to_be_bytes());
        packed.extend(base_offset.to_be_bytes());
        packed.extend(timestamp.to_be_bytes());
    }
    packed
}

/// In SQL, where the offset of the last batch lies in a column of packed batches: bytes from the end to before the timestamp.
pub const LAST_BASE_OFFSET: i64 = 16;

/// That offset, of its bytes.
pub fn unpack_offset(bytes: &[u8]) -> Result<i64, StoreError> {
    bytes.try_into().map(i64::from_be_bytes).map_err(|_| damaged("an offset that is none"))
}

/// Unpacks the batches of one producer.
pub fn unpack_producer(producer_id: i64, packed: &[u8]) -> Result<Vec<(Stamp, i64, i64)>, StoreError> {
    each(PRODUCER_BATCH, packed, |batch| {
        let (producer_epoch, batch) = split(batch);
        let (base_sequence, batch) = split(batch);
        let (record_count, batch) = split(batch);
        let (base_offset, batch) = split(batch);
        let (timestamp, _) = split(batch);
        let stamp = Stamp {
            producer_id,
            producer_epoch: i16::from_be_bytes(producer_epoch),
            base_sequence: i32::from_be_bytes(base_sequence),
            record_count: i32::from_be_bytes(record_count),
        };
        (stamp, i64::from_be_bytes(base_offset), i64::from_be_bytes(timestamp))
    })
}

fn each<T>(width: usize, packed: &[u8], unpack: impl Fn(&[u8]) -> T) -> Result<Vec<T>, StoreError> {
    if packed.is_empty() || !packed.len().is_multiple_of(width) {
        return Err(damaged(format!("{} bytes are no batches of {width} each", packed.len())));
    }
    Ok(packed.chunks_exact(width).map(unpack).collect())
}

/// The next number's bytes, of those that [`each`] has found to be there.
fn split<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    let (number, rest) = bytes.split_first_chunk().expect("the widths add up");
    (*number, rest)
}
