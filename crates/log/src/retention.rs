//! Deletes old records: by age, by size, or because the log start was moved.
//!
//! Only whole segments are deleted, the oldest first. Their files are renamed at once but removed later, so that a
//! fetch that has just found a segment can still send it. On a full disk, the files are removed at once, before
//! anything is written. If a fetch is just sending such a file, its connection ends, because the file's blocks are
//! freed.
//!
//! Invariant: the log start never moves back, and never passes the high watermark. If `leader-epoch-checkpoint` cannot
//! be written, the file keeps an older log start. The segments before the new log start are already gone, so a
//! restarted broker begins at the first segment that is left. The next round of retention writes the file again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Log;
use super::files::{DELETED, LOG, parse_offset_name, sync_dir};
use super::flush::Sealed;
use super::segment::{Segment, modified_ms};
use super::steps::step;
use fullbore_config::TopicConfig;
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::files::{is_full, remove_for_good};

/// Segments that were taken out of use.
#[derive(Debug)]
pub struct Retired {
    /// The files to remove after file.delete.delay.ms. Empty if they were removed at once.
    pub paths: Vec<PathBuf>,
    /// The error of a step that failed, if any. The next round of retention then tries again.
    pub result: io::Result<()>,
}

impl Log {
    /// Retires all segments that end before the log start or exceed the topic's retention time or size. If `at_once` is
    /// true, also removes their files.
    pub fn retire_old(&mut self, now_ms: i64, high_watermark: i64, config: &TopicConfig, at_once: bool) -> Retired {
        self.forget_replicated_ends(high_watermark);
        match self.count_old(now_ms, high_watermark, config) {
            Ok(count) => self.retire(count, now_ms, at_once),
            Err(error) => Retired { paths: Vec::new(), result: Err(error) },
        }
    }

    /// Retires the `count` oldest segments.
    fn retire(&mut self, count: usize, now_ms: i64, at_once: bool) -> Retired {
        let (mut paths, mut gone) = (Vec::new(), 0);
        let is_all = count == self.segments.len();
        let begun = if is_all { self.begin_anew(now_ms) } else { self.keep_producers(count) };
        let retired = begun.and_then(|()| {
            (0..count).try_for_each(|_| {
                paths.extend(self.segments[0].retire(at_once)?);
                self.segments.pop_front();
                gone += 1;
                Ok(())
            })
        });
        self.log_start = self.log_start.max(self.segments[0].base_offset);
        self.flushes.forget_before(self.log_start);
        step();
        let kept = self.epochs.advance_to(self.log_start);
        // The snapshot before the removal may have failed on the full disk. The removal may have freed space, so take
        // it again.
        let lacks_snapshot = is_all || (gone > 0 && self.snapshot_offset < self.segments[0].base_offset);
        let snapshot = if lacks_snapshot && retired.is_ok() { self.take_snapshot() } else { Ok(()) };
        if gone > 0 {
            tracing::info!(dir = %self.dir.display(), segments = gone, log_start = self.log_start, "old segments deleted");
        }
        Retired { paths, result: retired.and(kept).and(snapshot) }
    }

