//! Tests of the control plane on a real PostgreSQL server, with the faults of a database that is reached over a
//! network.

use std::time::Duration;

use fullbore_tests::postgres::{Database, PostgresServer};
use fullbore_tests::{Proxy, wait_until};

use super::super::change::{Change, Version};
use super::super::postgres::Postgres;
use super::super::store::{Progress, Transaction};
use super::super::writer::Failure;
use super::seam::{afresh, created};
use super::*;
use fullbore_config::PlaneSettings;
use fullbore_db::StoreError;
use fullbore_db::postgres::Server;

/// Maximum wait of a test before it fails.
const HANGS: Duration = Duration::from_secs(120);

fn server(url: &str, timeout_ms: u64) -> Server {
    Server::new(&PlaneSettings::new(url, None, timeout_ms), "fullbore test").expect("a URL")
}

fn connect(url: &str, timeout_ms: u64) -> Result<Postgres, String> {
    let opened = Postgres::open(Arc::new(server(url, timeout_ms)), random_id());
    opened.map(|(store, _)| store).map_err(|error| error.to_string())
}

/// Opens a new connection, like another broker.
pub fn store_of(database: &Database) -> Postgres {
    connect(&database.url(), 5_000).expect("connects")
}

fn over(store: Postgres) -> (MetadataWriter<Postgres>, watch::Receiver<Arc<Image>>) {
    registered(store, Box::new(random_id))
}

fn is_away<T>(done: &Result<T, Failure>) -> bool {
    matches!(done, Err(Failure::Store(StoreError::Away(_))))
}

#[test]
fn several_first_starts_at_once_make_one_cluster() {
    let database = Database::create();
    let url = database.url();
    let first = |_| {
        let server = Arc::new(server(&url, 10_000));
        std::thread::spawn(move || {
            let (store, cluster_id) = Postgres::open(server, random_id()).expect("opens");
            let (_, images) = over(store);
            let epoch = images.borrow().epoch();
            (cluster_id, epoch)
        })
    };
    let starts: Vec<_> = (0..5).map(first).collect();
    let made: Vec<_> = starts.into_iter().map(|start| start.join().expect("no panic")).collect();
    assert!(made.iter().all(|(cluster_id, _)| *cluster_id == made[0].0), "{made:?}");
    assert_eq!(database.run("SELECT version, (SELECT count(*) FROM fullbore.versions) FROM fullbore.cluster"), "1|2");
}

/// In the first round, the broker loses its connection during a COMMIT, which the database completes. In the second
/// round, the database ends the session, so nothing is committed. In both rounds the broker must find out whether the
/// commit was made.
#[test]
fn unanswered_commit_is_looked_up_in_the_database() {
    let database = Database::create();
    for (number, is_made) in [(0, true), (1, false)] {
        let relay = Proxy::start();
        relay.lead_to(database.server().address());
        let through = format!("postgres://postgres@{}/{}", relay.address, database.name());
        let (mut owner, images) = over(connect(&through, 20_000).expect("connects"));
        let name = format!("t{number}");
        // A trigger makes the transaction wait for this advisory lock, so that the test can cut the connection during
        // the wait.
        database.run(
            "CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
               'BEGIN PERFORM pg_advisory_lock(7); PERFORM pg_advisory_unlock(7); RETURN NULL; END';
             CREATE OR REPLACE TRIGGER slow AFTER INSERT ON fullbore.topics FOR EACH ROW EXECUTE FUNCTION slow()",
        );
        let mut holder = database.server().session(database.name());
        holder.query("SELECT pg_advisory_lock(7)");
        let before = images.borrow().epoch();
        let requesting = std::thread::spawn(move || {
            let done = owner.transact(|draft| draft.topics(&create_command(&name)));
            (owner, done)
        });
        // `pg_locks` also lists locks in the databases of other tests, so select those of this database.
        let waiting = "FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let waits = format!("SELECT count(*) {waiting}");
        wait_until("the commit is under way", HANGS, || database.run(&waits) == "1");
        match is_made {
            true => relay.cut(),
            false => drop(database.run(&format!("SELECT pg_terminate_backend(pid) {waiting}"))),
        }
        drop(holder);
        let (mut owner, done) = requesting.join().expect("no panic");
        assert_eq!(done.is_ok(), is_made, "{done:?}");
        assert_eq!(images.borrow().topics().len(), usize::from(is_made));
        assert_eq!(images.borrow().epoch(), before + u64::from(is_made));
        let again =
            created(owner.transact(|draft| draft.topics(&create_command(&format!("t{number}")))).expect("done"));
        assert_eq!(again.is_ok(), !is_made);
        database.run("DROP TRIGGER slow ON fullbore.topics");
        owner
            .transact(|draft| draft.topics(&TopicsCommand::Delete(vec![TopicRef::Name(format!("t{number}").into())])))
            .expect("done");
    }
}

