//! Tests of the control plane through its public methods, with a real database file in a temporary directory.

mod cluster;
mod contradictions;
mod diskless;
mod pieces;
pub mod postgres;
mod resources;
mod seam;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use super::test_util::{Memory, broker, commit_beside, create, member, wanted};

use fullbore_host::random_id;
use fullbore_rules::cluster::{DirectoryMarks, Joining, PreviousShutdown};

use super::command::{ChangeCommand, ConfigsCommand, InitProducerId, TopicsCommand};
use super::decide::{Draft, PRODUCER_ID_BLOCK};
use super::sqlite::Sqlite;
use super::writer::MetadataWriter;
use super::*;

/// A control plane, and the lock of its directory. As in the broker, the lock is dropped last.
pub struct Opened {
    pub control: Control,
    _lock: DirectoryLock,
}

pub(super) fn try_open(directory: &Path, text: &str) -> Result<Opened, OpenError> {
    let lock = DirectoryLock::take(directory)?;
    let space = Arc::new(DiskSpace::open(lock.directory(), 0));
    let (control, join) = Control::open(broker(text), &lock, space, RegistrationInfo::nowhere())?;
    join.map_or(Ok(()), |join| control.join_cluster(join))?;
    Ok(Opened { control, _lock: lock })
}

/// Starts a broker of a cluster that uses the database with this URL.
pub fn start_in(directory: &Path, url: &str, id: i32, more: &str) -> Result<Opened, OpenError> {
    try_open(directory, &format!("node.id={id}\ncontrol.plane={url}\n{more}"))
}

pub(super) fn open(directory: &Path) -> Opened {
    try_open(directory, "").expect("opens")
}

pub(super) fn refusal(directory: &Path, text: &str) -> String {
    try_open(directory, text).err().expect("refused").to_string()
}

async fn alter(control: &Control, name: &str, key: &str, change: ConfigChange) -> Result<Arc<Topic>, Refusal> {
    let topic = AlterTopicConfig { name: name.into(), changes: vec![(key.into(), change)] };
    control.alter_topic_configs(AlterTopicConfigs { topics: vec![topic], validate_only: false }).await.remove(0)
}

fn codes(results: &[Result<Arc<Topic>, Refusal>]) -> Vec<Option<ErrorCode>> {
    results.iter().map(|result| result.as_ref().err().map(|refusal| refusal.code)).collect()
}

#[tokio::test]
async fn a_restart_keeps_topics_configs_ids_and_the_cluster_id() {
    let directory = tempfile::tempdir().expect("tempdir");
    let first = open(directory.path());
    let kept = create(&first.control, vec![wanted("kept")]).await.remove(0).expect("created");
    create(&first.control, vec![wanted("gone")]).await.remove(0).expect("created");
    alter(&first.control, "kept", "retention.ms", ConfigChange::Set("77".into())).await.expect("altered");
    first.control.delete_topics(vec![TopicRef::Name("gone".into())]).await.remove(0).expect("deleted");
    let (cluster_id, epoch, image) = (first.control.cluster_id(), first.control.broker_epoch(), first.control.image());
    drop(first);

    let second = open(directory.path()).control.clone();
    assert_eq!(second.cluster_id(), cluster_id);
    assert_eq!(second.cluster_id().to_string().len(), 22);
    assert!(epoch < second.broker_epoch());
    assert_eq!(second.image().epoch(), image.epoch() + 1, "the broker registered anew");
    assert_eq!(second.image().topics().collect::<Vec<_>>(), image.topics().collect::<Vec<_>>());
    let topic = Arc::clone(second.image().topic_by_id(kept.id).expect("by id"));
    assert_eq!((topic.name.as_str(), topic.partition_count(), topic.config.retention_ms), ("kept", 2, Some(77)));
}

