//! Every kind of record of `__consumer_offsets`, for tests that go through all of them.

use super::schema::{Dice, Schema};
use bytes::Bytes;
use fullbore_wire::coordinator::{Key, Value};
use fullbore_wire::{Codec, Version};

/// What keys are written in.
pub const KEY: Version = Version { number: 0, flexible: false };

/// Calls a function for each kind, with the kind's key as its type argument.
macro_rules! for_every_record {
    ($function:ident $(, $argument:expr)*) => {{
        use fullbore_wire::coordinator as c;
        $function::<c::OffsetCommitKey>($($argument),*);
        $function::<c::GroupMetadataKey>($($argument),*);
        $function::<c::ConsumerGroupMetadataKey>($($argument),*);
        $function::<c::ConsumerGroupPartitionMetadataKey>($($argument),*);
        $function::<c::ConsumerGroupMemberMetadataKey>($($argument),*);
        $function::<c::ConsumerGroupTargetAssignmentMetadataKey>($($argument),*);
        $function::<c::ConsumerGroupTargetAssignmentMemberKey>($($argument),*);
        $function::<c::ConsumerGroupCurrentMemberAssignmentKey>($($argument),*);
        $function::<c::ConsumerGroupRegularExpressionKey>($($argument),*);
    }};
}
pub(crate) use for_every_record;

/// Bytes behind the 16 bits that say what they are.
pub fn behind(begins: i16, message: &[u8]) -> Bytes {
    [&begins.to_be_bytes()[..], message].concat().into()
}

/// A random key.
pub fn key<K: Key>(dice: &mut Dice) -> Bytes {
    behind(K::TYPE, &Schema::of::<K>(KEY).message(dice))
}

/// A random value in a version.
pub fn value<K: Key>(version: i16, dice: &mut Dice) -> Bytes {
    behind(version, &schema::<K::Value>(version).message(dice))
}

/// A value's schema in a version.
pub fn schema<V: Value + Codec>(version: i16) -> Schema {
    Schema::of::<V>(V::in_version(version))
}
