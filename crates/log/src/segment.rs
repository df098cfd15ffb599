//! A segment of a log: the log file, its indexes, and its timestamps.
//!
//! A segment does not know the segments around it, or up to which offset consumers may read.
//!
//! Invariant: the bytes before `size` are complete batches in the order of their offsets. A failed write does not
//! change the length of the file.

mod aborted;

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use super::files::{CLEANED, DELETED, LOG, OFFSET_INDEX, SWAP, TIME_INDEX, TXN_INDEX, offset_path};
use super::index::{Index, OffsetEntry, TimeEntry};
use super::scan::{Header, Scan, ScanError, go_on_unless};
use super::steps::step;
use super::txn_index::{AbortedTransaction, ChunkBegins};
use fullbore_host::files::{is_full, remove_for_good};

/// Number of log files that this process has open. The system limits how many files a process may open.
static OPEN_FILES: AtomicUsize = AtomicUsize::new(0);

/// Number of segments that this process has retired. The number makes file names unique, because compaction may retire
/// two segments with the same base offset before the first one's files are removed.
static RETIRED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of log files that segments currently have open.
pub fn open_files() -> usize {
    OPEN_FILES.load(Ordering::Relaxed)
}

/// An open log file, which counts in [`OPEN_FILES`] until this is dropped. A response that is being sent may keep the
/// file open a little longer.
#[derive(Debug)]
struct OpenFile(Arc<File>);

impl OpenFile {
    fn new(file: File) -> Self {
        OPEN_FILES.fetch_add(1, Ordering::Relaxed);
        // Turn off the system's read-ahead. Read-ahead would fill the page cache with bytes that `direct_io` reads
        // without the cache.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        OpenFile(Arc::new(file))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        OPEN_FILES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The largest timestamp among some batches. `offset` is the last offset of the first batch with this timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Largest {
    pub timestamp: i64,
    pub offset: i64,
}

/// The error of a failed write.
#[derive(Debug)]
pub enum WriteError {
    /// The file is as it was before the write.
    Undone(io::Error),
    /// The file could not be cut back to its old length, so its end is unknown.
    Broken(io::Error),
}

/// How far a segment that compaction writes has got. The names of its files show the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Compaction is still writing the segment, or has failed to complete it.
    Cleaned,
    /// The segment is complete and on the disk, and will replace other segments.
    Swap,
    /// The segment is in use, like a segment that was never compacted.
    Settled,
}

/// A segment of a log.
#[derive(Debug)]
pub struct Segment {
    dir: Arc<Path>,
    pub base_offset: i64,
    /// The length of the file up to the end of its last complete batch.
    pub size: u64,
    stage: Stage,
    file: Option<OpenFile>,
    /// True if both index files existed when the segment was loaded.
    has_index_files: bool,
    /// True if the index of aborted transactions was not written completely.
    is_aborted_torn: bool,
    pub offsets: Index<OffsetEntry>,
    pub times: Index<TimeEntry>,
    /// The transactions that were aborted by a marker in this segment. If there are none, there is no file.
    pub aborted: Index<AbortedTransaction>,
    /// The lowest first offset in each chunk of entries in the file of `aborted`. A lookup that reads a chunk adds its
    /// value. Set once the file has a complete chunk.
    aborted_begins: OnceLock<Arc<ChunkBegins>>,
    /// The largest timestamp. `None` if the segment is empty, or if the timestamp has not been looked up yet.
    largest: Option<Largest>,
    /// The timestamp of the last entry in the time index; `i64::MIN` if the index has no entries.
    last_indexed_timestamp: i64,
    /// The largest timestamp in the first batch; `None` until a caller needs it.
    first_timestamp: Option<i64>,
    /// The number of bytes since the last index entry.
    unindexed_bytes: u64,
    /// When this process created or loaded the segment.
    pub opened_ms: i64,
}

