//! One partition being read: how far it has been asked for, how far it has been read, and who takes the records.
//!
//! Invariant: `offset` moves only past batches whose every record went to the sink.

use super::ConsumeError;
use bytes::Bytes;
use fullbore_wire::batch::{BatchError, BatchView, Compression, Record, RecordIter, decompress};
use fullbore_wire::{Text, Uuid};

/// Bytes of one batch's records when decompressed, at most.
const PAYLOAD_BYTES_MAX: usize = 256 << 20;

/// Who takes a partition's records.
pub trait Sink: Send + 'static {
    /// Takes the next record.
    ///
    /// # Errors
    /// What is wrong with it, in words; the run ends.
    fn record(&mut self, offset: i64, record: &Record<'_>) -> Result<(), String>;
}

/// Counts only.
impl Sink for () {
    fn record(&mut self, _: i64, _: &Record<'_>) -> Result<(), String> {
        Ok(())
    }
}

/// One partition's position.
#[derive(Debug)]
pub struct Cursor<S> {
    /// The topic.
    pub topic: Text,
    /// Its id, zeros from brokers before 2.8.
    pub topic_id: Uuid,
    /// The partition.
    pub partition: i32,
    /// The next offset to read; `None` until the leader was asked.
    pub offset: Option<i64>,
    /// Who takes the records.
    pub sink: S,
}

/// What was read: records, and bytes of their keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) records: u64,
    pub(super) bytes: u64,
}

impl<S: Sink> Cursor<S> {
    /// Reads the whole batches among `bytes` from `offset` on.
    pub(super) fn read(&mut self, bytes: &[u8], check_crcs: bool) -> Result<Count, ConsumeError> {
        let mut count = Count::default();
        for batch in Batches(bytes) {
            let from = self.offset.unwrap_or(0);
            let broken = |error: BatchError, cursor: &Self| cursor.corrupt(from, &error);
            let batch = batch.map_err(|error| broken(error, self))?;
            if check_crcs {
                batch.check_crc().map_err(|error| broken(error, self))?;
            }
            if !batch.is_control() {
                self.read_batch(&batch, from, &mut count)?;
            }
            self.offset = Some(batch.last_offset() + 1);
        }
        Ok(count)
    }

    fn read_batch(&mut self, batch: &BatchView<'_>, from: i64, count: &mut Count) -> Result<(), ConsumeError> {
        let decompressed = decompressed(batch).map_err(|error| self.corrupt(from, &error))?;
        let payload = decompressed.as_deref().unwrap_or(batch.payload());
        for record in RecordIter::new(payload, batch.record_count()) {
            let record = record.map_err(|error| self.corrupt(from, &error))?;
            let offset = record.offset(batch);
            if offset < from {
                continue;
            }
            self.sink.record(offset, &record).map_err(|reason| {
                let (topic, partition) = (self.topic.clone(), self.partition);
                ConsumeError::Refused { topic, partition, offset, reason }
            })?;
            count.records += 1;
            count.bytes += (record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len)) as u64;
        }
        Ok(())
    }

    fn corrupt(&self, offset: i64, error: &BatchError) -> ConsumeError {
        let (topic, partition) = (self.topic.clone(), self.partition);
        ConsumeError::Corrupt { topic, partition, offset, reason: error.to_string() }
    }
}

/// The records of a compressed batch; `None` when they can be read where they lie.
fn decompressed(batch: &BatchView<'_>) -> Result<Option<Bytes>, BatchError> {
    match batch.compression()? {
        Compression::None => Ok(None),
        codec => decompress(codec, batch.payload(), PAYLOAD_BYTES_MAX).map(Some),
    }
}

/// The whole batches at the start of a partition's bytes; one cut short at the end is left for the next fetch.
pub(super) struct Batches<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Batches<'a> {
    type Item = Result<BatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        match BatchView::first(self.0) {
            Ok(batch) => {
                self.0 = &self.0[batch.size()..];
                Some(Ok(batch))
            }
            Err(BatchError::Truncated) => None,
            Err(error) => {
                self.0 = &[];
                Some(Err(error))
            }
        }
    }
}
