//! Opens a log: turns the files on the disk into a [`Log`], after a clean shutdown or a crash.
//!
//! After a clean shutdown, the files are trusted. After a crash, recovery reads all batches after the recovery point,
//! and in the page before it, and verifies their checksums. It rebuilds the indexes of the segments that it has read.
//! Bytes that are not a batch can be one of three things:
//! - An incomplete write, if the bytes were not flushed and no batch follows that could continue the log. Recovery cuts
//!   off the bytes. If a kill cannot have left these bytes, the disk has lost writes. The log is then opened only if no
//!   other replica has the lost records.
//! - Damage by a power loss, if the machine has booted since the broker's last run, and either no batch follows the
//!   bytes or all flushed batches are before them. Recovery sets aside the bytes and everything after them
//!   ([`super::aside`]), and the log ends before them.
//! - Corruption, in all other cases. The partition is not opened, and nothing on the disk is changed. The error shows
//!   the file and the position.
//!
//! Invariant: an opened log ends after its last good batch, and its producers are those of its batches.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

mod walk;

#[cfg(test)]
mod tests;

use fullbore_rules::sequence::Producers;

use self::walk::Walk;
use super::Log;
use super::epochs::Epochs;
use super::error::StorageError;
use super::files::{DELETED, LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, parse_offset_name};
use super::flush::{Flushes, Sealed};
use super::granted::Granted;
use super::page_cache::Written;
use super::recent::Recent;
use super::scan::{Header, Scan, ScanError, find_later_batch, go_on_unless};
use super::segment::Segment;
use super::snapshot;
use super::transactions::{remember, remember_control};
use crate::cleaner::swap;
use fullbore_config::TopicConfig;
use fullbore_host::files::{is_full, is_momentary, remove_for_good};

/// How many bytes before the recovery point are also checked. The first write after this point may have begun within a
/// page, and a power loss may damage that whole page.
const TORN_MAX: u64 = 4096;

/// Facts that are known about a log before it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveryHint {
    /// True if the broker was shut down cleanly.
    pub clean: bool,
    pub recovery_point: i64,
    /// The log start from the checkpoint; `None` if it cannot be read.
    pub log_start: Option<i64>,
    /// True if the machine has booted since an unclean shutdown, so that data may be lost that was not flushed.
    pub rebooted: bool,
    /// True if there may be gaps between the offsets of batches even in the last segment. A follower's log can have
    /// such gaps if the leader had compacted the records before it sent them.
    pub may_have_gaps: bool,
    /// True if other replicas count as complete, and this one too, so that it may become the leader. Others may then
    /// have the records that the disk has lost here.
    pub others_are_complete: bool,
}

impl RecoveryHint {
    /// The facts about a partition that is new.
    pub const NOTHING: RecoveryHint = RecoveryHint {
        clean: true,
        recovery_point: 0,
        log_start: Some(0),
        rebooted: false,
        may_have_gaps: false,
        others_are_complete: false,
    };
}

impl Log {
    /// Opens the log in `dir`, which must exist. An empty directory becomes an empty log.
    #[cfg(test)]
    pub fn open(dir: &Arc<Path>, known: RecoveryHint, now_ms: i64, config: &TopicConfig) -> Result<Log, StorageError> {
        Log::open_unless(&AtomicBool::new(false), dir, known, now_ms, config)
    }

