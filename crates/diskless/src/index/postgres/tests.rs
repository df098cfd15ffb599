//! Tests the index on a database that several brokers share over a network.

mod measure;
mod older_copies;
mod upgrade;

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fullbore_rules::commit::{CommitVerdict, DisklessPartitionId, ObjectId, Refusal};
use fullbore_tests::postgres::{Database, PostgresServer};
use fullbore_tests::{Proxy, wait_until};
use tempfile::TempDir;

use super::super::store::{ChangeSource, IndexStore, PartitionRow, UnusedObject};
use super::super::tests::{BackEnd, NOW, Opened, TOPIC, appended, batch, by};
use super::super::{Index, UploadedObject};
use super::*;
use fullbore_db::CommitError;
use fullbore_db::postgres::schema;

const HANGS: Duration = Duration::from_secs(120);
const CLUSTER: Uuid = Uuid([9; 16]);
/// A condition that limits a query of `pg_locks` to the test's own database. The view also lists locks of other tests.
const HERE: &str = "database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// A database with the schema, and a data directory for each broker.
pub struct PostgresBackEnd {
    database: Database,
    directory: TempDir,
}

type PostgresIndexOf = Index<PostgresIndex>;

impl PostgresBackEnd {
    fn broker(&self, broker_id: i32) -> (PostgresIndex, RunFinder, PostgresChanges) {
        self.broker_over(&self.database.url(), broker_id, 10_000)
    }

    fn broker_over(&self, url: &str, broker_id: i32, timeout_ms: u64) -> (PostgresIndex, RunFinder, PostgresChanges) {
        let directory = self.directory.path().join(broker_id.to_string());
        std::fs::create_dir_all(&directory).expect("made");
        open(&PlaneSettings::new(url, None, timeout_ms), broker_id, &directory, CLUSTER, Arc::default())
            .expect("opened")
    }

    fn index(&self, broker_id: i32) -> PostgresIndexOf {
        Index::new(self.broker(broker_id).0, 128)
    }
}

/// Creates the tables in an empty database.
fn make_tables(url: &str) {
    let server = DatabaseServer::new(&PlaneSettings::new(url, None, 10_000), "test").expect("a URL");
    let mut connection = DatabaseConnection::new(Arc::new(server)).expect("made");
    connection.connect().expect("connects");
    let ensured = connection.with_session(|session, call_max| schema::ensure(session, call_max, CLUSTER));
    ensured.expect("it is connected").expect("made");
}

impl BackEnd for PostgresBackEnd {
    type Store = PostgresIndex;

    fn new() -> Self {
        let database = Database::create();
        make_tables(&database.url());
        PostgresBackEnd { database, directory: tempfile::tempdir().expect("temporary directory") }
    }

    fn store(&self) -> PostgresIndex {
        self.broker(1).0
    }

    fn finder(&self) -> Box<dyn RunSource> {
        let server = DatabaseServer::new(&PlaneSettings::new(&self.database.url(), None, 10_000), "test");
        let connection = DatabaseConnection::new(Arc::new(server.expect("a URL"))).expect("made");
        Box::new(PostgresFinder::new(connection))
    }

    fn add_topic(&self, name: &str, topic: Uuid) {
        self.database.run(&format!("DELETE FROM fullbore.topics WHERE name = '{name}'; INSERT INTO fullbore.topics VALUES ('{topic}', '{name}')"));
    }

    fn age(&self, ms: i64) {
        self.database.run(&format!(
            "UPDATE fullbore.diskless_objects SET changed_at = changed_at - {ms} * interval '1 millisecond'"
        ));
    }

    fn now_ms(&self) -> i64 {
        NOW
    }

    fn producer_rows(&self, id: DisklessPartitionId) -> usize {
        let count = format!("SELECT count(*) FROM fullbore.diskless_producers WHERE partition = {id}");
        self.database.run(&count).parse().expect("a number")
    }

    fn refuse_writes(&self, _: &PostgresIndex, refuse: bool) {
        self.database.run(match refuse {
            true => "ALTER TABLE fullbore.diskless_runs ADD CONSTRAINT refused CHECK (false) NOT VALID",
            false => "ALTER TABLE fullbore.diskless_runs DROP CONSTRAINT refused",
        });
    }
}

