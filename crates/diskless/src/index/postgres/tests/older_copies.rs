//! Tests the index on a database that is replaced by an older copy while brokers use it.

use super::*;
use fullbore_db::Version;
use fullbore_db::postgres::schema::CHANGES_SKIPPED;

/// The database is replaced by an older copy. Later, the newest database is put back.
#[test]
fn database_is_an_older_copy_nothing_is_committed() {
    let server = PostgresServer::start();
    let database = server.database();
    let settings = PlaneSettings::new(&server.url(&database), None, 2_000);
    make_tables(&server.url(&database));
    server.run(&database, &format!("INSERT INTO fullbore.topics VALUES ('{TOPIC}', 't')"));
    let directories = [(); 2].map(|()| tempfile::tempdir().expect("temporary directory"));
    let broker = |at: usize| {
        let opened = open(&settings, at as i32, directories[at].path(), CLUSTER, Arc::default());
        let (store, _, changes) = opened.expect("opened");
        (Index::new(store, 128), changes)
    };
    let ((mut one, mut changes), (mut other, _)) = (broker(0), broker(1));
    let partition = one.store.create("topic", TOPIC, 1).expect("made")[0].id;
    let objects = registered(&mut one, 6);
    let object = |at: usize| UploadedObject { id: objects[at], batches: vec![batch(partition, 0, at as i32 * 10)] };
    until_known(&mut one, &object(0));
    changes.changed().expect("told");
    until_known(&mut other, &object(1));
    assert_eq!(changes.changed().expect("told").len(), 1);
    server.copy();
    // The other broker commits after the copy was made, and the first broker reads this commit. The first broker
    // therefore knows a change that the copy lacks.
    until_known(&mut other, &object(2));
    changes.changed().expect("told");
    assert_eq!(one.refresh_one(partition, 0).expect("known").expect("there").row.next_offset, 30);
    server.swap();
    let went_back = |index: &mut PostgresIndexOf, at: usize| {
        let done = index.commit(&[object(at)], NOW).map(|answer| answer.verdicts);
        matches!(done, Err(CommitError::Refused(StoreError::WentBack(_))))
    };
    assert!(went_back(&mut one, 3), "a transaction of the other that it has noted is missing");
    assert!(went_back(&mut one, 3), "and so it is seen again");
    assert!(went_back(&mut other, 3), "a transaction of its own is missing");
    assert!(matches!(other.store.register(1, NOW), Err(CommitError::Refused(StoreError::WentBack(_)))));
    assert!(matches!(changes.changed(), Err(StoreError::WentBack(_))));
    drop(other);
    let mut other = broker(1).0;
    assert!(went_back(&mut other, 3), "so it is after a start");
    std::fs::remove_file(directories[1].path().join(crate::index::NOTED_CHANGES)).expect("removed");
    assert_eq!(server.run(&database, "SELECT next_offset FROM fullbore.diskless_partitions"), "20");
    server.swap();
    assert_eq!(until_known(&mut one, &object(3)), [appended(30)]);
    assert_eq!(until_known(&mut other, &object(4)), [appended(40)]);
    assert_eq!(until_known(&mut broker(1).0, &object(5)), [appended(50)]);
}

