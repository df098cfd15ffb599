//! Tests a partition with replicas on several brokers, each with a data directory of its own. The metadata give the
//! brokers their roles. The tests cover replication, waits for acks=all, and logs that diverge and converge.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fullbore_broker::partitions::{
    Acks, AppendError, Durability, FollowError, FollowerPlace, FromLeader, Origin, Partitions, Replica, WrittenBatch,
};
use fullbore_log::partition::read::Isolation;
use fullbore_rules::replica::{BrokerRegistration, Brokers, FollowerFetch, PartitionRegistration};
use fullbore_wire::ErrorCode;
use proptest::prelude::*;
use tokio::time::{Instant, timeout};

use crate::directory::*;

/// The broker epoch of all brokers. A restart does not change it.
const EPOCH: i64 = 7;

pub struct Broker {
    id: i32,
    pub directory: Directory,
    partition: Arc<Replica>,
}

/// Brokers 1 to `count`, and the metadata that they all follow.
pub struct Cluster {
    pub brokers: Vec<Broker>,
    registered: PartitionRegistration,
}

impl Cluster {
    pub fn new(count: i32, change: impl Fn(&mut fullbore_config::TopicConfig)) -> Cluster {
        let ids: Vec<i32> = (1..=count).collect();
        let registered =
            PartitionRegistration { replicas: ids.clone(), isr: ids, leader: Some(1), ..Default::default() };
        let broker = |id| {
            let mut directory = Directory::new().with(&change);
            directory.settings.node.id = id;
            let partition = open(&mut directory, &registered, count);
            Broker { id, directory, partition }
        };
        Cluster { brokers: registered.replicas.iter().copied().map(broker).collect(), registered }
    }

    pub fn of(&self, id: i32) -> &Broker {
        &self.brokers[usize::try_from(id - 1).expect("from 1 on")]
    }

    pub fn partition(&self, id: i32) -> &Arc<Replica> {
        &self.of(id).partition
    }

    /// Changes the metadata and passes them to all brokers.
    pub fn change(&mut self, change: impl FnOnce(&mut PartitionRegistration)) {
        change(&mut self.registered);
        self.registered.partition_epoch += 1;
        self.brokers.iter().for_each(|broker| self.report(broker.id));
    }

    fn report(&self, id: i32) {
        let partition = self.partition(id);
        partition.follow(&Arc::new(self.registered.clone()), &partition.config());
    }

    pub fn elect(&mut self, leader: i32) {
        self.change(|registered| {
            registered.leader = Some(leader);
            registered.leader_epoch += 1;
        });
    }

    /// Stops a broker cleanly or kills it, and starts it again.
    pub fn restart(&mut self, id: i32, cleanly: bool) {
        let (count, registered) = (self.brokers.len(), self.registered.clone());
        let broker = &mut self.brokers[usize::try_from(id - 1).expect("from 1 on")];
        if cleanly {
            broker.directory.logs.close();
        } else {
            broker.directory.kill();
        }
        broker.partition = open(&mut broker.directory, &registered, i32::try_from(count).expect("few"));
    }

    /// Performs one fetch of a follower. Returns how many records it has appended, or a negative number if it has
    /// truncated records.
    pub fn fetch(&self, id: i32) -> Result<i64, ErrorCode> {
        let follower = self.partition(id);
        let leader = self.partition(self.registered.leader.expect("somebody leads"));
        let requested = follower.position().expect("open");
        let leader_epoch = self.registered.leader_epoch;
        let fetch = FollowerFetch { broker_id: id, broker_epoch: EPOCH, leader_epoch, offset: requested.offset };
        match leader.followed_from(&fetch, requested.last_epoch)? {
            FollowerPlace::Diverging(end) => {
                let cut = follower.truncate_by(leader_epoch, requested, end).expect("cut off");
                Ok(cut.expect("it asked from its end") - requested.offset)
            }
            FollowerPlace::OutOfRange { .. } => Err(ErrorCode::OFFSET_OUT_OF_RANGE),
            FollowerPlace::Noted(propose) => {
                assert_eq!(propose, None, "all are in sync");
                let read = leader.read_on(leader_epoch, requested.offset, 1 << 20, true)?;
                let (end_offset, read) = (read.end_offset, read.read);
                let records = Bytes::from(bytes_of(read.records));
                let (high_watermark, log_start) = (read.high_watermark, read.log_start_offset);
                let from =
                    FromLeader { leader_epoch, from: requested.offset, records: &records, high_watermark, log_start };
                follower.append_from_leader(from).expect("appended");
                let position = follower.position().expect("open");
                assert_eq!(position.offset, end_offset, "the leader knows what it has sent");
                Ok(position.offset - requested.offset)
            }
        }
    }

