//! Committed offsets in `__consumer_offsets`, as Kafka's group coordinator writes them.
//!
//! Records of all other types, such as those of Kafka's own groups, are read as [`CoordinatorRecord::Unknown`] and
//! skipped, as Kafka's loader skips unknown types. The effect of a record on its group is decided elsewhere.
//!
//! Source: OffsetCommitKey.json and OffsetCommitValue.json (LegacyOffsetCommitKey.json and LegacyOffsetCommitValue.json
//! are the same fields under type 0), `GroupCoordinatorRecordSerde` and `GroupCoordinatorRecordHelpers` of Kafka 4.3.
//!
//! Invariant: a decoded record takes memory in proportion to its length, and can be encoded in the version that it was
//! read in.

use super::{HEAD, message, reader};
use crate::codec::{Codec, Version};
use crate::message::message;
use crate::{DecodeError, EncodeError};
use crate::{Text, Uuid};
use bytes::Bytes;
use std::ops::RangeInclusive;

message! {
    /// The group and the partition that an offset belongs to.
    pub struct OffsetCommitKey {
        /// The group.
        group: Text, 0..;
        /// The topic name.
        topic: Text, 0..;
        /// The partition.
        partition: i32, 0..;
    }

    /// A committed offset. Only version 1 has the expiry. Version 3 added the leader epoch. Version 4 is flexible and
    /// added the topic id.
    pub struct OffsetCommitValue {
        /// The offset of the next record to be read.
        offset: i64, 0..;
        /// The leader epoch of the last record that was read, or -1.
        leader_epoch: i32, 3.., default -1;
        /// Metadata that the client stores together with the offset.
        metadata: Text, 0..;
        /// When the offset was committed, in milliseconds since 1970.
        commit_timestamp: i64, 0..;
        /// When the offset expires, in milliseconds since 1970. With -1, the broker's retention applies.
        expire_timestamp: i64, 1..=1, default -1;
        /// The topic's id, or zero.
        topic_id: Uuid, 4.., tag 0;
    }
}

impl OffsetCommitKey {
    /// The record type at the beginning of the key.
    pub const TYPE: i16 = 1;
    /// The record type that the first versions of Kafka used for a key with the same fields.
    const LEGACY_TYPE: i16 = 0;
    /// The version of the fields.
    pub const VERSION: Version = Version { number: 0, flexible: false };
}

impl OffsetCommitValue {
    /// The versions that exist.
    pub const VERSIONS: RangeInclusive<i16> = 0..=4;

    /// Returns version `number` with its form: flexible or not.
    pub fn in_version(number: i16) -> Version {
        Version { number, flexible: number >= 4 }
    }

    /// Returns the version in which Kafka 4.3 writes this value. Only version 1 can have an expiry.
    pub fn version(&self) -> i16 {
        if self.expire_timestamp == -1 { 4 } else { 1 }
    }
}

/// A record in `__consumer_offsets`.
#[derive(Clone, Debug, PartialEq)]
pub enum CoordinatorRecord {
    /// An offset that a group has committed, or a tombstone for it.
    OffsetCommit(OffsetCommitKey, Option<OffsetCommitValue>),
    /// A record of another type, with the type, the rest of the key, and the whole value.
    Unknown(i16, Bytes, Option<Bytes>),
}

impl CoordinatorRecord {
    /// Reads a record. A record without a value is a tombstone. Strings and bytes are slices of the key and the value.
    /// Bytes after the last field are ignored, as in Kafka.
    ///
    /// # Errors
    /// Returns [`DecodeError`] if the key or the value of an offset is incomplete, or if the value has an unknown
    /// version.
    pub fn decode(key: Bytes, value: Option<Bytes>) -> Result<CoordinatorRecord, DecodeError> {
        let mut key = reader(key);
        match i16::decode(&mut key, HEAD)? {
            OffsetCommitKey::TYPE | OffsetCommitKey::LEGACY_TYPE => {
                let key = OffsetCommitKey::decode(&mut key, OffsetCommitKey::VERSION)?;
                Ok(CoordinatorRecord::OffsetCommit(key, value.map(decode_value).transpose()?))
            }
            unknown => Ok(CoordinatorRecord::Unknown(unknown, key.rest(), value)),
        }
    }

    /// Returns the bytes of the key and of the value, in the version that Kafka writes.
    ///
    /// # Errors
    /// Returns [`EncodeError`] if a field is too long.
    pub fn encode(&self) -> Result<(Bytes, Option<Bytes>), EncodeError> {
        match self {
            CoordinatorRecord::OffsetCommit(key, value) => {
                let value = value.as_ref().map(|value| {
                    let version = value.version();
                    message(version, value, OffsetCommitValue::in_version(version))
                });
                Ok((message(OffsetCommitKey::TYPE, key, OffsetCommitKey::VERSION)?, value.transpose()?))
            }
            CoordinatorRecord::Unknown(code, rest, value) => {
                Ok(([&code.to_be_bytes()[..], rest].concat().into(), value.clone()))
            }
        }
    }
}

fn decode_value(value: Bytes) -> Result<OffsetCommitValue, DecodeError> {
    let mut value = reader(value);
    let number = i16::decode(&mut value, HEAD)?;
    if !OffsetCommitValue::VERSIONS.contains(&number) {
        return Err(DecodeError::Version(number));
    }
    OffsetCommitValue::decode(&mut value, OffsetCommitValue::in_version(number))
}
