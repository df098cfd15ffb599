//! Finds records: by offset for fetches, and by timestamp for ListOffsets.
//!
//! A search has two steps, so that no file is read under the partition's lock. First an [`OffsetLookup`] is planned
//! under the lock, from memory alone. Then it runs without the lock. In the meantime, segments may be retired. A file
//! that is already open stays readable until the broker removes it for good, which also empties it. The caller must
//! plan again if a file is gone ([`is_gone`]), or if an index may belong to another segment now
//! ([`OffsetLookup::is_stale`]).
//!
//! Invariant: a slice contains nothing at or after the high watermark.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Acquire;

use fullbore_wire::FileSlice;

use super::Log;
use super::files::OFFSET_INDEX;
use super::index::{EntryLocation, OffsetEntry};
use super::recent::BatchPosition;
use super::scan::{Header, Scan, ScanError};
use super::segment::Segment;
use crate::direct_io::DirectReads;

/// The point in a segment at which the search for a batch begins.
#[derive(Debug)]
enum LookupStart {
    /// The batch is at this position.
    At(BatchPosition),
    /// The batch is the one of this index entry, or a later one.
    From(EntryLocation<OffsetEntry>),
}

/// A plan to find an offset in a segment without the partition's lock.
#[derive(Debug)]
pub struct OffsetLookup {
    file: Arc<File>,
    index_path: PathBuf,
    base_offset: i64,
    offset: i64,
    /// The number of bytes of the file that the read may use. They end after the last complete batch, or at the read's
    /// limit if its position is known.
    size: u64,
    start: LookupStart,
    /// The offset at which the read must end, if it is within this segment.
    limit_offset: Option<i64>,
    /// The newest remembered position within the read's byte limit at which a batch ends, with the offset of the next
    /// batch.
    soft_end: Option<(u64, i64)>,
    /// The last index entry within the read's byte limit. The limit is counted from the index entry at which the search
    /// begins. `None` unless both entries are in memory.
    near_end: Option<OffsetEntry>,
    /// The offset at the position `size`: the end of the segment, or the offset at which the read must end if its
    /// position is known.
    pub end_offset: i64,
    generation: Arc<AtomicU64>,
    planned_in: u64,
}

/// The result of a search for an offset.
#[derive(Debug)]
pub enum Slice {
    /// A slice that begins with the batch that contains the offset, or with the next batch in the segment.
    Of(FileSlice),
    /// The first batch is larger than the read's byte limit.
    TooLarge,
    /// The segment has no batch at or after the offset, because compaction has removed it.
    Hole,
}

/// Returns true if the error means that the segment was removed after the plan was made. The index file then no longer
/// exists, or the log file is empty.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof)
}

impl Log {
    /// Plans a read from `offset` up to `limit`. `offset` must be at least the log start, and less than `limit`.
    pub fn plan_read(&mut self, offset: i64, max_bytes: u32, limit: i64) -> io::Result<OffsetLookup> {
        let index = self.segment_of(offset);
        let is_active = index + 1 == self.segments.len();
        let end_offset = self.segments.get(index + 1).map_or(self.log_end, |next| next.base_offset);
        let mut plan = OffsetLookup::new(&mut self.segments[index], offset, end_offset, &self.generation)?;
        if let LookupStart::From(EntryLocation::Entry(Some(first))) = plan.start {
            let is_before = |entry: &OffsetEntry| entry.position <= first.position.saturating_add(max_bytes);
            plan.near_end = match self.segments[index].offsets.last_before(is_before) {
                EntryLocation::Entry(entry) => entry,
                EntryLocation::OnDisk(_) => None,
            };
        }
        if is_active && let Some(place) = self.recent.find(offset, plan.size) {
            plan.start = LookupStart::At(place);
            plan.soft_end = self.recent.end_before(place.position + u64::from(max_bytes));
        }
        if limit < end_offset {
            match self.recent.find(limit, plan.size).filter(|_| is_active) {
                // The limit is the first offset of a batch, so the read can end at that batch's position.
                Some(place) => (plan.size, plan.end_offset) = (place.position, limit),
                None => plan.limit_offset = Some(limit),
            }
        }
        Ok(plan)
    }

    /// Returns the index in `segments` of the segment that contains `offset`. Returns 0 if the offset is before all of
    /// them.
    pub fn segment_of(&self, offset: i64) -> usize {
        let after = self.segments.partition_point(|segment| segment.base_offset <= offset);
        after.saturating_sub(1)
    }
}

