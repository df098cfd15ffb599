//! Topics that are deleted and recreated on brokers that do not know of the deleted topic, for example after a restart.
//! Producers must be able to continue with their next batches.

use crate::diskless::{CALL, SESSION, set_store};
use crate::faults::ALL;
use crate::topics::{answered_as_leader, create_on};
use fullbore_tests::{Batch, Client, Cluster, ClusterPlan, FetchFrom, fetch_request, wait_until};
use fullbore_wire::apis::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use fullbore_wire::{ErrorCode, Text};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const TOPIC: &str = "again";
/// The partition to which the producer writes.
const PARTITION: i32 = 5;

/// Appends a batch at the partition's leader and returns the error code.
fn produced(cluster: &Cluster, batch: &Batch) -> ErrorCode {
    let mut code = ErrorCode::NONE;
    wait_until("a broker leads the partition", SOON, || {
        let partitions = cluster.partitions(1, TOPIC);
        let of = partitions.iter().find(|of| of.partition_index == PARTITION && of.leader_id >= 0);
        let Some(of) = of else { return false };
        code = Client::connect(cluster.address(of.leader_id)).produce(TOPIC, PARTITION, batch).error_code;
        ![ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, ErrorCode::NOT_LEADER_OR_FOLLOWER].contains(&code)
    });
    code
}

fn directories(cluster: &mut Cluster) -> usize {
    let of = |cluster: &mut Cluster, id| {
        let entries = std::fs::read_dir(cluster.broker(id).data_dir()).expect("listed");
        let names = entries.map(|entry| entry.expect("listed").file_name());
        names.filter(|name| name.to_string_lossy().starts_with(TOPIC)).count()
    };
    ALL.iter().map(|id| of(cluster, *id)).sum()
}

fn restart_all(cluster: &mut Cluster) {
    ALL.iter().for_each(|id| cluster.broker(*id).stop());
    ALL.iter().for_each(|id| cluster.broker(*id).restart());
    cluster.wait_for_brokers(&ALL);
}

/// Creates the topics `lives` one after another under the same name, and deletes each before the next. Each entry is
/// the number of partitions, and true for a diskless topic. A producer writes to the first topic, and the last one must
/// accept its next batches. All brokers restart before each deletion if `is_during` is true, and after it otherwise.
fn goes_on_through(lives: &[(i32, bool)], is_during: bool) {
    let store = tempfile::tempdir().expect("a directory");
    let mut plan = ClusterPlan::new(3, &[SESSION, CALL, "log.segment.delete.delay.ms=0"]);
    set_store(&mut plan, store.path());
    let mut cluster = plan.start();
    let id = Client::connect(cluster.address(1)).init_producer_id();
    let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    for (at, &(partitions, is_diskless)) in lives.iter().enumerate() {
        if at > 0 {
            cluster.run(&["topics", "delete", "--topic", TOPIC]);
            wait_until("the directories are gone", SOON, || directories(&mut cluster) == 0);
            if !is_during {
                restart_all(&mut cluster);
            }
        }
        match is_diskless {
            true => cluster.create(TOPIC, partitions, 1, &["diskless.enable=true"]),
            false => cluster.create(TOPIC, partitions, 3, &[]),
        }
        if at == 0 {
            (0..3).for_each(|n| assert_eq!(produced(&cluster, &one(n)), ErrorCode::NONE));
        }
        if is_during && at + 1 < lives.len() {
            restart_all(&mut cluster);
        }
    }
    assert_eq!([3, 4].map(|n| produced(&cluster, &one(n))), [ErrorCode::NONE; 2], "{lives:?}");
}

#[test]
fn topic_recreated_smaller_and_larger_over_restarts_of_all_brokers_lets_producers_continue() {
    goes_on_through(&[(8, false), (2, false), (8, false)], true);
}

#[test]
fn restart_of_all_brokers_between_topics_of_either_kind_lets_producers_continue() {
    goes_on_through(&[(8, false), (8, true)], false);
    goes_on_through(&[(8, true), (8, false)], false);
}

#[test]
fn topic_recreated_smaller_as_diskless_over_restarts_of_all_brokers_lets_producers_continue() {
    goes_on_through(&[(8, false), (2, true), (8, true)], true);
}

