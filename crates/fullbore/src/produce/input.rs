//! Divides the input from a file or pipe into records: by lines or other delimiters, by lengths, or the whole file as
//! one record.
//!
//! The bytes of a record are not interpreted here. Invariant: the buffer has at most one incomplete record and the
//! bytes of one further read. A record longer than `limit` is an error, and is not read completely.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::time::Duration;

/// How many bytes one read requests. This is at least the usual capacity of a pipe.
const READ_BYTES: usize = 256 << 10;
/// The size of the length prefix of a record, in bytes.
const LENGTH_BYTES: usize = 4;
/// The length prefix -1, which stands for a null.
const NULL: [u8; LENGTH_BYTES] = [0xFF; LENGTH_BYTES];

/// How the input is divided into records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The bytes after each record. They may be missing after the last one.
    Delimiter(Vec<u8>),
    /// Each record has a length prefix of four bytes, big-endian. -1 stands for a null.
    Length,
    /// The whole file is one record.
    Whole,
}

/// The outcome of a wait for input.
#[derive(Debug, PartialEq, Eq)]
pub enum Filled {
    /// More bytes were read, or the input has ended.
    More,
    /// No bytes arrived in time.
    Nothing,
}

/// A file or pipe with its buffer.
pub struct Input {
    file: File,
    framing: Framing,
    limit: usize,
    buffer: Vec<u8>,
    /// The range of the buffer whose bytes were not returned as records yet.
    left: Range<usize>,
    /// How many bytes at the start of `left` were searched already. No delimiter begins there.
    searched: usize,
    at_end: bool,
    /// How many records [`Input::next`] has returned.
    pub taken: u64,
}

/// The range of a record's bytes in the buffer, or `None` for a null.
#[derive(Debug, PartialEq, Eq)]
pub struct InputRecord(Option<Range<usize>>);

/// The reason why there is no next record.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The system returned an error.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The record is too long.
    #[error("{size} bytes{} are too many", if *.is_all { "" } else { " or more" })]
    TooLong {
        /// The size of the record, or of the part that was read.
        size: usize,
        /// True if this is the size of the whole record.
        is_all: bool,
    },
    /// The input ends within a length prefix.
    #[error("cut short: the input ends after {0} of the four bytes of a record's length")]
    CutLength(usize),
    /// The input ends within a record.
    #[error("cut short: the length field has the value {wanted}, but only {found} bytes follow it")]
    Cut {
        /// The size of the record according to its length prefix, in bytes.
        wanted: usize,
        /// How many bytes the input has after the length prefix.
        found: usize,
    },
}

impl Input {
    /// Creates an input from `file`. Its records may have at most `limit` bytes.
    pub fn new(file: File, framing: Framing, limit: usize) -> Self {
        Input { file, framing, limit, buffer: Vec::new(), left: 0..0, searched: 0, at_end: false, taken: 0 }
    }

    /// Returns true if the input has no more records.
    pub fn is_over(&self) -> bool {
        self.at_end && self.left.is_empty() && !(self.framing == Framing::Whole && self.taken == 0)
    }

    /// Returns the next record, or `None` if it is not complete yet.
    ///
    /// # Errors
    /// Fails if a record is too long or cut short.
    pub fn next(&mut self) -> Result<Option<InputRecord>, InputError> {
        if self.framing == Framing::Length && self.buffer[self.left.clone()].starts_with(&NULL) {
            self.left.start += LENGTH_BYTES;
            self.taken += 1;
            return Ok(Some(InputRecord(None)));
        }
        let found = match &self.framing {
            Framing::Delimiter(delimiter) => {
                let found = find(&self.buffer[self.left.clone()], delimiter, self.searched);
                match found {
                    Some(at) => Some((self.left.start..self.left.start + at, at + delimiter.len())),
                    None => {
                        self.searched = self.left.len().saturating_sub(delimiter.len() - 1);
                        (self.at_end && !self.left.is_empty()).then(|| (self.left.clone(), self.left.len()))
                    }
                }
            }
            Framing::Length => self.by_length()?,
            Framing::Whole => (self.at_end && self.taken == 0).then(|| (self.left.clone(), self.left.len())),
        };
        match found {
            Some((record, _)) if record.len() > self.limit => {
                Err(InputError::TooLong { size: record.len(), is_all: true })
            }
            None if self.left.len() > self.limit && self.framing != Framing::Length => {
                Err(InputError::TooLong { size: self.left.len(), is_all: false })
            }
            None => Ok(None),
            Some((record, consumed)) => {
                self.left.start += consumed;
                self.searched = 0;
                self.taken += 1;
                Ok(Some(InputRecord(Some(record))))
            }
        }
    }

    fn by_length(&self) -> Result<Option<(Range<usize>, usize)>, InputError> {
        let bytes = &self.buffer[self.left.clone()];
        let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
            let is_cut = self.at_end && !bytes.is_empty();
            return if is_cut { Err(InputError::CutLength(bytes.len())) } else { Ok(None) };
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > self.limit {
            return Err(InputError::TooLong { size: length, is_all: true });
        }
        let from = self.left.start + LENGTH_BYTES;
        match rest.len() >= length {
            true => Ok(Some((from..from + length, LENGTH_BYTES + length))),
            false if self.at_end => Err(InputError::Cut { wanted: length, found: rest.len() }),
            false => Ok(None),
        }
    }