impl OffsetLookup {
    /// Returns the base offset of the segment.
    pub fn base_offset(&self) -> i64 {
        self.base_offset
    }

    /// Plans to find `offset` in `segment` with the help of its index.
    pub fn new(
        segment: &mut Segment,
        offset: i64,
        end_offset: i64,
        generation: &Arc<AtomicU64>,
    ) -> io::Result<OffsetLookup> {
        let relative = offset - segment.base_offset;
        let found = segment.offsets.last_before(|entry| i64::from(entry.relative_offset) <= relative);
        Ok(OffsetLookup {
            file: segment.file()?,
            index_path: segment.path(OFFSET_INDEX),
            base_offset: segment.base_offset,
            offset,
            size: segment.size,
            start: LookupStart::From(found),
            limit_offset: None,
            soft_end: None,
            near_end: None,
            end_offset,
            generation: Arc::clone(generation),
            planned_in: generation.load(Acquire),
        })
    }

    /// Returns true if segments were replaced after the plan was made. The index that was read may then belong to
    /// another segment.
    pub fn is_stale(&self) -> bool {
        self.generation.load(Acquire) != self.planned_in
    }

    /// Returns a slice of at most `max_bytes` that begins with the batch that contains the offset. If `at_least_one` is
    /// true, the first batch is returned even if it is larger.
    pub fn read(&self, max_bytes: u32, at_least_one: bool, cold: &DirectReads) -> io::Result<Slice> {
        let Some(place) = self.place(cold)? else {
            return Ok(Slice::Hole);
        };
        let end = self.end(place.position, cold)?;
        let first_end = place.position + place.size;
        if first_end > end {
            return Ok(Slice::TooLarge);
        }
        let allowed = place.position + u64::from(max_bytes);
        let cut = match self.soft_end {
            _ if end <= allowed => end,
            Some((soft_end, _)) if soft_end >= first_end => soft_end,
            _ => allowed,
        };
        let end = if at_least_one { cut.max(first_end) } else { cut };
        if end < first_end {
            return Ok(Slice::TooLarge);
        }
        Ok(Slice::Of(FileSlice {
            file: Arc::clone(&self.file),
            position: place.position,
            len: u32::try_from(end - place.position).expect("max_bytes or one batch, both below 2^32"),
            settled: self.size,
        }))
    }

    /// Removes an incomplete batch from the end of the slice. Returns the offset after the last complete batch.
    pub fn whole(&self, slice: &mut FileSlice, cold: &DirectReads) -> io::Result<i64> {
        let end = slice.position + u64::from(slice.len);
        match self.soft_end {
            _ if end == self.size && self.limit_offset.is_none() => return Ok(self.end_offset),
            Some((soft_end, offset)) if soft_end == end => return Ok(offset),
            _ => {}
        }
        let mut scan = self.scan_before(slice.position, end, cold)?;
        let (mut whole, mut offset) = (slice.position, self.offset);
        while let Some(batch) = scan.next()? {
            if batch.end() > end {
                (whole, offset) = (batch.position, batch.base_offset);
                break;
            }
            (whole, offset) = (batch.end(), batch.last_offset() + 1);
        }
        slice.len = u32::try_from(whole - slice.position).unwrap_or(slice.len);
        Ok(offset)
    }

    /// Returns true if more batches below the offset `limit` are known to follow the slice.
    pub fn goes_on(&self, slice: &FileSlice, limit: i64) -> bool {
        let end = slice.position + u64::from(slice.len);
        self.limit_offset.is_none() && (end < self.size || self.end_offset < limit)
    }

    /// Returns a scan that begins close before `end`: at the last index entry before `end`, or at `from` if that is
    /// later. A batch must begin at `from`.
    fn scan_before<'a>(&'a self, from: u64, end: u64, cold: &'a DirectReads) -> io::Result<Scan<'a>> {
        let is_before = |entry: &OffsetEntry| u64::from(entry.position) < end;
        let entry = match (self.near_end, &self.start) {
            (Some(entry), _) => Some(entry).filter(is_before),
            (None, LookupStart::From(found @ EntryLocation::OnDisk(_))) => {
                // Retention or compaction may have removed the index since the plan was made. The scan then reads all
                // headers from `from` on.
                found.load(&self.index_path, is_before).ok().flatten()
            }
            (None, _) => None,
        };
        if let Some(entry) = entry.filter(|entry| u64::from(entry.position) > from) {
            let last_offset = self.base_offset + i64::from(entry.relative_offset);
            let position = u64::from(entry.position);
            if let Some(scan) = Scan::at_batch(Some(cold), &self.file, position, self.size, last_offset)? {
                return Ok(scan);
            }
        }
        Ok(Scan::beside(Some(cold), &self.file, from, self.size))
    }

