//! A broker that cannot reach the database, while the other brokers can, or cannot either.

use crate::faults::{ALL, TOPIC, with_topic};
use crate::frozen::epochs_of;
use fullbore_tests::{Batch, Client, Cluster, ClusterPlan, Link, wait_until};
use fullbore_wire::apis::find_coordinator::{Coordinator, FindCoordinatorRequest};
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use fullbore_wire::{ErrorCode, Text};
use std::time::{Duration, Instant};

const SESSION: &str = "broker.session.timeout.ms=3000";
const SESSION_MAX: Duration = Duration::from_secs(3);
const SOON: Duration = Duration::from_secs(120);
/// The timestamp in ListOffsets that stands for the log end.
const LATEST: i64 = -1;
/// The broker that is cut off.
const CUT_OFF: i32 = 1;
const OTHER: i32 = 2;

fn coordinator(cluster: &Cluster, id: i32, group: &str) -> Coordinator {
    let request = FindCoordinatorRequest { coordinator_keys: vec![Text::from(group)], ..Default::default() };
    Client::connect(cluster.address(id)).call(&request, 4).coordinators.remove(0)
}

/// Returns a group that the broker [`CUT_OFF`] coordinates.
fn group(cluster: &Cluster) -> String {
    let mut found = None;
    wait_until("the broker coordinates a group", SOON, || {
        let mut groups = (0..40).map(|number| format!("g{number}"));
        found = groups.find(|group| coordinator(cluster, OTHER, group).node_id == CUT_OFF);
        found.is_some()
    });
    found.expect("found")
}

fn join(group: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: Text::from(group),
        session_timeout_ms: 300_000,
        rebalance_timeout_ms: 300_000,
        protocol_type: Text::from("consumer"),
        protocols: vec![JoinGroupRequestProtocol { name: Text::from("range"), ..Default::default() }],
        ..Default::default()
    }
}

/// Returns the partition that the broker [`CUT_OFF`] leads.
fn led(cluster: &Cluster) -> i32 {
    let partitions = cluster.partitions(OTHER, TOPIC);
    partitions.iter().find(|of| of.leader_id == CUT_OFF).expect("each broker leads one").partition_index
}

/// Checks that the broker, which stands down, sends clients to the other brokers.
fn sends_clients_on(cluster: &Cluster, partition: i32, group: &str) {
    let mut client = Client::connect(cluster.address(CUT_OFF));
    let shown = client.metadata(&[TOPIC, "unknown"]);
    assert!(shown.brokers.iter().all(|broker| broker.node_id != CUT_OFF), "{:?}", shown.brokers);
    let of_led = shown.topics[0].partitions.iter().find(|of| of.partition_index == partition).expect("shown");
    assert_eq!((of_led.error_code, of_led.leader_id), (ErrorCode::LEADER_NOT_AVAILABLE, -1));
    assert_eq!(shown.topics[1].error_code, ErrorCode::LEADER_NOT_AVAILABLE, "newer metadata may have it");
    assert_eq!(client.list_offset(TOPIC, partition, LATEST).error_code, ErrorCode::NOT_LEADER_OR_FOLLOWER);
    assert_eq!(client.fetch(TOPIC, partition, 0).error_code, ErrorCode::NOT_LEADER_OR_FOLLOWER);
    assert_eq!(client.call(&join(group), 3).error_code, ErrorCode::NOT_COORDINATOR);
    assert_eq!(coordinator(cluster, CUT_OFF, group).error_code, ErrorCode::COORDINATOR_NOT_AVAILABLE);
}

