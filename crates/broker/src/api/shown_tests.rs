//! Checks which leaders and replicas of diskless partitions clients see in a cluster. The registered leaders do not
//! matter, since every broker that serves diskless topics serves these partitions.

use super::leadership_tests::{Opened, TOPIC};
use fullbore_control::{CreateTopic, Endpoint, RegisteredBroker, Topic};
use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::apis::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use fullbore_wire::apis::describe_log_dirs::DescribeLogDirsRequest;
use fullbore_wire::apis::describe_producers::{DescribeProducersRequest, TopicRequest as ProducersTopic};
use fullbore_wire::apis::describe_topic_partitions::{Cursor, DescribeTopicPartitionsRequest, TopicRequest};
use fullbore_wire::apis::elect_leaders::{ElectLeadersRequest, TopicPartitions};
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchTopic, PartitionData};
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataResponsePartition};
use fullbore_wire::apis::offset_for_leader_epoch::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use fullbore_wire::{ErrorCode, Text};
use std::collections::BTreeSet;
use std::sync::Arc;

const PARTITIONS: i32 = 40;
const IN_A: &str = "app,diskless_az=a";
const IN_B: &str = "inkless_az = b ,app";
/// Racks of brokers 1 to 5.
const RACKS: [Option<&str>; 5] = [Some("a"), Some("a"), Some("b"), Some("b"), None];

/// Starts broker 1, with a topic of many partitions.
async fn opened(diskless: bool) -> Opened {
    let configs = vec![("diskless.enable".to_owned(), Some(diskless.to_string()))];
    let topic = CreateTopic {
        name: TOPIC.into(),
        num_partitions: PARTITIONS,
        replication_factor: -1,
        configs,
        ..CreateTopic::default()
    };
    let mut opened = Opened::with("broker.rack=a\n", topic).await;
    opened.timeout_ms = 30_000;
    opened
}

/// Registers brokers 2 to 5.
fn join(opened: &Opened) {
    opened.broker.node().metadata.control.publish(|image| {
        for (id, rack) in (2..).zip(&RACKS[1..]) {
            let at = Endpoint { host: Text::from("other"), port: 9093 };
            let node = RegisteredBroker {
                rack: rack.map(Text::from),
                serves_diskless: true,
                endpoints: [("PLAINTEXT".to_owned(), at)].into(),
                ..RegisteredBroker::default()
            };
            image.put_node(id, node);
        }
    });
}

/// Changes a broker's registration.
fn change(opened: &Opened, id: i32, change: impl FnOnce(&mut RegisteredBroker)) {
    opened.broker.node().metadata.control.publish(|image| {
        let mut node = image.node(id).expect("there").clone();
        change(&mut node);
        image.put_node(id, node);
    });
}

/// Changes the registration of every partition.
fn register(opened: &Opened, registered: PartitionRegistration) {
    opened.broker.node().metadata.control.publish(|image| {
        let topic = Topic::clone(image.topic(TOPIC).expect("there"));
        let registered = Arc::new(PartitionRegistration { partition_epoch: 9, ..registered });
        let partitions = topic.partitions.iter().map(|_| Arc::clone(&registered)).collect();
        image.put(Arc::new(Topic { partitions, ..topic }));
    });
}

fn reported(opened: &mut Opened, client_id: Option<&str>) -> Vec<MetadataResponsePartition> {
    let request = MetadataRequest { topics: None, ..Default::default() };
    opened.call_as(client_id, &request, 12).topics.remove(0).partitions
}