    fn place(&self, cold: &DirectReads) -> io::Result<Option<BatchPosition>> {
        match self.start {
            LookupStart::At(place) => Ok(Some(place)),
            LookupStart::From(_) => {
                let batch = self.find(cold)?;
                Ok(batch.map(|batch| BatchPosition { position: batch.position, size: u64::from(batch.size) }))
            }
        }
    }

    /// Returns the end of the bytes that may be read. If the position of the read's limit is unknown, scans the batches
    /// from `from` on to find it. A batch must begin at `from`.
    fn end(&self, from: u64, cold: &DirectReads) -> io::Result<u64> {
        let Some(offset) = self.limit_offset else {
            return Ok(self.size);
        };
        let scan = Scan::beside(Some(cold), &self.file, from, self.size);
        Ok(first_reaching(scan, offset)?.map_or(self.size, |batch| batch.position))
    }

    /// Returns the batch that contains the offset, or the next one in the segment; `None` if there is neither. Scans
    /// the headers from the index entry on.
    fn find(&self, cold: &DirectReads) -> io::Result<Option<Header>> {
        Ok(first_reaching(self.indexed(cold)?, self.offset)?)
    }

    /// Returns a scan that begins at the index entry. If no batch matches the entry, the scan begins at the start of
    /// the segment.
    fn indexed<'a>(&'a self, cold: &'a DirectReads) -> io::Result<Scan<'a>> {
        let relative = self.offset - self.base_offset;
        let is_before = |entry: &OffsetEntry| i64::from(entry.relative_offset) <= relative;
        let entry = match self.start {
            LookupStart::From(found) => found.load(&self.index_path, is_before)?,
            LookupStart::At(_) => None,
        };
        if let Some(entry) = entry {
            let last_offset = self.base_offset + i64::from(entry.relative_offset);
            let position = u64::from(entry.position);
            if let Some(scan) = Scan::at_batch(Some(cold), &self.file, position, self.size, last_offset)? {
                return Ok(scan);
            }
            tracing::warn!(index = %self.index_path.display(), "an index entry points to a batch that does not exist: reading the log without the index");
        }
        Ok(Scan::beside(Some(cold), &self.file, 0, self.size))
    }

    /// Searches the batches that have records and end at or after the offset. Calls `look` for each of them whose
    /// largest timestamp is at least `timestamp`. Stops at the first result of `look` and returns it, or `None` if
    /// there is none.
    pub fn find_timestamp<T>(
        &self,
        timestamp: i64,
        cold: &DirectReads,
        mut look: impl FnMut(&Header) -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        let mut scan = self.indexed(cold)?;
        while let Some(batch) = scan.next()? {
            if batch.last_offset() >= self.offset
                && batch.max_timestamp >= timestamp
                && batch.has_records
                && let Some(found) = look(&batch)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the log file that the plan reads.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }
}

/// Returns the first batch that ends at or after the offset; `None` if there is none.
fn first_reaching(mut scan: Scan<'_>, offset: i64) -> Result<Option<Header>, ScanError> {
    while let Some(batch) = scan.next()? {
        if batch.last_offset() >= offset {
            return Ok(Some(batch));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};

    use super::*;
    use crate::recovery::RecoveryHint;
    use crate::validation::ValidBatch;
    use fullbore_config::{BrokerConfig, Properties};
    use fullbore_host::disk_space::DiskSpace;

    #[test]
    fn nothing_past_the_high_watermark_is_read_whether_the_batch_there_is_remembered_or_not() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = broker.topics.defaults;
        let known = RecoveryHint::NOTHING;
        let directory = tempfile::tempdir().expect("temporary directory");
        let mut log = Log::open(&directory.path().into(), known, 0, &config).expect("opened");
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(0, None, Some(&[1; 100]), &[]);
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        let batch = ValidBatch::unchecked(&bytes);
        for _ in 0..200 {
            log.append(&batch, 0, 0, &config).expect("appended");
        }
        for high_watermark in 1..=200 {
            for offset in 0..high_watermark {
                let plan = log.plan_read(offset, 1 << 20, high_watermark).expect("planned");
                let Slice::Of(slice) = plan.read(1 << 20, true, &DirectReads::default()).expect("read") else {
                    panic!("no records")
                };
                let size = bytes.len() as u64;
                assert_eq!(
                    (slice.position, slice.position + u64::from(slice.len)),
                    (offset as u64 * size, high_watermark as u64 * size)
                );
            }
        }
    }

    #[test]
    fn a_slice_whose_index_is_removed_after_the_search_is_cut_to_whole_batches() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = broker.topics.defaults;
        let directory = tempfile::tempdir().expect("temporary directory");
        let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(0, None, Some(&[1; 3000]), &[]);
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        // There are now more batches than the index entries in memory can cover.
        for _ in 0..1500 {
            log.append(&ValidBatch::unchecked(&bytes), 0, 0, &config).expect("appended");
        }
        let cold = DirectReads::default();
        let plan = log.plan_read(1, 10_000, 1500).expect("planned");
        assert!(matches!(plan.start, LookupStart::From(EntryLocation::OnDisk(_))));
        let Slice::Of(mut slice) = plan.read(10_000, true, &cold).expect("read") else { panic!("records") };
        std::fs::remove_file(&plan.index_path).expect("removed");
        assert_eq!(plan.whole(&mut slice, &cold).expect("cut"), 4);
        assert_eq!(slice.len as usize, 3 * bytes.len());
    }