#[tokio::test]
async fn deleted_topics_are_remembered_until_their_files_are_removed() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path());
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(create(&opened.control, vec![wanted("t")]).await.remove(0).expect("created").id);
        opened.control.delete_topics(vec![TopicRef::Name("t".into())]).await.remove(0).expect("deleted");
    }
    create(&opened.control, vec![wanted("t")]).await.remove(0).expect("created");
    drop(opened);
    for (forgotten, left) in [(None, 2), (Some(ids[0]), 2), (Some(ids[1]), 1), (None, 0)] {
        let opened = open(directory.path());
        let deleted = opened.control.take_deleted();
        assert_eq!((deleted.len(), opened.control.take_deleted()), (left, vec![]));
        assert!(deleted.iter().all(|topic| (topic.name.as_str(), topic.partitions) == ("t", 2)));
        if let Some(id) = forgotten {
            assert!(deleted.iter().any(|topic| topic.id == id));
            opened.control.forget_deleted(vec![id]).await.expect("forgotten");
        }
        assert_eq!(opened.control.image().topics().len(), 1, "nothing changes for anybody");
    }
}

#[tokio::test]
async fn closed_control_plane_finishes_earlier_commands_and_refuses_later_ones() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path());
    assert_eq!(codes(&create(&opened.control, vec![wanted("t")]).await), [None]);
    let control = opened.control.clone();
    let requested = tokio::spawn(async move { create(&control, vec![wanted("v")]).await });
    tokio::task::yield_now().await;
    opened.control.close();
    assert_eq!(codes(&requested.await.expect("no panic")), [None], "it was asked before");
    let late = opened.control.delete_topics(vec![TopicRef::Name("t".into())]).await;
    assert_eq!(codes(&late), [Some(ErrorCode::KAFKA_STORAGE_ERROR)]);
    assert_eq!(codes(&create(&opened.control, vec![wanted("u")]).await), [Some(ErrorCode::KAFKA_STORAGE_ERROR)]);
    opened.control.close();
    drop(opened);
    let image = open(directory.path()).control.image();
    assert!(image.topic("t").is_some() && image.topic("v").is_some() && image.topic("u").is_none());
}

#[tokio::test]
async fn answered_command_is_in_the_image() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path());
    let mut watch = opened.control.watch();
    let topic = create(&opened.control, vec![wanted("t")]).await.remove(0).expect("created");
    assert!(!topic.id.is_zero());
    let image = opened.control.image();
    assert_eq!((image.epoch(), image.partition_count(), image.topic("t")), (2, 2, Some(&topic)));
    assert!(watch.has_changed().expect("open") && watch.borrow_and_update().topic("t").is_some());
    let altered = alter(&opened.control, "t", "retention.ms", ConfigChange::Set("5".into())).await.expect("altered");
    assert_eq!((altered.id, opened.control.image().partition_count()), (topic.id, 2));
    assert_eq!(image.topic("t").expect("old images stay").config.retention_ms, Some(604_800_000));
    opened.control.delete_topics(vec![TopicRef::Id(topic.id)]).await.remove(0).expect("deleted");
    let image = opened.control.image();
    assert_eq!(
        (image.epoch(), image.partition_count(), image.topic("t"), image.topic_by_id(topic.id)),
        (4, 0, None, None)
    );
    let again = create(&opened.control, vec![wanted("t")]).await.remove(0).expect("created again");
    assert_ne!(again.id, topic.id);
}

#[tokio::test]
async fn each_topic_of_a_request_is_decided_by_itself() {
    let directory = tempfile::tempdir().expect("tempdir");
    let control = &open(directory.path()).control;
    let bad = CreateTopic { num_partitions: 0, ..wanted("bad") };
    let results =
        create(control, vec![wanted("twice"), wanted("good"), bad, wanted("twice"), wanted("a.b"), wanted("a_b")])
            .await;
    let repeated = Some(ErrorCode::INVALID_REQUEST);
    let collides = Some(ErrorCode::INVALID_TOPIC_EXCEPTION);
    assert_eq!(codes(&results), [repeated, None, Some(ErrorCode::INVALID_PARTITIONS), repeated, None, collides]);
    let good = results[1].as_ref().expect("created").id;
    let targets = [
        TopicRef::Name("good".into()),
        TopicRef::Id(good),
        TopicRef::Name("a.b".into()),
        TopicRef::Name("none".into()),
    ];
    let results = control.delete_topics(targets.to_vec()).await;
    assert_eq!(codes(&results), [repeated, repeated, None, Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)]);
    assert_eq!(control.image().topics().map(|topic| topic.name.as_str()).collect::<Vec<_>>(), ["good"]);
}

