//! Finds the dirty part of a log: the records that compaction has not processed yet.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fullbore_rules::compaction::{CleanableLog, Closed, Dirty, Lags, Source, dirty};
use fullbore_wire::batch::BatchError;

use super::error::CleanError;
use crate::Log;
use crate::files::{LOG, parse_offset_name};
use crate::segment::modified_ms;
use fullbore_config::TopicConfig;

/// A segment, as it is when compaction begins.
#[derive(Debug)]
pub struct DirtySegment {
    pub path: PathBuf,
    pub source: Source,
    /// The position from which compaction must read: that of the batch with the first dirty offset, or of an earlier
    /// batch.
    pub dirty_position: u64,
}

impl DirtySegment {
    /// Returns the error for a batch that cannot be read.
    pub fn damaged(&self, position: u64, why: BatchError) -> CleanError {
        CleanError::Damaged { path: self.path.clone(), position, why }
    }
}

impl Log {
    /// Returns the segments that compaction has to read and rewrite.
    pub fn segments_to_clean(&self, dirty: &Dirty) -> io::Result<Vec<DirtySegment>> {
        let ends = self.segments.iter().skip(1).map(|segment| segment.base_offset);
        let mut found = Vec::new();
        for (segment, end_offset) in self.segments.iter().zip(ends) {
            if segment.base_offset >= dirty.end {
                break;
            }
            let is_cut = (segment.base_offset..end_offset).contains(&dirty.first_dirty);
            let dirty_position = if is_cut { segment.position_before(dirty.first_dirty)? } else { 0 };
            let index_size = (segment.offsets.len() * 8).max(segment.times.len() * 12) as u64;
            let source = Source { base_offset: segment.base_offset, end_offset, size: segment.size, index_size };
            found.push(DirtySegment { path: segment.path(LOG), source, dirty_position });
        }
        Ok(found)
    }

    /// Returns the number of truncations since the log was opened.
    pub fn cuts(&self) -> u32 {
        self.flushes.cuts()
    }

    /// Returns true if a segment begins with this offset.
    pub fn has_segment(&self, base_offset: i64) -> bool {
        self.segments.iter().any(|known| known.base_offset == base_offset)
    }

    /// Returns the dirty part, which ends before the first open transaction. If the active segment has records that are
    /// older than max.compaction.lag.ms, first starts a new segment, so that they can be compacted. The flag is true in
    /// that case.
    pub fn dirty(
        &mut self,
        checkpoint: Option<i64>,
        high_watermark: i64,
        now_ms: i64,
        config: &TopicConfig,
    ) -> io::Result<(Dirty, bool)> {
        let lags = lags(config);
        let has_rolled = lags.max_ms != i64::MAX && self.active_is_overdue(now_ms, lags.max_ms)?;
        if has_rolled {
            self.roll(now_ms)?;
        }
        let active_base = self.segments.back().expect("a log has a segment").base_offset;
        let closed_count = self.segments.len() - 1;
        let mut closed = Vec::with_capacity(closed_count);
        let first_dirty = checkpoint.unwrap_or(0);
        for at in 0..closed_count {
            let end_offset = self.segments[at + 1].base_offset;
            let segment = &mut self.segments[at];
            let is_dirty = end_offset > first_dirty;
            let was_open = segment.has_open_file();
            let first_timestamp = if is_dirty && lags.max_ms != i64::MAX { segment.first_timestamp()? } else { None };
            if !was_open {
                segment.close_file();
            }
            let largest_timestamp = if is_dirty && lags.min_ms > 0 { segment.largest_timestamp()? } else { None };
            closed.push(Closed {
                base_offset: segment.base_offset,
                size: segment.size,
                first_timestamp,
                largest_timestamp,
            });
        }
        let facts = CleanableLog {
            closed: &closed,
            active_base,
            log_start: self.log_start,
            log_end: self.log_end,
            last_stable_offset: self.last_stable_offset(high_watermark),
            checkpoint,
        };
        Ok((dirty(&facts, lags, now_ms), has_rolled))
    }

    fn active_is_overdue(&mut self, now_ms: i64, max_lag_ms: i64) -> io::Result<bool> {
        let active = self.segments.back_mut().expect("a log has a segment");
        let first = active.first_timestamp()?.filter(|&first| first > 0);
        Ok(first.is_some_and(|first| now_ms.saturating_sub(first) > max_lag_ms))
    }
}

fn lags(config: &TopicConfig) -> Lags {
    Lags { min_ms: config.min_compaction_lag_ms, max_ms: config.max_compaction_lag_ms }
}

/// Returns true if a partition whose log is not open may need compaction, judged by the sizes and ages of its files.
pub fn may_be_due(dir: &Path, checkpoint: Option<i64>, now_ms: i64, config: &TopicConfig) -> io::Result<bool> {
    let lags = lags(config);
    let mut closed = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if let Some((base_offset, LOG)) = entry.file_name().to_str().and_then(parse_offset_name) {
            let size = entry.metadata()?.len();
            let is_old =
                lags.max_ms != i64::MAX && size > 0 && now_ms.saturating_sub(modified_ms(&entry.path())?) > lags.max_ms;
            if is_old && checkpoint.is_none_or(|clean| base_offset >= clean) {
                return Ok(true);
            }
            closed.push(Closed { base_offset, size, first_timestamp: None, largest_timestamp: None });
        }
    }
    closed.sort_unstable_by_key(|segment| segment.base_offset);
    let Some(active) = closed.pop() else {
        return Ok(false);
    };
    let facts = CleanableLog {
        closed: &closed,
        active_base: active.base_offset,
        log_start: closed.first().map_or(active.base_offset, |first| first.base_offset),
        log_end: i64::MAX,
        last_stable_offset: i64::MAX,
        checkpoint,
    };
    Ok(dirty(&facts, lags, now_ms).is_due(config.min_cleanable_dirty_ratio.0))
}
