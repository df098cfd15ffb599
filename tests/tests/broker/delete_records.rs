//! DeleteRecords. The log start stays where it was moved, and producers and later topics are not affected.

use fullbore_tests::{Batch, Broker, Client, FetchFrom, fetch_request, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::delete_records::{
    DeleteRecordsPartition, DeleteRecordsPartitionResult, DeleteRecordsRequest, DeleteRecordsTopic,
};
use std::time::Duration;

const TOPIC: &str = "cut";
const ALL: i64 = -1;
const SOON: Duration = Duration::from_secs(30);

pub fn request(topic: &str, partition_index: i32, offset: i64) -> DeleteRecordsRequest {
    let partition = DeleteRecordsPartition { partition_index, offset, ..Default::default() };
    let topic = DeleteRecordsTopic { name: topic.into(), partitions: vec![partition], ..Default::default() };
    DeleteRecordsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() }
}

pub fn delete_from(
    client: &mut Client,
    topic: &str,
    partition: i32,
    offset: i64,
    version: i16,
) -> DeleteRecordsPartitionResult {
    client.call(&request(topic, partition, offset), version).topics.remove(0).partitions.remove(0)
}

/// Deletes the records before `offset`. Returns the new log start offset.
fn deleted(client: &mut Client, offset: i64) -> i64 {
    let result = delete_from(client, TOPIC, 0, offset, 2);
    assert_eq!(result.error_code, ErrorCode::NONE);
    result.low_watermark
}

