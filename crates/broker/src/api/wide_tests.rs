//! Requests with thousands of entries need permits and a memory budget of their own.

use super::leadership_tests::{Opened, TOPIC};
use super::response_size::Measure;
use super::wide::ENTRIES_SHORT_MAX;
use fullbore_control::{CreateTopic, CreateTopics, Topic};
use fullbore_host::wide_work::Listing;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_tests::{Batch, produce_request};
use fullbore_wire::api::{Request, encode_request};
use fullbore_wire::apis::consumer_group_describe::ConsumerGroupDescribeRequest;
use fullbore_wire::apis::delete_topics::DeleteTopicsRequest;
use fullbore_wire::apis::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use fullbore_wire::apis::describe_groups::DescribeGroupsRequest;
use fullbore_wire::apis::describe_log_dirs::DescribeLogDirsRequest;
use fullbore_wire::apis::describe_producers::{DescribeProducersRequest, TopicRequest as ProducersTopic};
use fullbore_wire::apis::describe_topic_partitions::{DescribeTopicPartitionsRequest, TopicRequest};
use fullbore_wire::apis::elect_leaders::ElectLeadersRequest;
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic};
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use fullbore_wire::apis::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use fullbore_wire::apis::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use fullbore_wire::apis::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use fullbore_wire::batch::Stamp;
use fullbore_wire::{ErrorCode, Part, Text};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const GROUP: &str = "g";
const FEW: i32 = 1000;
const MANY: i32 = 3 * ENTRIES_SHORT_MAX as i32;

async fn opened() -> Opened {
    let topic = CreateTopic { name: TOPIC.into(), num_partitions: 1, replication_factor: -1, ..Default::default() };
    Opened::with("auto.create.topics.enable=false\n", topic).await
}

/// Sends a request. Returns the number of polls that needed a permit, and the response.
fn polls<R: Request>(opened: &mut Opened, request: &R, version: i16) -> (usize, R::Response) {
    let wide = |opened: &Opened| opened.broker.node().wide.polls();
    let before = wide(opened);
    let response = opened.call(request, version);
    (wide(opened) - before, response)
}

fn fetch(session: (i32, i32), topics: Vec<FetchTopic>, forgotten: Vec<ForgottenTopic>) -> FetchRequest {
    let (session_id, session_epoch) = session;
    FetchRequest {
        session_id,
        session_epoch,
        topics,
        forgotten_topics_data: forgotten,
        max_bytes: 1000,
        ..Default::default()
    }
}

fn unknown(partitions: std::ops::Range<i32>) -> Vec<FetchTopic> {
    let partitions = partitions.map(|partition| FetchPartition { partition, ..Default::default() }).collect();
    vec![FetchTopic { topic: Text::from("unknown"), partitions, ..Default::default() }]
}

