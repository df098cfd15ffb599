//! Compares committed offsets and the records of groups with a model, on real logs.

mod faults;
mod joins;
mod leadership;
mod limits;
mod static_joins;
mod transactions;

use super::*;
use crate::coordinator::{Records, Unwritten};
use fullbore_config::Properties;
use fullbore_control::{CreateTopic, CreateTopics, DirectoryLock, TopicRef};
use fullbore_host::disk_space::DiskSpace;
use fullbore_host::files::now_ms;
use fullbore_rules::group::{Committer, Joining, Snapshot, consumer};
use fullbore_wire::apis::consumer_group_heartbeat::ConsumerGroupHeartbeatRequest;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use fullbore_wire::apis::leave_group::MemberIdentity;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio::sync::watch;

const HOUR_MS: i64 = 60 * 60 * 1000;

/// The groups of a broker, with its logs and control plane. Dropping this without [`Opened::close`] is like killing the
/// broker.
struct Opened {
    groups: Arc<Groups>,
    config: Arc<BrokerConfig>,
    control: Control,
    logs: Arc<Partitions>,
    stop: watch::Sender<bool>,
    _lock: DirectoryLock,
}

async fn open(directory: &Path, clock: SteadyClock, text: &str) -> Opened {
    let opened = unstarted(directory, clock, text);
    opened.start().await;
    opened
}

/// Opens a broker whose groups are not loaded yet.
fn unstarted(directory: &Path, clock: SteadyClock, text: &str) -> Opened {
    let config = BrokerConfig::from_properties(&Properties::parse(text).expect("valid")).expect("valid").0;
    let config = Arc::new(config);
    let lock = DirectoryLock::take(directory).expect("free");
    let space = Arc::new(DiskSpace::open(lock.directory(), 0));
    let arrival = fullbore_control::RegistrationInfo::nowhere();
    let (control, _) = Control::open(Arc::clone(&config), &lock, Arc::clone(&space), arrival).expect("opens");
    let logs = Partitions::open_with(directory, &config, space).expect("opens");
    let (followed, of_config) = (Arc::clone(&logs), Arc::clone(&config));
    let mut origin = crate::partitions::Origin::Kept;
    control.follow(Box::new(move |before, after| {
        crate::follow_image::follow(&followed, &of_config, before, after, origin);
        origin = crate::partitions::Origin::New;
    }));
    let groups = Groups::by(clock, &config, control.clone(), Arc::clone(&logs), Metrics::default());
    Opened { groups, config, control, logs, stop: watch::Sender::new(false), _lock: lock }
}

impl Opened {
    /// Sends the heartbeat of a member of the consumer protocol, which subscribes to `t`. Returns the error code and
    /// the member's epoch.
    async fn heartbeat_in(&self, group: &str, member_id: &str, member_epoch: i32) -> (ErrorCode, i32) {
        let joins = member_epoch == consumer::JOINING;
        let request = ConsumerGroupHeartbeatRequest {
            group_id: Text::from(group),
            member_id: Text::from(member_id),
            member_epoch,
            rebalance_timeout_ms: if joins { 10_000 } else { -1 },
            subscribed_topic_names: joins.then(|| vec![Text::from("t")]),
            topic_partitions: joins.then(Vec::new),
            ..Default::default()
        };
        let (image, settings) = (self.control.image(), self.groups.settings);
        let requested = self.groups.put_to(&group.into(), Missing::Create, |group, ticket, now, effects| {
            let call = consumer::Call {
                request: &request,
                fresh_id: Text::default(),
                fresh_parts_id: fresh_parts_id(),
                client_id: "",
                client_host: "",
                resolved: Vec::new(),
                resolved_version: image.epoch(),
            };
            group.consumer_heartbeat(call, &*image, settings, ticket, now, effects);
        });
        match requested.answer().await {
            GroupAnswer::ConsumerHeartbeat(response) => (response.error_code, response.member_epoch),
            GroupAnswer::Refused(code) => (code, -1),
            answer => panic!("{answer:?}"),
        }
    }

    async fn start(&self) {
        self.groups.start(&self.config, &self.stop);
        self.groups.prepare(Missing::Create, []).await.expect("there is room");
        self.groups.topic.loaded().await;
    }

