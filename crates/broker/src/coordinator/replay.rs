//! Replays a partition of an internal topic, from the log start to the high watermark.

use crate::partitions::{ReadError, Replica};
use bytes::Bytes;
use fullbore_log::direct_io::DirectReads;
use fullbore_log::lookup::is_gone;
use fullbore_log::marker_of;
use fullbore_log::validation::DECOMPRESSED_MAX;
use fullbore_rules::sequence::Marker;
use fullbore_wire::batch::{BatchError, BatchView, Compression, RecordIter, batches, decompress};
use fullbore_wire::{DecodeError, Records};
use std::io;

/// Maximum size of one read. A larger batch is read as a whole.
const CHUNK_BYTES: u32 = 1 << 20;
/// Maximum number of times that the records of one chunk are looked up. The lookup is repeated if their segment was
/// removed before they were read, for example by compaction on a full disk.
const LOOKUPS_MAX: usize = 8;

/// The reason why a partition cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The partition did not return its records.
    #[error("{0}")]
    Read(#[from] ReadError),
    /// The file system has reported an error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The bytes are damaged: no broker writes such records.
    #[error("at offset {offset}: {why}")]
    Damaged {
        /// Offset of the first record that cannot be read.
        offset: i64,
        /// The reason why the batch cannot be read.
        why: BatchError,
    },
}

/// An entry in a partition's log.
#[derive(Debug)]
pub enum LogEntry {
    /// A record with a key.
    Record {
        /// The record's key.
        key: Bytes,
        /// The record's value. `None` means that it is a tombstone.
        value: Option<Bytes>,
        /// Id of the producer if the record was written in a transaction.
        transaction: Option<i64>,
    },
    /// The end of a producer's transaction.
    Marker(Marker),
}

/// Calls `each` with every marker and every record that has a key, in the order of the log. Records that `each` cannot
/// decode are skipped. Blocks.
///
/// # Errors
/// Returns [`ReplayError`] if the log cannot be read. By then, `each` was called with the entries before the failure.
pub fn replay(
    partition: &Replica,
    mut each: impl FnMut(LogEntry) -> Result<(), DecodeError>,
) -> Result<(), ReplayError> {
    let mut unread = None;
    give_each(partition, |entry| {
        if let Err(error) = each(entry) {
            unread = Some((unread.as_ref().map_or(1_u64, |(records, _)| records + 1), error));
        }
    })?;
    if let Some((records, error)) = unread {
        let (topic, partition) = (partition.topic(), partition.index());
        tracing::warn!(topic, partition, records, %error, "cannot decode some records of an internal topic: the \
             coordinator continues without them");
    }
    Ok(())
}

fn give_each(partition: &Replica, mut each: impl FnMut(LogEntry)) -> Result<(), ReplayError> {
    let offsets = partition.offsets()?;
    let (mut next, mut lookups) = (offsets.log_start, 0);
    while next < offsets.high_watermark {
        lookups += 1;
        let chunk = match memory(partition.read(next, CHUNK_BYTES, true)?.records, partition.cold()) {
            Err(error) if is_gone(&error) && lookups < LOOKUPS_MAX => continue,
            chunk => chunk.map_err(|error| partition.read_failed_at(next, CHUNK_BYTES, &error))?,
        };
        lookups = 0;
        let begin = next;
        for batch in batches(&chunk) {
            let batch = match batch {
                Ok(batch) => batch,
                // The end of a chunk may cut its last batch, so the next chunk begins with that batch.
                Err(_) if next > begin => break,
                Err(why) => return Err(ReplayError::Damaged { offset: next, why }),
            };
            let damaged = |why| ReplayError::Damaged { offset: batch.base_offset(), why };
            batch.check_crc().map_err(damaged)?;
            match batch.is_control() {
                _ if batch.last_offset() < next => {}
                true => marker_of(&batch).into_iter().for_each(|marker| each(LogEntry::Marker(marker))),
                false => each_record(&chunk, &batch, next, &mut each).map_err(damaged)?,
            }
            next = next.max(batch.last_offset() + 1);
        }
        if next == begin {
            // The read has found no more batches below the high watermark, because compaction has removed the last
            // ones.
            return Ok(());
        }
    }
    Ok(())
}

pub(super) fn memory(records: Records, cold: &DirectReads) -> io::Result<Bytes> {
    match records {
        Records::Memory(bytes) => Ok(bytes),
        Records::Pieces(pieces) => Ok(pieces.concat().into()),
        Records::File(slice) => {
            let mut bytes = vec![0; slice.len as usize];
            cold.read_exact(&slice.file, slice.position, &mut bytes)?;
            Ok(bytes.into())
        }
        Records::Ranges(slices) => {
            let read = |slice| memory(Records::File(slice), cold);
            let ranges: Vec<Bytes> = slices.into_iter().map(read).collect::<io::Result<_>>()?;
            Ok(ranges.concat().into())
        }
    }
}

/// Calls `each` with the records that have a key, beginning at offset `first`. The log may start in the middle of a
/// batch, so records below `first` are skipped.
fn each_record(
    chunk: &Bytes,
    batch: &BatchView<'_>,
    first: i64,
    each: &mut impl FnMut(LogEntry),
) -> Result<(), BatchError> {
    let transaction = batch.is_transactional().then(|| batch.producer_id());
    let payload = match batch.compression()? {
        Compression::None => chunk.slice_ref(batch.payload()),
        codec => decompress(codec, batch.payload(), DECOMPRESSED_MAX)?,
    };
    for record in RecordIter::new(&payload, batch.record_count()) {
        let record = record?;
        if let Some(key) = record.key.filter(|_| record.offset(batch) >= first) {
            let value = record.value.map(|value| payload.slice_ref(value));
            each(LogEntry::Record { key: payload.slice_ref(key), value, transaction });
        }
    }
    Ok(())
}
