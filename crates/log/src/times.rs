//! Finds records by time for ListOffsets: the first record at or after a time, and the record with the largest
//! timestamp.
//!
//! [`crate::lookup`] finds the batch with the help of the time index, and this module finds the record in it.
//!
//! Invariant: an answer is a record between the log start and the high watermark, with its own timestamp. If compressed
//! records cannot be read, the answer is the batch's first offset with the timestamp of its header. This can happen
//! because some topics store compressed records without a check. The records may be corrupt, or a few bytes may
//! decompress to gigabytes. The same answer is given for a batch beyond a search's [`DecompressionAllowance`].

use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use fullbore_wire::batch::{BatchError, BatchView, Compression, RecordIter, TimestampType, decompress};

use super::Log;
use super::lookup::OffsetLookup;
use super::scan::Header;
use crate::direct_io::DirectReads;
use crate::partition::read::TimestampOffset;

/// Maximum size of a batch after decompression, as a multiple of the topic's max.message.bytes. A larger batch is not
/// decompressed. The search then uses the timestamp in its header.
const DECOMPRESSED_TIMES_MAX: usize = 16;
/// Maximum size of a batch after decompression in any topic, in bytes.
const DECOMPRESSED_MAX: usize = 64 << 20;

/// How many bytes one search decompresses. After that, the search trusts the headers of further batches. A search needs
/// more than one batch only if a header claims a timestamp that none of the batch's records has.
const ALLOWANCE_MAX: usize = 64 << 20;
/// Minimum size with which a decompressed batch counts, because even a small batch takes time to read and scan.
const COUNTED_MIN: usize = 64 << 10;

/// How much a search may still decompress. Some topics do not check the timestamps in headers. Without this limit, a
/// client could send headers with wrong timestamps and make a search decompress a whole log.
pub struct DecompressionAllowance {
    left: usize,
}

impl Default for DecompressionAllowance {
    fn default() -> Self {
        DecompressionAllowance { left: ALLOWANCE_MAX }
    }
}

/// A plan to search one segment for a time.
pub struct TimePlan {
    plan: OffsetLookup,
    /// The first offset of the next segment.
    end_offset: i64,
    /// The smallest offset of a record that the search may return.
    floor: i64,
    high_watermark: i64,
    /// Maximum size of a batch after decompression, in bytes.
    decompressed_max: usize,
}

/// A plan to find the largest timestamp from the log start on.
pub struct LargestPlan {
    /// The log start.
    pub floor: i64,
    /// The largest timestamp, in ms, in all segments that begin at the log start or later, from their time indexes.
    pub indexed: Option<i64>,
    /// A search in the segment that begins before the log start and contains it. Its time index also covers deleted
    /// records, so its batches must be searched.
    pub divided: Option<TimePlan>,
}

impl Log {
    /// Plans a search in the first segment at or after `from` that may have a record with `timestamp` or later. Returns
    /// `None` if there is no such segment. `batch_max` is max.message.bytes.
    pub fn plan_timestamp(
        &mut self,
        timestamp: i64,
        from: i64,
        floor: i64,
        high_watermark: i64,
        batch_max: usize,
    ) -> io::Result<Option<TimePlan>> {
        let from = from.max(floor);
        for index in self.segment_of(from)..self.segments.len() {
            let end_offset = self.segments.get(index + 1).map_or(self.log_end, |next| next.base_offset);
            let segment = &mut self.segments[index];
            let is_candidate = segment.largest_record()?.is_some_and(|largest| largest.timestamp >= timestamp);
            if end_offset <= from || !is_candidate {
                continue;
            }
            let start = segment.base_offset + segment.offset_before(timestamp)?;
            let plan = OffsetLookup::new(segment, start.max(from), end_offset, &self.generation)?;
            let decompressed_max = decompressed_max(batch_max);
            return Ok(Some(TimePlan { plan, end_offset, floor, high_watermark, decompressed_max }));
        }
        Ok(None)
    }

    /// Returns the largest timestamp in the time indexes, in ms, beginning with the segment that contains the log
    /// start. Returns `None` if there are no records. The timestamp may belong to a deleted record of that first
    /// segment.
    pub fn largest_indexed(&mut self) -> io::Result<Option<i64>> {
        self.largest_since(self.segment_of(self.log_start))
    }

