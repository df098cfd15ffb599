//! The records of members that join a group of the consumer protocol, on real logs.

use super::*;
use crate::coordinator::{LogEntry, replay};
use crate::groups::replayed::ReplayedShard;
use fullbore_control::CONSUMER_OFFSETS;
use fullbore_rules::group::{Change, PartKey, PartKind};
use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::Uuid;

const OTHER: i32 = 2;

impl Opened {
    /// Sends the heartbeat of a member of group `g`, and returns the error code and the member's epoch.
    async fn heartbeat(&self, member_id: &str, member_epoch: i32) -> (ErrorCode, i32) {
        self.heartbeat_in("g", member_id, member_epoch).await
    }

    pub(super) fn records(&self) -> Option<Change> {
        self.groups.peek("g", Group::records)
    }

    /// Replays the log of the group's shard.
    fn replayed(&self) -> ReplayedShard {
        let mut found = ReplayedShard::default();
        let shard = self.groups.serving("g").expect("it serves");
        let note = |entry| {
            if let LogEntry::Record { key, value, transaction } = entry {
                found.note(records::read(key, value)?, transaction);
            }
            Ok(())
        };
        replay(shard.partition(), note).expect("readable");
        found
    }

    fn log_end(&self) -> i64 {
        self.groups.serving("g").expect("it serves").partition().offsets().expect("open").log_end
    }

    /// Publishes a new registration of every partition of the topic. The partitions keep their leaders.
    fn change(&self, change: impl Fn(&mut PartitionRegistration)) {
        self.control.publish(|image| {
            let topic = Arc::clone(image.topic(CONSUMER_OFFSETS).expect("there"));
            let changed = topic.partitions.iter().map(|registered| {
                let mut registered = PartitionRegistration::clone(registered);
                change(&mut registered);
                registered.partition_epoch += 1;
                Arc::new(registered)
            });
            image.put(Arc::new(fullbore_control::Topic {
                partitions: changed.collect(),
                ..fullbore_control::Topic::clone(&topic)
            }));
        });
    }

    /// Lets all writes to the topic fail, because too few replicas are in sync.
    pub(super) fn fail_writes(&self) {
        self.change(|registered| registered.replicas = vec![1, OTHER]);
    }

    pub(super) fn allow_writes(&self) {
        self.change(|registered| registered.replicas = vec![1]);
    }
}

pub(super) const TWO_IN_SYNC: &str = "offsets.topic.num.partitions=1\nmin.insync.replicas=2";

fn parts(found: &ReplayedShard) -> usize {
    found.parts.values().map(|parts| parts.len()).sum()
}

#[tokio::test]
async fn broker_killed_after_each_join_restores_the_same_group() {
    let directory = tempfile::tempdir().expect("tempdir");
    let mut opened = open(directory.path(), SteadyClock::start(), "").await;
    opened.topic("t").await;
    for number in 0..5 {
        let (code, _) = opened.heartbeat(&format!("m{number}"), consumer::JOINING).await;
        assert_eq!(code, ErrorCode::NONE);
        let before = opened.records();
        assert_eq!(before.as_ref().map(|records| records.parts.len()), Some(2 * (number + 1)));
        let end = opened.log_end();
        killed(opened).await;
        opened = open(directory.path(), SteadyClock::start(), "").await;
        assert_eq!((opened.records(), opened.log_end()), (before, end), "after {} joins", number + 1);
    }
    for number in 0..5 {
        let (code, _) = opened.heartbeat(&format!("m{number}"), consumer::LEAVING).await;
        assert_eq!(code, ErrorCode::NONE);
    }
    assert_eq!(parts(&opened.replayed()), 0);
    let opened = reopened(opened, directory.path()).await;
    assert_eq!(opened.groups.peek("g", Group::state), Some(GroupState::Empty));
    opened.groups.delete("g", false).await.expect("deleted");
    assert!(opened.replayed().snapshots.is_empty());
}

#[tokio::test]
async fn heartbeat_without_a_change_appends_nothing() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    opened.topic("t").await;
    let (_, epoch) = opened.heartbeat("m", consumer::JOINING).await;
    let end = opened.log_end();
    for _ in 0..10 {
        assert_eq!(opened.heartbeat("m", epoch).await, (ErrorCode::NONE, epoch));
    }
    assert_eq!(opened.log_end(), end);
    opened.close();
}

