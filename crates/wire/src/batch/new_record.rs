//! A record that is being written into a batch: its size and its encoding.
//!
//! Invariant: [`NewRecord::write`] writes at most [`NewRecord::size`] bytes. The record's length field has exactly the
//! number of bytes that follow it.

use super::varint::{self, LEN_MAX, LEN32_MAX};
use bytes::BytesMut;

/// A header of a record that is being written.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// The key, which should be UTF-8. Keys may repeat.
    pub key: &'a [u8],
    /// The value, or null.
    pub value: Option<&'a [u8]>,
}

/// Maximum size in bytes of the part of a record before its value, if it has no key. This part has five integers and
/// the attributes.
pub(super) const HEAD_MAX: usize = 4 * LEN32_MAX + 1 + LEN_MAX;

/// Returns the size of a record after its length prefix, in bytes.
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

/// Returns the maximum size that a record can have in any batch, in bytes.
#[inline]
pub fn record_size_max(key: Option<&[u8]>, value: Option<&[u8]>, headers: &[Header]) -> usize {
    body_len(i64::MAX, i32::MAX, key, value, headers) + 5
}

/// A record whose timestamp and offset are relative to its batch.
pub(super) struct NewRecord<'a> {
    pub(super) timestamp_delta: i64,
    pub(super) offset_delta: i32,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) headers: &'a [Header<'a>],
}

/// A buffer for the bytes of a record, with room for all of them.
pub(super) trait RecordSink {
    /// Appends the first `len` bytes of `head`.
    fn put_head(&mut self, head: &[u8; HEAD_MAX], len: usize);
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl RecordSink for BytesMut {
    /// Copies all of `head` if there is room, and then cuts the buffer after `len` bytes. A copy of a fixed size takes
    /// only two instructions.
    #[inline]
    fn put_head(&mut self, head: &[u8; HEAD_MAX], len: usize) {
        let end = self.len() + len;
        if self.capacity() - self.len() < HEAD_MAX {
            self.extend_from_slice(&head[..len]);
        } else {
            self.extend_from_slice(head);
            self.truncate(end);
        }
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

impl NewRecord<'_> {
    /// Returns the maximum size of the record in bytes, including its length prefix.
    #[inline]
    pub(super) fn size(&self) -> usize {
        self.body_len() + LEN32_MAX
    }

    #[inline]
    fn body_len(&self) -> usize {
        body_len(self.timestamp_delta, self.offset_delta, self.key, self.value, self.headers)
    }

    /// Appends the record. All lengths must be below 2^31, so the caller limits the size of records.
    #[inline]
    pub(super) fn write(&self, out: &mut impl RecordSink) {
        let mut head = [0; HEAD_MAX];
        let mut at = varint::put(&mut head, self.body_len() as i64);
        at += 1; // attributes: none are defined
        at += varint::put(&mut head[at..], self.timestamp_delta);
        at += varint::put(&mut head[at..], i64::from(self.offset_delta));
        at += varint::put(&mut head[at..], self.key.map_or(-1, |key| key.len() as i64));
        if let Some(key) = self.key {
            out.put_head(&head, at);
            out.put(key);
            at = 0;
        }
        at += varint::put(&mut head[at..], self.value.map_or(-1, |value| value.len() as i64));
        out.put_head(&head, at);
        out.put(self.value.unwrap_or_default());
        put_headers(out, self.headers);
    }
}

#[inline]
fn put_headers(out: &mut impl RecordSink, headers: &[Header]) {
    if headers.is_empty() {
        return out.put(&[0]);
    }
    put_varint(out, headers.len() as i64);
    for header in headers {
        put_field(out, Some(header.key));
        put_field(out, header.value);
    }
}

fn put_varint(out: &mut impl RecordSink, value: i64) {
    let mut bytes = [0; LEN_MAX];
    let len = varint::put(&mut bytes, value);
    out.put(&bytes[..len]);
}

fn put_field(out: &mut impl RecordSink, field: Option<&[u8]>) {
    put_varint(out, field.map_or(-1, |field| field.len() as i64));
    out.put(field.unwrap_or_default());
}
