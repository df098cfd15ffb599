//! CreatePartitions. New partitions can be used at once, and each refusal states its reason.

use fullbore_tests::{Batch, Broker, Client};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::create_partitions::{
    CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic, CreatePartitionsTopicResult,
};
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};

const LATEST_VERSION: i16 = 3;

fn to(name: &str, count: i32) -> CreatePartitionsTopic {
    CreatePartitionsTopic { name: name.into(), count, ..Default::default() }
}

fn assigned(name: &str, count: i32, assignments: &[&[i32]]) -> CreatePartitionsTopic {
    let assignment = |ids: &&[i32]| CreatePartitionsAssignment { broker_ids: ids.to_vec(), ..Default::default() };
    CreatePartitionsTopic { assignments: Some(assignments.iter().map(assignment).collect()), ..to(name, count) }
}

fn grow(
    client: &mut Client,
    topics: Vec<CreatePartitionsTopic>,
    validate_only: bool,
    version: i16,
) -> Vec<CreatePartitionsTopicResult> {
    let request = CreatePartitionsRequest { topics, validate_only, timeout_ms: 30_000, ..Default::default() };
    client.call(&request, version).results
}

fn partitions(client: &mut Client, name: &str) -> Vec<i32> {
    let topic = MetadataRequestTopic { name: Some(name.into()), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![topic]), ..Default::default() };
    let described = client.call(&request, 12).topics.remove(0);
    let mut indexes: Vec<i32> = described.partitions.iter().map(|partition| partition.partition_index).collect();
    indexes.sort_unstable();
    indexes
}

#[test]
fn new_partitions_take_records_and_survive_kill_9() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    let id = client.create_topic("grown", 1, &[("retention.ms", "7000000")]);
    client.produced("grown", 0, &Batch::of(&["old"]));
    for (version, count) in (0..=LATEST_VERSION).zip(2..) {
        let grown = &grow(&mut client, vec![to("grown", count)], false, version)[0];
        assert_eq!((grown.name.as_str(), grown.error_code), ("grown", ErrorCode::NONE), "version {version}");
        assert_eq!(client.produced("grown", count - 1, &Batch::of(&["new"])), 0);
    }
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    assert_eq!(partitions(&mut client, "grown"), [0, 1, 2, 3, 4]);
    for partition in 1..5 {
        assert_eq!(client.fetch_records("grown", partition)[0].text(), "new");
    }
    assert_eq!(client.fetch_records("grown", 0)[0].text(), "old");
    client.delete_topic("grown");
    assert_ne!(client.create_topic("grown", 2, &[]), id);
    assert_eq!(partitions(&mut client, "grown"), [0, 1]);
    assert_eq!(client.latest("grown", 1), 0);
}

#[test]
fn each_refusal_has_its_error_and_changes_nothing() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 2, &[]);
    for (topic, expected) in [
        (to("nowhere", 3), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
        (to("t", 2), ErrorCode::INVALID_PARTITIONS),
        (to("t", 1), ErrorCode::INVALID_PARTITIONS),
        (to("t", 0), ErrorCode::INVALID_PARTITIONS),
        (to("t", -1), ErrorCode::INVALID_PARTITIONS),
        (assigned("t", 4, &[&[1]]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
        (assigned("t", 3, &[]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
        (assigned("t", 3, &[&[77]]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
        (assigned("t", 3, &[&[]]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
        (assigned("t", 3, &[&[1, 1]]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
    ] {
        let shown = format!("{topic:?}");
        let refused = grow(&mut client, vec![topic], false, LATEST_VERSION).remove(0);
        assert_eq!(refused.error_code, expected, "{shown}");
        let unsaid = expected == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION; // Kafka sends no message for it
        assert!(unsaid || refused.error_message.is_some_and(|message| !message.is_empty()), "{shown}");
    }
    assert!(grow(&mut client, vec![to("t", i32::MAX)], false, LATEST_VERSION)[0].error_code.is_err());
    assert_eq!(partitions(&mut client, "t"), [0, 1]);
}

#[test]
fn each_topic_has_its_own_result_and_a_duplicate_is_refused() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("a", 1, &[]);
    client.create_topic("b", 1, &[]);
    let mut codes = |topics| {
        let results = grow(&mut client, topics, false, LATEST_VERSION);
        let mut codes: Vec<_> = results.iter().map(|result| (result.name.to_string(), result.error_code)).collect();
        codes.sort();
        codes.dedup();
        codes
    };
    let named = |name: &str, code| (name.to_owned(), code);
    let first = codes(vec![to("a", 3), to("b", 1), assigned("nowhere", 2, &[&[1]])]);
    let unknown = named("nowhere", ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(first, [named("a", ErrorCode::NONE), named("b", ErrorCode::INVALID_PARTITIONS), unknown]);
    let twice = codes(vec![to("b", 2), to("b", 3), assigned("a", 4, &[&[1]])]);
    assert_eq!(twice, [named("a", ErrorCode::NONE), named("b", ErrorCode::INVALID_REQUEST)]);
    assert_eq!(partitions(&mut client, "a"), [0, 1, 2, 3]);
    assert_eq!(partitions(&mut client, "b"), [0]);
}

#[test]
fn validate_only_returns_each_result_and_changes_nothing() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    assert_eq!(grow(&mut client, vec![to("t", 5)], true, LATEST_VERSION)[0].error_code, ErrorCode::NONE);
    let refused = grow(&mut client, vec![to("t", 1)], true, LATEST_VERSION).remove(0);
    assert_eq!(refused.error_code, ErrorCode::INVALID_PARTITIONS);
    assert_eq!(partitions(&mut client, "t"), [0]);
}
