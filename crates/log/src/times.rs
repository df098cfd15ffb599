//! ListOffsets by time: the first record not older than a time, and the newest record of all.
//!
//! Not here: the search for the batch, by the time index and [`crate::lookup`]. This module finds the record in the
//! batch.
//!
//! Invariant: an answer is a record between log start and high watermark, with its own timestamp. If compressed records
//! cannot be read, the answer is the batch's first offset with the header's timestamp. The records may have been stored
//! without a check: they may be corrupt, or decompress from a few bytes to gigabytes.

use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use fullbore_wire::batch::{BatchError, BatchView, Compression, RecordIter, TimestampType, decompress};

use super::Log;
use super::lookup::OffsetLookup;
use super::scan::Header;
use crate::direct_io::DirectReads;
use crate::partition::read::TimestampOffset;

/// Most bytes of a batch that is decompressed for its timestamps, as a multiple of its topic's max.message.bytes. For a
/// larger batch, the header's timestamp is used.
const DECOMPRESSED_TIMES_MAX: usize = 16;
/// Most bytes of a batch of any topic that is decompressed for its timestamps.
const DECOMPRESSED_MAX: usize = 64 << 20;

/// Part of a segment in which a time is searched.
pub struct TimePlan {
    plan: OffsetLookup,
    /// First offset of the next segment.
    end_offset: i64,
    /// Offset before which records do not count.
    floor: i64,
    high_watermark: i64,
    /// Most bytes of a decompressed batch.
    decompressed_max: usize,
}

/// Plan of the search for the largest timestamp from the log start on.
pub struct LargestPlan {
    /// Log start.
    pub floor: i64,
    /// Largest timestamp of the segments that begin at the log start or later, in ms.
    pub indexed: Option<i64>,
    /// Segment that the log start divides: its time index also has deleted records.
    pub divided: Option<TimePlan>,
}

impl Log {
    /// Plans a search in the first segment at or after `from` that may have a record with `timestamp` or later; None if
    /// there is no such segment. `batch_max` is max.message.bytes.
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

    /// Returns the largest timestamp in the time indexes, in ms, from the segment of the log start on; None without
    /// records. It may be that of a deleted record.
    pub fn largest_indexed(&mut self) -> io::Result<Option<i64>> {
        self.largest_since(self.segment_of(self.log_start))
    }

    /// Plans the search for the largest timestamp from the log start on; `batch_max` is max.message.bytes.
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
    /// Returns true if the segment's files may have been replaced.
    pub fn is_stale(&self) -> bool {
        self.plan.is_stale()
    }

    /// Returns the first offset of the next segment.
    pub fn end_offset(&self) -> i64 {
        self.end_offset
    }

    /// Returns the first record that reaches `timestamp`; None if this segment has none after all.
    pub fn find(&self, timestamp: i64, cold: &DirectReads) -> io::Result<Option<TimestampOffset>> {
        let found = self.plan.find_timestamp(timestamp, cold, |batch| {
            let record = match self.first_record(batch, timestamp)? {
                // Ok(None) if the header claims a timestamp that none of its records has.
                Ok(record) => record,
                Err(error) => {
                    tracing::debug!(offset = batch.base_offset, %error, "cannot read the records of a batch: the time is looked up by its header");
                    Some(by_header(batch, self.floor))
                }
            };
            let found = |(offset, timestamp)| TimestampOffset { offset, timestamp, leader_epoch: batch.leader_epoch };
            Ok(record.map(found))
        })?;
        Ok(found.filter(|found| found.offset < self.high_watermark))
    }

    /// Returns offset and timestamp of the batch's first record from the floor on that reaches `timestamp`; None if no
    /// record does.
    fn first_record(&self, header: &Header, timestamp: i64) -> io::Result<Result<Option<(i64, i64)>, BatchError>> {
        Ok(first_record(&self.bytes(header)?, timestamp, self.floor, self.decompressed_max))
    }

    /// Returns the largest timestamp from the floor on; None without records. Only the batch that the floor divides is
    /// decompressed.
    pub fn largest(&self, cold: &DirectReads) -> io::Result<Option<i64>> {
        let mut largest = None;
        self.plan.find_timestamp(i64::MIN, cold, |batch| {
            let of_batch = match batch.base_offset < self.floor {
                true => largest_from(&self.bytes(batch)?, self.floor, self.decompressed_max),
                false => Some(batch.max_timestamp),
            };
            largest = largest.max(of_batch);
            Ok(None::<()>)
        })?;
        Ok(largest)
    }

    fn bytes(&self, header: &Header) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; header.size as usize];
        self.plan.file().read_exact_at(&mut bytes, header.position)?;
        Ok(bytes)
    }
}

/// Returns the offset to read from if the records cannot be read, and the header's timestamp. No record is missed, and
/// a few older records may come first.
fn by_header(batch: &Header, floor: i64) -> (i64, i64) {
    (batch.base_offset.max(floor), batch.max_timestamp)
}

/// Returns the first record of a single batch, from the floor on, that reaches
/// `timestamp`; None if no record does. `batch_max` is max.message.bytes. If the records cannot be read, uses the
/// header's timestamp.
pub fn first_record_at(bytes: &[u8], timestamp: i64, floor: i64, batch_max: usize) -> Option<TimestampOffset> {
    let batch = BatchView::first(bytes).ok()?;
    let leader_epoch = batch.partition_leader_epoch();
    let by_header = (batch.base_offset().max(floor), batch.max_timestamp());
    let found = first_record(bytes, timestamp, floor, decompressed_max(batch_max)).unwrap_or(Some(by_header));
    found.map(|(offset, timestamp)| TimestampOffset { offset, timestamp, leader_epoch })
}

/// Returns the largest timestamp of a batch's records from the floor on; None without such records. `batch_max` is
/// max.message.bytes. If the records cannot be read, uses the header's timestamp.
pub fn largest_at(bytes: &[u8], floor: i64, batch_max: usize) -> Option<i64> {
    largest_from(bytes, floor, decompressed_max(batch_max))
}

fn largest_from(bytes: &[u8], floor: i64, decompressed_max: usize) -> Option<i64> {
    let batch = BatchView::first(bytes).ok()?;
    if batch.timestamp_type() == TimestampType::LogAppendTime {
        return Some(batch.max_timestamp());
    }
    let opened = opened(&batch, decompressed_max).and_then(|records| {
        let times = RecordIter::new(&records, batch.record_count()).map(|record| {
            let record = record?;
            Ok((record.offset(&batch) >= floor).then(|| record.timestamp(&batch)))
        });
        times.collect::<Result<Vec<_>, BatchError>>()
    });
    opened.map_or(Some(batch.max_timestamp()), |times| times.into_iter().flatten().max())
}

fn opened(batch: &BatchView<'_>, decompressed_max: usize) -> Result<Bytes, BatchError> {
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
) -> Result<Option<(i64, i64)>, BatchError> {
    let batch = BatchView::first(bytes)?;
    if batch.timestamp_type() == TimestampType::LogAppendTime {
        return Ok(Some((batch.base_offset().max(floor), batch.max_timestamp())));
    }
    let records = opened(&batch, decompressed_max)?;
    for record in RecordIter::new(&records, batch.record_count()) {
        let record = record?;
        let (offset, own) = (record.offset(&batch), record.timestamp(&batch));
        if own >= timestamp && offset >= floor {
            return Ok(Some((offset, own)));
        }
    }
    Ok(None)
}
