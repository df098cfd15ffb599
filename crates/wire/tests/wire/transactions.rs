//! Tests of transaction markers and of records in `__transaction_state`: Kafka's own bytes, round trips, past and
//! future versions, hostile bytes.
//!
//! `transactions.golden` was written by the classes of Kafka 4.3.1, with the command at its beginning.

use crate::coordinator::{bytes, encode};
use crate::recode::recode;
use crate::records::{behind, transaction_key, transaction_value};
use crate::schema::{Dice, Side};
use bytes::{Bytes, BytesMut};
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::write_txn_markers::{WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest};
use fullbore_wire::batch::{BatchBuilder, BatchError, BatchView, Compression, ControlError, ControlType};
use fullbore_wire::batch::{EndTransactionMarker, HEADER_LEN, Stamp, check_records, retain_empty};
use fullbore_wire::coordinator::{PartitionsSchema, TransactionLogKey, TransactionLogRecord, TransactionLogValue};
use fullbore_wire::{Codec, EncodeError, Reader};
use proptest::prelude::*;
use std::collections::BTreeMap;

const GOLDEN: &str = include_str!("transactions.golden");
const COMMIT: EndTransactionMarker =
    EndTransactionMarker { producer_id: 4_000_000_007, producer_epoch: 3, is_commit: true, coordinator_epoch: 17 };

/// Returns the words of each line of a kind, without the kind.
fn golden(kind: &str) -> impl Iterator<Item = Vec<&'static str>> {
    GOLDEN.lines().filter_map(move |line| Some(line.strip_prefix(kind)?.trim_start().split(' ').collect()))
}

fn view(batch: &[u8]) -> BatchView<'_> {
    BatchView::first(batch).expect("a whole batch")
}

#[test]
fn markers_are_byte_for_byte_as_kafka_writes_them() {
    let abort = EndTransactionMarker { producer_id: 0, producer_epoch: 32_766, is_commit: false, coordinator_epoch: 0 };
    let extremes = EndTransactionMarker {
        producer_id: i64::MAX,
        producer_epoch: i16::MAX,
        is_commit: true,
        coordinator_epoch: i32::MAX,
    };
    let mut expected = BTreeMap::from([
        ("commit", (COMMIT, 1_700_000_000_123)),
        ("abort", (abort, 1_700_000_000_124)),
        ("extremes", (extremes, -1)),
    ]);
    for line in golden("marker") {
        let (name, batch) = (line[0], bytes(line[1]));
        let (marker, timestamp) = expected.remove(name).unwrap_or_else(|| panic!("{name} is not expected"));
        assert_eq!(marker.batch(timestamp), batch, "{name}");
        assert_eq!(batch.len(), EndTransactionMarker::BATCH_LEN);
        assert_eq!(EndTransactionMarker::read(&view(&batch)), Ok(Some(marker)), "{name}");
        view(&batch).check_crc().expect("Kafka's checksum");
        assert!(view(&batch).is_control() && view(&batch).is_transactional());
    }
    assert!(expected.is_empty(), "Kafka wrote no {:?}", expected.keys());
}

/// Returns a control batch with a record that has this key and value.
fn control(key: Option<&[u8]>, value: Option<&[u8]>) -> BytesMut {
    let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
    builder.append(1_700_000_000_000, key, value, &[]);
    let mut batch = builder.seal(Stamp { producer_id: 9, producer_epoch: 2, base_sequence: -1 }).expect("sealed").0;
    batch[22] |= 0x20;
    batch
}

