//! Builds a record batch in the buffer from which it is sent.
//!
//! Each record is written once, after free space for the header. When the batch is sealed, the header is filled in and
//! the checksum is computed. Invariant: a producer changes a sealed batch only by [`restamp`]. Apart from that, a retry
//! has the same bytes as the first attempt.

use super::compression::{Level, compress};
use super::new_record::{Header, NewRecord};
use super::record::RecordIter;
use super::view::{BatchError, BatchView, CRC_END, Compression, HEADER_LEN, LENGTH_END, TRANSACTIONAL, crc32c};
use bytes::{BufMut, Bytes, BytesMut};

/// The producer of a batch and the batch's sequence, by which the broker recognises retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The producer id, or -1.
    pub producer_id: i64,
    /// The producer epoch, or -1.
    pub producer_epoch: i16,
    /// The sequence number of the first record, or -1.
    pub base_sequence: i32,
}

impl Stamp {
    /// The stamp of a producer that is not idempotent.
    pub const NONE: Stamp = Stamp { producer_id: -1, producer_epoch: -1, base_sequence: -1 };
}

/// A batch that is being filled.
#[derive(Debug)]
pub struct BatchBuilder {
    buffer: BytesMut,
    compression: Compression,
    level: Level,
    is_transactional: bool,
    record_count: i32,
    base_timestamp: i64,
    max_timestamp: i64,
}

impl BatchBuilder {
    /// Creates an empty batch in `buffer`. Drops the contents of the buffer, but keeps its capacity.
    pub fn new(mut buffer: BytesMut, compression: Compression, level: Level) -> Self {
        buffer.clear();
        buffer.put_bytes(0, HEADER_LEN);
        BatchBuilder {
            buffer,
            compression,
            level,
            is_transactional: false,
            record_count: 0,
            base_timestamp: 0,
            max_timestamp: -1,
        }
    }

    /// Makes the batch part of its producer's transaction. A later stamp does not change this.
    pub fn transactional(self) -> Self {
        BatchBuilder { is_transactional: true, ..self }
    }

    /// Returns the size in bytes that the batch would have if it were sealed now without compression.
    pub fn size(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the number of records.
    pub fn record_count(&self) -> i32 {
        self.record_count
    }

    /// Returns the largest timestamp of the records, in milliseconds.
    pub fn max_timestamp(&self) -> i64 {
        self.max_timestamp
    }

    /// Appends a record. The buffer grows if necessary. All lengths must be below 2^31, so the caller limits the size
    /// of records.
    pub fn append(&mut self, timestamp_ms: i64, key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header]) {
        if self.record_count == 0 {
            self.base_timestamp = timestamp_ms;
        }
        self.max_timestamp = self.max_timestamp.max(timestamp_ms);
        let timestamp_delta = timestamp_ms.wrapping_sub(self.base_timestamp);
        let offset_delta = self.record_count;
        let record = NewRecord { timestamp_delta, offset_delta, key, value, headers };
        self.buffer.reserve(record.size());
        record.write(&mut self.buffer);
        self.record_count += 1;
    }

    /// Returns the records, for a batch that must be split.
    pub fn records(&self) -> RecordIter<'_> {
        RecordIter::new(&self.buffer[HEADER_LEN..], self.record_count)
    }

    /// Compresses the records, fills in the header and computes the checksum. Returns the batch. If the batch was
    /// compressed into another buffer, also returns the old buffer for reuse.
    ///
    /// # Errors
    /// Returns [`BatchError::Decompress`] if the codec fails.
    pub fn seal(mut self, stamp: Stamp) -> Result<(BytesMut, Option<BytesMut>), BatchError> {
        let mut spare = None;
        if self.compression != Compression::None {
            let mut compressed = BytesMut::with_capacity(HEADER_LEN + self.buffer.len() / 2);
            compressed.put_bytes(0, HEADER_LEN);
            compress(self.compression, self.level, &self.buffer[HEADER_LEN..], &mut compressed)?;
            spare = Some(std::mem::replace(&mut self.buffer, compressed));
        }
        let length = (self.buffer.len() - LENGTH_END) as i32;
        let (base_timestamp, max_timestamp) = (self.base_timestamp, self.max_timestamp);
        let (record_count, attributes) = (self.record_count, attributes(self.compression, self.is_transactional));
        let unsealed = Unsealed { length, attributes, record_count, base_timestamp, max_timestamp };
        unsealed.write(&mut self.buffer[..HEADER_LEN]);
        restamp(&mut self.buffer, stamp);
        Ok((self.buffer, spare))
    }
}

