//! The records of `__consumer_offsets`, as Kafka's group coordinator writes them.
//!
//! * `offsets`: an offset that a group committed.
//! * `classic`: a group of the classic protocol.
//! * `consumer`: a group of the consumer protocol (KIP-848), one record for each part of it.
//! * `partition`: which partition of the topic is a group's.
//!
//! A key begins with the record's type in 16 bits, a value with its version; a key without a value is a tombstone.
//! Not here: what a record means for a group, and the batches that records are in.
//!
//! Source: `group-coordinator/src/main/resources/common/message/*.json`, `GroupCoordinatorRecordSerde` and
//! `GroupCoordinatorRecordHelpers` of Kafka 4.3. The versions written are those, and the bytes are the same. Records
//! of share groups and of Kafka Streams' groups are not read: like any other type that is not known here they are
//! [`Record::Unknown`], and Kafka's loader passes over unknown types as well.
//!
//! Invariant: what is decoded holds memory in proportion to its length, and can be encoded in the version it came in.

mod classic;
mod consumer;
mod offsets;
mod partition;

pub use classic::{GroupMetadataKey, GroupMetadataValue, MemberMetadata};
pub use consumer::{
    ClassicMemberMetadata, ClassicProtocol, ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey, ConsumerGroupMetadataValue, ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue, ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue, PartitionMetadata,
    TaggedOption, TopicMetadata, TopicPartition, TopicPartitions,
};
pub use offsets::{OffsetCommitKey, OffsetCommitValue};
pub use partition::partition_for;

use crate::codec::{Codec, DecodeError, EncodeError, Reader, Version};
use crate::frame::Writer;
use bytes::Bytes;
use std::ops::RangeInclusive;

/// What a record is about. Keys are never flexible, and have no versions of their own.
pub trait Key: Codec {
    /// The type that the key begins with.
    const TYPE: i16;
    /// What such a record says.
    type Value: Value;
}

/// What a record says.
pub trait Value: Codec {
    /// The versions there are.
    const VERSIONS: RangeInclusive<i16>;
    /// The first flexible version.
    const FLEXIBLE: i16;

    /// The version in which Kafka 4.3 writes this value.
    fn version(&self) -> i16;

    /// How a version is written.
    fn in_version(number: i16) -> Version {
        Version { number, flexible: number >= Self::FLEXIBLE }
    }
}

/// Declares the kinds of records: `NAME: TYPE [or OLDER TYPE], KEY, VALUE, versions RANGE, flexible FIRST, written
/// VERSION`.
macro_rules! records {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident: $code:literal $(or $older:literal)?, $key:ident, $value:ident,
            versions $versions:expr, flexible $flexible:literal, written $written:expr;
    )*) => {
        /// One record: its key, and its value unless it is a tombstone.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Record {
            $( $(#[doc = $doc])* $name($key, Option<$value>), )*
            /// A record of a type that is not known here, which whoever reads the topic passes over: the type, the
            /// rest of the key, and the whole value.
            Unknown(i16, Bytes, Option<Bytes>),
        }

        $(
            impl Key for $key {
                const TYPE: i16 = $code;
                type Value = $value;
            }

            impl Value for $value {
                const VERSIONS: RangeInclusive<i16> = $versions;
                const FLEXIBLE: i16 = $flexible;

                fn version(&self) -> i16 {
                    let written: fn(&Self) -> i16 = $written;
                    written(self)
                }
            }

            impl From<($key, Option<$value>)> for Record {
                fn from((key, value): ($key, Option<$value>)) -> Record {
                    Record::$name(key, value)
                }
            }
        )*

        impl Record {
            /// Reads a record; without a value it is a tombstone. Strings and bytes are slices of the two. What
            /// follows the last field of either is not looked at, as in Kafka.
            ///
            /// # Errors
            /// When the key or the value of a known type is not whole, or the value's version is not known.
            pub fn decode(key: Bytes, value: Option<Bytes>) -> Result<Record, DecodeError> {
                let mut key = reader(key);
                match i16::decode(&mut key, KEY)? {
                    $( $code $(| $older)? => {
                        Ok(Record::$name(Codec::decode(&mut key, KEY)?, value.map(decode_value).transpose()?))
                    } )*
                    unknown => Ok(Record::Unknown(unknown, key.rest(), value)),
                }
            }

            /// The bytes of the key, and of the value in the version that Kafka writes.
            ///
            /// # Errors
            /// When a field is too long.
            pub fn encode(&self) -> Result<(Bytes, Option<Bytes>), EncodeError> {
                match self {
                    $( Record::$name(key, value) => {
                        let value = value.as_ref().map(encode_value).transpose()?;
                        Ok((message(key, $key::TYPE, KEY)?, value))
                    } )*
                    Record::Unknown(code, rest, value) => {
                        Ok(([&code.to_be_bytes()[..], rest].concat().into(), value.clone()))
                    }
                }
            }
        }
    };
}