/// Only the leader of the classic topic knows its producers, but another broker may be the one that creates the
/// diskless topic in the index.
#[test]
fn diskless_topic_lets_producers_of_a_classic_one_on_one_broker_continue() {
    let store = tempfile::tempdir().expect("a directory");
    let mut plan = ClusterPlan::new(3, &[SESSION, CALL]);
    set_store(&mut plan, store.path());
    let cluster = plan.start();
    for leader in ALL {
        let mut client = Client::connect(cluster.address(leader));
        let id = client.init_producer_id();
        let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
        create_on(&mut client, TOPIC, &[leader]);
        (0..3).for_each(|n| assert_eq!(answered_as_leader(&mut client, TOPIC, &one(n)), ErrorCode::NONE));
        cluster.wait_for_same_topic(TOPIC);
        client.delete_topic(TOPIC);
        cluster.create(TOPIC, 1, 1, &["diskless.enable=true"]);
        let next = [3, 4].map(|sequence| answered_as_leader(&mut client, TOPIC, &one(sequence)));
        assert_eq!(next, [ErrorCode::NONE; 2], "{leader}");
        client.delete_topic(TOPIC);
    }
}

#[test]
fn kill_of_the_leader_before_the_first_batch_lets_producers_continue_at_a_follower() {
    let mut cluster = Cluster::start(3, &["log.segment.delete.delay.ms=0", SESSION]);
    let mut client = Client::connect(cluster.address(1));
    let id = client.init_producer_id();
    let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    create_on(&mut client, TOPIC, &[1, 2, 3]);
    (0..3).for_each(|n| assert_eq!(answered_as_leader(&mut client, TOPIC, &one(n)), ErrorCode::NONE));
    client.delete_topic(TOPIC);
    wait_until("the directories are gone", SOON, || directories(&mut cluster) == 0);
    restart_all(&mut cluster);
    let mut client = Client::connect(cluster.address(1));
    create_on(&mut client, TOPIC, &[1, 2, 3]);
    cluster.wait_for_isr(2, TOPIC, 3);
    cluster.broker(1).kill();
    let leader = cluster.wait_for_leader(2, TOPIC, 0, 1);
    let mut client = Client::connect(cluster.address(leader));
    assert_eq!(answered_as_leader(&mut client, TOPIC, &one(3)), ErrorCode::NONE);
}

/// The checkpoints of all brokers still contain the high watermark of the deleted topic. If a broker applied it to the
/// next topic, records of that topic would be hidden.
#[test]
fn kill_and_stop_of_all_brokers_after_a_deletion_leave_the_next_topic_writable() {
    let mut cluster = Cluster::start(3, &[SESSION]);
    let mut client = Client::connect(cluster.address(1));
    let one = |n: i32| Batch::of(&[n.to_string()]);
    create_on(&mut client, TOPIC, &[1, 2, 3]);
    (0..3).for_each(|n| assert_eq!(answered_as_leader(&mut client, TOPIC, &one(n)), ErrorCode::NONE));
    cluster.wait_for_isr(1, TOPIC, 3);
    restart_all(&mut cluster);
    let mut client = Client::connect(cluster.address(1));
    client.delete_topic(TOPIC);
    ALL.iter().for_each(|id| cluster.broker(*id).kill());
    ALL.iter().for_each(|id| cluster.broker(*id).restart());
    cluster.wait_for_brokers(&ALL);
    restart_all(&mut cluster);
    let mut client = Client::connect(cluster.address(1));
    create_on(&mut client, TOPIC, &[1, 2, 3]);
    assert_eq!(answered_as_leader(&mut client, TOPIC, &one(0)), ErrorCode::NONE);
    assert_eq!(client.latest(TOPIC, 0), 1);
}

#[test]
fn deletion_during_an_absence_lets_producers_continue_at_the_broker_afterwards() {
    let mut cluster = Cluster::start(2, &[SESSION]);
    let mut first = Client::connect(cluster.address(1));
    let id = first.init_producer_id();
    let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    create_on(&mut first, TOPIC, &[1]);
    (0..3).for_each(|n| assert_eq!(answered_as_leader(&mut first, TOPIC, &one(n)), ErrorCode::NONE));
    cluster.broker(2).stop();
    first.delete_topic(TOPIC);
    cluster.broker(2).restart();
    cluster.wait_for_brokers(&[1, 2]);
    create_on(&mut first, TOPIC, &[2]);
    let mut second = Client::connect(cluster.address(2));
    assert_eq!(answered_as_leader(&mut second, TOPIC, &one(3)), ErrorCode::NONE);
}

