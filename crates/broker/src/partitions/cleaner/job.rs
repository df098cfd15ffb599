//! Cleaning of one log: collects the newest offset of every key in the dirty part, then writes everything up to there anew
//! without superseded records.
//!
//! Not here: the schedule and failures, which are the cleaner's. The partition is locked only to read and to change its list of
//! segments. Invariant: whatever ends a cleaning early, the log holds every record that survives.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use fullbore_rules::compaction::{Dirty, HashKey, Horizon, OffsetMap, SegmentLimits, Source, group, survives};
use fullbore_wire::batch::{BatchError, BatchView, Compression, RawRecords, decompress, retain, retain_empty};

use super::replace::replace;
use crate::replica::Replica;
use crate::replica::data_dir::LogDir;
use crate::replica::state::LogState;
use fullbore_config::{CleanerSettings, TopicConfig};
use fullbore_log::cleaner::dirty::DirtySegment;
use fullbore_log::cleaner::error::CleanError;
use fullbore_log::cleaner::output::Output;
use fullbore_log::cleaner::reader::BatchReader;
use fullbore_log::lookup::is_gone;
use fullbore_log::segment::Segment;
use fullbore_log::validation::OPENED_MAX;

/// Outcome of a cleaning.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tally {
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub records_removed: u64,
    pub keys: usize,
}

/// Cleaning of one log.
pub struct Cleaning<'a> {
    pub pace: &'a dyn Pace,
    pub log_dir: &'a LogDir,
    pub partition: &'a Arc<Replica>,
    pub config: Arc<TopicConfig>,
    pub settings: CleanerSettings,
    pub dirty: Dirty,
    pub now_ms: i64,
}

/// How fast a cleaning may go. What is said here ends it, where the log is not to be cleaned any more.
pub trait Pace {
    /// To be called before so many bytes are read.
    fn before_read(&self, partition: &Replica, bytes: u64) -> Result<(), CleanError>;

    /// To be called before so many bytes are written.
    fn before_write(&self, partition: &Replica, bytes: u64) -> Result<(), CleanError>;
}

/// The newest offset of each key, known for offsets before `mapped_to`.
struct Mapped {
    map: OffsetMap,
    mapped_to: i64,
    /// How many times the log had been cut off before its segments were read.
    cuts: u32,
}

/// Fate of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Whole,
    Rewritten,
    Gone,
}

