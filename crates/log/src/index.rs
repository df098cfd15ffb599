//! An index file of a segment. Its entries have a fixed size and are in ascending order, so that a binary search finds
//! them.
//!
//! The newest entries are kept in memory and written to the file a page at a time. An index therefore needs no memory
//! mapping, no open file, and memory for at most [`TAIL_MAX`] entries. If a crash loses the end of the file, recovery
//! rebuilds the index.
//!
//! Invariant: the entries in the file, followed by those in memory, are ascending in every field.
//!
//! The formats are those of Kafka's `OffsetIndex` (relative offset i32, position i32) and `TimeIndex` (timestamp i64,
//! relative offset i32). The index of aborted transactions is in [`super::txn_index`].

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Maximum number of entries in memory before they are written. In an offset index they take 4 KiB, and cover 2 MiB of
/// log with the default index.interval.bytes.
const TAIL_MAX: usize = 512;

/// Maximum size of an entry of any kind, in bytes.
const ENTRY_MAX: usize = 34;

/// An entry of an index.
pub trait Entry: Copy {
    /// The size of an entry in the file, in bytes.
    const LEN: usize;
    fn encode(self, into: &mut Vec<u8>);
    /// Decodes an entry from `bytes`, which must have the length [`Entry::LEN`].
    fn decode(bytes: &[u8]) -> Self;
}

/// The position of a batch in the log file, by the offset of its last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetEntry {
    /// The offset, relative to the segment's base offset.
    pub relative_offset: u32,
    /// The batch's position in the log file.
    pub position: u32,
}

impl Entry for OffsetEntry {
    const LEN: usize = 8;

    fn encode(self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.relative_offset.to_be_bytes());
        into.extend_from_slice(&self.position.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Self {
        OffsetEntry {
            relative_offset: u32::from_be_bytes(bytes[..4].try_into().expect("8 bytes")),
            position: u32::from_be_bytes(bytes[4..8].try_into().expect("8 bytes")),
        }
    }
}

/// An entry of a time index: the largest timestamp from the start of the segment up to some batch. The offset is the
/// last offset of the batch with this timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeEntry {
    pub timestamp: i64,
    /// The offset, relative to the segment's base offset.
    pub relative_offset: u32,
}

impl Entry for TimeEntry {
    const LEN: usize = 12;

    fn encode(self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.timestamp.to_be_bytes());
        into.extend_from_slice(&self.relative_offset.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Self {
        TimeEntry {
            timestamp: i64::from_be_bytes(bytes[..8].try_into().expect("12 bytes")),
            relative_offset: u32::from_be_bytes(bytes[8..12].try_into().expect("12 bytes")),
        }
    }
}

/// An index file, and the newest entries, which are only in memory. The path is not a field, to save memory with many
/// segments: the caller derives it from the segment's base offset.
#[derive(Debug)]
pub struct Index<E> {
    on_disk: u32,
    tail: Vec<E>,
}

impl<E: Entry> Index<E> {
    /// Creates an empty index. The first write replaces the contents of the file, if it exists.
    pub fn empty() -> Self {
        Index { on_disk: 0, tail: Vec::new() }
    }

    /// Creates the index for a file of `bytes` bytes. Returns `None` if the file does not have a whole number of
    /// entries, or has too many.
    pub fn of_file_len(bytes: u64) -> Option<Self> {
        let entries = u32::try_from(bytes / E::LEN as u64).ok()?;
        bytes.is_multiple_of(E::LEN as u64).then(|| Index { on_disk: entries, tail: Vec::new() })
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.on_disk as usize + self.tail.len()
    }

    /// Returns the entries in the file, and those in memory that follow them.
    pub fn parts(&self) -> (OnDisk, &[E]) {
        (OnDisk { entries: self.on_disk }, &self.tail)
    }

    /// Keeps only the entries in memory for which `is_before` returns true. These entries must come before all others.
    pub fn cut_tail(&mut self, is_before: impl Fn(&E) -> bool) {
        self.tail.truncate(self.tail.partition_point(is_before));
    }

    /// Removes the entries in memory, and all but the first `count` entries in the file. The file is cut off at the
    /// next write.
    pub fn cut_to(&mut self, count: u32) {
        self.on_disk = self.on_disk.min(count);
        self.tail = Vec::new();
    }

    /// Adds an entry, which stays in memory until the next write.
    pub fn push(&mut self, entry: E) {
        self.tail.push(entry);
    }

    /// Adds the entry, if there is one.
    pub fn extend(&mut self, entry: Option<E>) {
        self.tail.extend(entry);
    }

    /// Returns true if the entries in memory should be written before more are added. After a failed write, still
    /// returns true until an entry is added. From then on, returns false until there are [`TAIL_MAX`] more entries.
    pub fn is_tail_full(&self) -> bool {
        !self.tail.is_empty() && self.tail.len().is_multiple_of(TAIL_MAX)
    }

    /// Writes all entries that are in memory, so that the file has the whole index. If this fails, no entry is lost.
    pub fn write(&mut self, path: &Path) -> io::Result<()> {
        let start = u64::from(self.on_disk) * E::LEN as u64;
        let mut bytes = Vec::with_capacity(self.tail.len() * E::LEN);
        self.tail.iter().for_each(|entry| entry.encode(&mut bytes));
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        file.set_len(start)?;
        file.write_all_at(&bytes, start)?;
        self.on_disk += self.tail.len() as u32;
        self.tail = Vec::new();
        Ok(())
    }

