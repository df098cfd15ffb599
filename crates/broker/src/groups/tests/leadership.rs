//! Tests in which another broker leads the groups' partition of `__consumer_offsets` for a while.

use super::*;
use crate::coordinator::{Coordinator, MarkedCoordinator};
use fullbore_control::{CONSUMER_OFFSETS, Topic};
use fullbore_rules::group::Effect;
use fullbore_rules::replica::{BrokerRegistration, FollowerFetch, PartitionRegistration};
use fullbore_rules::sequence::Marker;
use std::cell::Cell;

const OTHER: i32 = 2;
const EPOCH: i64 = 7;

impl Opened {
    /// Publishes a new registration of every partition of the topic. Returns once the groups have followed the change.
    fn register(&self, change: impl Fn(&mut PartitionRegistration)) {
        self.publish(change);
        CoordinatorTopic::adopt(&self.groups);
    }

    /// Publishes a new registration of every partition of the topic.
    fn publish(&self, change: impl Fn(&mut PartitionRegistration)) {
        self.control.publish(|image| {
            let registration = BrokerRegistration { epoch: EPOCH, ..Default::default() };
            image.put_node(OTHER, fullbore_control::RegisteredBroker { registration, ..Default::default() });
            let topic = Arc::clone(image.topic(CONSUMER_OFFSETS).expect("there"));
            let changed = topic.partitions.iter().map(|registered| {
                let mut registered = PartitionRegistration::clone(registered);
                change(&mut registered);
                registered.partition_epoch += 1;
                Arc::new(registered)
            });
            image.put(Arc::new(Topic { partitions: changed.collect(), ..Topic::clone(&topic) }));
        });
    }

    fn elect(&self, leader: i32) {
        self.register(|registered| led_by(registered, leader));
    }

    /// Waits until the shard's log has reached `log_end`. Then sends the fetch of a follower that has the whole log.
    async fn replicate(&self, group: &str, log_end: i64) {
        let shard = self.groups.serving(group).expect("it serves");
        let partition = shard.partition();
        while partition.offsets().expect("open").log_end < log_end {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let offset = partition.offsets().expect("open").log_end;
        let (leader_epoch, last) = (partition.leader_epoch(), Some(partition.leader_epoch()));
        let fetch = FollowerFetch { broker_id: OTHER, broker_epoch: EPOCH, leader_epoch, offset };
        partition.followed_from(&fetch, last).expect("noted");
    }
}

fn led_by(registered: &mut PartitionRegistration, leader: i32) {
    registered.replicas = vec![1, OTHER];
    registered.leader = Some(leader);
    registered.leader_epoch += 1;
}

#[tokio::test]
async fn groups_are_loaded_again_if_another_broker_led_between_two_images() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    let t = opened.topic("t").await;
    assert_eq!(opened.commit("g", vec![one(&t, 0, committed(1, 1))]).await, []);
    let before = opened.groups.serving("g").expect("it serves");
    opened.publish(|registered| led_by(registered, OTHER));
    // Between the two images, this broker may have replicated records of the other leader.
    opened.publish(|registered| led_by(registered, 1));
    CoordinatorTopic::adopt(&opened.groups);
    opened.groups.topic.loaded().await;
    assert!(!Arc::ptr_eq(&before, &opened.groups.serving("g").expect("it serves")));
    assert_eq!(opened.get("g", &t, 0), Some(committed(1, 1)));
    opened.close();
}

#[tokio::test]
async fn log_read_for_a_shard_that_has_moved_is_not_installed() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    let t = opened.topic("t").await;
    assert_eq!(opened.commit("g", vec![one(&t, 0, committed(1, 1))]).await, []);
    let before = opened.groups.serving("g").expect("it serves");
    opened.elect(OTHER);
    opened.groups.install(&before).expect("read");
    assert_eq!((opened.held(), opened.groups.ids().len()), (0, 0), "another broker has it");
    opened.elect(1);
    opened.groups.topic.loaded().await;
    assert_eq!(opened.commit("g", vec![one(&t, 0, committed(2, 2))]).await, []);
    opened.groups.install(&before).expect("read");
    assert_eq!(opened.commit("g", vec![one(&t, 1, committed(3, 3))]).await, []);
    let after = opened.groups.serving("g").expect("it serves");
    let entries: Vec<_> = opened.groups.table.lock().values().cloned().collect();
    assert!(entries.iter().all(|entry| Arc::ptr_eq(&entry.shard, &after)), "its group writes where nothing is kept");
    opened.close();
}

