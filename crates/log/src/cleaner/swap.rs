//! Replaces old segments by those that a compaction has written. After a crash, the broker uses either all the old
//! segments or all the new ones, never a mixture.
//!
//! As in Kafka, the suffix of a file shows how far the replacement has got. A `.cleaned` file is incomplete, and a
//! restarted broker removes it. A `.swap` file is complete and on the disk. A restarted broker removes the segments
//! that the `.swap` file covers, and then renames it to its final name. The log file is renamed after its indexes, so
//! its name alone shows which stage the segment has reached. A `.swap` file covers all offsets from its first to its
//! last batch. To make this work, compaction always keeps the last batch, if necessary without records.
//!
//! Not every segment has an index of aborted transactions. If a restarted broker finds one, it must know whether the
//! index belongs to the old or to the new segment. The replacement first removes the old index, then the old log file,
//! and only then gives the new index its final name. An index next to an old log file therefore belongs to the old
//! segment.
//!
//! The replacement holds the partition's lock while it changes the list of segments, which needs no I/O. It also holds
//! the lock while it renames the new files, but not while it renames the old files, of which there may be hundreds.
//!
//! Invariant: in the files that a restarted broker would use, every record that is kept has its old offset.

use std::fs::{self, File};
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Release;

use crate::Log;
use crate::error::StorageError;
use crate::files::{CLEANED, LOG, OFFSET_INDEX, SWAP, TIME_INDEX, TXN_INDEX, offset_path, parse_offset_name, sync_dir};
use crate::scan::Scan;
use crate::segment::{Segment, Stage};
use crate::steps::step;

impl Log {
    /// Replaces the segments with the base offsets `sources` by `cleaned`, and returns the old segments. Returns
    /// `cleaned` as an error unless the old segments are adjacent and sealed. Also fails if the log was truncated since
    /// [`Log::cuts`] returned `cuts`, because segments with the same base offsets may have other records now.
    pub fn exchange(
        &mut self,
        cleaned: Vec<Segment>,
        sources: &[i64],
        cuts: u32,
    ) -> Result<Vec<Segment>, Vec<Segment>> {
        let found = self.find_run(sources).filter(|_| cuts == self.cuts());
        let Some(first) = found else { return Err(cleaned) };
        self.generation.fetch_add(1, Release);
        let mut after = self.segments.split_off(first);
        let kept = after.split_off(sources.len());
        self.segments.extend(cleaned);
        self.segments.extend(kept);
        Ok(after.into())
    }

    /// Gives the files of the new segments their final names.
    pub fn settle(&mut self, bases: &[i64]) -> io::Result<()> {
        self.generation.fetch_add(1, Release);
        let mut swapped = self.segments.iter_mut().filter(|segment| bases.contains(&segment.base_offset));
        swapped.try_for_each(|segment| segment.rename_to(Stage::Settled))
    }

    /// Returns the index of the first segment in a run of adjacent sealed segments with the base offsets `bases`.
    /// Returns `None` if there is no such run.
    fn find_run(&self, bases: &[i64]) -> Option<usize> {
        let first = self.segments.iter().position(|segment| Some(&segment.base_offset) == bases.first())?;
        let run = self.segments.iter().skip(first).map(|segment| segment.base_offset);
        let is_run = run.take(bases.len()).eq(bases.iter().copied());
        (is_run && first + bases.len() < self.segments.len()).then_some(first)
    }
}

/// Completes a compaction that was interrupted, when the log is opened. Removes new segments that are incomplete, and
/// puts complete ones in place.
pub fn finish_interrupted(dir: &Path) -> Result<(), StorageError> {
    let failed = |error| StorageError::io(dir, error);
    let Some(left) = Leftovers::find(dir).map_err(failed)? else {
        return Ok(());
    };
    for path in &left.unfinished {
        step();
        fs::remove_file(path).map_err(failed)?;
    }
    if left.whole.is_empty() {
        return Ok(());
    }
    let covered = covered(dir, &left.whole)?;
    tracing::warn!(dir = %dir.display(), ?covered, "a compaction was interrupted before its last step: putting the \
         compacted files in place now");
    for (base_offset, path) in &left.settled {
        if covered.contains(base_offset) && !left.whole.contains(base_offset) {
            step();
            fs::remove_file(path).map_err(failed)?;
        }
    }
    for base_offset in &left.whole {
        left.remove_old(dir, *base_offset).map_err(failed)?;
    }
    for base_offset in &left.whole {
        settle_files(dir, *base_offset).map_err(failed)?;
    }
    sync_dir(dir).map_err(failed)
}

