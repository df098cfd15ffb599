//! ListOffsets and OffsetForLeaderEpoch, which look up offsets by position, time and epoch.

use fullbore_tests::{Batch, Broker, Client};
use fullbore_wire::apis::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use fullbore_wire::apis::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use fullbore_wire::{ErrorCode, Text};

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const TOPIC: &str = "listed";

/// Writes offsets 0 to 5 with the timestamps 1000, 3000, 2000 (these in one batch), 5000, 4000 and 5000.
fn broker_with_records() -> (Broker, Client) {
    broker_with_records_of("false")
}

/// Writes the records of [`broker_with_records`] to a topic with `diskless.enable` set to `is_diskless`.
fn broker_with_records_of(is_diskless: &str) -> (Broker, Client) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let old = ("message.timestamp.before.max.ms", "9223372036854775807");
    client.create_topic(TOPIC, 1, &[old, ("retention.ms", "-1"), ("diskless.enable", is_diskless)]);
    let mut first = Batch::at(1000, &["a", "b", "c"]);
    first.records[1].timestamp = 3000;
    first.records[2].timestamp = 2000;
    client.produced(TOPIC, 0, &first);
    for (time, value) in [(5000, "d"), (4000, "e"), (5000, "f")] {
        client.produced(TOPIC, 0, &Batch::at(time, &[value]));
    }
    (broker, client)
}

fn found(client: &mut Client, timestamp: i64) -> (i64, i64) {
    let response = client.list_offset(TOPIC, 0, timestamp);
    assert_eq!(response.error_code, ErrorCode::NONE, "timestamp {timestamp}");
    (response.offset, response.timestamp)
}

#[test]
fn earliest_and_latest_offsets_are_found() {
    let (_broker, mut client) = broker_with_records();
    assert_eq!(found(&mut client, EARLIEST), (0, -1));
    assert_eq!(found(&mut client, LATEST), (6, -1));
    assert_eq!(found(&mut client, EARLIEST_LOCAL), (0, -1));
    assert_eq!(found(&mut client, LATEST_TIERED), (-1, -1), "nothing is tiered");
}

#[test]
fn the_first_record_at_or_after_a_time_is_found_inside_its_batch() {
    let (_broker, mut client) = broker_with_records();
    for (requested, expected) in [
        (0, (0, 1000)),
        (1000, (0, 1000)),
        (1001, (1, 3000)),
        (3000, (1, 3000)),
        (3001, (3, 5000)),
        (5000, (3, 5000)),
        (5001, (-1, -1)),
        (i64::MAX, (-1, -1)),
    ] {
        assert_eq!(found(&mut client, requested), expected, "time {requested}");
    }
}

#[test]
fn the_largest_timestamp_is_found_at_its_first_record() {
    let (_broker, mut client) = broker_with_records();
    assert_eq!(found(&mut client, MAX_TIMESTAMP), (3, 5000));
}

#[test]
fn deletion_of_records_moves_the_largest_timestamp_to_those_left() {
    for kind in ["false", "true"] {
        let (_broker, mut client) = broker_with_records_of(kind);
        for (log_start, largest) in [(1, (3, 5000)), (3, (3, 5000)), (4, (5, 5000))] {
            client.delete_records(TOPIC, 0, log_start);
            assert_eq!(found(&mut client, MAX_TIMESTAMP), largest, "log start {log_start}, diskless {kind}");
            assert_eq!(found(&mut client, 5000), largest, "a time is found among what is left");
        }
        client.produced(TOPIC, 0, &Batch::at(2000, &["g"]));
        client.delete_records(TOPIC, 0, 6);
        assert_eq!((found(&mut client, MAX_TIMESTAMP), found(&mut client, 1001)), ((6, 2000), (6, 2000)));
        client.delete_records(TOPIC, 0, 7);
        assert_eq!(found(&mut client, MAX_TIMESTAMP), (-1, -1), "no records, diskless {kind}");
        client.produced(TOPIC, 0, &Batch::at(1000, &["h"]));
        assert_eq!(found(&mut client, MAX_TIMESTAMP), (7, 1000), "diskless {kind}");
    }
}

#[test]
fn the_largest_timestamp_is_found_in_the_rest_of_a_batch() {
    for kind in ["false", "true"] {
        let (_broker, mut client) = broker_with_records_of(kind);
        let mut last = Batch::at(9000, &["g", "h", "i"]);
        (last.records[1].timestamp, last.records[2].timestamp) = (8000, 7000);
        client.produced(TOPIC, 0, &last);
        client.produced(TOPIC, 0, &Batch::at(7500, &["j"]));
        for (log_start, largest) in [(6, (6, 9000)), (7, (7, 8000)), (8, (9, 7500))] {
            client.delete_records(TOPIC, 0, log_start);
            assert_eq!(found(&mut client, MAX_TIMESTAMP), largest, "log start {log_start}, diskless {kind}");
        }
    }
}

