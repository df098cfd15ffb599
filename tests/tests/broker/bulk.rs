//! Requests that are well formed but very long. If a request names an object a hundred thousand times, it must cost
//! little more than naming it once, and delay no other client.

use crate::assert_serves;
use fullbore_tests::{Batch, Broker, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::api::{Request, decode_response};
use fullbore_wire::apis::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::delete_topics::DeleteTopicsRequest;
use fullbore_wire::apis::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use fullbore_wire::apis::elect_leaders::{ElectLeadersRequest, TopicPartitions};
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchTopic};
use fullbore_wire::apis::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use fullbore_wire::apis::offset_delete::{OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic};
use fullbore_wire::apis::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestGroup};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const TOPIC: &str = "bulk";
/// How many elements each request has. Such a request has a few hundred kilobytes.
const MANY: usize = 100_000;
/// How many connections send such a request at the same time.
const GREEDY: usize = 4;
/// How much additional memory the broker may use while it handles all these requests. Measured with a debug build.
const RSS_MAX: u64 = 160 * MIB;
/// How much additional memory the broker may use for requests of hundreds of thousands of entries: their budget of 256
/// MiB, and 64 MiB that the allocator retains.
const WIDE_RSS_MAX: u64 = (256 + 64) * MIB;
/// How long an honest client may wait for a produce and a fetch. The machine may be busy with other tests.
const HONEST_MAX: Duration = Duration::from_secs(10);

fn broker_with_records() -> Broker {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    (0..50).for_each(|_| {
        client.produced(TOPIC, 0, &Batch::of(&["x"; 100]));
    });
    assert_serves(&broker);
    broker
}

/// Sends the request over several connections at once. Until all have a response, checks the broker's memory and that
/// an honest client is served. Returns one of the responses.
fn bearable<R: Request>(broker: &Broker, request: &R, version: i16) -> R::Response {
    bearable_within(RSS_MAX, broker, request, version)
}

/// Does the same as [`bearable`], with `rss_max` as the limit of additional memory.
fn bearable_within<R: Request>(rss_max: u64, broker: &Broker, request: &R, version: i16) -> R::Response {
    let before = broker.rss();
    let waiting: Vec<_> = (0..GREEDY)
        .map(|_| {
            let mut client = broker.client();
            client.send(request, version);
            std::thread::spawn(move || client.receive_frame().expect("an answer"))
        })
        .collect();
    while !waiting.iter().all(std::thread::JoinHandle::is_finished) {
        let requested = Instant::now();
        assert_serves(broker);
        let (elapsed, grown) = (requested.elapsed(), broker.rss().saturating_sub(before));
        assert!(elapsed < HONEST_MAX, "an honest client waited {elapsed:?} for {:?}", R::KEY);
        assert!(grown < rss_max, "{} MiB for {:?}", grown / MIB, R::KEY);
    }
    let mut answers: Vec<_> = waiting.into_iter().map(|answer| answer.join().expect("an answer")).collect();
    decode_response::<R>(answers.remove(0), version).expect("a response").1
}

#[test]
fn silence_after_a_long_response_frees_its_memory() {
    const CLIENTS: usize = 100;
    let broker = broker_with_records();
    let before = broker.rss();
    let partitions = (1..50_000).map(|partition| FetchPartition { partition, ..Default::default() }).collect();
    let topics = vec![FetchTopic { topic: TOPIC.into(), partitions, ..Default::default() }];
    let request = FetchRequest { topics, max_bytes: 1 << 20, ..Default::default() };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = broker.client();
            client.send(&request, 7);
            assert!(client.receive_frame().expect("an answer").len() > MIB as usize);
            client
        })
        .collect();
    wait_until("what was sent is free", Duration::from_secs(30), || {
        broker.rss().saturating_sub(before) < CLIENTS as u64 * MIB / 2
    });
    drop(clients);
}