impl Cleaning<'_> {
    /// Cleans; how far the log is clean then.
    pub fn run(&self) -> Result<(i64, Tally), CleanError> {
        let (dir, found, cuts) = self.find_segments()?;
        let mapped = self.map_keys(&found, cuts)?;
        let sources: Vec<Source> = found.iter().map(|found| found.source).collect();
        let count = sources.partition_point(|source| source.base_offset < mapped.mapped_to);
        let limits =
            SegmentLimits { segment_bytes: self.config.segment_bytes, index_bytes: self.config.segment_index_bytes };
        let mut tally = Tally { keys: mapped.map.len(), ..Tally::default() };
        for Range { start, end } in group(&sources[..count], limits) {
            self.clean_group(&dir, &found[start..end], &mapped, &mut tally)?;
        }
        Ok((mapped.mapped_to, tally))
    }

    fn find_segments(&self) -> Result<(Arc<Path>, Vec<DirtySegment>, u32), CleanError> {
        let mut state = self.partition.lock();
        let LogState::Open(log) = &mut state.log else { return Err(CleanError::Changed) };
        if log.is_broken() {
            return Err(CleanError::Changed);
        }
        Ok((log.dir().clone(), log.segments_to_clean(&self.dirty)?, log.cuts()))
    }

    /// Reads the dirty part.
    fn map_keys(&self, found: &[DirtySegment], cuts: u32) -> Result<Mapped, CleanError> {
        let offsets = usize::try_from(self.dirty.end - self.dirty.first_dirty).unwrap_or(usize::MAX);
        let (bytes, load_factor) = (self.settings.map_bytes(), self.settings.dedupe_load_factor);
        let mut map = OffsetMap::new(hash_key(), bytes, load_factor, offsets);
        for found in found.iter().filter(|found| found.source.end_offset > self.dirty.first_dirty) {
            let mut reader = self.open(found, found.dirty_position)?;
            loop {
                let position = reader.position();
                let Some(batch) = self.next(found, &mut reader)? else { break };
                if batch.last_offset() < self.dirty.first_dirty || batch.is_control() {
                    continue;
                }
                let full_at = put_keys(&mut map, &batch, self.dirty.first_dirty);
                if let Some(mapped_to) = full_at.map_err(|why| found.damaged(position, why))? {
                    return Ok(Mapped { map, mapped_to, cuts });
                }
            }
        }
        Ok(Mapped { map, mapped_to: self.dirty.end, cuts })
    }

    fn open(&self, found: &DirtySegment, position: u64) -> Result<BatchReader<'_>, CleanError> {
        let opened = BatchReader::open(
            &found.path,
            position,
            found.source.size,
            self.settings.buffer_bytes(),
            &self.log_dir.cold,
        );
        opened.map_err(|error| self.why(found, error.into()))
    }

    /// The next batch of a segment; `None` at its end.
    fn next<'r>(
        &self,
        found: &DirtySegment,
        reader: &'r mut BatchReader<'_>,
    ) -> Result<Option<BatchView<'r>>, CleanError> {
        let read = reader.next(&mut |bytes| self.pace.before_read(self.partition, bytes));
        read.map_err(|error| self.why(found, error))
    }

    /// Returns [`CleanError::Changed`] for the errors of a segment that retention has removed meanwhile, and others as they are.
    fn why(&self, found: &DirtySegment, error: CleanError) -> CleanError {
        match error {
            CleanError::Io(error) if is_gone(&error) && !self.has(found.source.base_offset) => CleanError::Changed,
            other => other,
        }
    }

    /// Returns true if the log has the segment.
    fn has(&self, base_offset: i64) -> bool {
        let state = self.partition.lock();
        matches!(&state.log, LogState::Open(log) if log.has_segment(base_offset))
    }

    fn clean_group(
        &self,
        dir: &Arc<Path>,
        group: &[DirtySegment],
        mapped: &Mapped,
        tally: &mut Tally,
    ) -> Result<(), CleanError> {
        let last_offsets = self.last_offsets()?;
        let base_offset = group[0].source.base_offset;
        let (chunk, segment_bytes) = (self.settings.buffer_bytes(), self.config.segment_bytes);
        let interval = self.config.index_interval_bytes;
        let mut output = Output::create(dir, base_offset, chunk, segment_bytes, interval, self.now_ms)?;
        let rewriting = Rewriting { job: self, mapped, last_offsets, scratch: BytesMut::new(), left: None, removed: 0 };
        let (is_changed, removed) = match rewriting.run(group, &mut output) {
            Ok(done) => done,
            Err(error) => {
                output.discard();
                return Err(error);
            }
        };
        let before = group.iter().map(|found| found.source.size).sum::<u64>();
        tally.bytes_before += before;
        if !is_changed && group.len() == 1 {
            tally.bytes_after += before;
            output.discard();
            return Ok(());
        }
        let modified = modified(&group[group.len() - 1].path);
        let cleaned = match output.finish(modified, &mut |bytes| self.pace.before_write(self.partition, bytes)) {
            Ok(cleaned) => cleaned,
            Err((error, unfinished)) => {
                unfinished.into_iter().for_each(Segment::discard);
                return Err(error);
            }
        };
        tally.bytes_after += cleaned.iter().map(|segment| segment.size).sum::<u64>();
        tally.records_removed += removed;
        let sources: Vec<i64> = group.iter().map(|found| found.source.base_offset).collect();
        let retired = replace(self.partition, dir, cleaned, &sources, mapped.cuts)?;
        self.remove_after(retired);
        Ok(())
    }

    /// The offset of the last record of every producer that is remembered. Ends the cleaning where it is not wanted any more.
    fn last_offsets(&self) -> Result<HashMap<i64, i64>, CleanError> {
        let state = self.partition.lock();
        match &state.log {
            LogState::Open(log) if self.partition.config().cleanup.compact && !log.is_broken() => {
                Ok(log.producers().last_offsets().collect())
            }
            _ => Err(CleanError::Changed),
        }
    }

    /// Old files are removed later; their pages are of no use to anyone.
    fn remove_after(&self, retired: Vec<PathBuf>) {
        let delay = Duration::from_millis(self.config.file_delete_delay_ms);
        for path in retired {
            if let Ok(file) = std::fs::File::open(&path) {
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
            }
            self.log_dir.remove_after(delay, path);
        }
    }
}

/// A group on its way into its output.
struct Rewriting<'a> {
    job: &'a Cleaning<'a>,
    mapped: &'a Mapped,
    last_offsets: HashMap<i64, i64>,
    scratch: BytesMut,
    /// The last batch, as it is without records, if nothing of it was written; and whether it had none before.
    left: Option<(BytesMut, bool)>,
    removed: u64,
}

