//! Compacts one log. A cleaning first reads the dirty part, and collects the newest offset of each key until the map is
//! full. Then it rewrites the segments up to the last collected offset, without the superseded records. A record of an
//! aborted transaction supersedes no other record and is removed. A transaction's marker is removed only after all of
//! its data.
//!
//! [`super::Cleaner`] decides when a log is cleaned, and handles failures. The partition is locked only while its list
//! of segments is read or changed. Invariant: whether a cleaning succeeds or fails, the log still has every record that
//! compaction must keep.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use fullbore_rules::compaction::{
    Dirty, HashKey, Horizon, MarkedData, MarkerFate, OffsetMap, SegmentLimits, Source, TransactionScan, group,
    marker_fate, survives,
};
use fullbore_rules::sequence::LastBatch;
use fullbore_wire::batch::{
    BatchError, BatchView, Compression, EndTransactionMarker, RawRecords, decompress, retain, retain_empty,
};

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
use fullbore_log::txn_index::{AbortedLookup, AbortedTransaction};
use fullbore_log::validation::DECOMPRESSED_MAX;

/// The result of a cleaning, for the log line.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tally {
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub records_removed: u64,
    pub keys: usize,
}

/// The cleaning of one log.
pub struct Cleaning<'a> {
    pub pace: &'a dyn Pace,
    pub log_dir: &'a LogDir,
    pub partition: &'a Arc<Replica>,
    pub config: Arc<TopicConfig>,
    pub settings: CleanerSettings,
    pub dirty: Dirty,
    pub now_ms: i64,
}

/// Limits the I/O rate of a cleaning. A function fails if the cleaning must end, for example because the topic is no
/// longer compacted.
pub trait Pace {
    /// Waits until `bytes` bytes may be read.
    fn before_read(&self, partition: &Replica, bytes: u64) -> Result<(), CleanError>;

    /// Waits until `bytes` bytes may be written.
    fn before_write(&self, partition: &Replica, bytes: u64) -> Result<(), CleanError>;
}

/// The segments of a log at the start of the cleaning.
struct Found {
    dir: Arc<Path>,
    segments: Vec<DirtySegment>,
    /// Finds the transactions that were aborted in these segments or in later ones.
    aborted: AbortedLookup,
    /// The number of truncations of the log before its segments were listed. A later truncation ends the cleaning.
    cuts: u32,
}

/// The newest offset of each key before the offset `mapped_to`.
struct Mapped {
    map: OffsetMap,
    mapped_to: i64,
}

/// The decision on one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Whole,
    Rewritten,
    Gone,
}