type OpenedOnPostgres = Opened<PostgresBackEnd>;

fn registered(index: &mut PostgresIndexOf, count: usize) -> Vec<ObjectId> {
    index.store.register(count, NOW).expect("registered")
}

/// Commits one object, and repeats the commit until its outcome is known.
fn until_known(index: &mut PostgresIndexOf, object: &UploadedObject) -> Vec<CommitVerdict> {
    let started = Instant::now();
    loop {
        match index.commit(std::slice::from_ref(object), NOW) {
            Ok(mut answer) => return answer.verdicts.remove(0),
            Err(error) => assert!(started.elapsed() < HANGS, "{error:?}"),
        }
        std::thread::yield_now();
    }
}

fn is_away<T>(done: &Result<T, CommitError>) -> bool {
    matches!(done, Err(CommitError::Refused(StoreError::Away(_)) | CommitError::Unknown(_)))
}

/// Asserts that the extents of the partition have no gaps.
fn assert_dense(opened: &OpenedOnPostgres, partition: DisklessPartitionId, end: i64) {
    let runs = opened.back_end.finder().runs_from(partition, 0, 10_000).expect("read");
    let mut at = 0;
    for run in &runs {
        assert_eq!(run.base_offset, at);
        at = run.end_offset();
    }
    assert_eq!(at, end);
}

#[test]
fn two_brokers_commit_to_one_partition_at_once_and_each_batch_is_there_once() {
    let opened = OpenedOnPostgres::new(2);
    let partitions = &opened.partitions;
    let committed = |broker: i32| {
        let mut index = opened.back_end.index(broker);
        let objects = registered(&mut index, 250);
        let mut offsets = Vec::new();
        for (number, id) in (0..).zip(objects) {
            let mut batches: Vec<_> = [0, 1].map(|at| batch(partitions[at], at as u32 * 100, number * 10)).into();
            batches = batches.into_iter().map(|batch| by(i64::from(broker), batch)).collect();
            let verdicts = until_known(&mut index, &UploadedObject { id, batches });
            offsets.extend(verdicts.iter().zip(partitions).map(|(verdict, partition)| (*partition, *verdict)));
        }
        offsets
    };
    let offsets = std::thread::scope(|scope| {
        let others = scope.spawn(|| committed(2));
        [committed(1), others.join().expect("no panic")].concat()
    });
    let mut seen: BTreeMap<DisklessPartitionId, Vec<i64>> = BTreeMap::new();
    for (partition, verdict) in offsets {
        let CommitVerdict::Appended { base_offset } = verdict else { panic!("{verdict:?}") };
        seen.entry(partition).or_default().push(base_offset);
    }
    for (partition, mut offsets) in seen {
        offsets.sort_unstable();
        assert!(offsets.into_iter().eq((0..500).map(|at| at * 10)));
        assert_dense(&opened, partition, 5_000);
    }
    let counters = "SELECT string_agg(counter::text, ',') FROM fullbore.diskless_brokers";
    assert_eq!(opened.back_end.database.run(counters), "250,250");
}

#[test]
fn two_brokers_commit_one_batch_at_once_it_is_appended_once_and_both_get_its_offset() {
    const ROUNDS: i32 = 1_000;
    let opened = OpenedOnPostgres::new(1);
    let partition = opened.partitions[0];
    let barrier = Barrier::new(2);
    let commits = |broker: i32| {
        let mut index = opened.back_end.index(broker);
        let objects = registered(&mut index, ROUNDS as usize);
        let commit = |(number, id): (i32, ObjectId)| {
            let object = UploadedObject { id, batches: vec![batch(partition, 0, number * 10)] };
            barrier.wait();
            until_known(&mut index, &object)[0]
        };
        (0..ROUNDS).zip(objects).map(commit).collect::<Vec<_>>()
    };
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| commits(2));
        (commits(1), second.join().expect("no panic"))
    });
    for (number, reported) in (0..).zip(first.into_iter().zip(second)) {
        let base_offset = number * 10;
        let duplicate = CommitVerdict::Duplicate { base_offset, timestamp: NOW };
        let one = appended(base_offset);
        assert!(reported == (one, duplicate) || reported == (duplicate, one), "{number}: {reported:?}");
    }
    assert_dense(&opened, partition, i64::from(ROUNDS) * 10);
}