records! {
    /// An offset that a group committed. Type 0 is how the first brokers wrote it; the two are one to readers.
    OffsetCommit: 1 or 0, OffsetCommitKey, OffsetCommitValue,
        versions 0..=4, flexible 4, written OffsetCommitValue::written;
    /// A group of the classic protocol, or that there is a group which only has offsets.
    GroupMetadata: 2, GroupMetadataKey, GroupMetadataValue,
        versions 0..=4, flexible 4, written |_| 3;
    /// A group of the consumer protocol.
    ConsumerGroupMetadata: 3, ConsumerGroupMetadataKey, ConsumerGroupMetadataValue,
        versions 0..=0, flexible 0, written |_| 0;
    /// The topics that a group reads. Since Kafka 4.1 only tombstones are written (KIP-1101).
    ConsumerGroupPartitionMetadata: 4, ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue,
        versions 0..=0, flexible 0, written |_| 0;
    /// What a member said of itself.
    ConsumerGroupMemberMetadata: 5, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue,
        versions 0..=0, flexible 0, written |_| 0;
    /// The epoch of the group's target assignment.
    ConsumerGroupTargetAssignmentMetadata: 6,
        ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue,
        versions 0..=0, flexible 0, written |_| 0;
    /// What a member is to have.
    ConsumerGroupTargetAssignmentMember: 7,
        ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue,
        versions 0..=0, flexible 0, written |_| 0;
    /// What a member has.
    ConsumerGroupCurrentMemberAssignment: 8,
        ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue,
        versions 0..=0, flexible 0, written |_| 0;
    /// The topics that a member's regular expression matched.
    ConsumerGroupRegularExpression: 16, ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue,
        versions 0..=0, flexible 0, written |_| 0;
}

/// What a key's fields are written in.
const KEY: Version = Version { number: 0, flexible: false };

fn encode_value<V: Value>(value: &V) -> Result<Bytes, EncodeError> {
    let version = value.version();
    message(value, version, V::in_version(version))
}

/// A message behind the 16 bits that say what it is.
fn message<T: Codec>(message: &T, begins: i16, v: Version) -> Result<Bytes, EncodeError> {
    let mut w = Writer::with_capacity(128);
    begins.encode(&mut w, KEY)?;
    message.encode(&mut w, v)?;
    Ok(w.into_bytes())
}

fn decode_value<V: Value>(value: Bytes) -> Result<V, DecodeError> {
    let mut value = reader(value);
    let version = i16::decode(&mut value, KEY)?;
    if !V::VERSIONS.contains(&version) {
        return Err(DecodeError::Version(version));
    }
    V::decode(&mut value, V::in_version(version))
}

/// No element is smaller than a byte, so that the length is all the budget a record needs.
fn reader(bytes: Bytes) -> Reader {
    let elements_max = bytes.len();
    Reader::new(bytes, elements_max)
}