fn broker_with_records(count: usize) -> (Broker, Client) {
    let broker = Broker::start(&["log.retention.check.interval.ms=50", "log.segment.delete.delay.ms=0"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    for number in 0..count {
        client.produced(TOPIC, 0, &Batch::of(&[number.to_string()]));
    }
    (broker, client)
}

fn fetch_code(client: &mut Client, offset: i64) -> ErrorCode {
    let request = fetch_request(&[FetchFrom { topic: TOPIC, partition: 0, offset }], 0, 0);
    client.call(&request, 12).responses.remove(0).partitions.remove(0).error_code
}

/// The request names more partitions than one transaction of the index can change. Each partition must get its own
/// result.
#[test]
fn many_diskless_partitions_have_a_result_each() {
    let broker = Broker::start(&["log.retention.check.interval.ms=50"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1_200, &[("diskless.enable", "true")]);
    for partition in [0, 700, 1_199] {
        client.produced(TOPIC, partition, &Batch::of(&["a", "b"]));
    }
    let offset = |partition_index| match partition_index {
        0 => 1,
        5 => 1,
        700 => ALL,
        _ => 0,
    };
    let named = (0..=1_200).map(|partition_index| DeleteRecordsPartition {
        partition_index,
        offset: offset(partition_index),
        ..Default::default()
    });
    let topic = DeleteRecordsTopic { name: TOPIC.into(), partitions: named.collect(), ..Default::default() };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    let answered = client.call(&request, 2).topics.remove(0).partitions;
    for (expected_index, of) in (0..).zip(&answered) {
        let expected = match expected_index {
            0 => (ErrorCode::NONE, 1),
            5 => (ErrorCode::OFFSET_OUT_OF_RANGE, -1),
            700 => (ErrorCode::NONE, 2),
            1_200 => (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, -1),
            _ => (ErrorCode::NONE, 0),
        };
        assert_eq!((of.partition_index, (of.error_code, of.low_watermark)), (expected_index, expected));
    }
    assert_eq!(answered.len(), 1_201);
}

#[test]
fn topic_named_twice_has_a_result_for_each_partition() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, &[]);
    for partition in [0, 1] {
        client.produced(TOPIC, partition, &Batch::of(&["a", "b"]));
    }
    let topics = [0, 1].into_iter().flat_map(|partition| request(TOPIC, partition, 1).topics).collect();
    let deleted = client.call(&DeleteRecordsRequest { topics, ..request(TOPIC, 0, 1) }, 2);
    let partitions = deleted.topics.into_iter().flat_map(|topic| topic.partitions);
    let reported: Vec<_> = partitions.map(|of| (of.partition_index, of.error_code, of.low_watermark)).collect();
    assert_eq!(reported, [(0, ErrorCode::NONE, 1), (1, ErrorCode::NONE, 1)]);
}

#[test]
fn records_before_the_offset_are_gone_at_once_in_every_version() {
    let (_broker, mut client) = broker_with_records(10);
    for (version, offset) in (0..=2).zip([3, 4, 7]) {
        let result = delete_from(&mut client, TOPIC, 0, offset, version);
        assert_eq!((result.error_code, result.low_watermark), (ErrorCode::NONE, offset), "version {version}");
        assert_eq!(client.earliest(TOPIC, 0), offset);
        assert_eq!(fetch_code(&mut client, offset - 1), ErrorCode::OFFSET_OUT_OF_RANGE);
        assert_eq!(fetch_code(&mut client, offset), ErrorCode::NONE);
    }
    assert_eq!(client.latest(TOPIC, 0), 10);
    assert_eq!(deleted(&mut client, 2), 7, "the log start does not go back");
    assert_eq!(deleted(&mut client, ALL), 10);
    assert_eq!((client.earliest(TOPIC, 0), client.latest(TOPIC, 0)), (10, 10));
    assert_eq!(client.produced(TOPIC, 0, &Batch::of(&["next"])), 10);
}

#[test]
fn each_refusal_of_a_deletion_has_its_error() {
    let (_broker, mut client) = broker_with_records(2);
    client.create_topic("empty", 1, &[]);
    for (topic, partition, offset, expected) in [
        ("nowhere", 0, 0, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, 1, 0, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, -1, 0, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, 0, 3, ErrorCode::OFFSET_OUT_OF_RANGE),
        (TOPIC, 0, i64::MAX, ErrorCode::OFFSET_OUT_OF_RANGE),
        (TOPIC, 0, -2, ErrorCode::OFFSET_OUT_OF_RANGE),
        ("empty", 0, 1, ErrorCode::OFFSET_OUT_OF_RANGE),
        ("empty", 0, -2, ErrorCode::OFFSET_OUT_OF_RANGE),
        ("empty", 0, i64::MIN, ErrorCode::OFFSET_OUT_OF_RANGE),
    ] {
        let result = delete_from(&mut client, topic, partition, offset, 2);
        assert_eq!((result.error_code, result.low_watermark), (expected, -1), "{topic}-{partition} at {offset}");
    }
    assert_eq!(client.earliest(TOPIC, 0), 0);
    for offset in [0, ALL] {
        let result = delete_from(&mut client, "empty", 0, offset, 2);
        assert_eq!((result.error_code, result.low_watermark), (ErrorCode::NONE, 0));
    }
}

#[test]
fn kill_9_restores_no_deleted_record_and_loses_no_other() {
    let (mut broker, mut client) = broker_with_records(20);
    for offset in [4, 5, 11, 20] {
        assert_eq!(deleted(&mut client, offset), offset);
        broker.kill();
        broker.restart();
        client = broker.client();
        assert_eq!((client.earliest(TOPIC, 0), client.latest(TOPIC, 0)), (offset, 20));
        assert_eq!(fetch_code(&mut client, offset - 1), ErrorCode::OFFSET_OUT_OF_RANGE);
    }
    assert_eq!(client.produced(TOPIC, 0, &Batch::of(&["after"])), 20);
    broker.kill();
    broker.restart();
    assert_eq!(broker.client().earliest(TOPIC, 0), 20);
    // Kafka's own tools read this file, so it must have Kafka's format.
    let checkpoint = std::fs::read_to_string(broker.data_dir().join("log-start-offset-checkpoint")).expect("written");
    assert_eq!(checkpoint, format!("0\n1\n{TOPIC} 0 20\n"));
}

/// The log start offset is in a file of the partition. Without that file, the broker must read it from the checkpoint.
#[test]
fn log_start_survives_the_loss_of_its_file() {
    let (mut broker, mut client) = broker_with_records(10);
    deleted(&mut client, 7);
    broker.kill();
    std::fs::remove_file(broker.partition_dir(TOPIC, 0).join("leader-epoch-checkpoint")).expect("it was there");
    for _ in 0..2 {
        broker.restart();
        assert_eq!(broker.client().earliest(TOPIC, 0), 7);
        broker.kill();
    }
}

#[test]
fn records_of_a_topic_that_is_only_compacted_stay() {
    let (_broker, mut client) = broker_with_records(3);
    for (policy, expected) in
        [("compact", ErrorCode::POLICY_VIOLATION), ("compact,delete", ErrorCode::NONE), ("delete", ErrorCode::NONE)]
    {
        client.set_config(2, TOPIC, "cleanup.policy", policy);
        assert_eq!(delete_from(&mut client, TOPIC, 0, 1, 2).error_code, expected, "{policy}");
        let past_the_end = delete_from(&mut client, TOPIC, 0, 9, 2).error_code;
        assert!(past_the_end.is_err());
    }
}

#[test]
fn log_start_of_a_deleted_topic_does_not_apply_to_the_next_of_its_name() {
    let (mut broker, mut client) = broker_with_records(10);
    deleted(&mut client, 8);
    client.delete_topic(TOPIC);
    client.create_topic(TOPIC, 1, &[]);
    for _ in 0..10 {
        client.produced(TOPIC, 0, &Batch::of(&["of the new one"]));
    }
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    assert_eq!(client.earliest(TOPIC, 0), 0);
    assert_eq!(client.fetch_records(TOPIC, 0).len(), 10);
}

#[test]
fn segments_before_the_log_start_are_removed() {
    let (mut broker, mut client) = broker_with_records(0);
    client.set_config(2, TOPIC, "segment.bytes", "1048576");
    let large = "x".repeat(300_000);
    for _ in 0..10 {
        client.produced(TOPIC, 0, &Batch::of(&[&large]));
    }
    let segments = |broker: &Broker| broker.partition_files(TOPIC, 0, "log").len();
    assert_eq!(segments(&broker), 4);
    deleted(&mut client, 4);
    wait_until("the first segment is gone", SOON, || segments(&broker) == 3);
    deleted(&mut client, ALL);
    wait_until("all but the active segment are gone", SOON, || segments(&broker) == 1);
    broker.kill();
    broker.restart();
    assert_eq!(broker.client().earliest(TOPIC, 0), 10);
}

/// The broker keeps the state of a producer longer than its records (rows 1 and 9 of the list of bugs in `sequence`).
#[test]
fn producers_continue_their_sequences_after_all_their_records_are_deleted() {
    let (mut broker, mut client) = broker_with_records(0);
    let id = client.init_producer_id();
    let batch = |sequence| Batch::of(&["x"]).from_producer(id, 0, sequence);
    (0..8).for_each(|sequence| assert_eq!(client.produced(TOPIC, 0, &batch(sequence)), i64::from(sequence)));
    deleted(&mut client, ALL);
    for restarted in [false, true] {
        if restarted {
            broker.kill();
            broker.restart();
            client = broker.client();
        }
        assert_eq!(client.produced(TOPIC, 0, &batch(7)), 7, "a duplicate, restarted: {restarted}");
        let ahead = client.produce(TOPIC, 0, &batch(20)).error_code;
        assert_eq!(ahead, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, "restarted: {restarted}");
    }
    assert_eq!(client.produced(TOPIC, 0, &batch(8)), 8);
    deleted(&mut client, ALL);
    let other = client.init_producer_id();
    let first = Batch::of(&["of a producer whose state may be lost"]).from_producer(other, 0, 17);
    assert_eq!(client.produced(TOPIC, 0, &first), 9);
}

#[test]
fn partitions_of_several_topics_have_one_result_each() {
    let (_broker, mut client) = broker_with_records(3);
    client.create_topic("other", 2, &[]);
    client.produced("other", 1, &Batch::of(&["x"]));
    let partition = |partition_index, offset| DeleteRecordsPartition { partition_index, offset, ..Default::default() };
    let topic = |name: &str, partitions| DeleteRecordsTopic { name: name.into(), partitions, ..Default::default() };
    let topics = vec![
        topic(TOPIC, vec![partition(0, 2), partition(0, 2)]),
        topic("other", vec![partition(1, ALL), partition(7, 0)]),
    ];
    let answered = client.call(&DeleteRecordsRequest { topics, timeout_ms: 30_000, ..Default::default() }, 2).topics;
    let mut flat: Vec<_> = answered
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|p| (topic.name.to_string(), p.partition_index, p.low_watermark)))
        .collect();
    flat.sort();
    assert_eq!(flat, [(TOPIC.into(), 0, 2), ("other".into(), 1, 1), ("other".into(), 7, -1)]);
}
