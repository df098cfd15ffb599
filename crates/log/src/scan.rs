//! Scans the batches in a log file by their headers. The contents of a batch can be verified, but are not interpreted.
//!
//! The memory that a scan needs does not depend on the size of the file.
//!
//! Invariant: a [`Header`] belongs to a batch that is complete within the given limit, and its fields are plausible.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crc_fast::{CrcAlgorithm, Digest};
use fullbore_rules::sequence::{Marker, Stamp};
use fullbore_wire::batch::{BatchView, HEADER_LEN};

use crate::direct_io::{DirectReads, is_resident};
use crate::partition::stamping::Stamping;
use crate::transactions::marker_of;

/// How many bytes a scan reads at a time. A read returns many headers of small batches. Of a large batch, it returns
/// little more than the header, which is all that the scan needs.
const WINDOW: usize = 4096;
/// How many bytes are read at a time to check a checksum, or to search for a header.
const CHUNK: usize = 256 * 1024;
/// Maximum size of a control batch that is read. A marker has 78 bytes.
const MARKER_MAX: u32 = 4096;
/// The position in a batch of the first byte that the checksum covers.
const CRC_END: usize = 21;

/// The header of a batch in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The position of the batch.
    pub position: u64,
    /// The size of the whole batch in bytes.
    pub size: u32,
    pub base_offset: i64,
    pub leader_epoch: i32,
    pub crc: u32,
    pub max_timestamp: i64,
    pub is_control: bool,
    pub is_transactional: bool,
    /// False if compaction has removed all records. It has then kept the batch only for its offsets and sequence
    /// numbers.
    pub has_records: bool,
    /// The producer of the batch, and its sequence numbers.
    pub stamp: Stamp,
}

impl Header {
    /// Returns the header of a stamped batch that is written at `position`, as a scan will read it.
    pub fn of(stamping: &Stamping, position: u64) -> Header {
        Header::parse(position, stamping.bytes()).expect("the batch was checked before it was stamped")
    }

    /// Parses the header of a batch at `position`. Fails with a message if no writer can have written such a header.
    pub fn parse(position: u64, bytes: &[u8; HEADER_LEN]) -> Result<Header, String> {
        let size = BatchView::peek_len(bytes).map_err(|error| error.to_string())?;
        let i16_at = |at: usize| i16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let i32_at = |at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let i64_at = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let header = Header {
            position,
            size: u32::try_from(size).map_err(|_| format!("length {size}"))?,
            base_offset: i64_at(0),
            leader_epoch: i32_at(12),
            crc: i32_at(17) as u32,
            max_timestamp: i64_at(35),
            is_control: i16_at(21) & 0x20 != 0,
            is_transactional: i16_at(21) & 0x10 != 0,
            has_records: i32_at(57) > 0,
            stamp: Stamp {
                producer_id: i64_at(43),
                producer_epoch: i16_at(51),
                base_sequence: i32_at(53),
                record_count: i32_at(23).saturating_add(1),
            },
        };
        if header.stamp.record_count < 1 || header.base_offset < 0 {
            return Err(format!("offsets {} + {}", header.base_offset, i32_at(23)));
        }
        Ok(header)
    }

    /// Reads the marker of a control batch; `None` if it does not end a transaction.
    pub fn marker(&self, file: &File) -> io::Result<Option<Marker>> {
        if self.size > MARKER_MAX {
            return Ok(None);
        }
        let mut bytes = vec![0; self.size as usize];
        file.read_exact_at(&mut bytes, self.position)?;
        Ok(BatchView::first(&bytes).ok().as_ref().and_then(marker_of))
    }

    /// Returns the offset of the last record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset.saturating_add(i64::from(self.stamp.record_count) - 1)
    }

    /// Returns the position after the batch.
    pub fn end(&self) -> u64 {
        self.position + u64::from(self.size)
    }

    /// Reads the batch's bytes and returns true if their checksum is correct.
    pub fn has_valid_crc(&self, file: &File) -> io::Result<bool> {
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        let mut buffer = vec![0; CHUNK.min(self.size as usize)];
        let mut at = self.position + CRC_END as u64;
        while at < self.end() {
            let part = buffer.len().min((self.end() - at) as usize);
            file.read_exact_at(&mut buffer[..part], at)?;
            digest.update(&buffer[..part]);
            at += part as u64;
        }
        Ok(digest.finalize() as u32 == self.crc)
    }
}