#[test]
fn frozen_broker_loses_the_lock() {
    let database = Database::create();
    let mut frozen = connect(&database.url(), 3_000).expect("connects");
    let (mut owner, images) = over(connect(&database.url(), 20_000).expect("connects"));
    let started = Instant::now();
    let (held, _) = frozen.begin(None).expect("begun");
    created(owner.transact(|draft| draft.topics(&create_command("t"))).expect("it gets the lock")).expect("created");
    assert!(started.elapsed() > Duration::from_millis(200) && started.elapsed() < HANGS, "{:?}", started.elapsed());
    let version = images.borrow().version().expect("there");
    let late = held.commit(&[Change::ProducerIdsTaken { next: 5 }], Version { number: version.number + 1, nonce: 1 });
    assert!(late.is_err(), "its lock is gone");
    assert_eq!(afresh(store_of(&database)), format!("{:?}", images.borrow()));
    // The store continues over a new connection.
    assert!(matches!(frozen.begin(Some(version)), Ok((_, Progress::Since(since))) if since.is_empty()));
}

#[test]
fn commands_fail_retriably_during_a_database_outage_and_succeed_after_it() {
    let server = PostgresServer::start();
    let name = server.database();
    let (mut owner, images) = over(connect(&server.url(&name), 5_000).expect("connects"));
    owner.stock_up();
    owner.transact(|draft| draft.topics(&create_command("t"))).expect("done");
    server.stop();
    let started = Instant::now();
    for _ in 0..20 {
        assert!(is_away(&owner.transact(|draft| draft.topics(&create_command("u")))));
    }
    // If each attempt lasted for the time limit of a call, the attempts would take 100 s.
    assert!(started.elapsed() < Duration::from_secs(40), "{:?}", started.elapsed());
    let ((take, mut id), (create, mut topics)) = (queued(InitProducerId), queued(create_command("u")));
    owner.serve(vec![take, create]);
    assert_eq!(id.try_recv(), Ok(Ok(0)));
    let is_retriable = |refusal: &Refusal| refusal.code == ErrorCode::REQUEST_TIMED_OUT;
    assert!(topics.try_recv().expect("answered")[0].as_ref().is_err_and(is_retriable));
    server.start_again();
    wait_until("it is found again", HANGS, || owner.transact(|draft| draft.topics(&create_command("u"))).is_ok());
    // The server stops, which also ends the open connection. The store does not notice this yet.
    server.stop();
    server.start_again();
    owner.transact(|draft| draft.topics(&create_command("v"))).expect("over another connection");
    assert_eq!(images.borrow().topics().len(), 3);
}

#[test]
fn writer_too_far_behind_reads_the_whole_state() {
    let database = Database::create();
    let (mut owner, _images) = over(store_of(&database));
    let (mut late, late_images) = over(store_of(&database));
    owner.catch_up();
    for name in ["t", "u"] {
        owner.transact(|draft| draft.topics(&create_command(name))).expect("done");
    }
    database.run("UPDATE fullbore.versions SET changes = null WHERE version = 2");
    late.catch_up();
    assert_eq!(late_images.borrow().topics().len(), 2);
    let known = late_images.borrow().version();
    let mut store = store_of(&database);
    commit_beside(&mut store, known, Change::ProducerIdsTaken { next: 5_000 });
    database.run("DELETE FROM fullbore.versions WHERE version < 4");
    late.catch_up();
    assert_eq!(late_images.borrow().epoch(), 4);
}