    /// Opens the log in `dir`, which must exist. An empty directory becomes an empty log. Stops with an error once
    /// `stop` is set; the log can be opened again later.
    pub fn open_unless(
        stop: &AtomicBool,
        dir: &Arc<Path>,
        known: RecoveryHint,
        now_ms: i64,
        config: &TopicConfig,
    ) -> Result<Log, StorageError> {
        let failed = |error| StorageError::io(dir.as_ref(), error);
        swap::finish_interrupted(dir)?;
        let bases = list_segments(dir)?;
        let log_start = known.log_start.unwrap_or(0);
        // If a follower has no segments, it was killed after it had removed all records to begin again at its leader's
        // log start. The leader will send the records again. Without other replicas, the log must begin at the recovery
        // point, so that no offset is reused.
        let is_begun_anew = bases.is_empty() && known.may_have_gaps;
        let mut log = Log {
            dir: dir.clone(),
            segments: bases.iter().map(|&(base_offset, size)| Segment::load(dir, base_offset, size, now_ms)).collect(),
            log_start,
            log_end: if is_begun_anew { log_start } else { log_start.max(known.recovery_point) },
            flushes: Flushes::new(dir, known.recovery_point),
            producers: Producers::default(),
            granted: Granted::LEAST,
            epochs: Epochs::empty(dir),
            snapshot_offset: -1,
            snapshot_len: 0,
            after_snapshot: 0,
            recent: Recent::default(),
            written: Written::default(),
            generation: Arc::default(),
            idle_rounds: 0,
        };
        if log.segments.is_empty() {
            let first = Segment::create(dir, log.log_end, now_ms).map_err(failed)?;
            log.segments.push_back(first);
            return Ok(log.settled());
        }
        let epochs = Epochs::load(dir);
        let recovered = log.recover_segments(stop, known, config, epochs.as_ref())?;
        log.use_epochs(stop, known, epochs, recovered.contradicts_epochs).map_err(failed)?;
        log.load_producers(stop, now_ms, config).map_err(failed)?;
        if let Some(first) = recovered.unsound_from {
            unless_full(log.rebuild_aborted(stop, first)).map_err(failed)?;
        }
        // Close the files, because most logs are only opened to find out their offsets, and open files are limited.
        log.close_files(true);
        log.seal_recovered(known).map_err(failed)?;
        Ok(log.settled())
    }

    /// Makes the next flush include the segments that a killed broker had not flushed. Otherwise the recovery point
    /// could move past them.
    fn seal_recovered(&mut self, known: RecoveryHint) -> io::Result<()> {
        let ends: Vec<i64> = self.segments.iter().skip(1).map(|next| next.base_offset).collect();
        for (segment, end_offset) in self.segments.iter_mut().zip(ends) {
            if !known.clean && end_offset > known.recovery_point {
                self.flushes.seal(Sealed::new(segment, end_offset)?);
            }
        }
        if self.flushes.is_crowded() { self.flush_sealed() } else { Ok(()) }
    }

    /// Moves the log start and the recovery point into the range of offsets that the log has.
    fn settled(mut self) -> Log {
        let first = self.segments[0].base_offset;
        self.log_start = self.log_start.max(first).min(self.log_end);
        self.flushes.lower(self.log_end);
        self
    }

    /// Recovers all segments, which also determines the log end. `epochs` are those of the epoch file.
    fn recover_segments(
        &mut self,
        stop: &AtomicBool,
        known: RecoveryHint,
        config: &TopicConfig,
        epochs: Option<&Epochs>,
    ) -> Result<Recovered, StorageError> {
        let mut index = 0;
        let mut recovered = Recovered::default();
        while index < self.segments.len() {
            let next_base = self.segments.get(index + 1).map(|next| next.base_offset);
            let believed = match next_base {
                Some(next_base) => known.clean || next_base <= known.recovery_point,
                None => known.clean,
            };
            let is_believed = believed && self.believe(stop, index, next_base, config)?;
            let (has_markers, contradicts_epochs) = match is_believed {
                true => (false, false),
                false => {
                    let walk = self.recover_segment(stop, index, known, config, epochs)?;
                    (walk.has_markers, walk.contradicts_epochs)
                }
            };
            recovered.contradicts_epochs |= contradicts_epochs;
            self.refuse_hole(stop, index, config)?;
            let (segment, end) = (&mut self.segments[index], self.log_end);
            let is_sound = segment.has_sound_aborted(end);
            if has_markers || !is_sound.map_err(|error| StorageError::io(segment.path(TXN_INDEX), error))? {
                recovered.unsound_from.get_or_insert(segment.base_offset);
            }
            if recovered.unsound_from.is_some() {
                segment.forget_aborted();
            }
            index += 1;
        }
        Ok(recovered)
    }

