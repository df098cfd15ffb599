//! Tests of the messages inside JoinGroup and SyncGroup: round trips, the oracle, future versions and hostile bytes.

use crate::schema::{Dice, Schema};
use bytes::{BufMut, Bytes, BytesMut};
use fullbore_wire::consumer_protocol::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, Embedded, TopicPartition, VERSIONS, decode, encode,
};
use fullbore_wire::{DecodeError, EncodeError, Version};
use kafka_protocol::messages as oracle;
use kafka_protocol::protocol::{Decodable, Encodable};
use proptest::prelude::*;
use std::fmt::Debug;

/// Returns a version and a random message of this version.
fn random<T: Embedded>(number: i16, dice: &mut Dice) -> Bytes {
    let message = Schema::of::<T>(Version { number, flexible: false }).message(dice);
    with_version(number, &message)
}

fn with_version(number: i16, message: &[u8]) -> Bytes {
    [&number.to_be_bytes()[..], message].concat().into()
}

fn oracle_recode<O: Encodable + Decodable>(bytes: &Bytes, number: i16) -> Bytes {
    let mut message = bytes.slice(2..);
    let read = O::decode(&mut message, number).expect("the oracle reads it");
    assert!(message.is_empty());
    let mut out = BytesMut::new();
    out.put_i16(number);
    read.encode(&mut out, number).expect("the oracle writes it");
    out.freeze()
}

fn comes_back<T: Embedded + Debug + PartialEq, O: Encodable + Decodable>(seed: u64) {
    for number in VERSIONS {
        let bytes = random::<T>(number, &mut Dice(seed));
        let (version, message) = decode::<T>(bytes.clone()).expect("a random message");
        assert_eq!(version, number);
        assert_eq!(encode(&message, number).as_ref(), Ok(&bytes), "{message:?}");
        assert_eq!(oracle_recode::<O>(&bytes, number), bytes, "version {number}: {message:?}");
    }
}

/// Checks that decoding does not panic, and that a decoded message is equal after it is encoded and decoded again.
fn decodes_to_a_fixed_point<T: Embedded + Debug + PartialEq>(bytes: Bytes) {
    if let Ok((version, message)) = decode::<T>(bytes) {
        let version = version.min(*VERSIONS.end());
        let again = encode(&message, version).expect("what was decoded can be encoded");
        assert_eq!(decode::<T>(again), Ok((version, message)));
    }
}

proptest! {
    #[test]
    fn both_formats_keep_their_bytes_and_the_oracle_agrees(seed: u64) {
        comes_back::<ConsumerProtocolSubscription, oracle::ConsumerProtocolSubscription>(seed);
        comes_back::<ConsumerProtocolAssignment, oracle::ConsumerProtocolAssignment>(seed);
    }

    #[test]
    fn random_bytes_never_panic(version in -1i16..6, bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..100)) {
        let bytes = with_version(version, &bytes);
        decodes_to_a_fixed_point::<ConsumerProtocolSubscription>(bytes.clone());
        decodes_to_a_fixed_point::<ConsumerProtocolAssignment>(bytes);
    }
}

#[test]
fn the_oracle_knows_the_same_versions() {
    use kafka_protocol::protocol::Message;
    for theirs in [oracle::ConsumerProtocolSubscription::VERSIONS, oracle::ConsumerProtocolAssignment::VERSIONS] {
        assert_eq!((theirs.min, theirs.max), (*VERSIONS.start(), *VERSIONS.end()));
    }
}

#[test]
fn a_subscription_is_as_kafka_writes_it() {
    let owned_partitions = vec![TopicPartition { topic: "t".into(), partitions: vec![5], ..Default::default() }];
    let message = ConsumerProtocolSubscription {
        topics: vec!["t".into()],
        owned_partitions,
        generation_id: 7,
        ..Default::default()
    };
    let bytes = [
        &[0, 3][..],
        &[0, 0, 0, 1, 0, 1, b't'],
        &[0xff; 4],
        &[0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 1, 0, 0, 0, 5],
        &[0, 0, 0, 7],
        &[0xff; 2],
    ]
    .concat();
    assert_eq!(encode(&message, 3).as_deref(), Ok(&bytes[..]));
    assert_eq!(decode(bytes.into()), Ok((3, message)));
}

#[test]
fn a_future_version_is_read_as_the_newest_known() {
    let newest = *VERSIONS.end();
    let known = random::<ConsumerProtocolSubscription>(newest, &mut Dice(3));
    let (_, expected) = decode::<ConsumerProtocolSubscription>(known.clone()).expect("a random message");
    let to_come = with_version(newest + 1, &[&known[2..], b"what comes later"].concat());
    assert_eq!(decode(to_come), Ok((newest + 1, expected)));
}

#[test]
fn versions_that_cannot_be_are_refused() {
    let below = decode::<ConsumerProtocolAssignment>(with_version(-1, &[0; 8]));
    assert_eq!(below, Err(DecodeError::Version(-1)));
    let none = decode::<ConsumerProtocolAssignment>(Bytes::new());
    assert_eq!(none, Err(DecodeError::Truncated { missing: 2 }));
    for version in [-1, *VERSIONS.end() + 1] {
        let refused = encode(&ConsumerProtocolAssignment::default(), version);
        assert_eq!(refused, Err(EncodeError::Version(version)));
    }
}

#[test]
fn a_message_cut_short_is_refused() {
    for version in VERSIONS {
        let bytes = random::<ConsumerProtocolSubscription>(version, &mut Dice(11));
        for end in 0..bytes.len() {
            assert!(decode::<ConsumerProtocolSubscription>(bytes.slice(..end)).is_err(), "{version} at {end}");
        }
    }
}
