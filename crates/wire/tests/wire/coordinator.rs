//! Tests of committed offsets in `__consumer_offsets`: Kafka's own bytes, round trips, past and future versions,
//! hostile bytes.
//!
//! `coordinator.golden` was written by the classes of Kafka 4.3.1, with the command at its beginning.

use crate::records::{behind, key, value};
use crate::schema::Dice;
use bytes::Bytes;
use fullbore_wire::coordinator::{CoordinatorRecord, OffsetCommitKey, OffsetCommitValue, partition_for};
use fullbore_wire::{Codec, DecodeError, Reader, Text, Uuid, Version, Writer};
use proptest::prelude::*;
use std::collections::BTreeMap;

const GOLDEN: &str = include_str!("coordinator.golden");
const ID: Uuid = Uuid(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210u128.to_be_bytes());

/// Returns the 16 bits of a type or version, and then a message encoded in any version.
pub fn encode<T: Codec>(message: &T, begins: i16, version: Version) -> Bytes {
    let mut writer = Writer::with_capacity(64);
    message.encode(&mut writer, version).expect("what was decoded can be encoded");
    behind(begins, &writer.into_bytes())
}

fn encode_value(value: &OffsetCommitValue, version: i16) -> Bytes {
    encode(value, version, OffsetCommitValue::in_version(version))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_version_keeps_its_bytes(seed: u64) {
        let mut dice = Dice(seed);
        for version in OffsetCommitValue::VERSIONS {
            let (key, value) = (key(&mut dice), value(version, &mut dice));
            let message = |bytes: &Bytes| Reader::new(bytes.slice(2..), bytes.len());
            let k = OffsetCommitKey::decode(&mut message(&key), OffsetCommitKey::VERSION).expect("a random key");
            let v = OffsetCommitValue::decode(&mut message(&value), OffsetCommitValue::in_version(version));
            let v = v.expect("a random value");
            prop_assert_eq!(encode(&k, OffsetCommitKey::TYPE, OffsetCommitKey::VERSION), &key);
            prop_assert_eq!(encode_value(&v, version), &value, "version {}: {:?}", version, v);
            let tombstone = CoordinatorRecord::OffsetCommit(k.clone(), None);
            prop_assert_eq!(tombstone.encode(), Ok((key.clone(), None)));
            prop_assert_eq!(CoordinatorRecord::decode(key.clone(), None), Ok(tombstone));
            let record = CoordinatorRecord::OffsetCommit(k, Some(v.clone()));
            prop_assert_eq!(CoordinatorRecord::decode(key.clone(), Some(value.clone())), Ok(record.clone()));
            if v.version() == version {
                prop_assert_eq!(record.encode(), Ok((key, Some(value))));
            }
        }
    }
}

