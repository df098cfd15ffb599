//! Builds a record batch in the buffer it is sent from.
//!
//! Records are written once, behind room for the header; sealing fills the header in and computes the checksum.
//! Invariant: a sealed batch of ours never changes but by [`restamp`], so that a retry is byte for byte the first try.

use super::compression::{Level, compress};
use super::record::RecordIter;
use super::varint::{self, LEN_MAX, LEN32_MAX};
use super::view::{BatchError, BatchView, Compression, HEADER_LEN, crc32c};
use bytes::{BufMut, Bytes, BytesMut};

/// One header of a record to be written.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// The key, which should be UTF-8; keys may repeat.
    pub key: &'a [u8],
    /// The value, or null.
    pub value: Option<&'a [u8]>,
}

/// Who wrote a batch: what the broker's sequence window looks at.
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

/// Bytes of a record before its value where it has no key: five integers and the attributes.
const HEAD_MAX: usize = 4 * LEN32_MAX + 1 + LEN_MAX;

/// A batch being filled.
#[derive(Debug)]
pub struct BatchBuilder {
    buffer: BytesMut,
    compression: Compression,
    level: Level,
    record_count: i32,
    base_timestamp: i64,
    max_timestamp: i64,
}

/// Bytes of a record after its own length prefix.
#[inline]
fn body_len(
    timestamp_delta: i64,
    offset_delta: i32,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    headers: &[Header],
) -> usize {
    let field = |field: Option<&[u8]>| field.map_or(1, |f| varint::len(f.len() as i64) + f.len());
    let of_headers: usize =
        headers.iter().map(|h| varint::len(h.key.len() as i64) + h.key.len() + field(h.value)).sum();
    1 + varint::len(timestamp_delta)
        + varint::len(i64::from(offset_delta))
        + field(key)
        + field(value)
        + varint::len(headers.len() as i64)
        + of_headers
}

/// The most bytes a record can take in any batch.
#[inline]
pub fn record_size_max(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header]) -> usize {
    body_len(i64::MAX, i32::MAX, key, value, headers) + 5
}

impl BatchBuilder {
    /// An empty batch in `buffer`, whose contents are dropped and whose capacity is used.
    pub fn new(mut buffer: BytesMut, compression: Compression, level: Level) -> Self {
        buffer.clear();
        buffer.put_bytes(0, HEADER_LEN);
        BatchBuilder { buffer, compression, level, record_count: 0, base_timestamp: 0, max_timestamp: -1 }
    }

    /// Bytes if it were sealed now without compression.
    pub fn size(&self) -> usize {
        self.buffer.len()
    }

    /// Bytes the buffer holds without growing.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Moves what is built into a larger buffer, whose contents are dropped, and gives the old one back.
    pub fn move_to(&mut self, mut larger: BytesMut) -> BytesMut {
        larger.clear();
        larger.put_slice(&self.buffer);
        std::mem::replace(&mut self.buffer, larger)
    }

    /// Records so far.
    pub fn record_count(&self) -> i32 {
        self.record_count
    }

    /// The largest timestamp so far, in milliseconds.
    pub fn max_timestamp(&self) -> i64 {
        self.max_timestamp
    }