fn partitions_in(response: &FetchResponse) -> usize {
    response.responses.iter().map(|topic| topic.partitions.len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_requests_with_many_entries_need_a_permit() {
    let mut opened = opened().await;
    for (count, expected) in [(FEW, 0), (MANY, 1)] {
        let requested = fetch((0, -1), unknown(0..count), vec![]);
        assert_eq!(polls(&mut opened, &requested, 12).0, expected, "Fetch of {count}");

        let partition_data = (0..count).map(|index| PartitionProduceData { index, ..Default::default() }).collect();
        let topic_data = vec![TopicProduceData { name: Text::from("unknown"), partition_data, ..Default::default() }];
        let requested = ProduceRequest { acks: 1, topic_data, ..Default::default() };
        assert_eq!(polls(&mut opened, &requested, 9).0, expected, "Produce of {count}");

        let partition = |partition_index| ListOffsetsPartition { partition_index, ..Default::default() };
        let partitions = (0..count).map(partition).collect();
        let topics = vec![ListOffsetsTopic { name: Text::from("unknown"), partitions, ..Default::default() }];
        let requested = ListOffsetsRequest { topics, ..Default::default() };
        assert_eq!(polls(&mut opened, &requested, 6).0, expected, "ListOffsets of {count}");

        let topic =
            |index| MetadataRequestTopic { name: Some(format!("unknown-{index}").into()), ..Default::default() };
        let requested = MetadataRequest { topics: Some((0..count).map(topic).collect()), ..Default::default() };
        // The first poll estimates the response, and another makes it.
        assert_eq!(polls(&mut opened, &requested, 9).0, 2 * expected, "Metadata of {count}");

        let partition_indexes = (0..count).collect();
        let topic = OffsetFetchRequestTopic { name: Text::from("unknown"), partition_indexes, ..Default::default() };
        let requested =
            OffsetFetchRequest { group_id: Text::from("g"), topics: Some(vec![topic]), ..Default::default() };
        // The first poll estimates the response, the second admits the request, and the third makes the response.
        assert_eq!(polls(&mut opened, &requested, 7).0, 3 * expected, "OffsetFetch of {count}");
    }
}

/// The request has no entries, but the response has one for each partition that needs an election. Only a response with
/// many entries needs a permit.
#[tokio::test(flavor = "multi_thread")]
async fn election_of_all_partitions_needs_a_permit_if_many_need_one() {
    for (count, needs_permit) in [(FEW, false), (MANY, true)] {
        let topic = CreateTopic { name: TOPIC.into(), num_partitions: count, ..Default::default() };
        let mut opened = Opened::with("", CreateTopic { replication_factor: -1, ..topic }).await;
        opened.broker.node().metadata.control.publish(|image| {
            let topic = Topic::clone(image.topic(TOPIC).expect("there"));
            let leaderless = |of: &Arc<PartitionRegistration>| PartitionRegistration { leader: None, ..(**of).clone() };
            let partitions = topic.partitions.iter().map(|of| Arc::new(leaderless(of))).collect();
            image.put(Arc::new(Topic { partitions, ..topic }));
        });
        let (turns, response) =
            polls(&mut opened, &ElectLeadersRequest { topic_partitions: None, ..Default::default() }, 2);
        let elected = response.replica_election_results.iter().flat_map(|topic| &topic.partition_result);
        let elected = elected.filter(|partition| partition.error_code == ErrorCode::NONE).count();
        assert_eq!((elected, turns > 0), (count as usize, needs_permit));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_requests_of_large_sessions_need_a_permit() {
    let mut opened = opened().await;
    let (_, response) = polls(&mut opened, &fetch((0, 0), unknown(0..MANY), vec![]), 12);
    assert_eq!(partitions_in(&response), MANY as usize);
    let id = response.session_id;
    let (turns, response) = polls(&mut opened, &fetch((id, 1), vec![], vec![]), 12);
    assert!(turns > 0 && partitions_in(&response) == MANY as usize, "{turns} turns");
    let (turns, _) = polls(&mut opened, &fetch((id, 2), unknown(7..8), vec![]), 12);
    assert!(turns > 0, "a change is looked for in the session");
    let partitions = (1..MANY).collect();
    let forgotten = vec![ForgottenTopic { topic: Text::from("unknown"), partitions, ..Default::default() }];
    let (_, response) = polls(&mut opened, &fetch((id, 3), vec![], forgotten), 12);
    assert_eq!((response.error_code, partitions_in(&response)), (ErrorCode::NONE, 1));
    let (turns, response) = polls(&mut opened, &fetch((id, 4), vec![], vec![]), 12);
    assert_eq!((turns, partitions_in(&response)), (0, 1), "the session is short again");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_with_many_entries_wait_for_memory_and_short_ones_do_not() {
    let (mut opened, node) = {
        let opened = opened().await;
        let node = Arc::clone(opened.broker.node());
        (opened, node)
    };
    let room = node.wide.take_memory().await;
    assert_eq!(polls(&mut opened, &fetch((0, -1), unknown(0..FEW), vec![]), 12).0, 0);
    let waiting = std::thread::spawn(move || polls(&mut opened, &fetch((0, -1), unknown(0..MANY), vec![]), 12));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((node.wide.polls(), waiting.is_finished()), (0, false));
    drop(room);
    let (turns, response) = waiting.join().expect("answered");
    assert_eq!((turns, partitions_in(&response)), (1, MANY as usize));
}

#[tokio::test(flavor = "multi_thread")]
async fn wide_command_waits_for_another_and_fetches_do_not() {
    let mut opened = opened().await;
    let node = Arc::clone(opened.broker.node());
    let turn = node.wide.command_turn().await;
    assert_eq!(polls(&mut opened, &fetch((0, -1), unknown(0..MANY), vec![]), 12).0, 1);
    let topic_names = (0..MANY).map(|index| format!("unknown-{index}").into()).collect();
    let requested = DeleteTopicsRequest { topic_names, timeout_ms: 1000, ..Default::default() };
    let waiting = std::thread::spawn(move || polls(&mut opened, &requested, 3));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((node.wide.polls(), waiting.is_finished()), (1, false));
    drop(turn);
    assert_eq!(waiting.join().expect("answered").1.responses.len(), MANY as usize);
}

/// Each request has at most one entry, but its response has an entry for each partition.
#[tokio::test(flavor = "multi_thread")]
async fn short_requests_for_many_partitions_need_a_permit() {
    for (count, needs_permit) in [(FEW, false), (MANY, true)] {
        let topic = CreateTopic { name: TOPIC.into(), num_partitions: count, ..Default::default() };
        let mut opened = Opened::with("", CreateTopic { replication_factor: -1, ..topic }).await;
        let named = MetadataRequestTopic { name: Some(TOPIC.into()), ..Default::default() };
        for topics in [None, Some(vec![named])] {
            let requested = MetadataRequest { topics, ..Default::default() };
            let (turns, response) = polls(&mut opened, &requested, 9);
            let listed: usize = response.topics.iter().map(|topic| topic.partitions.len()).sum();
            assert_eq!((turns > 0, listed), (needs_permit, count as usize), "Metadata of {count}");
        }
        let turns = polls(&mut opened, &DescribeLogDirsRequest { topics: None, ..Default::default() }, 4).0;
        assert_eq!(turns > 0, needs_permit, "DescribeLogDirs of {count}");
        let requested = DescribeTopicPartitionsRequest { response_partition_limit: MANY, ..Default::default() };
        assert_eq!(polls(&mut opened, &requested, 0).0 > 0, needs_permit, "DescribeTopicPartitions of {count}");
    }
}

/// A topic's settings take several kilobytes, with synonyms and documentation even more.
#[tokio::test(flavor = "multi_thread")]
async fn request_for_the_settings_of_many_topics_needs_a_permit() {
    let mut opened = opened().await;
    let names = || (0..300).map(|index| format!("t{index}"));
    let topic = |name| CreateTopic { name, num_partitions: 1, replication_factor: -1, ..Default::default() };
    let topics = CreateTopics { topics: names().map(topic).collect(), validate_only: false };
    opened.broker.node().metadata.control.create_topics(topics).await;
    let mut reserved = Vec::new();
    for (count, key, in_full, needs_permit) in [
        (5, None, true, false),
        (300, Some("retention.ms"), true, false),
        (300, None, false, true),
        (300, None, true, true),
    ] {
        let resource = |name: String| DescribeConfigsResource {
            resource_type: 2,
            resource_name: name.into(),
            configuration_keys: key.map(|key: &str| vec![Text::from(key)]),
            ..Default::default()
        };
        let requested = DescribeConfigsRequest {
            resources: names().take(count).map(resource).collect(),
            include_synonyms: in_full,
            include_documentation: in_full,
            ..Default::default()
        };
        reserved.push(super::describe_configs::room(&opened.broker.node().observation, &requested, Measure::Memory));
        let (turns, response) = polls(&mut opened, &requested, 4);
        assert_eq!(turns > 0, needs_permit, "{count} topics, {key:?}, {in_full}");
        assert!(response.results.iter().all(|result| !result.configs.is_empty()));
    }
    assert!(reserved[2] < reserved[3] && reserved[1] < reserved[3] / 10, "{reserved:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn description_of_a_large_group_needs_a_permit() {
    let topic = CreateTopic { name: TOPIC.into(), num_partitions: 1, replication_factor: -1, ..Default::default() };
    let mut opened = Opened::with("group.initial.rebalance.delay.ms=0\n", topic).await;
    for (group, bytes, needs_permit) in [("small", 1_000, false), ("large", 2_000_000, true)] {
        let protocol = JoinGroupRequestProtocol {
            name: Text::from("range"),
            metadata: vec![0; bytes].into(),
            ..Default::default()
        };
        let requested = JoinGroupRequest {
            group_id: Text::from(group),
            session_timeout_ms: 30_000,
            rebalance_timeout_ms: 30_000,
            protocol_type: Text::from("consumer"),
            protocols: vec![protocol],
            ..Default::default()
        };
        let (turns, response) = polls(&mut opened, &requested, 3);
        assert_eq!((response.error_code, response.members.len()), (ErrorCode::NONE, 1));
        assert_eq!(turns > 0, needs_permit, "JoinGroup of the leader, {group}");
        let requested = DescribeGroupsRequest { groups: vec![Text::from(group)], ..Default::default() };
        assert_eq!(polls(&mut opened, &requested, 3).0 > 0, needs_permit, "DescribeGroups, {group}");
    }
}

/// Creates 1,500 topics. Returns a request for their settings, whose response has several megabytes.
async fn request_for_many_settings(opened: &Opened) -> DescribeConfigsRequest {
    let names: Vec<String> = (0..1_500).map(|index| format!("t{index}")).collect();
    let topic = |name: &String| CreateTopic {
        name: name.clone(),
        num_partitions: 1,
        replication_factor: -1,
        ..Default::default()
    };
    let topics = CreateTopics { topics: names.iter().map(topic).collect(), validate_only: false };
    opened.broker.node().metadata.control.create_topics(topics).await;
    let resource = |name: &String| DescribeConfigsResource {
        resource_type: 2,
        resource_name: Text::from(name.as_str()),
        ..Default::default()
    };
    DescribeConfigsRequest {
        resources: names.iter().map(resource).collect(),
        include_synonyms: true,
        include_documentation: true,
        ..Default::default()
    }
}

/// Sends a request over two connections, of which the first does not read its response. The limit allows only one
/// unread response. Checks that the first connection is closed in the middle of its response.
async fn second_response_closes_the_first_connection<R: Request>(opened: &Opened, request: &R, version: i16) {
    let unread = &opened.broker.node().unread;
    let none_counts = async || {
        while unread.bytes() > 0 {
            tokio::task::yield_now().await;
        }
    };
    let read = |client: &mut TcpStream| {
        let mut prefix = [0; 4];
        client.read_exact(&mut prefix).expect("a response");
        let mut rest = vec![0; u32::from_be_bytes(prefix) as usize];
        client.read_exact(&mut rest).expect("the whole response");
        rest.len()
    };
    let size = read(&mut sent(opened, request, version));
    assert!((6 << 20..12 << 20).contains(&size), "{size}");
    none_counts().await;
    unread.limit(size);
    let mut first = sent(opened, request, version);
    unread_bytes(opened).await;
    assert_eq!(read(&mut sent(opened, request, version)), size);
    let mut got = Vec::new();
    let _ = first.read_to_end(&mut got);
    assert!(got.len() < size, "{} of {size} bytes", got.len());
    none_counts().await;
}

/// Without a limit, short requests over many connections could fill the memory with unread responses.
#[tokio::test(flavor = "multi_thread")]
async fn unread_responses_beyond_their_limit_close_the_oldest_connection() {
    let opened = opened().await;
    let request = request_for_many_settings(&opened).await;
    second_response_closes_the_first_connection(&opened, &request, 4).await;
}

/// The response of OffsetFetch is made only after the admission of its request, but it must count as unread as well.
#[tokio::test(flavor = "multi_thread")]
async fn unread_offsets_of_a_group_beyond_the_limit_close_the_oldest_connection() {
    let topic = CreateTopic { name: TOPIC.into(), num_partitions: MANY, replication_factor: -1, ..Default::default() };
    let mut opened = Opened::with("", topic).await;
    committed(&mut opened, 0..2_000, 4_000);
    let request = OffsetFetchRequest { group_id: Text::from(GROUP), topics: None, ..Default::default() };
    second_response_closes_the_first_connection(&opened, &request, 7).await;
    let groups = vec![OffsetFetchRequestGroup { group_id: Text::from(GROUP), topics: None, ..Default::default() }];
    let request = OffsetFetchRequest { groups, ..Default::default() };
    second_response_closes_the_first_connection(&opened, &request, 8).await;
}

/// Commits offsets of these partitions, each with that many bytes of metadata.
fn committed(opened: &mut Opened, partitions: std::ops::Range<i32>, metadata_bytes: usize) {
    let metadata = Text::from("m".repeat(metadata_bytes));
    let partition = |partition_index| OffsetCommitRequestPartition {
        partition_index,
        committed_metadata: Some(metadata.clone()),
        ..Default::default()
    };
    let partitions = partitions.map(partition).collect();
    let topics = vec![OffsetCommitRequestTopic { name: Text::from(TOPIC), partitions, ..Default::default() }];
    let request = OffsetCommitRequest { group_id: Text::from(GROUP), topics, ..Default::default() };
    loop {
        let response = opened.call(&request, 7);
        let codes: Vec<_> = response.topics[0].partitions.iter().map(|partition| partition.error_code).collect();
        if codes.iter().all(|code| *code == ErrorCode::NONE) {
            return;
        }
        let is_loading = |code: &ErrorCode| {
            matches!(*code, ErrorCode::COORDINATOR_LOAD_IN_PROGRESS | ErrorCode::COORDINATOR_NOT_AVAILABLE)
        };
        assert!(codes.iter().all(is_loading), "{codes:?}");
    }
}

/// A hanging disk may delay a description of the log directories for long. So each kind of listing has a slot of its
/// own.
#[tokio::test(flavor = "multi_thread")]
async fn long_list_of_transactions_holds_up_no_description_of_log_dirs() {
    let topic = CreateTopic { name: TOPIC.into(), num_partitions: MANY, replication_factor: -1, ..Default::default() };
    let mut opened = Opened::with("", topic).await;
    let node = Arc::clone(opened.broker.node());
    let turn = node.wide.listing_turn(Listing::Transactions).await;
    let requested = DescribeLogDirsRequest { topics: None, ..Default::default() };
    let describing = tokio::task::spawn_blocking(move || opened.call(&requested, 4).results.remove(0).topics.len());
    let described = tokio::time::timeout(Duration::from_secs(60), describing).await;
    assert_eq!(described.expect("no wait for the other list").expect("answered"), 1);
    drop(turn);
}

/// The response contains a repeated name only once, so the response is short as well.
#[tokio::test(flavor = "multi_thread")]
async fn short_requests_that_repeat_a_name_need_no_permit() {
    const TIMES: usize = 1_990;
    let topic = CreateTopic { name: TOPIC.into(), num_partitions: 10, replication_factor: -1, ..Default::default() };
    let mut opened = Opened::with("", topic).await;
    assert_eq!(opened.produced(1).0, ErrorCode::NONE);
    committed(&mut opened, 0..1, 4_000);
    let name = || Text::from(TOPIC);
    let topics = vec![MetadataRequestTopic { name: Some(name()), ..Default::default() }; TIMES];
    let (turns, response) = polls(&mut opened, &MetadataRequest { topics: Some(topics), ..Default::default() }, 9);
    assert_eq!((turns, response.topics.len()), (0, 1), "Metadata");

    let topics = vec![TopicRequest { name: name(), ..Default::default() }; TIMES];
    let requested = DescribeTopicPartitionsRequest { topics, response_partition_limit: 2_000, ..Default::default() };
    let (turns, response) = polls(&mut opened, &requested, 0);
    assert_eq!((turns, response.topics.len()), (0, 1), "DescribeTopicPartitions");

    let resource = DescribeConfigsResource { resource_type: 2, resource_name: name(), ..Default::default() };
    let requested = DescribeConfigsRequest { resources: vec![resource; 600], ..Default::default() };
    let (turns, response) = polls(&mut opened, &requested, 4);
    assert_eq!((turns, response.results.len()), (0, 1), "DescribeConfigs");

    let groups = vec![Text::from(GROUP); TIMES];
    let (turns, response) =
        polls(&mut opened, &DescribeGroupsRequest { groups: groups.clone(), ..Default::default() }, 3);
    assert_eq!((turns, response.groups.len()), (0, 1), "DescribeGroups");
    let requested = ConsumerGroupDescribeRequest { group_ids: groups, ..Default::default() };
    let (turns, response) = polls(&mut opened, &requested, 0);
    assert_eq!((turns, response.groups.len()), (0, 1), "ConsumerGroupDescribe");

    let topic = OffsetFetchRequestTopic { name: name(), partition_indexes: vec![0; TIMES], ..Default::default() };
    let requested = OffsetFetchRequest { group_id: GROUP.into(), topics: Some(vec![topic]), ..Default::default() };
    let (turns, response) = polls(&mut opened, &requested, 7);
    assert_eq!((turns, response.topics[0].partitions.len()), (0, 1), "OffsetFetch of one group");
    let topic = OffsetFetchRequestTopics { name: name(), partition_indexes: vec![0; TIMES], ..Default::default() };
    let group = OffsetFetchRequestGroup { group_id: GROUP.into(), topics: Some(vec![topic]), ..Default::default() };
    let (turns, response) = polls(&mut opened, &OffsetFetchRequest { groups: vec![group], ..Default::default() }, 8);
    assert_eq!((turns, response.groups[0].topics[0].partitions.len()), (0, 1), "OffsetFetch of groups");

    let stamp = Stamp { producer_id: 7, producer_epoch: 3, base_sequence: 0 };
    assert_eq!(opened.produced_by(stamp, 1).0, ErrorCode::NONE);
    // A body of this size is not measured, so 4,000 entries do not make the request a wide one.
    let topics = vec![ProducersTopic { name: name(), partition_indexes: vec![0; 4_000], ..Default::default() }];
    let (turns, response) = polls(&mut opened, &DescribeProducersRequest { topics, ..Default::default() }, 0);
    assert_eq!((turns, response.topics[0].partitions.len()), (0, 1), "DescribeProducers");
}

/// Sends a request over a new connection.
fn sent<R: Request>(opened: &Opened, request: &R, version: i16) -> TcpStream {
    let mut client = TcpStream::connect(opened.broker.addr()).expect("connected");
    send(&mut client, request, version);
    client
}

fn send<R: Request>(client: &mut TcpStream, request: &R, version: i16) {
    let frame = encode_request(request, version, 1, None).expect("a request");
    for part in &frame.parts {
        let Part::Bytes(part) = part else { panic!("requests are in memory") };
        client.write_all(part).expect("the broker reads");
    }
}

/// Waits until a response counts as unread, and returns its size.
async fn unread_bytes(opened: &Opened) -> usize {
    let unread = &opened.broker.node().unread;
    let counted = async {
        while unread.bytes() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), counted).await.expect("the unread response counts");
    unread.bytes()
}

/// Three clients each read a part of their response every 100 ms. The limit allows only one unread response.
#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_that_read_steadily_all_get_their_responses() {
    const PARTS: usize = 20;
    let opened = opened().await;
    let request = request_for_many_settings(&opened).await;
    let first = sent(&opened, &request, 4);
    let one = unread_bytes(&opened).await;
    drop(first);
    while opened.broker.node().unread.bytes() > 0 {
        tokio::task::yield_now().await;
    }
    opened.broker.node().unread.limit(one + one / 4);
    let reads = |mut client: TcpStream| {
        tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Handle::current();
            let mut pace = runtime.block_on(async { tokio::time::interval(Duration::from_millis(100)) });
            let mut prefix = [0; 4];
            client.read_exact(&mut prefix)?;
            let mut left = u32::from_be_bytes(prefix) as usize;
            let mut part = vec![0; left / PARTS];
            while left > 0 {
                runtime.block_on(pace.tick());
                let some = part.len().min(left);
                client.read_exact(&mut part[..some])?;
                left -= some;
            }
            std::io::Result::Ok(())
        })
    };
    let clients: Vec<_> = (0..3).map(|_| reads(sent(&opened, &request, 4))).collect();
    for client in clients {
        client.await.expect("no panic").expect("the whole response");
    }
}

/// All room is reserved for a response that is never made. A request must not wait for it for a minute if its client is
/// gone, because later requests wait behind it.
#[tokio::test(flavor = "multi_thread")]
async fn client_closes_while_its_request_waits_for_room_and_the_request_is_given_up() {
    const ROOM: usize = 4 << 20;
    let opened = opened().await;
    let request = request_for_many_settings(&opened).await;
    let unread = &opened.broker.node().unread;
    unread.limit(ROOM);
    let held = unread.room();
    held.reserve(ROOM).await.expect("nothing else has room");
    let mut client = sent(&opened, &request, 4);
    client.shutdown(Shutdown::Write).expect("connected");
    client.set_read_timeout(Some(Duration::from_secs(120))).expect("a socket");
    assert_eq!(client.read(&mut [0]).expect("the broker closes the connection"), 0);
    assert_eq!(unread.no_room_line.due(), Some(0), "the request has waited for all of its time");
    drop(held);
}

/// A batch with acks=0 gets no response, so its producer may close the connection at once.
#[tokio::test(flavor = "multi_thread")]
async fn read_is_given_up_after_its_client_closed_and_the_batch_behind_it_is_written() {
    const ROOM: usize = 4 << 20;
    let mut opened = opened().await;
    let request = request_for_many_settings(&opened).await;
    opened.broker.node().unread.limit(ROOM);
    let held = opened.broker.node().unread.room();
    held.reserve(ROOM).await.expect("nothing else has room");
    let mut client = sent(&opened, &request, 4);
    let batch = ProduceRequest { acks: 0, ..produce_request(TOPIC, 0, Batch::of(&["v"]).bytes()) };
    send(&mut client, &batch, 9);
    // The request behind the batch needs room, too, and its client has gone.
    send(&mut client, &request, 4);
    client.shutdown(Shutdown::Write).expect("connected");
    client.set_read_timeout(Some(Duration::from_secs(120))).expect("a socket");
    assert_eq!(client.read(&mut [0]).expect("the broker closes the connection"), 0, "it gets no response");
    drop(held);
    let partitions = vec![ListOffsetsPartition { timestamp: -1, ..Default::default() }];
    let topics = vec![ListOffsetsTopic { name: TOPIC.into(), partitions, ..Default::default() }];
    let ends = opened.call(&ListOffsetsRequest { replica_id: -1, topics, ..Default::default() }, 6);
    assert_eq!(ends.topics[0].partitions[0].offset, 1);
}

/// Making the response takes many times its encoded size, but only the encoded size counts.
#[tokio::test(flavor = "multi_thread")]
async fn response_below_the_counted_size_waits_for_no_unread_one() {
    let topic = CreateTopic { name: TOPIC.into(), num_partitions: MANY, replication_factor: -1, ..Default::default() };
    let mut opened = Opened::with("", topic).await;
    let request = request_for_many_settings(&opened).await;
    let silent = sent(&opened, &request, 4);
    unread_bytes(&opened).await;
    opened.broker.node().unread.limit(1);
    let named = MetadataRequestTopic { name: Some(TOPIC.into()), ..Default::default() };
    let request = MetadataRequest { topics: Some(vec![named]), ..Default::default() };
    let took = |_| {
        let began = Instant::now();
        assert_eq!(polls(&mut opened, &request, 9).1.topics[0].partitions.len(), MANY as usize);
        began.elapsed()
    };
    let fastest = (0..3).map(took).min().expect("three");
    assert!(fastest < Duration::from_secs(2), "{fastest:?}");
    assert!(opened.broker.node().unread.bytes() > 0, "the silent connection is still there");
    drop(silent);
}
