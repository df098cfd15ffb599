//! Topics of a cluster: which brokers have their replicas, and what changes while a broker is down.

use crate::workload::log_of;
use fullbore_tests::{Batch, Client, Cluster, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::create_topics::{CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::describe_cluster::{DescribeClusterRequest, DescribeClusterResponse};
use fullbore_wire::apis::list_config_resources::ListConfigResourcesRequest;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(120);

#[test]
fn topic_created_at_one_broker_is_served_by_all() {
    let cluster = Cluster::start(3, &[]);
    cluster.create("t", 6, 3, &[]);
    for id in 1..=3 {
        cluster.wait_for_isr(id, "t", 3);
        let leaders: Vec<i32> = cluster.partitions(id, "t").iter().map(|of| of.leader_id).collect();
        for leader in 1..=3 {
            assert_eq!(leaders.iter().filter(|id| **id == leader).count(), 2, "{leaders:?}");
        }
    }
    let mut producing = cluster.producing("t");
    (0..100).for_each(|number| producing.line(&number.to_string(), "v"));
    producing.finish();
    assert_eq!(cluster.consume("t").len(), 100);
}

#[test]
fn topic_recreated_during_an_absence_is_empty_at_the_broker_afterwards() {
    let mut cluster = Cluster::start(3, &[]);
    let write = |cluster: &Cluster, topic: &str, count: i32| {
        let mut producing = cluster.producing(topic);
        (0..count).for_each(|number| producing.line(&number.to_string(), "v"));
        producing.finish();
    };
    for topic in ["again", "gone"] {
        cluster.create(topic, 1, 3, &[]);
        write(&cluster, topic, 50);
    }
    cluster.broker(2).kill();
    cluster.wait_for_isr(1, "again", 2);
    for topic in ["again", "gone"] {
        cluster.run(&["topics", "delete", "--topic", topic]);
    }
    cluster.create("again", 1, 2, &[]);
    cluster.run(&["topics", "delete", "--topic", "again"]);
    cluster.broker(2).restart();
    cluster.create("again", 1, 3, &[]);
    write(&cluster, "again", 7);
    cluster.wait_for_isr(1, "again", 3);
    crate::workload::logs_are_equal(&mut cluster, "again", 1, &[1, 2, 3]);
    for id in 1..=3 {
        let directory = cluster.broker(id).partition_dir("gone", 0);
        wait_until("the deleted topic's directory is gone", Duration::from_secs(30), || !directory.exists());
    }
}

/// Creates a topic with one partition on the given brokers. The first of them leads.
pub fn create_on(client: &mut Client, topic: &str, broker_ids: &[i32]) {
    let assignment =
        CreatableReplicaAssignment { partition_index: 0, broker_ids: broker_ids.to_vec(), ..Default::default() };
    let topic = CreatableTopic {
        name: topic.to_owned().into(),
        num_partitions: -1,
        replication_factor: -1,
        assignments: vec![assignment],
        ..Default::default()
    };
    let created =
        client.call(&CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() }, 7);
    assert_eq!(created.topics[0].error_code, ErrorCode::NONE, "{:?}", created.topics[0].error_message);
}

/// Produces a batch and retries until the broker knows that it leads, as a client does. Returns the error code of the
/// last response.
pub fn answered_as_leader(client: &mut Client, topic: &str, batch: &Batch) -> ErrorCode {
    let mut code = ErrorCode::NONE;
    wait_until("it knows that it leads", SOON, || {
        code = client.produce(topic, 0, batch).error_code;
        ![ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, ErrorCode::NOT_LEADER_OR_FOLLOWER].contains(&code)
    });
    code
}

/// Returns the number of batches in a log, all of which must have the same length.
fn batches_of(log: &[u8]) -> usize {
    let length = |at: &[u8]| usize::try_from(u32::from_be_bytes(at.try_into().expect("4 bytes"))).expect("small");
    log.get(8..12).map_or(0, |at| log.len() / (12 + length(at)))
}

#[test]
fn recreated_topic_takes_the_batch_that_waited_for_replicas() {
    const TOPIC: &str = "waited";
    let mut cluster = Cluster::start(3, &[]);
    for (leader, next) in [(1, [1, 2]), (1, [2, 1])] {
        let mut client = Client::connect(cluster.address(leader));
        let id = client.init_producer_id();
        let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
        create_on(&mut client, TOPIC, &[leader, 2, 3]);
        assert_eq!(answered_as_leader(&mut client, TOPIC, &one(0)), ErrorCode::NONE);
        cluster.wait_for_isr(leader, TOPIC, 3);
        cluster.broker(3).freeze();
        let mut waiting = Client::connect(cluster.address(leader));
        waiting.send_produce(TOPIC, 0, &one(1));
        wait_until("it is on the other follower", SOON, || batches_of(&log_of(cluster.broker(2), TOPIC, 0)) == 2);
        client.delete_topic(TOPIC);
        assert!(waiting.receive_produced().error_code.is_err());
        create_on(&mut client, TOPIC, &next);
        let mut client = Client::connect(cluster.address(next[0]));
        assert_eq!(answered_as_leader(&mut client, TOPIC, &one(1)), ErrorCode::NONE, "led by {next:?}");
        cluster.broker(3).thaw();
        client.delete_topic(TOPIC);
    }
}

#[test]
fn topic_recreated_on_another_broker_takes_the_next_batch_of_a_producer() {
    const TOPIC: &str = "moved";
    let cluster = Cluster::start(2, &[]);
    let mut first = Client::connect(cluster.address(1));
    let mut second = Client::connect(cluster.address(2));
    let id = first.init_producer_id();
    let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    create_on(&mut first, TOPIC, &[1]);
    (0..3).for_each(|n| assert_eq!(answered_as_leader(&mut first, TOPIC, &one(n)), ErrorCode::NONE));
    wait_until("the other broker knows the topic", SOON, || !cluster.partitions(2, TOPIC).is_empty());
    first.delete_topic(TOPIC);
    create_on(&mut first, TOPIC, &[2]);
    assert_eq!(answered_as_leader(&mut second, TOPIC, &one(3)), ErrorCode::NONE);
    create_on(&mut first, "new", &[2]);
    assert_eq!(answered_as_leader(&mut second, "new", &one(3)), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
}

/// Regression: the new leader accepted any first sequence from a producer that started later. If the producer's second
/// batch arrived first, the leader then refused the first batch for ever.
#[test]
fn topic_recreated_on_another_broker_starts_a_later_producer_at_0() {
    const TOPIC: &str = "later";
    let mut cluster = Cluster::start(2, &[]);
    let mut first = Client::connect(cluster.address(1));
    let id = first.init_producer_id();
    let one = |id: i64, sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    create_on(&mut first, TOPIC, &[1]);
    (0..3).for_each(|n| assert_eq!(answered_as_leader(&mut first, TOPIC, &one(id, n)), ErrorCode::NONE));
    for leader in [2, 1, 2] {
        // Both brokers must know the former topic before it is deleted. Otherwise a broker would not know that the new
        // topic has a predecessor.
        cluster.wait_for_same_topic(TOPIC);
        first.delete_topic(TOPIC);
        create_on(&mut first, TOPIC, &[leader]);
        let snapshot = cluster.broker(leader).partition_dir(TOPIC, 0).join("00000000000000000000.snapshot");
        wait_until("the bound of producer ids is on the disk", SOON, || snapshot.exists());
        if leader == 2 {
            cluster.broker(2).kill();
            cluster.broker(2).restart();
            cluster.wait_for_brokers(&[1, 2]);
        }
        let mut client = Client::connect(cluster.address(leader));
        let late = first.init_producer_id();
        let answers = [17, 0, 1].map(|sequence| answered_as_leader(&mut client, TOPIC, &one(late, sequence)));
        assert_eq!(answers, [ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode::NONE, ErrorCode::NONE], "{leader}");
    }
    first.delete_topic(TOPIC);
    create_on(&mut first, TOPIC, &[1]);
    assert_eq!(answered_as_leader(&mut first, TOPIC, &one(id, 3)), ErrorCode::NONE, "it may have gone on elsewhere");
}

#[test]
fn returned_broker_leads_the_partitions_that_prefer_it() {
    let mut cluster = Cluster::start(3, &["leader.imbalance.check.interval.seconds=1"]);
    cluster.create("balanced", 6, 3, &[]);
    (1..=3).for_each(|id| cluster.wait_for_isr(id, "balanced", 3));
    cluster.broker(1).stop();
    wait_until("others lead", SOON, || {
        cluster.partitions(2, "balanced").iter().all(|of| of.leader_id != 1 && of.leader_id >= 0)
    });
    cluster.broker(1).restart();
    wait_until("each is led by its first replica", SOON, || {
        cluster.partitions(1, "balanced").iter().all(|of| Some(&of.leader_id) == of.replica_nodes.first())
    });
    let leads = |id| cluster.partitions(id, "balanced").iter().filter(|of| of.leader_id == 1).count();
    assert_eq!(leads(1), 2);
}

#[test]
fn every_broker_returns_all_brokers() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.wait_for_brokers(&[1, 2, 3]);
    let (of_broker, of_loggers) = (4, 8);
    for id in 1..=3 {
        let mut client = Client::connect(cluster.address(id));
        for kind in [of_broker, of_loggers] {
            let request = ListConfigResourcesRequest { resource_types: vec![kind], ..Default::default() };
            let listed = client.call(&request, 1).config_resources;
            let names: Vec<&str> = listed.iter().map(|resource| &*resource.resource_name).collect();
            assert_eq!(names, ["1", "2", "3"], "broker {id}");
        }
    }
    cluster.broker(3).kill();
    cluster.wait_for_brokers(&[1, 2]);
    let describe = |include_fenced_brokers, version| {
        let request = DescribeClusterRequest { endpoint_type: 1, include_fenced_brokers, ..Default::default() };
        Client::connect(cluster.address(1)).call(&request, version)
    };
    let shown = |response: &DescribeClusterResponse| -> Vec<(i32, bool)> {
        response.brokers.iter().map(|broker| (broker.broker_id, broker.is_fenced)).collect()
    };
    assert_eq!(shown(&describe(true, 2)), [(1, false), (2, false), (3, true)]);
    assert_eq!(shown(&describe(false, 2)), [(1, false), (2, false)]);
    assert_eq!(shown(&describe(false, 1)), [(1, false), (2, false)]);
}
