//! The value of a group's own record. It has a version, and bytes whose first one identifies the protocol. The fields
//! of the other records are packed in the same way (see [`super::Change`]).
//!
//! Invariant: bytes from a disk are checked like bytes from a socket. Invalid bytes cause an error and never a panic.
//! Reading n bytes takes memory in proportion to n.

use bytes::Bytes;
use fullbore_wire::{Codec, DecodeError, Reader, Text, Uuid, Version, Writer};

/// The version of a layout that contains the whole group. All classic groups are stored in this layout. Fullbore 0.1.0
/// also stored groups of the consumer protocol in it.
pub(super) const WHOLE: i64 = 1;
/// The version of a layout that contains a group of the consumer protocol without its parts.
pub(super) const WITH_PARTS: i64 = 2;
/// The first byte if the group uses the classic protocol.
pub(super) const CLASSIC: u8 = 1;
/// The first byte if the group uses the consumer protocol.
pub(super) const CONSUMER: u8 = 2;

/// The value of a group's own record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The version of the layout.
    pub version: i64,
    /// A byte for the protocol, and then the fields of that protocol.
    pub state: Bytes,
}

impl Snapshot {
    /// Returns the id in the keys of the group's parts; None if the group has no parts.
    pub fn parts_id(&self) -> Option<Uuid> {
        let id = self.state.get(1..17).filter(|_| self.version == WITH_PARTS && self.state[0] == CONSUMER)?;
        Some(Uuid(id.try_into().ok()?))
    }

    /// Returns true if this release knows the layout.
    pub fn is_known(&self) -> bool {
        matches!(self.version, WHOLE | WITH_PARTS)
    }
}

/// The reason why bytes are not a valid snapshot.
#[derive(Debug, PartialEq)]
pub enum SnapshotError {
    /// This release does not know the layout, or the record is empty.
    Version(i64),
    /// The protocol is unknown.
    Protocol(u8),
    /// Two members hold the same partition or have the same id, or two parts have the same regular expression.
    Contradiction,
    /// A member or its assignment is missing.
    Incomplete,
    /// The bytes end before the last field, or continue after it.
    Malformed(DecodeError),
}

impl From<DecodeError> for SnapshotError {
    fn from(error: DecodeError) -> Self {
        SnapshotError::Malformed(error)
    }
}

