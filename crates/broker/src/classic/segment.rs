//! One segment: a log file, its two indexes, and what is known of its timestamps.
//!
//! Not the log: a segment does not know whether it is the active one, nor who may see its records.
//!
//! Invariant: bytes before `size` are whole batches in offset order; a failed write leaves the file as
//! long as it was.

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::UNIX_EPOCH;

use super::files::{DELETED, LOG, OFFSET_INDEX, TIME_INDEX, offset_path};
use super::index::{Index, OffsetEntry, TimeEntry};
use super::scan::{Header, Scan, ScanError};

/// Log files open in this process. Descriptors are limited per process, so the count is, too.
static OPEN_FILES: AtomicUsize = AtomicUsize::new(0);

/// Log files open now, as far as segments hold them.
pub fn open_files() -> usize {
    OPEN_FILES.load(Ordering::Relaxed)
}

/// A counted descriptor. Slices being sent may hold the file a little longer.
#[derive(Debug)]
struct OpenFile(Arc<File>);

impl OpenFile {
    fn new(file: File) -> Self {
        OPEN_FILES.fetch_add(1, Ordering::Relaxed);
        OpenFile(Arc::new(file))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        OPEN_FILES.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The largest timestamp of some batches, and the last offset of the first batch that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Largest {
    pub timestamp: i64,
    pub offset: i64,
}

/// A write that did not happen.
#[derive(Debug)]
pub enum WriteError {
    /// The file is as it was.
    Undone(io::Error),
    /// The file could not be cut back; what is at its end is not known.
    Broken(io::Error),
}

/// One segment of a log.
#[derive(Debug)]
pub struct Segment {
    dir: Arc<Path>,
    pub base_offset: i64,
    /// Bytes of whole batches.
    pub size: u64,
    file: Option<OpenFile>,
    /// Whether both index files were there when the segment was loaded.
    has_index_files: bool,
    pub offsets: Index<OffsetEntry>,
    pub times: Index<TimeEntry>,
    /// `None`: there is no batch, or it was not looked up since the start.
    largest: Option<Largest>,
    /// The timestamp of the last time index entry, `i64::MIN` without one.
    last_indexed_timestamp: i64,
    /// Of the first batch; `None` until looked up.
    first_timestamp: Option<i64>,
    /// Bytes since the last index entry.
    unindexed_bytes: u64,
    /// When the segment came into this process.
    pub opened_ms: i64,
}

impl Segment {
    /// A new file; one that is there is emptied.
    pub fn create(dir: &Arc<Path>, base_offset: i64, now_ms: i64) -> io::Result<Segment> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let file = options.open(offset_path(dir, base_offset, LOG))?;
        let mut segment = Segment::new(dir, base_offset, 0, now_ms);
        segment.file = Some(OpenFile::new(file));
        Ok(segment)
    }

    /// A file that is there, of so many bytes, with the indexes beside it as far as they can be right.
    pub fn load(dir: &Arc<Path>, base_offset: i64, size: u64, now_ms: i64) -> Segment {
        let mut segment = Segment::new(dir, base_offset, size, now_ms);
        let len = |suffix| fs::metadata(segment.path(suffix)).map(|file| file.len());
        let offsets = len(OFFSET_INDEX).ok().and_then(Index::of_file_len);
        let times = len(TIME_INDEX).ok().and_then(Index::of_file_len);
        if let (Some(offsets), Some(times)) = (offsets, times) {
            (segment.offsets, segment.times) = (offsets, times);
            segment.has_index_files = true;
        }
        segment
    }

    fn new(dir: &Arc<Path>, base_offset: i64, size: u64, now_ms: i64) -> Segment {
        Segment {
            dir: dir.clone(),
            base_offset,
            size,
            file: None,
            has_index_files: false,
            offsets: Index::empty(),
            times: Index::empty(),
            largest: None,
            last_indexed_timestamp: i64::MIN,
            first_timestamp: None,
            unindexed_bytes: 0,
            opened_ms: now_ms,
        }
    }

    /// The path of the file with this suffix.
    pub fn path(&self, suffix: &str) -> PathBuf {
        offset_path(&self.dir, self.base_offset, suffix)
    }

    /// The log file, opened when it is not.
    pub fn file(&mut self) -> io::Result<Arc<File>> {
        if let Some(open) = &self.file {
            return Ok(open.0.clone());
        }
        let file = File::options().read(true).write(true).open(self.path(LOG))?;
        let open = self.file.insert(OpenFile::new(file));
        Ok(open.0.clone())
    }

    /// Gives the descriptor back; whether there was one.
    pub fn close_file(&mut self) -> bool {
        self.file.take().is_some()
    }

    /// Whether an offset can be said relative to this segment's.
    pub fn can_hold(&self, offset: i64) -> bool {
        (0..=i64::from(i32::MAX)).contains(&(offset - self.base_offset))
    }

    /// Writes a batch at the end: its header and what follows, in one vectored write.
    pub fn write(&mut self, header: &[u8], payload: &[u8]) -> Result<(), WriteError> {
        let file = self.file().map_err(WriteError::Undone)?;
        if let Err(error) = write_all_at(&file, header, payload, self.size) {
            return Err(match file.set_len(self.size) {
                Ok(()) => WriteError::Undone(error),
                Err(_) => WriteError::Broken(error),
            });
        }
        self.size += (header.len() + payload.len()) as u64;
        Ok(())
    }

    /// Takes note of a batch that is in the file: index entries and timestamps.
    pub fn account(&mut self, batch: &Header, index_interval_bytes: u64) {
        let (timestamp, offset) = (batch.max_timestamp, batch.last_offset());
        if self.largest.is_none_or(|largest| timestamp > largest.timestamp) {
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

    /// Writes index entries out where many have gathered; to be called before a write, which it may fail.
    pub fn spill_indexes(&mut self) -> io::Result<()> {
        if self.offsets.is_tail_full() {
            self.offsets.write(&offset_path(&self.dir, self.base_offset, OFFSET_INDEX))?;
        }
        if self.times.is_tail_full() {
            self.times.write(&offset_path(&self.dir, self.base_offset, TIME_INDEX))?;
        }
        Ok(())
    }

    /// Writes both index files whole, the time index with its last word.
    pub fn finish_indexes(&mut self) -> io::Result<()> {
        self.largest()?;
        self.index_time();
        let (offsets, times) = (self.path(OFFSET_INDEX), self.path(TIME_INDEX));
        self.offsets.write(&offsets)?;
        self.times.write(&times)
    }

    /// Starts both indexes anew and takes note of every batch up to `size`. Checks no checksums.
    pub fn rebuild_indexes(&mut self, index_interval_bytes: u64) -> io::Result<()> {
        self.forget_indexes();
        let file = self.file()?;
        let mut scan = Scan::new(&file, 0, self.size);
        while let Some(batch) = scan.next()? {
            self.spill_indexes()?;
            self.account(&batch, index_interval_bytes);
        }
        self.finish_indexes()
    }

    /// As if no batch had been noted.
    pub fn forget_indexes(&mut self) {
        (self.offsets, self.times) = (Index::empty(), Index::empty());
        (self.largest, self.first_timestamp) = (None, None);
        (self.last_indexed_timestamp, self.unindexed_bytes) = (i64::MIN, 0);
    }

    /// Whether the index files can be those of this log file: the last offset entry points at the batch it
    /// names and is high enough for the number of entries, and none are missing altogether.
    pub fn has_sound_indexes(&mut self, index_interval_bytes: u64) -> io::Result<bool> {
        if self.size == 0 {
            return Ok(true);
        }
        let file = self.file()?;
        let offsets = self.offsets.last(&self.path(OFFSET_INDEX));
        let times = self.times.last(&self.path(TIME_INDEX));
        let Some(entry) = offsets? else {
            return Ok(self.has_index_files && times?.is_some() && !self.has_batch_after(index_interval_bytes)?);
        };
        let first = Scan::new(&file, u64::from(entry.position), self.size).next();
        let offset = self.base_offset + i64::from(entry.relative_offset);
        let is_there = first.is_ok_and(|batch| batch.is_some_and(|batch| batch.last_offset() == offset));
        Ok(is_there && times?.is_some() && entry.relative_offset as usize >= self.offsets.len() - 1)
    }

    /// Whether a batch begins past this position, as the first batch of an index does.
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

    /// A position at or before the batch with `offset`, as far as the index knows.
    pub fn position_before(&self, offset: i64) -> io::Result<u64> {
        let relative = offset - self.base_offset;
        let is_before = |entry: &OffsetEntry| i64::from(entry.relative_offset) <= relative;
        let found = self.offsets.last_before(is_before).load(&self.path(OFFSET_INDEX), is_before)?;
        Ok(found.map_or(0, |entry| u64::from(entry.position)))
    }

    /// An offset at or before the first batch that reaches `timestamp`, less the base offset, as far as the
    /// time index knows.
    pub fn offset_before(&self, timestamp: i64) -> io::Result<i64> {
        let is_before = |entry: &TimeEntry| entry.timestamp <= timestamp;
        let found = self.times.last_before(is_before).load(&self.path(TIME_INDEX), is_before)?;
        Ok(found.map_or(0, |entry| i64::from(entry.relative_offset)))
    }

    /// The offset of the last record, by the headers after the last index entry.
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

    /// Goes on where a clean shutdown left off: the timestamps come from the time index.
    pub fn resume(&mut self) -> io::Result<()> {
        if let Some(entry) = self.times.last(&self.path(TIME_INDEX))? {
            self.last_indexed_timestamp = entry.timestamp;
        }
        self.largest().map(drop)
    }

    /// The largest timestamp, or `None` without batches. A segment whose time index is empty counts as old
    /// as its file.
    pub fn largest(&mut self) -> io::Result<Option<Largest>> {
        if self.largest.is_none() && self.size > 0 {
            let entry = self.times.last(&self.path(TIME_INDEX))?;
            self.largest = Some(match entry {
                Some(entry) => {
                    Largest { timestamp: entry.timestamp, offset: self.base_offset + i64::from(entry.relative_offset) }
                }
                None => Largest { timestamp: modified_ms(&self.path(LOG))?, offset: self.base_offset },
            });
        }
        Ok(self.largest)
    }

    /// The timestamp of the first batch, or `None` without batches.
    pub fn first_timestamp(&mut self) -> io::Result<Option<i64>> {
        if self.first_timestamp.is_none() && self.size > 0 {
            let file = self.file()?;
            let first = Scan::new(&file, 0, self.size).next()?;
            self.first_timestamp = first.map(|batch| batch.max_timestamp);
        }
        Ok(self.first_timestamp)
    }

    /// Takes the segment out of use: its files get a name to be removed under. Their new paths.
    pub fn retire(mut self) -> io::Result<Vec<PathBuf>> {
        self.close_file();
        let mut retired = Vec::new();
        for suffix in [LOG, OFFSET_INDEX, TIME_INDEX] {
            let to = self.path(&format!("{suffix}.{DELETED}"));
            match fs::rename(self.path(suffix), &to) {
                Ok(()) => retired.push(to),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(retired)
    }
}

/// When a file was last written, in ms.
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
    // A short write is rare: a signal, or a disk just full.
    let header_left = header.get(written..).unwrap_or_default();
    let payload_left = &payload[written.saturating_sub(header.len())..];
    let position = position + written as u64;
    file.write_all_at(header_left, position)?;
    file.write_all_at(payload_left, position + header_left.len() as u64)
}
