//! Tests with brokers that stop, lag, lose their connections, and return.

use super::*;
use fullbore_tests::Batch;
use fullbore_wire::ErrorCode;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Settings with a maximum lag that a stopped follower soon exceeds. A running follower does not exceed it, even on a
/// busy machine.
const SHORT_LAG: &str = "replica.lag.time.max.ms=2000\nreplica.fetch.wait.max.ms=100";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returning_follower_ends_a_lack_of_in_sync_replicas() {
    // The stopped follower must still be in the ISR when the next batch arrives.
    let mut cluster = Cluster::start(3, "replica.lag.time.max.ms=6000\nreplica.fetch.wait.max.ms=100").await;
    let topic = cluster.topic("t", 1, &[("min.insync.replicas", "3")]).await;
    let client = cluster.client(1).await;
    acknowledged(&client, "t", 0, &batch(b"a")).await;
    cluster.stop_one(3).await;
    // The high watermark does not move while too few replicas are in sync (KIP-966).
    let late = produce_within(&client, "t", 0, -1, batch(b"b"), 1_000).await;
    assert_eq!(late, Err(ErrorCode::REQUEST_TIMED_OUT));
    cluster.isr_is("t", 0, vec![1, 2]).await;
    assert_eq!(produce(&client, "t", 0, -1, batch(b"c")).await, Err(ErrorCode::NOT_ENOUGH_REPLICAS));
    assert_eq!(metric(cluster.node(1), "fullbore_partitions_under_min_isr"), 1.0);
    produce(&client, "t", 0, 1, batch(b"d")).await.expect("appended");
    cluster.start_one(3).await;
    cluster.isr_is("t", 0, vec![1, 2, 3]).await;
    produce(&client, "t", 0, -1, batch(b"e")).await.expect("acknowledged");
    cluster.are_equal(&topic, 0).await;
    assert_eq!(metric(cluster.node(1), "fullbore_partitions_under_replicated"), 0.0);
    assert!(metric(cluster.node(1), "fullbore_isr_shrinks_total") >= 1.0);
    assert!(metric(cluster.node(1), "fullbore_isr_expands_total") >= 1.0);
    cluster.stop().await;
}

/// Produces to the current leader with acks=all until `stop` is set, and counts the batches in `count`. Returns the
/// values that were acknowledged.
async fn go_on(cluster: &Cluster, topic: &str, stop: &AtomicBool, count: &AtomicUsize) -> Vec<String> {
    let mut clients = BTreeMap::new();
    for id in 1..=3 {
        clients.insert(id, cluster.client(id).await);
    }
    let mut acknowledged = Vec::new();
    while !stop.load(SeqCst) {
        let leader = cluster.registered(topic, 0).leader.unwrap_or(1);
        let value = format!("value {}", acknowledged.len());
        let done = produce(&clients[&leader], topic, 0, -1, batch(value.as_bytes())).await;
        if done.is_ok() {
            acknowledged.push(value);
            count.store(acknowledged.len(), SeqCst);
        }
    }
    acknowledged
}

