//! Random records of committed offsets.

use super::schema::{Dice, Schema};
use bytes::Bytes;
use fullbore_wire::coordinator::{OffsetCommitKey, OffsetCommitValue};

/// Bytes behind the 16 bits that say what they are.
pub fn behind(begins: i16, message: &[u8]) -> Bytes {
    [&begins.to_be_bytes()[..], message].concat().into()
}

/// A random key.
pub fn key(dice: &mut Dice) -> Bytes {
    behind(OffsetCommitKey::TYPE, &Schema::of::<OffsetCommitKey>(OffsetCommitKey::VERSION).message(dice))
}

/// A random value in a version.
pub fn value(version: i16, dice: &mut Dice) -> Bytes {
    behind(version, &schema(version).message(dice))
}

/// A value's schema in a version.
pub fn schema(version: i16) -> Schema {
    Schema::of::<OffsetCommitValue>(OffsetCommitValue::in_version(version))
}
