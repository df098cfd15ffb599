//! Faults of clients and machines at the worst moment.

use super::*;
use crate::coordinator::InternalTopic;
use fullbore_control::{CreatePartitions, GrowTopic};

/// The topic is deleted and recreated, and a client commits an offset of the new topic. Only then are the offsets of
/// the old topic deleted. This must not delete the new offset.
#[tokio::test]
async fn deletion_of_a_topics_offsets_keeps_those_of_the_next_of_its_name() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = unstarted(directory.path(), SteadyClock::start(), "");
    opened.groups.prepare(Missing::Create, []).await.expect("there is room");
    let old = opened.topic("t").await;
    opened.commit("g", vec![one(&old, 0, committed(1, 1)), one(&old, 1, committed(2, 1))]).await;
    opened.delete(&old).await;
    let new = opened.topic("t").await;
    opened.commit("g", vec![one(&new, 0, committed(3, 2))]).await;
    // The task for deleted topics reaches this group late, as if it had many other groups to handle first.
    opened.groups.forget_topic(old.id).await;
    assert_eq!(opened.held(), 1);
    let opened = reopened(opened, directory.path()).await;
    assert_eq!((opened.get("g", &new, 0), opened.get("g", &new, 1)), (Some(committed(3, 2)), None));
}

#[tokio::test]
async fn group_with_its_first_commit_under_way_is_not_forgotten() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    let commit = opened.request("g", vec![one(&t, 0, committed(1, 1))]);
    // After this event the group has no members. It would be removed if no commit were in flight.
    opened.groups.put_to(&"g".into(), Missing::Refuse(ErrorCode::NONE), |group, ticket, now, effects| {
        group.leave(&[], ticket, now, effects);
    });
    // The client disconnects before it gets a response.
    drop(commit);
    while opened.held() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(opened.groups.ids(), ["g"], "it can be listed, deleted and expire");
}

#[tokio::test]
async fn offsets_of_a_deleted_topic_that_were_left_go_with_the_next_expiry() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = unstarted(directory.path(), SteadyClock::start(), "");
    opened.groups.prepare(Missing::Create, []).await.expect("there is room");
    let (gone, kept) = (opened.topic("gone").await, opened.topic("kept").await);
    let now = now_ms();
    opened.commit("g", vec![one(&gone, 0, committed(1, now)), one(&kept, 0, committed(2, now))]).await;
    opened.delete(&gone).await;
    opened.groups.expire(&"g".into(), 12 * HOUR_MS).await;
    assert_eq!((opened.held(), opened.get("g", &kept, 0)), (1, Some(committed(2, now))));
}

#[tokio::test]
async fn partitions_added_to_the_offsets_topic_are_refused() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=2").await;
    let topics = vec![GrowTopic { name: "__consumer_offsets".into(), count: 8, assignments: None }];
    let grown = opened.control.create_partitions(CreatePartitions { topics, validate_only: false }).await;
    assert!(matches!(&grown[0], Err(refusal) if refusal.code == ErrorCode::INVALID_REQUEST));
}

/// A short request with a long group id must not become gigabytes of records, each of which contains that id.
#[tokio::test]
async fn commit_is_bounded_by_the_bytes_of_its_records() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    let id = "g".repeat(30_000);
    let offsets: Vec<_> = (0..2000).map(|n| one(&t, n % 8, committed(1, 1))).collect();
    let refused = opened.commit(&id, offsets).await;
    assert!(refused.iter().all(|(_, code)| *code == ErrorCode::INVALID_COMMIT_OFFSET_SIZE));
    assert!((1..2000).contains(&refused.len()), "{} are refused", refused.len());
    assert_eq!(opened.commit(&id, vec![one(&t, 1, committed(2, 2))]).await, []);
    assert_eq!(opened.commit("h", (0..2000).map(|n| one(&t, n % 8, committed(1, 1))).collect()).await, []);
}

