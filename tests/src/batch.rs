//! Record batches (magic 2) for tests. A test may give any field a wrong value.

use bytes::{BufMut, Bytes, BytesMut};
use fullbore_wire::batch::{Stamp, crc32c};
use std::time::{SystemTime, UNIX_EPOCH};

const CRC_AT: usize = 17;
const CRC_END: usize = 21;
const HEADER_LEN: usize = 61;
const TRANSACTIONAL: i16 = 0x10;
const CONTROL: i16 = 0x20;

/// Record of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The absolute offset. It has a meaning only in a record that was read from a log.
    pub offset: i64,
    /// The timestamp in milliseconds.
    pub timestamp: i64,
    /// The value. Test records have no key and no headers.
    pub value: Vec<u8>,
}

impl Record {
    /// Returns the value as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.value.clone()).expect("test records are text")
    }
}

/// A record batch. Fields that are `None` are computed when the batch is written.
#[derive(Clone, Debug)]
pub struct Batch {
    pub base_offset: i64,
    pub leader_epoch: i32,
    pub magic: i8,
    pub crc: Option<u32>,
    pub attributes: i16,
    pub last_offset_delta: Option<i32>,
    pub base_timestamp: i64,
    pub max_timestamp: Option<i64>,
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: Option<i32>,
    pub records: Vec<Record>,
    /// The outcome of a transaction, if this is a control batch that was read from a log.
    pub marker: Option<EndMarker>,
}

/// The content of a marker (control record) that ends a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndMarker {
    /// True for a commit, false for an abort.
    pub is_commit: bool,
    /// The leader epoch of the coordinator's partition of `__transaction_state`.
    pub coordinator_epoch: i32,
}

/// Returns the wall clock in milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970");
    i64::try_from(since.as_millis()).expect("fits for ages")
}

impl Batch {
    /// Returns a batch of these values with the present time and no producer id.
    pub fn of<V: AsRef<[u8]>>(values: &[V]) -> Batch {
        Batch::at(now_ms(), values)
    }

    /// Returns a batch of these values with the given timestamp.
    pub fn at<V: AsRef<[u8]>>(timestamp: i64, values: &[V]) -> Batch {
        let record = |value: &V| Record { offset: -1, timestamp, value: value.as_ref().to_vec() };
        Batch {
            base_offset: 0,
            leader_epoch: -1,
            magic: 2,
            crc: None,
            attributes: 0,
            last_offset_delta: None,
            base_timestamp: timestamp,
            max_timestamp: None,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: None,
            records: values.iter().map(record).collect(),
            marker: None,
        }
    }

    /// Returns a batch of one record with `len` bytes.
    pub fn sized(len: usize) -> Batch {
        Batch::of(&[vec![b'.'; len]])
    }

    /// Returns a batch of one record from an idempotent producer. The value begins with the sequence and has `len`
    /// bytes.
    pub fn numbered(id: i64, sequence: i32, len: usize) -> Batch {
        let mut value = sequence.to_string().into_bytes();
        value.resize(len, b'.');
        Batch::of(&[value]).from_producer(id, 0, sequence)
    }

    /// Marks the batch as that of an idempotent producer.
    pub fn from_producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> Batch {
        self.producer_id = id;
        self.producer_epoch = epoch;
        self.base_sequence = base_sequence;
        self
    }

    /// Sets the producer and the sequence of the batch.
    pub fn stamped(self, stamp: Stamp) -> Batch {
        self.from_producer(stamp.producer_id, stamp.producer_epoch, stamp.base_sequence)
    }

    /// Makes the batch part of a transaction.
    pub fn transactional(mut self) -> Batch {
        self.attributes |= TRANSACTIONAL;
        self
    }

