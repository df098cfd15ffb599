//! ListOffsets by time: the first record not older than a time, and the newest record of all.
//!
//! Not an index; the time index and [`crate::log::lookup`] find the batch, here the record in it is found.
//!
//! Invariant: an answer is a record between log start and high watermark, with its own timestamp; or the first record
//! of the batch and the header's timestamp, where compressed records do not open: they were never looked at before, and
//! may be corrupt or a few bytes that claim gigabytes. Only the newest record of all may be before the log start: as with
//! Kafka, it is told for as long as its segment is there.

use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use fullbore_wire::batch::{BatchError, BatchView, Compression, RecordIter, TimestampType, decompress};

use super::Log;
use super::error::TimestampOffset;
use super::lookup::OffsetLookup;
use super::scan::Header;
use crate::cold::Cold;

/// How many times its topic's max.message.bytes a batch may take when it is decompressed to look at its timestamps,
/// and how many bytes in any case. The header answers for a batch that takes more.
const DECOMPRESSED_TIMES_MAX: usize = 16;
const DECOMPRESSED_MAX: usize = 64 << 20;

/// Where in one segment a time is to be looked for.
pub struct TimePlan {
    plan: OffsetLookup,
    /// The first offset of the next segment.
    end_offset: i64,
    /// Records before it are not meant.
    floor: i64,
    high_watermark: i64,
    /// Bytes a batch may take decompressed.
    decompressed_max: usize,
}

impl Log {
    /// The first segment at or after `from` that may hold such a record; `batch_max` is max.message.bytes.
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
            return Ok(Some(TimePlan {
                plan,
                end_offset,
                floor,
                high_watermark,
                decompressed_max: decompressed_max(batch_max),
            }));
        }
        Ok(None)
    }

    /// The largest timestamp of all records there are files of.
    pub fn largest_timestamp(&mut self) -> io::Result<Option<i64>> {
        let mut best = None;
        for segment in &mut self.segments {
            best = best.max(segment.largest_record()?.map(|largest| largest.timestamp));
        }
        Ok(best)
    }
}

impl TimePlan {
    /// Whether the segment's files may be others by now.
    pub fn is_stale(&self) -> bool {
        self.plan.is_stale()
    }

    /// The first offset of the next segment.
    pub fn end_offset(&self) -> i64 {
        self.end_offset
    }

    /// The record, if this segment has one after all.
    pub fn find(&self, timestamp: i64, cold: &Cold) -> io::Result<Option<TimestampOffset>> {
        let found = self.plan.find_timestamp(timestamp, cold, |batch| {
            let record = match self.first_record(batch, timestamp)? {
                // None: a header that claims a timestamp none of its records has.
                Ok(record) => record,
                Err(error) => {
                    tracing::debug!(offset = batch.base_offset, %error, "a time is looked up by the batch's header");
                    Some(by_header(batch, self.floor))
                }
            };
            let found = |(offset, timestamp)| TimestampOffset { offset, timestamp, leader_epoch: batch.leader_epoch };
            Ok(record.map(found))
        })?;
        Ok(found.filter(|found| found.offset < self.high_watermark))
    }

    /// Offset and timestamp of the batch's first record from the floor on with such a timestamp.
    fn first_record(&self, header: &Header, timestamp: i64) -> io::Result<Result<Option<(i64, i64)>, BatchError>> {
        let mut bytes = vec![0; header.size as usize];
        self.plan.file().read_exact_at(&mut bytes, header.position)?;
        Ok(first_record(&bytes, timestamp, self.floor, self.decompressed_max))
    }
}

/// Where to start reading when the records cannot be opened: no record is missed, and a few older ones may come first.
fn by_header(batch: &Header, floor: i64) -> (i64, i64) {
    (batch.base_offset.max(floor), batch.max_timestamp)
}

/// The first record of this batch from the floor on with such a timestamp, where the batch lies alone and `batch_max` is max.message.bytes.
/// Its header answers where its records do not open.
pub fn first_record_at(bytes: &[u8], timestamp: i64, floor: i64, batch_max: usize) -> Option<TimestampOffset> {
    let batch = BatchView::first(bytes).ok()?;
    let leader_epoch = batch.partition_leader_epoch();
    let by_header = (batch.base_offset().max(floor), batch.max_timestamp());
    let found = first_record(bytes, timestamp, floor, decompressed_max(batch_max)).unwrap_or(Some(by_header));
    found.map(|(offset, timestamp)| TimestampOffset { offset, timestamp, leader_epoch })
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
    let records = match batch.compression()? {
        Compression::None => Bytes::copy_from_slice(batch.payload()),
        codec => decompress(codec, batch.payload(), decompressed_max)?,
    };
    for record in RecordIter::new(&records, batch.record_count()) {
        let record = record?;
        let (offset, own) = (record.offset(&batch), record.timestamp(&batch));
        if own >= timestamp && offset >= floor {
            return Ok(Some((offset, own)));
        }
    }
    Ok(None)
}
