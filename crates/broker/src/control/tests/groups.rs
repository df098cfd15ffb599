//! Committed offsets and groups' snapshots on a real database, and a model of them.

use super::*;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;
use tokio::task::coop::unconstrained;
use tokio::time::timeout;

use crate::control::queue::OF_ONE_MAX;

const SOON: Duration = Duration::from_secs(30);

fn committed(offset: i64, committed_ms: i64) -> Committed {
    let metadata = format!("of {offset}").into_boxed_str();
    Committed { offset, leader_epoch: -1, metadata, committed_ms, expires_ms: None }
}

fn one(topic: Uuid, partition: i32, committed: Committed) -> CommitOffset {
    CommitOffset { topic, partition, committed }
}

async fn commit(control: &Control, group: &str, offsets: Vec<CommitOffset>) -> Vec<(usize, ErrorCode)> {
    let command = Command::CommitOffsets(CommitOffsets { group: group.into(), offsets });
    control.enter().await.expect("a place").ask(command).committed().await.expect("committed")
}

async fn done(control: &Control, command: Command) {
    control.enter().await.expect("a place").ask(command).done().await.expect("done");
}

fn delete(group: &str, topic: Uuid, partition: i32, committed_ms: Option<i64>) -> Command {
    let offsets = vec![DeleteOffset { topic, partition, committed_ms }];
    Command::DeleteOffsets(DeleteOffsets { group: group.into(), offsets })
}

async fn topic(control: &Control, name: &str) -> Uuid {
    create(control, vec![wanted(name)]).await.remove(0).expect("created").id
}

#[tokio::test]
async fn what_a_group_committed_is_there_after_a_restart() {
    let folder = tempfile::tempdir().expect("tempdir");
    let first = open(folder.path());
    let t = topic(&first.control, "t").await;
    let kept = Committed { leader_epoch: 7, expires_ms: Some(99), ..committed(5, 1) };
    let offsets = vec![one(t, 0, kept.clone()), one(t, 1, committed(6, 2)), one(t, 1, committed(7, 3))];
    assert_eq!(commit(&first.control, "g", offsets).await, []);
    assert_eq!(commit(&first.control, "other", vec![one(t, 0, committed(8, 4))]).await, []);
    for control in [first.control.clone(), {
        drop(first);
        open(folder.path()).control.clone()
    }] {
        let offsets = control.offsets();
        assert_eq!(offsets.get("g", t, 0), Some(kept.clone()));
        assert_eq!(offsets.get("g", t, 1), Some(committed(7, 3)), "the last of a request counts");
        assert_eq!((offsets.get("g", t, 2), offsets.get("none", t, 0), offsets.held()), (None, None, 3));
    }
}

#[tokio::test]
async fn a_deletion_may_mean_one_commit_only() {
    let folder = tempfile::tempdir().expect("tempdir");
    let opened = open(folder.path());
    let control = opened.control.clone();
    let t = topic(&control, "t").await;
    commit(&control, "g", vec![one(t, 0, committed(1, 10)), one(t, 1, committed(1, 10))]).await;
    done(&control, delete("g", t, 0, Some(9))).await;
    done(&control, delete("g", t, 1, Some(10))).await;
    done(&control, delete("g", t, 1, None)).await;
    drop((control, opened));
    let opened = open(folder.path());
    let offsets = opened.control.offsets();
    assert_eq!((offsets.get("g", t, 0), offsets.held()), (Some(committed(1, 10)), 1));
    done(&opened.control, delete("g", t, 0, None)).await;
    assert_eq!((offsets.has("g"), offsets.groups().len(), offsets.held()), (false, 0, 0));
}

#[tokio::test]
async fn a_topic_takes_its_offsets_along() {
    let folder = tempfile::tempdir().expect("tempdir");
    let opened = open(folder.path());
    let (gone, kept) = (topic(&opened.control, "gone").await, topic(&opened.control, "kept").await);
    commit(&opened.control, "both", vec![one(gone, 0, committed(1, 1)), one(kept, 0, committed(2, 1))]).await;
    commit(&opened.control, "one", vec![one(gone, 0, committed(3, 1))]).await;
    opened.control.delete_topics(vec![TopicRef::Id(gone)]).await.remove(0).expect("deleted");
    let again = topic(&opened.control, "gone").await;
    let late = commit(&opened.control, "one", vec![one(kept, 0, committed(4, 1)), one(gone, 0, committed(5, 1))]).await;
    assert_eq!(late, [(1, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)]);
    for control in [opened.control.clone(), {
        drop(opened);
        open(folder.path()).control.clone()
    }] {
        let offsets = control.offsets();
        assert_eq!(
            (offsets.get("both", gone, 0), offsets.get("one", gone, 0), offsets.get("one", again, 0)),
            (None, None, None)
        );
        assert_eq!((offsets.get("both", kept, 0), offsets.held()), (Some(committed(2, 1)), 2));
    }
}