    /// Stops cleanly, as a stopping broker does.
    fn close(self) {
        self.logs.close();
        self.stop.send_replace(true);
    }

    async fn topic(&self, name: &str) -> TopicName {
        let wanted = CreateTopic { name: name.into(), num_partitions: 8, replication_factor: -1, ..Default::default() };
        let made = self.control.create_topics(CreateTopics { topics: vec![wanted], validate_only: false }).await;
        TopicName { id: made[0].as_ref().expect("created").id, name: name.into() }
    }

    async fn delete(&self, topic: &TopicName) {
        let deleted = self.control.delete_topics(vec![TopicRef::Id(topic.id)]).await;
        deleted[0].as_ref().expect("deleted");
    }

    fn request(&self, group: &str, offsets: Vec<CommitOffset>) -> PendingCommit {
        let committer =
            Committer { member_id: "", instance_id: None, generation: -1, version: 8, is_transactional: false };
        self.groups.commit(&group.into(), &committer, None, offsets, &Unwritten::default()).expect("it may")
    }

    async fn commit(&self, group: &str, offsets: Vec<CommitOffset>) -> Vec<(usize, ErrorCode)> {
        self.request(group, offsets).done().await.expect("kept")
    }

    fn forget(&self, group: &str, offset: DeleteOffset) -> crate::coordinator::PendingWrite<Result<(), ErrorCode>> {
        let shard = self.groups.serving(group).expect("it serves");
        self.groups.forget_offsets(&shard, group, vec![offset])
    }

    fn get(&self, group: &str, topic: &TopicName, partition: i32) -> Option<OffsetAndMetadata> {
        self.groups.offsets.read(group, |held| held?.get(&topic.id)?.partitions.get(&partition).cloned())
    }

    fn held(&self) -> usize {
        self.groups.offsets.held()
    }
}

fn committed(offset: i64, committed_ms: i64) -> OffsetAndMetadata {
    let metadata = format!("of {offset}").into_boxed_str();
    OffsetAndMetadata { offset, leader_epoch: -1, metadata, committed_ms, expires_ms: None }
}

fn one(topic: &TopicName, partition: i32, committed: OffsetAndMetadata) -> CommitOffset {
    CommitOffset { topic: topic.clone(), partition, committed }
}

fn deletion(topic: &TopicName, partition: i32, committed_ms: Option<i64>) -> DeleteOffset {
    DeleteOffset { topic: topic.clone(), partition, committed_ms }
}

async fn reopened(opened: Opened, directory: &Path) -> Opened {
    opened.logs.close();
    killed(opened).await;
    open(directory, SteadyClock::start(), "").await
}

/// Kills the broker, which leaves the directory as it is at this moment.
async fn killed(opened: Opened) {
    let Opened { logs, control, groups, stop, _lock, .. } = opened;
    stop.send_replace(true);
    // The tasks still have references to the groups and the control plane, so this waits until the tasks have ended.
    drop((logs, control));
    while Arc::strong_count(&groups) > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop((groups, _lock));
}

fn join_request(protocol_type: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        protocol_type: protocol_type.into(),
        protocols: vec![JoinGroupRequestProtocol { name: "range".into(), ..Default::default() }],
        ..Default::default()
    }
}

fn joining<'a>(request: &'a JoinGroupRequest, new_member_id: &'a Text) -> Joining<'a> {
    Joining { request, version: 3, client_id: "c", client_host: "/h", new_member_id }
}

/// Returns the snapshot of a group with one member.
fn snapshot_of(opened: &Opened, protocol_type: &str) -> Snapshot {
    let (mut group, mut effects) = (Group::new(opened.groups.settings, 0), Effects::new());
    let image = opened.control.image();
    group.join(joining(&join_request(protocol_type), &"m".into()), &*image, RequestTicket(0), 0, &mut effects);
    group.tick(group.next_deadline().expect("it waits for others"), &mut effects);
    group.records().group.expect("a classic group has one record")
}