    /// Fetches until the follower has all records and both brokers know this.
    pub fn catch_up(&self, id: i32) {
        while self.fetch(id).expect("answered") != 0 {}
        // The leader now knows that the follower has all records. The next fetch returns the new high watermark.
        self.fetch(id).expect("answered");
    }

    pub fn append(&self, batch: &[u8], acks: Acks) -> Result<WrittenBatch, AppendError> {
        append_with(self.partition(self.registered.leader.expect("somebody leads")), batch, acks)
    }
}

fn open(directory: &mut Directory, registered: &PartitionRegistration, count: i32) -> Arc<Replica> {
    directory.logs = Partitions::open(&directory.dir, &directory.settings).expect("opened");
    let alive = BrokerRegistration { epoch: EPOCH, ..Default::default() };
    let brokers: Brokers = (1..=count).map(|id| (id, alive)).collect::<BTreeMap<_, _>>();
    directory.logs.put_brokers(&Arc::new(brokers));
    let registered = [Arc::new(registered.clone())];
    directory.logs.put_topic(TOPIC, ID, &registered, &Arc::new(directory.config.clone()), Origin::Kept);
    directory.logs.find(&ID, 0).expect("it has just been told of")
}

fn waits(written: WrittenBatch) -> Durability {
    assert!(!written.durability.is_nothing(), "something to wait for");
    written.durability
}

