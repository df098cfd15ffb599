//! The records of `__consumer_offsets`: Kafka's own bytes, round trips, versions of the past and to come, hostile
//! bytes.
//!
//! `coordinator.golden` was written by Kafka 4.3.1's own classes; its head says by which command.

use crate::records::{KEY, behind, for_every_record, key, value};
use crate::schema::Dice;
use bytes::Bytes;
use fullbore_wire::coordinator::{Key, OffsetCommitKey, OffsetCommitValue, Record, Value, partition_for};
use fullbore_wire::{Codec, DecodeError, Writer};
use proptest::prelude::*;
use std::fmt::Debug;

mod golden;

/// A message behind the 16 bits that say what it is, in any version.
fn encode<T: Codec>(message: &T, begins: i16, version: fullbore_wire::Version) -> Bytes {
    let mut writer = Writer::with_capacity(64);
    message.encode(&mut writer, version).expect("what was decoded can be encoded");
    behind(begins, &writer.into_bytes())
}

fn comes_back<K: Key + Debug + PartialEq>(seed: u64)
where
    K::Value: Debug + PartialEq,
    Record: From<(K, Option<K::Value>)>,
{
    let mut dice = Dice(seed);
    for version in K::Value::VERSIONS {
        let (key, value) = (key::<K>(&mut dice), value::<K>(version, &mut dice));
        let v = K::Value::in_version(version);
        let message = |bytes: &Bytes| fullbore_wire::Reader::new(bytes.slice(2..), bytes.len());
        let (k, val) = (K::decode(&mut message(&key), KEY), K::Value::decode(&mut message(&value), v));
        let (k, val) = (k.expect("a random key"), val.expect("a random value"));
        assert_eq!(encode(&k, K::TYPE, KEY), key);
        assert_eq!(encode(&val, version, v), value, "version {version}: {val:?}");
        assert_eq!(Record::decode(key.clone(), None), Ok(Record::from((k, None))));
        let record = Record::decode(key.clone(), Some(value.clone())).expect("a random record");
        let (key_written, value_written) = record.encode().expect("what was decoded can be encoded");
        assert_eq!(key_written, key);
        if val.version() == version {
            assert_eq!(value_written, Some(value));
        }
    }
}

fn is_refused_when_cut<K: Key>(seed: u64) {
    let mut dice = Dice(seed);
    for version in K::Value::VERSIONS {
        let (key, value) = (key::<K>(&mut dice), value::<K>(version, &mut dice));
        for end in 0..key.len() {
            let cut = Record::decode(key.slice(..end), None);
            assert!(cut.is_err(), "key of {} bytes at {end}: {cut:?}", key.len());
        }
        for end in 0..value.len() {
            let cut = Record::decode(key.clone(), Some(value.slice(..end)));
            assert!(cut.is_err(), "value of version {version} and {} bytes at {end}: {cut:?}", value.len());
        }
        // What follows the last field is not looked at, as in Kafka.
        let (longer_key, longer_value) = ([&key[..], b"more"].concat(), [&value[..], b"more"].concat());
        let whole = Record::decode(key, Some(value));
        assert_eq!(Record::decode(longer_key.into(), Some(longer_value.into())), whole);
    }
}

fn versions_are_bounded<K: Key>() {
    let key = key::<K>(&mut Dice(1));
    for version in [-1, K::Value::VERSIONS.end() + 1, i16::MAX, i16::MIN] {
        let unknown = Record::decode(key.clone(), Some(behind(version, &[0; 64])));
        assert_eq!(unknown, Err(DecodeError::Version(version)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_record_of_every_version_keeps_its_bytes(seed: u64) {
        for_every_record!(comes_back, seed);
    }
}

proptest! {
    // Each record is cut at each byte.
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn a_record_cut_short_is_refused(seed: u64) {
        for_every_record!(is_refused_when_cut, seed);
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        code in -1i16..18, version in -1i16..6,
        key in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..40),
        value in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..100),
    ) {
        if let Ok(record) = Record::decode(behind(code, &key), Some(behind(version, &value))) {
            record.encode().expect("what was decoded can be encoded");
        }
    }

    #[test]
    fn every_group_has_a_partition(group: String, partitions in 1..=i32::MAX) {
        prop_assert!((0..partitions).contains(&partition_for(&group, partitions)));
    }
}

#[test]
fn versions_that_are_not_known_are_refused() {
    for_every_record!(versions_are_bounded);
}

#[test]
fn a_type_that_is_not_known_is_passed_over_and_keeps_its_bytes() {
    for code in [-1, 9, 10, 15, 17, 23, 300, i16::MAX, i16::MIN] {
        let key = behind(code, b"anything");
        for value in [None, Some(Bytes::new()), Some(Bytes::from_static(b"\xff"))] {
            let record = Record::decode(key.clone(), value.clone()).expect("passed over");
            assert_eq!(record, Record::Unknown(code, Bytes::from_static(b"anything"), value.clone()));
            assert_eq!(record.encode(), Ok((key.clone(), value)));
        }
    }
}

#[test]
fn an_offset_under_the_first_type_is_read_and_written_as_one_of_today() {
    let key = OffsetCommitKey { group: "g".into(), topic: "t".into(), partition: 7, ..Default::default() };
    let value = OffsetCommitValue { offset: 9, metadata: "m".into(), commit_timestamp: 11, ..Default::default() };
    let record = Record::OffsetCommit(key, Some(value));
    let (today, value) = record.encode().expect("small");
    let first = Bytes::from([&[0, 0], &today[2..]].concat());
    assert_eq!(Record::decode(first, value), Ok(record));
}
