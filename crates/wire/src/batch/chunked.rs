//! Builds a record batch in chunks of equal size, so that a free chunk can be used for any batch.
//!
//! The header and the first records are in the first chunk. A record may extend over several chunks. The chunks come
//! from the caller's pool. Invariant: a batch that is being filled never allocates, because the caller adds chunks
//! before it appends.

use super::builder::{Stamp, Unsealed, attributes, put_crc, put_stamp};
use super::compression::{Level, compress};
use super::new_record::{HEAD_MAX, Header, NewRecord, RecordSink};
use super::view::{BatchError, CRC_END, Compression, HEADER_LEN, LENGTH_END, crc32c_of};
use bytes::{BufMut, BytesMut};

/// A batch that is being filled, stored in chunks.
#[derive(Debug)]
pub struct ChunkedBuilder {
    /// The full chunks, followed by the one that is being filled.
    chunks: Vec<BytesMut>,
    /// Empty chunks for later records. The last one is used first.
    spare: Vec<BytesMut>,
    /// Number of bytes in all chunks except the last.
    full_bytes: usize,
    /// Total capacity of the empty chunks, in bytes.
    spare_bytes: usize,
    compression: Compression,
    level: Level,
    is_transactional: bool,
    record_count: i32,
    base_timestamp: i64,
    max_timestamp: i64,
}

/// A batch that is ready to be sent. Its header is in the first piece.
#[derive(Debug)]
pub struct SealedChunks {
    /// The bytes of the batch, in consecutive pieces. None of the pieces is empty.
    pub pieces: Vec<BytesMut>,
    /// The chunks that are not part of the sealed batch, for reuse.
    pub spare: Vec<BytesMut>,
    /// True if the batch was compressed. The pieces are then new memory and not chunks from the pool.
    pub is_compressed: bool,
}

impl ChunkedBuilder {
    /// Creates an empty batch. The capacity of its first chunk must be at least [`HEADER_LEN`]. The contents of the
    /// chunk are dropped.
    pub fn new(mut first: BytesMut, compression: Compression, level: Level) -> Self {
        first.clear();
        first.put_bytes(0, HEADER_LEN);
        ChunkedBuilder {
            chunks: vec![first],
            spare: Vec::new(),
            full_bytes: 0,
            spare_bytes: 0,
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
        ChunkedBuilder { is_transactional: true, ..self }
    }

    /// Returns the size in bytes that the batch would have if it were sealed now without compression.
    #[inline]
    pub fn size(&self) -> usize {
        self.full_bytes + self.last().len()
    }

    /// Returns how many bytes can be added without another chunk.
    #[inline]
    pub fn room(&self) -> usize {
        self.last().capacity() - self.last().len() + self.spare_bytes
    }

    /// Returns the number of records.
    #[inline]
    pub fn record_count(&self) -> i32 {
        self.record_count
    }

    /// Adds a chunk for later records. The contents of the chunk are dropped.
    pub fn add_chunk(&mut self, mut chunk: BytesMut) {
        chunk.clear();
        self.spare_bytes += chunk.capacity();
        self.spare.push(chunk);
    }

    /// Appends a record of at most `size_max` bytes ([`record_size_max`](super::record_size_max)). The chunks must have
    /// enough room for it.
    #[inline]
    pub fn append(
        &mut self,
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header],
        size_max: usize,
    ) {
        debug_assert!(self.room() >= size_max, "the caller adds chunks first");
        if self.record_count == 0 {
            self.base_timestamp = timestamp_ms;
        }
        self.max_timestamp = self.max_timestamp.max(timestamp_ms);
        let timestamp_delta = timestamp_ms.wrapping_sub(self.base_timestamp);
        let record = NewRecord { timestamp_delta, offset_delta: self.record_count, key, value, headers };
        let last = self.last_mut();
        if last.capacity() - last.len() >= size_max {
            record.write(last);
        } else {
            record.write(self);
        }
        self.record_count += 1;
    }

    #[inline]
    fn last(&self) -> &BytesMut {
        // A builder always has at least its first chunk.
        &self.chunks[self.chunks.len() - 1]
    }

    #[inline]
    fn last_mut(&mut self) -> &mut BytesMut {
        let at = self.chunks.len() - 1;
        &mut self.chunks[at]
    }

    /// Begins to fill the next empty chunk. If there is none, because the caller has added too few, allocates one of
    /// `least` bytes.
    fn turn_over(&mut self, least: usize) {
        let next = match self.spare.pop() {
            Some(next) => {
                self.spare_bytes -= next.capacity();
                next
            }
            None => BytesMut::with_capacity(least),
        };
        self.full_bytes += self.last().len();
        self.chunks.push(next);
    }

    /// Compresses the records, fills in the header and computes the checksum.
    ///
    /// # Errors
    /// Returns [`BatchError::Decompress`] if the codec fails.
    pub fn seal(mut self, stamp: Stamp) -> Result<SealedChunks, BatchError> {
        let is_compressed = self.compression != Compression::None;
        if is_compressed {
            let compressed = self.compressed()?;
            self.spare.append(&mut self.chunks);
            self.full_bytes = 0;
            self.chunks.push(compressed);
        }
        let length = (self.size() - LENGTH_END) as i32;
        let Self { record_count, base_timestamp, max_timestamp, .. } = self;
        let attributes = attributes(self.compression, self.is_transactional);
        let unsealed = Unsealed { length, attributes, record_count, base_timestamp, max_timestamp };
        unsealed.write(&mut self.chunks[0][..HEADER_LEN]);
        let (first, rest) = self.chunks.split_at_mut(1);
        restamp_pieces(&mut first[0], rest.iter().map(|chunk| &chunk[..]), stamp);
        Ok(SealedChunks { pieces: self.chunks, spare: self.spare, is_compressed })
    }

    /// Returns a buffer with free space for a header, followed by the compressed records. Codecs need their input in
    /// one piece, so several chunks are first copied together.
    fn compressed(&self) -> Result<BytesMut, BatchError> {
        let size = self.size();
        let mut out = BytesMut::with_capacity(HEADER_LEN + size / 2);
        out.put_bytes(0, HEADER_LEN);
        if let [only] = &self.chunks[..] {
            compress(self.compression, self.level, &only[HEADER_LEN..], &mut out)?;
        } else {
            let records = self.chunks.concat();
            compress(self.compression, self.level, &records[HEADER_LEN..], &mut out)?;
        }
        // The buffer is stored until the broker has acknowledged the batch. So if more than half of it is unused, the
        // records are copied into one that fits.
        Ok(if out.capacity() > 2 * out.len() { BytesMut::from(&out[..]) } else { out })
    }
}

impl RecordSink for ChunkedBuilder {
    fn put_head(&mut self, head: &[u8; HEAD_MAX], len: usize) {
        self.put(&head[..len]);
    }

    fn put(&mut self, mut bytes: &[u8]) {
        loop {
            let last = self.last_mut();
            let fits = bytes.len().min(last.capacity() - last.len());
            last.extend_from_slice(&bytes[..fits]);
            bytes = &bytes[fits..];
            if bytes.is_empty() {
                return;
            }
            self.turn_over(bytes.len());
        }
    }
}

/// Replaces the stamp of a sealed batch (producer, epoch and sequence), and updates the checksum. The batch is split
/// into pieces: `first` begins with the header, and `rest` has the remaining pieces in order.
pub fn restamp_pieces<'a>(first: &mut [u8], rest: impl Iterator<Item = &'a [u8]>, stamp: Stamp) {
    put_stamp(first, stamp);
    let crc = crc32c_of(&first[CRC_END..], rest);
    put_crc(first, crc);
}