#[tokio::test]
async fn pending_offsets_are_loaded_again_once_this_broker_leads_again() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    let t = opened.topic("t").await;
    opened.commit_in((7, 0), "g", vec![one(&t, 0, committed(1, 1))]).await;
    let before = opened.groups.serving("g").expect("it serves");
    opened.elect(OTHER);
    assert_eq!((opened.groups.offsets.pending(), opened.groups.ids().len()), (0, 0));
    let marker = Marker { producer_id: 7, producer_epoch: 1, coordinator_epoch: 0, is_commit: true };
    let refused = Arc::clone(&opened.groups).write_marker(0, marker, 2).err();
    assert_eq!(refused, Some(ErrorCode::NOT_COORDINATOR));
    opened.elect(1);
    opened.groups.topic.loaded().await;
    // The shard `before` was created when this broker first led the partition. It must not write anything once its
    // successor serves.
    let late = before.write(Records::Marker(marker, 2), |kept| kept).kept().await.expect("told");
    assert_eq!(late.map_err(not_kept), Err(ErrorCode::NOT_COORDINATOR));
    assert!(opened.is_pending("g", &t, 0));
    opened.end((7, 0), "g", true).await;
    assert_eq!((opened.get("g", &t, 0), opened.groups.offsets.pending()), (Some(committed(1, 1)), 0));
    opened.close();
}

#[tokio::test]
async fn coordinator_drops_groups_that_move_and_loads_them_when_it_leads_again() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=2").await;
    let t = opened.topic("t").await;
    for group in ["g", "h"] {
        assert_eq!(opened.commit(group, vec![one(&t, 0, committed(1, 1))]).await, []);
    }
    let before = opened.groups.serving("g").expect("it serves");
    // This broker already leads and is elected again. For the groups this changes nothing.
    opened.elect(1);
    assert!(Arc::ptr_eq(&before, &opened.groups.serving("g").expect("it serves")));
    assert_eq!(opened.commit("g", vec![one(&t, 1, committed(2, 2))]).await, []);
    let late = before.write(Records::Plain(vec![]), |result| result);
    opened.elect(OTHER);
    assert_eq!(opened.groups.serving("g").err(), Some(ErrorCode::NOT_COORDINATOR));
    assert_eq!((opened.held(), opened.groups.ids().len()), (0, 0));
    drop(late);
    let record = (bytes::Bytes::from_static(b"k"), None);
    let refused = before.write(Records::Plain(vec![record]), |result| result).kept().await.expect("told");
    assert_eq!(refused.map_err(not_kept), Err(ErrorCode::NOT_COORDINATOR), "who still has it writes nothing");
    opened.elect(1);
    opened.groups.topic.loaded().await;
    assert_eq!((opened.held(), opened.groups.ids().len()), (3, 2));
    assert_eq!(opened.get("g", &t, 1), Some(committed(2, 2)));
    assert_eq!(opened.commit("g", vec![one(&t, 1, committed(3, 3))]).await, []);
    opened.close();
}

/// When the broker leaves a shard, it removes the groups one by one. Meanwhile a request must not get the answer that
/// its group never existed.
#[tokio::test]
async fn group_requested_while_the_groups_leave_is_not_reported_missing() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    let t = opened.topic("t").await;
    assert_eq!(opened.commit("g", vec![one(&t, 0, committed(1, 1))]).await, []);
    let look = |opened: &Opened| (opened.groups.find("g").is_some(), opened.get("g", &t, 0));
    assert_eq!(opened.groups.while_serving("g", || look(&opened)), Ok((true, Some(committed(1, 1)))));
    let seen = opened.groups.while_serving("g", || {
        opened.elect(OTHER);
        look(&opened)
    });
    assert_eq!(seen, Err(ErrorCode::NOT_COORDINATOR));
    opened.elect(1);
    opened.groups.topic.loaded().await;
    let seen = opened.groups.while_serving("g", || {
        opened.elect(OTHER);
        opened.elect(1);
        look(&opened)
    });
    assert_eq!(seen, Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
    opened.groups.topic.loaded().await;
    assert_eq!(opened.groups.while_serving("g", || look(&opened)), Ok((true, Some(committed(1, 1)))));
    opened.close();
}

