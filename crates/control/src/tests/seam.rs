//! Tests of the storage trait on SQLite, on PostgreSQL and in memory, and of several brokers that share a store.

use fullbore_rules::cluster::LogEndReport;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_rules::replica::epochs::Position;
use imbl::Vector;
use proptest::prelude::*;

use super::super::change::{Change, Partitions, Version};
use super::super::queue::{BATCH_MAX, WAITING_MAX};
use super::super::store::{Commit, Progress, Transaction};
use super::super::test_util::Fault;
use super::super::writer::Failure;
use super::postgres::store_of;
use super::*;
use fullbore_config::Resource;
use fullbore_db::{CommitError, StoreError};
use fullbore_tests::postgres::Database;

/// Returns a source of ids that returns the same sequence in every run.
pub(super) fn counted() -> Box<dyn FnMut() -> Uuid + Send> {
    let mut drawn = 0_u128;
    Box::new(move || {
        drawn += 1;
        Uuid(drawn.to_be_bytes())
    })
}

pub(super) fn sqlite(directory: &Path) -> Sqlite {
    let space = Arc::new(DiskSpace::open(directory, 0));
    Sqlite::open(directory, &broker(""), space, random_id()).expect("opens").0
}

type Notes = Arc<Mutex<Vec<Commit>>>;

/// A store that records its commits.
struct Noted<S>(S, Notes);

struct NotedTransaction<T>(T, Notes);

impl<S: Store> Store for Noted<S> {
    type Transaction<'a> = NotedTransaction<S::Transaction<'a>>;

    fn begin(&mut self, at: Option<Version>) -> Result<(Self::Transaction<'_>, Progress), StoreError> {
        let (transaction, progress) = self.0.begin(at)?;
        Ok((NotedTransaction(transaction, Arc::clone(&self.1)), progress))
    }
}

impl<T: Transaction> Transaction for NotedTransaction<T> {
    fn includes(&mut self, version: Version) -> Result<bool, StoreError> {
        self.0.includes(version)
    }

    fn commit(self, changes: &[Change], version: Version) -> Result<(), CommitError> {
        self.0.commit(changes, version)?;
        self.1.lock().push(Commit { version, changes: changes.to_vec() });
        Ok(())
    }
}

fn name(number: u8) -> String {
    format!("t.{number}")
}

/// A command of a random kind.
#[derive(Debug, Clone)]
enum AnyCommand {
    Topics(TopicsCommand),
    Configs(ConfigsCommand),
    Change(ChangeCommand),
    ProducerId,
}

impl AnyCommand {
    /// Decides the command and returns the outcome as text.
    fn decided(&self, draft: &mut Draft<'_>) -> String {
        match self {
            Self::Topics(command) => format!("{:?}", draft.topics(command)),
            Self::Configs(command) => format!("{:?}", draft.configs(command)),
            Self::Change(command) => format!("{:?}", draft.change(command)),
            Self::ProducerId => format!("{:?}", draft.producer_id()),
        }
    }
}

fn topic_commands() -> impl Strategy<Value = AnyCommand> {
    let create = (0..6_u8, 0..5_i32, 0..4_i64, any::<bool>()).prop_map(|(number, num_partitions, retention, only)| {
        let configs = vec![("retention.ms".to_owned(), Some((retention - 2).to_string()))];
        let topic = CreateTopic { num_partitions, configs, ..wanted(&name(number)) };
        TopicsCommand::Create(CreateTopics { topics: vec![topic, wanted("t.0")], validate_only: only })
    });
    let grow = (0..6_u8, 1..9_i32).prop_map(|(number, count)| {
        let topics = vec![GrowTopic { name: name(number), count, assignments: None }];
        TopicsCommand::Grow(CreatePartitions { topics, validate_only: false })
    });
    let delete = (0..6_u8).prop_map(|number| TopicsCommand::Delete(vec![TopicRef::Name(name(number).into())]));
    let alter = (0..6_u8, any::<bool>(), 1..9_u8).prop_map(|(number, sets, value)| {
        let change = if sets { set(&value.to_string()) } else { ConfigChange::Delete };
        let topics = vec![AlterTopicConfig { name: name(number), changes: vec![("retention.bytes".into(), change)] }];
        TopicsCommand::Alter(AlterTopicConfigs { topics, validate_only: false })
    });
    prop_oneof![3 => create, 2 => grow, 2 => delete, 2 => alter].prop_map(AnyCommand::Topics)
}