/// A request waits only for the shard of its own group.
#[tokio::test]
async fn shard_that_takes_long_to_load_delays_only_its_own_groups() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=2").await;
    let t = opened.topic("t").await;
    for group in 0..8 {
        opened.commit(&format!("g{group}"), vec![one(&t, 0, committed(1, 1))]).await;
    }
    opened.logs.close();
    killed(opened).await;
    let opened = unstarted(directory.path(), SteadyClock::start(), "");
    let id = opened.control.image().topic("__consumer_offsets").expect("it is kept").id;
    let topic = Arc::new(InternalTopic::new(id, 2, fullbore_wire::batch::Compression::None, &opened.logs));
    topic.shards()[1].set_loaded(true);
    opened.groups.topic.replace(Arc::clone(&topic));
    for group in (0..8).map(|group| Text::from(format!("g{group}"))) {
        let mut prepared = std::pin::pin!(opened.groups.prepare(Missing::Create, [&group]));
        let is_ready =
            std::future::poll_fn(|context| std::task::Poll::Ready(prepared.as_mut().poll(context).is_ready()));
        assert_eq!(is_ready.await, opened.groups.check(&group).is_ok(), "{group:?}");
    }
}

#[tokio::test]
async fn shard_with_unreadable_log_is_loaded_once_it_can_be_read() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    let t = opened.topic("t").await;
    opened.commit("g", vec![one(&t, 0, committed(1, 1))]).await;
    opened.logs.close();
    killed(opened).await;
    let segment = directory.path().join("__consumer_offsets-0/00000000000000000000.log");
    let whole = std::fs::read(&segment).expect("it is there");
    let mut damaged = whole.clone();
    *damaged.last_mut().expect("not empty") ^= 1;
    std::fs::write(&segment, damaged).expect("written");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    assert_eq!(opened.groups.check("g"), Err(ErrorCode::COORDINATOR_NOT_AVAILABLE));
    std::fs::write(&segment, whole).expect("written");
    while opened.groups.check("g").is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(opened.get("g", &t, 0), Some(committed(1, 1)));
}

/// With many topics, the groups may begin to load only after a damaged log has already been opened and refused. The
/// shard of this log must not serve in this case either.
#[tokio::test]
async fn a_shard_whose_log_was_refused_before_the_groups_start_does_not_serve() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    let t = opened.topic("t").await;
    for number in 0..3 {
        opened.commit("g", vec![one(&t, number, committed(1, 1))]).await;
    }
    killed(opened).await;
    let segment = directory.path().join("__consumer_offsets-0/00000000000000000000.log");
    let mut damaged = std::fs::read(&segment).expect("it is there");
    damaged[70] ^= 1;
    std::fs::write(&segment, damaged).expect("written");
    let opened = unstarted(directory.path(), SteadyClock::start(), "");
    let id = opened.control.image().topic("__consumer_offsets").expect("it is kept").id;
    let partition = opened.logs.find(&id, 0).expect("it is there");
    let _ = partition.opened().await;
    assert!(partition.phase().is_settled() && !partition.phase().is_open());
    opened.start().await;
    assert_eq!(opened.groups.check("g"), Err(ErrorCode::COORDINATOR_NOT_AVAILABLE));
}

/// Before a commit is handled, its topic is deleted and recreated, and another client commits to the new topic. The
/// late commit must not replace the offset of the new topic.
#[tokio::test]
async fn commit_for_a_deleted_topic_does_not_replace_one_for_the_next_of_its_name() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let old = opened.topic("t").await;
    opened.delete(&old).await;
    let new = opened.topic("t").await;
    opened.commit("g", vec![one(&new, 0, committed(2, 2))]).await;
    let late = opened.commit("g", vec![one(&old, 0, committed(1, 1))]).await;
    assert_eq!(late, [(0, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)]);
    let opened = reopened(opened, directory.path()).await;
    assert_eq!(opened.get("g", &new, 0), Some(committed(2, 2)));
}