#[test]
fn control_record_that_is_no_marker_is_refused_by_what_is_wrong() {
    let read = |key: Option<&[u8]>, value: Option<&[u8]>| EndTransactionMarker::read(&view(&control(key, value)));
    let (key, value) = (&[0, 0, 0, 1][..], &[0, 0, 0, 0, 0, 5][..]);
    let marker = EndTransactionMarker { producer_id: 9, producer_epoch: 2, is_commit: true, coordinator_epoch: 5 };
    assert_eq!(read(Some(key), Some(value)), Ok(Some(marker)));
    assert_eq!(read(None, Some(value)), Err(ControlError::Key(0)));
    assert_eq!(read(Some(&key[..3]), Some(value)), Err(ControlError::Key(3)));
    assert_eq!(read(Some(&[0xff, 0xff, 0, 1]), Some(value)), Err(ControlError::KeyVersion(-1)));
    assert_eq!(read(Some(key), None), Err(ControlError::Value(0)));
    assert_eq!(read(Some(key), Some(&value[..5])), Err(ControlError::Value(5)));
    assert_eq!(read(Some(key), Some(&[0x80, 0, 0, 0, 0, 5])), Err(ControlError::ValueVersion(i16::MIN)));
    let mut data = control(Some(key), Some(value));
    data[22] &= !0x20;
    assert_eq!(EndTransactionMarker::read(&view(&data)), Err(ControlError::Data));
    let mut compressed = control(Some(key), Some(value));
    compressed[22] |= 4;
    assert_eq!(EndTransactionMarker::read(&view(&compressed)), Err(ControlError::Compressed));
    compressed[22] |= 7;
    assert_eq!(EndTransactionMarker::read(&view(&compressed)), Err(BatchError::Compression(7).into()));
}

#[test]
fn control_record_of_a_later_version_is_read_as_version_0() {
    let batch = control(Some(&[0, 7, 0, 0, 1, 2]), Some(&[0x7f, 0xff, 0, 0, 1, 0, 9, 9]));
    let marker = EndTransactionMarker { producer_id: 9, producer_epoch: 2, is_commit: false, coordinator_epoch: 256 };
    assert_eq!(EndTransactionMarker::read(&view(&batch)), Ok(Some(marker)));
}

#[test]
fn control_record_of_another_type_is_named() {
    let names =
        ["ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION", "KRAFT_VOTERS"];
    for code in -2..10_i16 {
        let [high, low] = code.to_be_bytes();
        let batch = control(Some(&[0, 0, high, low]), Some(&[0; 6]));
        let control_type = ControlType::of(&view(&batch)).expect("a control record").expect("one record");
        assert_eq!(control_type.code(), code);
        let name = usize::try_from(code).ok().and_then(|code| names.get(code));
        assert_eq!(control_type.to_string(), name.map_or(format!("UNKNOWN ({code})"), |name| (*name).to_owned()));
        match code {
            0 | 1 => assert!(EndTransactionMarker::read(&view(&batch)).is_ok()),
            _ => assert_eq!(EndTransactionMarker::read(&view(&batch)), Err(ControlError::Type(control_type))),
        }
    }
}

#[test]
fn marker_that_was_compacted_away_is_none() {
    let mut empty = BytesMut::new();
    retain_empty(&view(&COMMIT.batch(5)), &mut empty);
    assert_eq!((empty.len(), view(&empty).is_control()), (HEADER_LEN, true));
    assert_eq!(EndTransactionMarker::read(&view(&empty)), Ok(None));
    assert_eq!(ControlType::of(&view(&empty)), Ok(None));
}

proptest! {
    #[test]
    fn marker_reads_back_and_its_damage_never_panics(
        producer_id: i64, producer_epoch: i16, is_commit: bool, coordinator_epoch: i32, timestamp_ms in -1..=i64::MAX,
        at in HEADER_LEN..EndTransactionMarker::BATCH_LEN, byte: u8,
    ) {
        let marker = EndTransactionMarker { producer_id, producer_epoch, is_commit, coordinator_epoch };
        let mut batch = marker.batch(timestamp_ms);
        let whole = view(&batch);
        whole.check_crc().expect("a checksum");
        prop_assert_eq!(EndTransactionMarker::read(&whole), Ok(Some(marker)));
        let times = check_records(&whole, whole.payload()).expect("a record").timestamps;
        prop_assert_eq!((times.earliest, times.latest), (timestamp_ms, timestamp_ms));
        prop_assert_eq!((whole.base_sequence(), whole.partition_leader_epoch(), whole.record_count()), (-1, -1, 1));
        batch[at] = byte;
        let _ = (EndTransactionMarker::read(&view(&batch)), ControlType::of(&view(&batch)));
    }
}

