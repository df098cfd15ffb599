//! The records in the coordinators' internal topics: [`CoordinatorRecord`] in `__consumer_offsets`, and
//! [`TransactionLogRecord`] in `__transaction_state`. In both topics, [`partition_for`] finds the partition for a group
//! or a transactional id.
//!
//! A key begins with the record's type in 16 bits, and a value with its version in 16 bits. A key without a value is a
//! tombstone. The numbers of the types have different meanings in the two topics. The batches that contain the records
//! are in [`crate::batch`].

mod offsets;
mod partition;
mod transactions;

pub use offsets::{CoordinatorRecord, OffsetCommitKey, OffsetCommitValue};
pub use partition::partition_for;
pub use transactions::{PartitionsSchema, TransactionLogKey, TransactionLogRecord, TransactionLogValue};

use crate::EncodeError;
use crate::codec::{Codec, Reader, Version};
use crate::frame::Writer;
use bytes::Bytes;

/// The form of the first 16 bits of a key or a value, which is the same for all versions.
const HEAD: Version = Version { number: 0, flexible: false };

/// Writes the 16 bits of a type or version, and then the message.
///
/// # Errors
/// Returns [`EncodeError`] if a field is too long.
fn message<T: Codec>(begins: i16, message: &T, v: Version) -> Result<Bytes, EncodeError> {
    let mut w = Writer::with_capacity(128);
    begins.encode(&mut w, v)?;
    message.encode(&mut w, v)?;
    Ok(w.into_bytes())
}

/// Returns a reader for a key or a value. Each element has at least one byte, so the number of bytes is a sufficient
/// element budget.
fn reader(bytes: Bytes) -> Reader {
    let elements_max = bytes.len();
    Reader::new(bytes, elements_max)
}