/// Joins a group as its only member and leaves it again.
async fn come_and_go(groups: &Arc<Groups>, id: &Text) {
    let (request, member_id) = (join_request("consumer"), Text::from("m"));
    let image = groups.control.image();
    let joined = groups.put_to(id, Missing::Create, |group, ticket, now, effects| {
        group.join(joining(&request, &member_id), &*image, ticket, now, effects);
    });
    // Ends the group's wait for other members, as if its deadline had passed.
    let entry = groups.find(id).expect("it is there");
    let deadline = entry.lock().group.next_deadline();
    if let Some(deadline) = deadline {
        let mut effects = Effects::new();
        let mut inner = entry.lock();
        inner.group.tick(deadline, &mut effects);
        groups.follow(&entry, inner, effects);
    }
    let GroupAnswer::Join(_) = joined.answer().await else { panic!("refused") };
    let member = MemberIdentity { member_id, ..Default::default() };
    let left = groups.put_to(id, Missing::Create, |group, ticket, now, effects| {
        group.leave(&[member], ticket, now, effects);
    });
    left.answer().await;
}

#[tokio::test]
async fn offsets_expire_by_the_systems_clock_even_if_it_was_set_after_the_start() {
    for set_by in [-24 * HOUR_MS, 0, 24 * HOUR_MS] {
        let directory = tempfile::tempdir().expect("tempdir");
        let clock = SteadyClock::before_step(set_by);
        let opened = open(directory.path(), clock, "").await;
        let (id, before) = (Text::from("g"), now_ms());
        come_and_go(&opened.groups, &id).await;
        let since = opened.groups.peek(&id, |group| group.empty_since()).flatten();
        assert!(since.is_some_and(|since| (before..=now_ms()).contains(&since)), "{since:?}, set by {set_by}");
        let t = opened.topic("t").await;
        opened.commit("g", vec![one(&t, 0, committed(1, before))]).await;
        opened.groups.expire(&id, 12 * HOUR_MS).await;
        assert!(opened.groups.has_offsets(&id), "set by {set_by}");
        opened.groups.expire(&id, 0).await;
        assert!(!opened.groups.has_offsets(&id), "set by {set_by}");
    }
}

#[tokio::test]
async fn committed_offsets_of_a_group_survive_a_restart() {
    let directory = tempfile::tempdir().expect("tempdir");
    let mut opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    let (with_epoch, with_expiry) = (
        OffsetAndMetadata { leader_epoch: 7, ..committed(5, 1) },
        OffsetAndMetadata { expires_ms: Some(99), ..committed(6, 2) },
    );
    let offsets = vec![
        one(&t, 0, with_epoch.clone()),
        one(&t, 1, committed(6, 2)),
        one(&t, 1, committed(7, 3)),
        one(&t, 2, with_expiry.clone()),
    ];
    assert_eq!(opened.commit("g", offsets).await, []);
    assert_eq!(opened.commit("other", vec![one(&t, 0, committed(8, 4))]).await, []);
    for _ in 0..2 {
        assert_eq!(opened.get("g", &t, 0), Some(with_epoch.clone()));
        assert_eq!(opened.get("g", &t, 1), Some(committed(7, 3)), "the last of a request counts");
        assert_eq!(opened.get("g", &t, 2), Some(with_expiry.clone()));
        assert_eq!((opened.get("g", &t, 3), opened.get("none", &t, 0), opened.held()), (None, None, 4));
        let mut ids = opened.groups.ids();
        ids.sort_unstable();
        assert_eq!(ids, ["g", "other"]);
        opened = reopened(opened, directory.path()).await;
    }
    opened.close();
}

#[tokio::test]
async fn deletion_with_a_commit_time_removes_only_that_commit() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    opened.commit("g", vec![one(&t, 0, committed(1, 10)), one(&t, 1, committed(1, 10))]).await;
    for (partition, only) in [(0, Some(9)), (1, Some(10)), (1, None)] {
        opened.forget("g", deletion(&t, partition, only)).kept().await.expect("kept").expect("kept");
    }
    let opened = reopened(opened, directory.path()).await;
    assert_eq!((opened.get("g", &t, 0), opened.held()), (Some(committed(1, 10)), 1));
    opened.forget("g", deletion(&t, 0, None)).kept().await.expect("kept").expect("kept");
    assert_eq!((opened.groups.offsets.has("g"), opened.held()), (false, 0));
}