impl Cleaning<'_> {
    /// Cleans the log. Returns the offset up to which the log is clean afterwards, and the result for the log line.
    pub fn run(&self) -> Result<(i64, Tally), CleanError> {
        let found = self.find_segments()?;
        let mapped = self.map_keys(&found)?;
        let sources: Vec<Source> = found.segments.iter().map(|found| found.source).collect();
        let count = sources.partition_point(|source| source.base_offset < mapped.mapped_to);
        let limits =
            SegmentLimits { segment_bytes: self.config.segment_bytes, index_bytes: self.config.segment_index_bytes };
        let mut tally = Tally { keys: mapped.map.len(), ..Tally::default() };
        let mut transactions = TransactionScan::default();
        for group in group(&sources[..count], limits) {
            self.clean_group(&found, group, &mapped, &mut transactions, &mut tally)?;
        }
        Ok((mapped.mapped_to, tally))
    }

    fn find_segments(&self) -> Result<Found, CleanError> {
        let mut state = self.partition.lock();
        let LogState::Open(log) = &mut state.log else { return Err(CleanError::Changed) };
        if log.is_broken() {
            return Err(CleanError::Changed);
        }
        let segments = log.segments_to_clean(&self.dirty)?;
        let aborted = log.plan_aborted(log.first_base_offset());
        Ok(Found { dir: log.dir().clone(), segments, aborted, cuts: log.cuts() })
    }

    /// Returns the aborted transactions that may have records in the offset range `part` of `segment`. Their markers
    /// may be after this range. In memory, a transaction uses 32 bytes, less than half of the 78 bytes of its marker in
    /// the log.
    fn aborted(
        &self,
        found: &Found,
        segment: &DirtySegment,
        part: Range<i64>,
    ) -> Result<Vec<AbortedTransaction>, CleanError> {
        found.aborted.read_within(part).map_err(|error| match error {
            // Retention has removed the segment, or the log was truncated.
            error if is_gone(&error) && (!self.has(segment.source.base_offset) || self.cuts() != Some(found.cuts)) => {
                CleanError::Changed
            }
            error => error.into(),
        })
    }

    fn cuts(&self) -> Option<u32> {
        match &self.partition.lock().log {
            LogState::Open(log) => Some(log.cuts()),
            _ => None,
        }
    }

    /// Reads the dirty part, and adds its keys to the map until the map is full.
    fn map_keys(&self, found: &Found) -> Result<Mapped, CleanError> {
        let first_dirty = self.dirty.first_dirty;
        let mut transactions = TransactionScan::default();
        let offsets = usize::try_from(self.dirty.end - self.dirty.first_dirty).unwrap_or(usize::MAX);
        let (bytes, load_factor) = (self.settings.map_bytes(), self.settings.dedupe_load_factor);
        let mut map = OffsetMap::new(hash_key(), bytes, load_factor, offsets);
        for segment in found.segments.iter().filter(|segment| segment.source.end_offset > first_dirty) {
            let part = segment.source.base_offset.max(first_dirty)..segment.source.end_offset;
            transactions.add(self.aborted(found, segment, part)?);
            let mut reader = self.open(segment, segment.dirty_position)?;
            loop {
                let position = reader.position();
                let Some(batch) = self.next(segment, &mut reader)? else { break };
                if batch.last_offset() < first_dirty {
                    continue;
                }
                if batch.is_control() {
                    marked_data(&mut transactions, &batch);
                } else if !is_aborted(&mut transactions, &batch) {
                    let full_at = put_keys(&mut map, &batch, first_dirty);
                    if let Some(mapped_to) = full_at.map_err(|why| segment.damaged(position, why))? {
                        return Ok(Mapped { map, mapped_to });
                    }
                }
            }
        }
        Ok(Mapped { map, mapped_to: self.dirty.end })
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

    /// Returns the next batch of a segment, or `None` at its end.
    fn next<'r>(
        &self,
        found: &DirtySegment,
        reader: &'r mut BatchReader<'_>,
    ) -> Result<Option<BatchView<'r>>, CleanError> {
        let read = reader.next(&mut |bytes| self.pace.before_read(self.partition, bytes));
        read.map_err(|error| self.why(found, error))
    }

    /// Returns [`CleanError::Changed`] if retention has removed the segment. Otherwise returns `error`.
    fn why(&self, found: &DirtySegment, error: CleanError) -> CleanError {
        match error {
            CleanError::Io(error) if is_gone(&error) && !self.has(found.source.base_offset) => CleanError::Changed,
            other => other,
        }
    }

    /// Returns true if the log has a segment that begins at `base_offset`.
    fn has(&self, base_offset: i64) -> bool {
        let state = self.partition.lock();
        matches!(&state.log, LogState::Open(log) if log.has_segment(base_offset))
    }

    fn clean_group(
        &self,
        found: &Found,
        group: Range<usize>,
        mapped: &Mapped,
        transactions: &mut TransactionScan,
        tally: &mut Tally,
    ) -> Result<(), CleanError> {
        let (dir, group) = (&found.dir, &found.segments[group]);
        let last_batches = self.last_batches()?;
        let base_offset = group[0].source.base_offset;
        let (chunk, segment_bytes) = (self.settings.buffer_bytes(), self.config.segment_bytes);
        let interval = self.config.index_interval_bytes;
        let mut output = Output::create(dir, base_offset, chunk, segment_bytes, interval, self.now_ms)?;
        let scratch = BytesMut::new();
        let (left, ended) = (None, None);
        let rewriting =
            Rewriting { job: self, found, mapped, transactions, last_batches, scratch, ended, left, removed: 0 };
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
        let retired = replace(self.partition, dir, cleaned, &sources, found.cuts)?;
        self.remove_after(retired);
        Ok(())
    }

    /// Returns the last batch of each producer, by producer id. A cleaning must keep this batch, because it shows with
    /// which sequence the producer continues.
    ///
    /// # Errors
    /// Fails with [`CleanError::Changed`] if the log must not be cleaned any more.
    fn last_batches(&self) -> Result<HashMap<i64, LastBatch>, CleanError> {
        let state = self.partition.lock();
        match &state.log {
            LogState::Open(log) if self.partition.config().cleanup.compact && !log.is_broken() => {
                Ok(log.producers().last_batches().collect())
            }
            _ => Err(CleanError::Changed),
        }
    }

    /// Schedules the removal of the old files and drops their pages from the page cache.
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