/// The reason why a scan ended before its limit.
#[derive(Debug)]
pub enum ScanError {
    /// The system did not return the bytes.
    Io(io::Error),
    /// The bytes are not a complete batch.
    Bad {
        /// The position of the damage.
        position: u64,
        /// A description of the damage.
        why: String,
    },
}

impl From<io::Error> for ScanError {
    fn from(error: io::Error) -> Self {
        ScanError::Io(error)
    }
}

impl From<ScanError> for io::Error {
    fn from(error: ScanError) -> Self {
        match error {
            ScanError::Io(error) => error,
            ScanError::Bad { position, why } => {
                io::Error::new(io::ErrorKind::InvalidData, format!("bad batch at byte {position}: {why}"))
            }
        }
    }
}

/// A scan from batch to batch.
pub struct Scan<'a> {
    file: &'a File,
    /// If set, the scan also uses the bytes that direct reads have cached.
    cold: Option<&'a DirectReads>,
    /// True if the scan must not read the disk. The scan then ends with an error before the first header that is not in
    /// memory.
    is_memory_only: bool,
    position: u64,
    limit: u64,
    window: [u8; WINDOW],
    /// The position of `window` in the file.
    window_start: u64,
    window_len: usize,
}

impl<'a> Scan<'a> {
    /// Creates a scan that starts at `position`, where a batch must begin, and ends at `limit`.
    pub fn new(file: &'a File, position: u64, limit: u64) -> Self {
        Scan::beside(None, file, position, limit)
    }

    /// Like [`Scan::new`], but takes headers from the cached bytes of direct reads if possible.
    pub fn beside(cold: Option<&'a DirectReads>, file: &'a File, position: u64, limit: u64) -> Self {
        let (window, is_memory_only) = ([0; WINDOW], false);
        Scan { file, cold, is_memory_only, position, limit, window, window_start: 0, window_len: 0 }
    }

    /// Creates a scan that never reads the disk. If a header is neither in the page cache nor in `cold`, the scan ends
    /// with a WouldBlock error.
    pub fn in_memory(cold: &'a DirectReads, file: &'a File, position: u64, limit: u64) -> Self {
        Scan { is_memory_only: true, ..Scan::beside(Some(cold), file, position, limit) }
    }

    /// Creates a scan from the batch at `position`, which an index entry names. Returns `None` unless a batch with the
    /// last offset `last_offset` begins there.
    pub fn at_batch(
        cold: Option<&'a DirectReads>,
        file: &'a File,
        position: u64,
        limit: u64,
        last_offset: i64,
    ) -> io::Result<Option<Self>> {
        let mut scan = Scan::beside(cold, file, position, limit);
        match scan.next() {
            Ok(Some(batch)) if batch.last_offset() == last_offset => {
                scan.position = position;
                Ok(Some(scan))
            }
            Err(ScanError::Io(error)) => Err(error),
            Ok(_) | Err(ScanError::Bad { .. }) => Ok(None),
        }
    }

    /// Returns the next batch; `None` at the limit. After an error, the scan does not move on.
    pub fn next(&mut self) -> Result<Option<Header>, ScanError> {
        let position = self.position;
        if position >= self.limit {
            return Ok(None);
        }
        let bad = |why| ScanError::Bad { position, why };
        if self.limit - position < HEADER_LEN as u64 {
            return Err(bad("the batch is cut short".to_owned()));
        }
        let header = Header::parse(position, self.header_bytes()?).map_err(bad)?;
        if header.end() > self.limit {
            return Err(bad("the batch is cut short".to_owned()));
        }
        self.position = header.end();
        Ok(Some(header))
    }