#[tokio::test]
async fn validate_only_changes_nothing() {
    let directory = tempfile::tempdir().expect("tempdir");
    let control = &open(directory.path()).control;
    let bad = CreateTopic { replication_factor: 3, ..wanted("bad") };
    let results = control.create_topics(CreateTopics { topics: vec![wanted("t"), bad], validate_only: true }).await;
    assert_eq!(codes(&results), [None, Some(ErrorCode::INVALID_REPLICATION_FACTOR)]);
    assert!(results[0].as_ref().expect("valid").id.is_zero());
    create(control, vec![wanted("t")]).await.remove(0).expect("was not created before");
    let change =
        AlterTopicConfig { name: "t".into(), changes: vec![("retention.ms".into(), ConfigChange::Set("1".into()))] };
    let results = control.alter_topic_configs(AlterTopicConfigs { topics: vec![change], validate_only: true }).await;
    assert_eq!(results[0].as_ref().expect("valid").config.retention_ms, Some(1));
    assert_eq!((control.image().epoch(), control.image().topic("t").expect("there").overrides.len()), (2, 0));
}

pub(super) const RETAIN: &str = "max.idempotence.batches.to.retain";

pub(super) async fn alter_broker(
    control: &Control,
    scope: BrokerScope,
    key: &str,
    change: ConfigChange,
) -> Result<(), Refusal> {
    let changes = AlterBrokerConfig { scope, changes: vec![(key.into(), change)] };
    control.alter_broker_configs(AlterBrokerConfigs { brokers: vec![changes], validate_only: false }).await.remove(0)
}

pub(super) fn set(value: &str) -> ConfigChange {
    ConfigChange::Set(value.into())
}

/// Returns the numbers of batches to retain: that of the broker, that of the topic `follows` (without an override), and
/// that of the topic `own` (with an override).
fn in_force(control: &Control) -> (i32, usize, usize) {
    let image = control.image();
    let of = |name| image.topic(name).expect("there").config.producer_state_batches_to_retain;
    (image.batches_to_retain(), of("follows"), of("own"))
}

#[tokio::test]
async fn a_brokers_value_reaches_its_topics_and_survives_a_restart() {
    let directory = tempfile::tempdir().expect("tempdir");
    let file = "max.idempotence.batches.to.retain=20";
    let opened = try_open(directory.path(), file).expect("opens");
    let control = &opened.control;
    let own =
        CreateTopic { configs: vec![("producer.state.batches.to.retain".into(), Some("7".into()))], ..wanted("own") };
    assert!(create(control, vec![wanted("follows"), own]).await.iter().all(Result::is_ok));
    assert_eq!(in_force(control), (20, 20, 7));
    alter_broker(control, BrokerScope::Every, RETAIN, set("30")).await.expect("altered");
    assert_eq!(in_force(control), (30, 30, 7));
    alter_broker(control, BrokerScope::This, RETAIN, set("40")).await.expect("altered");
    assert_eq!(in_force(control), (40, 40, 7));
    let epoch = control.image().epoch();
    drop(opened);

    let opened = open(directory.path());
    let control = &opened.control;
    assert_eq!((in_force(control), control.image().epoch()), ((40, 40, 7), epoch + 1));
    alter_broker(control, BrokerScope::This, RETAIN, ConfigChange::Delete).await.expect("altered");
    alter(control, "own", "producer.state.batches.to.retain", ConfigChange::Delete).await.expect("altered");
    assert_eq!(in_force(control), (30, 30, 30));
    alter_broker(control, BrokerScope::Every, RETAIN, ConfigChange::Delete).await.expect("altered");
    assert_eq!(in_force(control), (5, 5, 5), "the file does not set it any more");
    drop(opened);
    assert_eq!(in_force(&try_open(directory.path(), file).expect("opens").control), (20, 20, 20));
}