#[tokio::test]
async fn offsets_of_unlisted_groups_leave_with_their_shard() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    let t = opened.topic("t").await;
    for group in ["g", "h"] {
        assert_eq!(opened.commit(group, vec![one(&t, 0, committed(1, 1))]).await, []);
    }
    opened.logs.close();
    killed(opened).await;
    let opened = open(directory.path(), SteadyClock::start(), "fullbore.groups.max=1").await;
    assert_eq!((opened.held(), opened.groups.ids().len()), (2, 1));
    opened.elect(OTHER);
    assert_eq!((opened.held(), opened.groups.ids().len()), (0, 0));
    opened.close();
}

#[tokio::test]
async fn answer_after_an_unreplicated_snapshot_becomes_a_refusal() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    opened.register(|registered| {
        registered.replicas = vec![1, OTHER];
        registered.isr = vec![1, OTHER];
        registered.leader_epoch += 1;
    });
    opened.groups.topic.loaded().await;
    let request = || {
        opened.groups.put_to(&"g".into(), Missing::Create, |group, ticket, _, effects| {
            effects.push(Effect::Keep(group.records()));
            effects.push(Effect::Answer(ticket, GroupAnswer::Heartbeat(ErrorCode::NONE)));
        })
    };
    let first = request();
    let log_end = || opened.groups.serving("g").expect("it serves").partition().offsets().expect("open").log_end;
    while log_end() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The follower has fetched neither of the two snapshots.
    let second = request();
    opened.elect(OTHER);
    for pending in [first, second] {
        assert_eq!(pending.answer().await, GroupAnswer::Refused(ErrorCode::COORDINATOR_NOT_AVAILABLE));
    }
    opened.close();
}

#[tokio::test]
async fn moving_shard_does_not_wait_for_deletions_of_topics_offsets() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=2").await;
    let t = opened.topic("t").await;
    let groups: Vec<String> = (0..16).map(|number| format!("g{number}")).collect();
    for group in &groups {
        assert_eq!(opened.commit(group, vec![one(&t, 0, committed(1, 1))]).await, []);
    }
    // From here on, the ISR contains a second replica that fetches nothing. So no write is acknowledged, and no
    // deletion can finish.
    opened.register(|registered| {
        registered.replicas = vec![1, OTHER];
        registered.isr = vec![1, OTHER];
    });
    let log_end =
        |group: &String| opened.groups.serving(group).expect("it serves").partition().offsets().expect("open").log_end;
    let before: i64 = groups.iter().map(log_end).sum();
    opened.delete(&t).await;
    while groups.iter().map(log_end).sum::<i64>() == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let began = std::time::Instant::now();
    // Only the partition of `g0` gets another leader. The other partition keeps its leader, and its writes still wait.
    let (moves, index) = (opened.groups.serving("g0").expect("it serves").partition().index(), Cell::new(0));
    opened.publish(|registered| {
        if index.replace(index.get() + 1) == moves {
            led_by(registered, OTHER);
        }
    });
    while opened.groups.check("g0") != Err(ErrorCode::NOT_COORDINATOR) {
        // If the shard waited for the deletions, each group in its partition would cost five seconds.
        assert!(began.elapsed() < Duration::from_secs(20), "it waits for writes that are not answered");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    opened.close();
}