/// If the disk is slower than the clients, commits pile up in memory, even those of clients that have disconnected. So
/// their total size must be limited.
#[tokio::test]
async fn commits_under_way_are_bounded_across_all_clients() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    let id = Text::from("g".repeat(30_000));
    let committer = Committer { member_id: "", instance_id: None, generation: -1, version: 8, is_transactional: false };
    let request = || {
        let offsets = (0..400).map(|n| one(&t, n % 8, committed(1, 1))).collect();
        opened.groups.commit(&id, &committer, None, offsets, &Unwritten::default())
    };
    let requested: Vec<_> = (0..20).map(|_| request()).collect();
    assert_eq!(requested.last().and_then(|last| last.as_ref().err()), Some(&ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
    for commit in requested.into_iter().flatten() {
        assert_eq!(commit.done().await, Ok(vec![]));
    }
    assert_eq!(request().expect("there is room again").done().await, Ok(vec![]));
}

/// A single task handles the deadlines of all groups. A panic in one group must not end this task.
#[tokio::test]
async fn panicking_event_removes_only_the_members_of_its_own_group() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    let t = opened.topic("t").await;
    let refused = |answer| answer == GroupAnswer::Refused(ErrorCode::COORDINATOR_NOT_AVAILABLE);
    opened.commit("bad", vec![one(&t, 0, committed(1, 1))]).await;
    let waits = opened.groups.put_to(&"bad".into(), Missing::Create, |_, _, _, _| {});
    let panics = opened.groups.put_to(&"bad".into(), Missing::Create, |_, _, _, _| panic!("a planted panic"));
    assert!(refused(waits.answer().await) && refused(panics.answer().await));
    assert_eq!(opened.get("bad", &t, 0), Some(committed(1, 1)));
    for group in ["bad", "good"] {
        let id = Text::from(group);
        let (request, member_id, image) = (join_request("consumer"), Text::from("m"), opened.control.image());
        // The timer ends the group's wait for other members, and then the join is answered.
        let joined = opened.groups.put_to(&id, Missing::Create, |group, ticket, now, effects| {
            group.join(joining(&request, &member_id), &*image, ticket, now, effects);
        });
        assert!(matches!(joined.answer().await, GroupAnswer::Join(_)), "{group}");
    }
    opened.close();
}

#[tokio::test]
async fn members_of_the_consumer_protocol_join_again_after_a_panic() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=1").await;
    let t = opened.topic("t").await;
    opened.commit("with offsets", vec![one(&t, 0, committed(1, 1))]).await;
    for id in ["with offsets", "without"] {
        let (code, epoch) = opened.heartbeat_in(id, "m", consumer::JOINING).await;
        assert_eq!(code, ErrorCode::NONE);
        opened.groups.put_to(&id.into(), Missing::Create, |_, _, _, _| panic!("a planted panic")).answer().await;
        assert_eq!(opened.heartbeat_in(id, "m", epoch).await, (ErrorCode::UNKNOWN_MEMBER_ID, 0), "{id:?}");
        let (code, next) = opened.heartbeat_in(id, "m", consumer::JOINING).await;
        assert!(code == ErrorCode::NONE && next > epoch, "{code}, {next} after {epoch}");
    }
    opened.close();
}

/// A group panics while its first commit is in flight. It must stay in the table. Otherwise it could not be deleted,
/// and its offsets would never expire.
#[tokio::test]
async fn group_that_panics_with_its_first_commit_under_way_is_still_listed() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    let commit = opened.request("g", vec![one(&t, 0, committed(1, 1))]);
    opened.groups.put_to(&"g".into(), Missing::Create, |_, _, _, _| panic!("a planted panic")).answer().await;
    commit.done().await.expect("kept");
    assert_eq!((opened.held(), opened.groups.ids()), (1, vec!["g".into()]));
}
