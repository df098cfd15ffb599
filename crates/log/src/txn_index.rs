//! The aborted transactions of a segment: `.txnindex`.
//!
//! A transaction is in the index of the segment that has its marker, so that entries are in the order of markers. A
//! read at read_committed needs the entries that overlap its offsets. It finds the first such entry by a binary search.
//! It ends at an entry whose last stable offset is past the read, since all later transactions begin at or past that
//! offset. While a long transaction is open, the last stable offset does not move, and no entry ends the read. The read
//! then skips chunks of entries by [`ChunkBegins`].
//!
//! Format: Kafka's `AbortedTxn`: version i16, then producer id, first offset, last offset (the marker's) and last
//! stable offset, i64 each.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::index::{Entry, OnDisk};

pub use fullbore_rules::sequence::AbortedTransaction;

const VERSION: i16 = 0;
/// Most entries that are read from a file in one read: 34 KB.
pub const CHUNK: u32 = 1_000;

impl Entry for AbortedTransaction {
    const LEN: usize = 34;

    fn encode(self, into: &mut Vec<u8>) {
        into.extend_from_slice(&VERSION.to_be_bytes());
        for field in [self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset] {
            into.extend_from_slice(&field.to_be_bytes());
        }
    }

    fn decode(bytes: &[u8]) -> Self {
        let field = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("34 bytes"));
        AbortedTransaction {
            producer_id: field(2),
            first_offset: field(10),
            last_offset: field(18),
            last_stable_offset: field(26),
        }
    }
}

/// Entries of one segment, which are read without the lock of the log.
#[derive(Debug)]
pub struct SegmentEntries {
    /// First offset of the next segment, or the end of the log.
    pub end_offset: i64,
    pub path: PathBuf,
    pub on_disk: OnDisk,
    /// Begins of the file's chunks, shared by all lookups.
    pub begins: Arc<ChunkBegins>,
    /// Entries that follow those of the file, and are not in it yet.
    pub in_memory: Vec<AbortedTransaction>,
}

/// Lowest first offset of each whole chunk of [`CHUNK`] entries of a file, as far as lookups have read them. Takes 16
/// bytes a chunk. Valid as long as the entries of the file stay.
#[derive(Debug, Default)]
pub struct ChunkBegins(Mutex<Vec<Option<i64>>>);

impl ChunkBegins {
    /// Returns the first chunk in `chunk..end` that may have transactions that begin before `upto`; `end` if there is
    /// none.
    fn next_before(&self, upto: i64, chunk: u32, end: u32) -> u32 {
        let begins = self.0.lock();
        let is_later = |chunk: u32| begins.get(chunk as usize).copied().flatten().is_some_and(|begin| begin >= upto);
        (chunk..end).find(|chunk| !is_later(*chunk)).unwrap_or(end)
    }

    fn is_known(&self, chunk: u32) -> bool {
        self.0.lock().get(chunk as usize).copied().flatten().is_some()
    }

    fn note(&self, chunk: u32, entries: &[AbortedTransaction]) {
        let (at, mut begins) = (chunk as usize, self.0.lock());
        if begins.len() <= at {
            begins.resize(at + 1, None);
        }
        if let Some(begin) = begins.get_mut(at) {
            *begin = entries.iter().map(|entry| entry.first_offset).min();
        }
    }
}

/// Plan to find the aborted transactions that overlap a range of offsets.
#[derive(Debug)]
pub struct AbortedLookup {
    /// First offset of the range.
    pub from: i64,
    pub segments: Vec<SegmentEntries>,
}

impl AbortedLookup {
    /// Returns the transactions with records in `from..upto`, in the order of their markers. Blocks on the disk.
    ///
    /// # Errors
    /// [`io::Error`] if an index cannot be read. `NotFound` if retention has removed a segment: the caller plans again.
    pub fn read(&self, upto: i64) -> io::Result<Vec<AbortedTransaction>> {
        self.read_within(self.from..upto)
    }

    /// Returns the transactions with records in a part of the range. Opens no index of a segment that ends before the
    /// part.
    ///
    /// # Errors
    /// [`io::Error`] under the conditions of [`AbortedLookup::read`].
    pub fn read_within(&self, part: Range<i64>) -> io::Result<Vec<AbortedTransaction>> {
        let Range { start: from, end: upto } = part;
        let mut found = Vec::new();
        if upto <= from {
            return Ok(found);
        }
        let mut visit = |entry: &AbortedTransaction| {
            if entry.last_offset >= from && entry.first_offset < upto {
                found.push(*entry);
            }
            // Transactions that end later have begun at or past the entry's last stable offset.
            entry.last_stable_offset < upto
        };
        let first = self.segments.partition_point(|segment| segment.end_offset <= from);
        for segment in self.segments.iter().skip(first) {
            if !segment.visit(from..upto, &mut visit)? {
                break;
            }
        }
        Ok(found)
    }
}

impl SegmentEntries {
    /// Visits the entries of markers at or past the begin of `part`. Once `visit` returns false, ends and returns
    /// false. Skips chunks whose transactions all begin past the part.
    fn visit(&self, part: Range<i64>, visit: &mut impl FnMut(&AbortedTransaction) -> bool) -> io::Result<bool> {
        let is_before = |entry: &AbortedTransaction| entry.last_offset < part.start;
        if self.on_disk.entries > 0 {
            let file = File::open(&self.path)?;
            let whole_chunks = self.on_disk.entries / CHUNK;
            let mut next = self.on_disk.count_before(&file, is_before)?;
            while next < self.on_disk.entries {
                let chunk = self.begins.next_before(part.end, next / CHUNK, whole_chunks);
                next = next.max(chunk * CHUNK);
                let end = self.on_disk.entries.min((chunk + 1).saturating_mul(CHUNK));
                let is_new = chunk < whole_chunks && !self.begins.is_known(chunk);
                let start = if is_new { chunk * CHUNK } else { next };
                let entries: Vec<AbortedTransaction> = self.on_disk.read(&file, start..end)?;
                if is_new {
                    self.begins.note(chunk, &entries);
                }
                if !entries.iter().skip((next - start) as usize).all(&mut *visit) {
                    return Ok(false);
                }
                next = end;
            }
        }
        let later = self.in_memory.iter().skip_while(|entry| is_before(entry));
        Ok(later.into_iter().all(visit))
    }
}
