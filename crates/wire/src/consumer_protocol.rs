//! The messages that the members of a consumer group exchange inside JoinGroup and SyncGroup
//! (ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json).
//!
//! These messages are not an API. The broker passes the bytes on. It decodes them only if it needs the topics of a
//! group. Each message begins with its version in 16 bits, and is never flexible. Version 1 added the owned partitions
//! for cooperative rebalancing (KIP-429), version 2 the generation (KIP-792), and version 3 the rack (KIP-881).
//!
//! Invariant: later versions only add fields at the end. So a message of an unknown later version is read as the newest
//! version known here.

use crate::codec::{Codec, Reader, Version};
use crate::frame::Writer;
use crate::message::message;
use crate::{DecodeError, EncodeError};
use crate::{REQUEST_ELEMENTS_MAX, Text};
use bytes::Bytes;
use std::ops::RangeInclusive;

/// The versions of both messages.
pub const VERSIONS: RangeInclusive<i16> = 0..=3;

message! {
    /// The topics that a member subscribes to, sent in `JoinGroupRequestProtocol::metadata`.
    pub struct ConsumerProtocolSubscription {
        /// The topics.
        topics: Vec<Text>, 0..;
        /// Data for the assignor, or null.
        user_data: Option<Bytes>, 0..;
        /// The partitions that the member owns.
        owned_partitions: Vec<TopicPartition>, 1..;
        /// The generation in which the member got these partitions, or -1.
        generation_id: i32, 2.., default -1;
        /// The member's rack, or null.
        rack_id: Option<Text>, 3..;
    }

    /// The partitions that are assigned to a member, sent in `SyncGroupRequestAssignment::assignment`.
    pub struct ConsumerProtocolAssignment {
        /// The topics with assigned partitions.
        assigned_partitions: Vec<TopicPartition>, 0..;
        /// Data for the assignor, or null.
        user_data: Option<Bytes>, 0..;
    }

    /// The partitions of a topic.
    pub struct TopicPartition {
        /// The topic name.
        topic: Text, 0..;
        /// The partitions.
        partitions: Vec<i32>, 0..;
    }
}

/// Either of the two messages.
pub trait Embedded: Codec {}
impl Embedded for ConsumerProtocolSubscription {}
impl Embedded for ConsumerProtocolAssignment {}

/// Writes the version and then the message.
///
/// # Errors
/// Returns [`EncodeError`] if `version` is not known here or a field is too long.
pub fn encode<T: Embedded>(message: &T, version: i16) -> Result<Bytes, EncodeError> {
    if !VERSIONS.contains(&version) {
        return Err(EncodeError::Version(version));
    }
    let mut w = Writer::with_capacity(256);
    version.encode(&mut w, plain(version))?;
    message.encode(&mut w, plain(version))?;
    Ok(w.into_bytes())
}

/// Reads the version and then the message. Bytes after the message are fields of a newer version, and are ignored.
///
/// # Errors
/// Returns [`DecodeError`] if the version is negative, or if the bytes do not begin with a whole message.
pub fn decode<T: Embedded>(bytes: Bytes) -> Result<(i16, T), DecodeError> {
    let mut r = Reader::new(bytes, REQUEST_ELEMENTS_MAX);
    let version = i16::decode(&mut r, plain(0))?;
    if version < *VERSIONS.start() {
        return Err(DecodeError::Version(version));
    }
    Ok((version, T::decode(&mut r, plain(version.min(*VERSIONS.end())))?))
}

fn plain(number: i16) -> Version {
    Version { number, flexible: false }
}
