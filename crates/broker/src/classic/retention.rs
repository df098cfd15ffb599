//! Forgetting old records: by age, by size, and before a log start that was moved.
//!
//! Whole segments only, oldest first. They are renamed at once and removed later, so that a fetch that
//! has just found one can still send it.
//!
//! Invariant: the log start never goes back, and never passes the high watermark.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::files::{DELETED, LOG, parse_offset_name};
use super::log::Log;
use super::segment::modified_ms;
use crate::config::TopicConfig;

impl Log {
    /// Takes the segments out of use that no setting keeps; the paths to be removed after
    /// file.delete.delay.ms.
    pub fn retire_old(&mut self, now_ms: i64, config: &TopicConfig) -> io::Result<Vec<PathBuf>> {
        let count = self.count_old(now_ms, config)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        if count == self.segments.len() {
            self.roll(now_ms)?;
        }
        let mut retired = Vec::new();
        let mut result = Ok(());
        for oldest in self.segments.drain(..count) {
            match oldest.retire() {
                Ok(paths) => retired.extend(paths),
                // Out of use all the same; a restart finds it, and it is due again.
                Err(error) => result = Err(error),
            }
        }
        self.log_start = self.log_start.max(self.segments[0].base_offset);
        self.forget_sealed();
        self.epochs.advance_to(self.log_start)?;
        result?;
        tracing::info!(dir = %self.dir.display(), segments = count, log_start = self.log_start, "old segments deleted");
        Ok(retired)
    }

    /// How many of the oldest segments nothing keeps.
    fn count_old(&mut self, now_ms: i64, config: &TopicConfig) -> io::Result<usize> {
        let total: u64 = self.segments.iter().map(|segment| segment.size).sum();
        let (retention_bytes, retention_ms) = config.retention();
        let mut excess = retention_bytes.map_or(0, |most| total.saturating_sub(most));
        let mut count = 0;
        while count < self.segments.len() {
            let end_offset = self.segments.get(count + 1).map_or(self.log_end, |next| next.base_offset);
            let is_last = count + 1 == self.segments.len();
            let segment = &mut self.segments[count];
            let is_before_start = !is_last && end_offset <= self.log_start;
            let is_excess = segment.size > 0 && excess >= segment.size && retention_bytes.is_some();
            let is_expired = match (retention_ms, segment.largest()?) {
                (Some(most), Some(largest)) => now_ms.saturating_sub(largest.timestamp) > most,
                _ => false,
            };
            let is_old = is_before_start || is_excess || is_expired;
            if !is_old || end_offset > self.high_watermark {
                break;
            }
            excess = excess.saturating_sub(segment.size);
            count += 1;
        }
        Ok(count)
    }

    /// Moves the log start up to `offset`, which is not past the high watermark.
    pub fn advance_log_start(&mut self, offset: i64) -> io::Result<()> {
        if offset > self.log_start {
            // On the disk first, with the epochs: that is what a start believes.
            self.epochs.advance_to(offset)?;
            self.log_start = offset;
        }
        Ok(())
    }
}

/// Whether the folder of a partition that is not open may hold something to forget. Judged by sizes and by
/// when the files were last written, so that a partition is opened only when it is due; timestamps older
/// than their writing are noticed later.
pub fn may_be_due(dir: &Path, now_ms: i64, config: &TopicConfig) -> io::Result<bool> {
    let (retention_bytes, retention_ms) = config.retention();
    let mut oldest: Option<(i64, u64, PathBuf)> = None;
    let mut total = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.ends_with(&format!(".{DELETED}")) {
            fs::remove_file(entry.path())?;
        } else if let Some((base_offset, LOG)) = parse_offset_name(name) {
            let size = entry.metadata()?.len();
            total += size;
            if oldest.as_ref().is_none_or(|oldest| base_offset < oldest.0) {
                oldest = Some((base_offset, size, entry.path()));
            }
        }
    }
    let Some((_, size, path)) = oldest.filter(|oldest| oldest.1 > 0) else {
        return Ok(false);
    };
    let is_excess = retention_bytes.is_some_and(|most| total.saturating_sub(most) >= size);
    let age_ms = now_ms.saturating_sub(modified_ms(&path)?);
    Ok(is_excess || retention_ms.is_some_and(|most| age_ms > most))
}