    /// Refuses the log if offsets are missing between segment `index`, whose end was just found, and the next segment.
    /// A file is then missing, or was cut off after a batch. There is an exception: if any segment has gaps inside, the
    /// log was compacted in the past, so the missing offsets are legal.
    fn refuse_hole(&mut self, stop: &AtomicBool, index: usize, config: &TopicConfig) -> Result<(), StorageError> {
        let end = self.log_end;
        let next_base = self.segments.get(index + 1).map(|next| next.base_offset).filter(|&next_base| end < next_base);
        let Some(next_base) = next_base.filter(|_| !config.cleanup.compact) else { return Ok(()) };
        let path = self.segments[index].path(LOG);
        if self.has_gaps_within(stop).map_err(|error| StorageError::io(&path, error))? {
            return Ok(());
        }
        Err(StorageError::Gap { path: self.dir.to_path_buf(), from: end, last: next_base - 1, next: next_base })
    }

    /// Returns true if any segment has a gap between two of its batches.
    fn has_gaps_within(&mut self, stop: &AtomicBool) -> io::Result<bool> {
        for segment in &mut self.segments {
            let was_open = segment.has_open_file();
            let file = segment.file_to_scan()?;
            let (mut scan, mut next_offset) = (Scan::new(&file, 0, segment.size), segment.base_offset);
            while let Ok(Some(batch)) = scan.next() {
                go_on_unless(stop)?;
                if batch.base_offset > next_offset {
                    return Ok(true);
                }
                next_offset = batch.last_offset() + 1;
            }
            if !was_open {
                segment.close_file();
            }
        }
        Ok(false)
    }

    /// Trusts a segment, and rebuilds its indexes only if they are missing or wrong. Returns false if the segment must
    /// be recovered: if its indexes cannot be rebuilt, or if it is the last one and ends with an incomplete batch.
    fn believe(
        &mut self,
        stop: &AtomicBool,
        index: usize,
        next_base: Option<i64>,
        config: &TopicConfig,
    ) -> Result<bool, StorageError> {
        let segment = &mut self.segments[index];
        let path = segment.path(LOG);
        let failed = |error| StorageError::io(&path, error);
        if !segment.has_sound_indexes(config.index_interval_bytes).map_err(failed)? {
            tracing::warn!(path = %path.display(), "an index is missing or does not belong to its segment: rebuilding \
                 it");
            match unless_full(segment.rebuild_indexes(stop, config.index_interval_bytes)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(false),
                Err(error) => return Err(failed(error)),
            }
        }
        let last_offset = match (segment.last_offset(), next_base) {
            (Ok(last_offset), _) => last_offset,
            // Assume that the segment ends where the next one begins. A read of the segment will report the damage.
            (Err(ScanError::Bad { .. }), Some(next_base)) => Some(next_base - 1),
            (Err(ScanError::Bad { .. }), None) => return Ok(false),
            (Err(ScanError::Io(error)), _) => return Err(failed(error)),
        };
        match next_base {
            Some(_) => _ = segment.close_file(),
            None => segment.resume().map_err(failed)?,
        }
        self.log_end = last_offset.map_or(segment.base_offset, |last| last + 1);
        Ok(true)
    }