#[tokio::test]
async fn deleted_topic_takes_its_committed_offsets_along() {
    let directory = tempfile::tempdir().expect("tempdir");
    let mut opened = open(directory.path(), SteadyClock::start(), "").await;
    let (gone, kept) = (opened.topic("gone").await, opened.topic("kept").await);
    opened.commit("both", vec![one(&gone, 0, committed(1, 1)), one(&kept, 0, committed(2, 1))]).await;
    opened.commit("one", vec![one(&gone, 0, committed(3, 1))]).await;
    opened.delete(&gone).await;
    let again = opened.topic("gone").await;
    let late = opened.commit("one", vec![one(&kept, 0, committed(4, 1)), one(&gone, 0, committed(5, 1))]).await;
    assert_eq!(late, [(1, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)]);
    // The offsets must be gone once the task for deleted topics has run, and still after a restart.
    opened.groups.forget_topic(gone.id).await;
    for _ in 0..2 {
        let of_gone = ["both", "one"].map(|group| (opened.get(group, &gone, 0), opened.get(group, &again, 0)));
        assert_eq!(of_gone, [(None, None), (None, None)]);
        assert_eq!((opened.get("both", &kept, 0), opened.held()), (Some(committed(2, 1)), 2));
        opened = reopened(opened, directory.path()).await;
    }
}

#[tokio::test]
async fn last_snapshot_of_a_group_counts_and_a_deleted_group_stays_deleted() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    let (old, new) = (snapshot_of(&opened, "old"), snapshot_of(&opened, "new"));
    for (group, snapshot) in [("a", &old), ("b", &old), ("b", &new), ("c", &old)] {
        opened.commit(group, vec![one(&t, 0, committed(1, 1))]).await;
        let shard = opened.groups.serving(group).expect("it serves");
        let record = records::group(group, Some(snapshot));
        shard.write(Records::Plain(vec![record]), drop).kept().await.expect("kept");
    }
    opened.groups.delete("a", true).await.expect("deleted");
    opened.groups.delete("c", false).await.expect("deleted");
    let opened = reopened(opened, directory.path()).await;
    let found = ["a", "b", "c"].map(|group| opened.groups.peek(group, |group| group.protocol_type().to_owned()));
    assert_eq!(found, [None, Some("new".to_owned()), Some(String::new())], "c has only its offsets");
    assert_eq!(opened.held(), 2);
}

#[tokio::test]
async fn failed_commit_is_not_in_memory_either() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    opened.commit("g", vec![one(&t, 0, committed(1, 1))]).await;
    let requested = opened.request("g", vec![one(&t, 0, committed(2, 2)), one(&t, 1, committed(2, 2))]);
    opened.logs.close();
    assert_eq!(requested.done().await, Err(ErrorCode::COORDINATOR_NOT_AVAILABLE));
    assert_eq!((opened.get("g", &t, 0), opened.get("g", &t, 1)), (Some(committed(1, 1)), None));
    let coming =
        [&opened.groups.offsets_coming, &opened.groups.bytes_coming].map(|coming| coming.load(Ordering::Relaxed));
    assert_eq!(coming, [0, 0]);
}

#[tokio::test]
async fn groups_go_with_their_topic_and_begin_again() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path(), SteadyClock::start(), "").await;
    let t = opened.topic("t").await;
    opened.commit("g", vec![one(&t, 0, committed(1, 1))]).await;
    let deleted = opened.control.delete_topics(vec![TopicRef::Name("__consumer_offsets".into())]).await;
    deleted[0].as_ref().expect("deleted");
    while opened.held() > 0 || !opened.groups.ids().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(opened.groups.prepare(Missing::Create, []).await, Ok(()));
    assert_eq!(opened.commit("h", vec![one(&t, 0, committed(2, 2))]).await, []);
    let opened = reopened(opened, directory.path()).await;
    assert_eq!((opened.get("h", &t, 0), opened.held()), (Some(committed(2, 2)), 1));
}