#[test]
fn names_from_clients_are_stored_unchanged() {
    let database = Database::create();
    let (mut owner, images) = over(store_of(&database));
    let (mut other, other_images) = over(store_of(&database));
    other.catch_up();
    let odd = "it's \\ \\0 \0 $$ ? é \u{1f980}'; DROP SCHEMA fullbore CASCADE; --";
    let changes = vec![("consumer.session.timeout.ms".to_owned(), set("46000"))];
    let resources = vec![AlterResourceConfig { resource: fullbore_config::Resource::Group, name: odd.into(), changes }];
    owner
        .transact(|draft| {
            draft.configs(&ConfigsCommand::Resources(AlterResourceConfigs { resources, validate_only: false }))
        })
        .expect("done");
    other.catch_up();
    for image in [&images, &other_images] {
        assert!(image.borrow().resource(fullbore_config::Resource::Group, odd).is_some());
    }
    assert_eq!(afresh(store_of(&database)), format!("{:?}", images.borrow()));
}

/// The server ends the session at every possible point. Acknowledged commits must still be in the database.
#[test]
fn ended_session_leaves_no_partial_commit() {
    let database = Database::create();
    let (mut owner, images) = over(store_of(&database));
    let end = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    database.run(end);
    created(owner.transact(|draft| draft.topics(&create_command("t"))).expect("over another connection"))
        .expect("created");
    let version = images.borrow().version();
    let (transaction, _) = owner.store.begin(version).expect("begun");
    database.run(end);
    let next = Version { number: images.borrow().epoch() + 1, nonce: 3 };
    assert!(transaction.commit(&[Change::ProducerIdsTaken { next: 5 }], next).is_err());
    assert!(matches!(owner.store.begin(version), Ok((_, Progress::Since(since))) if since.is_empty()));
    let (mut transaction, _) = owner.store.begin(version).expect("begun");
    database.run(end);
    assert!(matches!(transaction.includes(next), Err(StoreError::Away(_))));
    drop(transaction);
    created(owner.transact(|draft| draft.topics(&create_command("u"))).expect("done")).expect("created");
    assert_eq!(afresh(store_of(&database)), format!("{:?}", images.borrow()));
}

/// The primary key of the versions prevents a commit that was decided on an outdated state.
#[test]
fn version_is_committed_only_once() {
    let database = Database::create();
    let (owner, images) = over(store_of(&database));
    drop(owner);
    let mut store = store_of(&database);
    let known = images.borrow().version();
    let (transaction, _) = store.begin(known).expect("begun");
    let again = transaction.commit(&[Change::ProducerIdsTaken { next: 5 }], known.expect("there"));
    assert!(matches!(again, Err(fullbore_db::CommitError::Refused(StoreError::Away(_)))), "{again:?}");
    assert_eq!(afresh(store_of(&database)), format!("{:?}", images.borrow()));
}

/// Each of four writers must see the commits of all others before it decides.
#[test]
fn four_writers_at_once_never_decide_on_an_older_state() {
    let database = Database::create();
    let writer = |_| {
        let store = store_of(&database);
        std::thread::spawn(move || {
            let (mut owner, images) = over(store);
            let mut made = 0;
            for number in 0..25 {
                let done =
                    owner.transact(|draft| (draft.topics(&create_command(&format!("t{number}"))), draft.producer_id()));
                made += usize::from(created(done.expect("done").0).is_ok());
            }
            owner.catch_up();
            (made, images.borrow().topics().len())
        })
    };
    let writers: Vec<_> = (0..4).map(writer).collect();
    let done: Vec<(usize, usize)> = writers.into_iter().map(|writer| writer.join().expect("no panic")).collect();
    assert_eq!(done.iter().map(|(made, _)| made).sum::<usize>(), 25, "each topic was made once: {done:?}");
    let versions = "SELECT version = (SELECT count(*) - 1 FROM fullbore.versions) FROM fullbore.cluster";
    assert_eq!(database.run(versions), "t", "without gaps");
}