fn encode_value(value: &TransactionLogValue, version: i16) -> Bytes {
    encode(value, version, TransactionLogValue::in_version(version))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_version_keeps_its_bytes(seed: u64) {
        let mut dice = Dice(seed);
        for version in TransactionLogValue::VERSIONS {
            let (key, value) = (transaction_key(&mut dice), transaction_value(version, &mut dice));
            let message = |bytes: &Bytes| Reader::new(bytes.slice(2..), bytes.len());
            let k = TransactionLogKey::decode(&mut message(&key), TransactionLogKey::VERSION).expect("a random key");
            let v = TransactionLogValue::decode(&mut message(&value), TransactionLogValue::in_version(version));
            let v = v.expect("a random value");
            prop_assert_eq!(encode_value(&v, version), &value, "version {}: {:?}", version, v);
            let tombstone = TransactionLogRecord::Transaction(k.clone(), None);
            prop_assert_eq!(tombstone.encode(version), Ok((key.clone(), None)));
            prop_assert_eq!(TransactionLogRecord::decode(key.clone(), None), Ok(tombstone));
            let record = TransactionLogRecord::Transaction(k, Some(v));
            prop_assert_eq!(TransactionLogRecord::decode(key.clone(), Some(value.clone())), Ok(record.clone()));
            prop_assert_eq!(record.encode(version), Ok((key, Some(value))));
        }
    }
}

proptest! {
    // Each record is cut off at each of its bytes.
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn a_record_cut_short_is_refused(seed: u64) {
        let mut dice = Dice(seed);
        for version in TransactionLogValue::VERSIONS {
            let (key, value) = (transaction_key(&mut dice), transaction_value(version, &mut dice));
            for end in 0..key.len() {
                let cut = TransactionLogRecord::decode(key.slice(..end), None);
                prop_assert!(cut.is_err(), "key of {} bytes at {}: {:?}", key.len(), end, cut);
            }
            for end in 0..value.len() {
                let cut = TransactionLogRecord::decode(key.clone(), Some(value.slice(..end)));
                prop_assert!(cut.is_err(), "version {} of {} bytes at {}: {:?}", version, value.len(), end, cut);
            }
            let (longer_key, longer_value) = ([&key[..], b"more"].concat(), [&value[..], b"more"].concat());
            let whole = TransactionLogRecord::decode(key, Some(value));
            prop_assert_eq!(TransactionLogRecord::decode(longer_key.into(), Some(longer_value.into())), whole);
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(
        code in -1i16..2, version in -1i16..3,
        key in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..40),
        value in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..100),
    ) {
        if let Ok(record) = TransactionLogRecord::decode(behind(code, &key), Some(behind(version, &value))) {
            record.encode(1).expect("what was decoded can be encoded");
        }
    }
}

#[test]
fn types_and_versions_that_are_not_known_are_passed_over_and_keep_their_bytes() {
    let known = transaction_key(&mut Dice(1));
    let Ok(TransactionLogRecord::Transaction(id, None)) = TransactionLogRecord::decode(known.clone(), None) else {
        panic!("a tombstone");
    };
    for version in [-1, 2, i16::MAX, i16::MIN] {
        let value = behind(version, b"anything");
        let record = TransactionLogRecord::decode(known.clone(), Some(value.clone())).expect("passed over");
        let rest = Bytes::from_static(b"anything");
        assert_eq!(record, TransactionLogRecord::UnknownValue(id.clone(), version, rest));
        assert_eq!(record.encode(1), Ok((known.clone(), Some(value))));
    }
    for code in [-1, 1, 2, i16::MAX, i16::MIN] {
        let key = behind(code, b"anything");
        for value in [None, Some(Bytes::new()), Some(Bytes::from_static(b"\xff"))] {
            let record = TransactionLogRecord::decode(key.clone(), value.clone()).expect("passed over");
            assert_eq!(record, TransactionLogRecord::Unknown(code, Bytes::from_static(b"anything"), value.clone()));
            assert_eq!(record.encode(1), Ok((key.clone(), value)));
        }
    }
    let value = Some(TransactionLogValue::default());
    assert_eq!(TransactionLogRecord::Transaction(id, value).encode(2), Err(EncodeError::Version(2)));
}

