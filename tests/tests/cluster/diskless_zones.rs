//! Diskless topics for clients in several zones. Each client is given leaders in its own zone, while every broker
//! serves every partition.

use fullbore_tests::{Batch, Client, Cluster, ClusterPlan, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::describe_log_dirs::DescribeLogDirsRequest;
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic, MetadataResponsePartition};
use std::collections::BTreeSet;
use std::time::Duration;

const TOPIC: &str = "diskless";
const PARTITIONS: i32 = 24;
const SOON: Duration = Duration::from_secs(60);

/// Starts brokers 1 and 2 in zone a, and 3 and 4 in zone b. Returns the cluster and the directory of the common store.
fn started() -> (Cluster, tempfile::TempDir) {
    let store = tempfile::tempdir().expect("a directory");
    let set = format!("diskless.storage={}", store.path().display());
    let mut plan = ClusterPlan::new(4, &[&set]);
    for (index, zone) in ["a", "a", "b", "b"].into_iter().enumerate() {
        plan.set(index, "broker.rack", zone);
    }
    (plan.start(), store)
}

/// Returns the partitions that the broker `id` lists to a client with this client id.
fn reported(cluster: &Cluster, id: i32, client_id: &str) -> Vec<MetadataResponsePartition> {
    let topics = Some(vec![MetadataRequestTopic { name: Some(TOPIC.into()), ..Default::default() }]);
    let request = MetadataRequest { topics, allow_auto_topic_creation: false, ..Default::default() };
    Client::connect_as(cluster.address(id), client_id).call(&request, 12).topics.remove(0).partitions
}

fn leaders(cluster: &Cluster, id: i32, client_id: &str) -> BTreeSet<i32> {
    reported(cluster, id, client_id).iter().map(|partition| partition.leader_id).collect()
}

#[test]
fn all_brokers_return_the_same_leaders_for_a_zone_without_failed_brokers() {
    let (mut cluster, _store) = started();
    cluster.create(TOPIC, PARTITIONS, 1, &["diskless.enable=true", "min.insync.replicas=3"]);
    for (client_id, expected) in [("app,diskless_az=a", &[1, 2][..]), ("inkless_az=b", &[3, 4]), ("app", &[1, 2, 3, 4])]
    {
        wait_until("all tell the same", SOON, || {
            let all: Vec<_> = (1..=4).map(|id| reported(&cluster, id, client_id)).collect();
            all[0].len() == 24 && all.iter().all(|one| *one == all[0])
        });
        assert_eq!(leaders(&cluster, 1, client_id), expected.iter().copied().collect(), "{client_id}");
    }
    for partition in reported(&cluster, 2, "app") {
        assert_eq!((partition.replica_nodes.len(), partition.leader_epoch), (2, 0));
        assert_eq!(partition.isr_nodes, partition.replica_nodes);
    }
    for id in [3, 4] {
        cluster.broker(id).kill();
        let left: BTreeSet<i32> = if id == 3 { [4].into() } else { [1, 2].into() };
        wait_until("the dead one is left out", SOON, || leaders(&cluster, 1, "inkless_az=b") == left);
    }
    for partition in reported(&cluster, 1, "app") {
        assert_eq!((partition.error_code, partition.offline_replicas), (ErrorCode::NONE, vec![]));
        assert_eq!(partition.isr_nodes, partition.replica_nodes);
    }
    for flag in ["--under-replicated-partitions", "--unavailable-partitions", "--under-min-isr-partitions"] {
        let shown = cluster.run(&["topics", "describe", "--topic", TOPIC, flag]);
        assert!(!shown.contains(TOPIC), "{flag}: {shown}");
    }
}

#[test]
fn any_broker_accepts_and_returns_batches() {
    let (cluster, _store) = started();
    cluster.create(TOPIC, 1, 1, &["diskless.enable=true"]);
    for id in cluster.ids() {
        let mut client = Client::connect(cluster.address(id));
        let batch = Batch::of(&[id.to_string()]);
        wait_until("it takes a batch", SOON, || client.produce(TOPIC, 0, &batch).error_code == ErrorCode::NONE);
    }
    let texts =
        |client: &mut Client| client.fetch_records(TOPIC, 0).iter().map(|of| of.text()).collect::<BTreeSet<_>>();
    for id in cluster.ids() {
        let mut client = Client::connect(cluster.address(id));
        wait_until("it shows all of them", SOON, || texts(&mut client).len() == 4);
    }
    let stores = |id: i32| {
        let request = DescribeLogDirsRequest { topics: None, ..Default::default() };
        Client::connect(cluster.address(id)).call(&request, 4).results.len()
    };
    assert_eq!(cluster.ids().map(stores).collect::<Vec<_>>(), [2, 1, 1, 1], "one tells of the store");
}

#[test]
fn cluster_without_a_store_names_the_setting() {
    let cluster = Cluster::start(2, &[]);
    let refused = cluster.refused(&["topics", "create", "--topic", TOPIC, "--config", "diskless.enable=true"]);
    assert!(refused.contains("needs diskless.storage to be set in a cluster"), "{refused}");
    cluster.create("classic", 1, 2, &[]);
}

#[test]
fn clients_are_not_directed_to_a_broker_without_a_store() {
    let store = tempfile::tempdir().expect("a directory");
    let storage = format!("diskless.storage={}", store.path().display());
    let mut plan = ClusterPlan::new(3, &[]);
    (0..2).for_each(|index| plan.set(index, "diskless.storage", store.path().to_str().expect("a path")));
    let mut cluster = plan.start();
    cluster.broker(1).client().create_topic(TOPIC, PARTITIONS, &[("diskless.enable", "true")]);
    for id in 1..=3 {
        wait_until("all tell of those that have it", SOON, || leaders(&cluster, id, "app") == [1, 2].into());
    }
    cluster.broker(3).wait_for_stderr("cannot serve a diskless topic");
    let mut client = cluster.broker(3).client();
    assert_eq!(client.produce(TOPIC, 0, &Batch::of(&["a"])).error_code, ErrorCode::NOT_LEADER_OR_FOLLOWER);
    assert_eq!(client.fetch(TOPIC, 0, 0).error_code, ErrorCode::NOT_LEADER_OR_FOLLOWER);
    assert_eq!(client.fetch(TOPIC, 24, 0).error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    cluster.broker(3).stop();
    let sets: Vec<String> = cluster.sets_of(3).iter().cloned().chain([storage]).collect();
    cluster.broker(3).restart_with(&sets.iter().map(String::as_str).collect::<Vec<_>>());
    wait_until("they are led to it, too", SOON, || leaders(&cluster, 1, "app") == [1, 2, 3].into());
    assert_eq!(cluster.broker(3).client().produce(TOPIC, 0, &Batch::of(&["a"])).error_code, ErrorCode::NONE);
}
