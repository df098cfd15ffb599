//! What is kept of a group across restarts: a version, and bytes that begin with the protocol.
//!
//! Invariant: bytes from a disk are checked like bytes from a socket; none of them panics or costs more than its length.

use bytes::Bytes;
use fullbore_wire::{Codec, DecodeError, REQUEST_ELEMENTS_MAX, Reader, Version, Writer};

/// The layout of all that is written now.
pub(super) const VERSION: i64 = 1;
/// First byte of a group of the classic protocol.
pub(super) const CLASSIC: u8 = 1;
/// First byte of a group of the consumer protocol.
pub(super) const CONSUMER: u8 = 2;

/// A group as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The version of the layout.
    pub version: i64,
    /// The protocol in the first byte, then what that protocol keeps.
    pub state: Bytes,
}

/// Why a snapshot is not one of ours.
#[derive(Debug, PartialEq)]
pub enum SnapshotError {
    /// A layout this program does not know, or nothing at all.
    Version(i64),
    /// A protocol this program does not know.
    Protocol(u8),
    /// Two members hold the same partition.
    Contradiction,
    /// The bytes end early or go on.
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
            SnapshotError::Contradiction => f.write_str("two members hold the same partition"),
            SnapshotError::Malformed(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for SnapshotError {}

/// Lengths of any size.
const FORMAT: Version = Version { number: 0, flexible: true };

/// Writes the fields of a snapshot one after another.
pub(super) struct Packer(Writer);

impl Packer {
    pub fn new(protocol: u8) -> Self {
        let mut writer = Writer::with_capacity(256);
        writer.put_slice(&[protocol]);
        Packer(writer)
    }

    pub fn put<T: Codec>(&mut self, value: &T) {
        value.encode(&mut self.0, FORMAT).expect("lengths are below 2 GiB: each came in one request");
    }

    /// Before so many elements.
    pub fn put_count(&mut self, count: usize) {
        self.put(&i32::try_from(count).expect("so many elements do not fit into memory"));
    }

    pub fn finish(self) -> Snapshot {
        Snapshot { version: VERSION, state: self.0.into_bytes() }
    }
}

/// Reads them again.
pub(super) struct Unpacker(Reader);

impl Unpacker {
    pub fn new(bytes: Bytes) -> Self {
        Unpacker(Reader::new(bytes, REQUEST_ELEMENTS_MAX))
    }

    pub fn take<T: Codec>(&mut self) -> Result<T, DecodeError> {
        T::decode(&mut self.0, FORMAT)
    }

    /// So many elements follow; never more than bytes are left.
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