impl Rewriting<'_> {
    /// Writes what survives; whether anything has changed, and how many records are gone.
    fn run(mut self, group: &[DirtySegment], output: &mut Output) -> Result<(bool, u64), CleanError> {
        let (pace, partition) = (self.job.pace, self.job.partition);
        let mut is_changed = false;
        for found in group {
            let mut reader = self.job.open(found, 0)?;
            loop {
                let position = reader.position();
                let Some(batch) = self.job.next(found, &mut reader)? else { break };
                let fate = self.judge(&batch).map_err(|why| found.damaged(position, why))?;
                is_changed |= fate == Fate::Rewritten;
                let bytes = match fate {
                    Fate::Whole => batch.bytes(),
                    Fate::Rewritten => &self.scratch[..],
                    Fate::Gone => {
                        let mut empty = BytesMut::new();
                        retain_empty(&batch, &mut empty);
                        is_changed |= self.left.replace((empty, batch.record_count() == 0)).is_some();
                        continue;
                    }
                };
                is_changed |= self.left.take().is_some();
                output.push(bytes, &mut |bytes| pace.before_write(partition, bytes))?;
            }
        }
        // What a segment covers is said by its last batch, after a crash too.
        if let Some((empty, was_empty)) = self.left.take() {
            is_changed |= !was_empty;
            output.push(&empty, &mut |bytes| pace.before_write(partition, bytes))?;
        }
        Ok((is_changed, self.removed))
    }

    /// Decides on a batch; `scratch` has a rewritten one.
    fn judge(&mut self, batch: &BatchView<'_>) -> Result<Fate, BatchError> {
        if batch.is_control() {
            return Ok(Fate::Whole);
        }
        // A producer goes on from its last batch, whatever became of the records.
        let is_last = self.last_offsets.get(&batch.producer_id()) == Some(&batch.last_offset());
        if batch.record_count() == 0 {
            return Ok(if is_last { Fate::Whole } else { Fate::Gone });
        }
        let payload = open(batch)?;
        let horizon = batch.delete_horizon_ms().map_or(Horizon::Unset, Horizon::At);
        let (now_ms, mapped_to) = (self.job.now_ms, self.mapped.mapped_to);
        let (mut kept, mut has_tombstones) = (Vec::new(), false);
        for record in RawRecords::new(batch, &payload) {
            let record = record?;
            let offset = batch.base_offset() + i64::from(record.offset_delta);
            let is_known = offset < mapped_to;
            let newest = record.key.filter(|_| is_known).and_then(|key| self.mapped.map.get(key));
            // A record without a key was written before the topic was compacted, and goes.
            let stays = (record.key.is_some() || !is_known)
                && survives(offset, newest, mapped_to, record.has_value, horizon, now_ms);
            if stays {
                has_tombstones |= is_known && !record.has_value;
                kept.push(record);
            }
        }
        let count = usize::try_from(batch.record_count()).unwrap_or(0);
        self.removed += (count - kept.len()) as u64;
        let sets_horizon = has_tombstones && horizon == Horizon::Unset;
        self.scratch.clear();
        if kept.is_empty() {
            if !is_last {
                return Ok(Fate::Gone);
            }
            retain_empty(batch, &mut self.scratch);
        } else if kept.len() == count && !sets_horizon {
            return Ok(Fate::Whole);
        } else {
            let time_ms = now_ms.saturating_add(self.job.config.delete_retention_ms);
            retain(batch, &kept, sets_horizon.then_some(time_ms), &mut self.scratch)?;
        }
        Ok(Fate::Rewritten)
    }
}

/// Takes note of the keys from an offset on; the offset where the map was full.
fn put_keys(map: &mut OffsetMap, batch: &BatchView<'_>, first_dirty: i64) -> Result<Option<i64>, BatchError> {
    if batch.record_count() == 0 {
        return Ok(None);
    }
    let payload = open(batch)?;
    for record in RawRecords::new(batch, &payload) {
        let record = record?;
        let offset = batch.base_offset() + i64::from(record.offset_delta);
        let Some(key) = record.key.filter(|_| offset >= first_dirty) else { continue };
        if !map.put(key, offset) {
            return Ok(Some(offset));
        }
    }
    Ok(None)
}

fn open<'a>(batch: &BatchView<'a>) -> Result<Cow<'a, [u8]>, BatchError> {
    match batch.compression()? {
        Compression::None => Ok(Cow::Borrowed(batch.payload())),
        codec => Ok(Cow::Owned(decompress(codec, batch.payload(), OPENED_MAX)?.into())),
    }
}

/// A key that nobody can know, for one cleaning.
fn hash_key() -> HashKey {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new();
    HashKey([random.hash_one(0_u8), random.hash_one(1_u8)])
}

fn modified(path: &Path) -> SystemTime {
    let modified: io::Result<SystemTime> = std::fs::metadata(path).and_then(|file| file.modified());
    modified.unwrap_or_else(|_| SystemTime::now())
}
