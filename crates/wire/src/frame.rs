//! Frames that are written to a socket. Large records are not copied into a frame, but are parts of their own.
//!
//! A [`Writer`] copies the small fields into a buffer, and stores the positions of records between them. The result is
//! a [`Frame`]. Its parts are in the order in which they are sent, by a vectored write or sendfile. Invariant: the
//! first four bytes of a frame are the big-endian length of everything after them.

use crate::EncodeError;
use bytes::{BufMut, Bytes, BytesMut};
use std::fs::File;
use std::sync::Arc;

/// Records of at most this many bytes are copied, because a separate part would cost more.
const INLINE_RECORDS_MAX: usize = 512;
/// Size of each piece of a long message, in bytes.
const PIECE_BYTES: usize = 1 << 20;

/// A range of a log file that is sent without passing through user space.
#[derive(Clone, Debug)]
pub struct FileSlice {
    /// The log file of the segment.
    pub file: Arc<File>,
    /// The position of the first byte in the file.
    pub position: u64,
    /// Number of bytes in the range.
    pub len: u32,
    /// The end of the whole batches in the file, which is at the end of the range or after it. Bytes before this
    /// position do not change any more.
    pub settled: u64,
}

/// The batches in the records field of Produce and Fetch.
#[derive(Clone, Debug)]
pub enum Records {
    /// Batches in memory. The bytes are a slice of the frame in which they arrived, or a batch that was built here.
    Memory(Bytes),
    /// Batches in memory, in consecutive pieces. None of the pieces is empty.
    Pieces(Vec<Bytes>),
    /// Batches in a range of a log file.
    File(FileSlice),
    /// Batches in a log file, in consecutive ranges. None of the ranges is empty.
    Ranges(Vec<FileSlice>),
}

impl Records {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Records::Memory(bytes) => bytes.len(),
            Records::Pieces(pieces) => pieces.iter().map(Bytes::len).sum(),
            Records::File(slice) => slice.len as usize,
            Records::Ranges(slices) => slices.iter().map(|slice| slice.len as usize).sum(),
        }
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes if they are in memory and in one piece.
    pub fn memory(&self) -> Option<&Bytes> {
        match self {
            Records::Memory(bytes) => Some(bytes),
            Records::Pieces(_) | Records::File(_) | Records::Ranges(_) => None,
        }
    }
}

impl Default for Records {
    fn default() -> Self {
        Records::Memory(Bytes::new())
    }
}

impl PartialEq for FileSlice {
    /// Returns true if `self` and `other` are the same range of the same open file.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.file, &other.file) && self.position == other.position && self.len == other.len
    }
}

impl PartialEq for Records {
    /// Returns true if `self` and `other` have the same bytes in memory, or the same ranges of the same open file.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Records::Memory(a), Records::Memory(b)) => a == b,
            (Records::Pieces(a), Records::Pieces(b)) => a == b,
            (Records::File(a), Records::File(b)) => a == b,
            (Records::Ranges(a), Records::Ranges(b)) => a == b,
            _ => false,
        }
    }
}

/// A part of a [`Frame`].
#[derive(Clone, Debug)]
pub enum Part {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A range of a file.
    File(FileSlice),
}

impl Part {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::File(slice) => slice.len as usize,
        }
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A request or response as it is sent, including the length prefix.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The parts in order. None of them is empty.
    pub parts: Vec<Part>,
}

impl Frame {
    /// Returns the size in bytes, including the length prefix.
    pub fn len(&self) -> usize {
        self.parts.iter().map(Part::len).sum()
    }

    /// Returns the number of bytes that are in memory.
    pub fn bytes_in_memory(&self) -> usize {
        self.parts.iter().filter(|part| matches!(part, Part::Bytes(_))).map(Part::len).sum()
    }

    /// Returns true if nothing is to be sent (acks=0).
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

/// Builds a [`Frame`].
#[derive(Debug)]
pub struct Writer {
    /// The full pieces in order, without the records in `external`. A message that grows gets another piece, so its
    /// bytes are not copied.
    full: Vec<BytesMut>,
    /// Total size of the full pieces, in bytes.
    full_len: usize,
    /// The last piece. The first four bytes of the first piece are the length.
    inline: BytesMut,
    /// The records that are not copied, each with its position among the bytes of all pieces.
    external: Vec<(usize, Part)>,
}

impl Writer {
    /// Creates a writer with room for `capacity` bytes that are not external records.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut inline = BytesMut::with_capacity(capacity + 4);
        inline.put_i32(0);
        Writer { full: Vec::new(), full_len: 0, inline, external: Vec::new() }
    }