impl Segment {
    /// Creates a segment with an empty log file. If the file exists, it is emptied.
    pub fn create(dir: &Arc<Path>, base_offset: i64, now_ms: i64) -> io::Result<Segment> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let file = options.open(offset_path(dir, base_offset, LOG))?;
        let mut segment = Segment::new(dir, base_offset, 0, now_ms);
        segment.file = Some(OpenFile::new(file));
        Ok(segment)
    }

    /// Creates a segment that compaction will write, next to the segments in use.
    pub fn create_cleaned(dir: &Arc<Path>, base_offset: i64, now_ms: i64) -> io::Result<Segment> {
        let mut segment = Segment::new(dir, base_offset, 0, now_ms);
        segment.stage = Stage::Cleaned;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        segment.file = Some(OpenFile::new(options.open(segment.path(LOG))?));
        Ok(segment)
    }

    /// Renames the files for the next stage. Renames the log file last, so that its new name shows that the indexes
    /// have their new names, too.
    pub fn rename_to(&mut self, stage: Stage) -> io::Result<()> {
        for suffix in [TXN_INDEX, TIME_INDEX, OFFSET_INDEX, LOG] {
            if suffix != TXN_INDEX || self.aborted.len() > 0 {
                step();
                fs::rename(self.path(suffix), stage_path(&self.dir, self.base_offset, suffix, stage))?;
            }
        }
        self.stage = stage;
        Ok(())
    }

    /// Flushes the log file and its indexes.
    pub fn sync(&mut self) -> io::Result<()> {
        self.file()?.sync_data()?;
        self.index_paths().into_iter().try_for_each(|path| File::open(path)?.sync_data())
    }

    /// Returns the paths of the index files, all of which exist once the index entries have been written. The index of
    /// aborted transactions is among them only if it has entries.
    pub fn index_paths(&self) -> Vec<PathBuf> {
        let aborted = (self.aborted.len() > 0).then(|| self.path(TXN_INDEX));
        [self.path(OFFSET_INDEX), self.path(TIME_INDEX)].into_iter().chain(aborted).collect()
    }

    /// Removes the files of a segment that is not in use. If compaction wrote the segment, a failed renaming may have
    /// given some of its files the names of the stage [`Stage::Swap`] already.
    pub fn discard(self) {
        let stages: &[Stage] = match self.stage {
            Stage::Settled => &[Stage::Settled],
            Stage::Cleaned | Stage::Swap => &[Stage::Swap, Stage::Cleaned],
        };
        // Remove the log file first, since a restarted broker removes index files without a log file.
        let files = [LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX]
            .into_iter()
            .flat_map(|suffix| stages.iter().map(move |stage| (suffix, *stage)));
        for (suffix, stage) in files {
            let path = stage_path(&self.dir, self.base_offset, suffix, stage);
            if let Err(error) = fs::remove_file(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "cannot remove a file that is no longer in use");
            }
        }
    }

    /// Loads a segment from its log file of `size` bytes and its indexes. The offset and time indexes are ignored
    /// unless both files exist and have a whole number of entries.
    pub fn load(dir: &Arc<Path>, base_offset: i64, size: u64, now_ms: i64) -> Segment {
        let mut segment = Segment::new(dir, base_offset, size, now_ms);
        let len = |suffix| fs::metadata(segment.path(suffix)).map(|file| file.len());
        let offsets = len(OFFSET_INDEX).ok().and_then(Index::of_file_len);
        let times = len(TIME_INDEX).ok().and_then(Index::of_file_len);
        let aborted = len(TXN_INDEX).map(Index::of_file_len);
        if let (Some(offsets), Some(times)) = (offsets, times) {
            (segment.offsets, segment.times) = (offsets, times);
            segment.has_index_files = true;
        }
        match aborted {
            Ok(Some(aborted)) => segment.aborted = aborted,
            Ok(None) => segment.is_aborted_torn = true,
            Err(_) => {}
        }
        segment
    }

    fn new(dir: &Arc<Path>, base_offset: i64, size: u64, now_ms: i64) -> Segment {
        Segment {
            dir: dir.clone(),
            base_offset,
            size,
            stage: Stage::Settled,
            file: None,
            has_index_files: false,
            offsets: Index::empty(),
            times: Index::empty(),
            aborted: Index::empty(),
            aborted_begins: OnceLock::new(),
            is_aborted_torn: false,
            largest: None,
            last_indexed_timestamp: i64::MIN,
            first_timestamp: None,
            unindexed_bytes: 0,
            opened_ms: now_ms,
        }
    }

    /// Returns the path of the file with this suffix.
    pub fn path(&self, suffix: &str) -> PathBuf {
        stage_path(&self.dir, self.base_offset, suffix, self.stage)
    }

    /// Returns the log file, and opens it if necessary.
    pub fn file(&mut self) -> io::Result<Arc<File>> {
        if let Some(open) = &self.file {
            return Ok(open.0.clone());
        }
        let file = File::options().read(true).write(true).open(self.path(LOG))?;
        let open = self.file.insert(OpenFile::new(file));
        Ok(open.0.clone())
    }

    /// Returns true if the path of the open log file leads to another file, because the directory has been replaced.
    pub fn is_replaced(&self) -> bool {
        let inode = |of: fs::Metadata| (of.dev(), of.ino());
        let opened = self.file.as_ref().and_then(|open| open.0.metadata().ok()).map(inode);
        let found = fs::metadata(self.path(LOG)).ok().map(inode);
        opened.zip(found).is_some_and(|(opened, found)| opened != found)
    }

    /// Returns the log file for reading it from start to end, with the system's read-ahead. The caller must close the
    /// file before the segment serves clients.
    pub fn file_to_scan(&mut self) -> io::Result<Arc<File>> {
        let file = self.file()?;
        let _ = rustix::fs::fadvise(&*file, 0, None, rustix::fs::Advice::Sequential);
        Ok(file)
    }

    /// Returns true if the log file is open.
    pub fn has_open_file(&self) -> bool {
        self.file.is_some()
    }

    /// Closes the log file. Returns true if it was open.
    pub fn close_file(&mut self) -> bool {
        self.file.take().is_some()
    }

    /// Returns true if the segment's indexes can store this offset, which they do relative to the base offset.
    pub fn can_hold(&self, offset: i64) -> bool {
        (0..=i64::from(i32::MAX)).contains(&(offset - self.base_offset))
    }

    /// Appends a batch to the file, with a single system call for header and payload. Returns the file.
    pub fn write(&mut self, header: &[u8], payload: &[u8]) -> Result<Arc<File>, WriteError> {
        let file = self.file().map_err(WriteError::Undone)?;
        if let Err(error) = write_all_at(&file, header, payload, self.size) {
            return Err(match file.set_len(self.size) {
                Ok(()) => WriteError::Undone(error),
                Err(_) => WriteError::Broken(error),
            });
        }
        self.size += (header.len() + payload.len()) as u64;
        Ok(file)
    }

    /// Updates the indexes and timestamps for a batch that is now in the file.
    pub fn account(&mut self, batch: &Header, index_interval_bytes: u64) {
        let (timestamp, offset) = (batch.max_timestamp, batch.last_offset());
        // If compaction has emptied the batch, no record has its timestamp.
        if batch.has_records && self.largest.is_none_or(|largest| timestamp > largest.timestamp) {
            self.largest = Some(Largest { timestamp, offset });
        }
        self.first_timestamp.get_or_insert(timestamp);
        if self.unindexed_bytes > index_interval_bytes {
            self.offsets.push(OffsetEntry { relative_offset: self.relative(offset), position: batch.position as u32 });
            self.index_time();
            self.unindexed_bytes = 0;
        }
        self.unindexed_bytes += u64::from(batch.size);
    }

    fn index_time(&mut self) {
        if let Some(largest) = self.largest.filter(|largest| largest.timestamp > self.last_indexed_timestamp) {
            self.times.push(TimeEntry { timestamp: largest.timestamp, relative_offset: self.relative(largest.offset) });
            self.last_indexed_timestamp = largest.timestamp;
        }
    }

    fn relative(&self, offset: i64) -> u32 {
        u32::try_from(offset - self.base_offset).expect("a segment is rolled before its offsets overflow")
    }

    /// Writes index entries to their files once enough have gathered. Must be called before each write. If this fails,
    /// the caller must not write the batch.
    pub fn spill_indexes(&mut self) -> io::Result<()> {
        if self.offsets.is_tail_full() {
            self.offsets.write(&self.path(OFFSET_INDEX))?;
        }
        if self.times.is_tail_full() {
            self.times.write(&self.path(TIME_INDEX))?;
        }
        if self.aborted.is_tail_full() { self.finish_aborted() } else { Ok(()) }
    }

    /// Writes all index entries to their files. The time index gets a last entry for the largest timestamp.
    pub fn finish_indexes(&mut self) -> io::Result<()> {
        self.largest_record()?;
        self.index_time();
        let (offsets, times) = (self.path(OFFSET_INDEX), self.path(TIME_INDEX));
        self.offsets.write(&offsets)?;
        self.times.write(&times)?;
        self.finish_aborted()
    }

    /// Rebuilds the offset and time indexes from all batches. Does not verify checksums.
    pub fn rebuild_indexes(&mut self, stop: &AtomicBool, index_interval_bytes: u64) -> io::Result<()> {
        self.forget_indexes();
        let file = self.file_to_scan()?;
        let mut scan = Scan::new(&file, 0, self.size);
        while let Some(batch) = scan.next()? {
            go_on_unless(stop)?;
            if !self.can_hold(batch.last_offset()) {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("offset {}", batch.last_offset())));
            }
            // On a full disk, these entries stay in memory, and the next call tries to write them again.
            match self.spill_indexes() {
                Err(error) if !is_full(&error) => return Err(error),
                _ => self.account(&batch, index_interval_bytes),
            }
        }
        self.finish_indexes()
    }

    /// Forgets all index entries.
    pub fn forget_indexes(&mut self) {
        (self.offsets, self.times) = (Index::empty(), Index::empty());
        (self.largest, self.first_timestamp) = (None, None);
        (self.last_indexed_timestamp, self.unindexed_bytes) = (i64::MIN, 0);
    }

    /// Returns true if the index files seem to belong to this log file. All of them must exist. The last offset entry
    /// must point at its batch, and its offset must be high enough for the number of entries. The last time entry must
    /// match a batch, and no later batch may have a larger timestamp. Other entries are verified only when they are
    /// read.
    pub fn has_sound_indexes(&mut self, index_interval_bytes: u64) -> io::Result<bool> {
        if self.size == 0 {
            return Ok(true);
        }
        let file = self.file()?;
        let Some(entry) = self.offsets.last(&self.path(OFFSET_INDEX))? else {
            let has_all = self.has_index_files && !self.has_batch_after(index_interval_bytes)?;
            return Ok(has_all && self.has_sound_times(Scan::new(&file, 0, self.size))?);
        };
        let (position, last_offset) = (u64::from(entry.position), self.offset_at(entry.relative_offset));
        if (entry.relative_offset as usize) < self.offsets.len() - 1 {
            return Ok(false);
        }
        match Scan::at_batch(None, &file, position, self.size, last_offset)? {
            Some(scan) => self.has_sound_times(scan),
            None => Ok(false),
        }
    }

    /// Returns true if the last time entry, on which retention depends, matches a batch. None of `last_batches` may
    /// have a larger timestamp. If there is no entry, returns true if the segment has no records.
    fn has_sound_times(&self, mut last_batches: Scan<'_>) -> io::Result<bool> {
        let Some(entry) = self.times.last(&self.path(TIME_INDEX))? else { return Ok(!self.has_records()?) };
        while let Ok(Some(batch)) = last_batches.next() {
            if batch.has_records && batch.max_timestamp > entry.timestamp {
                return Ok(false);
            }
        }
        self.has_batch_of(&entry)
    }

    /// Returns true if any batch of the segment has records. Compaction may leave batches without records.
    fn has_records(&self) -> io::Result<bool> {
        let file = self.file_to_look_at()?;
        let mut scan = Scan::new(&file, 0, self.size);
        while let Ok(Some(batch)) = scan.next() {
            if batch.has_records {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if a batch begins after `position`. If no batch begins after the first index interval, an empty
    /// offset index is correct.
    fn has_batch_after(&mut self, position: u64) -> io::Result<bool> {
        let file = self.file()?;
        let mut scan = Scan::new(&file, 0, self.size);
        while let Ok(Some(batch)) = scan.next() {
            if batch.position > position {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Uses the index to find the start of a batch at or before the one with `offset`. Returns 0 if the index does not
    /// help.
    pub fn position_before(&self, offset: i64) -> io::Result<u64> {
        let relative = offset - self.base_offset;
        let is_before = |entry: &OffsetEntry| i64::from(entry.relative_offset) <= relative;
        let found = self.offsets.last_before(is_before).load(&self.path(OFFSET_INDEX), is_before)?;
        let Some(entry) = found else { return Ok(0) };
        let (position, last_offset) = (u64::from(entry.position), self.offset_at(entry.relative_offset));
        if Scan::at_batch(None, &*self.file_to_look_at()?, position, self.size, last_offset)?.is_some() {
            return Ok(position);
        }
        tracing::warn!(path = %self.path(OFFSET_INDEX).display(), "an index entry points to a batch that does not exist: reading the log without the index");
        Ok(0)
    }

    /// Returns the position of the first batch that ends at or after `offset`. If there is none, returns the end of the
    /// last complete batch.
    pub fn position_of(&self, offset: i64) -> io::Result<u64> {
        let mut end = if offset <= self.base_offset { 0 } else { self.position_before(offset)? };
        let file = self.file_to_look_at()?;
        let mut scan = Scan::new(&file, end, self.size);
        while let Ok(Some(batch)) = scan.next() {
            if batch.last_offset() >= offset {
                return Ok(batch.position);
            }
            end = batch.end();
        }
        Ok(end)
    }

    /// Returns an offset, relative to the base offset. A scan from there finds the first batch whose largest timestamp
    /// is at least `timestamp`. Takes the offset from the time index, or returns 0 if the index has no usable entry.
    pub fn offset_before(&self, timestamp: i64) -> io::Result<i64> {
        let is_before = |entry: &TimeEntry| entry.timestamp <= timestamp;
        let found = self.times.last_before(is_before).load(&self.path(TIME_INDEX), is_before)?;
        let Some(entry) = found else { return Ok(0) };
        if self.has_batch_of(&entry)? {
            return Ok(i64::from(entry.relative_offset));
        }
        tracing::warn!(path = %self.path(TIME_INDEX).display(), "an index entry points to a batch that does not exist: reading the log without the index");
        Ok(0)
    }

    /// Returns true if the batch that a time index entry describes exists and has the same timestamp.
    fn has_batch_of(&self, entry: &TimeEntry) -> io::Result<bool> {
        let named = self.offset_at(entry.relative_offset);
        let start = self.position_before(named)?;
        let file = self.file_to_look_at()?;
        let mut scan = Scan::new(&file, start, self.size);
        while let Ok(Some(batch)) = scan.next() {
            if batch.last_offset() >= named {
                return Ok(batch.last_offset() == named && batch.max_timestamp == entry.timestamp);
            }
        }
        Ok(false)
    }

    fn offset_at(&self, relative_offset: u32) -> i64 {
        self.base_offset + i64::from(relative_offset)
    }

    /// Returns the log file for a short read. If the segment has not opened the file, the caller gets a file of its
    /// own, which is closed after the read.
    fn file_to_look_at(&self) -> io::Result<Arc<File>> {
        match &self.file {
            Some(open) => Ok(open.0.clone()),
            None => File::open(self.path(LOG)).map(Arc::new),
        }
    }

    /// Returns the offset of the last record, by reading the batch headers after the last index entry. Returns `None`
    /// if there are no batches.
    pub fn last_offset(&mut self) -> Result<Option<i64>, ScanError> {
        let entry = self.offsets.last(&self.path(OFFSET_INDEX))?;
        let file = self.file()?;
        let mut scan = Scan::new(&file, entry.map_or(0, |entry| u64::from(entry.position)), self.size);
        let mut last_offset = None;
        while let Some(batch) = scan.next()? {
            last_offset = Some(batch.last_offset());
        }
        Ok(last_offset)
    }

    /// Prepares the last segment for appends after a clean shutdown. Its timestamps are taken from the time index.
    pub fn resume(&mut self) -> io::Result<()> {
        if let Some(entry) = self.times.last(&self.path(TIME_INDEX))? {
            self.last_indexed_timestamp = entry.timestamp;
        }
        self.largest_record().map(drop)
    }

    /// Returns the largest timestamp; `None` if there are no batches. If no record has a timestamp, or the time index
    /// is empty, returns the modification time of the file, as Kafka's `LogSegment.largestTimestamp` does.
    pub fn largest_timestamp(&mut self) -> io::Result<Option<i64>> {
        match self.largest_record()? {
            Some(largest) if largest.timestamp >= 0 => Ok(Some(largest.timestamp)),
            _ if self.size > 0 => modified_ms(&self.path(LOG)).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the largest timestamp of a record, from the last entry of the time index; `None` if there are no
    /// records.
    pub fn largest_record(&mut self) -> io::Result<Option<Largest>> {
        if self.largest.is_none() && self.size > 0 {
            let entry = self.times.last(&self.path(TIME_INDEX))?;
            self.largest = entry.map(|entry| Largest {
                timestamp: entry.timestamp,
                offset: self.base_offset + i64::from(entry.relative_offset),
            });
        }
        Ok(self.largest)
    }

    /// Returns the largest timestamp of the first batch; `None` if there are no batches.
    pub fn first_timestamp(&mut self) -> io::Result<Option<i64>> {
        if self.first_timestamp.is_none() && self.size > 0 {
            let file = self.file()?;
            let first = Scan::new(&file, 0, self.size).next()?;
            self.first_timestamp = first.map(|batch| batch.max_timestamp);
        }
        Ok(self.first_timestamp)
    }

    /// Takes the segment out of use. Renames its files, so that they can be removed later, and returns the new paths.
    /// If `at_once` is true, removes them immediately instead. After an error the segment is still in use.
    pub fn retire(&mut self, at_once: bool) -> io::Result<Vec<PathBuf>> {
        self.close_file();
        let number = RETIRED.fetch_add(1, Ordering::Relaxed);
        let mut retired = Vec::new();
        for suffix in [LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX] {
            step();
            let path = self.path(suffix);
            let to = offset_path(&self.dir, self.base_offset, &format!("{suffix}.{number}.{DELETED}"));
            match if at_once { remove_for_good(&path) } else { fs::rename(&path, &to) } {
                Ok(()) if at_once => {}
                Ok(()) => retired.push(to),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if suffix == LOG => return Err(error),
                // The log file was removed first, so the broker's next start will remove the index files.
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "cannot remove a file that is no longer in use")
                }
            }
        }
        Ok(retired)
    }
}

fn stage_path(dir: &Path, base_offset: i64, suffix: &str, stage: Stage) -> PathBuf {
    match stage {
        Stage::Settled => offset_path(dir, base_offset, suffix),
        Stage::Cleaned => offset_path(dir, base_offset, &format!("{suffix}.{CLEANED}")),
        Stage::Swap => offset_path(dir, base_offset, &format!("{suffix}.{SWAP}")),
    }
}

/// Returns when a file was last written, in ms.
pub fn modified_ms(path: &Path) -> io::Result<i64> {
    let since_epoch = fs::metadata(path)?.modified()?.duration_since(UNIX_EPOCH);
    Ok(since_epoch.map_or(0, |time| time.as_millis() as i64))
}

fn write_all_at(file: &File, header: &[u8], payload: &[u8], position: u64) -> io::Result<()> {
    let slices = [IoSlice::new(header), IoSlice::new(payload)];
    let written = loop {
        match rustix::io::pwritev(file, &slices, position) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?,
        }
    };
    // A write is rarely cut short. This happens after a signal, or when the disk has just become full.
    let header_left = header.get(written..).unwrap_or_default();
    let payload_left = &payload[written.saturating_sub(header.len())..];
    let position = position + written as u64;
    file.write_all_at(header_left, position)?;
    file.write_all_at(payload_left, position + header_left.len() as u64)
}