async fn is_pending(ticket: &Durability) -> bool {
    timeout(Duration::from_millis(1), ticket.clone().wait(far())).await.is_err()
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[tokio::test]
async fn acks_all_and_readers_wait_for_the_follower_and_acks_1_does_not() {
    let cluster = Cluster::new(2, |_| {});
    let leader = cluster.partition(1);
    assert!(cluster.append(&plain(1, b"v"), Acks::Leader).expect("appended").durability.is_nothing());
    let ticket = waits(cluster.append(&idempotent(1, 0, 0, 2), Acks::All).expect("appended"));
    assert_eq!(leader.offsets().expect("open").high_watermark, 0);
    assert!(leader.read(0, 1000, true).expect("read").records.is_empty(), "nobody sees what one broker has");
    assert!(is_pending(&ticket).await);
    // A retry of a batch that is still in progress must also wait.
    let again = cluster.append(&idempotent(1, 0, 0, 2), Acks::All).expect("found");
    assert_eq!(again.appended.base_offset, 1);
    let again = waits(again);
    assert!(is_pending(&again).await);
    assert_eq!(
        again.clone().wait(Instant::now()).await,
        Err(AppendError::Role(ErrorCode::REQUEST_TIMED_OUT)),
        "not for ever"
    );
    assert_eq!(cluster.fetch(2), Ok(3));
    assert!(is_pending(&ticket).await, "that it was sent says nothing");
    assert_eq!(cluster.fetch(2), Ok(0));
    assert_eq!((ticket.wait(far()).await, again.wait(far()).await), (Ok(()), Ok(())));
    assert_eq!(leader.offsets().expect("open").high_watermark, 3);
    assert_eq!(leader.read(0, 1000, true).expect("read").high_watermark, 3);
    let third = cluster.append(&idempotent(1, 0, 0, 2), Acks::All).expect("found");
    assert!(third.durability.is_nothing(), "it is everywhere by now");
}

/// The leader has proposed a follower for the ISR. From then on, acks=all waits for this follower.
#[tokio::test]
async fn acks_all_waits_for_a_follower_proposed_for_the_isr() {
    let mut cluster = Cluster::new(3, |_| {});
    cluster.change(|registered| registered.isr = vec![1, 2]);
    let fetch = |broker_id, offset| {
        let fetch = FollowerFetch { broker_id, broker_epoch: EPOCH, leader_epoch: 0, offset };
        cluster.partition(1).followed_from(&fetch, None)
    };
    assert!(matches!(fetch(3, 0), Ok(FollowerPlace::Noted(Some(_)))), "it has all, which is nothing");
    let ticket = waits(cluster.append(&plain(1, b"v"), Acks::All).expect("appended"));
    fetch(2, 1).expect("noted");
    assert!(is_pending(&ticket).await, "the third may be in sync, and may lead next");
    fetch(3, 1).expect("noted");
    assert_eq!(ticket.wait(far()).await, Ok(()));
}

#[tokio::test]
async fn stopping_broker_ends_waits_for_replicas() {
    let cluster = Cluster::new(2, |_| {});
    let ticket = waits(cluster.append(&plain(1, b"v"), Acks::All).expect("appended"));
    let waiting = tokio::spawn(ticket.wait(far()));
    tokio::task::yield_now().await;
    cluster.of(1).directory.logs.dismiss_waiting();
    assert_eq!(waiting.await.expect("no panic"), Err(AppendError::Gone));
}

#[tokio::test]
async fn new_leader_returns_no_smaller_latest_offset_than_the_former() {
    let mut cluster = Cluster::new(2, |_| {});
    cluster.append(&plain(2, b"v"), Acks::Leader).expect("appended");
    cluster.fetch(2).expect("answered");
    // The first leader learns from this fetch that both brokers have the records. The second broker does not learn it,
    // because it gets no response.
    let fetch = FollowerFetch { broker_id: 2, broker_epoch: EPOCH, leader_epoch: 0, offset: 2 };
    cluster.partition(1).followed_from(&fetch, Some(0)).expect("noted");
    assert_eq!(cluster.partition(1).latest_offset(Isolation::ReadUncommitted), Ok(2));
    cluster.elect(2);
    assert_eq!(cluster.partition(2).latest_offset(Isolation::ReadUncommitted), Err(ErrorCode::OFFSET_NOT_AVAILABLE));
    cluster.fetch(1).expect("answered");
    assert_eq!(cluster.partition(2).latest_offset(Isolation::ReadUncommitted), Ok(2));
    assert_eq!(cluster.partition(1).latest_offset(Isolation::ReadUncommitted), Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
}

#[tokio::test]
async fn change_of_leader_ends_waits_and_fences_the_former_leader() {
    let mut cluster = Cluster::new(2, |_| {});
    let ticket = waits(cluster.append(&plain(1, b"v"), Acks::All).expect("appended"));
    let waiting = tokio::spawn(ticket.wait(far()));
    tokio::task::yield_now().await;
    let old = Arc::clone(cluster.partition(1));
    cluster.elect(2);
    let not_leader = AppendError::Role(ErrorCode::NOT_LEADER_OR_FOLLOWER);
    assert_eq!(waiting.await.expect("no panic"), Err(not_leader));
    assert_eq!(append(&old, &plain(1, b"v")).err(), Some(not_leader));
    assert_eq!(old.check_leads(-1), Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    assert_eq!(old.check_leads(0), Err(ErrorCode::FENCED_LEADER_EPOCH));
    assert_eq!(old.check_leads(2), Err(ErrorCode::UNKNOWN_LEADER_EPOCH));
    assert_eq!(cluster.partition(2).check_leads(1), Ok(1));
    // This image is older than the last one, so it must not change anything.
    cluster
        .partition(2)
        .follow(&Arc::new(PartitionRegistration { leader: Some(1), ..Default::default() }), &old.config());
    assert_eq!(cluster.partition(2).check_leads(1), Ok(1));
    // A broker without a replica appends nothing and creates no directory.
    cluster.change(|registered| registered.replicas = vec![2]);
    assert_eq!(append(&old, &plain(1, b"v")).err(), Some(not_leader));
}

#[test]
fn min_isr_is_limited_by_the_number_of_replicas() {
    let mut cluster = Cluster::new(2, |config| config.min_insync_replicas = 2);
    assert!(cluster.append(&plain(1, b"v"), Acks::All).is_ok());
    cluster.change(|registered| registered.isr = vec![1]);
    let refused = cluster.append(&plain(1, b"v"), Acks::All).expect_err("one is too few");
    assert_eq!(refused.code(), ErrorCode::NOT_ENOUGH_REPLICAS);
    assert_eq!(cluster.append(&plain(1, b"v"), Acks::Leader).expect("appended").appended.base_offset, 1);
    assert_eq!(cluster.partition(1).offsets().expect("open").high_watermark, 0, "it stands still below the least ISR");
    cluster.change(|registered| registered.replicas = vec![1]);
    let appended = cluster.append(&plain(1, b"v"), Acks::All).expect("one replica is all there is");
    assert_eq!((appended.appended.base_offset, appended.durability.is_nothing()), (2, true));
}

#[test]
fn elected_follower_knows_the_producers_of_the_former_leader() {
    let mut cluster = Cluster::new(2, |_| {});
    for sequence in 0..4 {
        cluster.append(&idempotent(1, 0, sequence * 2, 2), Acks::All).expect("appended");
    }
    cluster.catch_up(2);
    cluster.elect(2);
    let again = cluster.append(&idempotent(1, 0, 2, 2), Acks::All).expect("found");
    assert_eq!(again.appended.base_offset, 2, "what the other broker has appended is not appended twice");
    assert_eq!(cluster.append(&idempotent(1, 0, 8, 2), Acks::All).expect("appended").appended.base_offset, 8);
    let gap = cluster.append(&idempotent(1, 0, 12, 2), Acks::All).expect_err("a gap");
    assert_eq!(gap.code(), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    cluster.catch_up(1);
    assert_eq!(files_of(&cluster, 1), files_of(&cluster, 2), "byte for byte");
}

#[test]
fn unreplicated_records_are_truncated_with_their_epoch_and_producers() {
    let mut cluster = Cluster::new(2, |config| config.segment_bytes = 300);
    for sequence in 0..6 {
        cluster.append(&idempotent(1, 0, sequence, 1), Acks::All).expect("appended");
    }
    cluster.catch_up(2);
    for sequence in 6..12 {
        cluster.append(&idempotent(1, 0, sequence, 1), Acks::Leader).expect("appended");
    }
    cluster.append(&idempotent(2, 0, 0, 1), Acks::Leader).expect("appended");
    cluster.restart(1, true);
    assert_eq!(recovery_point(&cluster, 1), 13);
    cluster.elect(2);
    cluster.append(&idempotent(1, 0, 6, 3), Acks::All).expect("appended");
    assert_eq!(cluster.fetch(1), Ok(-7), "what the other has not goes");
    // The recovery point is lowered as well. Otherwise, after a kill, the new records at these offsets would count as
    // flushed.
    assert_eq!(recovery_point(&cluster, 1), 6);
    assert_eq!(cluster.partition(1).offsets().expect("open").log_end, 6);
    let known: Vec<_> =
        cluster.partition(1).producers().expect("open").iter().map(|of| (of.producer_id, of.last_sequence)).collect();
    assert_eq!(known, [(1, 5)]);
    cluster.restart(1, false);
    assert_eq!(cluster.partition(1).offsets().expect("open").log_end, 6);
    cluster.catch_up(1);
    assert_eq!(records_of(&cluster, 1), records_of(&cluster, 2));
    assert_eq!(cluster.partition(1).epoch_end_offset(0), cluster.partition(2).epoch_end_offset(0));
}

#[test]
fn response_of_another_epoch_or_with_damage_changes_nothing() {
    let mut cluster = Cluster::new(2, |_| {});
    cluster.append(&plain(2, b"v"), Acks::Leader).expect("appended");
    let whole = Bytes::from(read_all_bytes(cluster.partition(1)));
    let from = |leader_epoch, records| FromLeader { leader_epoch, from: 0, records, high_watermark: 2, log_start: 0 };
    let follower = Arc::clone(cluster.partition(2));
    let mut damaged = whole.to_vec();
    *damaged.last_mut().expect("bytes") ^= 1;
    let damaged = Bytes::from(damaged);
    assert!(matches!(follower.append_from_leader(from(0, &damaged)), Err(FollowError::Records(_))));
    assert_eq!(follower.offsets().expect("open").log_end, 0);
    follower.append_from_leader(from(0, &whole)).expect("appended");
    assert!(matches!(follower.append_from_leader(from(0, &whole)), Err(FollowError::NotNext(2))), "it has it already");
    cluster.elect(1);
    let fenced = follower.append_from_leader(from(0, &Bytes::new())).expect_err("an older leader's");
    assert_eq!(fenced, FollowError::Role(ErrorCode::FENCED_LEADER_EPOCH));
    let requested = follower.position().expect("open");
    let end = fullbore_rules::replica::epochs::EpochEnd { epoch: 0, end_offset: 0 };
    assert_eq!(follower.truncate_by(0, requested, end), Err(FollowError::Role(ErrorCode::FENCED_LEADER_EPOCH)));
    assert_eq!(follower.offsets().expect("open").log_end, 2);
}

#[test]
fn follower_restarts_at_the_leaders_log_start_and_keeps_its_high_watermark() {
    let mut cluster = Cluster::new(2, |_| {});
    cluster.append(&plain(2, b"v"), Acks::Leader).expect("appended");
    cluster.catch_up(2);
    cluster.append(&plain(2, b"v"), Acks::Leader).expect("appended");
    cluster.fetch(2).expect("answered");
    let offsets = |cluster: &Cluster| cluster.partition(2).offsets().expect("open");
    assert_eq!((offsets(&cluster).high_watermark, offsets(&cluster).log_end), (2, 4));
    cluster.restart(2, true);
    assert_eq!((offsets(&cluster).high_watermark, offsets(&cluster).log_end), (2, 4), "as it was written down");
    cluster.catch_up(2);
    assert_eq!((offsets(&cluster).high_watermark, offsets(&cluster).log_end), (4, 4));
    cluster.partition(1).delete_records_before(3).expect("moved");
    cluster.fetch(2).expect("answered");
    assert_eq!(offsets(&cluster).log_start, 3);
    cluster.partition(2).truncate_fully_and_start_at(0, 100).expect("begun anew");
    assert_eq!((offsets(&cluster).log_start, offsets(&cluster).log_end), (100, 100));
    cluster.restart(2, false);
    assert_eq!((offsets(&cluster).log_start, offsets(&cluster).log_end), (100, 100));
}

/// The leader acknowledges a deletion of records once its followers have confirmed the new log start. A follower must
/// not lose a log start that it has confirmed.
#[test]
fn log_start_confirmed_by_a_follower_survives_its_kill() {
    let mut cluster = Cluster::new(2, |_| {});
    cluster.append(&plain(4, b"v"), Acks::Leader).expect("appended");
    cluster.catch_up(2);
    cluster.restart(2, true);
    cluster.catch_up(2);
    cluster.partition(1).delete_records_before(3).expect("moved");
    cluster.fetch(2).expect("answered");
    let log_start = |cluster: &Cluster| cluster.partition(2).offsets().expect("open").log_start;
    assert_eq!(log_start(&cluster), 3);
    cluster.restart(2, false);
    assert_eq!(log_start(&cluster), 3);
}

/// The leader stores its new epoch, but then cannot append, because the file of granted windows cannot be written. It
/// must still be able to follow the next leader.
#[test]
fn leader_that_failed_to_append_in_its_epoch_follows_the_next_leader() {
    let mut cluster = Cluster::new(2, |config| config.producer_state_batches_to_retain = 64);
    cluster.append(&plain(1, b"v"), Acks::Leader).expect("appended");
    cluster.catch_up(2);
    cluster.elect(1);
    let in_the_way = cluster.of(1).directory.dir.join(format!("{TOPIC}-0/producer-window-checkpoint.tmp"));
    std::fs::create_dir(&in_the_way).expect("made");
    cluster.append(&idempotent(1, 0, 0, 1), Acks::Leader).expect_err("its window cannot be granted");
    std::fs::remove_dir(&in_the_way).expect("removed");
    cluster.elect(2);
    cluster.append(&plain(1, b"w"), Acks::Leader).expect("appended");
    (0..4).for_each(|_| _ = cluster.fetch(1));
    assert_eq!(records_of(&cluster, 1), records_of(&cluster, 2));
}

/// The disk becomes full during a truncation, so the file of epochs cannot be written. Once there is space, the next
/// fetch must complete the truncation.
#[test]
fn truncation_on_a_full_disk_is_completed_once_there_is_space() {
    let mut cluster = Cluster::new(2, |_| {});
    cluster.append(&plain(1, b"v"), Acks::Leader).expect("appended");
    cluster.catch_up(2);
    cluster.elect(1);
    (0..3).for_each(|_| drop(cluster.append(&plain(1, b"lost"), Acks::Leader).expect("appended")));
    cluster.elect(2);
    cluster.append(&plain(1, b"w"), Acks::Leader).expect("appended");
    let epochs = cluster.of(1).directory.dir.join(format!("{TOPIC}-0/leader-epoch-checkpoint.tmp"));
    std::os::unix::fs::symlink("/dev/full", &epochs).expect("made");
    let (leader, follower) = (cluster.partition(2), cluster.partition(1));
    let (requested, leader_epoch) = (follower.position().expect("open"), cluster.registered.leader_epoch);
    let fetch = FollowerFetch { broker_id: 1, broker_epoch: EPOCH, leader_epoch, offset: requested.offset };
    let Ok(FollowerPlace::Diverging(end)) = leader.followed_from(&fetch, requested.last_epoch) else {
        panic!("they part")
    };
    let full = follower.truncate_by(leader_epoch, requested, end).expect_err("no room for the epochs");
    assert_eq!(full, FollowError::Append(AppendError::Full));
    assert!(!epochs.is_symlink(), "it is removed, and the disk is as before");
    cluster.catch_up(1);
    assert_eq!(records_of(&cluster, 1), records_of(&cluster, 2));
    cluster.restart(1, false);
    assert_eq!(records_of(&cluster, 1), records_of(&cluster, 2));
}

#[test]
fn failed_checkpoints_of_a_truncation_are_written_before_the_next_append() {
    let cluster = Cluster::new(2, |_| {});
    cluster.append(&plain(4, b"v"), Acks::Leader).expect("appended");
    cluster.catch_up(2);
    let dir = cluster.of(2).directory.dir.clone();
    let (in_the_way, log_starts) = ("recovery-point-offset-checkpoint", dir.join("log-start-offset-checkpoint"));
    let in_the_way = dir.join(in_the_way);
    let _ = std::fs::remove_file(&in_the_way);
    std::fs::create_dir(&in_the_way).expect("made");
    let follower = Arc::clone(cluster.partition(2));
    follower.truncate_fully_and_start_at(0, 100).expect_err("a directory has the name");
    let nothing = Bytes::new();
    let from = FromLeader { leader_epoch: 0, from: 100, records: &nothing, high_watermark: 100, log_start: 100 };
    follower.append_from_leader(from).expect_err("the checkpoints may still say more than there is");
    std::fs::remove_dir(&in_the_way).expect("removed");
    follower.append_from_leader(from).expect("taken");
    assert!(std::fs::read_to_string(&log_starts).expect("written").contains("100"));
    assert_eq!(follower.offsets().expect("open").log_end, 100);
}

#[test]
fn truncated_log_is_not_clean_past_its_end() {
    let mut cluster = Cluster::new(2, |_| {});
    (0..8).for_each(|_| drop(cluster.append(&plain(1, b"v"), Acks::Leader).expect("appended")));
    cluster.catch_up(2);
    let file = cluster.of(2).directory.dir.join("cleaner-offset-checkpoint");
    std::fs::write(&file, format!("0\n1\n{TOPIC} 0 7\n")).expect("written");
    cluster.restart(2, true);
    cluster.partition(2).truncate_fully_and_start_at(0, 5).expect("begun anew");
    assert_eq!(std::fs::read_to_string(&file).expect("read"), format!("0\n1\n{TOPIC} 0 5\n"));
}

fn bytes_of(records: fullbore_wire::Records) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    match records {
        fullbore_wire::Records::Pieces(_) | fullbore_wire::Records::Ranges(_) => panic!("no log has them"),
        fullbore_wire::Records::Memory(bytes) => bytes.to_vec(),
        fullbore_wire::Records::File(slice) => {
            let mut bytes = vec![0; slice.len as usize];
            slice.file.read_exact_at(&mut bytes, slice.position).expect("read");
            bytes
        }
    }
}

/// Returns all records that a leader would send to an empty follower.
fn read_all_bytes(leader: &Arc<Replica>) -> Vec<u8> {
    bytes_of(leader.read_on(leader.leader_epoch(), 0, 1 << 20, true).expect("read").read.records)
}

fn files_of(cluster: &Cluster, id: i32) -> Vec<(String, Vec<u8>)> {
    let directory = &cluster.of(id).directory;
    let names = directory.files(".log").into_iter();
    names.map(|name| (name.clone(), std::fs::read(directory.file(&name)).expect("read"))).collect()
}

/// Returns the recovery point in the checkpoint file.
fn recovery_point(cluster: &Cluster, id: i32) -> i64 {
    let file = cluster.of(id).directory.dir.join("recovery-point-offset-checkpoint");
    let text = std::fs::read_to_string(file).expect("read");
    let line = text.lines().last().expect("a partition");
    line.rsplit(' ').next().and_then(|offset| offset.parse().ok()).expect("an offset")
}

/// Returns the contents of all segments, one after another.
pub fn records_of(cluster: &Cluster, id: i32) -> Vec<u8> {
    files_of(cluster, id).into_iter().flat_map(|(_, bytes)| bytes).collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// Appends the next batch of a producer: its id, the number of records, and true if acks=all.
    Append(i64, usize, bool),
    Fetch(i32),
    Elect(i32),
    Restart(i32, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..4i64, 1..4usize, any::<bool>()).prop_map(|(producer, records, all)| Step::Append(producer, records, all)),
        5 => (1..4i32).prop_map(Step::Fetch),
        1 => (1..4i32).prop_map(Step::Elect),
        1 => ((1..4i32), any::<bool>()).prop_map(|(id, cleanly)| Step::Restart(id, cleanly)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// All three replicas stay in the ISR. So every next leader has the records that were acknowledged with acks=all,
    /// but not necessarily the others.
    #[test]
    fn records_below_the_high_watermark_are_equal_on_all_replicas_and_stay(steps in prop::collection::vec(step(), 1..60)) {
        let mut cluster = Cluster::new(3, |config| config.segment_bytes = 500);
        // The records that a leader has shown below its high watermark.
        let mut committed: Vec<u8> = Vec::new();
        for step in steps {
            match step {
                Step::Append(producer, records, all) => {
                    let leader = cluster.partition(cluster.registered.leader.expect("somebody"));
                    let known = leader.producers().expect("open");
                    let next = known.iter().find(|of| of.producer_id == producer).map_or(0, |of| of.last_sequence + 1);
                    let acks = if all { Acks::All } else { Acks::Leader };
                    cluster.append(&idempotent(producer, 0, next, records), acks).expect("appended");
                }
                Step::Fetch(id) if Some(id) != cluster.registered.leader => _ = cluster.fetch(id).expect("answered"),
                Step::Fetch(_) => {}
                Step::Elect(id) => cluster.elect(id),
                // A kill loses no records, because the page cache still has the unflushed ones.
                Step::Restart(id, cleanly) => {
                    cluster.restart(id, cleanly);
                    if cluster.registered.leader == Some(id) {
                        cluster.elect(id);
                    }
                }
            }
            let leader = cluster.partition(cluster.registered.leader.expect("somebody"));
            let high_watermark = leader.offsets().expect("open").high_watermark;
            let seen = visible(leader, high_watermark);
            let common = seen.len().min(committed.len());
            prop_assert_eq!(&seen[..common], &committed[..common], "a reader's record has changed");
            if seen.len() > committed.len() {
                committed = seen;
            }
        }
        let leader = cluster.registered.leader.expect("somebody");
        for id in (1..=3).filter(|id| *id != leader) {
            cluster.catch_up(id);
        }
        for id in 1..=3 {
            prop_assert!(records_of(&cluster, id).starts_with(&committed), "broker {} has lost what was seen", id);
            prop_assert_eq!(records_of(&cluster, id), records_of(&cluster, leader));
            let producers = |id: i32| {
                let mut of: Vec<_> = cluster.partition(id).producers().expect("open").iter().map(|of| (of.producer_id, of.last_sequence)).collect();
                of.sort_unstable();
                of
            };
            prop_assert_eq!(producers(id), producers(leader));
        }
    }
}

/// Returns the records below the high watermark, as readers get them.
fn visible(partition: &Replica, high_watermark: i64) -> Vec<u8> {
    let (mut bytes, mut next) = (Vec::new(), 0);
    while next < high_watermark {
        let read = bytes_of(partition.read(next, 1 << 20, true).expect("read").records);
        let read = Bytes::from(read);
        for batch in fullbore_wire::batch::batches(&read) {
            let batch = batch.expect("whole");
            next = batch.last_offset() + 1;
            bytes.extend_from_slice(batch.bytes());
        }
    }
    bytes
}
