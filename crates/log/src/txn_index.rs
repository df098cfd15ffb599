//! The index of a segment's aborted transactions, in the file `.txnindex`.
//!
//! A transaction is in the index of the segment that has its marker, so the entries are in the order of the markers. A
//! reader with read_committed needs the entries that overlap its offsets, and finds the first one by a binary search.
//! The reader stops at an entry whose last stable offset is after its range, because all later transactions begin at or
//! after that offset. While a long transaction is open, the last stable offset does not move, so that no entry stops
//! the reader. In that case the reader skips chunks of entries with the help of [`ChunkBegins`].
//!
//! The format is that of Kafka's `AbortedTxn`: version i16, then producer id, first offset, last offset (of the marker)
//! and last stable offset, each i64.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::index::{Entry, OnDisk};

pub use fullbore_rules::sequence::AbortedTransaction;

const VERSION: i16 = 0;
/// How many entries are read from a file at once. They take 34 KB.
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

/// The index entries of one segment. Reading them does not need the lock of the log.
#[derive(Debug)]
pub struct SegmentEntries {
    /// The first offset of the next segment, or the end of the log.
    pub end_offset: i64,
    pub path: PathBuf,
    pub on_disk: OnDisk,
    /// The first offsets in the file's chunks, which all lookups share.
    pub begins: Arc<ChunkBegins>,
    /// Entries that are not in the file yet. They follow those in the file.
    pub in_memory: Vec<AbortedTransaction>,
}

/// The lowest first offset in each complete chunk of [`CHUNK`] entries that a lookup has read. Each chunk takes 16
/// bytes. The values stay valid while the file's entries do not change.
#[derive(Debug, Default)]
pub struct ChunkBegins(Mutex<Vec<Option<i64>>>);

impl ChunkBegins {
    /// Returns the first chunk in `chunk..end` that may contain a transaction that begins before `upto`; `end` if all
    /// chunks are known to contain only later ones.
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

/// A plan to find the aborted transactions that overlap a range of offsets.
#[derive(Debug)]
pub struct AbortedLookup {
    /// The first offset of the range.
    pub from: i64,
    pub segments: Vec<SegmentEntries>,
}

impl AbortedLookup {
    /// Returns the aborted transactions that have records in `from..upto`, in the order of their markers. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// Returns the system's error. `NotFound` means that retention has removed a segment, and the caller should plan
    /// again.
    pub fn read(&self, upto: i64) -> io::Result<Vec<AbortedTransaction>> {
        self.read_within(self.from..upto)
    }

    /// Returns the aborted transactions that have records in a part of the range. Does not open the indexes of segments
    /// that end before that part.
    ///
    /// # Errors
    /// Returns the same errors as [`AbortedLookup::read`].
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
            // Stop at an entry whose last stable offset is not before `upto`, because all later transactions begin at
            // or after it.
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
    /// Calls `visit` for the entries whose markers are not before `part`. Stops and returns false as soon as `visit`
    /// returns false. Skips chunks of which a lookup has found that all their transactions begin after the part.
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