#[tokio::test]
async fn past_the_limit_only_new_partitions_are_refused() {
    let folder = tempfile::tempdir().expect("tempdir");
    let opened = try_open(folder.path(), "fullbore.offsets.max=3").expect("opens");
    let control = &opened.control;
    let t = topic(control, "t").await;
    let all = (0..5).map(|partition| one(t, partition, committed(1, 1))).collect();
    let full = ErrorCode::INVALID_COMMIT_OFFSET_SIZE;
    assert_eq!(commit(control, "g", all).await, [(3, full), (4, full)]);
    assert_eq!(commit(control, "g", vec![one(t, 0, committed(2, 2)), one(t, 3, committed(2, 2))]).await, [(1, full)]);
    assert_eq!(commit(control, "h", vec![one(t, 0, committed(2, 2))]).await, [(0, full)]);
    done(control, delete("g", t, 1, None)).await;
    assert_eq!(commit(control, "h", vec![one(t, 0, committed(3, 3))]).await, []);
    assert_eq!((control.offsets().held(), control.offsets().get("g", t, 0)), (3, Some(committed(2, 2))));
}

#[tokio::test]
async fn snapshots_of_groups_are_handed_out_once_after_a_start() {
    let folder = tempfile::tempdir().expect("tempdir");
    let opened = open(folder.path());
    let snapshot = |group: &str, version: i64, state: &'static [u8]| StoredGroup {
        group: group.into(),
        version,
        state: Bytes::from_static(state),
    };
    assert_eq!(opened.control.take_groups(), []);
    let t = topic(&opened.control, "t").await;
    for group in ["a", "b", "c"] {
        commit(&opened.control, group, vec![one(t, 0, committed(1, 1))]).await;
    }
    for group in
        [snapshot("b", 1, b"old"), snapshot("a", 2, &[0, 255]), snapshot("b", 1, b"new"), snapshot("c", 1, b"")]
    {
        done(&opened.control, Command::KeepGroup(group)).await;
    }
    done(&opened.control, Command::DeleteGroup(DeleteGroup { group: "a".into(), offsets: true })).await;
    done(&opened.control, Command::DeleteGroup(DeleteGroup { group: "c".into(), offsets: false })).await;
    let has = |control: &Control| ["a", "b", "c"].map(|group| control.offsets().has(group));
    assert_eq!((has(&opened.control), opened.control.offsets().held()), ([false, true, true], 2));
    drop(opened);
    let opened = open(folder.path());
    assert_eq!(opened.control.take_groups(), [snapshot("b", 1, b"new")]);
    assert_eq!((opened.control.take_groups(), has(&opened.control)), (vec![], [false, true, true]));
}

#[test]
fn what_cannot_be_written_is_not_in_memory_either() {
    let folder = tempfile::tempdir().expect("tempdir");
    let lock = FolderLock::take(folder.path()).expect("free");
    let (mut owner, image) = owner(&lock);
    let offsets = Arc::clone(&owner.offsets);
    owner.serve(vec![asked(create_command("t")).0]);
    let t = image.borrow().topic("t").expect("created").id;
    let commit = |offset| {
        let offsets = vec![one(t, 0, committed(offset, 1))];
        asked(Command::CommitOffsets(CommitOffsets { group: "g".into(), offsets }))
    };
    owner.serve(vec![commit(1).0]);
    owner.store.refuse_writes(true);
    let (failed, mut outcome) = commit(2);
    owner.serve(vec![failed]);
    let Outcome::Committed(Err(refusal)) = outcome.try_recv().expect("answered") else { panic!("not refused") };
    assert_eq!((refusal.code, offsets.get("g", t, 0)), (ErrorCode::KAFKA_STORAGE_ERROR, Some(committed(1, 1))));
}

#[test]
fn only_transactions_of_groups_alone_are_not_flushed() {
    let folder = tempfile::tempdir().expect("tempdir");
    let lock = FolderLock::take(folder.path()).expect("free");
    let (mut owner, image) = owner(&lock);
    let keep = || asked(Command::KeepGroup(StoredGroup { group: "g".into(), version: 1, state: Bytes::new() })).0;
    let epoch = |image: &watch::Receiver<Arc<Image>>| image.borrow().epoch();
    owner.serve(vec![asked(create_command("a")).0]);
    assert!(owner.store.flushes());
    let before = epoch(&image);
    owner.serve(vec![keep()]);
    assert!(!owner.store.flushes() && epoch(&image) == before);
    owner.serve(vec![keep(), asked(create_command("b")).0, keep()]);
    assert!(owner.store.flushes() && epoch(&image) == before + 1);
}