/// Rewrites a group of segments into one output, which may have several segments.
struct Rewriting<'a> {
    job: &'a Cleaning<'a>,
    found: &'a Found,
    mapped: &'a Mapped,
    transactions: &'a mut TransactionScan,
    last_batches: HashMap<i64, LastBatch>,
    scratch: BytesMut,
    /// The aborted transaction whose abort marker is the batch that was read last. `None` if that batch is not an abort
    /// marker, or if no data of the transaction remains.
    ended: Option<AbortedTransaction>,
    /// A copy, without records, of the batch that was read last, if this cleaning removed that batch. The flag is true
    /// if the batch already had no records before.
    left: Option<(BytesMut, bool)>,
    removed: u64,
}

impl Rewriting<'_> {
    /// Writes the surviving records of `group` to `output`. Returns true if the output differs from the group. Also
    /// returns the number of removed records.
    fn run(mut self, group: &[DirtySegment], output: &mut Output) -> Result<(bool, u64), CleanError> {
        let (pace, partition) = (self.job.pace, self.job.partition);
        let mut is_changed = false;
        for segment in group {
            let Source { base_offset, end_offset, .. } = segment.source;
            self.transactions.add(self.job.aborted(self.found, segment, base_offset..end_offset)?);
            let mut reader = self.job.open(segment, 0)?;
            loop {
                let position = reader.position();
                let Some(batch) = self.job.next(segment, &mut reader)? else { break };
                let fate = self.judge(&batch).map_err(|why| segment.damaged(position, why))?;
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
                output.push(bytes, self.ended, &mut |bytes| pace.before_write(partition, bytes))?;
            }
        }
        // Write the last batch of the group even if it has no records left. After a crash, its offset shows which old
        // segments the new ones replace.
        if let Some((empty, was_empty)) = self.left.take() {
            is_changed |= !was_empty;
            output.push(&empty, None, &mut |bytes| pace.before_write(partition, bytes))?;
        }
        Ok((is_changed, self.removed))
    }

    /// Decides whether to keep, rewrite or remove a batch. Leaves the bytes of a rewritten batch in `scratch`.
    fn judge(&mut self, batch: &BatchView<'_>) -> Result<Fate, BatchError> {
        self.ended = None;
        // The last batch of a producer stays even without records, because it shows with which sequence the producer
        // continues.
        let last = self.last_batches.get(&batch.producer_id());
        let is_last = last.is_some_and(|last| last.is(batch.last_offset(), batch.producer_epoch(), batch.is_control()));
        if batch.is_control() {
            return self.judge_marker(batch, is_last);
        }
        let is_aborted = is_aborted(self.transactions, batch);
        if batch.record_count() == 0 {
            return Ok(if is_last { Fate::Whole } else { Fate::Gone });
        }
        if is_aborted {
            self.removed += u64::try_from(batch.record_count()).unwrap_or(0);
            return Ok(self.emptied(batch, is_last));
        }
        let payload = open(batch)?;
        let horizon = horizon(batch);
        let (now_ms, mapped_to) = (self.job.now_ms, self.mapped.mapped_to);
        let (mut kept, mut has_tombstones) = (Vec::new(), false);
        for record in RawRecords::new(batch, &payload) {
            let record = record?;
            let offset = batch.base_offset() + i64::from(record.offset_delta);
            let is_known = offset < mapped_to;
            let newest = record.key.filter(|_| is_known).and_then(|key| self.mapped.map.get(key));
            // A record without a key was written before the topic was compacted. Remove such a record if the cleaning
            // covers its offset.
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
        if kept.is_empty() {
            return Ok(self.emptied(batch, is_last));
        }
        if kept.len() == count && !sets_horizon {
            return Ok(Fate::Whole);
        }
        self.scratch.clear();
        retain(batch, &kept, sets_horizon.then(|| self.next_horizon_ms()), &mut self.scratch)?;
        Ok(Fate::Rewritten)
    }

    /// Decides like [`Rewriting::judge`], for a control batch.
    fn judge_marker(&mut self, batch: &BatchView<'_>, is_last: bool) -> Result<Fate, BatchError> {
        let data = marked_data(self.transactions, batch);
        if batch.record_count() == 0 {
            return Ok(if is_last { Fate::Whole } else { Fate::Gone });
        }
        match marker_fate(data, horizon(batch), self.job.now_ms) {
            MarkerFate::Stays => {
                self.ended = match data {
                    MarkedData::Some(ended) => ended,
                    MarkedData::None => None,
                };
                Ok(Fate::Whole)
            }
            MarkerFate::SetsHorizon => {
                let kept = RawRecords::new(batch, batch.payload()).collect::<Result<Vec<_>, _>>()?;
                self.scratch.clear();
                retain(batch, &kept, Some(self.next_horizon_ms()), &mut self.scratch)?;
                Ok(Fate::Rewritten)
            }
            MarkerFate::Goes => Ok(self.emptied(batch, is_last)),
        }
    }

    /// Decides what happens to a batch whose records are all removed. The last batch of a producer is rewritten without
    /// records. Any other batch is removed.
    fn emptied(&mut self, batch: &BatchView<'_>, is_last: bool) -> Fate {
        if !is_last {
            return Fate::Gone;
        }
        self.scratch.clear();
        retain_empty(batch, &mut self.scratch);
        Fate::Rewritten
    }

    /// Returns the delete horizon of the tombstones and markers that this cleaning keeps: the time from which later
    /// cleanings may remove them, in ms since 1970.
    fn next_horizon_ms(&self) -> i64 {
        self.job.now_ms.saturating_add(self.job.config.delete_retention_ms)
    }
}