    /// Plans a search for the largest timestamp from the log start on. `batch_max` is max.message.bytes.
    pub fn plan_largest(&mut self, high_watermark: i64, batch_max: usize) -> io::Result<LargestPlan> {
        let floor = self.log_start;
        let index = self.segment_of(floor);
        let end_offset = self.segments.get(index + 1).map_or(self.log_end, |next| next.base_offset);
        let segment = &mut self.segments[index];
        let divided = if segment.base_offset < floor && floor < end_offset {
            let plan = OffsetLookup::new(segment, floor, end_offset, &self.generation)?;
            let decompressed_max = decompressed_max(batch_max);
            Some(TimePlan { plan, end_offset, floor, high_watermark, decompressed_max })
        } else {
            None
        };
        let is_deleted = self.segments[index].base_offset < floor;
        let indexed = self.largest_since(index + usize::from(is_deleted))?;
        Ok(LargestPlan { floor, indexed, divided })
    }

    fn largest_since(&mut self, index: usize) -> io::Result<Option<i64>> {
        let mut largest = None;
        for segment in self.segments.range_mut(index..) {
            largest = largest.max(segment.largest_record()?.map(|largest| largest.timestamp));
        }
        Ok(largest)
    }
}

impl TimePlan {
    /// Returns true if the segment's files may have been replaced since the plan was made.
    pub fn is_stale(&self) -> bool {
        self.plan.is_stale()
    }

    /// Returns the first offset of the next segment.
    pub fn end_offset(&self) -> i64 {
        self.end_offset
    }

    /// Returns the first record with `timestamp` or later. Returns `None` if this segment has no such record, although
    /// its time index claims one.
    pub fn find(
        &self,
        timestamp: i64,
        cold: &DirectReads,
        allowance: &mut DecompressionAllowance,
    ) -> io::Result<Option<TimestampOffset>> {
        let found = self.plan.find_timestamp(timestamp, cold, |batch| {
            let record = match self.first_record(batch, timestamp, cold, allowance)? {
                // If this is `Ok(None)`, none of the records has the timestamp that the header claims, so the search
                // goes on.
                Ok(record) => record,
                Err(error) => {
                    tracing::debug!(offset = batch.base_offset, %error, "cannot read the records of a batch: the search for a time uses the timestamps of the batch header");
                    Some(by_header(batch, self.floor))
                }
            };
            let found = |(offset, timestamp)| TimestampOffset { offset, timestamp, leader_epoch: batch.leader_epoch };
            Ok(record.map(found))
        })?;
        Ok(found.filter(|found| found.offset < self.high_watermark))
    }

    /// Returns offset and timestamp of the first record in the batch that has at least the offset `self.floor` and at
    /// least the timestamp `timestamp`; `None` if there is none. Once the search may not decompress any more, returns
    /// the values in the batch's header instead.
    fn first_record(
        &self,
        header: &Header,
        timestamp: i64,
        cold: &DirectReads,
        allowance: &mut DecompressionAllowance,
    ) -> io::Result<Result<Option<(i64, i64)>, BatchError>> {
        if allowance.left == 0 {
            return Ok(Ok(Some(by_header(header, self.floor))));
        }
        Ok(first_record(&self.bytes(header, cold)?, timestamp, self.floor, self.decompressed_max, allowance))
    }

    /// Returns the largest timestamp of the records from offset `self.floor` on; `None` if there are no records. Only
    /// the batch that contains this offset is decompressed.
    pub fn largest(&self, cold: &DirectReads) -> io::Result<Option<i64>> {
        let mut largest = None;
        self.plan.find_timestamp(i64::MIN, cold, |batch| {
            let of_batch = match batch.base_offset < self.floor {
                true => largest_from(&self.bytes(batch, cold)?, self.floor, self.decompressed_max),
                false => Some(batch.max_timestamp),
            };
            largest = largest.max(of_batch);
            Ok(None::<()>)
        })?;
        Ok(largest)
    }