    /// Returns true if the batch belongs to a transaction. Markers also belong to one.
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// Returns the offset of the batch's last record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset + i64::from(self.last_offset_delta.expect("parsed"))
    }

    /// Returns the bytes of the batch, with the correct checksum unless `crc` is set.
    pub fn bytes(&self) -> Bytes {
        let count = i32::try_from(self.records.len()).expect("few records");
        let latest = self.records.iter().map(|record| record.timestamp).max().unwrap_or(self.base_timestamp);
        let mut out = BytesMut::with_capacity(HEADER_LEN + 64);
        out.put_i64(self.base_offset);
        out.put_i32(0); // the length, below
        out.put_i32(self.leader_epoch);
        out.put_i8(self.magic);
        out.put_u32(0); // the checksum, below
        out.put_i16(self.attributes);
        out.put_i32(self.last_offset_delta.unwrap_or(count - 1));
        out.put_i64(self.base_timestamp);
        out.put_i64(self.max_timestamp.unwrap_or(latest));
        out.put_i64(self.producer_id);
        out.put_i16(self.producer_epoch);
        out.put_i32(self.base_sequence);
        out.put_i32(self.record_count.unwrap_or(count));
        for (delta, record) in (0..).zip(&self.records) {
            put_record(&mut out, delta, record.timestamp - self.base_timestamp, &record.value);
        }
        let length = i32::try_from(out.len() - 12).expect("a small batch");
        out[8..12].copy_from_slice(&length.to_be_bytes());
        let crc = self.crc.unwrap_or_else(|| crc32c(&out[CRC_END..]));
        out[CRC_AT..CRC_END].copy_from_slice(&crc.to_be_bytes());
        out.freeze()
    }

    /// Parses the complete batches at the start of `bytes`. Ignores a truncated last batch, as consumers do.
    pub fn parse_all(mut bytes: &[u8]) -> Vec<Batch> {
        let mut batches = Vec::new();
        while bytes.len() >= HEADER_LEN {
            let len = 12 + usize::try_from(i32_at(bytes, 8)).expect("a length");
            if bytes.len() < len {
                break;
            }
            batches.push(Batch::parse(&bytes[..len]));
            bytes = &bytes[len..];
        }
        batches
    }

    fn parse(bytes: &[u8]) -> Batch {
        let crc = i32_at(bytes, CRC_AT) as u32;
        assert_eq!(crc, crc32c(&bytes[CRC_END..]), "the broker gave back a batch with a wrong checksum");
        let (base_offset, base_timestamp) = (i64_at(bytes, 0), i64_at(bytes, 27));
        let record_count = i32_at(bytes, 57);
        let mut batch = Batch {
            base_offset,
            leader_epoch: i32_at(bytes, 12),
            magic: bytes[16] as i8,
            crc: Some(crc),
            attributes: i16_at(bytes, 21),
            last_offset_delta: Some(i32_at(bytes, 23)),
            base_timestamp,
            max_timestamp: Some(i64_at(bytes, 35)),
            producer_id: i64_at(bytes, 43),
            producer_epoch: i16_at(bytes, 51),
            base_sequence: i32_at(bytes, 53),
            record_count: Some(record_count),
            records: Vec::new(),
            marker: None,
        };
        if batch.attributes & CONTROL != 0 {
            batch.marker = Some(parse_marker(&bytes[HEADER_LEN..]));
        } else if batch.attributes & 7 == 0 {
            let mut rest = &bytes[HEADER_LEN..];
            batch.records = (0..record_count).map(|_| parse_record(&mut rest, base_offset, base_timestamp)).collect();
            assert!(rest.is_empty(), "bytes after the last record");
        }
        batch
    }
}

fn put_record(out: &mut BytesMut, offset_delta: i64, timestamp_delta: i64, value: &[u8]) {
    let mut body = BytesMut::with_capacity(value.len() + 16);
    body.put_i8(0);
    put_varint(&mut body, timestamp_delta);
    put_varint(&mut body, offset_delta);
    put_varint(&mut body, -1);
    put_varint(&mut body, i64::try_from(value.len()).expect("a small value"));
    body.put_slice(value);
    put_varint(&mut body, 0);
    put_varint(out, i64::try_from(body.len()).expect("a small record"));
    out.put_slice(&body);
}

fn parse_record(bytes: &mut &[u8], base_offset: i64, base_timestamp: i64) -> Record {
    let _length = varint(bytes);
    *bytes = &bytes[1..];
    let timestamp = base_timestamp + varint(bytes);
    let offset = base_offset + varint(bytes);
    take(bytes);
    let value = take(bytes).to_vec();
    for _ in 0..varint(bytes) {
        take(bytes);
        take(bytes);
    }
    Record { offset, timestamp, value }
}

/// Reads a length, and returns that many of the bytes after it. Returns a null value as empty.
fn take<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let len = varint(bytes).max(0);
    let (taken, rest) = bytes.split_at(usize::try_from(len).expect("a length"));
    *bytes = rest;
    taken
}

/// Reads the record of a control batch: version and type in the key, version and coordinator epoch in the value.
fn parse_marker(mut bytes: &[u8]) -> EndMarker {
    let bytes = &mut bytes;
    let _length = varint(bytes);
    *bytes = &bytes[1..];
    let (_timestamp, _offset) = (varint(bytes), varint(bytes));
    assert_eq!(varint(bytes), 4, "the key of a marker");
    let kind = i16_at(bytes, 2);
    assert!(kind == 0 || kind == 1, "an end of a transaction: {kind}");
    *bytes = &bytes[4..];
    assert_eq!(varint(bytes), 6, "the value of a marker");
    EndMarker { is_commit: kind == 1, coordinator_epoch: i32_at(bytes, 2) }
}

/// Writes `value` in zigzag LEB128.
fn put_varint(out: &mut BytesMut, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.put_u8(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.put_u8(rest as u8);
}

fn varint(bytes: &mut &[u8]) -> i64 {
    let mut zigzag = 0u64;
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        zigzag |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64)
}

fn i16_at(bytes: &[u8], at: usize) -> i16 {
    i16::from_be_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn i32_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn i64_at(bytes: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