fn horizon(batch: &BatchView<'_>) -> Horizon {
    batch.delete_horizon_ms().map_or(Horizon::Unset, Horizon::At)
}

fn is_aborted(transactions: &mut TransactionScan, batch: &BatchView<'_>) -> bool {
    transactions.is_aborted(batch.producer_id(), batch.last_offset(), batch.is_transactional())
}

/// Adds a control batch to `transactions`, and returns which data remains of the transaction that the batch ends. A
/// batch without records has no data, because a cleaning empties a marker only after it has removed the data. A control
/// batch of another kind must stay, so the result for it is that data remains.
fn marked_data(transactions: &mut TransactionScan, batch: &BatchView<'_>) -> MarkedData {
    match EndTransactionMarker::read(batch) {
        Ok(Some(marker)) => transactions.ended_by(marker.producer_id, batch.last_offset(), marker.is_commit),
        Ok(None) => MarkedData::None,
        Err(_) => MarkedData::Some(None),
    }
}

/// Adds to the map the keys of the batch's records with offsets of at least `first_dirty`. Returns the offset of the
/// first record whose key did not fit, or `None` if all keys fit.
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
        codec => Ok(Cow::Owned(decompress(codec, batch.payload(), DECOMPRESSED_MAX)?.into())),
    }
}

/// Returns a random hash key for one cleaning. Clients cannot know the key, so they cannot choose record keys that
/// collide.
fn hash_key() -> HashKey {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new();
    HashKey([random.hash_one(0_u8), random.hash_one(1_u8)])
}

fn modified(path: &Path) -> SystemTime {
    let modified: io::Result<SystemTime> = std::fs::metadata(path).and_then(|file| file.modified());
    modified.unwrap_or_else(|_| SystemTime::now())
}