/// Broker 2 is frozen while the second topic exists, so its producer state is that of the first topic. When it leads
/// the third topic, it must accept the producer's next batch.
#[test]
fn broker_frozen_over_a_whole_topic_lets_producers_continue_in_the_next_one() {
    let mut cluster = Cluster::start(2, &[SESSION]);
    let (mut first, mut second) = (Client::connect(cluster.address(1)), Client::connect(cluster.address(2)));
    let id = first.init_producer_id();
    let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    create_on(&mut first, TOPIC, &[2]);
    (0..3).for_each(|n| assert_eq!(answered_as_leader(&mut second, TOPIC, &one(n)), ErrorCode::NONE));
    cluster.broker(2).freeze();
    first.delete_topic(TOPIC);
    create_on(&mut first, TOPIC, &[1]);
    (3..6).for_each(|n| assert_eq!(answered_as_leader(&mut first, TOPIC, &one(n)), ErrorCode::NONE));
    first.delete_topic(TOPIC);
    cluster.broker(2).thaw();
    cluster.wait_for_brokers(&[1, 2]);
    create_on(&mut first, TOPIC, &[2]);
    let mut second = Client::connect(cluster.address(2));
    // Waits until broker 2 knows the new topic. Before that, broker 2 would respond as leader of the former one.
    let is_seen = || {
        let [id, seen] = [&mut first, &mut second].map(|client| client.metadata(&[TOPIC]).topics[0].topic_id);
        id == seen
    };
    wait_until("broker 2 has the new topic", SOON, is_seen);
    assert_eq!(answered_as_leader(&mut second, TOPIC, &one(6)), ErrorCode::NONE);
}

/// Sends OffsetForLeaderEpoch for the end of `epoch` in the topic's only partition. `believed` is the leader epoch that
/// the client believes to be current.
fn epoch_end(client: &mut Client, believed: i32, epoch: i32) -> EpochEndOffset {
    let of = OffsetForLeaderPartition { current_leader_epoch: believed, leader_epoch: epoch, ..Default::default() };
    let topics = vec![OffsetForLeaderTopic { topic: Text::from(TOPIC), partitions: vec![of], ..Default::default() }];
    let request = OffsetForLeaderEpochRequest { replica_id: -1, topics, ..Default::default() };
    client.call(&request, 4).topics.remove(0).partitions.remove(0)
}

/// Fetches with this leader epoch, which the client believes to be current.
fn fetched_in(client: &mut Client, believed: i32) -> ErrorCode {
    let mut request = fetch_request(&[FetchFrom { topic: TOPIC, partition: 0, offset: 0 }], 0, 0);
    request.topics[0].partitions[0].current_leader_epoch = believed;
    client.call(&request, 12).responses.remove(0).partitions.remove(0).error_code
}

/// librdkafka's consumers ignore metadata with an older leader epoch than they know, and then read nothing for good.
#[test]
fn topic_made_again_after_elections_begins_in_a_later_leader_epoch() {
    let store = tempfile::tempdir().expect("a directory");
    let mut plan = ClusterPlan::new(3, &[SESSION, CALL, "log.segment.delete.delay.ms=0"]);
    set_store(&mut plan, store.path());
    let mut cluster = plan.start();
    cluster.create(TOPIC, 1, 2, &[]);
    let mut before = cluster.partitions(1, TOPIC)[0].leader_epoch;
    let mut was_diskless = false;
    for is_diskless in [false, false, true, true, false] {
        if !was_diskless {
            let leader = cluster.partitions(1, TOPIC)[0].leader_id;
            cluster.wait_for_isr(leader, TOPIC, 2);
            cluster.broker(leader).stop();
            cluster.broker(leader).restart();
            cluster.wait_for_brokers(&ALL);
            assert!(cluster.partitions(1, TOPIC)[0].leader_epoch > before, "the other broker was elected");
        }
        was_diskless = is_diskless;
        let deleted = cluster.partitions(1, TOPIC)[0].leader_epoch;
        Client::connect(cluster.address(1)).delete_topic(TOPIC);
        match is_diskless {
            true => cluster.create(TOPIC, 1, 1, &["diskless.enable=true"]),
            false => cluster.create(TOPIC, 1, 2, &[]),
        }
        let of = cluster.partitions(1, TOPIC).remove(0);
        before = of.leader_epoch;
        assert!(before > deleted, "{before} is not behind {deleted}");
        let mut client = Client::connect(cluster.address(of.leader_id));
        assert_eq!(answered_as_leader(&mut client, TOPIC, &Batch::of(&["v"])), ErrorCode::NONE);
        let ends = |end: EpochEndOffset| (end.error_code, end.leader_epoch, end.end_offset);
        assert_eq!(ends(epoch_end(&mut client, before, before)), (ErrorCode::NONE, before, 1));
        assert_eq!(ends(epoch_end(&mut client, -1, before + 1)), (ErrorCode::NONE, -1, -1));
        assert_eq!(client.fetch_batches(TOPIC, 0)[0].leader_epoch, before);
        // The epochs of the deleted topic end at offset 0. The client thus treats all records of that topic as
        // truncated.
        assert_eq!(ends(epoch_end(&mut client, before, deleted)), (ErrorCode::NONE, deleted, 0));
        assert_eq!(epoch_end(&mut client, deleted, deleted).error_code, ErrorCode::FENCED_LEADER_EPOCH);
        assert_eq!(fetched_in(&mut client, deleted), ErrorCode::FENCED_LEADER_EPOCH);
        assert_eq!(fetched_in(&mut client, before), ErrorCode::NONE);
    }
}
