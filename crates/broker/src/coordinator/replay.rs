//! Replay of an internal topic's partition, from its log start to its high watermark.

use crate::partitions::{ReadError, Replica};
use bytes::Bytes;
use fullbore_log::direct_io::DirectReads;
use fullbore_log::lookup::is_gone;
use fullbore_log::marker_of;
use fullbore_log::validation::OPENED_MAX;
use fullbore_rules::sequence::Marker;
use fullbore_wire::batch::{BatchError, BatchView, Compression, RecordIter, batches, decompress};
use fullbore_wire::{DecodeError, Records};
use std::io;

/// Most bytes of one read; a larger batch is read whole.
const CHUNK_BYTES: u32 = 1 << 20;
/// Most attempts to read a chunk whose segment is removed between its lookup and its read, as by compaction.
const LOOKUPS_MAX: usize = 8;

/// Reason why a partition cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Failure to get the records of the partition.
    #[error("{0}")]
    Read(#[from] ReadError),
    /// Failure of the file system.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Records that no broker can have written.
    #[error("at offset {offset}: {why}")]
    Damaged {
        /// Offset of the first record that cannot be read.
        offset: i64,
        /// The damage.
        why: BatchError,
    },
}

/// Entry of a partition's log.
#[derive(Debug)]
pub enum LogEntry {
    /// A record with a key.
    Record {
        /// Key of the record.
        key: Bytes,
        /// Value of the record; `None` for a tombstone.
        value: Option<Bytes>,
        /// Producer in whose transaction the record was written; `None` outside transactions.
        transaction: Option<i64>,
    },
    /// End of a producer's transaction.
    Marker(Marker),
}

/// Calls `each` with every record that has a key and every marker, in order. Skips a record that `each` cannot read.
/// Blocks.
///
/// # Errors
/// [`ReplayError`] if the log cannot be read; `each` was called with the entries before the failure.
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
        tracing::warn!(topic, partition, records, %error, "cannot read records: they are skipped");
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
                // The last batch of a chunk may be incomplete.
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
            // No batch is left below the high watermark: compaction has removed the last ones.
            return Ok(());
        }
    }
    Ok(())
}

fn memory(records: Records, cold: &DirectReads) -> io::Result<Bytes> {
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

/// Calls `each` with the records that have a key, from offset `first` on. A batch that begins before the log start may
/// contain earlier records.
fn each_record(
    chunk: &Bytes,
    batch: &BatchView<'_>,
    first: i64,
    each: &mut impl FnMut(LogEntry),
) -> Result<(), BatchError> {
    let transaction = batch.is_transactional().then(|| batch.producer_id());
    let payload = match batch.compression()? {
        Compression::None => chunk.slice_ref(batch.payload()),
        codec => decompress(codec, batch.payload(), OPENED_MAX)?,
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