    #[test]
    fn a_lookup_whose_segment_is_removed_for_good_is_gone() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = broker.topics.defaults;
        let directory = tempfile::tempdir().expect("temporary directory");
        let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(0, None, Some(&[1; 100]), &[]);
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        (0..500).for_each(|_| _ = log.append(&ValidBatch::unchecked(&bytes), 0, 0, &config).expect("appended"));
        // Forget the positions in memory, so that the file must be read.
        log.recent.clear();
        let cold = DirectReads::default();
        let (begun, first) =
            (log.plan_read(1, 10_000, 500).expect("planned"), log.plan_read(1, 1, 500).expect("planned"));
        let Slice::Of(mut slice) = begun.read(10_000, true, &cold).expect("read") else { panic!("records") };
        let full = DiskSpace::open(directory.path(), 0);
        full.note_full();
        log.delete_before(500, 0, &full).expect("deleted");
        assert!(is_gone(&begun.whole(&mut slice, &cold).expect_err("it has no bytes")));
        assert!(is_gone(&first.read(1, true, &cold).expect_err("it has no bytes")));
    }

    #[test]
    fn a_slice_cut_to_whole_batches_ends_before_the_offset_returned_wherever_the_index_is() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let config = broker.topics.defaults;
        let directory = tempfile::tempdir().expect("temporary directory");
        let mut log = Log::open(&directory.path().into(), RecoveryHint::NOTHING, 0, &config).expect("opened");
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        (0..3).for_each(|at| builder.append(at, None, Some(&[1; 1000]), &[]));
        let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        let batch = ValidBatch::unchecked(&bytes);
        // Append more batches than the index entries in memory can cover.
        let batches = 1500;
        for _ in 0..batches {
            log.append(&batch, 0, 0, &config).expect("appended");
        }
        let (size, cold) = (bytes.len() as u64, DirectReads::default());
        for first in (0..batches).step_by(7) {
            for max_bytes in [1, 3000, 5000, 70_000, 300_000, 1 << 30] {
                for high_watermark in [batches * 3, batches * 3 - 30, 3300].into_iter().filter(|end| *end > first * 3) {
                    let plan = log.plan_read(first * 3 + 1, max_bytes, high_watermark).expect("planned");
                    let Slice::Of(mut slice) = plan.read(max_bytes, true, &cold).expect("read") else {
                        panic!("records")
                    };
                    let end_offset = plan.whole(&mut slice, &cold).expect("cut");
                    let fit = (u64::from(max_bytes) / size).max(1).min((high_watermark / 3 - first) as u64);
                    assert_eq!((slice.position, u64::from(slice.len)), (first as u64 * size, fit * size));
                    assert_eq!(end_offset, (first + fit as i64) * 3, "{first} {max_bytes} {high_watermark}");
                }
            }
        }
    }
}