#[tokio::test]
async fn static_broker_setting_is_refused_and_nothing_changes() {
    let directory = tempfile::tempdir().expect("tempdir");
    let control = &open(directory.path()).control;
    let every = BrokerScope::Every;
    for (key, change, message) in [
        (RETAIN, set("4"), "max.idempotence.batches.to.retain=4: must be between 5 and 10000"),
        ("node.id", set("2"), "node.id: cannot be changed while the broker runs"),
        ("log.retention.hours", set("2"), "log.retention.hours: cannot be changed while the broker runs"),
        ("producer.state.batches.to.retain", set("9"), "producer.state.batches.to.retain: is not a key of this broker"),
        (
            "log.cleanup.policy",
            ConfigChange::Append("compress".into()),
            "log.cleanup.policy=delete,compress: must be a list of compact and delete",
        ),
        (RETAIN, ConfigChange::Append("9".into()), "Can't APPEND to key max.idempotence.batches.to.retain"),
    ] {
        let refusal = alter_broker(control, every, key, change).await.expect_err(key);
        assert_eq!(refusal.code, ErrorCode::INVALID_CONFIG);
        assert!(refusal.message.starts_with(message), "{}", refusal.message);
    }
    let both = |scope| AlterBrokerConfig { scope, changes: vec![(RETAIN.into(), set("9"))] };
    let brokers = vec![both(every), both(BrokerScope::This), both(every)];
    let results = control.alter_broker_configs(AlterBrokerConfigs { brokers, validate_only: true }).await;
    let codes: Vec<_> = results.iter().map(|result| result.as_ref().err().map(|refusal| refusal.code)).collect();
    let twice = Some(ErrorCode::INVALID_REQUEST);
    assert_eq!(codes, [twice, None, twice]);
    assert_eq!((control.image().epoch(), control.image().batches_to_retain()), (1, 5));
    alter_broker(control, every, "log.cleanup.policy", ConfigChange::Append("delete".into()))
        .await
        .expect("it is there");
}

#[tokio::test]
async fn producer_ids_count_from_zero_and_blocks_are_skipped_by_a_restart() {
    let directory = tempfile::tempdir().expect("tempdir");
    let first = open(directory.path());
    for expected in 0..PRODUCER_ID_BLOCK + 5 {
        assert_eq!(first.control.init_producer_id().await, Ok(expected));
    }
    drop(first);
    assert_eq!(open(directory.path()).control.init_producer_id().await, Ok(2 * PRODUCER_ID_BLOCK));
}

/// After a topic is created, new producers must get ids that are newer than the topic. A producer with an older id may
/// have written to a deleted topic of the same name, so the new topic would accept any first sequence from it.
#[tokio::test]
async fn producer_ids_after_a_new_topic_are_past_all_blocks_taken_before() {
    let directory = tempfile::tempdir().expect("tempdir");
    let control = &open(directory.path()).control;
    assert_eq!(control.init_producer_id().await, Ok(0));
    for (name, next) in [("t", PRODUCER_ID_BLOCK), ("u", 2 * PRODUCER_ID_BLOCK)] {
        create(control, vec![wanted(name)]).await.remove(0).expect("created");
        assert_eq!(control.image().next_producer_id(), next);
        for expected in next..next + 3 {
            assert_eq!(control.init_producer_id().await, Ok(expected));
        }
    }
}

/// A broker that is killed with -9 leaves its files in their state at that moment. Instead of killing the broker, the
/// test copies the files of a running one. A broker that starts with the copy must assign a producer id that was not
/// assigned before.
#[tokio::test]
async fn files_copied_at_any_moment_never_give_an_id_twice() {
    let directory = tempfile::tempdir().expect("tempdir");
    let control = &open(directory.path()).control;
    let mut taken = HashSet::new();
    for _ in 0..5 {
        for _ in 0..PRODUCER_ID_BLOCK / 2 + 1 {
            assert!(taken.insert(control.init_producer_id().await.expect("an id")));
        }
        let copy = tempfile::tempdir().expect("tempdir");
        for file in ["control.db", "control.db-wal"] {
            std::fs::copy(directory.path().join(file), copy.path().join(file)).expect("copied");
        }
        let id = open(copy.path()).control.init_producer_id().await.expect("an id");
        assert!(!taken.contains(&id) && taken.iter().all(|&earlier| earlier < id));
    }
}