#[tokio::test]
async fn who_asks_serves_what_waits_and_leaves_the_rest_to_the_thread() {
    let folder = tempfile::tempdir().expect("tempdir");
    let lock = FolderLock::take(folder.path()).expect("free");
    let (owner, image) = owner(&lock);
    let queue = Queue::new(owner);
    let keep = || asked(Command::KeepGroup(StoredGroup { group: "g".into(), version: 1, state: Bytes::new() }));
    let (first, mut first_done) = keep();
    let (topic, mut topic_done) = asked(create_command("t"));
    let (last, mut last_done) = keep();
    for asked in [first, topic, last] {
        queue.push(queue.enter().await, None, asked);
    }
    queue.serve_of_groups();
    assert!(first_done.try_recv().is_ok(), "nobody else served it");
    assert!(topic_done.try_recv().is_err() && last_done.try_recv().is_err(), "a topic waits for the disk, elsewhere");
    queue.close();
    queue.run();
    assert!(topic_done.try_recv().is_ok() && last_done.try_recv().is_ok() && image.borrow().topic("t").is_some());
}

#[tokio::test]
async fn one_connection_never_has_all_places_and_has_its_own_again_once_it_is_served() {
    let folder = tempfile::tempdir().expect("tempdir");
    let control = open(folder.path()).control.clone();
    let keep = || Command::KeepGroup(StoredGroup { group: "g".into(), version: 1, state: Bytes::new() });
    let asker = control.asker();
    let mut unawaited = Vec::new();
    let full = loop {
        let mut entering = std::pin::pin!(unconstrained(asker.enter()));
        match poll_fn(|context| Poll::Ready(entering.as_mut().poll(context))).await {
            Poll::Ready(place) => unawaited.push(place.expect("a place").ask(keep())),
            Poll::Pending => break unawaited.len(),
        }
    };
    assert_eq!(full, OF_ONE_MAX);
    let other = control.asker();
    let place = timeout(SOON, other.enter()).await.expect("there is room for another").expect("a place");
    // Its outcome is not awaited either: what serves it serves all.
    let pending = place.ask(keep());
    tokio::select! {
        biased;
        never = other.carry_out() => match never {},
        place = timeout(SOON, asker.enter()) => drop(place.expect("there is room again").expect("a place")),
    }
    timeout(SOON, pending.done()).await.expect("served").expect("done");
    for pending in unawaited {
        timeout(SOON, pending.done()).await.expect("served").expect("done");
    }
}

/// Many tasks on several threads, some of which go away before their answer: nobody waits for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_commit_of_many_at_once_is_answered() {
    let folder = tempfile::tempdir().expect("tempdir");
    let opened = open(folder.path());
    let t = topic(&opened.control, "t").await;
    let commit_all = |task: i32| {
        let control = opened.control.clone();
        async move {
            let group = format!("g{task}");
            for offset in 0..200 {
                let offsets = vec![one(t, 0, committed(offset, offset))];
                let command = Command::CommitOffsets(CommitOffsets { group: group.as_str().into(), offsets });
                let pending = control.enter().await.expect("a place").ask(command);
                if offset % 3 == 0 {
                    drop(pending);
                } else {
                    assert_eq!(pending.committed().await.expect("committed"), []);
                    assert_eq!(control.offsets().get(&group, t, 0), Some(committed(offset, offset)));
                }
                if offset % 50 == i64::from(task) % 50 {
                    topic(&control, &format!("of-{task}-{offset}")).await;
                }
            }
        }
    };
    let tasks: Vec<_> = (0..16).map(|task| tokio::spawn(commit_all(task))).collect();
    for task in tasks {
        task.await.expect("done");
    }
    drop(opened);
    let opened = open(folder.path());
    let found = (0..16).map(|task| opened.control.offsets().get(&format!("g{task}"), t, 0));
    assert!(found.into_iter().all(|found| found == Some(committed(199, 199))));
}