    /// Appends a record; the buffer grows if it must. Lengths are below 2^31: the caller bounds a record's size.
    pub fn append(&mut self, timestamp_ms: i64, key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header]) {
        if self.record_count == 0 {
            self.base_timestamp = timestamp_ms;
        }
        self.max_timestamp = self.max_timestamp.max(timestamp_ms);
        let timestamp_delta = timestamp_ms.wrapping_sub(self.base_timestamp);
        let offset_delta = self.record_count;
        let len = body_len(timestamp_delta, offset_delta, key, value, headers);
        self.buffer.reserve(len + LEN32_MAX);
        let mut head = [0; HEAD_MAX];
        let mut at = varint::put(&mut head, len as i64);
        at += 1; // attributes: none are defined
        at += varint::put(&mut head[at..], timestamp_delta);
        at += varint::put(&mut head[at..], i64::from(offset_delta));
        at += varint::put(&mut head[at..], key.map_or(-1, |key| key.len() as i64));
        if let Some(key) = key {
            self.put_head(&head, at);
            self.buffer.extend_from_slice(key);
            at = 0;
        }
        at += varint::put(&mut head[at..], value.map_or(-1, |value| value.len() as i64));
        self.put_head(&head, at);
        self.buffer.extend_from_slice(value.unwrap_or_default());
        self.put_headers(headers);
        self.record_count += 1;
    }

    /// The first `len` bytes. Where there is room all are copied, which takes two moves, and those past them are overwritten.
    #[inline]
    fn put_head(&mut self, head: &[u8; HEAD_MAX], len: usize) {
        let end = self.buffer.len() + len;
        if self.buffer.capacity() - self.buffer.len() < HEAD_MAX {
            self.buffer.extend_from_slice(&head[..len]);
        } else {
            self.buffer.extend_from_slice(head);
            self.buffer.truncate(end);
        }
    }

    #[inline]
    fn put_headers(&mut self, headers: &[Header]) {
        if headers.is_empty() {
            self.buffer.put_u8(0);
            return;
        }
        self.put_varint(headers.len() as i64);
        for header in headers {
            self.put_field(Some(header.key));
            self.put_field(header.value);
        }
    }

    fn put_varint(&mut self, value: i64) {
        let mut out = [0; LEN_MAX];
        let n = varint::put(&mut out, value);
        self.buffer.extend_from_slice(&out[..n]);
    }

    fn put_field(&mut self, field: Option<&[u8]>) {
        self.put_varint(field.map_or(-1, |field| field.len() as i64));
        self.buffer.extend_from_slice(field.unwrap_or_default());
    }

    /// The records so far, for a batch that must be split.
    pub fn records(&self) -> RecordIter<'_> {
        RecordIter::new(&self.buffer[HEADER_LEN..], self.record_count)
    }

    /// Compresses, fills the header in, computes the checksum. The second result is the buffer to use again when the
    /// records left it by being compressed.
    ///
    /// # Errors
    /// [`BatchError::Decompress`] if the codec fails.
    pub fn seal(mut self, stamp: Stamp) -> Result<(BytesMut, Option<BytesMut>), BatchError> {
        let mut spare = None;
        if self.compression != Compression::None {
            let mut compressed = BytesMut::with_capacity(HEADER_LEN + self.buffer.len() / 2);
            compressed.put_bytes(0, HEADER_LEN);
            compress(self.compression, self.level, &self.buffer[HEADER_LEN..], &mut compressed)?;
            spare = Some(std::mem::replace(&mut self.buffer, compressed));
        }
        let length = (self.buffer.len() - 12) as i32;
        let mut header = &mut self.buffer[..HEADER_LEN];
        header.put_i64(0);
        header.put_i32(length);
        header.put_i32(-1);
        header.put_i8(2);
        header.put_u32(0);
        header.put_i16(self.compression as i16);
        header.put_i32(self.record_count - 1);
        header.put_i64(self.base_timestamp);
        header.put_i64(self.max_timestamp);
        header.put_i64(-1);
        header.put_i16(-1);
        header.put_i32(-1);
        header.put_i32(self.record_count);
        restamp(&mut self.buffer, stamp);
        Ok((self.buffer, spare))
    }
}

/// Gives a sealed batch another stamp and checksum (KIP-360: after an epoch bump unwritten batches get new sequences).
pub fn restamp(batch: &mut [u8], stamp: Stamp) {
    batch[43..51].copy_from_slice(&stamp.producer_id.to_be_bytes());
    batch[51..53].copy_from_slice(&stamp.producer_epoch.to_be_bytes());
    batch[53..57].copy_from_slice(&stamp.base_sequence.to_be_bytes());
    seal_crc(batch);
}

/// Gives a whole batch another max timestamp and its checksum: what a broker does to a header that its records belie.
pub fn set_max_timestamp(batch: &mut [u8], max_timestamp: i64) {
    batch[35..43].copy_from_slice(&max_timestamp.to_be_bytes());
    seal_crc(batch);
}

fn seal_crc(batch: &mut [u8]) {
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

/// The whole batches at the start of `bytes`; one that is cut short ends them, as at the end of a fetch.
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
