//! Reads the records of a batch in place.
//!
//! The layout (`DefaultRecord` in Kafka) is: length, attributes i8, timestamp delta, offset delta, key, value, header
//! count, headers. Every number except the attributes is a zigzag varint, and a length of -1 means null. Invariant: a
//! length never causes a read beyond the available bytes.

use super::varint::{take, take_i32};
use super::view::{BatchError, BatchView, TimestampType};

/// A record in a batch.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The record's offset minus the batch's base offset.
    pub offset_delta: i32,
    /// The record's timestamp minus the batch's base timestamp, in milliseconds.
    pub timestamp_delta: i64,
    /// The key, or null.
    pub key: Option<&'a [u8]>,
    /// The value, or null.
    pub value: Option<&'a [u8]>,
    /// The headers.
    pub headers: Headers<'a>,
}

impl Record<'_> {
    /// Returns the timestamp of the record, in milliseconds.
    pub fn timestamp(&self, batch: &BatchView<'_>) -> i64 {
        match batch.timestamp_type() {
            TimestampType::CreateTime => batch.base_timestamp().wrapping_add(self.timestamp_delta),
            TimestampType::LogAppendTime => batch.max_timestamp(),
        }
    }

    /// Returns the offset of the record.
    pub fn offset(&self, batch: &BatchView<'_>) -> i64 {
        batch.base_offset().wrapping_add(i64::from(self.offset_delta))
    }
}

/// The headers of a record in order, including duplicates and null values. They were checked when the record was read.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a> {
    left: i32,
    bytes: &'a [u8],
}

impl Headers<'_> {
    /// Returns how many headers are left.
    pub fn len(&self) -> usize {
        usize::try_from(self.left).unwrap_or(0)
    }

    /// Returns true if no header is left.
    pub fn is_empty(&self) -> bool {
        self.left <= 0
    }
}

impl<'a> Iterator for Headers<'a> {
    /// A key and a value. In Kafka's protocol, a header key is text. But no broker checks this, and some clients write
    /// other bytes.
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.left <= 0 {
            return None;
        }
        self.left -= 1;
        take_header(&mut self.bytes).ok()
    }
}

/// An iterator over the records of an uncompressed payload.
#[derive(Clone, Debug)]
pub struct RecordIter<'a> {
    left: i32,
    bytes: &'a [u8],
}

impl<'a> RecordIter<'a> {
    /// Creates an iterator over `count` records of `payload`.
    pub fn new(payload: &'a [u8], count: i32) -> Self {
        RecordIter { left: count, bytes: payload }
    }
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Result<Record<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left <= 0 {
            let trailing = !std::mem::take(&mut self.bytes).is_empty();
            return trailing.then_some(Err(BatchError::Record("bytes after the last record")));
        }
        self.left -= 1;
        let record = take_record(&mut self.bytes);
        if record.is_err() {
            *self = RecordIter { left: 0, bytes: &[] };
        }
        Some(record)
    }
}

/// The earliest and latest timestamp of some records, in milliseconds; -1 if no record has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// The earliest timestamp.
    pub earliest: i64,
    /// The latest timestamp.
    pub latest: i64,
}

#[inline]
pub(super) fn take_body<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], BatchError> {
    const CUT: BatchError = BatchError::Record("the record ends after the batch");
    let len = take_i32(bytes).ok_or(CUT)?;
    let len = usize::try_from(len).map_err(|_| BatchError::Record("the record's length is negative"))?;
    let (body, rest) = bytes.split_at_checked(len).ok_or(CUT)?;
    *bytes = rest;
    Ok(body)
}

fn take_record<'a>(bytes: &mut &'a [u8]) -> Result<Record<'a>, BatchError> {
    const CUT: BatchError = BatchError::Record("a field ends after the record");
    let body = &mut take_body(bytes)?;
    let (_attributes, rest) = body.split_first().ok_or(CUT)?;
    *body = rest;
    let timestamp_delta = take(body).ok_or(CUT)?;
    let offset_delta = take_i32(body).ok_or(CUT)?;
    let key = take_nullable(body)?;
    let value = take_nullable(body)?;
    let count = take_i32(body).ok_or(CUT)?;
    if count < 0 {
        return Err(BatchError::Record("the record's header count is negative"));
    }
    let headers = Headers { left: count, bytes: body };
    for _ in 0..count {
        take_header(body)?;
    }
    if !body.is_empty() {
        return Err(BatchError::Record("bytes after the record's last header"));
    }
    Ok(Record { offset_delta, timestamp_delta, key, value, headers })
}

#[inline]
pub(super) fn take_nullable<'a>(bytes: &mut &'a [u8]) -> Result<Option<&'a [u8]>, BatchError> {
    const CUT: BatchError = BatchError::Record("a field ends after the record");
    match take_i32(bytes).ok_or(CUT)? {
        -1 => Ok(None),
        len => {
            let len = usize::try_from(len).map_err(|_| BatchError::Record("a length is negative"))?;
            let (field, rest) = bytes.split_at_checked(len).ok_or(CUT)?;
            *bytes = rest;
            Ok(Some(field))
        }
    }
}

fn take_header<'a>(bytes: &mut &'a [u8]) -> Result<(&'a [u8], Option<&'a [u8]>), BatchError> {
    let key = take_nullable(bytes)?.ok_or(BatchError::Record("a header key is null"))?;
    Ok((key, take_nullable(bytes)?))
}