    /// Returns the last entry; None if the index is empty.
    pub fn last(&self, path: &Path) -> io::Result<Option<E>> {
        match (self.tail.last(), self.on_disk) {
            (Some(entry), _) => Ok(Some(*entry)),
            (None, 0) => Ok(None),
            (None, entries) => entry_at(&File::open(path)?, entries - 1).map(Some),
        }
    }

    /// Returns the last entry for which `is_before` returns true. `is_before` must return true for a prefix of all
    /// entries. If the entry is not in memory, returns the range of entries in the file instead. The caller can search
    /// this range with [`OnDisk::last_before`], without holding a lock.
    pub fn last_before(&self, is_before: impl Fn(&E) -> bool) -> EntryLocation<E> {
        match self.tail.partition_point(is_before) {
            0 if self.on_disk == 0 => EntryLocation::Entry(None),
            0 => EntryLocation::OnDisk(OnDisk { entries: self.on_disk }),
            at => EntryLocation::Entry(Some(self.tail[at - 1])),
        }
    }
}

/// The location of an index entry: in memory or in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryLocation<E> {
    /// The entry is in memory, or does not exist (`None`).
    Entry(Option<E>),
    /// The entry is in the file, if it exists.
    OnDisk(OnDisk),
}

impl<E: Entry> EntryLocation<E> {
    /// Returns the entry, and reads the file if necessary. Returns `None` if there is no such entry.
    pub fn load(self, path: &Path, is_before: impl Fn(&E) -> bool) -> io::Result<Option<E>> {
        match self {
            EntryLocation::Entry(entry) => Ok(entry),
            EntryLocation::OnDisk(on_disk) => on_disk.last_before(path, is_before),
        }
    }
}

/// The part of an index that is in its file. The entries only change if the log is truncated or recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnDisk {
    pub entries: u32,
}

impl OnDisk {
    /// Returns the last entry in the file for which `is_before` returns true; `None` if there is no such entry.
    pub fn last_before<E: Entry>(self, path: &Path, is_before: impl Fn(&E) -> bool) -> io::Result<Option<E>> {
        let file = File::open(path)?;
        match self.count_before(&file, is_before)? {
            0 => Ok(None),
            count => entry_at(&file, count - 1).map(Some),
        }
    }

    /// Returns the number of entries in the file for which `is_before` returns true. `is_before` must return true for a
    /// prefix of all entries.
    pub fn count_before<E: Entry>(self, file: &File, is_before: impl Fn(&E) -> bool) -> io::Result<u32> {
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_before(&entry_at(file, middle)?) { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }

    /// Reads a range of entries from the file.
    pub fn read<E: Entry>(self, file: &File, entries: Range<u32>) -> io::Result<Vec<E>> {
        let mut bytes = vec![0; entries.len() * E::LEN];
        file.read_exact_at(&mut bytes, u64::from(entries.start) * E::LEN as u64)?;
        Ok(bytes.chunks_exact(E::LEN).map(E::decode).collect())
    }
}

fn entry_at<E: Entry>(file: &File, index: u32) -> io::Result<E> {
    let mut bytes = [0; ENTRY_MAX];
    let bytes = &mut bytes[..E::LEN];
    file.read_exact_at(bytes, u64::from(index) * E::LEN as u64)?;
    Ok(E::decode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_search_finds_what_a_linear_scan_finds(
            steps in prop::collection::vec((1u32..5, 1u32..5), 0..1200),
            writes in prop::collection::vec(0usize..1200, 0..4),
            wanted in prop::collection::vec(0u32..6000, 20),
        ) {
            let dir = tempfile::tempdir().expect("temporary directory");
            let path = dir.path().join("index");
            let mut index = Index::empty();
            let mut entries = Vec::new();
            let mut last = OffsetEntry { relative_offset: 0, position: 0 };
            for (at, (offsets, bytes)) in steps.into_iter().enumerate() {
                last = OffsetEntry { relative_offset: last.relative_offset + offsets, position: last.position + bytes };
                entries.push(last);
                index.push(last);
                if index.is_tail_full() || writes.contains(&at) {
                    index.write(&path).expect("written");
                }
            }
            prop_assert_eq!(index.len(), entries.len());
            prop_assert_eq!(index.last(&path).expect("read"), entries.last().copied());
            for offset in wanted {
                let is_before = |entry: &OffsetEntry| entry.relative_offset <= offset;
                let linear = entries.iter().rev().find(|entry| is_before(entry)).copied();
                prop_assert_eq!(index.last_before(is_before).load(&path, is_before).expect("read"), linear);
            }
        }
    }

    #[test]
    fn a_file_of_odd_length_is_no_index() {
        assert!(Index::<TimeEntry>::of_file_len(24).is_some_and(|index| index.len() == 2));
        assert!(Index::<TimeEntry>::of_file_len(25).is_none());
    }

    #[test]
    fn leftovers_of_a_crash_are_cut_off_by_the_next_write() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("index");
        std::fs::write(&path, [9; 100]).expect("written");
        let mut index = Index::empty();
        index.push(OffsetEntry { relative_offset: 1, position: 2 });
        index.write(&path).expect("written");
        assert_eq!(std::fs::read(&path).expect("read"), [0, 0, 0, 1, 0, 0, 0, 2]);
    }
}
