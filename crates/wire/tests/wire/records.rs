//! Random records of committed offsets and of transactional ids.

use super::schema::{Dice, Schema};
use bytes::Bytes;
use fullbore_wire::coordinator::{OffsetCommitKey, OffsetCommitValue, TransactionLogKey, TransactionLogValue};

/// Returns the 16 bits of a type or version, followed by `bytes`.
pub fn behind(begins: i16, message: &[u8]) -> Bytes {
    [&begins.to_be_bytes()[..], message].concat().into()
}

/// Returns a random key.
pub fn key(dice: &mut Dice) -> Bytes {
    behind(OffsetCommitKey::TYPE, &Schema::of::<OffsetCommitKey>(OffsetCommitKey::VERSION).message(dice))
}

/// Returns a random value of this version.
pub fn value(version: i16, dice: &mut Dice) -> Bytes {
    behind(version, &schema(version).message(dice))
}

/// Returns the schema of a value in this version.
pub fn schema(version: i16) -> Schema {
    Schema::of::<OffsetCommitValue>(OffsetCommitValue::in_version(version))
}

/// Returns a random key of a transactional id.
pub fn transaction_key(dice: &mut Dice) -> Bytes {
    behind(TransactionLogKey::TYPE, &Schema::of::<TransactionLogKey>(TransactionLogKey::VERSION).message(dice))
}

/// Returns a random state of a transactional id in this version.
pub fn transaction_value(version: i16, dice: &mut Dice) -> Bytes {
    behind(version, &transaction_schema(version).message(dice))
}

/// Returns the schema of a transactional id's state in this version.
pub fn transaction_schema(version: i16) -> Schema {
    Schema::of::<TransactionLogValue>(TransactionLogValue::in_version(version))
}