#[tokio::test]
#[ignore = "the process that kill_minus_nine_loses_nothing_answered starts and kills"]
async fn child_to_be_killed() {
    let directory = std::env::var_os("FULLBORE_CONTROL_CHILD").expect("the directory");
    let opened = open(Path::new(&directory));
    let epoch = opened.control.broker_epoch();
    for number in 0..u64::MAX {
        let id = opened.control.init_producer_id().await.expect("an id");
        let name = format!("t-{epoch}-{number}");
        create(&opened.control, vec![wanted(&name)]).await.remove(0).expect("created");
        println!("\nanswered {id} {name}");
    }
}

#[tokio::test]
async fn kill_minus_nine_loses_nothing_answered() {
    let directory = tempfile::tempdir().expect("tempdir");
    let (mut ids, mut names) = (HashSet::new(), BTreeSet::new());
    for _ in 0..3 {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["tests::child_to_be_killed", "--exact", "--ignored", "--nocapture"])
            .env("FULLBORE_CONTROL_CHILD", directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let mut note = |line: &str| {
            let Some(answered) = line.strip_prefix("answered ") else {
                return false;
            };
            let Some((id, name)) = answered.split_once(' ') else {
                return false;
            };
            assert!(ids.insert(id.parse::<i64>().expect("a number")), "{id} was given twice");
            names.insert(name.to_owned())
        };
        assert_eq!(lines.by_ref().filter(|line| note(line)).take(20).count(), 20, "the child stopped by itself");
        child.kill().expect("SIGKILL");
        lines.for_each(|line| {
            note(&line);
        });
        child.wait().expect("reaped");
    }
    let opened = open(directory.path());
    let image = opened.control.image();
    let lost: Vec<&String> = names.iter().filter(|name| image.topic(name).is_none()).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert!(names.len() >= 60 && image.topics().len() >= 60);
    let id = opened.control.init_producer_id().await.expect("an id");
    assert!(!ids.contains(&id));
}

/// Creates a writer without its thread, and a receiver of its images. The broker is registered.
fn owner(directory: &DirectoryLock) -> (MetadataWriter<Sqlite>, watch::Receiver<Arc<Image>>) {
    let space = Arc::new(DiskSpace::open(directory.directory(), 0));
    let (store, _) = Sqlite::open(directory.directory(), &broker(""), space, random_id()).expect("opens");
    registered(store, Box::new(random_id))
}

/// Creates a writer for any store, and a receiver of its images. The broker is registered.
fn registered<S: Store>(
    store: S,
    new_id: Box<dyn FnMut() -> Uuid + Send>,
) -> (MetadataWriter<S>, watch::Receiver<Arc<Image>>) {
    let (mut owner, images) = MetadataWriter::new(store, broker(""), new_id).expect("valid");
    let register = register(1, 1);
    owner.transact(|draft| draft.change(&register)).expect("registered");
    (owner, images)
}

/// Creates the registration of a process as the broker `id`, always with the same directory.
fn register(id: i32, process: u128) -> ChangeCommand {
    register_with(id, 7, process)
}

/// Creates the registration of a process as the broker `id`, whose former process was killed.
fn register_with(id: i32, directory: u128, process: u128) -> ChangeCommand {
    let joining =
        Joining { directory, process, ended: PreviousShutdown::Killed, marks: DirectoryMarks::default(), reported: 0 };
    ChangeCommand::RegisterBroker(RegisterBroker {
        id,
        joining,
        rack: None,
        serves_diskless: true,
        accepts_lost_directory: false,
        endpoints: BTreeMap::new(),
    })
}

