//! A broker that alone has lost the database stands down, once its peers have fenced it.

use super::*;
use crate::membership::cut_off::CutOff;
use crate::replication::client as between_brokers;
use fullbore_control::{CreateTopic, CreateTopics, HeartbeatAnswer};
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};
use fullbore_wire::{ErrorCode, Text};
use tokio::sync::watch;

/// Creates a topic whose only replica broker 1 has.
async fn create_alone(cluster: &Cluster, name: &str) {
    let topic = CreateTopic {
        name: name.to_owned(),
        num_partitions: -1,
        replication_factor: -1,
        assignments: vec![(0, vec![1])],
        ..Default::default()
    };
    let requested = CreateTopics { topics: vec![topic], validate_only: false };
    cluster.any().metadata.control.create_topics(requested).await.remove(0).expect("created");
    cluster.receive().await;
}

/// Returns the brokers in a Metadata response of broker 1, and the error and leader of each topic's first partition.
async fn shown(cluster: &Cluster, topics: &[&str]) -> (Vec<i32>, Vec<(ErrorCode, i32)>) {
    let named = |name: &&str| MetadataRequestTopic { name: Some(Text::from(*name)), ..Default::default() };
    let request = MetadataRequest { topics: Some(topics.iter().map(named).collect()), ..Default::default() };
    let response = cluster.client(1).await.call(&request).await.expect("answered");
    let led = response.topics.iter().map(|topic| match topic.partitions.first() {
        Some(partition) => (partition.error_code, partition.leader_id),
        None => (topic.error_code, -1),
    });
    (response.brokers.iter().map(|broker| broker.node_id).collect(), led.collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_that_alone_has_lost_the_database_stands_down_until_it_is_back() {
    let mut cluster = Cluster::start(3, "broker.session.timeout.ms=100\nauto.create.topics.enable=true").await;
    let topic = cluster.topic("t", 1, &[]).await;
    create_alone(&cluster, "alone").await;
    let client = cluster.client(1).await;
    acknowledged(&client, "t", 0, &batch(b"a")).await;
    acknowledged(&client, "alone", 0, &batch(b"a")).await;
    cluster.deafen(1).await;
    cluster.fence(1).await;
    let waits = {
        let client = client.clone();
        tokio::spawn(async move { produce_within(&client, "t", 0, -1, batch(b"b"), 100_000).await })
    };
    let replica = cluster.replica(1, &topic, 0);
    eventually("the record waits for its replicas", || replica.offsets().expect("open").log_end >= 2).await;

    let metadata = std::sync::Arc::clone(&cluster.node(1).metadata);
    let control = &metadata.control;
    let (heartbeats, stop) = (watch::Sender::new(HeartbeatAnswer::default()), watch::Sender::new(false));
    let cut_off = CutOff::new(&metadata.config, control.clone(), between_brokers(&metadata.config));
    let watching = tokio::spawn(cut_off.run(heartbeats.subscribe(), stop.subscribe()));
    let refused = Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
    assert_eq!(waits.await.expect("no panic"), refused);
    assert_eq!(produce(&client, "t", 0, 1, batch(b"c")).await, refused);
    produce(&client, "alone", 0, -1, batch(b"b")).await.expect("no other broker can lead it");
    let missing = (ErrorCode::LEADER_NOT_AVAILABLE, -1);
    let of = shown(&cluster, &["t", "unknown"]).await;
    assert_eq!(of, (vec![2, 3], vec![missing, missing]));
    produce(&cluster.client(2).await, "t", 0, -1, batch(b"d")).await.expect("broker 2 leads");

    heartbeats.send_replace(HeartbeatAnswer::default());
    eventually("it has the newest metadata", || !control.image().stands_down()).await;
    assert!(control.image().node(1).expect("known").registration.is_fenced);
    stop.send_replace(true);
    watching.await.expect("no panic");
    cluster.listen(1);
    cluster.unfence(1).await;
    cluster.isr_is("t", 0, vec![1, 2, 3]).await;
    cluster.elect_preferred("t", 0).await;
    produce(&client, "t", 0, -1, batch(b"e")).await.expect("broker 1 leads again");
    cluster.are_equal(&topic, 0).await;
    cluster.stop().await;
}