    /// Appends bytes as they are.
    pub fn put_slice(&mut self, bytes: &[u8]) {
        if self.inline.len() + bytes.len() > PIECE_BYTES && self.inline.len() + bytes.len() > self.inline.capacity() {
            self.begin_piece();
        }
        self.inline.put_slice(bytes);
    }

    #[cold]
    fn begin_piece(&mut self) {
        let piece = std::mem::replace(&mut self.inline, BytesMut::with_capacity(PIECE_BYTES));
        self.full_len += piece.len();
        self.full.push(piece);
    }

    /// Appends records. Small records are copied, and others are referenced.
    pub fn put_records(&mut self, records: &Records) {
        let at = self.full_len + self.inline.len();
        match records {
            Records::Memory(bytes) if bytes.len() <= INLINE_RECORDS_MAX => self.put_slice(bytes),
            Records::Memory(bytes) => self.external.push((at, Part::Bytes(bytes.clone()))),
            Records::Pieces(pieces) => {
                self.external.extend(pieces.iter().map(|piece| (at, Part::Bytes(piece.clone()))));
            }
            Records::File(slice) if slice.len == 0 => {}
            Records::File(slice) => self.external.push((at, Part::File(slice.clone()))),
            Records::Ranges(slices) => {
                self.external.extend(slices.iter().map(|slice| (at, Part::File(slice.clone()))));
            }
        }
    }

    /// Appends the bytes of another writer without their length prefix. They are a tagged field, whose length is
    /// already written.
    pub(crate) fn put_nested(&mut self, nested: &Writer) {
        debug_assert!(nested.external.is_empty(), "no tagged field holds records");
        let mut length_bytes = 4;
        for piece in nested.full.iter().chain([&nested.inline]) {
            self.put_slice(&piece[std::mem::take(&mut length_bytes)..]);
        }
    }

    /// Returns how many bytes were added, without the length prefix.
    pub fn len(&self) -> usize {
        self.full_len + self.inline.len() - 4 + self.external.iter().map(|(_, part)| part.len()).sum::<usize>()
    }

    /// Returns true if no bytes were added.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes without the length prefix. Used for messages that are a field of another message or are
    /// written to a disk.
    pub fn into_bytes(mut self) -> Bytes {
        debug_assert!(self.external.is_empty(), "no such message holds records");
        if self.full.is_empty() {
            return self.inline.freeze().slice(4..);
        }
        self.full.push(self.inline);
        Bytes::from(self.full.concat()).slice(4..)
    }