#[test]
fn broker_cut_off_from_the_database_alone_sends_clients_to_the_others() {
    let mut cluster = with_topic(ClusterPlan::new(3, &[SESSION]).linked().start());
    let (partition, group) = (led(&cluster), group(&cluster));
    let connect = |cluster: &Cluster| Client::connect(cluster.address(CUT_OFF));
    let [mut reader, mut producer, mut first, mut second] = [(); 4].map(|()| connect(&cluster));
    producer.set_read_timeout(SOON);
    assert_eq!(producer.produced(TOPIC, partition, &Batch::of(&["before"])), 0);
    reader.set_read_timeout(SOON);
    let mut joined = first.call(&join(&group), 3).error_code;
    wait_until("the first member has joined", SOON, || {
        joined == ErrorCode::NONE || {
            joined = first.call(&join(&group), 3).error_code;
            false
        }
    });
    second.set_read_timeout(SOON);
    // The group waits until the first member joins again.
    second.send(&join(&group), 3);

    cluster.links().to_database(CUT_OFF, Link::Cut);
    let successor = cluster.wait_for_leader(OTHER, TOPIC, partition, CUT_OFF);
    reader.send_long_poll(TOPIC, partition, 1);
    wait_until("the former leader refuses records", SOON, || {
        let refused = producer.produce(TOPIC, partition, &Batch::of(&["to the former leader"])).error_code;
        assert_ne!(refused, ErrorCode::NONE);
        refused == ErrorCode::NOT_LEADER_OR_FOLLOWER
    });
    let (_, answer) = second.receive::<JoinGroupRequest>(3);
    let has_left = [ErrorCode::NOT_COORDINATOR, ErrorCode::COORDINATOR_NOT_AVAILABLE];
    assert!(has_left.contains(&answer.error_code), "{:?}", answer.error_code);
    let answer = reader.receive_long_poll().error_code;
    assert!([ErrorCode::NONE, ErrorCode::NOT_LEADER_OR_FOLLOWER].contains(&answer), "{answer:?}");
    sends_clients_on(&cluster, partition, &group);
    let mut client = Client::connect(cluster.address(successor));
    assert_eq!(client.produced(TOPIC, partition, &Batch::of(&["after"])), 1);
    assert!(cluster.broker(CUT_OFF).stderr().contains("the other brokers have fenced this broker"));

    cluster.links().heal();
    cluster.wait_for_brokers(&ALL);
    cluster.wait_for_isr(CUT_OFF, TOPIC, 3);
    cluster.broker(CUT_OFF).wait_for_stderr("no longer stands down");
    cluster.run(&["topics", "elect-leaders", "--all-topic-partitions"]);
    wait_until("the broker leads again", SOON, || {
        connect(&cluster).produce(TOPIC, partition, &Batch::of(&["healed"])).error_code == ErrorCode::NONE
    });
    let coordinates = |id| coordinator(&cluster, id, &group).node_id >= 0;
    assert!(ALL.into_iter().all(coordinates));
}

/// The brokers go on without the database. So none of them stands down.
#[test]
fn database_cut_off_from_all_brokers_stops_none_of_them() {
    let mut cluster = with_topic(ClusterPlan::new(3, &[SESSION]).linked().start());
    let epochs = epochs_of(&cluster, CUT_OFF, TOPIC);
    let partition = led(&cluster);
    ALL.iter().for_each(|id| cluster.links().to_database(*id, Link::Cut));
    for id in ALL {
        cluster.broker(id).wait_for_stderr("cannot send heartbeats to the database");
    }
    let cut = Instant::now();
    let mut client = Client::connect(cluster.address(CUT_OFF));
    wait_until("all sessions are over", SOON, || {
        client.produced(TOPIC, partition, &Batch::of(&["without a database"]));
        cut.elapsed() > 3 * SESSION_MAX
    });
    for id in ALL {
        assert_eq!(epochs_of(&cluster, id, TOPIC), epochs);
        assert!(cluster.partitions(id, TOPIC).iter().all(|of| of.leader_id >= 0));
        assert!(!cluster.broker(id).stderr().contains("have fenced this broker"));
    }
    cluster.links().heal();
    cluster.wait_for_isr(OTHER, TOPIC, 3);
    client.produced(TOPIC, partition, &Batch::of(&["with it again"]));
}