/// In the first round, the connection is cut during a commit. In the second round, the server ends the session.
#[test]
fn a_commit_whose_answer_is_lost_is_found_by_its_object() {
    let opened = OpenedOnPostgres::new(1);
    let (partition, database) = (opened.partitions[0], &opened.back_end.database);
    database.run(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN PERFORM pg_advisory_lock(7); PERFORM pg_advisory_unlock(7); RETURN NULL; END';
         CREATE TRIGGER slow AFTER INSERT ON fullbore.diskless_producers FOR EACH ROW EXECUTE FUNCTION slow()",
    );
    for (number, is_made) in [(0, true), (1, false)] {
        let relay = Proxy::start();
        relay.lead_to(database.server().address());
        let through = format!("postgres://postgres@{}/{}", relay.address, database.name());
        let mut index = Index::new(opened.back_end.broker_over(&through, 1, 20_000).0, 128);
        let object =
            UploadedObject { id: registered(&mut index, 1)[0], batches: vec![batch(partition, 0, number * 10)] };
        let mut holder = database.server().session(database.name());
        holder.query("SELECT pg_advisory_lock(7)");
        std::thread::scope(|scope| {
            let committing = scope.spawn(|| {
                let done = index.commit(std::slice::from_ref(&object), NOW);
                (done.map(|answer| answer.verdicts), until_known(&mut index, &object))
            });
            let waiting = format!("FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND {HERE}");
            let waits = format!("SELECT count(*) {waiting}");
            wait_until("the commit is under way", HANGS, || database.run(&waits) == "1");
            match is_made {
                true => relay.cut(),
                false => drop(database.run(&format!("SELECT pg_terminate_backend(pid) {waiting}"))),
            }
            drop(holder);
            let (done, then) = committing.join().expect("no panic");
            assert!(matches!(done, Err(CommitError::Unknown(_))), "{done:?}");
            assert_eq!(then, [appended(i64::from(number) * 10)]);
        });
        let counter = "SELECT counter FROM fullbore.diskless_brokers";
        assert_eq!(database.run(counter), (number + 1).to_string(), "it was made once");
    }
    assert_dense(&opened, partition, 20);
}

#[test]
fn a_session_that_the_server_ends_leaves_nothing_half_done() {
    let mut opened = OpenedOnPostgres::new(1);
    let partition = opened.partitions[0];
    let end = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let object = opened.object();
    opened.back_end.database.run(end);
    assert_eq!(opened.commit(object, &[batch(partition, 0, 0)]), [appended(0)], "over another connection");
    let question = super::super::CommitQuestion { partitions: vec![(partition, 0)], objects: vec![object] };
    opened.index.store.begin(&question).expect("begun");
    opened.back_end.database.run(end);
    let write = super::super::CommitWrite { partitions: Vec::new(), decision: Default::default(), now_ms: NOW };
    opened.index.store.commit(&write).expect_err("its transaction is gone");
    let object = opened.object();
    assert_eq!(opened.commit(object, &[batch(partition, 0, 10)]), [appended(10)]);
}

#[test]
fn database_is_down_each_call_ends_and_later_ones_go_on() {
    let server = PostgresServer::start();
    let database = server.database();
    let settings = PlaneSettings::new(&server.url(&database), None, 3_000);
    let directory = tempfile::tempdir().expect("temporary directory");
    let opened = open(&settings, 1, directory.path(), CLUSTER, Arc::default());
    let (store, finder, mut changes) = opened.expect("opened without it");
    let mut index = Index::new(store, 128);
    assert!(is_away(&index.store.register(1, NOW)), "there are no tables yet");
    make_tables(&server.url(&database));
    server.run(&database, &format!("INSERT INTO fullbore.topics VALUES ('{TOPIC}', 't')"));
    let partition = index.store.create("topic", TOPIC, 1).expect("made")[0].id;
    let objects = registered(&mut index, 3);
    let object = |at: usize| UploadedObject { id: objects[at], batches: vec![batch(partition, 0, at as i32 * 10)] };
    until_known(&mut index, &object(0));
    changes.changed().expect("told");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut all_fail = |index: &mut PostgresIndexOf| {
        let started = Instant::now();
        assert!(is_away(&index.commit(&[object(1)], NOW)));
        assert!(is_away(&index.store.move_log_start(partition, 5)));
        changes.changed().expect_err("away");
        runtime.block_on(finder.runs_from(partition, 0, 1)).expect_err("away");
        started.elapsed()
    };
    server.freeze();
    let frozen = all_fail(&mut index);
    server.thaw();
    assert!(frozen < HANGS, "{frozen:?}");
    assert_eq!(until_known(&mut index, &object(1)), [appended(10)]);
    server.stop();
    let stopped = all_fail(&mut index);
    server.start_again();
    assert!(stopped < HANGS, "{stopped:?}");
    assert_eq!(until_known(&mut index, &object(2)), [appended(20)]);
    wait_until("found again", HANGS, || {
        runtime.block_on(finder.runs_from(partition, 0, 9)).is_ok_and(|runs| runs.len() == 3)
    });
}