    /// Reads a whole segment and rebuilds its indexes. Verifies the checksums from [`TORN_MAX`] bytes before the
    /// recovery point on. After a clean shutdown, only a segment that seems damaged is recovered, so all its checksums
    /// are verified. Returns the walk through the batches. If it has found control batches, the caller must rebuild the
    /// index of aborted transactions too.
    fn recover_segment<'a>(
        &mut self,
        stop: &AtomicBool,
        index: usize,
        known: RecoveryHint,
        config: &TopicConfig,
        epochs: Option<&'a Epochs>,
    ) -> Result<Walk<'a>, StorageError> {
        let path = self.segments[index].path(LOG);
        let failed = |error| StorageError::io(&path, error);
        let next_base = self.segments.get(index + 1).map(|next| next.base_offset);
        let segment = &mut self.segments[index];
        let file = segment.file_to_scan().map_err(failed)?;
        let len = segment.size;
        let checked_from = if known.clean { 0 } else { known.recovery_point };
        let unchecked = segment.position_of(checked_from).map_err(failed)?.saturating_sub(TORN_MAX);
        // A compacted segment has gaps. Such a segment may be the last one if an operator has moved later segments
        // away.
        let may_have_gaps = known.may_have_gaps || config.cleanup.compact;
        let mut walk = Walk {
            next_offset: segment.base_offset,
            end: 0,
            next_base,
            unchecked,
            may_have_gaps,
            has_gaps: false,
            has_markers: false,
            epochs,
            contradicts_epochs: false,
        };
        segment.forget_indexes();
        segment.forget_aborted();
        let bad = walk.run(stop, segment, &file, len, config).map_err(failed)?;
        let bad = bad.or_else(|| walk.falls_short(known, config));
        if let Some(why) = bad {
            self.cut(stop, index, &walk, why, known)?;
        }
        unless_full(self.segments[index].finish_indexes()).map_err(failed)?;
        self.log_end = walk.next_offset;
        Ok(walk)
    }

    /// Ends the log after the last good batch of the segment. If the damaged records were flushed, or if records follow
    /// the damage, checks whether a power loss can explain the damage. If so, sets aside all bytes from the damage on,
    /// with the later segments. Otherwise refuses the log.
    fn cut(
        &mut self,
        stop: &AtomicBool,
        index: usize,
        walk: &Walk<'_>,
        why: String,
        known: RecoveryHint,
    ) -> Result<(), StorageError> {
        let path = self.segments[index].path(LOG);
        let failed = |error| StorageError::io(&path, error);
        let follows = self.has_records_after(stop, index, walk).map_err(failed)?;
        let was_flushed = walk.next_offset < known.recovery_point;
        if follows || was_flushed {
            let corrupt = |why| StorageError::Corrupt { path: path.clone(), position: walk.end, why };
            let may_be_lost = if follows { walk.may_be_lost(known) } else { known.rebooted };
            if !may_be_lost {
                return Err(corrupt(why));
            }
            let aside = self.set_aside(stop, index, walk.end, walk.next_offset).map_err(|error| match error {
                error if is_momentary(&error) => failed(error),
                error => corrupt(format!("{why}; the records behind cannot be set aside: {error}")),
            })?;
            tracing::warn!(
                path = %path.display(),
                byte = walk.end,
                %why,
                lost = ?(walk.next_offset..aside.end_offset.max(known.recovery_point)),
                files = aside.files,
                aside = %aside.first.display(),
                "the machine stopped before the end of a log was flushed: the log is cut off at `byte`, and the \
                 records behind are set aside"
            );
        } else {
            self.check_loss(index, walk, why, known)?;
        }
        self.cut_segment(index, walk.end).map_err(failed)
    }

    /// Logs that the bytes from `walk.end` on will be cut off. They were not flushed, and no batch follows them.
    ///
    /// # Errors
    /// Fails with [`StorageError::EndLost`] if the disk has lost writes of the killed process, and other replicas may
    /// have the lost records. The bytes must then stay, so that a restarted broker finds the loss again.
    fn check_loss(
        &mut self,
        index: usize,
        walk: &Walk<'_>,
        why: String,
        known: RecoveryHint,
    ) -> Result<(), StorageError> {
        let segment = &mut self.segments[index];
        let (path, size) = (segment.path(LOG), segment.size);
        let failed = |error| StorageError::io(&path, error);
        let file = segment.file().map_err(failed)?;
        let was_killed = !known.clean && !known.rebooted;
        let is_lost = was_killed && !walk.is_torn_write(&file, size).map_err(failed)?;
        if is_lost && known.others_are_complete {
            return Err(StorageError::EndLost { path, position: walk.end, why });
        }
        let (from, bytes, path) = (walk.end, size - walk.end, path.display());
        match is_lost {
            true => {
                tracing::warn!(%path, from, bytes, %why, "the disk has lost the last writes to a log: the log is cut off after its last whole batch")
            }
            false => tracing::warn!(%path, from, bytes, "cut off an incomplete batch at the end of a log"),
        }
        Ok(())
    }

    /// Returns true if there are records after the bad bytes, in this segment or a later one.
    fn has_records_after(&mut self, stop: &AtomicBool, index: usize, walk: &Walk<'_>) -> io::Result<bool> {
        let segment = &mut self.segments[index];
        let file = segment.file()?;
        let follows_here = find_later_batch(stop, &file, walk.end + 1, segment.size, walk.next_offset + 1)?;
        Ok(follows_here.is_some() || self.segments.iter().skip(index + 1).any(|segment| segment.size > 0))
    }

    /// Cuts off the segment at `end`, and removes all later segments.
    fn cut_segment(&mut self, index: usize, end: u64) -> io::Result<()> {
        let segment = &mut self.segments[index];
        let file = segment.file()?;
        file.set_len(end)?;
        file.sync_data()?;
        segment.size = end;
        self.drop_segments_after(index)
    }

    /// Removes the segments after segment `index`, which are all empty.
    fn drop_segments_after(&mut self, index: usize) -> io::Result<()> {
        self.segments.drain(index + 1..).try_for_each(|mut segment| segment.retire(true).map(drop))
    }

    /// Uses the leader epochs and the log start of the epoch file, which always belongs to this log. The log start in
    /// the checkpoint may belong to a deleted topic with the same name, and would then hide records.
    ///
    /// If the epoch file cannot be used, derives the epochs from the batches, and takes the log start from the
    /// checkpoint. Does the same if the file's log start is above both the checkpoint's log start and the first
    /// segment's base offset. The file is then damaged, or a DeleteRecords wrote this log start but was not answered.
    /// DeleteRecords is answered only after the checkpoint has the new log start.
    ///
    /// If `is_contradicted` is true, the batches have other epochs than the file, because it is an older copy, for
    /// example. Then only the log start is taken from the file.
    fn use_epochs(
        &mut self,
        stop: &AtomicBool,
        known: RecoveryHint,
        loaded: Option<Epochs>,
        is_contradicted: bool,
    ) -> io::Result<()> {
        let believed = |epochs: &Epochs| match (epochs.log_start(), known.log_start) {
            (Some(start), Some(kept)) => start <= kept.max(self.segments[0].base_offset),
            _ => true,
        };
        let loaded = loaded.filter(believed);
        self.log_start = loaded.as_ref().and_then(Epochs::log_start).unwrap_or(self.log_start);
        if is_contradicted {
            tracing::warn!(dir = %self.dir.display(), "the leader epochs in a file are not those of the records: reading them from the records");
        }
        match loaded.filter(|_| !is_contradicted) {
            Some(epochs) => {
                self.epochs = epochs;
                unless_full(self.epochs.truncate_to(self.log_end))
            }
            None => {
                let mut epochs = Epochs::empty(&self.dir);
                self.for_each_batch(stop, self.segments[0].base_offset, |batch, _| {
                    epochs.note(batch.leader_epoch, batch.base_offset);
                    Ok(())
                })?;
                epochs.begin_at(self.log_start.max(self.segments[0].base_offset));
                self.epochs = epochs;
                unless_full(self.epochs.advance_to(self.log_start.min(self.log_end)))?;
                unless_full(self.epochs.save())
            }
        }
    }

    /// Loads the producers from the newest snapshot, and then replays the batches after it. Each producer keeps the
    /// window that it was granted, even if the topic's setting is smaller now.
    pub fn load_producers(&mut self, stop: &AtomicBool, now_ms: i64, config: &TopicConfig) -> io::Result<()> {
        let mut producers = Producers::default();
        self.granted = Granted::load(&self.dir)?;
        let window = self.granted.window().max(config.producer_state_batches_to_retain);
        let found = snapshot::load(&self.dir, self.log_end)?;
        let has_tails = found.is_some();
        let (offset, entries) = found.unwrap_or((-1, Vec::new()));
        (self.snapshot_offset, self.snapshot_len) = (offset, snapshot::len_of(entries.len()));
        producers.restore(entries, now_ms, self.granted.window());
        let from = offset.max(self.segments[0].base_offset);
        let mut after_snapshot = 0;
        self.for_each_batch(stop, from, |batch, file| {
            after_snapshot += u64::from(batch.size);
            if !batch.is_control {
                remember(&mut producers, batch, now_ms, window);
            } else {
                let marker = batch.marker(file)?;
                remember_control(&mut producers, batch, marker.as_ref(), now_ms);
            }
            Ok(())
        })?;
        if !has_tails {
            // The log was cut off before its first snapshot. No batch contains the producers that were taken over from
            // a deleted partition, so keep those that are in memory.
            producers.succeed_again(&self.producers);
        }
        (self.producers, self.after_snapshot) = (producers, after_snapshot);
        Ok(())
    }

    /// Calls `visit` for every batch with an offset at or after `from`, in order.
    pub(super) fn for_each_batch(
        &mut self,
        stop: &AtomicBool,
        from: i64,
        mut visit: impl FnMut(&Header, &File) -> io::Result<()>,
    ) -> io::Result<()> {
        if from >= self.log_end {
            return Ok(());
        }
        let first = self.segment_of(from);
        let last = self.segments.len() - 1;
        for index in first..=last {
            let segment = &mut self.segments[index];
            let start = segment.position_before(from)?;
            let file = segment.file_to_scan()?;
            let mut scan = Scan::new(&file, start, segment.size);
            while let Some(batch) = scan.next()? {
                go_on_unless(stop)?;
                if batch.last_offset() >= from {
                    visit(&batch, &file)?;
                }
            }
            if index < last {
                segment.close_file();
            }
        }
        Ok(())
    }
}