/// Returns the leaders of all partitions in the metadata for this client.
fn leaders(opened: &mut Opened, client_id: Option<&str>) -> BTreeSet<i32> {
    reported(opened, client_id).iter().map(|partition| partition.leader_id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn single_broker_is_leader_and_only_replica_of_a_diskless_partition() {
    let mut opened = opened(true).await;
    for client_id in [None, Some(IN_A), Some(IN_B)] {
        for partition in reported(&mut opened, client_id) {
            assert_eq!((partition.error_code, partition.leader_id, partition.leader_epoch), (ErrorCode::NONE, 1, 0));
            assert_eq!((partition.replica_nodes, partition.isr_nodes), (vec![1], vec![1]));
            assert!(partition.offline_replicas.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_gets_leaders_in_its_zone_and_a_replica_in_each_zone() {
    let mut opened = opened(true).await;
    join(&opened);
    let of_broker = |id: i32| RACKS[usize::try_from(id - 1).expect("a broker")];
    for (client_id, expected) in [
        (Some(IN_A), &[1, 2][..]),
        (Some(IN_B), &[3, 4]),
        (Some("connect,diskless_az=a-configs"), &[1, 2]),
        (None, &[1, 2, 3, 4, 5]),
        (Some("app"), &[1, 2, 3, 4, 5]),
        (Some("diskless_az=elsewhere"), &[1, 2, 3, 4, 5]),
    ] {
        assert_eq!(leaders(&mut opened, client_id), expected.iter().copied().collect(), "{client_id:?}");
        for (index, partition) in (0..).zip(reported(&mut opened, client_id)) {
            assert_eq!((partition.error_code, partition.partition_index), (ErrorCode::NONE, index));
            assert_eq!((partition.leader_epoch, partition.replica_nodes[0]), (0, partition.leader_id));
            let zones: Vec<_> = partition.replica_nodes.iter().map(|id| of_broker(*id)).collect();
            assert!(zones[1..].is_sorted() && zones.len() == 3, "{zones:?}");
            assert_eq!(zones.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from(RACKS));
            assert_eq!(partition.isr_nodes, partition.replica_nodes);
            assert!(partition.offline_replicas.is_empty());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_metadata_apis_agree_and_ignore_the_registration() {
    let mut opened = opened(true).await;
    join(&opened);
    let before = reported(&mut opened, Some(IN_B));
    let (replicas, dead) = (vec![4, 2, 3], vec![4]);
    register(
        &opened,
        PartitionRegistration { replicas, isr: dead.clone(), elr: vec![2], lost: dead, ..Default::default() },
    );
    assert_eq!(reported(&mut opened, Some(IN_B)), before);
    let topics = vec![TopicRequest { name: Text::from(TOPIC), ..Default::default() }];
    let request = DescribeTopicPartitionsRequest { topics, response_partition_limit: 100, ..Default::default() };
    let described = opened.call_as(Some(IN_B), &request, 0).topics.remove(0).partitions;
    assert_eq!(described.len(), before.len());
    for (described, before) in described.into_iter().zip(before) {
        assert_eq!((described.error_code, described.leader_id), (before.error_code, before.leader_id));
        assert_eq!((described.leader_epoch, described.replica_nodes), (before.leader_epoch, before.replica_nodes));
        assert_eq!((described.isr_nodes, described.offline_replicas), (before.isr_nodes, vec![]));
        assert_eq!((described.eligible_leader_replicas, described.last_known_elr), (Some(vec![]), Some(vec![])));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cursor_outside_the_request_refuses_each_topic() {
    let mut opened = opened(false).await;
    let mut codes = |topic: &str, partition_index| {
        let topics = vec![TopicRequest { name: Text::from(TOPIC), ..Default::default() }];
        let cursor = Some(Cursor { topic_name: Text::from(topic), partition_index, ..Default::default() });
        let request =
            DescribeTopicPartitionsRequest { topics, response_partition_limit: 100, cursor, ..Default::default() };
        let response = opened.call(&request, 0);
        response.topics.into_iter().map(|topic| (topic.error_code, topic.partitions.len())).collect::<Vec<_>>()
    };
    assert_eq!(codes(TOPIC, PARTITIONS - 1), [(ErrorCode::NONE, 1)]);
    assert_eq!(codes(TOPIC, -1), [(ErrorCode::INVALID_REQUEST, 0)]);
    assert_eq!(codes("another", 0), [(ErrorCode::INVALID_REQUEST, 0)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn election_of_an_unknown_type_refuses_each_partition_once() {
    let mut opened = opened(false).await;
    let topic = |partitions: &[i32]| TopicPartitions {
        topic: Text::from(TOPIC),
        partitions: partitions.to_vec(),
        ..Default::default()
    };
    let mut outcomes = |election_type| {
        let topic_partitions = Some(vec![topic(&[0, 1]), topic(&[1, 2])]);
        let request = ElectLeadersRequest { election_type, topic_partitions, ..Default::default() };
        let response = opened.call(&request, 2);
        let of_topic = response.replica_election_results.into_iter().flat_map(|topic| topic.partition_result);
        (response.error_code, of_topic.map(|of| (of.partition_id, of.error_code)).collect::<Vec<_>>())
    };
    let refused = |code| [0, 1, 2].map(|id| (id, code)).to_vec();
    assert_eq!(outcomes(2), (ErrorCode::INVALID_REQUEST, refused(ErrorCode::INVALID_REQUEST)));
    assert_eq!(outcomes(0), (ErrorCode::NONE, refused(ErrorCode::ELECTION_NOT_NEEDED)));
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_has_only_brokers_that_serve_and_are_reachable() {
    let mut opened = opened(true).await;
    join(&opened);
    let before = reported(&mut opened, Some(IN_B));
    change(&opened, 3, |node| node.registration.is_fenced = true);
    assert_eq!(leaders(&mut opened, Some(IN_B)), [4].into());
    for (before, after) in before.into_iter().zip(reported(&mut opened, Some(IN_B))) {
        let stays = !before.replica_nodes.contains(&3);
        assert!(!stays || before == after, "{before:?} {after:?}");
    }
    change(&opened, 4, |node| node.registration.is_shutting_down = true);
    assert_eq!(leaders(&mut opened, Some(IN_B)), [1, 2, 5].into(), "another zone's where its own has none");
    change(&opened, 2, |node| node.endpoints = [("INTERNAL".to_owned(), node.endpoints["PLAINTEXT"].clone())].into());
    assert_eq!(leaders(&mut opened, Some(IN_A)), [1].into());
    change(&opened, 5, |node| node.serves_diskless = false);
    assert_eq!(leaders(&mut opened, Some(IN_B)), [1].into(), "nor one that has no store");
    change(&opened, 5, |node| node.serves_diskless = true);
    for id in [1, 5] {
        change(&opened, id, |node| node.registration.is_shutting_down = true);
    }
    assert_eq!(leaders(&mut opened, None), [1, 4, 5].into(), "all that there are are about to stop");
    for id in 1..=5 {
        change(&opened, id, |node| node.registration.is_fenced = true);
    }
    let none = reported(&mut opened, Some(IN_A)).remove(0);
    assert_eq!((none.error_code, none.leader_id), (ErrorCode::LEADER_NOT_AVAILABLE, -1));
    assert_eq!((none.replica_nodes, none.isr_nodes, none.offline_replicas), (vec![1], vec![1], vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn broker_serves_a_diskless_partition_with_any_registered_leader() {
    let mut opened = opened(true).await;
    join(&opened);
    for leader in [Some(3), None] {
        register(&opened, PartitionRegistration { replicas: vec![3], isr: vec![3], leader, ..Default::default() });
        let (code, leader, endpoints) = opened.produced(-1);
        assert_eq!((code, leader, endpoints), (ErrorCode::NONE, (-1, -1), vec![]));
        assert_eq!((opened.latest(), opened.deleted()), (ErrorCode::NONE, ErrorCode::NONE));
        let data = fetched(&mut opened, 0, "", 17);
        assert_eq!((data.error_code, data.preferred_read_replica), (ErrorCode::NONE, -1));
        assert!(data.records.is_some_and(|records| !records.is_empty()));
        let partitions =
            vec![OffsetForLeaderPartition { leader_epoch: 0, current_leader_epoch: -1, ..Default::default() }];
        let topics = vec![OffsetForLeaderTopic { topic: Text::from(TOPIC), partitions, ..Default::default() }];
        let request = OffsetForLeaderEpochRequest { replica_id: -1, topics, ..Default::default() };
        let end = opened.call(&request, 4).topics[0].partitions[0].clone();
        assert_eq!((end.error_code, end.end_offset > 0), (ErrorCode::NONE, true));
        let topics = vec![ProducersTopic { name: Text::from(TOPIC), partition_indexes: vec![0], ..Default::default() }];
        let producers = opened.call(&DescribeProducersRequest { topics, ..Default::default() }, 0);
        assert_eq!(producers.topics[0].partitions[0].error_code, ErrorCode::NONE);
    }
}

/// Fetches as a consumer of this rack, and returns the response. The fetch waits long for one byte, so the test only
/// passes if the response is immediate.
fn fetched(opened: &mut Opened, offset: i64, rack: &str, version: i16) -> PartitionData {
    let partition = FetchPartition { fetch_offset: offset, partition_max_bytes: 1000, ..Default::default() };
    let topic_id = opened.broker.node().metadata.control.image().topic(TOPIC).expect("there").id;
    let topic = Text::from(TOPIC);
    let topics = vec![FetchTopic { topic, topic_id, partitions: vec![partition], ..Default::default() }];
    let (rack_id, min_bytes, max_wait_ms) = (Text::from(rack), 1, 300_000);
    let request = FetchRequest {
        topics,
        rack_id,
        max_bytes: 1000,
        min_bytes,
        max_wait_ms,
        session_epoch: -1,
        ..Default::default()
    };
    opened.call(&request, version).responses.remove(0).partitions.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn consumer_of_another_rack_is_redirected_to_the_broker_of_its_rack() {
    let mut opened = opened(true).await;
    join(&opened);
    assert_eq!(opened.produced(-1).0, ErrorCode::NONE);
    let replicas = reported(&mut opened, None).remove(0).replica_nodes;
    let in_b = replicas.into_iter().find(|id| [3, 4].contains(id)).expect("one of each zone");
    for version in [11, 17] {
        for offset in [0, 1] {
            let sent = fetched(&mut opened, offset, "b", version);
            assert_eq!((sent.error_code, sent.preferred_read_replica), (ErrorCode::NONE, in_b));
            assert!(sent.records.is_none_or(|records| records.is_empty()));
        }
        for rack in ["a", "elsewhere", ""] {
            let served = fetched(&mut opened, 0, rack, version);
            assert_eq!((served.error_code, served.preferred_read_replica), (ErrorCode::NONE, -1), "{rack}");
            assert!(served.records.is_some_and(|records| !records.is_empty()));
        }
    }
    for id in [3, 4] {
        change(&opened, id, |node| node.registration.is_fenced = true);
    }
    assert_eq!(fetched(&mut opened, 0, "b", 17).preferred_read_replica, -1);
}

/// A fetch session leaves out entries that have not changed. It must not leave out a redirect, because the consumer
/// would then stay at this broker.
#[tokio::test(flavor = "multi_thread")]
async fn consumer_is_redirected_at_each_fetch_of_a_session() {
    let mut opened = opened(true).await;
    join(&opened);
    let topic_id = opened.broker.node().metadata.control.image().topic(TOPIC).expect("there").id;
    let partitions = vec![FetchPartition { partition_max_bytes: 1000, ..Default::default() }];
    let mut topics = vec![FetchTopic { topic_id, partitions, ..Default::default() }];
    let mut session_id = 0;
    for session_epoch in 0..3 {
        let topics = std::mem::take(&mut topics);
        let rack_id = Text::from("b");
        let (max_bytes, max_wait_ms) = (1000, 300_000);
        let request = FetchRequest {
            topics,
            rack_id,
            max_bytes,
            min_bytes: 1,
            max_wait_ms,
            session_id,
            session_epoch,
            ..Default::default()
        };
        let response = opened.call(&request, 17);
        assert_eq!(response.error_code, ErrorCode::NONE);
        session_id = response.session_id;
        assert!([3, 4].contains(&response.responses[0].partitions[0].preferred_read_replica));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn classic_partition_is_read_from_its_leader() {
    let mut opened = opened(false).await;
    join(&opened);
    assert_eq!(opened.produced(-1).0, ErrorCode::NONE);
    let served = fetched(&mut opened, 0, "b", 17);
    assert_eq!((served.error_code, served.preferred_read_replica), (ErrorCode::NONE, -1));
    assert!(served.records.is_some_and(|records| !records.is_empty()));
    assert_eq!(leaders(&mut opened, Some(IN_B)), [1].into());
}

#[tokio::test(flavor = "multi_thread")]
async fn object_store_is_described_by_one_broker_of_a_cluster() {
    let mut opened = opened(true).await;
    join(&opened);
    let sizes = |opened: &mut Opened| {
        let results = opened.call(&DescribeLogDirsRequest { topics: None, ..Default::default() }, 4).results;
        results.into_iter().map(|of| of.topics.iter().map(|topic| topic.partitions.len()).sum()).collect::<Vec<usize>>()
    };
    let all = usize::try_from(PARTITIONS).expect("some");
    register(&opened, PartitionRegistration { replicas: vec![3], isr: vec![3], leader: Some(3), ..Default::default() });
    assert_eq!(sizes(&mut opened), [0, all], "it has the smallest id");
    let node = opened.broker.node().metadata.control.image().node(2).expect("there").clone();
    opened.broker.node().metadata.control.publish(|image| image.put_node(0, node));
    assert_eq!(sizes(&mut opened), [0]);
    change(&opened, 0, |node| node.registration.is_fenced = true);
    assert_eq!(sizes(&mut opened), [0, all]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reassignment_and_election_of_a_diskless_partition_are_refused_with_the_reason() {
    let mut opened = opened(true).await;
    for joins in [false, true] {
        if joins {
            join(&opened);
        }
        for replicas in [Some(vec![1]), None] {
            let cancels = replicas.is_none();
            let partitions = vec![ReassignablePartition { replicas, ..Default::default() }];
            let topics = vec![ReassignableTopic { name: Text::from(TOPIC), partitions, ..Default::default() }];
            let request = AlterPartitionReassignmentsRequest { topics, timeout_ms: 1000, ..Default::default() };
            let of = opened.call(&request, 0).responses[0].partitions[0].clone();
            let message = of.error_message.expect("a reason");
            if cancels {
                assert_eq!(of.error_code, ErrorCode::NO_REASSIGNMENT_IN_PROGRESS);
            } else {
                assert_eq!(of.error_code, ErrorCode::INVALID_REPLICA_ASSIGNMENT);
                assert!(message.starts_with("Topic t is diskless: "), "{message}");
            }
        }
        for election_type in [0, 1] {
            let named = vec![TopicPartitions { topic: Text::from(TOPIC), partitions: vec![0], ..Default::default() }];
            let elect = |topic_partitions| ElectLeadersRequest {
                election_type,
                topic_partitions,
                timeout_ms: 1000,
                ..Default::default()
            };
            let result =
                opened.call(&elect(Some(named)), 2).replica_election_results.remove(0).partition_result.remove(0);
            assert_eq!(result.error_code, ErrorCode::INVALID_REQUEST);
            assert!(result.error_message.is_some_and(|message| message.starts_with("Topic t is diskless: ")));
            assert_eq!(opened.call(&elect(None), 2).replica_election_results, []);
        }
        register(&opened, PartitionRegistration { replicas: vec![3, 1], isr: vec![1], ..Default::default() });
    }
}
