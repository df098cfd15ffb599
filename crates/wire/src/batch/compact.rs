//! Removes records from a batch, as log compaction does.
//!
//! The caller decides which records are removed. The other records keep their offsets and timestamps, and the batch
//! keeps its sequences and epoch, as in Kafka's `MemoryRecords.filterTo` and KIP-534. Invariant: whatever is removed,
//! the batch covers the same offsets, `base_offset..=last_offset`, and the same sequences.

use super::compression::compress;
use super::record::{take_body, take_nullable};
use super::varint::{self, LEN_MAX, take, take_i32};
use super::view::{BatchError, BatchView, Compression, HEADER_LEN, TimestampType, crc32c};
use bytes::{BufMut, BytesMut};

/// Bit 6 of the attributes. If it is set, the base timestamp is the time from which a cleaning can remove tombstones of
/// the batch (KIP-534).
const DELETE_HORIZON: i16 = 0x40;
/// Bits 0-2 of the attributes: the codec.
const CODEC: i16 = 0x07;

/// A record with its encoded bytes.
#[derive(Clone, Copy, Debug)]
pub struct RawRecord<'a> {
    /// The record's offset minus the batch's base offset.
    pub offset_delta: i32,
    /// The key, or null.
    pub key: Option<&'a [u8]>,
    /// True if the value is not null.
    pub has_value: bool,
    timestamp_delta: i64,
    attributes: u8,
    /// The whole record, beginning with its length.
    bytes: &'a [u8],
    /// The bytes of the record from its key to its end.
    tail: &'a [u8],
}

impl RawRecord<'_> {
    /// Returns the record's own timestamp in milliseconds, even if the batch has LogAppendTime.
    pub fn timestamp(&self, batch: &BatchView<'_>) -> i64 {
        batch.base_timestamp().wrapping_add(self.timestamp_delta)
    }
}

/// An iterator over the records of an uncompressed payload. Checks that offset deltas ascend and stay within the batch.
/// The deltas may have gaps, because compaction removes records.
#[derive(Clone, Debug)]
pub struct RawRecords<'a> {
    left: i32,
    bytes: &'a [u8],
    last_delta: i32,
    max_delta: i32,
}

impl<'a> RawRecords<'a> {
    /// Creates an iterator over the records of `batch`. `payload` is the payload of the batch without compression.
    pub fn new(batch: &BatchView<'_>, payload: &'a [u8]) -> Self {
        RawRecords { left: batch.record_count(), bytes: payload, last_delta: -1, max_delta: batch.last_offset_delta() }
    }

    fn take(&mut self) -> Result<RawRecord<'a>, BatchError> {
        let record = take_raw(&mut self.bytes)?;
        if record.offset_delta <= self.last_delta || record.offset_delta > self.max_delta {
            return Err(BatchError::Record("the record's offset is out of order"));
        }
        self.last_delta = record.offset_delta;
        Ok(record)
    }
}

impl<'a> Iterator for RawRecords<'a> {
    type Item = Result<RawRecord<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left <= 0 {
            let trailing = !std::mem::take(&mut self.bytes).is_empty();
            return trailing.then_some(Err(BatchError::Record("bytes after the last record")));
        }
        self.left -= 1;
        let record = self.take();
        if record.is_err() {
            (self.left, self.bytes) = (0, &[]);
        }
        Some(record)
    }
}

fn take_raw<'a>(bytes: &mut &'a [u8]) -> Result<RawRecord<'a>, BatchError> {
    const CUT: BatchError = BatchError::Record("a field ends after the record");
    let whole = *bytes;
    let body = &mut take_body(bytes)?;
    let (&attributes, rest) = body.split_first().ok_or(CUT)?;
    *body = rest;
    let timestamp_delta = take(body).ok_or(CUT)?;
    let offset_delta = take_i32(body).ok_or(CUT)?;
    let tail = *body;
    let key = take_nullable(body)?;
    let has_value = take_nullable(body)?.is_some();
    let headers = take_i32(body).ok_or(CUT)?;
    if headers < 0 {
        return Err(BatchError::Record("the record's header count is negative"));
    }
    for _ in 0..headers {
        take_nullable(body)?.ok_or(BatchError::Record("a header key is null"))?;
        take_nullable(body)?;
    }
    if !body.is_empty() {
        return Err(BatchError::Record("bytes after the record's last header"));
    }
    let bytes = &whole[..whole.len() - bytes.len()];
    Ok(RawRecord { offset_delta, key, has_value, timestamp_delta, attributes, bytes, tail })
}

