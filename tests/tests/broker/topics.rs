//! Topics as clients see them: creation, refusals, description and deletion. They must also be there after a kill.

use fullbore_tests::{Batch, Broker, Client, alter_resource};
use fullbore_wire::apis::consumer_group_describe::ConsumerGroupDescribeRequest;
use fullbore_wire::apis::consumer_group_heartbeat::ConsumerGroupHeartbeatRequest;
use fullbore_wire::apis::create_topics::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreatableTopicResult, CreateTopicsRequest,
};
use fullbore_wire::apis::delete_topics::{DeleteTopicState, DeleteTopicsRequest};
use fullbore_wire::apis::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResult,
};
use fullbore_wire::apis::describe_groups::DescribeGroupsRequest;
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic, MetadataResponse};
use fullbore_wire::{ErrorCode, Text, Uuid};

const CREATE: i16 = 7;
const DELETE: i16 = 6;
const METADATA: i16 = 12;
const TOPIC_RESOURCE: i8 = 2;
const BROKER_RESOURCE: i8 = 4;

fn named(name: &str) -> CreatableTopic {
    CreatableTopic { name: Text::from(name), num_partitions: 1, replication_factor: 1, ..Default::default() }
}

fn create(client: &mut Client, topics: Vec<CreatableTopic>, validate_only: bool) -> Vec<CreatableTopicResult> {
    client.call(&CreateTopicsRequest { topics, validate_only, ..Default::default() }, CREATE).topics
}

fn create_code(client: &mut Client, topic: CreatableTopic) -> ErrorCode {
    create(client, vec![topic], false)[0].error_code
}

fn with_config(name: &str, key: &str, value: Option<&str>) -> CreatableTopic {
    let config = CreatableTopicConfig { name: Text::from(key), value: value.map(Text::from), ..Default::default() };
    CreatableTopic { configs: vec![config], ..named(name) }
}

fn with_assignments(name: &str, assignments: &[(i32, &[i32])]) -> CreatableTopic {
    let assignment = |(partition_index, broker_ids): &(i32, &[i32])| CreatableReplicaAssignment {
        partition_index: *partition_index,
        broker_ids: broker_ids.to_vec(),
        ..Default::default()
    };
    CreatableTopic {
        num_partitions: -1,
        replication_factor: -1,
        assignments: assignments.iter().map(assignment).collect(),
        ..named(name)
    }
}

fn metadata(client: &mut Client, topics: Option<Vec<MetadataRequestTopic>>, create: bool) -> MetadataResponse {
    let request = MetadataRequest { topics, allow_auto_topic_creation: create, ..Default::default() };
    client.call(&request, METADATA)
}

fn by_name(name: &str) -> Option<Vec<MetadataRequestTopic>> {
    Some(vec![MetadataRequestTopic { name: Some(Text::from(name)), ..Default::default() }])
}

/// Returns the names of all topics, sorted.
fn names(client: &mut Client) -> Vec<String> {
    let topics = metadata(client, None, false).topics;
    let mut names: Vec<String> = topics.iter().map(|topic| topic.name.as_ref().expect("named").to_string()).collect();
    names.sort();
    names
}