#[tokio::test]
async fn commit_is_visible_and_answered_once_every_replica_in_sync_has_it() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    let t = opened.topic("t").await;
    opened.register(|registered| {
        registered.replicas = vec![1, OTHER];
        registered.isr = vec![1, OTHER];
        registered.leader_epoch += 1;
    });
    opened.groups.topic.loaded().await;
    let first = opened.request("g", vec![one(&t, 0, committed(1, 1))]);
    let mut first = std::pin::pin!(first.done());
    assert!(is_pending(&mut first).await);
    // A second commit and a deletion are queued after the first commit. The deletion must see the offsets that were
    // committed before it.
    let second = opened.request("g", vec![one(&t, 1, committed(2, 2))]);
    let mut second = std::pin::pin!(second.done());
    assert!(is_pending(&mut second).await);
    let mut deleted = std::pin::pin!(opened.forget("g", deletion(&t, 0, None)).kept());
    assert!(is_pending(&mut deleted).await);
    assert_eq!(opened.held(), 0, "a leader that falls would take it back");
    opened.replicate("g", 2).await;
    assert_eq!(first.await.expect("kept"), []);
    assert_eq!(second.await.expect("kept"), []);
    assert_eq!(opened.held(), 2);
    opened.replicate("g", 3).await;
    deleted.await.expect("kept").expect("kept");
    assert_eq!((opened.held(), opened.get("g", &t, 0)), (1, None));
    // Another broker is elected while a commit is in flight. The commit is refused, although its record may survive.
    let mut third = std::pin::pin!(opened.request("g", vec![one(&t, 2, committed(3, 3))]).done());
    assert!(is_pending(&mut third).await);
    opened.elect(OTHER);
    assert_eq!(third.await, Err(ErrorCode::NOT_COORDINATOR));
    opened.close();
}

#[tokio::test]
async fn next_leader_serves_once_its_log_is_on_every_replica_in_sync() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    let t = opened.topic("t").await;
    let in_sync = |registered: &mut PartitionRegistration, leader| {
        registered.replicas = vec![1, OTHER];
        registered.isr = vec![1, OTHER];
        registered.leader = Some(leader);
        registered.leader_epoch += 1;
    };
    opened.register(|registered| in_sync(registered, 1));
    opened.groups.topic.loaded().await;
    let mut unanswered = std::pin::pin!(opened.request("g", vec![one(&t, 0, committed(1, 1))]).done());
    while opened.groups.serving("g").expect("it serves").partition().offsets().expect("open").log_end == 0 {
        assert!(is_pending(&mut unanswered).await);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    opened.register(|registered| in_sync(registered, OTHER));
    assert_eq!(unanswered.await, Err(ErrorCode::NOT_COORDINATOR));
    opened.register(|registered| in_sync(registered, 1));
    // The shard must not serve before the follower has confirmed the records, because they may still be truncated.
    let topic = opened.groups.topic.read().clone().expect("there");
    let shard = Arc::clone(&topic.shards()[0]);
    assert!(is_pending(&mut std::pin::pin!(shard.loaded())).await);
    assert_eq!(opened.groups.serving("g").err(), Some(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
    let partition = shard.partition();
    let (leader_epoch, offset) = (partition.leader_epoch(), partition.offsets().expect("open").log_end);
    let fetch = FollowerFetch { broker_id: OTHER, broker_epoch: EPOCH, leader_epoch, offset };
    partition.followed_from(&fetch, Some(1)).expect("noted");
    shard.loaded().await;
    assert_eq!(opened.get("g", &t, 0), Some(committed(1, 1)));
    opened.close();
}

/// The broker leaves the shard before the callback of a commit runs. The callback must not make the commit visible:
/// another broker now leads and has read the commit from the log.
#[tokio::test]
async fn commit_with_a_callback_after_its_shard_was_left_is_not_shown() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = Arc::new(open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await);
    let t = opened.topic("t").await;
    opened.commit("g", vec![one(&t, 0, committed(1, 1)), one(&t, 1, committed(1, 1))]).await;
    let (left, moves) = (opened.groups.serving("g").expect("it serves"), Arc::clone(&opened));
    // Both writes are in one batch. The callback of the first write moves the partition to another broker before the
    // callback of the second one runs.
    let first = left.write(Records::Plain(vec![records::group("other", None)]), move |_| moves.elect(OTHER));
    let late = opened.request("g", vec![one(&t, 0, committed(2, 2))]);
    assert_eq!(late.done().await.expect("kept"), []);
    first.kept().await.expect("kept");
    assert_eq!((opened.held(), opened.get("g", &t, 0)), (0, None), "another broker has it");
    opened.elect(1);
    opened.groups.topic.loaded().await;
    assert_eq!((opened.held(), opened.get("g", &t, 0)), (2, Some(committed(2, 2))));
}

async fn is_pending<T>(future: &mut std::pin::Pin<&mut impl Future<Output = T>>) -> bool {
    for _ in 0..20 {
        if std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_ready())).await {
            return false;
        }
        tokio::task::yield_now().await;
    }
    true
}
