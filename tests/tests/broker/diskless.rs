//! Diskless topics whose store is a directory. Acknowledged records must be readable at their offsets, whatever
//! happened to the broker before.

use fullbore_tests::{Batch, Broker, NO_RETENTION, wait_until};
use fullbore_wire::ErrorCode;
use std::time::Duration;

const TOPIC: &str = "diskless";
const CONFIGS: &[(&str, &str)] = &[("diskless.enable", "true")];
const SOON: Duration = Duration::from_secs(60);

/// Returns a batch of three records. The first one has the sequence `first`.
fn batch(producer_id: i64, first: i32) -> Batch {
    let values: Vec<_> = (first..first + 3).map(|sequence| format!("{producer_id} {sequence}")).collect();
    Batch::of(&values).from_producer(producer_id, 0, first)
}

/// Returns how many objects the store has.
fn objects(broker: &Broker) -> usize {
    fn count(directory: &std::path::Path) -> usize {
        let entries = std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
        entries.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
    }
    let directory = broker.data_dir().join("diskless");
    let directories = std::fs::read_dir(directory).expect("the store").map(|entry| entry.expect("an entry").path());
    directories.filter(|path| path.is_dir()).map(|path| count(&path)).sum()
}

#[test]
fn written_records_are_read_before_and_after_a_kill() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, CONFIGS);
    let id = client.init_producer_id();
    for (round, partition) in [0, 1, 0, 0].into_iter().enumerate() {
        let first = [0, 0, 3, 6][round];
        assert_eq!(client.produced(TOPIC, partition, &batch(id, first)), i64::from(first));
    }
    let texts = |broker: &Broker, partition| {
        let records = broker.client().fetch_records(TOPIC, partition);
        records.iter().map(|record| record.text()).collect::<Vec<_>>()
    };
    let expected = |count| (0..count).map(|sequence| format!("{id} {sequence}")).collect::<Vec<_>>();
    assert_eq!((texts(&broker, 0), texts(&broker, 1)), (expected(9), expected(3)));
    assert!(objects(&broker) > 0 && !broker.partition_dir(TOPIC, 0).exists());
    broker.kill();
    broker.restart();
    assert_eq!((texts(&broker, 0), texts(&broker, 1)), (expected(9), expected(3)));
    let mut client = broker.client();
    assert_eq!(client.produced(TOPIC, 0, &batch(id, 6)), 6, "sent again");
    assert_eq!(client.produced(TOPIC, 0, &batch(id, 9)), 9);
    let gap = client.produce(TOPIC, 1, &batch(id, 6));
    assert_eq!(gap.error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!((client.earliest(TOPIC, 0), client.latest(TOPIC, 0)), (0, 12));
}

#[test]
fn requests_of_one_producer_are_admitted_without_waiting_for_commits() {
    let broker = Broker::start(&["diskless.puts.per.second.max=0", "diskless.produce.commit.interval.ms=500"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    let id = client.init_producer_id();
    client.produced(TOPIC, 0, &batch(id, 0));
    let before = objects(&broker);
    for at in 1..=20 {
        client.send_produce(TOPIC, 0, &batch(id, 3 * at));
    }
    for at in 1..=20 {
        let answer = client.receive_produced();
        assert_eq!((answer.error_code, answer.base_offset), (ErrorCode::NONE, 3 * at));
    }
    assert!(objects(&broker) - before < 20, "they share objects");
}

#[test]
fn duplicate_of_a_batch_in_flight_gets_the_same_offset() {
    let broker = Broker::start(&["diskless.puts.per.second.max=0"]);
    let (mut one, mut other) = (broker.client(), broker.client());
    one.create_topic(TOPIC, 1, CONFIGS);
    let id = one.init_producer_id();
    for at in 0..10 {
        one.send_produce(TOPIC, 0, &batch(id, 3 * at));
        other.send_produce(TOPIC, 0, &batch(id, 3 * at));
        let offsets = [one.receive_produced().base_offset, other.receive_produced().base_offset];
        assert_eq!(offsets, [3 * i64::from(at); 2]);
    }
    assert_eq!(one.latest(TOPIC, 0), 30);
}

#[test]
fn records_are_found_by_time_and_deleted_by_offset() {
    let mut broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    for at in 0..10 {
        client.produced(TOPIC, 0, &Batch::at(1_000_000 + 100 * at, &[format!("{at}"), format!("{at} again")]));
    }
    let by_time = |broker: &Broker, time| broker.client().list_offset(TOPIC, 0, time).offset;
    for _ in 0..2 {
        assert_eq!([0, 1_000_000, 1_000_001, 1_000_900].map(|time| by_time(&broker, time)), [0, 0, 2, 18]);
        assert_eq!((by_time(&broker, 1_000_901), by_time(&broker, -3)), (-1, 18));
        broker.kill();
        broker.restart();
    }
    let mut client = broker.client();
    client.delete_records(TOPIC, 0, 7);
    assert_eq!((client.earliest(TOPIC, 0), by_time(&broker, 0)), (7, 7));
    assert_eq!(client.fetch(TOPIC, 0, 6).error_code, ErrorCode::OFFSET_OUT_OF_RANGE);
    let records = client.fetch_records(TOPIC, 0);
    assert_eq!(records.iter().find(|record| record.offset >= 7).map(|record| record.text()), Some("3 again".into()));
    client.delete_records(TOPIC, 0, 20);
    assert_eq!((client.earliest(TOPIC, 0), client.latest(TOPIC, 0)), (20, 20));
}

#[test]
fn topic_created_again_is_empty() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    for round in 0..3 {
        client.create_topic(TOPIC, 1, CONFIGS);
        let id = client.init_producer_id();
        assert_eq!(client.produced(TOPIC, 0, &batch(id, 0)), 0, "round {round}");
        client.delete_topic(TOPIC);
        let answer = client.produce(TOPIC, 0, &batch(id, 3));
        assert_eq!(answer.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    }
}

#[test]
fn a_waiting_fetch_is_answered_when_records_are_committed() {
    let broker = Broker::start(&[]);
    let (mut writer, mut reader) = (broker.client(), broker.client());
    writer.create_topic(TOPIC, 1, CONFIGS);
    let request = fullbore_tests::fetch_request(
        &[fullbore_tests::FetchFrom { topic: TOPIC, partition: 0, offset: 0 }],
        1,
        60_000,
    );
    reader.send(&request, 12);
    wait_until("it is written", SOON, || writer.produce(TOPIC, 0, &batch(-1, 0)).error_code == ErrorCode::NONE);
    let response = reader.receive::<fullbore_wire::apis::fetch::FetchRequest>(12).1;
    assert!(response.responses[0].partitions[0].records.as_ref().is_some_and(|records| !records.is_empty()));
}

#[test]
fn diskless_records_have_one_leader_epoch() {
    use fullbore_wire::apis::offset_for_leader_epoch as api;
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    client.produced(TOPIC, 0, &batch(-1, 0));
    let mut end_of = |leader_epoch| {
        let partition = api::OffsetForLeaderPartition {
            partition: 0,
            current_leader_epoch: -1,
            leader_epoch,
            ..Default::default()
        };
        let topic =
            api::OffsetForLeaderTopic { topic: TOPIC.into(), partitions: vec![partition], ..Default::default() };
        let request = api::OffsetForLeaderEpochRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
        let end = client.call(&request, 4).topics.remove(0).partitions.remove(0);
        (end.leader_epoch, end.end_offset)
    };
    assert_eq!([0, -1, 1].map(&mut end_of), [(0, 3), (-1, -1), (-1, -1)]);
}
