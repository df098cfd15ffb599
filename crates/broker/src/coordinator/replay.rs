//! Reading an internal topic's partition from its start to its end.

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

/// Bytes read at once; a larger batch is read whole.
const CHUNK_BYTES: u32 = 1 << 20;
/// Times a chunk is looked up again where its segment is removed before it is read, as compaction does on a full disk.
const LOOKUPS_MAX: usize = 8;

/// Why a partition cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The partition does not give its records.
    #[error("{0}")]
    Read(#[from] ReadError),
    /// The system does not.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The records cannot be what a broker has written.
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
        /// Value of the record; `None` of a tombstone.
        value: Option<Bytes>,
        /// The producer in whose transaction it was written.
        transaction: Option<i64>,
    },
    /// The end of a producer's transaction.
    Marker(Marker),
}

/// Gives every record with a key and every marker, in order, to `each`. A record that it cannot read is passed over.
/// Blocks.
///
/// # Errors
/// [`ReplayError`]; entries before the error were given.
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
        tracing::warn!(topic, partition, records, %error, "cannot read records: they are passed over");
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
                // The last one of a chunk is cut where the chunk ends.
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
            // Compaction has left nothing up to the end.
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
    }
}

/// Gives each record with a key from `first` on; those before it, in a batch that begins before the log start, are
/// passed over.
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