/// Returns the values with the names that `TransactionRecords.java` gives them.
fn expected() -> BTreeMap<String, Option<TransactionLogValue>> {
    let partitions = |topic: &str, ids: &[i32]| PartitionsSchema {
        topic: topic.into(),
        partition_ids: ids.to_vec(),
        ..Default::default()
    };
    let mut records = BTreeMap::from([("written-tombstone".to_owned(), None)]);
    for level in 0..=2 {
        let states = [
            ("empty", 0, None, -1, -1, -1),
            ("ongoing", 1, Some(vec![partitions("topic", &[7])]), 1_700_000_000_001, -1, -1),
            ("complete", 4, Some(Vec::new()), 1_700_000_000_002, 41, 43),
        ];
        for (name, status, partitions, start, previous, next) in states {
            let value = TransactionLogValue {
                producer_id: 42,
                previous_producer_id: if level == 0 { -1 } else { previous },
                next_producer_id: if level == 0 { -1 } else { next },
                producer_epoch: 5,
                transaction_timeout_ms: 60_000,
                transaction_status: status,
                transaction_partitions: partitions,
                transaction_last_update_timestamp_ms: 1_700_000_000_003,
                transaction_start_timestamp_ms: start,
                client_transaction_version: level,
                ..Default::default()
            };
            records.insert(format!("written-{name}-{level}"), Some(value));
        }
    }
    let version_0 = TransactionLogValue {
        producer_id: 42,
        producer_epoch: 5,
        transaction_timeout_ms: 60_000,
        transaction_status: 3,
        transaction_partitions: Some(vec![partitions("a", &[2, 0, 1]), partitions("b", &[])]),
        transaction_last_update_timestamp_ms: 11,
        transaction_start_timestamp_ms: 10,
        ..Default::default()
    };
    let version_1 = TransactionLogValue {
        previous_producer_id: 41,
        next_producer_id: 43,
        next_producer_epoch: 6,
        client_transaction_version: 2,
        ..version_0.clone()
    };
    records.extend([("version-0".to_owned(), Some(version_0)), ("version-1".to_owned(), Some(version_1))]);
    records
}

#[test]
fn records_are_byte_for_byte_as_kafka_writes_them() {
    let mut expected = expected();
    for line in golden("record") {
        let (name, key, value) = (line[0], bytes(line[1]), (line[2] != "-").then(|| bytes(line[2])));
        let expected = expected.remove(name).unwrap_or_else(|| panic!("{name} is not expected"));
        let id = TransactionLogKey { transactional_id: "grüppe-🦀".into(), ..Default::default() };
        let record = TransactionLogRecord::Transaction(id, expected);
        assert_eq!(TransactionLogRecord::decode(key.clone(), value.clone()).as_ref(), Ok(&record), "{name}");
        let level = name.rsplit('-').next().and_then(|level| level.parse().ok()).unwrap_or_default();
        let version = TransactionLogValue::version_at(level);
        assert_eq!(record.encode(version), Ok((key, value)), "{name}");
    }
    assert!(expected.is_empty(), "Kafka wrote no {:?}", expected.keys());
}

#[test]
fn fields_of_version_1_are_left_out_of_version_0() {
    let records = expected();
    let record = |name: &str| TransactionLogRecord::Transaction(TransactionLogKey::default(), records[name].clone());
    assert_eq!(record("version-1").encode(0), record("version-0").encode(0));
}

/// The oracle does not know version 2, so the bytes are compared with Kafka's.
#[test]
fn write_txn_markers_is_byte_for_byte_as_kafka_writes_it() {
    let topic = WritableTxnMarkerTopic { name: "topic".into(), partition_indexes: vec![7, 8], ..Default::default() };
    let marker = WritableTxnMarker {
        producer_id: 42,
        producer_epoch: 5,
        transaction_result: true,
        topics: vec![topic],
        coordinator_epoch: 9,
        transaction_version: 2,
        ..Default::default()
    };
    let request = WriteTxnMarkersRequest { markers: vec![marker], ..Default::default() };
    let lines: Vec<_> = golden("message").collect();
    let [line] = &lines[..] else { panic!("one message: {lines:?}") };
    let v = ApiKey::WriteTxnMarkers.version(2).expect("a version of the API");
    let recoded = recode(ApiKey::WriteTxnMarkers, Side::Request, v, bytes(line[1])).expect("a request");
    assert_eq!(recoded.bytes, bytes(line[1]));
    assert_eq!(recoded.debug, format!("{request:?}"));
}