impl BatchView<'_> {
    /// Returns the time from which a cleaning can remove the batch's tombstones, in milliseconds; None if no cleaning
    /// has set it yet.
    pub fn delete_horizon_ms(&self) -> Option<i64> {
        (self.attributes() & DELETE_HORIZON != 0).then(|| self.base_timestamp())
    }
}

/// Appends the batch to `out` with only the records in `kept`, of which there must be at least one. The codec stays the
/// same. `horizon_ms` is the time from which a cleaning can remove the batch's tombstones.
///
/// # Errors
/// Returns [`BatchError::Compression`] if the codec does not exist, and [`BatchError::Decompress`] if the codec fails.
pub fn retain(
    batch: &BatchView<'_>,
    kept: &[RawRecord<'_>],
    horizon_ms: Option<i64>,
    out: &mut BytesMut,
) -> Result<(), BatchError> {
    let base_timestamp = horizon_ms.unwrap_or(batch.base_timestamp());
    let timestamp = |record: &RawRecord<'_>| record.timestamp(batch);
    let mut payload = BytesMut::with_capacity(kept.iter().map(|record| record.bytes.len() + LEN_MAX).sum());
    for record in kept {
        if horizon_ms.is_none() {
            payload.put_slice(record.bytes);
        } else {
            put_moved(record, timestamp(record).wrapping_sub(base_timestamp), &mut payload);
        }
    }
    let max_timestamp = match batch.timestamp_type() {
        TimestampType::CreateTime => kept.iter().map(timestamp).max().unwrap_or(batch.max_timestamp()),
        TimestampType::LogAppendTime => batch.max_timestamp(),
    };
    let start = out.len();
    out.put_slice(&batch.bytes()[..HEADER_LEN]);
    match batch.compression()? {
        Compression::None => out.put_slice(&payload),
        codec => compress(codec, None, &payload, out)?,
    }
    let horizon = if horizon_ms.is_some() { DELETE_HORIZON } else { 0 };
    let count = i32::try_from(kept.len()).expect("no more than the batch had");
    finish(&mut out[start..], batch.attributes() | horizon, base_timestamp, max_timestamp, count);
    Ok(())
}

/// Appends the batch to `out` without any records. The header with the batch's offsets and sequences remains.
pub fn retain_empty(batch: &BatchView<'_>, out: &mut BytesMut) {
    const NO_TIMESTAMP: i64 = -1;
    let start = out.len();
    out.put_slice(&batch.bytes()[..HEADER_LEN]);
    let attributes = batch.attributes() & !(CODEC | DELETE_HORIZON);
    finish(&mut out[start..], attributes, NO_TIMESTAMP, batch.max_timestamp(), 0);
}

fn put_moved(record: &RawRecord<'_>, timestamp_delta: i64, out: &mut BytesMut) {
    let mut head = [0; 2 * LEN_MAX + 1];
    head[0] = record.attributes;
    let mut len = 1 + varint::put(&mut head[1..], timestamp_delta);
    len += varint::put(&mut head[len..], i64::from(record.offset_delta));
    let mut prefix = [0; LEN_MAX];
    let prefix_len = varint::put(&mut prefix, (len + record.tail.len()) as i64);
    out.put_slice(&prefix[..prefix_len]);
    out.put_slice(&head[..len]);
    out.put_slice(record.tail);
}

fn finish(batch: &mut [u8], attributes: i16, base_timestamp: i64, max_timestamp: i64, count: i32) {
    let length = i32::try_from(batch.len() - 12).expect("a batch, and no larger than some decompression allowed");
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    batch[21..23].copy_from_slice(&attributes.to_be_bytes());
    batch[27..35].copy_from_slice(&base_timestamp.to_be_bytes());
    batch[35..43].copy_from_slice(&max_timestamp.to_be_bytes());
    batch[57..61].copy_from_slice(&count.to_be_bytes());
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::{BatchBuilder, Header, RecordIter, Stamp, decompress};
    use super::*;

    type Row = (i64, i64, Option<Vec<u8>>, Option<Vec<u8>>, usize);

    fn rows(bytes: &[u8]) -> Vec<Row> {
        let batch = BatchView::first(bytes).expect("a batch");
        batch.check_crc().expect("a checksum");
        let payload = decompress(batch.compression().expect("a codec"), batch.payload(), 1 << 20).expect("opens");
        let record = |record: Result<super::super::Record<'_>, BatchError>| {
            let record = record.expect("a record");
            let field = |field: Option<&[u8]>| field.map(<[u8]>::to_vec);
            let (offset, time) = (record.offset(&batch), record.timestamp(&batch));
            (offset, time, field(record.key), field(record.value), record.headers.len())
        };
        RecordIter::new(&payload, batch.record_count()).map(record).collect()
    }

    fn sample(codec: Compression) -> BytesMut {
        let mut builder = BatchBuilder::new(BytesMut::new(), codec, None);
        for n in 0..10_u8 {
            let value = [n; 40];
            let value = (n % 3 != 0).then_some(&value[..]);
            let header = Header { key: b"h", value: None };
            builder.append(1000 + i64::from(n * 7 % 10), Some(&[n]), value, &[header][..usize::from(n % 2)]);
        }
        let mut bytes = builder.seal(Stamp { producer_id: 5, producer_epoch: 3, base_sequence: 77 }).expect("sealed").0;
        bytes[..8].copy_from_slice(&1234_i64.to_be_bytes());
        bytes[12..16].copy_from_slice(&9_i32.to_be_bytes());
        bytes
    }

    #[test]
    fn kept_records_and_the_offsets_of_the_batch_stay_the_same() {
        for codec in [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd] {
            let bytes = sample(codec);
            let batch = BatchView::first(&bytes).expect("a batch");
            let payload = decompress(codec, batch.payload(), 1 << 20).expect("opens");
            let records: Vec<_> = RawRecords::new(&batch, &payload).map(|record| record.expect("a record")).collect();
            for horizon in [None, Some(1_700_000_000_000)] {
                let kept: Vec<_> = records.iter().copied().filter(|record| record.offset_delta % 4 == 3).collect();
                let mut out = BytesMut::new();
                retain(&batch, &kept, horizon, &mut out).expect("retained");
                let expected: Vec<_> = rows(&bytes).into_iter().filter(|row| (row.0 - 1234) % 4 == 3).collect();
                assert_eq!(rows(&out), expected);
                let after = BatchView::first(&out).expect("a batch");
                assert_eq!(after.size(), out.len());
                assert_eq!((after.base_offset(), after.last_offset()), (batch.base_offset(), batch.last_offset()));
                assert_eq!((after.producer_id(), after.producer_epoch(), after.base_sequence()), (5, 3, 77));
                assert_eq!((after.partition_leader_epoch(), after.compression()), (9, Ok(codec)));
                assert_eq!(after.delete_horizon_ms(), horizon);
                assert_eq!(after.max_timestamp(), expected.iter().map(|row| row.1).max().expect("some"));
            }
            let mut out = BytesMut::new();
            retain_empty(&batch, &mut out);
            let after = BatchView::first(&out).expect("a batch");
            assert_eq!((out.len(), after.record_count(), after.compression()), (HEADER_LEN, 0, Ok(Compression::None)));
            assert_eq!((after.last_offset(), after.base_sequence(), after.max_timestamp()), (1243, 77, 1009));
            assert!(rows(&out).is_empty());
        }
    }

    #[test]
    fn records_out_of_order_or_past_the_batch_are_an_error() {
        let bytes = sample(Compression::None);
        let batch = BatchView::first(&bytes).expect("a batch");
        let all = |payload: &[u8]| RawRecords::new(&batch, payload).collect::<Result<Vec<_>, _>>().map(|all| all.len());
        assert_eq!(all(batch.payload()), Ok(10));
        let first_len = usize::from(batch.payload()[0] / 2) + 1;
        let twice = [&batch.payload()[..first_len], batch.payload()].concat();
        assert!(all(&twice).is_err());
        for end in 0..batch.payload().len() {
            assert!(all(&batch.payload()[..end]).is_err(), "{end} bytes");
        }
    }
}