#[test]
fn an_empty_partition_has_offsets_but_no_timestamps() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    assert_eq!(found(&mut client, EARLIEST), (0, -1));
    assert_eq!(found(&mut client, LATEST), (0, -1));
    assert_eq!(found(&mut client, 0), (-1, -1));
    assert_eq!(found(&mut client, MAX_TIMESTAMP), (-1, -1));
}

#[test]
fn unknown_partitions_epochs_and_special_times_are_refused() {
    let (_broker, mut client) = broker_with_records();
    let mut code = |topic: &str, partition_index, current_leader_epoch, timestamp, version| {
        let partition = ListOffsetsPartition { partition_index, current_leader_epoch, timestamp, ..Default::default() };
        let topic = ListOffsetsTopic { name: Text::from(topic), partitions: vec![partition], ..Default::default() };
        let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
        client.call(&request, version).topics.remove(0).partitions.remove(0).error_code
    };
    assert_eq!(code("nowhere", 0, -1, LATEST, 9), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(code(TOPIC, 1, -1, LATEST, 9), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(code(TOPIC, 0, 0, LATEST, 9), ErrorCode::NONE);
    assert_eq!(code(TOPIC, 0, 7, LATEST, 9), ErrorCode::UNKNOWN_LEADER_EPOCH);
    assert_eq!(code(TOPIC, 0, -1, -99, 9), ErrorCode::UNSUPPORTED_VERSION);
    assert_eq!(code(TOPIC, 0, -1, MAX_TIMESTAMP, 6), ErrorCode::UNSUPPORTED_VERSION);
    assert_eq!(code(TOPIC, 0, -1, LATEST_TIERED, 8), ErrorCode::UNSUPPORTED_VERSION);
}

#[test]
fn every_version_of_list_offsets_finds_the_end() {
    let (_broker, mut client) = broker_with_records();
    for version in 1..=11 {
        let partition = ListOffsetsPartition { timestamp: LATEST, ..Default::default() };
        let topic = ListOffsetsTopic { name: Text::from(TOPIC), partitions: vec![partition], ..Default::default() };
        let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
        let response = client.call(&request, version).topics.remove(0).partitions.remove(0);
        assert_eq!((response.error_code, response.offset), (ErrorCode::NONE, 6), "version {version}");
    }
}

#[test]
fn times_are_found_after_a_restart_with_and_without_indexes() {
    let (mut broker, mut client) = broker_with_records();
    let before: Vec<_> = [0, 1001, 3001, MAX_TIMESTAMP].map(|time| found(&mut client, time)).into();
    for end in [Broker::stop, Broker::kill] {
        end(&mut broker);
        for extension in ["index", "timeindex"] {
            let files = broker.partition_files(TOPIC, 0, extension);
            files.iter().for_each(|file| std::fs::remove_file(file).expect("ours"));
        }
        broker.restart();
        let mut client = broker.client();
        let after: Vec<_> = [0, 1001, 3001, MAX_TIMESTAMP].map(|time| found(&mut client, time)).into();
        assert_eq!(after, before);
    }
}

fn epoch_end(client: &mut Client, topic: &str, partition: OffsetForLeaderPartition) -> EpochEndOffset {
    let topic = OffsetForLeaderTopic { topic: Text::from(topic), partitions: vec![partition], ..Default::default() };
    let request = OffsetForLeaderEpochRequest { replica_id: -2, topics: vec![topic], ..Default::default() };
    client.call(&request, 4).topics.remove(0).partitions.remove(0)
}

#[test]
fn the_end_of_the_epoch_in_force_is_the_end_of_the_log() {
    let (_broker, mut client) = broker_with_records();
    let requested = |current_leader_epoch, leader_epoch| OffsetForLeaderPartition {
        current_leader_epoch,
        leader_epoch,
        ..Default::default()
    };
    let end = epoch_end(&mut client, TOPIC, requested(-1, 0));
    assert_eq!((end.error_code, end.leader_epoch, end.end_offset), (ErrorCode::NONE, 0, 6));
    let unknown = epoch_end(&mut client, TOPIC, requested(-1, 5));
    assert_eq!((unknown.error_code, unknown.leader_epoch, unknown.end_offset), (ErrorCode::NONE, -1, -1));
    assert_eq!(epoch_end(&mut client, TOPIC, requested(3, 0)).error_code, ErrorCode::UNKNOWN_LEADER_EPOCH);
    assert_eq!(epoch_end(&mut client, "nowhere", requested(-1, 0)).error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
}