/// Returns the attributes of a batch with data.
pub(super) fn attributes(compression: Compression, is_transactional: bool) -> i16 {
    compression as i16 | if is_transactional { TRANSACTIONAL } else { 0 }
}

/// The header fields of a batch that has no stamp and no checksum yet.
pub(super) struct Unsealed {
    /// Number of bytes after the length field.
    pub(super) length: i32,
    pub(super) attributes: i16,
    pub(super) record_count: i32,
    pub(super) base_timestamp: i64,
    pub(super) max_timestamp: i64,
}

impl Unsealed {
    /// Fills in a header of [`HEADER_LEN`] bytes.
    pub(super) fn write(&self, mut header: &mut [u8]) {
        header.put_i64(0);
        header.put_i32(self.length);
        header.put_i32(-1);
        header.put_i8(2);
        header.put_u32(0);
        header.put_i16(self.attributes);
        header.put_i32(self.record_count - 1);
        header.put_i64(self.base_timestamp);
        header.put_i64(self.max_timestamp);
        header.put_i64(-1);
        header.put_i16(-1);
        header.put_i32(-1);
        header.put_i32(self.record_count);
    }
}

/// Gives a sealed batch another stamp, and updates the checksum. A producer that has raised its epoch gives new
/// sequences to the batches that were not written (KIP-360).
pub fn restamp(batch: &mut [u8], stamp: Stamp) {
    put_stamp(batch, stamp);
    seal_crc(batch);
}

/// Writes a stamp into the header of a batch. The caller must then update the checksum in the header.
pub(super) fn put_stamp(header: &mut [u8], stamp: Stamp) {
    header[43..51].copy_from_slice(&stamp.producer_id.to_be_bytes());
    header[51..53].copy_from_slice(&stamp.producer_epoch.to_be_bytes());
    header[53..57].copy_from_slice(&stamp.base_sequence.to_be_bytes());
}

/// Sets the max timestamp of a batch and updates the checksum. The broker does this if the header does not have the
/// largest timestamp of the records.
pub fn set_max_timestamp(batch: &mut [u8], max_timestamp: i64) {
    batch[35..43].copy_from_slice(&max_timestamp.to_be_bytes());
    seal_crc(batch);
}

fn seal_crc(batch: &mut [u8]) {
    let crc = crc32c(&batch[CRC_END..]);
    put_crc(batch, crc);
}

/// Writes a checksum into the header of a batch.
pub(super) fn put_crc(header: &mut [u8], crc: u32) {
    header[CRC_END - 4..CRC_END].copy_from_slice(&crc.to_be_bytes());
}

/// Returns the whole batches at the start of `bytes`. Stops at a batch that is cut off. The last batch of a fetch may
/// be cut off.
pub fn batches(bytes: &Bytes) -> impl Iterator<Item = Result<BatchView<'_>, BatchError>> {
    let mut left: &[u8] = bytes;
    std::iter::from_fn(move || match BatchView::first(left) {
        Ok(batch) => {
            left = &left[batch.size()..];
            Some(Ok(batch))
        }
        Err(BatchError::Truncated) => None,
        Err(error) => {
            left = &[];
            Some(Err(error))
        }
    })
}