/// Ignores the error of a full disk, so that the log can still be opened for reading and for freeing space. Index
/// entries and epochs then stay in memory until they can be written.
fn unless_full(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| if is_full(&error) { Ok(()) } else { Err(error) })
}

/// The result of the recovery of all segments.
#[derive(Debug, Default)]
struct Recovered {
    /// The base offset of the first segment whose aborted transactions must be found again; `None` if all indexes can
    /// be trusted.
    unsound_from: Option<i64>,
    /// True if a batch has another leader epoch than the epoch file gives its offset.
    contradicts_epochs: bool,
}

/// Returns the base offsets and sizes of all segments, in order. Removes files that a crash has left behind.
fn list_segments(dir: &Path) -> Result<Vec<(i64, u64)>, StorageError> {
    let of_dir = |error| StorageError::io(dir, error);
    let mut segments = Vec::new();
    let mut indexes = Vec::new();
    for entry in fs::read_dir(dir).map_err(of_dir)? {
        let entry = entry.map_err(of_dir)?;
        let (name, path) = (entry.file_name(), entry.path());
        let failed = |error| StorageError::io(&path, error);
        let Some(name) = name.to_str() else { continue };
        if name.ends_with(".tmp") || name.ends_with(&format!(".{DELETED}")) {
            remove_for_good(&path).map_err(failed)?;
            continue;
        }
        match parse_offset_name(name) {
            Some((base_offset, LOG)) => segments.push((base_offset, entry.metadata().map_err(failed)?.len())),
            Some((_, OFFSET_INDEX | TIME_INDEX | TXN_INDEX)) if entry.file_type().map_err(failed)?.is_dir() => {
                remove_index_directory(&path).map_err(failed)?;
            }
            Some((base_offset, OFFSET_INDEX | TIME_INDEX | TXN_INDEX)) => indexes.push((base_offset, path)),
            _ => {}
        }
    }
    segments.sort_unstable();
    for (base_offset, path) in indexes {
        if segments.binary_search_by_key(&base_offset, |segment| segment.0).is_err() {
            fs::remove_file(&path).map_err(|error| StorageError::io(&path, error))?;
        }
    }
    Ok(segments)
}

/// Removes an empty directory that has the name of an index, so that the index can be rebuilt.
fn remove_index_directory(path: &Path) -> io::Result<()> {
    fs::remove_dir(path).map_err(|error| match error.kind() {
        io::ErrorKind::DirectoryNotEmpty => {
            io::Error::other("it is a directory; move it away, and the broker rebuilds this index")
        }
        _ => error,
    })
}