    /// Returns the bytes of a record, or `None` for a null.
    pub fn bytes(&self, record: InputRecord) -> Option<&[u8]> {
        record.0.map(|place| &self.buffer[place])
    }

    /// Waits for bytes for at most `patience` and reads them.
    ///
    /// # Errors
    /// Returns [`InputError`] if the input cannot be read.
    pub fn fill(&mut self, patience: Duration) -> Result<Filled, InputError> {
        if self.at_end || !is_readable(&self.file, patience)? {
            return Ok(if self.at_end { Filled::More } else { Filled::Nothing });
        }
        self.buffer.copy_within(self.left.clone(), 0);
        self.left = 0..self.left.len();
        let wanted = self.left.end + READ_BYTES;
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        match self.file.read(&mut self.buffer[self.left.end..wanted]) {
            Ok(0) => self.at_end = true,
            Ok(read) => self.left.end += read,
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Filled::More)
    }
}

fn is_readable(file: &File, patience: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(patience).map_err(|_| io::Error::other("the time to wait is not valid"))?;
    match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns the first index at or after `from` where `delimiter` begins, if there is one.
fn find(bytes: &[u8], delimiter: &[u8], from: usize) -> Option<usize> {
    let first = *delimiter.first()?;
    let mut at = from;
    while at < bytes.len() {
        let mut rest = &bytes[at..];
        // `skip_until` is the standard library's fast search for a byte. On a slice, it neither fails nor copies.
        let skipped = rest.skip_until(first).ok()?;
        if bytes[at + skipped - 1] != first {
            return None;
        }
        at += skipped - 1;
        if bytes[at..].starts_with(delimiter) {
            return Some(at);
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    fn all(bytes: &[u8], framing: Framing, limit: usize) -> Result<Vec<Vec<u8>>, String> {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).and_then(|()| file.rewind()).expect("written");
        let mut input = Input::new(file, framing, limit);
        let mut records = Vec::new();
        loop {
            match input.next().map_err(|error| error.to_string())? {
                Some(record) => records.push(input.bytes(record).unwrap_or(b"null").to_vec()),
                None if input.is_over() => return Ok(records),
                None => {
                    let filled = input.fill(Duration::from_secs(5)).map_err(|error| error.to_string())?;
                    assert_eq!(filled, Filled::More, "a file never waits");
                }
            }
        }
    }

    fn delimited(bytes: &[u8], delimiter: &[u8]) -> Vec<Vec<u8>> {
        all(bytes, Framing::Delimiter(delimiter.to_vec()), 1000).expect("records")
    }

    #[test]
    fn a_delimiter_may_be_missing_at_the_end() {
        assert_eq!(delimited(b"a\n\nb", b"\n"), [&b"a"[..], b"", b"b"]);
        assert_eq!(delimited(b"a\nb\n", b"\n"), [b"a", b"b"]);
        assert_eq!(delimited(b"", b"\n"), Vec::<Vec<u8>>::new());
        assert_eq!(delimited(b"\n", b"\n"), [b""]);
        assert_eq!(delimited(b"a--b---c-", b"--"), [&b"a"[..], b"b", b"-c-"]);
        assert_eq!(delimited(b"a\0b\0", b"\0"), [b"a", b"b"]);
    }

    #[test]
    fn records_larger_than_a_read_are_whole() {
        let long = vec![b'x'; 3 * READ_BYTES + 5];
        let bytes = [&long[..], b"\n", &long, b"\nend"].concat();
        let records = all(&bytes, Framing::Delimiter(b"\n".to_vec()), long.len()).expect("records");
        assert_eq!(records, [&long[..], &long, b"end"]);
        let records = all(&long, Framing::Whole, long.len()).expect("a record");
        assert_eq!(records, [&long[..]]);
        assert_eq!(all(b"", Framing::Whole, 5), Ok(vec![vec![]]));
        let of_line = all(&bytes, Framing::Delimiter(b"\n".to_vec()), long.len() - 1).expect_err("too long");
        assert_eq!(of_line, format!("{} bytes are too many", long.len()));
        let of_file = all(&bytes, Framing::Whole, long.len() - 1).expect_err("too long");
        assert!(of_file.ends_with(" bytes or more are too many"), "{of_file}");
    }

    #[test]
    fn records_are_cut_by_the_lengths_before_them() {
        let framed = b"\0\0\0\x02ab\0\0\0\0\xff\xff\xff\xff\0\0\0\x01\n";
        let records = [&b"ab"[..], b"", b"null", b"\n"].map(<[u8]>::to_vec).to_vec();
        assert_eq!(all(framed, Framing::Length, 9), Ok(records));
        for (cut, expected) in [
            (&b"\0\0\0\x05ab"[..], "has the value 5, but only 2 bytes follow it"),
            (b"\0\0", "the input ends after 2 of the four bytes of a record's length"),
            (b"\xff\xff\xff\xfe", "4294967294 bytes are too many"),
        ] {
            let refused = all(cut, Framing::Length, 9).expect_err(expected);
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