#[test]
fn each_refusal_to_create_a_topic_has_its_error() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("there", 1, &[]);
    client.create_topic("a.b", 1, &[]);
    let long = "x".repeat(250);
    let cases = [
        (named("there"), ErrorCode::TOPIC_ALREADY_EXISTS),
        (named(""), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (named("."), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (named(".."), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (named("../../etc"), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (named("a/b"), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (named("naïve"), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (named(&long), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (named("a_b"), ErrorCode::INVALID_TOPIC_EXCEPTION),
        (CreatableTopic { num_partitions: 0, ..named("t") }, ErrorCode::INVALID_PARTITIONS),
        (CreatableTopic { num_partitions: -2, ..named("t") }, ErrorCode::INVALID_PARTITIONS),
        (CreatableTopic { replication_factor: 0, ..named("t") }, ErrorCode::INVALID_REPLICATION_FACTOR),
        (CreatableTopic { replication_factor: 3, ..named("t") }, ErrorCode::INVALID_REPLICATION_FACTOR),
        (with_config("t", "no.such.key", Some("1")), ErrorCode::INVALID_CONFIG),
        (with_config("t", "retention.ms", Some("soon")), ErrorCode::INVALID_CONFIG),
        (with_config("t", "retention.ms", None), ErrorCode::INVALID_CONFIG),
        (with_assignments("t", &[(0, &[1, 1])]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
        (with_assignments("t", &[(0, &[77])]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
        (with_assignments("t", &[(1, &[1])]), ErrorCode::INVALID_REPLICA_ASSIGNMENT),
    ];
    for (topic, expected) in cases {
        let shown = format!("{topic:?}");
        assert_eq!(create_code(&mut client, topic), expected, "{shown}");
    }
    assert_eq!(names(&mut client), ["a.b", "there"]);
}

#[test]
fn two_billion_partitions_are_refused() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let code = create_code(&mut client, CreatableTopic { num_partitions: i32::MAX, ..named("t") });
    assert!(code.is_err());
    assert!(names(&mut client).is_empty());
}

#[test]
fn valid_topics_are_created_beside_a_bad_one_and_a_duplicate_name_is_refused() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let results = create(&mut client, vec![named("good"), named("b/d"), named("fine")], false);
    let codes: Vec<_> = results.iter().map(|result| (result.name.to_string(), result.error_code)).collect();
    for (name, expected) in
        [("good", ErrorCode::NONE), ("b/d", ErrorCode::INVALID_TOPIC_EXCEPTION), ("fine", ErrorCode::NONE)]
    {
        assert!(codes.contains(&(name.to_owned(), expected)), "{codes:?}");
    }
    let twice = create(&mut client, vec![named("twice"), named("twice")], false);
    assert!(twice.iter().all(|result| result.error_code == ErrorCode::INVALID_REQUEST));
    assert_eq!(names(&mut client), ["fine", "good"]);
}

#[test]
fn validate_only_returns_each_result_and_creates_nothing() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let good = create(&mut client, vec![named("t")], true);
    assert_eq!(good[0].error_code, ErrorCode::NONE);
    let bad = create(&mut client, vec![named("b/d")], true);
    assert_eq!(bad[0].error_code, ErrorCode::INVALID_TOPIC_EXCEPTION);
    assert!(names(&mut client).is_empty());
}

#[test]
fn defaults_and_assignments_set_the_number_of_partitions() {
    let broker = Broker::start(&["num.partitions=4"]);
    let mut client = broker.client();
    let defaults = CreatableTopic { num_partitions: -1, replication_factor: -1, ..named("default") };
    let created = &create(&mut client, vec![defaults], false)[0];
    assert_eq!((created.num_partitions, created.replication_factor), (4, 1));
    let created = &create(&mut client, vec![with_assignments("assigned", &[(0, &[1]), (1, &[1])])], false)[0];
    assert_eq!((created.error_code, created.num_partitions), (ErrorCode::NONE, 2));
}

#[test]
fn metadata_returns_topics_by_name_and_id_and_an_error_for_unknown_ones() {
    let broker = Broker::start(&["auto.create.topics.enable=false"]);
    let mut client = broker.client();
    let id = client.create_topic("known", 3, &[]);
    let response = metadata(&mut client, by_name("known"), true);
    let topic = &response.topics[0];
    assert_eq!((topic.topic_id, topic.partitions.len()), (id, 3));
    let node = response.brokers[0].node_id;
    assert!(topic.partitions.iter().all(|p| p.leader_id == node && p.isr_nodes == [node] && !p.error_code.is_err()));
    let port = i32::from(broker.addr().port());
    assert_eq!((response.brokers[0].host.as_str(), response.brokers[0].port), ("127.0.0.1", port));
    let by_id = |topic_id| Some(vec![MetadataRequestTopic { topic_id, name: None, ..Default::default() }]);
    assert_eq!(metadata(&mut client, by_id(id), false).topics[0].name.as_deref(), Some("known"));
    let unknown = metadata(&mut client, by_id(Uuid([9; 16])), false).topics.remove(0);
    assert_eq!((unknown.error_code, unknown.name), (ErrorCode::UNKNOWN_TOPIC_ID, None));
    let code = |client: &mut Client, name| metadata(client, by_name(name), true).topics[0].error_code;
    assert_eq!(code(&mut client, "nowhere"), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(code(&mut client, "b/d"), ErrorCode::INVALID_TOPIC_EXCEPTION);
    assert!(metadata(&mut client, Some(Vec::new()), true).topics.is_empty(), "an empty list asks for none");
}

#[test]
fn metadata_creates_topics_only_if_client_and_broker_allow_it() {
    let broker = Broker::start(&["num.partitions=2"]);
    let mut client = broker.client();
    let refused = metadata(&mut client, by_name("automatic"), false);
    assert_eq!(refused.topics[0].error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    metadata(&mut client, by_name("automatic"), true);
    fullbore_tests::wait_until("the topic is there", std::time::Duration::from_secs(30), || {
        metadata(&mut client, by_name("automatic"), true).topics[0].partitions.len() == 2
    });
    assert_eq!(client.produced("automatic", 1, &Batch::of(&["x"])), 0);
}

fn delete(client: &mut Client, topic: DeleteTopicState) -> ErrorCode {
    let request = DeleteTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    client.call(&request, DELETE).responses[0].error_code
}

#[test]
fn a_deleted_topic_is_gone_with_its_records_and_its_name_is_free() {
    let mut broker = Broker::start(&["log.segment.delete.delay.ms=0"]);
    let mut client = broker.client();
    let old = client.create_topic("again", 2, &[]);
    client.produced("again", 0, &Batch::of(&["old"]));
    let id = client.init_producer_id();
    client.produced("again", 1, &Batch::of(&["old"]).from_producer(id, 0, 0));
    client.delete_topic("again");
    assert!(names(&mut client).is_empty());
    let code = client.produce("again", 0, &Batch::of(&["late"])).error_code;
    assert_eq!(code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let new = client.create_topic("again", 2, &[]);
    assert_ne!(new, old);
    assert_eq!(client.latest("again", 0), 0);
    let fresh = client.produced("again", 1, &Batch::of(&["new"]).from_producer(id, 0, 0));
    assert_eq!(fresh, 0, "the new topic knows no producers of the old one");
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    assert_eq!(client.fetch_records("again", 1)[0].text(), "new");
    assert_eq!(client.latest("again", 0), 0);
}

#[test]
fn topics_are_deleted_by_id_and_unknown_ones_are_errors() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let id = client.create_topic("by-id", 1, &[]);
    let by_id = |topic_id| DeleteTopicState { topic_id, ..Default::default() };
    let by_name = |name: &str| DeleteTopicState { name: Some(Text::from(name)), ..Default::default() };
    assert_eq!(delete(&mut client, by_id(Uuid([9; 16]))), ErrorCode::UNKNOWN_TOPIC_ID);
    assert_eq!(delete(&mut client, by_name("nowhere")), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(delete(&mut client, by_id(id)), ErrorCode::NONE);
    assert!(names(&mut client).is_empty());
}

/// Since the client learned the name and id of a topic, the topic may have been recreated. The broker therefore refuses
/// a deletion that has both, as Kafka does.
#[test]
fn a_topic_is_deleted_by_its_name_or_its_id_and_not_by_both() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let old = client.create_topic("again", 1, &[]);
    client.delete_topic("again");
    let id = client.create_topic("again", 1, &[]);
    let other = client.create_topic("other", 1, &[]);
    let state =
        |name: Option<&str>, topic_id| DeleteTopicState { name: name.map(Text::from), topic_id, ..Default::default() };
    let topics = vec![state(Some("again"), old), state(Some("again"), id), state(None, Uuid::ZERO), state(None, other)];
    let request = DeleteTopicsRequest { topics, timeout_ms: 30_000, ..Default::default() };
    let responses = client.call(&request, DELETE).responses;
    let reported: Vec<_> =
        responses.iter().map(|of| (of.error_code, of.error_message.as_deref().unwrap_or(""))).collect();
    let both = (ErrorCode::INVALID_REQUEST, "You may not specify both topic name and topic id.");
    let neither = (ErrorCode::INVALID_REQUEST, "Neither topic name nor id were specified.");
    assert_eq!(reported, [both, both, neither, (ErrorCode::NONE, "")]);
    assert_eq!(names(&mut client), ["again"]);
}

/// The message of a refusal is too long for a response, so the broker shortens it. The same response must have the
/// complete results of valid topics.
#[test]
fn message_of_a_refusal_is_cut_to_the_limit_of_a_response() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("real", 1, &[]);
    let long = "x".repeat(32_760);
    let by_name = |name: &str| DeleteTopicState { name: Some(Text::from(name)), ..Default::default() };
    let topics = vec![by_name("real"), by_name(&long)];
    let request = DeleteTopicsRequest { topics, timeout_ms: 30_000, ..Default::default() };
    let codes: Vec<_> = client.call(&request, DELETE).responses.iter().map(|of| of.error_code).collect();
    assert_eq!(codes, [ErrorCode::NONE, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION]);
    let topics = vec![named("real"), with_config("u", &long, Some("1")), with_config("v", "retention.ms", Some(&long))];
    let codes: Vec<_> = create(&mut client, topics, false).iter().map(|of| of.error_code).collect();
    assert_eq!(codes, [ErrorCode::NONE, ErrorCode::INVALID_CONFIG, ErrorCode::INVALID_CONFIG]);
    let altered =
        client.alter(vec![alter_resource(TOPIC_RESOURCE, "real", &[("retention.ms", 0, Some(&long))])], false);
    assert_eq!(altered[0].error_code, ErrorCode::INVALID_CONFIG);
    let group_ids = vec![Text::from(long.as_str())];
    let described = client.call(&ConsumerGroupDescribeRequest { group_ids, ..Default::default() }, 1);
    assert_eq!(described.groups[0].error_code, ErrorCode::GROUP_ID_NOT_FOUND);
    let groups = vec![Text::from(long.as_str())];
    let described = client.call(&DescribeGroupsRequest { groups, ..Default::default() }, 6);
    assert_eq!(described.groups[0].error_code, ErrorCode::GROUP_ID_NOT_FOUND);
    let heartbeat = ConsumerGroupHeartbeatRequest {
        group_id: Text::from("g"),
        member_id: Text::from("m"),
        rebalance_timeout_ms: 1_000,
        subscribed_topic_regex: Some(Text::from(long.as_str())),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    assert_eq!(client.call(&heartbeat, 1).error_code, ErrorCode::INVALID_REGULAR_EXPRESSION);
    let joins = ConsumerGroupHeartbeatRequest {
        subscribed_topic_names: Some(vec![Text::from("real")]),
        subscribed_topic_regex: None,
        ..heartbeat.clone()
    };
    assert_eq!(client.call(&joins, 1).error_code, ErrorCode::NONE);
    let stranger = ConsumerGroupHeartbeatRequest { member_id: Text::from(long.as_str()), member_epoch: 5, ..joins };
    assert_eq!(client.call(&stranger, 1).error_code, ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn delete_topic_enable_false_refuses_deletions() {
    let broker = Broker::start(&["delete.topic.enable=false"]);
    let mut client = broker.client();
    client.create_topic("kept", 1, &[]);
    let kept = DeleteTopicState { name: Some("kept".into()), ..Default::default() };
    assert_eq!(delete(&mut client, kept), ErrorCode::TOPIC_DELETION_DISABLED);
    assert_eq!(names(&mut client), ["kept"]);
}

fn describe(client: &mut Client, resource_type: i8, name: &str, keys: Option<&[&str]>) -> DescribeConfigsResult {
    let resource = DescribeConfigsResource {
        resource_type,
        resource_name: Text::from(name),
        configuration_keys: keys.map(|keys| keys.iter().map(|key| Text::from(*key)).collect()),
        ..Default::default()
    };
    let request = DescribeConfigsRequest { resources: vec![resource], include_synonyms: true, ..Default::default() };
    client.call(&request, 4).results.remove(0)
}

/// Returns the value and source of one key.
fn value(result: &DescribeConfigsResult, key: &str) -> (String, i8) {
    let is_it = |config: &&DescribeConfigsResourceResult| config.name == key;
    let config = result.configs.iter().find(is_it).expect("described");
    (config.value.as_ref().expect("a value").to_string(), config.config_source)
}

#[test]
fn describe_configs_returns_values_and_their_sources() {
    let broker = Broker::start(&["log.retention.ms=7000000"]);
    let mut client = broker.client();
    client.create_topic("described", 1, &[("segment.bytes", "2000000")]);
    let topic = describe(&mut client, TOPIC_RESOURCE, "described", None);
    let (of_topic, of_file, of_default) = (1, 4, 5);
    assert_eq!(value(&topic, "segment.bytes"), ("2000000".into(), of_topic));
    assert_eq!(value(&topic, "retention.ms"), ("7000000".into(), of_file));
    assert_eq!(value(&topic, "cleanup.policy"), ("delete".into(), of_default));
    let one = describe(&mut client, TOPIC_RESOURCE, "described", Some(&["segment.bytes"]));
    assert_eq!(one.configs.len(), 1);
    let of_no_keys = describe(&mut client, TOPIC_RESOURCE, "described", Some(&[]));
    assert_eq!(of_no_keys.configs.len(), topic.configs.len(), "as with Kafka");
    let of_broker = describe(&mut client, BROKER_RESOURCE, "1", None);
    assert_eq!(value(&of_broker, "log.retention.ms").0, "7000000");
    let unknown = describe(&mut client, TOPIC_RESOURCE, "nowhere", None);
    assert_eq!(unknown.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert!(describe(&mut client, BROKER_RESOURCE, "77", None).error_code.is_err());
}

#[test]
fn topics_configs_and_deletions_survive_kill_9_at_once() {
    let mut broker = Broker::start(&[]);
    for round in 0..8 {
        let mut client = broker.client();
        client.create_topic(&format!("t{round}"), round + 1, &[("segment.bytes", &(1_048_576 + round).to_string())]);
        if round % 2 == 1 {
            client.delete_topic(&format!("t{}", round - 1));
        }
        broker.kill();
        broker.restart();
    }
    let mut client = broker.client();
    assert_eq!(names(&mut client), ["t1", "t3", "t5", "t7"]);
    let seven = metadata(&mut client, by_name("t7"), false);
    assert_eq!(seven.topics[0].partitions.len(), 8);
    let described = describe(&mut client, TOPIC_RESOURCE, "t7", None);
    assert_eq!(value(&described, "segment.bytes").0, "1048583");
}