fn queued<K: CommandKind>(command: K) -> (QueuedCommand, oneshot::Receiver<K::Answer>) {
    let (reply, answer) = oneshot::channel();
    (QueuedCommand { command: command.pending(reply), by: None, at: Instant::now() }, answer)
}

fn create_command(name: &str) -> TopicsCommand {
    TopicsCommand::Create(CreateTopics { topics: vec![wanted(name)], validate_only: false })
}

#[tokio::test]
async fn waiting_commands_share_a_transaction() {
    let directory = tempfile::tempdir().expect("tempdir");
    let lock = DirectoryLock::take(directory.path()).expect("free");
    let (owner, image) = owner(&lock);
    let (queue, served) = queue::queue();
    let (queued, mut answers): (Vec<_>, Vec<_>) = (0..500).map(|n| queued(create_command(&format!("t{n}")))).unzip();
    for queued in queued {
        assert!(queue.enter(queued).await.is_ok());
    }
    drop(queue);
    std::thread::spawn(|| served.run(owner)).join().expect("no panic");
    for answer in &mut answers {
        assert!(answer.try_recv().expect("answered")[0].is_ok());
    }
    assert_eq!((image.borrow().topics().len(), image.borrow().epoch()), (500, 3));
}

#[test]
fn failed_write_changes_nothing_and_later_ones_succeed() {
    let directory = tempfile::tempdir().expect("tempdir");
    let lock = DirectoryLock::take(directory.path()).expect("free");
    let (mut owner, image) = owner(&lock);
    let mut request = |refuse: bool| {
        owner.store.refuse_writes(refuse);
        let ((create, mut topics), (take, mut id)) = (queued(create_command("t")), queued(InitProducerId));
        owner.serve(vec![create, take]);
        (topics.try_recv().expect("answered").remove(0), id.try_recv().expect("answered"))
    };
    let storage = |refusal: &Refusal| refusal.code == ErrorCode::KAFKA_STORAGE_ERROR;
    let (topic, id) = request(true);
    assert!(topic.as_ref().is_err_and(storage) && id.as_ref().is_err_and(storage));
    assert_eq!((image.borrow().epoch(), image.borrow().topics().len()), (1, 0));
    let (topic, id) = request(false);
    assert!(topic.is_ok());
    assert_eq!(id, Ok(0));
    assert_eq!((image.borrow().epoch(), image.borrow().topics().len()), (2, 1));
    drop(lock);
}

#[tokio::test]
async fn writer_panics_outcome_of_its_command_is_unknown_and_later_ones_are_refused() {
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = open(directory.path());
    let mut is_first = true;
    let listener = move |_: &Image, _: &Image| assert!(std::mem::take(&mut is_first), "planted by the test");
    opened.control.follow(Box::new(listener));
    let lost = create(&opened.control, vec![wanted("committed")]).await;
    assert_eq!(codes(&lost), [Some(ErrorCode::REQUEST_TIMED_OUT)], "the topic is committed, but not published");
    while opened.control.is_serving() {
        tokio::task::yield_now().await;
    }
    let refused = create(&opened.control, vec![wanted("refused")]).await;
    assert_eq!(codes(&refused), [Some(ErrorCode::KAFKA_STORAGE_ERROR)]);
    opened.control.close();
    drop(opened);
    let image = open(directory.path()).control.image();
    assert_eq!(image.topics().map(|topic| &*topic.name).collect::<Vec<_>>(), ["committed"]);
}

#[tokio::test]
async fn broker_stands_down_until_it_reads_the_store() {
    let memory = Memory::default();
    let control = member(&memory, 1, 1, "PLAINTEXT", 1).expect("registered");
    let version = control.image().epoch();
    control.stand_down(version);
    assert!(!control.image().stands_down(), "it has the peer's version");
    control.stand_down(version + 1);
    assert_eq!((control.image().stands_down(), control.image().epoch()), (true, version));
    control.catch_up();
    control.settle();
    assert!(!control.image().stands_down());
    control.stand_down(version + 1);
    create(&control, vec![wanted("t")]).await.remove(0).expect("created");
    assert!(!control.image().stands_down());
}