    /// Fills in the length, and inserts the external records between the pieces' bytes.
    ///
    /// # Errors
    /// Returns [`EncodeError::TooLong`] if the frame is larger than 2 GiB - 1.
    pub fn finish(mut self) -> Result<Frame, EncodeError> {
        let len = i32::try_from(self.len()).map_err(|_| EncodeError::TooLong(self.len()))?;
        self.full.first_mut().unwrap_or(&mut self.inline)[..4].copy_from_slice(&len.to_be_bytes());
        let mut parts = Vec::with_capacity(self.full.len() + 2 * self.external.len() + 1);
        let mut external = self.external.into_iter().peekable();
        let mut cut = 0;
        for piece in self.full.into_iter().chain([self.inline]) {
            let mut piece = piece.freeze();
            let end = cut + piece.len();
            while let Some((at, part)) = external.next_if(|(at, _)| *at < end) {
                if at > cut {
                    parts.push(Part::Bytes(piece.split_to(at - cut)));
                    cut = at;
                }
                parts.push(part);
            }
            if !piece.is_empty() {
                parts.push(Part::Bytes(piece));
            }
            cut = end;
        }
        parts.extend(external.map(|(_, part)| part));
        Ok(Frame { parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_a_file_follow_each_other_between_the_bytes_around_them() {
        let file = Arc::new(File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).expect("our manifest"));
        let range = |position, len| FileSlice { file: file.clone(), position, len, settled: 900 };
        let records = Records::Ranges(vec![range(3, 100), range(400, 50)]);
        assert_eq!((records.len(), records.memory().is_none()), (150, true));
        assert_eq!(records, Records::Ranges(vec![range(3, 100), range(400, 50)]));
        assert_ne!(records, Records::Ranges(vec![range(3, 100), range(401, 50)]));
        let mut w = Writer::with_capacity(0);
        w.put_slice(b"ab");
        w.put_records(&records);
        w.put_slice(b"c");
        let shown = |part: &Part| match part {
            Part::Bytes(bytes) => (0, bytes.len()),
            Part::File(slice) => (slice.position, slice.len as usize),
        };
        let frame = w.finish().expect("a small frame");
        assert_eq!(frame.parts.iter().map(shown).collect::<Vec<_>>(), [(0, 6), (3, 100), (400, 50), (0, 1)]);
    }

    #[test]
    fn records_of_a_file_stay_between_the_bytes_around_them() {
        let file = Arc::new(File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).expect("our manifest"));
        let slice =
            |len| Records::File(FileSlice { file: file.clone(), position: 3, len, settled: 3 + u64::from(len) });
        let mut w = Writer::with_capacity(0);
        w.put_slice(b"ab");
        w.put_records(&slice(1_000));
        w.put_records(&slice(0));
        w.put_records(&Records::Memory(Bytes::from_static(&[7; INLINE_RECORDS_MAX])));
        w.put_records(&Records::Memory(Bytes::from_static(&[8; INLINE_RECORDS_MAX + 1])));
        let len = 2 + 1_000 + 2 * INLINE_RECORDS_MAX + 1;
        assert_eq!(w.len(), len);

        let frame = w.finish().expect("a small frame");
        assert_eq!(frame.len(), len + 4);
        let lens: Vec<_> = frame.parts.iter().map(Part::len).collect();
        assert_eq!(lens, [6, 1_000, INLINE_RECORDS_MAX, INLINE_RECORDS_MAX + 1]);
        let Part::Bytes(start) = &frame.parts[0] else { panic!("bytes come first") };
        assert_eq!(start[..4], (len as u32).to_be_bytes());
        assert!(matches!(&frame.parts[1], Part::File(part) if part.position == 3));
    }

    #[test]
    fn message_is_longer_than_a_piece_no_byte_is_moved_and_records_stay_in_their_places() {
        let records = |byte| Records::Memory(Bytes::from(vec![byte; INLINE_RECORDS_MAX + 1]));
        let mut w = Writer::with_capacity(256);
        let mut expected = Vec::new();
        let external = |w: &mut Writer, expected: &mut Vec<u8>, byte: u8| {
            w.put_records(&records(byte));
            expected.resize(expected.len() + INLINE_RECORDS_MAX + 1, byte);
        };
        external(&mut w, &mut expected, 1);
        while w.full.len() < 3 {
            let bytes = (expected.len() as u64).to_be_bytes();
            w.put_slice(&bytes);
            expected.extend(bytes);
            if w.inline.len() == bytes.len() && w.full.len() == 2 {
                external(&mut w, &mut expected, 2);
            }
        }
        external(&mut w, &mut expected, 3);
        assert!(w.full.iter().all(|piece| piece.capacity() < PIECE_BYTES + PIECE_BYTES / 16));
        assert_eq!(w.len(), expected.len());
        let frame = w.finish().expect("a small frame");
        let joined: Vec<u8> = frame.parts.iter().flat_map(|part| bytes_of(part).to_vec()).collect();
        assert_eq!(joined[..4], (expected.len() as u32).to_be_bytes());
        assert!(joined[4..] == expected);
    }

    #[test]
    fn message_is_longer_than_a_piece_its_bytes_and_those_of_a_tagged_field_are_whole() {
        let bytes: Vec<u8> = (0..3 * PIECE_BYTES).map(|at| (at >> 8) as u8).collect();
        let mut nested = Writer::with_capacity(32);
        bytes.chunks(1000).for_each(|chunk| nested.put_slice(chunk));
        let mut w = Writer::with_capacity(0);
        w.put_nested(&nested);
        assert!(nested.into_bytes() == bytes && w.into_bytes() == bytes);
    }

    fn bytes_of(part: &Part) -> &Bytes {
        let Part::Bytes(bytes) = part else { panic!("no file is in it") };
        bytes
    }

    #[test]
    fn a_frame_longer_than_its_prefix_is_refused() {
        let file = Arc::new(File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).expect("our manifest"));
        let mut w = Writer::with_capacity(0);
        w.put_records(&Records::File(FileSlice { file, position: 0, len: 1 << 31, settled: 1 << 31 }));
        assert_eq!(w.finish().err(), Some(EncodeError::TooLong(1 << 31)));
    }
}