#[tokio::test]
async fn records_of_a_failed_write_are_part_of_the_next_one() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), TWO_IN_SYNC).await;
    opened.topic("t").await;
    assert_eq!(opened.heartbeat("stays", consumer::JOINING).await.0, ErrorCode::NONE);
    assert_eq!(opened.heartbeat("leaves", consumer::JOINING).await.0, ErrorCode::NONE);
    opened.fail_writes();
    for (member, epoch) in [("unlucky", consumer::JOINING), ("leaves", consumer::LEAVING)] {
        assert_eq!(opened.heartbeat(member, epoch).await.0, ErrorCode::COORDINATOR_NOT_AVAILABLE, "{member}");
    }
    opened.allow_writes();
    assert_eq!(opened.heartbeat("last", consumer::JOINING).await.0, ErrorCode::NONE);
    let before = opened.records().expect("there");
    assert_eq!((parts(&opened.replayed()), before.parts.len()), (6, 6));
    let opened = reopened(opened, directory.path()).await;
    assert_eq!(opened.records(), Some(before));
}

#[tokio::test]
async fn deletion_takes_the_unwritten_tombstones_of_members_along() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), TWO_IN_SYNC).await;
    opened.topic("t").await;
    assert_eq!(opened.heartbeat("m", consumer::JOINING).await.0, ErrorCode::NONE);
    opened.fail_writes();
    assert_eq!(opened.heartbeat("m", consumer::LEAVING).await.0, ErrorCode::COORDINATOR_NOT_AVAILABLE);
    assert_eq!(parts(&opened.replayed()), 2);
    opened.allow_writes();
    opened.groups.delete("g", false).await.expect("deleted");
    assert_eq!(opened.heartbeat("n", consumer::JOINING).await.0, ErrorCode::NONE);
    let before = opened.records();
    assert_eq!(parts(&opened.replayed()), 2);
    let opened = reopened(opened, directory.path()).await;
    assert_eq!(opened.records(), before);
}

#[tokio::test]
async fn members_that_come_and_go_unwritten_take_bounded_memory() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), TWO_IN_SYNC).await;
    opened.topic("t").await;
    assert_eq!(opened.heartbeat("stays", consumer::JOINING).await.0, ErrorCode::NONE);
    opened.fail_writes();
    let unwritten = |opened: &Opened| opened.groups.find("g").expect("there").lock().unwritten.parts.len();
    let mut most = 0;
    for number in 0..6_000 {
        for epoch in [consumer::JOINING, consumer::LEAVING] {
            let (code, _) = opened.heartbeat(&format!("m{number}"), epoch).await;
            assert_eq!(code, ErrorCode::COORDINATOR_NOT_AVAILABLE);
        }
        most = most.max(unwritten(&opened));
    }
    assert!((9_900..10_010).contains(&most), "{most}");
    assert!(unwritten(&opened) < 5_000);
    opened.allow_writes();
    assert_eq!(opened.heartbeat("last", consumer::JOINING).await.0, ErrorCode::NONE);
    let before = opened.records();
    let opened = reopened(opened, directory.path()).await;
    settle(&opened).await;
    // The number of parts varies: on a slow machine the session of `stays` may already have ended.
    let written = before.as_ref().map_or(0, |records| records.parts.len());
    assert_eq!((opened.records(), parts(&opened.replayed())), (before, written), "the former records are deleted");
}

#[tokio::test]
async fn parts_of_no_group_are_deleted_unless_a_later_release_may_know_the_group() {
    for (version, left) in [(1, 0), (99, 1)] {
        let directory = tempfile::tempdir().expect("tempdir");
        let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
        let key = PartKey { parts_id: Uuid([5; 16]), kind: PartKind::Member, number: 3 };
        let group = Snapshot { version, ..snapshot_of(&opened, "consumer") };
        let written =
            vec![records::part(&key, Some(bytes::Bytes::from_static(b"?"))), records::group("h", Some(&group))];
        let shard = opened.groups.serving("g").expect("it serves");
        shard.write(Records::Plain(written), drop).kept().await.expect("kept");
        let opened = reopened(opened, directory.path()).await;
        settle(&opened).await;
        assert_eq!(parts(&opened.replayed()), left, "version {version}");
    }
}
