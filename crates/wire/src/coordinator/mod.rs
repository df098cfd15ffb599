//! Records of the coordinators' internal topics: [`CoordinatorRecord`] of `__consumer_offsets`,
//! [`TransactionLogRecord`] of `__transaction_state`. In both topics, [`partition_for`] is the partition of a group or
//! a transactional id.
//!
//! A key begins with the record's type in 16 bits, and a value with its version in 16 bits; a key without a value is a
//! tombstone. The types of the two topics are unrelated. Not here: the batches of the records.

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

/// Form of the 16 bits at the start of a key or a value, whatever the version of the rest.
const HEAD: Version = Version { number: 0, flexible: false };

/// Writes a message behind the 16 bits of its type or version.
///
/// # Errors
/// [`EncodeError`] for a field that is too long.
fn message<T: Codec>(begins: i16, message: &T, v: Version) -> Result<Bytes, EncodeError> {
    let mut w = Writer::with_capacity(128);
    begins.encode(&mut w, v)?;
    message.encode(&mut w, v)?;
    Ok(w.into_bytes())
}

/// Returns a reader of a key or a value. Each element has at least one byte, so the length is a sufficient element
/// budget.
fn reader(bytes: Bytes) -> Reader {
    let elements_max = bytes.len();
    Reader::new(bytes, elements_max)
}