    /// Takes a producer snapshot if the newest one is before the end of the `count` oldest segments. These are about to
    /// be retired, so a restarted broker cannot replay their batches. If the snapshot does not fit on a full disk, the
    /// segments are retired without it.
    fn keep_producers(&mut self, count: usize) -> io::Result<()> {
        if count == 0 || self.segments[count].base_offset <= self.snapshot_offset {
            return Ok(());
        }
        match self.take_snapshot() {
            Err(error) if !is_full(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Creates a new segment, so that all existing ones can be retired. Works on a full disk, because it does not write
    /// the old indexes. If a step fails, the old segment stays active.
    fn begin_anew(&mut self, now_ms: i64) -> io::Result<()> {
        match self.take_snapshot() {
            Err(error) if !is_full(&error) => return Err(error),
            _ => {}
        }
        let active = self.segments.back_mut().expect("a log has a segment");
        let sealed = Sealed::new(active, self.log_end)?;
        let next = Segment::create(&self.dir, self.log_end, now_ms)?;
        step();
        // Without records, only the name of the new file shows the next offset. The name must be on the disk before the
        // old files are removed.
        if let Err(error) = sync_dir(&self.dir) {
            next.discard();
            return Err(error);
        }
        self.flushes.seal(sealed);
        self.segments.push_back(next);
        self.recent.clear();
        Ok(())
    }

    /// Returns how many of the oldest segments are too old or too many for the retention, or end before the log start.
    fn count_old(&mut self, now_ms: i64, high_watermark: i64, config: &TopicConfig) -> io::Result<usize> {
        let total: u64 = self.segments.iter().map(|segment| segment.size).sum();
        let (retention_bytes, retention_ms) = config.retention();
        let mut excess = retention_bytes.map_or(0, |most| total.saturating_sub(most));
        let mut count = 0;
        while count < self.segments.len() {
            let end_offset = self.end_of(count);
            let is_last = count + 1 == self.segments.len();
            let segment = &mut self.segments[count];
            let is_before_start = (!is_last || segment.size > 0) && end_offset <= self.log_start;
            let is_excess = segment.size > 0 && excess >= segment.size && retention_bytes.is_some();
            let is_expired = match (retention_ms, segment.largest_timestamp()?) {
                (Some(most), Some(largest)) => now_ms.saturating_sub(largest) > most,
                _ => false,
            };
            let is_old = is_before_start || is_excess || is_expired;
            if !is_old || end_offset > high_watermark {
                break;
            }
            excess = excess.saturating_sub(segment.size);
            count += 1;
        }
        Ok(count)
    }

    /// Returns the offset at which the next segment begins, or the log end for the last segment.
    fn end_of(&self, index: usize) -> i64 {
        self.segments.get(index + 1).map_or(self.log_end, |next| next.base_offset)
    }

    /// Moves the log start to `offset`, which must not be after the high watermark. On a full disk, the segments before
    /// it are removed first to free space, and the disk reserve may be used.
    pub fn delete_before(&mut self, offset: i64, now_ms: i64, space: &DiskSpace) -> io::Result<()> {
        if space.is_full() {
            self.remove_before(offset, now_ms)?;
        }
        match self.advance_log_start(offset) {
            Err(error) if space.note(&error) => {
                self.remove_before(offset, now_ms)?;
                space.freeing(is_full, || self.advance_log_start(offset))
            }
            result => result,
        }
    }

    fn advance_log_start(&mut self, offset: i64) -> io::Result<()> {
        if offset > self.log_start {
            // Write the file of epochs first, since a restarted broker relies on it.
            self.epochs.advance_to(offset)?;
            self.log_start = offset;
        }
        Ok(())
    }

    /// Removes the segments that end at or before `offset`.
    fn remove_before(&mut self, offset: i64, now_ms: i64) -> io::Result<()> {
        let has_records = self.segments.back().is_some_and(|active| active.size > 0);
        let candidates = self.segments.len() - usize::from(!has_records);
        let count = (0..candidates).take_while(|&index| self.end_of(index) <= offset).count();
        self.retire(count, now_ms, true).result.or_else(|error| if is_full(&error) { Ok(()) } else { Err(error) })
    }
}

/// Returns true if a partition whose log is not open may have records to delete. Looks only at the sizes and ages of
/// its files, so that a log is opened only when necessary. A record that is older than its file is therefore deleted
/// late: once the file is old enough, or the log is open.
pub fn may_be_due(dir: &Path, now_ms: i64, config: &TopicConfig) -> io::Result<bool> {
    let (retention_bytes, retention_ms) = config.retention();
    let mut oldest: Option<(i64, u64, PathBuf)> = None;
    let mut total = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.ends_with(&format!(".{DELETED}")) {
            remove_for_good(&entry.path())?;
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::Arc;

    use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};

    use super::*;
    use crate::recovery::RecoveryHint;
    use crate::steps::watch;
    use crate::validation::ValidBatch;
    use fullbore_config::{BrokerConfig, Properties};

    const KILLED: RecoveryHint = RecoveryHint { clean: false, ..RecoveryHint::NOTHING };
    const BATCHES: i64 = 12;

    fn config() -> TopicConfig {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        TopicConfig { segment_bytes: 1000, ..broker.topics.defaults }
    }

    fn open(dir: &Path) -> Log {
        Log::open(&Arc::from(dir), KILLED, 0, &config()).expect("opened")
    }

    fn copy(from: &Path) -> tempfile::TempDir {
        let to = tempfile::tempdir().expect("temporary directory");
        for entry in fs::read_dir(from).expect("listed") {
            let entry = entry.expect("listed");
            fs::copy(entry.path(), to.path().join(entry.file_name())).expect("copied");
        }
        to
    }

    #[test]
    fn a_kill_at_any_step_of_making_room_moves_the_log_start_to_a_segment_and_no_offset() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let dir = directory.path();
        let mut log = open(dir);
        for n in 0..BATCHES {
            let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
            builder.append(0, None, Some(&[1; 300]), &[]);
            let stamp = Stamp { producer_id: 5, producer_epoch: 0, base_sequence: n as i32 };
            let (bytes, _) = builder.seal(stamp).expect("sealed");
            log.append(&ValidBatch::unchecked(&bytes), 0, 0, &config()).expect("appended");
        }
        let bases: Vec<i64> = log.segments.iter().map(|segment| segment.base_offset).collect();
        for (upto, at_once) in [(7, true), (BATCHES, true), (BATCHES, false)] {
            let directory = copy(dir);
            let mut log = open(directory.path());
            let seen = Rc::new(RefCell::new(vec![]));
            let (from, into) = (directory.path().to_owned(), seen.clone());
            watch(
                move || into.borrow_mut().push(copy(&from)),
                || {
                    let count = (0..log.segments.len()).filter(|&index| log.end_of(index) <= upto).count();
                    log.retire(count, 0, at_once).result.expect("no error")
                },
            );
            assert!(seen.borrow().len() > 5);
            let mut start = 0;
            for left in seen.borrow().iter() {
                let found = open(left.path());
                assert_eq!(found.log_end, BATCHES);
                assert!(found.log_start >= start && (found.log_start == BATCHES || bases.contains(&found.log_start)));
                start = found.log_start;
                assert_eq!(found.producers.iter().count(), 1);
            }
            assert_eq!(open(directory.path()).log_start, log.log_start);
        }
    }
}