/// Many tasks commit on several threads, and some of them stop waiting before their commit is answered. Every other
/// commit must get its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_commit_of_many_at_once_is_answered() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = Arc::new(open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=2").await);
    let t = opened.topic("t").await;
    let commit_all = |task: i32| {
        let (opened, t) = (Arc::clone(&opened), t.clone());
        async move {
            let group = format!("g{task}");
            for offset in 0..200 {
                let commit = opened.request(&group, vec![one(&t, 0, committed(offset, offset))]);
                if offset % 3 == 0 {
                    drop(commit);
                } else {
                    assert_eq!(commit.done().await, Ok(vec![]));
                    assert_eq!(opened.get(&group, &t, 0), Some(committed(offset, offset)));
                }
            }
        }
    };
    let tasks: Vec<_> = (0..16).map(|task| tokio::spawn(commit_all(task))).collect();
    for task in tasks {
        task.await.expect("done");
    }
    let opened = reopened(Arc::into_inner(opened).expect("the tasks are done"), directory.path()).await;
    let found = (0..16).map(|task| opened.get(&format!("g{task}"), &t, 0));
    assert!(found.into_iter().all(|found| found == Some(committed(199, 199))));
}

/// A step of a random test. The numbers select one of a few groups, topics and partitions.
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
    /// The topic is deleted and created again under the same name.
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

/// The expected offset of each group, topic (by its number) and partition. Each offset equals its commit time.
type Model = BTreeMap<(u8, u8, i32), i64>;

/// Applies a step to the model.
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

fn held(opened: &Opened, topics: &[TopicName]) -> Model {
    let keys = (0..3_u8).flat_map(|group| (0..3_u8).flat_map(move |topic| (0..2).map(move |p| (group, topic, p))));
    let of = |key: &(u8, u8, i32)| opened.get(&format!("g{}", key.0), &topics[usize::from(key.1)], key.2);
    keys.filter_map(|key| Some((key, of(&key)?.offset))).collect()
}

/// Waits until all earlier writes to the groups' shards are done.
async fn settle(opened: &Opened) {
    for group in 0..3 {
        let shard = opened.groups.serving(&format!("g{group}")).expect("it serves");
        shard.write(Records::Plain(vec![]), drop).kept().await.expect("kept");
    }
}

/// Runs the steps. Does not wait for the answers in between, so that steps share batches.
async fn run(steps: Vec<Step>) {
    let directory = tempfile::tempdir().expect("tempdir");
    let mut opened = open(directory.path(), SteadyClock::start(), "offsets.topic.num.partitions=2").await;
    let mut topics = Vec::new();
    for number in 0..3 {
        topics.push(opened.topic(&format!("t{number}")).await);
    }
    let mut model = Model::new();
    for step in &steps {
        expect(&mut model, step);
        match step {
            Step::Commit { group, offsets } => {
                let row = |(topic, partition, at): &(u8, i32, i64)| {
                    one(&topics[usize::from(*topic)], *partition, committed(*at, *at))
                };
                drop(opened.request(&format!("g{group}"), offsets.iter().map(row).collect()));
            }
            Step::Delete { group, topic, partition, only } => {
                let offset = deletion(&topics[usize::from(*topic)], *partition, *only);
                drop(opened.forget(&format!("g{group}"), offset));
            }
            Step::DeleteGroup { group } => {
                // If the group does not exist, it has no offsets either, so the error does not matter.
                let _ = opened.groups.delete(&format!("g{group}"), true).await;
            }
            Step::Renew { topic: number } => {
                let at = usize::from(*number);
                opened.delete(&topics[at]).await;
                topics[at] = opened.topic(&format!("t{number}")).await;
                settle(&opened).await;
                assert_eq!(held(&opened, &topics), model);
            }
            Step::Restart => {
                settle(&opened).await;
                opened = reopened(opened, directory.path()).await;
                assert_eq!(held(&opened, &topics), model);
                assert_eq!(opened.held(), model.len(), "nothing is held that nobody finds");
            }
        }
    }
    settle(&opened).await;
    assert_eq!(held(&opened, &topics), model);
    let opened = reopened(opened, directory.path()).await;
    assert_eq!(held(&opened, &topics), model);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn random_steps_keep_memory_log_and_a_map_equal(steps in prop::collection::vec(step(), 0..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(run(steps));
    }
}