/// The files that an interrupted compaction has left in a log's directory, and the files of the segments in use.
#[derive(Default)]
struct Leftovers {
    /// Files of new segments that are incomplete.
    unfinished: Vec<PathBuf>,
    /// The base offsets of new segments that are complete, and replace others.
    whole: Vec<i64>,
    /// The files of the segments in use.
    settled: Vec<(i64, PathBuf)>,
}

impl Leftovers {
    /// Finds the files. Returns `None` if compaction has left none, which is the normal case.
    fn find(dir: &Path) -> io::Result<Option<Leftovers>> {
        let mut left = Leftovers::default();
        let (mut swaps, mut first_cleaned) = (Vec::new(), i64::MAX);
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let Some((base_offset, suffix)) = path.file_name().and_then(|name| parse_offset_name(name.to_str()?))
            else {
                continue;
            };
            match suffix.rsplit_once('.') {
                Some((_, CLEANED)) => {
                    first_cleaned = first_cleaned.min(base_offset);
                    left.unfinished.push(path.clone());
                }
                Some((suffix, SWAP)) => swaps.push((base_offset, suffix == LOG, path.clone())),
                Some(_) => {}
                None if [LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX].contains(&suffix) => {
                    left.settled.push((base_offset, path.clone()));
                }
                None => {}
            }
        }
        if left.unfinished.is_empty() && swaps.is_empty() {
            return Ok(None);
        }
        let is_whole = |base_offset: i64| {
            base_offset < first_cleaned && swaps.iter().any(|&(base, is_log, _)| is_log && base == base_offset)
        };
        for (base_offset, is_log, path) in &swaps {
            match (is_whole(*base_offset), is_log) {
                (true, true) => left.whole.push(*base_offset),
                (true, false) => {}
                (false, _) => left.unfinished.push(path.clone()),
            }
        }
        // Remove the log file first, because its name decides whether a restarted broker uses its indexes.
        left.unfinished.sort_by_key(|path| !path.to_string_lossy().contains(".log."));
        Ok(Some(left))
    }

    /// Removes the log file and the index of aborted transactions of an old segment. Otherwise a restarted broker could
    /// take them for parts of the new segment.
    fn remove_old(&self, dir: &Path, base_offset: i64) -> io::Result<()> {
        let old = offset_path(dir, base_offset, LOG);
        if !self.settled.iter().any(|(_, path)| *path == old) {
            return Ok(());
        }
        for path in [offset_path(dir, base_offset, TXN_INDEX), old] {
            step();
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the range of offsets that the complete new segments cover. `whole` has the base offsets of these segments.
fn covered(dir: &Path, whole: &[i64]) -> Result<RangeInclusive<i64>, StorageError> {
    let (mut first, mut last) = (i64::MAX, i64::MIN);
    for &base_offset in whole {
        let path = offset_path(dir, base_offset, &format!("{LOG}.{SWAP}"));
        let failed = |error: io::Error| StorageError::io(&path, error);
        let file = File::open(&path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        let mut scan = Scan::new(&file, 0, len);
        (first, last) = (first.min(base_offset), last.max(base_offset));
        while let Some(batch) = scan.next().map_err(|error| failed(error.into()))? {
            last = last.max(batch.last_offset());
        }
    }
    Ok(first..=last)
}

fn settle_files(dir: &Path, base_offset: i64) -> io::Result<()> {
    for suffix in [TXN_INDEX, TIME_INDEX, OFFSET_INDEX, LOG] {
        step();
        let from = offset_path(dir, base_offset, &format!("{suffix}.{SWAP}"));
        match fs::rename(from, offset_path(dir, base_offset, suffix)) {
            // This index already has its final name, or the segment has no such index. The log file is renamed last.
            Err(error) if error.kind() == io::ErrorKind::NotFound && suffix != LOG => {}
            result => result?,
        }
    }
    Ok(())
}