/// What may happen; the numbers choose among few groups, topics and partitions.
#[derive(Debug, Clone)]
enum Step {
    Commit {
        group: u8,
        offsets: Vec<(u8, i32, i64)>,
    },
    Delete {
        group: u8,
        topic: u8,
        partition: i32,
        only: Option<i64>,
    },
    DeleteGroup {
        group: u8,
    },
    /// Deletes the topic and creates it again.
    Renew {
        topic: u8,
    },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let (group, topic, partition) = (0..3_u8, 0..3_u8, 0..2_i32);
    let offset = (topic.clone(), partition.clone(), 0..5_i64);
    prop_oneof![
        8 => (group.clone(), prop::collection::vec(offset, 0..5))
            .prop_map(|(group, offsets)| Step::Commit { group, offsets }),
        3 => (group.clone(), topic.clone(), partition, prop::option::of(0..5_i64))
            .prop_map(|(group, topic, partition, only)| Step::Delete { group, topic, partition, only }),
        1 => group.prop_map(|group| Step::DeleteGroup { group }),
        1 => topic.prop_map(|topic| Step::Renew { topic }),
        1 => Just(Step::Restart),
    ]
}

/// Group, topic's number, partition, and what was committed, which says its time, too.
type Model = BTreeMap<(u8, u8, i32), i64>;

/// The simplest that could be right.
fn expect(model: &mut Model, step: &Step) {
    match step {
        Step::Commit { group, offsets } => {
            model.extend(offsets.iter().map(|(topic, partition, at)| ((*group, *topic, *partition), *at)));
        }
        Step::Delete { group, topic, partition, only } => {
            let key = (*group, *topic, *partition);
            if model.get(&key).is_some_and(|at| only.is_none_or(|only| only == *at)) {
                model.remove(&key);
            }
        }
        Step::DeleteGroup { group } => model.retain(|(of, _, _), _| of != group),
        Step::Renew { topic } => model.retain(|(_, of, _), _| of != topic),
        Step::Restart => {}
    }
}

fn command(step: &Step, topics: &[Uuid]) -> Option<Command> {
    let name = |group: &u8| Arc::from(format!("g{group}"));
    let id = |topic: &u8| topics[usize::from(*topic)];
    Some(match step {
        Step::Commit { group, offsets } => {
            let row = |(topic, partition, at): &(u8, i32, i64)| one(id(topic), *partition, committed(*at, *at));
            Command::CommitOffsets(CommitOffsets { group: name(group), offsets: offsets.iter().map(row).collect() })
        }
        Step::Delete { group, topic, partition, only } => {
            let offsets = vec![DeleteOffset { topic: id(topic), partition: *partition, committed_ms: *only }];
            Command::DeleteOffsets(DeleteOffsets { group: name(group), offsets })
        }
        Step::DeleteGroup { group } => Command::DeleteGroup(DeleteGroup { group: name(group), offsets: true }),
        Step::Renew { .. } | Step::Restart => return None,
    })
}

fn held(control: &Control, topics: &[Uuid]) -> Model {
    let keys = (0..3_u8).flat_map(|group| (0..3_u8).flat_map(move |topic| (0..2).map(move |p| (group, topic, p))));
    let of = |key: &(u8, u8, i32)| control.offsets().get(&format!("g{}", key.0), topics[usize::from(key.1)], key.2);
    let found: Model = keys.filter_map(|key| Some((key, of(&key)?.offset))).collect();
    assert_eq!(control.offsets().held(), found.len(), "nothing is held that nobody finds");
    found
}

/// Steps follow one another without waiting for answers, so that many share a transaction.
async fn run(steps: Vec<Step>) {
    let folder = tempfile::tempdir().expect("tempdir");
    let mut opened = open(folder.path());
    let mut topics = Vec::new();
    for number in 0..3 {
        topics.push(topic(&opened.control, &format!("t{number}")).await);
    }
    let mut model = Model::new();
    for step in &steps {
        expect(&mut model, step);
        if let Some(command) = command(step, &topics) {
            drop(opened.control.enter().await.expect("a place").ask(command));
        }
        match step {
            Step::Renew { topic: number } => {
                let at = usize::from(*number);
                opened.control.delete_topics(vec![TopicRef::Id(topics[at])]).await.remove(0).expect("deleted");
                topics[at] = topic(&opened.control, &format!("t{number}")).await;
                assert_eq!(held(&opened.control, &topics), model);
            }
            Step::Restart => {
                drop(opened);
                opened = open(folder.path());
                assert_eq!(held(&opened.control, &topics), model);
            }
            _ => {}
        }
    }
    // The answer to the last says that all before it are done.
    commit(&opened.control, "last", vec![]).await;
    assert_eq!(held(&opened.control, &topics), model);
    drop(opened);
    assert_eq!(held(&open(folder.path()).control, &topics), model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn memory_disk_and_a_map_agree(steps in prop::collection::vec(step(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(run(steps));
    }
}