impl std::fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SnapshotError::Version(version) => write!(f, "layout {version} is not known"),
            SnapshotError::Protocol(protocol) => write!(f, "protocol {protocol} is not known"),
            SnapshotError::Contradiction => f.write_str("two members hold the same partition or have the same id"),
            SnapshotError::Incomplete => f.write_str("a member's record is missing"),
            SnapshotError::Malformed(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for SnapshotError {}

/// The message version by which fields of a fixed size are decoded.
const FORMAT: Version = Version { number: 0, flexible: true };

/// A value that can be stored in a snapshot. The encoding is that of flexible messages, but without their limit of
/// lengths.
pub(super) trait Packed: Sized {
    fn pack(&self, writer: &mut Writer);
    fn unpack(reader: &mut Reader) -> Result<Self, DecodeError>;
}

macro_rules! of_fixed_size {
    ($($type:ty: $bytes:expr),*) => {$(
        impl Packed for $type {
            fn pack(&self, writer: &mut Writer) {
                writer.put_slice(&$bytes(*self));
            }
            fn unpack(reader: &mut Reader) -> Result<Self, DecodeError> {
                Self::decode(reader, FORMAT)
            }
        }
    )*};
}
of_fixed_size!(i8: i8::to_be_bytes, i32: i32::to_be_bytes, i64: i64::to_be_bytes, Uuid: |id: Uuid| id.0);

/// Writes a length, or the code for a missing value. A length of more than 32 bits does not occur, because the value
/// would not fit into a record.
fn put_length(writer: &mut Writer, length: Option<usize>) {
    writer.put_uvarint(length.map_or(0, |length| u32::try_from(length.saturating_add(1)).unwrap_or(u32::MAX)));
}

fn length(reader: &mut Reader) -> Result<Option<usize>, DecodeError> {
    Ok((reader.uvarint()? as usize).checked_sub(1))
}

impl Packed for Bytes {
    fn pack(&self, writer: &mut Writer) {
        put_length(writer, Some(self.len()));
        writer.put_slice(self);
    }
    fn unpack(reader: &mut Reader) -> Result<Self, DecodeError> {
        let length = length(reader)?.ok_or(DecodeError::Length(-1))?;
        reader.take(length)
    }
}

impl Packed for Text {
    fn pack(&self, writer: &mut Writer) {
        put_length(writer, Some(self.len()));
        writer.put_slice(self.as_bytes());
    }
    fn unpack(reader: &mut Reader) -> Result<Self, DecodeError> {
        Option::unpack(reader)?.ok_or(DecodeError::Length(-1))
    }
}

impl Packed for Option<Text> {
    fn pack(&self, writer: &mut Writer) {
        match self {
            Some(text) => text.pack(writer),
            None => put_length(writer, None),
        }
    }
    fn unpack(reader: &mut Reader) -> Result<Self, DecodeError> {
        let Some(length) = length(reader)? else { return Ok(None) };
        Text::from_utf8(reader.take(length)?).map(Some).map_err(|_| DecodeError::Utf8)
    }
}

impl<T: Packed> Packed for Vec<T> {
    fn pack(&self, writer: &mut Writer) {
        put_length(writer, Some(self.len()));
        self.iter().for_each(|element| element.pack(writer));
    }
    fn unpack(reader: &mut Reader) -> Result<Self, DecodeError> {
        let count = length(reader)?.ok_or(DecodeError::Length(-1))?;
        // Each element takes at least a byte.
        if count > reader.remaining() {
            return Err(DecodeError::Count(count));
        }
        (0..count).map(|_| T::unpack(reader)).collect()
    }
}

/// Writes the fields of a snapshot, one after another.
pub(super) struct Packer(Writer);

impl Packer {
    /// Starts a value with the byte `first`, which is the protocol of a group or the version of a part's layout.
    pub fn new(first: u8) -> Self {
        let mut writer = Writer::with_capacity(256);
        writer.put_slice(&[first]);
        Packer(writer)
    }

    pub fn put<T: Packed>(&mut self, value: &T) {
        value.pack(&mut self.0);
    }

    /// Writes how many elements follow. The number always fits, since memory holds fewer than `i32::MAX` elements.
    pub fn put_count(&mut self, count: usize) {
        self.put(&i32::try_from(count).unwrap_or(i32::MAX));
    }

    /// Returns the value of a group's own record.
    pub fn snapshot(self, version: i64) -> Snapshot {
        Snapshot { version, state: self.finish() }
    }

    /// Returns the value of a part.
    pub fn finish(self) -> Bytes {
        self.0.into_bytes()
    }
}

/// Reads the fields of a snapshot. The number of elements is limited only by the number of bytes.
pub(super) struct Unpacker(Reader);

impl Unpacker {
    pub fn new(bytes: Bytes) -> Self {
        Unpacker(Reader::new(bytes, usize::MAX))
    }

    pub fn take<T: Packed>(&mut self) -> Result<T, DecodeError> {
        T::unpack(&mut self.0)
    }

    /// Reads how many elements follow. Fails if there are more elements than bytes left.
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        let count: i32 = self.take()?;
        let count = usize::try_from(count).map_err(|_| DecodeError::Length(i64::from(count)))?;
        match count.checked_sub(self.0.remaining()) {
            Some(missing) if missing > 0 => Err(DecodeError::Truncated { missing }),
            _ => Ok(count),
        }
    }

    pub fn finish(self) -> Result<(), DecodeError> {
        self.0.finish()
    }
}
