//! Tests that the logs of followers become identical to the leader's log.

use super::*;
use fullbore_wire::ErrorCode;
use fullbore_wire::Uuid;
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchTopic, ReplicaState};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_acknowledged_with_acks_all_are_in_all_three_logs() {
    let cluster = Cluster::start(3, "").await;
    let topic = cluster.topic("t", 2, &[("min.insync.replicas", "3")]).await;
    let client = cluster.client(1).await;
    for number in 0..200_i64 {
        let offset = produce(&client, "t", 0, -1, batch(number.to_string().as_bytes())).await;
        assert_eq!(offset, Ok(number));
    }
    for id in 1..=3 {
        assert_eq!(cluster.replica(id, &topic, 0).offsets().expect("open").log_end, 200, "broker {id}");
    }
    cluster.are_equal(&topic, 0).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_concurrent_batches_and_new_topics_reach_all_logs() {
    let settings = "replica.fetch.max.bytes=100000\nreplica.fetch.response.max.bytes=300000\nnum.replica.fetchers=2";
    let cluster = Cluster::start(3, settings).await;
    let topic = cluster.topic("t", 3, &[("segment.bytes", "2000000")]).await;
    let mut producing = Vec::new();
    for index in 0..3 {
        let leader = cluster.registered("t", index).leader.expect("it is led");
        for producer in 0..8_u8 {
            let client = cluster.client(leader).await;
            producing.push(tokio::spawn(async move {
                for size in [100, 30_000, 150_000].into_iter().cycle().take(24) {
                    produce(&client, "t", index, -1, batch(&vec![producer; size])).await.expect("acknowledged");
                }
            }));
        }
    }
    for number in 0..5 {
        let name = format!("u{number}");
        cluster.topic(&name, 3, &[]).await;
        let client = cluster.client(cluster.registered(&name, 1).leader.expect("it is led")).await;
        produce(&client, &name, 1, -1, batch(b"v")).await.expect("acknowledged");
    }
    for producing in producing {
        producing.await.expect("no panic");
    }
    for index in 0..3 {
        cluster.are_equal(&topic, index).await;
        assert_eq!(cluster.registered("t", index).isr.len(), 3);
    }
    assert!(metric(cluster.node(1), "fullbore_replication_in_bytes_total") > 1e6);
    assert!(metric(cluster.node(1), "fullbore_replication_out_bytes_total") > 1e6);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flush_messages_puts_acknowledged_batches_on_the_disk_of_all_replicas() {
    let wait = Duration::from_secs(5);
    let cluster = Cluster::start(3, "replica.fetch.wait.max.ms=5000").await;
    let topic = cluster.topic("t", 1, &[("flush.messages", "1"), ("min.insync.replicas", "3")]).await;
    let client = cluster.client(1).await;
    let began = Instant::now();
    for number in 0..50_i64 {
        let offset = produce(&client, "t", 0, -1, batch(b"v")).await;
        assert_eq!(offset, Ok(number));
        for id in 1..=3 {
            let flushed = cluster.replica(id, &topic, 0).noted().expect("open").recovery_point;
            assert!(flushed > number, "broker {id} has flushed up to {flushed}");
        }
    }
    assert!(began.elapsed() < 20 * wait, "an acknowledgement waits for no other answer");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_idle_partitions_cost_few_requests() {
    let cluster = Cluster::start(3, "").await;
    let topic = cluster.topic("t", 1000, &[]).await;
    // The last partitions are replicated only after every partition was in a fetch.
    for index in 990..1000 {
        let client = cluster.client(cluster.registered("t", index).leader.expect("it is led")).await;
        produce(&client, "t", index, -1, batch(b"v")).await.expect("acknowledged");
        cluster.are_equal(&topic, index).await;
    }
    let count = |name: &str| (1..=3).map(|id| metric(cluster.node(id), name)).sum::<f64>();
    let fetches = || count("fullbore_request_duration_seconds_count{api=\"Fetch\"}");
    let bytes = || count("fullbore_response_bytes_total{api=\"Fetch\"}");
    // Right after the appends, fetches still list partitions, so they follow each other faster. So the measurement
    // restarts until it counts at most 40 fetches within its two seconds.
    let (mut before, mut since) = ((fetches(), bytes()), Instant::now());
    let until = since + Duration::from_secs(120);
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if fetches() - before.0 > 40.0 {
            (before, since) = ((fetches(), bytes()), Instant::now());
        }
        if since.elapsed() > Duration::from_secs(2) {
            break;
        }
        assert!(Instant::now() < until, "there is no rest");
    }
    // Each of the six fetchers gets a response every half second, so about 24 fetches are expected in two seconds.
    assert!(fetches() - before.0 <= 40.0, "{}", fetches() - before.0);
    assert!(bytes() - before.1 <= 20_000.0, "{}", bytes() - before.1);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthorized_replica_fetches_do_not_move_the_high_watermark() {
    let settings = "listeners=PLAINTEXT://127.0.0.1:0,IN://127.0.0.1:0\nlistener.security.protocol.map=IN:PLAINTEXT\n\
                    inter.broker.listener.name=IN";
    let mut cluster = Cluster::start(2, settings).await;
    let topic = cluster.topic("t", 1, &[]).await;
    let process = cluster.node(2).metadata.control.process();
    cluster.stop_one(2).await;
    let client = cluster.client(1).await;
    produce(&client, "t", 0, 1, batch(b"v")).await.expect("appended");
    let replica_epoch = cluster.node(1).metadata.control.image().node(2).expect("known").registration.epoch;
    let fetch = |process: Uuid, replica_epoch: i64| {
        let partition = FetchPartition { fetch_offset: 1, partition_max_bytes: 1, ..Default::default() };
        FetchRequest {
            replica_state: ReplicaState { replica_id: 2, replica_epoch, ..Default::default() },
            session_epoch: 0,
            topics: vec![FetchTopic { topic_id: topic.id, partitions: vec![partition], ..Default::default() }],
            process,
            ..Default::default()
        }
    };
    let between = cluster.client_between(1).await;
    for (client, process, epoch, code) in [
        (&between, Uuid::ZERO, replica_epoch, ErrorCode::CLUSTER_AUTHORIZATION_FAILED),
        (&between, Uuid([7; 16]), replica_epoch, ErrorCode::CLUSTER_AUTHORIZATION_FAILED),
        (&between, Uuid([7; 16]), replica_epoch + 1, ErrorCode::BROKER_ID_NOT_REGISTERED),
        (&between, process, replica_epoch - 1, ErrorCode::STALE_BROKER_EPOCH),
        (&client, process, replica_epoch, ErrorCode::CLUSTER_AUTHORIZATION_FAILED),
    ] {
        let response = client.call_version(&fetch(process, epoch), 18).await.expect("answered");
        assert_eq!((response.error_code, response.responses.len()), (code, 0));
    }
    assert_eq!(cluster.replica(1, &topic, 0).offsets().expect("open").high_watermark, 0);
    let response = between.call_version(&fetch(process, replica_epoch), 18).await.expect("answered");
    assert_eq!(response.error_code, ErrorCode::NONE, "and the broker itself is let in");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replication_over_a_tls_listener_of_its_own_makes_logs_equal() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("an address");
    let certificate = names.self_signed(&key).expect("a certificate").pem();
    let (both, trusted) = (directory.path().join("both.pem"), directory.path().join("trusted.pem"));
    std::fs::write(&both, key.serialize_pem() + &certificate).expect("written");
    std::fs::write(&trusted, &certificate).expect("written");
    let settings = format!(
        "listeners=PLAINTEXT://127.0.0.1:0,IN://127.0.0.1:0\nlistener.security.protocol.map=IN:SSL\n\
         inter.broker.listener.name=IN\nlistener.name.in.ssl.keystore.location={}\n\
         listener.name.in.ssl.truststore.location={}\nlistener.name.in.ssl.client.auth=required",
        both.display(),
        trusted.display()
    );
    let cluster = Cluster::start(3, &settings).await;
    let topic = cluster.topic("t", 1, &[("min.insync.replicas", "3")]).await;
    let client = cluster.client(1).await;
    for size in [1, 100_000, 10] {
        produce(&client, "t", 0, -1, batch(&vec![7; size])).await.expect("acknowledged");
    }
    cluster.are_equal(&topic, 0).await;
    cluster.stop().await;
}

/// A failover first elects leaders for the partitions that are in use. So a partition to which clients write must also
/// count as in use on its followers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_written_at_its_leader_is_in_use_at_its_followers() {
    let cluster = Cluster::start(3, "").await;
    let topic = cluster.topic("t", 3, &[]).await;
    let leader = cluster.registered("t", 1).leader.expect("it is led");
    let client = cluster.client(leader).await;
    produce(&client, "t", 1, -1, batch(b"v")).await.expect("acknowledged");
    for id in 1..=3 {
        let is_alone = || cluster.node(id).partitions.in_use() == [(topic.id, 1)];
        eventually("it is in use, and the others are not", is_alone).await;
    }
    cluster.stop().await;
}
