//! Regression tests for bugs that were found by deliberate attacks.

use super::super::followed::{FollowedPartition, Naming, ResponseOutcome};
use super::super::lags::Lags;
use super::*;
use bytes::{Bytes, BytesMut};
use fullbore_client::tokio::Connection;
use fullbore_control::{AlterTopicConfig, AlterTopicConfigs, ConfigChange};
use fullbore_host::files::now_ms;
use fullbore_log::files::CLEAN_SHUTDOWN;
use fullbore_wire::apis::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use fullbore_wire::apis::fetch::PartitionData;
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use fullbore_wire::apis::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestTopic};
use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};
use fullbore_wire::{ErrorCode, Records, Text};
use std::time::Duration;

/// Settings with a maximum lag that a stopped follower soon exceeds. A running follower does not exceed it, even on a
/// busy machine.
const SHORT_LAG: &str = "replica.lag.time.max.ms=2000\nreplica.fetch.wait.max.ms=100";

/// Returns a batch of one record with a key.
fn keyed(key: &str, value: &str) -> Bytes {
    let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
    builder.append(1, Some(key.as_bytes()), Some(value.as_bytes()), &[]);
    builder.seal(Stamp::NONE).expect("sealed").0.freeze()
}

async fn set(cluster: &Cluster, topic: &str, key: &str, value: &str) {
    let changes = vec![(key.to_owned(), ConfigChange::Set(value.to_owned()))];
    let requested =
        AlterTopicConfigs { topics: vec![AlterTopicConfig { name: topic.to_owned(), changes }], validate_only: false };
    cluster.any().metadata.control.alter_topic_configs(requested).await.remove(0).expect("altered");
    cluster.receive().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_outside_the_isr_does_not_lead_after_min_insync_replicas_is_lowered() {
    let mut cluster = Cluster::start(3, SHORT_LAG).await;
    cluster.topic("t", 1, &[("min.insync.replicas", "2")]).await;
    let client = cluster.client(1).await;
    acknowledged(&client, "t", 0, &batch(b"a")).await;
    cluster.stop_one(3).await;
    produce(&client, "t", 0, 1, batch(b"b")).await.expect("appended");
    cluster.isr_is("t", 0, vec![1, 2]).await;
    cluster.stop_one(2).await;
    produce(&client, "t", 0, 1, batch(b"b")).await.expect("appended");
    cluster.isr_is("t", 0, vec![1]).await;
    assert_eq!(cluster.registered("t", 0).elr, [2]);
    set(&cluster, "t", "min.insync.replicas", "1").await;
    assert!(cluster.registered("t", 0).elr.is_empty());
    produce(&client, "t", 0, -1, batch(b"c")).await.expect("acknowledged by the only one in sync");
    cluster.fence(1).await;
    assert_eq!(cluster.registered("t", 0).leader, None, "nobody else has what was acknowledged");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_follower_of_a_compacted_log_rejoins_the_isr() {
    // Prevent the brokers' own cleaners from running before the test starts a cleaning.
    let mut cluster = Cluster::start(3, &format!("{SHORT_LAG}\nlog.cleaner.backoff.ms=3600000")).await;
    let compact = [("cleanup.policy", "compact"), ("segment.bytes", "1048576"), ("min.cleanable.dirty.ratio", "0.01")];
    cluster.topic("t", 1, &compact).await;
    cluster.stop_one(3).await;
    let client = cluster.client(1).await;
    let large = "v".repeat(120_000);
    for number in 0..30 {
        let key = if number % 10 == 0 { format!("{number}") } else { "k".to_owned() };
        produce(&client, "t", 0, -1, keyed(&key, &large)).await.expect("acknowledged");
    }
    for id in [1, 2] {
        cluster.isr_is("t", 0, vec![1, 2]).await;
        assert!(cluster.node(id).partitions.clean_dirtiest(now_ms()), "broker {id}");
    }
    // With larger segments, all records that remain after compaction fit into one segment of broker 3.
    set(&cluster, "t", "segment.bytes", "100000000").await;
    cluster.start_one(3).await;
    cluster.isr_is("t", 0, vec![1, 2, 3]).await;
    cluster.stop_one(3).await;
    std::fs::remove_file(cluster.directory(3).join(CLEAN_SHUTDOWN)).expect("removed");
    cluster.start_one(3).await;
    produce(&client, "t", 0, -1, keyed("k", "w")).await.expect("acknowledged");
    cluster.isr_is("t", 0, vec![1, 2, 3]).await;
    assert_eq!(cluster.node(3).partitions.refused_partitions(), 0);
    cluster.stop().await;
}

/// A timeout that is long enough on any machine.
const PATIENT_MS: i32 = 60_000;

async fn delete_records(client: &Connection, topic: &str, offset: i64, timeout_ms: i32) -> Result<i64, ErrorCode> {
    let partitions = vec![DeleteRecordsPartition { partition_index: 0, offset, ..Default::default() }];
    let topics = vec![DeleteRecordsTopic { name: Text::from(topic), partitions, ..Default::default() }];
    let request = DeleteRecordsRequest { topics, timeout_ms, ..Default::default() };
    let mut response = client.call_version(&request, 2).await.expect("answered");
    let answer = response.topics.remove(0).partitions.remove(0);
    if answer.error_code.is_err() { Err(answer.error_code) } else { Ok(answer.low_watermark) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_records_stay_deleted_under_another_leader() {
    let cluster = Cluster::start(3, "").await;
    let topic = cluster.topic("t", 1, &[]).await;
    let client = cluster.client(1).await;
    for _ in 0..20 {
        produce(&client, "t", 0, -1, batch(b"v")).await.expect("acknowledged");
    }
    cluster.are_equal(&topic, 0).await;
    for offset in [5, 15] {
        assert_eq!(delete_records(&client, "t", offset, PATIENT_MS).await, Ok(offset));
        for id in 1..=3 {
            assert_eq!(cluster.replica(id, &topic, 0).offsets().expect("open").log_start, offset, "broker {id}");
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_of_records_unknown_to_an_in_sync_replica_is_not_confirmed() {
    let mut cluster = Cluster::start(3, "replica.lag.time.max.ms=60000").await;
    cluster.topic("t", 1, &[]).await;
    let client = cluster.client(1).await;
    produce(&client, "t", 0, -1, batch(b"v")).await.expect("acknowledged");
    cluster.stop_one(3).await;
    assert_eq!(delete_records(&client, "t", 1, 2_000).await, Err(ErrorCode::REQUEST_TIMED_OUT));
    cluster.stop().await;
}

async fn committed(client: &Connection, group: &str, topic: &str) -> Result<i64, ErrorCode> {
    let topics =
        vec![OffsetFetchRequestTopic { name: Text::from(topic), partition_indexes: vec![0], ..Default::default() }];
    let request = OffsetFetchRequest { group_id: Text::from(group), topics: Some(topics), ..Default::default() };
    let mut response = client.call_version(&request, 7).await.expect("answered");
    if response.error_code.is_err() {
        return Err(response.error_code);
    }
    Ok(response.topics.remove(0).partitions.remove(0).committed_offset)
}

async fn commit(client: &Connection, group: &str, topic: &str, offset: i64) -> ErrorCode {
    let partition = OffsetCommitRequestPartition { committed_offset: offset, ..Default::default() };
    let topic = OffsetCommitRequestTopic { name: Text::from(topic), partitions: vec![partition], ..Default::default() };
    let request = OffsetCommitRequest { group_id: Text::from(group), topics: vec![topic], ..Default::default() };
    let mut response = client.call_version(&request, 8).await.expect("answered");
    response.topics.remove(0).partitions.remove(0).error_code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_offsets_are_returned_while_the_isr_is_too_small_for_commits() {
    let mut cluster = Cluster::start(3, SHORT_LAG).await;
    let internal = fullbore_control::CONSUMER_OFFSETS;
    let topic = cluster.topic(internal, 1, &[("cleanup.policy", "compact"), ("min.insync.replicas", "2")]).await;
    cluster.topic("t", 1, &[]).await;
    let client = cluster.client(1).await;
    while commit(&client, "g", "t", 7).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.are_equal(&topic, 0).await;
    cluster.stop_one(3).await;
    while cluster.registered(internal, 0).isr.len() > 2 {
        commit(&client, "g", "t", 7).await;
    }
    eventually("the second has everything", || {
        let offsets = cluster.replica(2, &topic, 0).offsets().expect("open");
        offsets.high_watermark == offsets.log_end
    })
    .await;
    cluster.fence(1).await;
    assert_eq!((cluster.registered(internal, 0).leader, cluster.registered(internal, 0).isr.len()), (Some(2), 1));
    let client = cluster.client(2).await;
    let reported = async {
        loop {
            match committed(&client, "g", "t").await {
                Ok(offset) => return offset,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    assert_eq!(tokio::time::timeout(Duration::from_secs(120), reported).await.expect("told"), 7);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_that_a_leader_can_no_longer_write_move_to_others() {
    let cluster = Cluster::start(3, "").await;
    let topic = cluster.topic("t", 2, &[]).await;
    let client = cluster.client(1).await;
    acknowledged(&client, "t", 0, &batch(b"v")).await;
    cluster.replica(1, &topic, 0).break_down();
    assert_eq!(produce(&client, "t", 0, 1, batch(b"v")).await, Err(ErrorCode::KAFKA_STORAGE_ERROR));
    eventually("another leads", || cluster.registered("t", 0).leader == Some(2)).await;
    cluster.receive().await;
    assert_eq!(cluster.registered("t", 0).isr, [2, 3]);
    let client = cluster.client(2).await;
    produce(&client, "t", 0, -1, batch(b"w")).await.expect("acknowledged");
    assert_eq!(cluster.registered("t", 1).isr.len(), 3, "the other is as it was");
    cluster.stop().await;
}

/// A write fails on broker 1, so its disk may lack acknowledged records. After its restart, broker 1 must not lead
/// until it has fetched all records again, even if it finds no damage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_with_a_failed_write_does_not_lead_before_it_has_all_records_again() {
    let mut cluster = Cluster::start(2, "").await;
    let topic = cluster.topic("t", 1, &[("min.insync.replicas", "2")]).await;
    let client = cluster.client(1).await;
    acknowledged(&client, "t", 0, &batch(b"v")).await;
    cluster.replica(1, &topic, 0).break_down();
    assert_eq!(produce(&client, "t", 0, 1, batch(b"v")).await, Err(ErrorCode::KAFKA_STORAGE_ERROR));
    eventually("the other leads", || cluster.registered("t", 0).leader == Some(2)).await;
    assert_eq!((cluster.registered("t", 0).isr.clone(), cluster.registered("t", 0).elr.len()), (vec![2], 0));
    let directory = cluster.directory(1).to_owned();
    cluster.stop_one(1).await;
    assert_eq!(fullbore_log::boot::previous_shutdown(&directory), fullbore_rules::cluster::PreviousShutdown::Lost);
    cluster.start_one(1).await;
    eventually("it is in sync again", || cluster.registered("t", 0).isr.len() == 2).await;
    cluster.stop().await;
}

/// Broker 2 stops first and stays in the ELR. Then broker 1, the leader, stops, and its log is damaged. When both
/// brokers have restarted, broker 2 must lead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_with_a_damaged_log_yields_to_a_complete_replica_that_comes_back() {
    let mut cluster = Cluster::start(2, "").await;
    cluster.topic("t", 1, &[("min.insync.replicas", "2")]).await;
    let client = cluster.client(1).await;
    for _ in 0..3 {
        acknowledged(&client, "t", 0, &batch(b"v")).await;
    }
    cluster.stop_one(2).await;
    cluster.fence(2).await;
    assert_eq!(cluster.registered("t", 0).elr, [2]);
    let directory = cluster.directory(1).to_owned();
    cluster.stop_one(1).await;
    for name in [".kafka_cleanshutdown", "recovery-point-offset-checkpoint"] {
        std::fs::remove_file(directory.join(name)).expect("there");
    }
    let log = directory.join("t-0/00000000000000000000.log");
    let mut bytes = std::fs::read(&log).expect("read");
    bytes[64] ^= 1;
    std::fs::write(&log, bytes).expect("written");
    cluster.start_one(1).await;
    cluster.start_one(2).await;
    eventually("the other leads", || cluster.registered("t", 0).leader == Some(2)).await;
    cluster.stop().await;
}

/// While records are being flushed, the follower receives a response without records, for example because the high
/// watermark has risen. After this response, the follower must not acknowledge the records before they are flushed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_without_records_does_not_acknowledge_unflushed_records() {
    let cluster = Cluster::start(2, "").await;
    let topic = cluster.topic("t", 1, &[("flush.messages", "1")]).await;
    let leader = cluster.registered("t", 0);
    assert_eq!((leader.leader, leader.isr.len()), (Some(1), 2));
    let lag = Lags::default().add((topic.id, 0));
    let mut followed = FollowedPartition::new((topic.id, 0), cluster.replica(2, &topic, 0), leader.leader_epoch, lag);
    let Naming::This(named) = followed.name(1, 1 << 20) else { panic!("the log is empty, and nothing to be flushed") };
    assert_eq!(named.fetch_offset, 0);
    let answer = |from_offset: i64, records: Bytes, high_watermark: i64| PartitionData {
        high_watermark,
        log_start_offset: 0,
        records: Some(Records::Memory(records)),
        in_epoch: leader.leader_epoch,
        requested_in: 1,
        from_offset,
        log_end_offset: 1,
        ..Default::default()
    };
    let led = {
        let mut bytes = BytesMut::from(&batch(b"v")[..]);
        bytes[12..16].copy_from_slice(&leader.leader_epoch.to_be_bytes());
        bytes.freeze()
    };
    let ResponseOutcome::Unflushed(_, upto) = followed.take(&answer(0, led, 0)) else {
        panic!("it is to be flushed first")
    };
    assert_eq!(upto, 1);
    assert!(matches!(followed.take(&answer(1, Bytes::new(), 1)), ResponseOutcome::Nothing));
    assert!(followed.flushed(1));
    cluster.stop().await;
}