    fn bytes(&self, header: &Header, cold: &DirectReads) -> io::Result<Vec<u8>> {
        let (file, mut bytes) = (self.plan.file(), vec![0; header.size as usize]);
        let read = file.read_exact_at(&mut bytes, header.position);
        read.inspect_err(|error| cold.failed().note(file, header.position, bytes.len(), error, true))?;
        Ok(bytes)
    }
}

/// Returns an answer for a batch whose records cannot be read: its first offset, and the timestamp in its header. A
/// reader that starts there misses nothing, but may get a few older records first.
fn by_header(batch: &Header, floor: i64) -> (i64, i64) {
    (batch.base_offset.max(floor), batch.max_timestamp)
}

/// Returns the first record in a batch whose offset is at least `floor` and whose timestamp is at least `timestamp`;
/// `None` if there is none. `batch_max` is max.message.bytes. If the records cannot be read, or the search must not
/// decompress any more, the timestamp in the header is used.
pub fn first_record_at(
    bytes: &[u8],
    timestamp: i64,
    floor: i64,
    batch_max: usize,
    allowance: &mut DecompressionAllowance,
) -> Option<TimestampOffset> {
    let batch = BatchView::first(bytes).ok()?;
    let leader_epoch = batch.partition_leader_epoch();
    let by_header = Some((batch.base_offset().max(floor), batch.max_timestamp()));
    let found = match allowance.left {
        0 => by_header,
        _ => first_record(bytes, timestamp, floor, decompressed_max(batch_max), allowance).unwrap_or(by_header),
    };
    found.map(|(offset, timestamp)| TimestampOffset { offset, timestamp, leader_epoch })
}

/// Returns the largest timestamp of those records in a batch whose offset is at least `floor`; `None` if there are
/// none. `batch_max` is max.message.bytes. If the records cannot be read, the timestamp in the header is used.
pub fn largest_at(bytes: &[u8], floor: i64, batch_max: usize) -> Option<i64> {
    largest_from(bytes, floor, decompressed_max(batch_max))
}

fn largest_from(bytes: &[u8], floor: i64, decompressed_max: usize) -> Option<i64> {
    let batch = BatchView::first(bytes).ok()?;
    if batch.timestamp_type() == TimestampType::LogAppendTime {
        return Some(batch.max_timestamp());
    }
    let found = decompressed(&batch, decompressed_max).and_then(|records| {
        let times = RecordIter::new(&records, batch.record_count()).map(|record| {
            let record = record?;
            Ok((record.offset(&batch) >= floor).then(|| record.timestamp(&batch)))
        });
        times.collect::<Result<Vec<_>, BatchError>>()
    });
    found.map_or(Some(batch.max_timestamp()), |times| times.into_iter().flatten().max())
}

fn decompressed(batch: &BatchView<'_>, decompressed_max: usize) -> Result<Bytes, BatchError> {
    match batch.compression()? {
        Compression::None => Ok(Bytes::copy_from_slice(batch.payload())),
        codec => decompress(codec, batch.payload(), decompressed_max),
    }
}

fn decompressed_max(batch_max: usize) -> usize {
    batch_max.saturating_mul(DECOMPRESSED_TIMES_MAX).min(DECOMPRESSED_MAX)
}

fn first_record(
    bytes: &[u8],
    timestamp: i64,
    floor: i64,
    decompressed_max: usize,
    allowance: &mut DecompressionAllowance,
) -> Result<Option<(i64, i64)>, BatchError> {
    let batch = BatchView::first(bytes)?;
    if batch.timestamp_type() == TimestampType::LogAppendTime {
        return Ok(Some((batch.base_offset().max(floor), batch.max_timestamp())));
    }
    let records = decompressed(&batch, decompressed_max)?;
    allowance.left = allowance.left.saturating_sub(records.len().max(COUNTED_MIN));
    for record in RecordIter::new(&records, batch.record_count()) {
        let record = record?;
        let (offset, own) = (record.offset(&batch), record.timestamp(&batch));
        if own >= timestamp && offset >= floor {
            return Ok(Some((offset, own)));
        }
    }
    Ok(None)
}