#[test]
fn eight_requests_of_six_hundred_thousand_entries_stay_within_the_memory_budget() {
    const ENTRIES: i32 = 600_000;
    let broker = broker_with_records();
    let before = broker.rss();
    let topics =
        vec![TopicPartitions { topic: TOPIC.into(), partitions: (1..ENTRIES).collect(), ..Default::default() }];
    let elected = ElectLeadersRequest { topic_partitions: Some(topics), ..Default::default() };
    let deleted = DeleteTopicsRequest {
        topic_names: (0..ENTRIES / 2).map(|index| format!("none-{index}").into()).collect(),
        timeout_ms: 1000,
        ..Default::default()
    };
    let waiting: Vec<_> = (0..8)
        .map(|number| {
            let mut client = broker.client();
            match number % 2 {
                0 => client.send(&elected, 1),
                _ => client.send(&deleted, 3),
            };
            std::thread::spawn(move || client.receive_frame().expect("an answer").len())
        })
        .collect();
    waiting.into_iter().for_each(|answer| assert!(answer.join().expect("an answer") > 1 << 20));
    let grown = broker.rss_peak().saturating_sub(before);
    assert!(grown < WIDE_RSS_MAX, "{} MiB", grown / MIB);
    assert_serves(&broker);
}

#[test]
fn one_partition_listed_a_hundred_thousand_times_is_refused_as_in_kafka() {
    let broker = broker_with_records();
    for timestamp in [-1, -3, 1] {
        let partitions = vec![ListOffsetsPartition { timestamp, ..Default::default() }; MANY];
        let topics = vec![ListOffsetsTopic { name: TOPIC.into(), partitions, ..Default::default() }];
        let response = bearable(&broker, &ListOffsetsRequest { replica_id: -1, topics, ..Default::default() }, 9);
        let codes = response.topics[0].partitions.iter().map(|partition| partition.error_code);
        assert!(codes.eq(std::iter::repeat_n(ErrorCode::INVALID_REQUEST, MANY)));
    }
}

fn fetch(topic: &str, fetch_offset: i64, session_epoch: i32, max_wait_ms: i32) -> FetchRequest {
    let partition = FetchPartition { fetch_offset, partition_max_bytes: 100, ..Default::default() };
    let topics = vec![FetchTopic { topic: topic.into(), partitions: vec![partition; MANY], ..Default::default() }];
    FetchRequest { max_wait_ms, min_bytes: 1, session_epoch, topics, ..Default::default() }
}

#[test]
fn one_partition_fetched_a_hundred_thousand_times_is_fetched_once_as_in_kafka() {
    let broker = broker_with_records();
    let end = 50 * 100;
    for request in
        [fetch(TOPIC, 0, -1, 0), fetch(TOPIC, 0, 0, 0), fetch("nowhere", 0, -1, 0), fetch(TOPIC, end, -1, 1000)]
    {
        let response = bearable(&broker, &request, 12);
        assert_eq!(response.responses.iter().map(|topic| topic.partitions.len()).sum::<usize>(), 1);
    }
}

#[test]
fn one_topic_named_a_hundred_thousand_times_is_returned_once_as_in_kafka() {
    let broker = broker_with_records();
    let topic = |name: String| MetadataRequestTopic { name: Some(name.into()), ..Default::default() };
    let metadata = |topics| MetadataRequest { topics: Some(topics), ..Default::default() };
    let same = metadata(vec![topic(TOPIC.to_owned()); MANY]);
    assert_eq!(bearable(&broker, &same, 9).topics.len(), 1);
    let unknown = metadata((0..MANY).map(|n| topic(n.to_string())).collect());
    let unknown = MetadataRequest { allow_auto_topic_creation: false, ..unknown };
    assert_eq!(bearable(&broker, &unknown, 9).topics.len(), MANY);
}

/// A metadata request names the same missing topic twice. The second entry must not cause an error.
#[test]
fn a_missing_topic_named_twice_is_created_once() {
    let broker = Broker::start(&[]);
    let topic = MetadataRequestTopic { name: Some("automatic".into()), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![topic; 2]), ..Default::default() };
    let response = broker.client().call(&request, 9);
    assert_eq!((response.topics.len(), response.topics[0].error_code), (1, ErrorCode::NONE));
}