proptest! {
    // Each record is cut off at each of its bytes.
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn a_record_cut_short_is_refused(seed: u64) {
        let mut dice = Dice(seed);
        for version in OffsetCommitValue::VERSIONS {
            let (key, value) = (key(&mut dice), value(version, &mut dice));
            for end in 0..key.len() {
                let cut = CoordinatorRecord::decode(key.slice(..end), None);
                prop_assert!(cut.is_err(), "key of {} bytes at {}: {:?}", key.len(), end, cut);
            }
            for end in 0..value.len() {
                let cut = CoordinatorRecord::decode(key.clone(), Some(value.slice(..end)));
                prop_assert!(cut.is_err(), "version {} of {} bytes at {}: {:?}", version, value.len(), end, cut);
            }
            // Bytes after the last field are ignored, as in Kafka.
            let (longer_key, longer_value) = ([&key[..], b"more"].concat(), [&value[..], b"more"].concat());
            let whole = CoordinatorRecord::decode(key, Some(value));
            prop_assert_eq!(CoordinatorRecord::decode(longer_key.into(), Some(longer_value.into())), whole);
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        code in -1i16..4, version in -1i16..6,
        key in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..40),
        value in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..100),
    ) {
        if let Ok(record) = CoordinatorRecord::decode(behind(code, &key), Some(behind(version, &value))) {
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
    let key = key(&mut Dice(1));
    for version in [-1, OffsetCommitValue::VERSIONS.end() + 1, i16::MAX, i16::MIN] {
        let unknown = CoordinatorRecord::decode(key.clone(), Some(behind(version, &[0; 64])));
        assert_eq!(unknown, Err(DecodeError::Version(version)));
    }
}

#[test]
fn a_type_that_is_not_known_is_passed_over_and_keeps_its_bytes() {
    for code in [-1, 2, 3, 16, 300, i16::MAX, i16::MIN] {
        let key = behind(code, b"anything");
        for value in [None, Some(Bytes::new()), Some(Bytes::from_static(b"\xff"))] {
            let record = CoordinatorRecord::decode(key.clone(), value.clone()).expect("passed over");
            assert_eq!(record, CoordinatorRecord::Unknown(code, Bytes::from_static(b"anything"), value.clone()));
            assert_eq!(record.encode(), Ok((key.clone(), value)));
        }
    }
}

/// Returns the records with the names that `CoordinatorRecords.java` gives them.
fn expected() -> BTreeMap<String, CoordinatorRecord> {
    let key = |group: &str, partition| OffsetCommitKey {
        group: group.into(),
        topic: "topic".into(),
        partition,
        ..Default::default()
    };
    let value = |offset, leader_epoch, metadata: &str, commit_timestamp| OffsetCommitValue {
        offset,
        leader_epoch,
        metadata: metadata.into(),
        commit_timestamp,
        ..Default::default()
    };
    let mut records = BTreeMap::new();
    let mut put = |name: &str, key, value| {
        assert_eq!(records.insert(name.to_owned(), CoordinatorRecord::OffsetCommit(key, value)), None, "{name} twice");
    };
    put("written-offset", key("grüppe", 7), Some(value(42, 5, "where 🦀", 1_700_000_000_123)));
    let with_id = OffsetCommitValue { topic_id: ID, ..value(43, -1, "", 1_700_000_000_124) };
    put("written-offset-with-topic-id", key("group", 0), Some(with_id));
    let expires = OffsetCommitValue { expire_timestamp: 1_700_000_999_999, ..value(44, -1, "m", 1_700_000_000_125) };
    put("written-offset-that-expires", key("group", 1), Some(expires));
    put("written-offset-tombstone", key("group", 2), None);
    for version in 0..=4 {
        let mut value = value(45, if version >= 3 { 7 } else { -1 }, "metadata", 11);
        if version == 1 {
            value.expire_timestamp = 12;
        }
        if version >= 4 {
            value.topic_id = ID;
        }
        put(&format!("version-offset-{version}"), key("group", 3), Some(value));
    }
    put("version-legacy-offset", key("group", 4), Some(value(46, -1, "old", 13)));
    records
}

/// Returns the lines that begin with this kind. The rest of each line is split into three parts.
fn golden(kind: &str) -> impl Iterator<Item = [&'static str; 3]> {
    let lines = GOLDEN.lines().filter_map(move |line| line.strip_prefix(kind));
    lines.map(|line| line.split(' ').collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{line}")))
}

/// Converts hexadecimal digits to bytes.
pub fn bytes(hex: &str) -> Bytes {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("two digits");
    hex.as_bytes().chunks(2).map(digits).collect()
}

#[test]
fn records_are_byte_for_byte_as_kafka_writes_them() {
    let mut expected = expected();
    for [name, key, value] in golden("record ") {
        let record = expected.remove(name).unwrap_or_else(|| panic!("{name} is not expected"));
        let (key, value) = (bytes(key), (value != "-").then(|| bytes(value)));
        assert_eq!(CoordinatorRecord::decode(key.clone(), value.clone()).as_ref(), Ok(&record), "{name}");
        let written = record.encode().expect("small");
        if name == "version-legacy-offset" {
            assert_eq!(written.0, [&[0, 1], &key[2..]].concat(), "{name}: under the type of today");
        } else {
            assert_eq!(written.0, key, "{name}");
        }
        if name.starts_with("written-") {
            assert_eq!(written.1, value, "{name}: in the version that Kafka chooses");
        } else if let (Some(golden), CoordinatorRecord::OffsetCommit(_, Some(value))) = (value, &record) {
            let version = i16::from_be_bytes([golden[0], golden[1]]);
            assert_eq!(encode_value(value, version), golden, "{name}");
        }
    }
    assert!(expected.is_empty(), "Kafka wrote no {:?}", expected.keys());
}

#[test]
fn groups_are_in_the_partitions_that_kafka_puts_them_in() {
    let mut count = 0;
    for [group, partitions, partition] in golden("hash ") {
        let group = Text::from_utf8(bytes(group)).expect("UTF-8");
        let found = partition_for(&group, partitions.parse().expect("a number"));
        assert_eq!(found.to_string(), partition, "{group} of {partitions}");
        count += 1;
    }
    assert_eq!(count, 24);
}