fn values(cluster: &Cluster, id: i32, topic: &fullbore_control::Topic) -> String {
    String::from_utf8_lossy(&bytes_of(&cluster.replica(id, topic, 0))).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deposed_leader_truncates_unreplicated_records_while_the_producer_continues() {
    // Do not shorten `replica.lag.time.max.ms` here. Otherwise the old leader would soon request an ISR without the
    // followers, and notice that it is deposed.
    let mut cluster = Cluster::start(3, "replica.fetch.wait.max.ms=100").await;
    let topic = cluster.topic("t", 1, &[("min.insync.replicas", "2")]).await;
    let client = cluster.client(1).await;
    produce(&client, "t", 0, -1, batch(b"first")).await.expect("acknowledged");
    // The leader does not notice that it is deposed, and accepts records that no follower fetches.
    cluster.deafen(1).await;
    cluster.fence(1).await;
    assert_ne!(cluster.registered("t", 0).leader, Some(1));
    for number in 0..10 {
        produce(&client, "t", 0, 1, batch(format!("lost {number}").as_bytes())).await.expect("appended");
    }
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let producing = go_on(&cluster, "t", &stop, &count);
    let meanwhile = async {
        eventually("records are acknowledged without it", || count.load(SeqCst) > 10).await;
        stop.store(true, SeqCst);
    };
    let (mut acknowledged, ()) = tokio::join!(producing, meanwhile);
    assert!(values(&cluster, 1, &topic).contains("first"));
    cluster.listen(1);
    cluster.unfence(1).await;
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let producing = go_on(&cluster, "t", &stop, &count);
    let meanwhile = async {
        cluster.isr_is("t", 0, vec![1, 2, 3]).await;
        cluster.elect_preferred("t", 0).await;
        let before = count.load(SeqCst);
        eventually("records are acknowledged by it", || count.load(SeqCst) > before + 10).await;
        stop.store(true, SeqCst);
    };
    let (after, ()) = tokio::join!(producing, meanwhile);
    assert_eq!(cluster.registered("t", 0).leader, Some(1));
    assert!(acknowledged.len() > 10 && after.len() > 10, "{} and {}", acknowledged.len(), after.len());
    acknowledged.extend(after);
    cluster.are_equal(&topic, 0).await;
    let log = values(&cluster, 1, &topic);
    assert!(!log.contains("lost"), "what was not acknowledged is cut off");
    for value in &acknowledged {
        assert!(log.contains(value.as_str()), "{value} was acknowledged");
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topic_recreated_while_a_follower_gets_no_metadata_reaches_that_follower() {
    let mut cluster = Cluster::start(3, SHORT_LAG).await;
    let old = cluster.topic("t", 1, &[]).await;
    let client = cluster.client(1).await;
    for _ in 0..20 {
        produce(&client, "t", 0, -1, batch(b"of the old one")).await.expect("acknowledged");
    }
    cluster.deafen(3).await;
    cluster.delete(&old).await;
    let new = cluster.topic("t", 1, &[]).await;
    produce(&client, "t", 0, 1, batch(b"of the new one")).await.expect("appended");
    cluster.isr_is("t", 0, vec![1, 2]).await;
    cluster.listen(3);
    cluster.isr_is("t", 0, vec![1, 2, 3]).await;
    produce(&client, "t", 0, -1, batch(b"of the new one")).await.expect("acknowledged");
    cluster.are_equal(&new, 0).await;
    assert!(!values(&cluster, 3, &new).contains("old"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_that_ends_before_the_leaders_log_start_restarts_there() {
    let mut cluster = Cluster::start(3, SHORT_LAG).await;
    let topic = cluster.topic("t", 1, &[]).await;
    let client = cluster.client(1).await;
    for _ in 0..10 {
        produce(&client, "t", 0, -1, batch(b"v")).await.expect("acknowledged");
    }
    cluster.stop_one(3).await;
    for _ in 0..10 {
        produce(&client, "t", 0, -1, batch(b"v")).await.expect("acknowledged");
    }
    cluster.isr_is("t", 0, vec![1, 2]).await;
    cluster.replica(1, &topic, 0).delete_records_before(15).expect("moved");
    cluster.start_one(3).await;
    cluster.isr_is("t", 0, vec![1, 2, 3]).await;
    produce(&client, "t", 0, -1, batch(b"v")).await.expect("acknowledged");
    cluster.are_equal(&topic, 0).await;
    let offsets = cluster.replica(3, &topic, 0).offsets().expect("open");
    assert_eq!((offsets.log_start, offsets.log_end), (15, 21));
    cluster.stop().await;
}

/// The leader's log cannot be opened, because a directory has the name of its segment. A lack of file descriptors would
/// have the same effect. Clients do not use the partition, so only the follower's fetches request the opening. Once the
/// directory is removed, the follower must join the ISR.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_that_its_leader_could_not_open_is_followed_once_it_can_be_opened() {
    let mut cluster = Cluster::start(2, SHORT_LAG).await;
    let topic = cluster.topic("t", 1, &[]).await;
    let client = cluster.client(1).await;
    produce(&client, "t", 0, -1, batch(b"v")).await.expect("acknowledged");
    cluster.stop_one(2).await;
    produce(&client, "t", 0, 1, batch(b"v")).await.expect("appended");
    cluster.isr_is("t", 0, vec![1]).await;
    let segment = cluster.directory(1).join("t-0/00000000000000000000.log");
    let aside = segment.with_extension("aside");
    cluster.stop_one(1).await;
    std::fs::rename(&segment, &aside).expect("moved");
    std::fs::create_dir(&segment).expect("made");
    let began = std::time::Instant::now();
    cluster.start_one(1).await;
    cluster.start_one(2).await;
    // The second failure proves that a fetch of the follower has requested the opening again.
    let failed = |since| cluster.replica(1, &topic, 0).open_failure_since(since).is_some();
    eventually("it cannot be opened", || failed(began)).await;
    let again = std::time::Instant::now();
    eventually("it cannot be opened once more", || failed(again)).await;
    std::fs::remove_dir(&segment).expect("removed");
    std::fs::rename(&aside, &segment).expect("moved back");
    cluster.isr_is("t", 0, vec![1, 2]).await;
    cluster.stop().await;
}

/// Kafka Streams deletes records of its repartition topics at arbitrary offsets, so a log may start in the middle of a
/// batch. A lagging follower must then receive this batch completely.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_restarts_with_the_whole_batch_that_its_leader_has_deleted_in_part() {
    let mut cluster = Cluster::start(3, SHORT_LAG).await;
    let topic = cluster.topic("t", 1, &[]).await;
    let client = cluster.client(1).await;
    let ten = || Batch::at(1, &["v"; 10]).bytes();
    produce(&client, "t", 0, -1, ten()).await.expect("acknowledged");
    cluster.stop_one(3).await;
    for _ in 0..2 {
        produce(&client, "t", 0, -1, ten()).await.expect("acknowledged");
    }
    cluster.isr_is("t", 0, vec![1, 2]).await;
    cluster.replica(1, &topic, 0).delete_records_before(15).expect("moved");
    cluster.start_one(3).await;
    cluster.isr_is("t", 0, vec![1, 2, 3]).await;
    produce(&client, "t", 0, -1, ten()).await.expect("acknowledged");
    cluster.are_equal(&topic, 0).await;
    let offsets = cluster.replica(3, &topic, 0).offsets().expect("open");
    assert_eq!((offsets.log_start, offsets.log_end), (15, 40));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn isr_change_of_unknown_outcome_is_requested_again() {
    let mut cluster = Cluster::start(3, SHORT_LAG).await;
    cluster.topic("t", 1, &[]).await;
    let client = cluster.client(1).await;
    produce(&client, "t", 0, -1, batch(b"v")).await.expect("acknowledged");
    cluster.stop_one(3).await;
    cluster.lose_the_next_commit();
    produce(&client, "t", 0, -1, batch(b"v")).await.expect("acknowledged by those in sync");
    cluster.isr_is("t", 0, vec![1, 2]).await;
    cluster.stop().await;
}