/// Each description has thirty kilobytes of documentation, so a repeated resource must be described only once.
#[test]
fn one_resource_described_a_hundred_thousand_times_is_described_once() {
    let broker = broker_with_records();
    for (resource_type, name) in [(4, "1"), (2, TOPIC)] {
        let resource = DescribeConfigsResource {
            resource_type,
            resource_name: name.into(),
            configuration_keys: None,
            ..Default::default()
        };
        let request = DescribeConfigsRequest {
            resources: vec![resource; MANY],
            include_synonyms: true,
            include_documentation: true,
            ..Default::default()
        };
        assert_eq!(bearable(&broker, &request, 4).results.len(), 1);
    }
}

#[test]
fn a_hundred_thousand_topics_in_one_request_are_a_policy_violation_as_in_kafka() {
    let broker = broker_with_records();
    let topic = |n: usize| CreatableTopic {
        name: n.to_string().into(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    for validate_only in [true, false] {
        let request =
            CreateTopicsRequest { topics: (0..MANY).map(topic).collect(), validate_only, ..Default::default() };
        // A request and its response take about 30 MiB. On a busy machine all requests and responses can be in memory
        // at once.
        let response = bearable_within(256 * MIB, &broker, &request, 7);
        assert!(response.topics.iter().all(|topic| topic.error_code == ErrorCode::POLICY_VIOLATION));
    }
}

/// The broker must refuse the request. Otherwise the response would list gigabytes of partitions, and the creation of
/// the topics would delay all other changes of metadata.
#[test]
fn more_partitions_than_a_broker_may_have_in_one_request_are_a_policy_violation() {
    let broker = broker_with_records();
    let mut client = broker.client();
    let names: Vec<String> = (0..1_000).map(|number| format!("t{number}")).collect();
    let topic = |name: &String| CreatableTopic {
        name: name.as_str().into(),
        num_partitions: 100_000,
        replication_factor: 1,
        ..Default::default()
    };
    for validate_only in [true, false] {
        let topics = names.iter().map(topic).collect();
        let request = CreateTopicsRequest { topics, validate_only, ..Default::default() };
        let response = bearable(&broker, &request, 7);
        assert!(response.topics.iter().all(|topic| topic.error_code == ErrorCode::POLICY_VIOLATION));
    }
    let small = |name: &String| CreatableTopic { num_partitions: 1, ..topic(name) };
    let topics = names.iter().map(small).collect();
    let created = client.call(&CreateTopicsRequest { topics, timeout_ms: 60_000, ..Default::default() }, 7);
    assert!(created.topics.iter().all(|topic| topic.error_code == ErrorCode::NONE));
    let more = |name: &String| CreatePartitionsTopic {
        name: name.as_str().into(),
        count: 100_000,
        assignments: None,
        ..Default::default()
    };
    for validate_only in [true, false] {
        let topics = names.iter().map(more).collect();
        let request = CreatePartitionsRequest { topics, validate_only, ..Default::default() };
        let response = bearable(&broker, &request, 3);
        assert!(response.results.iter().all(|topic| topic.error_code == ErrorCode::POLICY_VIOLATION));
    }
}

/// Each group name takes a few bytes of the request, but its description has seven kilobytes of defaults.
#[test]
fn a_hundred_thousand_groups_are_described_up_to_the_limit_of_a_response() {
    let broker = broker_with_records();
    let resource = |number: usize| DescribeConfigsResource {
        resource_type: 32,
        resource_name: format!("{number:05}").into(),
        configuration_keys: None,
        ..Default::default()
    };
    let request = DescribeConfigsRequest {
        resources: (0..MANY).map(resource).collect(),
        include_synonyms: true,
        include_documentation: true,
        ..Default::default()
    };
    // While a response of 32 MiB is being built and sent, it takes several times that memory.
    let results = bearable_within(1 << 30, &broker, &request, 4).results;
    let described = results.iter().take_while(|result| result.error_code == ErrorCode::NONE).count();
    assert!((1_000..MANY).contains(&described), "{described}");
    assert!(results[..described].iter().all(|result| result.configs.len() == results[0].configs.len()));
    let refused = &results[described..];
    assert!(refused.iter().all(|result| result.error_code == ErrorCode::POLICY_VIOLATION && result.configs.is_empty()));
}

/// Each deletion writes a record with the group's id of up to thirty kilobytes, so a repeated offset must be deleted
/// only once.
#[test]
fn one_offset_deleted_a_hundred_thousand_times_is_deleted_once_as_in_kafka() {
    let broker = Broker::start(&["offsets.topic.num.partitions=1"]);
    let (mut client, group_id) = (broker.client(), "g".repeat(100));
    client.create_topic(TOPIC, 1, &[]);
    let partitions = vec![OffsetCommitRequestPartition { committed_offset: 1, ..Default::default() }];
    let topics = vec![OffsetCommitRequestTopic { name: TOPIC.into(), partitions, ..Default::default() }];
    let commit = OffsetCommitRequest { group_id: group_id.as_str().into(), topics, ..Default::default() };
    let one = OffsetDeleteRequestPartition::default();
    let topic = |partitions| OffsetDeleteRequestTopic { name: TOPIC.into(), partitions, ..Default::default() };
    for topics in [vec![topic(vec![one.clone(); MANY])], vec![topic(vec![one]); MANY]] {
        assert_eq!(client.call(&commit, 8).topics[0].partitions[0].error_code, ErrorCode::NONE);
        let request = OffsetDeleteRequest { group_id: group_id.as_str().into(), topics, ..Default::default() };
        let response = bearable(&broker, &request, 0);
        let answered: Vec<_> = response.topics.iter().flat_map(|topic| &topic.partitions).collect();
        assert_eq!((answered.len(), answered[0].error_code), (1, ErrorCode::NONE));
    }
    let segments = broker.partition_files("__consumer_offsets", 0, "log");
    let bytes: u64 = segments.iter().map(|file| file.metadata().expect("there").len()).sum();
    assert!(bytes < MIB, "{bytes} bytes of records");
}

#[test]
fn offsets_of_a_topic_that_is_named_twice_are_all_deleted() {
    let broker = Broker::start(&["offsets.topic.num.partitions=1"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, &[]);
    let partition =
        |partition_index| OffsetCommitRequestPartition { partition_index, committed_offset: 1, ..Default::default() };
    let partitions = vec![partition(0), partition(1)];
    let topics = vec![OffsetCommitRequestTopic { name: TOPIC.into(), partitions, ..Default::default() }];
    client.call(&OffsetCommitRequest { group_id: "g".into(), topics, ..Default::default() }, 8);
    let topic = |partition_index| OffsetDeleteRequestTopic {
        name: TOPIC.into(),
        partitions: vec![OffsetDeleteRequestPartition { partition_index, ..Default::default() }],
        ..Default::default()
    };
    let topics = vec![topic(0), topic(1)];
    let response = client.call(&OffsetDeleteRequest { group_id: "g".into(), topics, ..Default::default() }, 0);
    let answered: Vec<_> = response.topics.iter().flat_map(|topic| &topic.partitions).collect();
    let reported: Vec<_> = answered.iter().map(|answer| (answer.partition_index, answer.error_code)).collect();
    assert_eq!(reported, [(0, ErrorCode::NONE), (1, ErrorCode::NONE)]);
    let group = OffsetFetchRequestGroup { group_id: "g".into(), topics: None, ..Default::default() };
    let fetched = client.call(&OffsetFetchRequest { groups: vec![group], ..Default::default() }, 8);
    assert!(fetched.groups[0].topics.is_empty(), "{:?}", fetched.groups[0].topics);
}