/// The copy has all changes to diskless topics, and lacks the newest version of the metadata only.
#[test]
fn older_copy_lacks_metadata_only_nothing_is_committed_or_read() {
    let back_end = PostgresBackEnd::new();
    back_end.add_topic("t", TOPIC);
    let (settings, known) =
        (PlaneSettings::new(&back_end.database.url(), None, 10_000), Arc::<KnownChanges>::default());
    let opened = open(&settings, 1, back_end.directory.path(), CLUSTER, Arc::clone(&known));
    let (store, _, mut changes) = opened.expect("opened");
    let (mut one, mut other) = (Index::new(store, 128), back_end.index(2));
    let partition = one.store.create("topic", TOPIC, 1).expect("made")[0].id;
    let objects = registered(&mut one, 5);
    let object = |at: usize| UploadedObject { id: objects[at], batches: vec![batch(partition, 0, at as i32 * 10)] };
    back_end.database.run("INSERT INTO fullbore.versions VALUES (500, 7, now(), NULL)");
    known.raise_version(Version { number: 500, nonce: 7 });
    assert_eq!(until_known(&mut one, &object(0)), [appended(0)]);
    changes.changed().expect("read");
    let lacking = ["UPDATE fullbore.versions SET mark = 8 WHERE version = 500", "DELETE FROM fullbore.versions"];
    for (at, copy) in lacking.iter().enumerate() {
        back_end.database.run(copy);
        let before = known.counts();
        // A broker that does not know the version commits to the copy. The first broker must not note this commit.
        until_known(&mut other, &object(1 + at));
        let done = one.commit(&[object(3)], NOW).map(|answer| answer.verdicts);
        assert_eq!(done, Err(CommitError::Refused(StoreError::WentBack(500))));
        assert_eq!(changes.changed().map(|rows| rows.len()), Err(StoreError::WentBack(500)));
        assert_eq!(known.counts(), before);
    }
    // An accepted copy skips versions. The newest one is then larger than the known one.
    back_end.database.run("INSERT INTO fullbore.versions VALUES (501, 7, now(), NULL)");
    assert_eq!(until_known(&mut one, &object(3)), [appended(30)]);
}

/// The command that accepts the copy cannot notice a frozen broker, because that broker sends no heartbeats. The broker
/// has a batch in memory that the copy lacks. Other brokers then write other batches with the same offsets to the copy.
#[test]
fn older_copy_is_accepted_while_a_broker_is_frozen_its_commits_are_refused_until_it_restarts() {
    let server = PostgresServer::start();
    let database = server.database();
    let settings = PlaneSettings::new(&server.url(&database), None, 2_000);
    make_tables(&server.url(&database));
    server.run(&database, &format!("INSERT INTO fullbore.topics VALUES ('{TOPIC}', 't')"));
    let directories = [(); 2].map(|()| tempfile::tempdir().expect("temporary directory"));
    let broker = |at: usize| {
        let opened = open(&settings, at as i32, directories[at].path(), CLUSTER, Arc::default());
        let (store, _, changes) = opened.expect("opened");
        (Index::new(store, 128), changes)
    };
    let (mut frozen, mut changes) = broker(0);
    let partition = frozen.store.create("topic", TOPIC, 1).expect("made")[0].id;
    let objects = registered(&mut frozen, 6);
    let object = |at: usize, sequence| UploadedObject { id: objects[at], batches: vec![batch(partition, 0, sequence)] };
    until_known(&mut broker(1).0, &object(0, 0));
    changes.changed().expect("told");
    server.copy();
    assert_eq!(until_known(&mut frozen, &object(1, 10)), [appended(10)]);
    server.swap();
    let accepted = "INSERT INTO fullbore.diskless_brokers VALUES (0, 0), (1, 0) ON CONFLICT DO NOTHING;
        UPDATE fullbore.diskless_brokers SET counter = counter +";
    server.run(&database, &format!("{accepted} {CHANGES_SKIPPED}"));
    let mut other = broker(1).0;
    assert_eq!(until_known(&mut other, &object(2, 10)), [appended(10)]);
    assert_eq!(until_known(&mut other, &object(3, 20)), [appended(20)]);
    for _ in 0..2 {
        let done = frozen.commit(&[object(4, 30)], NOW).map(|answer| answer.verdicts);
        assert!(matches!(done, Err(CommitError::Refused(StoreError::WentBack(_)))), "{done:?}");
        assert!(matches!(changes.changed(), Err(StoreError::WentBack(_))));
    }
    drop((frozen, changes));
    let (mut restarted, mut changes) = broker(0);
    changes.changed().expect("told");
    assert_eq!(until_known(&mut restarted, &object(4, 30)), [appended(30)]);
    assert_eq!(until_known(&mut other, &object(5, 40)), [appended(40)]);
    changes.changed().expect("told");
}
