//! A segment's index file: entries of fixed size in ascending order, appended and searched.
//!
//! The newest entries are in memory and reach the file a page at a time. An index therefore costs no memory mapping, no
//! descriptor and at most [`TAIL_MAX`] entries of memory. After a crash the file may lack its end, and recovery
//! rebuilds it.
//!
//! Invariant: the file's entries followed by those in memory are ascending in every field.
//!
//! Formats: Kafka's `OffsetIndex` (relative offset i32, position i32) and `TimeIndex` (timestamp i64, relative offset
//! i32). The index of aborted transactions is [`super::txn_index`].

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most entries kept in memory before they are written. In an offset index they are 4 KiB, for 2 MiB of log at the
/// default index.interval.bytes.
const TAIL_MAX: usize = 512;

/// Most bytes of an entry of any kind.
const ENTRY_MAX: usize = 34;

/// Entry of an index.
pub trait Entry: Copy {
    /// Bytes of an entry in the file.
    const LEN: usize;
    fn encode(self, into: &mut Vec<u8>);
    /// Decodes an entry from `bytes`, whose length is [`Entry::LEN`].
    fn decode(bytes: &[u8]) -> Self;
}

/// Entry of a batch, by the offset of its last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetEntry {
    /// Offset less the segment's base offset.
    pub relative_offset: u32,
    /// Position of the batch in the log file.
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

/// Largest timestamp up to a batch, with the last offset of the batch that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeEntry {
    pub timestamp: i64,
    /// Offset less the segment's base offset.
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

/// Index file. It does not store its path, since segments are many and their names follow from offsets.
#[derive(Debug)]
pub struct Index<E> {
    on_disk: u32,
    tail: Vec<E>,
}

impl<E: Entry> Index<E> {
    /// Creates an empty index. The first write replaces the contents of the file.
    pub fn empty() -> Self {
        Index { on_disk: 0, tail: Vec::new() }
    }

    /// Returns the index of a file of `bytes` bytes; None if these are no whole number of entries.
    pub fn of_file_len(bytes: u64) -> Option<Self> {
        let entries = u32::try_from(bytes / E::LEN as u64).ok()?;
        bytes.is_multiple_of(E::LEN as u64).then(|| Index { on_disk: entries, tail: Vec::new() })
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.on_disk as usize + self.tail.len()
    }

    /// Returns the entries that are in the file, and those in memory that follow.
    pub fn parts(&self) -> (OnDisk, &[E]) {
        (OnDisk { entries: self.on_disk }, &self.tail)
    }

    /// Drops the entries in memory, beginning with the first for which `is_before` returns false.
    pub fn cut_tail(&mut self, is_before: impl Fn(&E) -> bool) {
        self.tail.truncate(self.tail.partition_point(is_before));
    }

    /// Drops the entries in memory, and all but the first `count` entries of the file. The next write cuts the file
    /// off.
    pub fn cut_to(&mut self, count: u32) {
        self.on_disk = self.on_disk.min(count);
        self.tail = Vec::new();
    }

    /// Adds an entry in memory.
    pub fn push(&mut self, entry: E) {
        self.tail.push(entry);
    }

    /// Adds the entry, if there is one, in memory.
    pub fn extend(&mut self, entry: Option<E>) {
        self.tail.extend(entry);
    }

    /// Returns true if the entries in memory must be written before more are added. After a failed write, returns true
    /// only once [`TAIL_MAX`] more entries have gathered.
    pub fn is_tail_full(&self) -> bool {
        !self.tail.is_empty() && self.tail.len().is_multiple_of(TAIL_MAX)
    }

    /// Writes the entries in memory after those in the file, and cuts off anything else in the file. After an error all
    /// entries are still known.
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

    /// Returns the last entry for which `is_before` returns true. Such entries must be a prefix of all entries. If
    /// memory does not have the entry, returns the part in the file: the caller searches this part by
    /// [`OnDisk::last_before`], without a lock.
    pub fn last_before(&self, is_before: impl Fn(&E) -> bool) -> EntryLocation<E> {
        match self.tail.partition_point(is_before) {
            0 if self.on_disk == 0 => EntryLocation::Entry(None),
            0 => EntryLocation::OnDisk(OnDisk { entries: self.on_disk }),
            at => EntryLocation::Entry(Some(self.tail[at - 1])),
        }
    }
}

/// Location of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryLocation<E> {
    /// Entry in memory; `None` if the index has no such entry.
    Entry(Option<E>),
    /// Part of the index in the file, which may have the entry.
    OnDisk(OnDisk),
}

impl<E: Entry> EntryLocation<E> {
    /// Returns the entry, and reads it from the file if memory does not have it; None if there is no such entry.
    pub fn load(self, path: &Path, is_before: impl Fn(&E) -> bool) -> io::Result<Option<E>> {
        match self {
            EntryLocation::Entry(entry) => Ok(entry),
            EntryLocation::OnDisk(on_disk) => on_disk.last_before(path, is_before),
        }
    }
}

/// Part of an index that is in its file. The file is never rewritten while the segment lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnDisk {
    pub entries: u32,
}

impl OnDisk {
    /// Returns the last entry of the file for which `is_before` returns true; None if there is no such entry.
    pub fn last_before<E: Entry>(self, path: &Path, is_before: impl Fn(&E) -> bool) -> io::Result<Option<E>> {
        let file = File::open(path)?;
        match self.count_before(&file, is_before)? {
            0 => Ok(None),
            count => entry_at(&file, count - 1).map(Some),
        }
    }

    /// Returns the number of entries in the file for which `is_before` returns true. Such entries must be a prefix of
    /// all entries.
    pub fn count_before<E: Entry>(self, file: &File, is_before: impl Fn(&E) -> bool) -> io::Result<u32> {
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_before(&entry_at(file, middle)?) { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }

    /// Reads the entries of the file at these indexes.
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
            let dir = tempfile::tempdir().expect("temporary folder");
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
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("index");
        std::fs::write(&path, [9; 100]).expect("written");
        let mut index = Index::empty();
        index.push(OffsetEntry { relative_offset: 1, position: 2 });
        index.write(&path).expect("written");
        assert_eq!(std::fs::read(&path).expect("read"), [0, 0, 0, 1, 0, 0, 0, 2]);
    }
}