    fn header_bytes(&mut self) -> io::Result<&[u8; HEADER_LEN]> {
        let window_end = self.window_start + self.window_len as u64;
        if self.position < self.window_start || self.position + HEADER_LEN as u64 > window_end {
            let mut len = WINDOW.min((self.limit - self.position) as usize);
            self.window_len = 0;
            let room = &mut self.window[..len];
            match self.cold.map_or(0, |cold| cold.peek(self.file, self.position, room)) {
                // Use the cached bytes if they contain a whole header.
                peeked @ HEADER_LEN.. => len = peeked,
                _ if self.is_memory_only && !is_resident(self.file, self.position, len) => {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                _ => {
                    let read = self.file.read_exact_at(&mut self.window[..len], self.position);
                    read.inspect_err(|error| {
                        self.cold.inspect(|cold| cold.failed().note(self.file, self.position, len, error, true));
                    })?;
                }
            }
            (self.window_start, self.window_len) = (self.position, len);
        }
        let at = (self.position - self.window_start) as usize;
        Ok(self.window[at..at + HEADER_LEN].try_into().expect("a whole header"))
    }
}

/// Returns an error once `stop` is set.
pub fn go_on_unless(stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Relaxed) { Err(io::Error::other("the log is no longer needed")) } else { Ok(()) }
}

/// Returns the first batch that begins at byte `from` or later, and could continue a log whose next offset is
/// `next_offset`; `None` if there is none. The batch must be complete, and its checksum correct. After an incomplete
/// write no batch can follow, so this batch proves that the bytes before it are corrupt.
pub fn find_later_batch(
    stop: &AtomicBool,
    file: &File,
    from: u64,
    limit: u64,
    next_offset: i64,
) -> io::Result<Option<Header>> {
    let mut buffer = vec![0; CHUNK + HEADER_LEN];
    let mut start = from;
    while start + HEADER_LEN as u64 <= limit {
        go_on_unless(stop)?;
        let len = buffer.len().min((limit - start) as usize);
        file.read_exact_at(&mut buffer[..len], start)?;
        for at in 0..=len - HEADER_LEN {
            let bytes = buffer[at..at + HEADER_LEN].try_into().expect("a whole header");
            if let Some(header) = candidate(start + at as u64, bytes, limit, next_offset)
                && header.has_valid_crc(file)?
            {
                return Ok(Some(header));
            }
        }
        start += (len - HEADER_LEN + 1) as u64;
    }
    Ok(None)
}

/// Returns the last of all the batches that repeated calls of [`find_later_batch`] would find; `None` if there is none.
pub fn find_last_batch(
    stop: &AtomicBool,
    file: &File,
    from: u64,
    limit: u64,
    next_offset: i64,
) -> io::Result<Option<Header>> {
    let mut buffer = vec![0; CHUNK + HEADER_LEN];
    // Headers that begin before this position have not been examined yet.
    let mut end = limit.saturating_sub(HEADER_LEN as u64 - 1);
    while end > from {
        go_on_unless(stop)?;
        let start = end.saturating_sub(CHUNK as u64).max(from);
        let count = (end - start) as usize;
        file.read_exact_at(&mut buffer[..count + HEADER_LEN - 1], start)?;
        for at in (0..count).rev() {
            let bytes = buffer[at..at + HEADER_LEN].try_into().expect("a whole header");
            if let Some(header) = candidate(start + at as u64, bytes, limit, next_offset)
                && header.has_valid_crc(file)?
            {
                return Ok(Some(header));
            }
        }
        end = start;
    }
    Ok(None)
}

fn candidate(position: u64, bytes: &[u8; HEADER_LEN], limit: u64, next_offset: i64) -> Option<Header> {
    // Compare the magic byte first, since that excludes nearly every position.
    if bytes[16] != 2 {
        return None;
    }
    let header = Header::parse(position, bytes).ok()?;
    let near = next_offset..next_offset.saturating_add(1 << 31);
    (near.contains(&header.base_offset) && header.end() <= limit).then_some(header)
}
