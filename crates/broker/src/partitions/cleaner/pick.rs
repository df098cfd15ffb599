//! How dirty a partition is, looked up without opening it where its files' sizes tell enough.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use fullbore_rules::compaction::{Closed, Dirty, Facts, Lags, dirty};

use crate::config::TopicConfig;
use crate::log::files::{LOG, parse_offset_name};
use crate::log::log::Log;
use crate::log::segment::modified_ms;
use crate::replica::replica::{LogState, Partition};

impl Partition {
    /// What a cleaning would have to do now; `None` if the partition is not compacted or there is nothing to be had.
    /// A segment with records past max.compaction.lag.ms is closed first.
    pub(crate) fn dirty(self: &Arc<Self>, checkpoint: Option<i64>, now_ms: i64) -> Option<(Dirty, Arc<TopicConfig>)> {
        let mut state = self.lock();
        let config = self.config();
        if !config.cleanup.compact {
            return None;
        }
        match &state.log {
            LogState::Open(_) => {}
            LogState::Unopened if may_be_due(&self.dir(), checkpoint, now_ms, &config).unwrap_or(false) => {}
            _ => return None,
        }
        let looked = match self.log_to_read(&mut state) {
            Ok(Some((log, high_watermark))) if !log.broken => log.dirty(checkpoint, high_watermark, now_ms, &config),
            _ => return None,
        };
        match looked {
            Ok((dirty, has_rolled)) => {
                if has_rolled {
                    self.log_dir.flusher.enqueue(self, &mut state, false);
                }
                Some((dirty, config))
            }
            Err(error) => {
                tracing::error!(dir = %self.dir().display(), %error, "not looked at for compaction");
                None
            }
        }
    }
}

impl Log {
    fn dirty(
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
        let facts = Facts {
            closed: &closed,
            active_base,
            log_start: self.log_start,
            log_end: self.log_end,
            high_watermark,
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

/// Whether a partition that is not open may be due, by the sizes of its files and when they were written.
fn may_be_due(dir: &Path, checkpoint: Option<i64>, now_ms: i64, config: &TopicConfig) -> io::Result<bool> {
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
    let facts = Facts {
        closed: &closed,
        active_base: active.base_offset,
        log_start: closed.first().map_or(active.base_offset, |first| first.base_offset),
        log_end: i64::MAX,
        high_watermark: i64::MAX,
        checkpoint,
    };
    Ok(dirty(&facts, lags, now_ms).is_due(config.min_cleanable_dirty_ratio.0))
}