fn other_commands() -> impl Strategy<Value = AnyCommand> {
    let brokers = (any::<bool>(), any::<bool>(), 5..9_u8).prop_map(|(this, sets, value)| {
        let scope = if this { BrokerScope::This } else { BrokerScope::Every };
        let change = if sets { set(&value.to_string()) } else { ConfigChange::Delete };
        let brokers = vec![AlterBrokerConfig { scope, changes: vec![(RETAIN.into(), change)] }];
        ConfigsCommand::Brokers(AlterBrokerConfigs { brokers, validate_only: false })
    });
    let resources = (0..3_u8, any::<bool>(), 0..9_u8).prop_map(|(number, sets, value)| {
        let change = if sets { set(&format!("4600{value}")) } else { ConfigChange::Delete };
        let changes = vec![("consumer.session.timeout.ms".into(), change)];
        let resources = vec![AlterResourceConfig { resource: Resource::Group, name: name(number), changes }];
        ConfigsCommand::Resources(AlterResourceConfigs { resources, validate_only: false })
    });
    let features = (0..3_i16, any::<bool>(), any::<bool>()).prop_map(|(level, rises, validate_only)| {
        let kind = Some(if rises { UpgradeType::Upgrade } else { UpgradeType::SafeDowngrade });
        let updates = vec![FeatureUpdate { name: "transaction.version".into(), level, kind }];
        ConfigsCommand::Features(UpdateFeatures { updates, validate_only })
    });
    let forget = (0..40_u8).prop_map(|id| ChangeCommand::ForgetDeleted(vec![Uuid(u128::from(id).to_be_bytes())]));
    let restart = (2..9_u128).prop_map(|process| register(1, process));
    let configs = prop_oneof![brokers, resources, features].prop_map(AnyCommand::Configs);
    let changes = prop_oneof![forget, restart].prop_map(AnyCommand::Change);
    prop_oneof![2 => configs, 2 => changes, 1 => Just(AnyCommand::ProducerId)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The same random commands must have the same outcomes, changes and images on all stores. A new writer that reads
    /// the store afterwards must have the same image too.
    #[test]
    fn all_stores_have_the_same_outcomes_and_images(
        batches in proptest::collection::vec(
            proptest::collection::vec(prop_oneof![2 => topic_commands(), 1 => other_commands()], 1..5), 1..20),
        reports_whole in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().expect("tempdir");
        let memory = Memory::default().reporting(reports_whole);
        let database = Database::emptied("both");
        let [of_file, of_memory, of_database] = [(); 3].map(|()| Arc::default());
        let (mut file_owner, file_image) = registered(Noted(sqlite(directory.path()), Arc::clone(&of_file)), counted());
        let (mut memory_owner, memory_image) = registered(Noted(memory.clone(), Arc::clone(&of_memory)), counted());
        let (mut other_owner, other_image) = registered(Noted(store_of(&database), Arc::clone(&of_database)), counted());
        let mut late = MetadataWriter::new(store_of(&database), broker(""), Box::new(random_id)).expect("valid");
        late.0.catch_up();
        for batch in &batches {
            let decide = |draft: &mut Draft<'_>| batch.iter().map(|command| command.decided(draft)).collect::<Vec<_>>();
            let done = [file_owner.transact(decide), memory_owner.transact(decide), other_owner.transact(decide)];
            let [file, memory, database] = done.map(|done| done.expect("done"));
            prop_assert_eq!(&file, &memory);
            prop_assert_eq!(&file, &database);
            let [file, memory, database] = [&file_image, &memory_image, &other_image].map(|image| format!("{:?}", image.borrow()));
            prop_assert_eq!(&file, &memory);
            prop_assert_eq!(&file, &database);
        }
        prop_assert_eq!(&*of_file.lock(), &*of_memory.lock());
        prop_assert_eq!(&*of_file.lock(), &*of_database.lock());
        let image = format!("{:?}", file_image.borrow());
        late.0.catch_up();
        prop_assert_eq!(&format!("{:?}", late.1.borrow()), &image, "what was told one by one");
        prop_assert_eq!(&afresh(store_of(&database)), &image);
        prop_assert_eq!(&afresh(sqlite(directory.path())), &image);
        prop_assert_eq!(&afresh(memory.clone()), &image);
        prop_assert_eq!(&afresh(memory.reporting(!reports_whole)), &image);
    }

    /// Changes random partition registrations, once in SQLite and once in PostgreSQL. A writer that applies each change
    /// must get the same image as a writer that starts afterwards and reads the whole state.
    #[test]
    fn changed_partitions_are_read_as_written(
        changed in proptest::collection::vec((0..12_usize, proptest::collection::vec(0..3_i32, 1..5)), 1..20),
    ) {
        let directory = tempfile::tempdir().expect("tempdir");
        let of_file = changed_and_afresh(|| sqlite(directory.path()), &changed);
        prop_assert_eq!(&of_file.0, &of_file.1);
        let database = Database::emptied("partitions");
        let of_database = changed_and_afresh(|| store_of(&database), &changed);
        prop_assert_eq!(of_file, of_database);
    }
}

/// Returns two images: that of a writer that follows the changes `changed`, and that of a writer that starts
/// afterwards.
fn changed_and_afresh<S: Store>(open: impl Fn() -> S, changed: &[(usize, Vec<i32>)]) -> (String, String) {
    let (mut owner, images) = registered(open(), counted());
    owner.transact(|draft| draft.topics(&create_command("t"))).expect("done");
    let topic = images.borrow().topic("t").expect("there").id;
    for (at, leaders) in changed {
        let (newest, count) = (images.borrow().version(), images.borrow().partition_count());
        let led = |id: &i32| {
            let (isr, elr, lost) = (vec![*id], vec![id + 1], vec![id + 2, id + 3]);
            let leader = Some(*id).filter(|id| *id > 0);
            let replicas = (*id..=id + 3).collect();
            Arc::new(PartitionRegistration { replicas, leader, isr, elr, lost, ..Default::default() })
        };
        let partitions: Partitions = leaders.iter().map(led).collect::<Vector<_>>();
        let change = Change::PartitionsChanged { topic, first: (*at).min(count), partitions };
        commit_beside(&mut owner.store, newest, change);
        owner.catch_up();
        let image = Arc::clone(&images.borrow());
        if image.topic_by_id(topic).is_some_and(|topic| topic.partitions[(*at).min(count)].leader.is_none()) {
            let position = Position { last_epoch: (*at > 5).then_some(3), offset: *at as i64 };
            let end = LogEndReport { broker_id: (*at % 3) as i32, broker_epoch: 9, position };
            let partition = (*at).min(count) as i32;
            commit_beside(&mut owner.store, image.version(), Change::LogEndReported { topic, partition, end });
            owner.catch_up();
        }
    }
    (format!("{:?}", images.borrow()), afresh(open()))
}

/// Returns the image of a new writer that has read the whole state.
pub(super) fn afresh(store: impl Store) -> String {
    let (mut owner, images) = MetadataWriter::new(store, broker(""), Box::new(random_id)).expect("valid");
    owner.catch_up();
    let image = format!("{:?}", images.borrow());
    image
}

pub(super) fn created(mut topics: Vec<Result<Arc<Topic>, Refusal>>) -> Result<Uuid, ErrorCode> {
    topics.remove(0).map(|topic| topic.id).map_err(|refusal| refusal.code)
}

/// Two writers change the store in turn. Each must decide on the newest image.
fn two_writers<S: Store>(stores: [S; 2]) {
    let [(one, of_one), (other, of_other)] = stores.map(|store| registered(store, Box::new(random_id)));
    let mut owners = [one, other];
    for round in 0..4 {
        let (one, other) = (round % 2, 1 - round % 2);
        let name = format!("t{round}");
        let mut create = |at: usize| {
            let done = owners[at].transact(|draft| draft.topics(&create_command(&name)));
            created(done.expect("done"))
        };
        create(one).expect("created");
        let again = create(other);
        assert_eq!(again, Err(ErrorCode::TOPIC_ALREADY_EXISTS), "the other one did it");
        assert_eq!(format!("{:?}", of_one.borrow()), format!("{:?}", of_other.borrow()));
    }
    let mut ids = HashSet::new();
    for round in 0..3 * PRODUCER_ID_BLOCK {
        let id = owners[usize::from(round % 2 == 0)].transact(|draft| draft.producer_id());
        assert!(ids.insert(id.expect("done").expect("an id")));
    }
}

#[test]
fn decision_is_based_on_changes_of_another_writer() {
    for reports_whole in [false, true] {
        let memory = Memory::default().reporting(reports_whole);
        two_writers([memory.clone(), memory]);
    }
    let directory = tempfile::tempdir().expect("tempdir");
    two_writers([sqlite(directory.path()), sqlite(directory.path())]);
    let database = Database::create();
    two_writers([store_of(&database), store_of(&database)]);
}

/// No published image contains the topic, so no broker has files of it. If the store recorded the topic as deleted, no
/// broker would ever report that the files are removed, and the record would never be deleted.
#[test]
fn topic_created_and_deleted_in_one_transaction_leaves_no_deleted_topic() {
    let directory = tempfile::tempdir().expect("tempdir");
    let (mut owner, images) = registered(sqlite(directory.path()), counted());
    let (create, delete) = (create_command("t"), TopicsCommand::Delete(vec![TopicRef::Name("t".into())]));
    let mut each = |commands: &[&TopicsCommand]| {
        let done = owner.transact(|draft| commands.iter().all(|command| created(draft.topics(command)).is_ok()));
        assert_eq!(done.ok(), Some(true));
    };
    each(&[&create, &delete, &create, &delete, &create]);
    assert_eq!((images.borrow().topics().len(), images.borrow().deleted().len()), (1, 0));
    let last = images.borrow().topic("t").expect("there").id;
    each(&[&delete, &create, &delete]);
    let left: Vec<_> = images.borrow().deleted().keys().copied().collect();
    assert_eq!(left, [last], "it may have directories");
    assert_eq!(afresh(sqlite(directory.path())), format!("{:?}", images.borrow()));
}

/// The rows, the stored versions and the image must remember and forget the same names.
#[test]
fn names_of_deleted_topics_are_read_as_written() {
    let directory = tempfile::tempdir().expect("tempdir");
    let database = Database::create();
    remembered_and_afresh(|| sqlite(directory.path()));
    remembered_and_afresh(|| store_of(&database));
    assert_eq!(database.run("SELECT name, partitions, diskless FROM fullbore.past_topics"), "t|8|f\nt|5|f");
}

fn remembered_and_afresh<S: Store>(open: impl Fn() -> S) {
    let (mut owner, images) = registered(open(), counted());
    let mut late = MetadataWriter::new(open(), broker(""), Box::new(random_id)).expect("valid");
    late.0.catch_up();
    let mut commands = Vec::new();
    for (name, num_partitions) in [("t", 8), ("t", 4), ("u", 2), ("t", 3), ("t", 2), ("t", 1)] {
        let topics = vec![CreateTopic { num_partitions, ..wanted(name) }];
        commands.push(TopicsCommand::Create(CreateTopics { topics, validate_only: false }));
        commands.push(TopicsCommand::Delete(vec![TopicRef::Name(name.into())]));
    }
    let mut compare = |image: String| {
        late.0.catch_up();
        assert_eq!(format!("{:?}", late.1.borrow()), image);
        assert_eq!(afresh(open()), image);
    };
    for command in &commands {
        owner.transact(|draft| draft.topics(command)).expect("done");
        compare(format!("{:?}", images.borrow()));
    }
    assert_eq!(images.borrow().past_topics("t").iter().count(), 4);
    let forgotten = Change::NameRemembered { name: "u".into(), past: Default::default() };
    let newest = images.borrow().version();
    commit_beside(&mut owner.store, newest, forgotten);
    owner.catch_up();
    compare(format!("{:?}", images.borrow()));
    assert!(images.borrow().past_topics("u").is_empty());
    let topics = vec![CreateTopic { num_partitions: 5, ..wanted("t") }];
    let last = TopicsCommand::Create(CreateTopics { topics, validate_only: false });
    owner.transact(|draft| draft.topics(&last)).expect("done");
    owner.transact(|draft| draft.topics(&commands[1])).expect("done");
    let counts: Vec<i32> = images.borrow().past_topics("t").iter().map(|topic| topic.partitions).collect();
    assert_eq!(counts, [8, 5]);
    compare(format!("{:?}", images.borrow()));
}

/// Creates a writer for a shared store, and a receiver of its images.
fn over(memory: &Memory) -> (MetadataWriter<Memory>, watch::Receiver<Arc<Image>>) {
    registered(memory.clone(), Box::new(random_id))
}

#[test]
fn unanswered_commit_is_looked_up() {
    for (fault, is_made) in [(Fault::Before, false), (Fault::After, true), (Fault::Meanwhile, true)] {
        let memory = Memory::default();
        let (mut owner, images) = over(&memory);
        memory.next_commit(fault);
        let done = owner.transact(|draft| (draft.topics(&create_command("t")), draft.producer_id()));
        assert_eq!((done.is_ok(), images.borrow().topic("t").is_some()), (is_made, is_made), "{fault:?}");
        assert!(is_made || matches!(done, Err(Failure::Store(StoreError::Failed(_)))));
        assert_eq!(memory.commits().len(), 1 + usize::from(is_made));
        let next = owner.transact(|draft| draft.producer_id()).expect("done");
        assert_eq!(next, Ok(i64::from(is_made)));
        let again = created(owner.transact(|draft| draft.topics(&create_command("t"))).expect("done"));
        assert_eq!(again.is_ok(), !is_made);
    }
}

#[test]
fn unknown_commit_is_known_once_the_store_is_reachable_again() {
    let memory = Memory::default();
    let (mut owner, images) = over(&memory);
    memory.next_commit(Fault::ForLong);
    let ((create, mut topics), (take, mut id)) = (queued(create_command("t")), queued(InitProducerId));
    owner.serve(vec![create, take]);
    let is_open = |refusal: &Refusal| refusal.code == ErrorCode::REQUEST_TIMED_OUT;
    assert!(topics.try_recv().expect("answered")[0].as_ref().is_err_and(is_open));
    assert!(id.try_recv().expect("answered").as_ref().is_err_and(is_open));
    assert!(images.borrow().topic("t").is_none());
    assert!(owner.transact(|draft| draft.topics(&create_command("u"))).is_err());
    memory.mend();
    owner.catch_up();
    assert!(images.borrow().topic("t").is_some(), "it was made");
    let next = owner.transact(|draft| draft.producer_id()).expect("done");
    assert_eq!(next, Ok(PRODUCER_ID_BLOCK), "nobody has had the block before");
}

#[test]
fn store_restored_from_an_older_copy_is_not_followed() {
    let memory = Memory::default();
    let (mut owner, images) = over(&memory);
    for name in ["t", "u"] {
        owner.transact(|draft| draft.topics(&create_command(name))).expect("done");
    }
    let directory = tempfile::tempdir().expect("tempdir");
    let (mut file_owner, file_images) = registered(sqlite(directory.path()), Box::new(random_id));
    file_owner.transact(|draft| draft.topics(&create_command("t"))).expect("done");
    let database = Database::create();
    let (mut other_owner, other_images) = registered(store_of(&database), Box::new(random_id));
    other_owner.transact(|draft| draft.topics(&create_command("t"))).expect("done");
    memory.restore(2);
    sqlite(directory.path()).mark_otherwise();
    database.run("UPDATE fullbore.versions SET mark = mark # 1");
    for more in 0..2 {
        let create = |draft: &mut Draft<'_>| created(draft.topics(&create_command("v")));
        for done in [owner.transact(create), file_owner.transact(create), other_owner.transact(create)] {
            assert!(matches!(done, Err(Failure::Store(StoreError::WentBack(_)))), "{done:?}");
        }
        assert_eq!((images.borrow().topics().len(), file_images.borrow().topics().len()), (2, 1));
        assert_eq!(other_images.borrow().topics().len(), 1);
        // The store is still refused as an older copy when it has as many versions as before.
        let newest = memory.commits().last().map(|commit| commit.version);
        commit_beside(&mut memory.clone(), newest, Change::ProducerIdsTaken { next: more });
    }
}

/// The copy has all changes of the metadata, and lacks changes to diskless topics only.
#[test]
fn older_copy_lacks_changes_to_diskless_topics_only_its_metadata_stay_unchanged() {
    let database = Database::create();
    let count = |count: i64| {
        database.run(&format!(
            "INSERT INTO fullbore.diskless_brokers VALUES (2, {count})
               ON CONFLICT (broker_id) DO UPDATE SET counter = excluded.counter"
        ))
    };
    let (mut owner, images) = registered(store_of(&database), Box::new(random_id));
    count(5);
    owner.transact(|draft| draft.topics(&create_command("t"))).expect("done");
    let newest = database.run("SELECT max(version) FROM fullbore.versions");
    count(4);
    for _ in 0..2 {
        let done = owner.transact(|draft| created(draft.topics(&create_command("u"))));
        assert!(matches!(done, Err(Failure::Store(StoreError::LacksChanges(_)))), "{done:?}");
    }
    // A broker that knows no newer changes commits to the copy. The first broker must not read this commit.
    let (mut other_owner, _) = registered(store_of(&database), Box::new(random_id));
    other_owner.transact(|draft| draft.topics(&create_command("v"))).expect("done");
    let read = owner.read();
    assert!(matches!(read, Err(Failure::Store(StoreError::LacksChanges(_)))), "{read:?}");
    database.run(&format!(
        "DELETE FROM fullbore.versions WHERE version > {newest}; UPDATE fullbore.cluster SET version = {newest};
         DELETE FROM fullbore.topics WHERE name = 'v'"
    ));
    count(5);
    created(owner.transact(|draft| draft.topics(&create_command("u"))).expect("done")).expect("created");
    assert_eq!(images.borrow().topics().len(), 2);
}

/// Deletes a topic whose leader epoch has risen, and creates it again. Returns the image of a writer that follows these
/// changes, and that of a writer that starts afterwards.
fn made_again<S: Store>(open: impl Fn() -> S) -> [String; 2] {
    let (mut owner, images) = registered(open(), counted());
    owner.transact(|draft| draft.topics(&create_command("t"))).expect("done");
    let image = Arc::clone(&images.borrow());
    let topic = image.topic("t").expect("there");
    let led = PartitionRegistration { leader_epoch: 2, ..PartitionRegistration::clone(&topic.partitions[0]) };
    let partitions: Partitions = topic.partitions.iter().map(|_| Arc::new(led.clone())).collect();
    let change = Change::PartitionsChanged { topic: topic.id, first: 0, partitions };
    commit_beside(&mut owner.store, image.version(), change);
    owner.catch_up();
    let delete = TopicsCommand::Delete(vec![TopicRef::Name("t".into())]);
    owner.transact(|draft| draft.topics(&delete)).expect("done").remove(0).expect("deleted");
    let (mut late, late_images) = registered(open(), Box::new(random_id));
    late.transact(|draft| draft.topics(&create_command("t"))).expect("done").remove(0).expect("created");
    owner.catch_up();
    let image = format!("{:?}", images.borrow());
    let made = Arc::clone(images.borrow().topic("t").expect("there"));
    assert!(made.partitions.iter().all(|of| of.leader_epoch > 2), "{made:?}");
    assert_eq!(format!("{:?}", late_images.borrow()), image);
    [image, afresh(open())]
}

#[test]
fn topic_made_again_begins_behind_the_leader_epochs_of_the_deleted_in_each_store() {
    let (directory, database) = (tempfile::tempdir().expect("tempdir"), Database::emptied("again"));
    for [followed, afresh] in [made_again(|| sqlite(directory.path())), made_again(|| store_of(&database))] {
        assert_eq!(followed, afresh);
    }
}

/// Starts a control plane with a store in memory.
fn control(memory: &Memory) -> Control {
    let (memory, cluster_id) = (memory.clone(), random_id());
    let identity = Identity {
        cluster_id,
        directory: Uuid(7_u128.to_be_bytes()),
        used: None,
        store: PathBuf::from("memory").into(),
    };
    Control::start(broker(""), RegistrationInfo::nowhere(), move || Ok((memory, identity))).expect("starts")
}

#[tokio::test]
async fn commands_wait_in_a_bounded_queue_and_are_carried_out_without_their_caller() {
    let memory = Memory::default();
    let control = control(&memory);
    let held = memory.locked();
    let queue = control.queue().expect("open");
    let create_one = |number: usize| {
        let control = control.clone();
        tokio::spawn(async move { create(&control, vec![wanted(&format!("t{number}"))]).await })
    };
    let first = create_one(0);
    tokio::task::yield_now().await;
    memory.someone_waits();
    let count = 1 + WAITING_MAX + BATCH_MAX;
    let callers: Vec<_> = (1..count).map(create_one).collect();
    while queue.places() > 0 {
        tokio::task::yield_now().await;
    }
    first.abort();
    callers[0].abort();
    callers[count - 2].abort();
    for gone in [&first, &callers[0], &callers[count - 2]] {
        while !gone.is_finished() {
            tokio::task::yield_now().await;
        }
    }
    drop(held);
    for (at, caller) in callers.into_iter().enumerate().take(count - 2).skip(1) {
        assert_eq!(codes(&caller.await.expect("no panic")), [None], "{at}");
    }
    let image = control.image();
    let is_there = |number: usize| image.topic(&format!("t{number}")).is_some();
    assert_eq!([is_there(0), is_there(1), is_there(count - 1)], [true, true, false], "who had a place was heard");
    assert_eq!(image.topics().len(), count - 1);
    drop(queue);
    control.close();
    assert_eq!(memory.threads().into_iter().collect::<Vec<_>>(), ["control"]);
}

/// Commits of another broker must be published on request, even if no command arrives. Two commits are published as one
/// image.
#[tokio::test]
async fn commit_of_another_broker_is_published_on_request() {
    let memory = Memory::default();
    let control = control(&memory);
    let followed = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&followed);
    control.follow(Box::new(move |before, after| noted.lock().push((before.epoch(), after.epoch()))));
    let (mut other, _) = over(&memory);
    other.transact(|draft| draft.topics(&create_command("t"))).expect("done");
    let mut images = control.watch();
    control.catch_up();
    images.wait_for(|image| image.topic("t").is_some()).await.expect("open");
    assert_eq!(*followed.lock(), [(0, 1), (1, 3)]);
}

#[test]
fn producer_ids_come_from_the_older_block_while_the_store_is_away() {
    let memory = Memory::default();
    let (mut owner, _images) = over(&memory);
    owner.transact(|draft| draft.producer_id()).expect("done").expect("an id");
    owner.transact(|draft| draft.topics(&create_command("t"))).expect("done");
    memory.next_commit(Fault::ForLong);
    let (producer_id, mut answer) = queued(InitProducerId);
    owner.serve(vec![producer_id]);
    assert_eq!(answer.try_recv(), Ok(Ok(1)));
}

#[test]
fn producer_ids_of_the_block_need_no_store() {
    let memory = Memory::default();
    let (mut owner, _images) = over(&memory);
    owner.transact(|draft| draft.producer_id()).expect("done").expect("an id");
    memory.next_commit(Fault::ForLong);
    assert!(owner.transact(|draft| draft.topics(&create_command("t"))).is_err());
    let ((take, mut id), (create, mut topics)) = (queued(InitProducerId), queued(create_command("u")));
    owner.serve(vec![take, create]);
    assert_eq!(id.try_recv(), Ok(Ok(1)));
    assert!(topics.try_recv().expect("answered")[0].is_err());
}