#[test]
fn a_slow_broker_makes_no_partitions_of_a_deleted_topic() {
    let mut opened = OpenedOnPostgres::new(2);
    let database = &opened.back_end.database;
    let mut holder = database.server().session(database.name());
    holder.query(&format!("BEGIN; DELETE FROM fullbore.topics WHERE id = '{TOPIC}'"));
    let mut store = opened.back_end.broker(2).0;
    let rows = std::thread::scope(|scope| {
        let creating = scope.spawn(|| store.create("topic", TOPIC, 4).expect("asked"));
        // The creation waits for the transaction that deletes the topic.
        let waits = "SELECT count(*) > 0 FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        wait_until("it waits for who deletes", HANGS, || database.run(waits) == "t");
        holder.query("COMMIT");
        creating.join().expect("no panic")
    });
    assert_eq!(rows, [], "although others have not deleted them yet");
    opened.index.store.delete(TOPIC, &[]).expect("deleted");
    assert_eq!(store.create("topic", TOPIC, 2).expect("asked"), []);
    assert_eq!(opened.back_end.database.run("SELECT count(*) FROM fullbore.diskless_partitions"), "0");
}

#[test]
fn many_brokers_make_and_delete_the_same_topics_at_once() {
    let opened = OpenedOnPostgres::new(1);
    for round in 0..10 {
        let topic = Uuid([round + 10; 16]);
        opened.back_end.add_topic(&topic.to_string(), topic);
        let made: Vec<Vec<PartitionRow>> = std::thread::scope(|scope| {
            let work = |broker| {
                let back_end = &opened.back_end;
                scope.spawn(move || {
                    let mut store = back_end.broker(broker).0;
                    store.create(&topic.to_string(), topic, 50).expect("made")
                })
            };
            let threads = [work(1), work(2), work(3)];
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(made[0].len() == 50 && made.iter().all(|rows| *rows == made[0]), "round {round}");
        std::thread::scope(|scope| {
            for broker in 1..4 {
                let (back_end, ids) = (&opened.back_end, made[0].iter().map(|row| row.id).rev().collect::<Vec<_>>());
                scope.spawn(move || {
                    let mut store = back_end.broker(broker).0;
                    store.retain_batches(&ids, broker as usize * 100).expect("done");
                    store.delete(topic, &[]).expect("deleted");
                    while store.clear(10, NOW).expect("cleared") {}
                    store.unused(10, 60_000, NOW).expect("taken");
                });
            }
        });
    }
    let mut store = opened.back_end.broker(1).0;
    while store.clear(10, NOW).expect("cleared") {}
    let left =
        "SELECT (SELECT count(*) FROM fullbore.diskless_partitions), (SELECT count(*) FROM fullbore.diskless_cleared)";
    assert_eq!(opened.back_end.database.run(left), "1|0");
}

#[test]
fn clock_of_one_broker_is_ahead_ages_are_by_that_of_the_database() {
    let opened = OpenedOnPostgres::new(1);
    let mut broker = opened.back_end.index(2);
    let now_ms = fullbore_host::files::now_ms();
    let week_ms = 7 * 24 * 3_600_000;
    let judged = broker.store.judged_at(now_ms + week_ms).expect("known");
    assert!((now_ms - 60_000..now_ms + 3_600_000).contains(&judged), "{judged} at {now_ms}");
    assert_eq!(broker.store.judged_at(now_ms - week_ms).expect("known"), now_ms - week_ms);
    // A broker whose own clock is behind dates its records by the clock of the database.
    let dated = broker.store.append_clock().at(now_ms - week_ms);
    assert!((now_ms - 60_000..now_ms + 3_600_000).contains(&dated), "{dated} at {now_ms}");
}

#[test]
fn brokers_have_several_windows_the_largest_is_retained() {
    let mut opened = OpenedOnPostgres::new(1);
    let partition = opened.partitions[0];
    let mut other = Index::new(opened.back_end.broker(2).0, 5);
    opened.index = Index::new(opened.back_end.store(), 5);
    other.retain_batches(&[partition], 5).expect("done");
    other.refresh_one(partition, 0).expect("known").expect("there");
    opened.index.retain_batches(&[partition], 8).expect("done");
    for number in 0..9 {
        let object = opened.object();
        opened.commit(object, &[batch(partition, 0, number * 10)]);
    }
    assert_eq!(other.refresh_one(partition, 0).expect("known").expect("there").row.window, 8);
    let needs = |offset| other.known[&partition].producers.needs(7, offset..=offset);
    assert!(needs(10) && !needs(9), "eight of nine");
    assert_eq!(opened.back_end.finder().partitions(&[partition]).expect("read")[0].window, 8);
}

/// While a broker commits objects, the GC of another broker deletes old ones. Each object must end up either committed
/// or deleted.
#[test]
fn object_is_cleaned_or_committed_never_both() {
    let mut opened = OpenedOnPostgres::new(1);
    let partition = opened.partitions[0];
    let objects: Vec<ObjectId> = registered(&mut opened.index, 200);
    opened.back_end.age(3_600_000);
    let barrier = Barrier::new(2);
    let mut cleaner = opened.back_end.broker(2).0;
    let (taken, reported) = std::thread::scope(|scope| {
        let cleaning = scope.spawn(|| {
            let mut take = || cleaner.unused(2, 60_000, NOW).expect("taken").into_iter().map(|object| object.id);
            let mut taken: Vec<ObjectId> = take().collect();
            barrier.wait();
            for _ in 0..100 {
                taken.extend(take());
            }
            taken
        });
        let mut reported = Vec::new();
        for (number, id) in objects.iter().rev().enumerate() {
            let of = by(number as i64, batch(partition, 0, 0));
            reported.push((*id, opened.commit(*id, &[of])[0]));
            if number == 0 {
                barrier.wait();
            }
        }
        (cleaning.join().expect("no panic"), reported)
    });
    let gone = CommitVerdict::Refused(Refusal::ObjectGone);
    for (id, verdict) in &reported {
        assert_eq!(taken.contains(id), *verdict == gone, "{id}");
    }
    let is_gone = |(_, verdict): &&(ObjectId, CommitVerdict)| *verdict == gone;
    assert_eq!(taken.len(), reported.iter().filter(is_gone).count(), "each once");
    assert!(!taken.is_empty() && taken.len() < objects.len(), "{}", taken.len());
    // If a commit has locked an object, the GC skips this object.
    let object = registered(&mut opened.index, 1)[0];
    opened.back_end.age(3_600_000);
    let question = super::super::CommitQuestion { partitions: vec![(partition, 0)], objects: vec![object] };
    opened.index.store.begin(&question).expect("begun");
    assert!(cleaner.unused(10, 60_000, NOW).expect("taken").is_empty());
    opened.index.store.abandon();
    assert_eq!(cleaner.unused(10, 60_000, NOW).expect("taken"), [UnusedObject { id: object, is_again: false }]);
}

#[test]
fn other_brokers_commit_the_change_feed_misses_nothing() {
    let opened = OpenedOnPostgres::new(20);
    let partitions = &opened.partitions;
    let mut changes = opened.back_end.broker(3).2;
    assert_eq!(changes.changed().expect("told"), []);
    let (done, mut received) = (AtomicBool::new(false), BTreeMap::new());
    let write = |broker: i32| {
        let mut index = opened.back_end.index(broker);
        let mut sequences = [0; 20];
        for (number, id) in registered(&mut index, 150).into_iter().enumerate() {
            let at = (number * (broker as usize * 2 + 1)) % 20;
            let of = by(i64::from(broker), batch(partitions[at], 0, sequences[at]));
            sequences[at] += 10;
            until_known(&mut index, &UploadedObject { id, batches: vec![of] });
            if number % 10 == 9 {
                index.store.move_log_start(partitions[at], 10).expect("moved").expect("there");
            }
        }
    };
    std::thread::scope(|scope| {
        let writers = [scope.spawn(|| write(1)), scope.spawn(|| write(2))];
        scope.spawn(|| {
            writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
            done.store(true, Ordering::SeqCst);
        });
        let mut is_last = false;
        while !is_last {
            is_last = done.load(Ordering::SeqCst);
            for row in changes.changed().expect("told") {
                let before: Option<PartitionRow> = received.insert(row.id, row);
                assert!(before.is_none_or(|before| before.next_offset <= row.next_offset));
            }
        }
    });
    let mut finder = opened.back_end.finder();
    for id in partitions {
        let row = finder.partitions(&[*id]).expect("read").pop();
        assert_eq!(received.get(id).copied(), row.filter(|row| row.next_offset > 0), "{id}");
    }
    assert_eq!(changes.changed().expect("told"), [], "nothing has changed since");
    // The feed of broker 3 does not return the changes of broker 3 itself.
    let mut own = opened.back_end.broker(3).0;
    own.move_log_start(partitions[0], 20).expect("moved");
    assert_eq!(changes.changed().expect("told"), []);
}

#[test]
fn broker_deletes_runs_it_gets_the_latest_commit_of_another() {
    let mut opened = OpenedOnPostgres::new(1);
    let (id, objects) = (opened.partitions[0], registered(&mut opened.index, 2));
    let (mut own, _, mut changes) = opened.back_end.broker(3);
    let mut commit = |number: usize| {
        let of = batch(id, 0, number as i32 * 10);
        until_known(&mut opened.index, &UploadedObject { id: objects[number], batches: vec![of] });
        opened.index.store.move_log_start(id, 10).expect("moved");
    };
    commit(0);
    assert_eq!(changes.changed().expect("told").len(), 1);
    commit(1);
    assert!(own.clear(256, NOW).expect("cleared"));
    let ends: Vec<i64> = changes.changed().expect("told").iter().map(|row| row.next_offset).collect();
    assert_eq!(ends, [20]);
}

#[test]
fn database_refuses_a_commit_the_state_in_memory_stays() {
    let mut opened = OpenedOnPostgres::new(1);
    let (id, objects) = (opened.partitions[0], registered(&mut opened.index, 2));
    let object =
        |number: usize| UploadedObject { id: objects[number], batches: vec![batch(id, 0, number as i32 * 10)] };
    until_known(&mut opened.index, &object(0));
    opened.back_end.database.run("ALTER TABLE fullbore.diskless_brokers RENAME TO away");
    opened.index.commit(&[object(1)], NOW).expect_err("a table is not there");
    opened.back_end.database.run("ALTER TABLE fullbore.away RENAME TO diskless_brokers");
    assert!(opened.index.known.contains_key(&id));
    assert_eq!(until_known(&mut opened.index, &object(1)), [appended(10)]);
}

#[test]
fn topic_is_deleted_while_no_broker_has_the_store_the_next_one_deletes_its_rows() {
    let mut opened = OpenedOnPostgres::new(2);
    let [first, second] = opened.partitions[..] else { panic!("two") };
    let object = opened.object();
    opened.commit(object, &[batch(first, 0, 0), batch(second, 100, 0)]);
    let other = Uuid([2; 16]);
    opened.back_end.add_topic("other", other);
    let kept = opened.back_end.store().create("other", other, 1).expect("made")[0];
    opened.tidy();
    assert_eq!(opened.back_end.finder().partitions(&[first, second, kept.id]).expect("read").len(), 3);
    opened.back_end.database.run(&format!("DELETE FROM fullbore.topics WHERE id = '{TOPIC}'"));
    opened.again();
    opened.tidy();
    assert_eq!(opened.back_end.finder().partitions(&[first, second, kept.id]).expect("read"), [kept]);
    assert_eq!(opened.back_end.finder().runs_from(first, 0, 1).expect("read"), []);
    opened.back_end.age(3_600_000);
    assert!(
        opened
            .index
            .store
            .unused(10, 60_000, NOW)
            .expect("taken")
            .contains(&UnusedObject { id: object, is_again: false })
    );
}
