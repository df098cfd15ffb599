//! A store and an index of diskless topics that do not belong together. The broker must write nothing and lose no
//! record.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fullbore_tests::s3::{S3, S3Fault};
use fullbore_tests::{Batch, Broker, serve_refused, wait_until};
use fullbore_wire::ErrorCode;

const TOPIC: &str = "diskless";
const CONFIGS: &[(&str, &str)] = &[("diskless.enable", "true")];
const SOON: Duration = Duration::from_secs(60);
const UNKNOWN: &str = "the store has objects of this cluster that the index does not know";
const OTHER: &str =
    "this store does not have this cluster's records; set diskless.storage back to the store that has them";

/// Returns a stopped broker that has one record in a diskless topic.
fn stopped_with_a_record(sets: &[&str]) -> Broker {
    let mut broker = Broker::start(sets);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    assert_eq!(client.produced(TOPIC, 0, &Batch::of(&["before"])), 0);
    broker.stop();
    broker
}

fn assert_goes_on(broker: &Broker) {
    let mut client = broker.client();
    let texts = |client: &mut fullbore_tests::Client| -> Vec<String> {
        client.fetch_records(TOPIC, 0).iter().map(|record| record.text()).collect()
    };
    assert_eq!(texts(&mut client), ["before"]);
    assert_eq!(client.produced(TOPIC, 0, &Batch::of(&["after"])), 1);
    assert_eq!(texts(&mut client), ["before", "after"]);
}

fn storage(directory: &Path) -> String {
    format!("diskless.storage={}", directory.display())
}

/// Returns every file in a directory and below it.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let (mut directories, mut found) = (vec![directory.to_owned()], Vec::new());
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { directories.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

/// Moves the files of the index from one directory to another.
fn move_index(from: &Path, to: &Path) {
    for name in ["diskless.db", "diskless.db-wal", "diskless.db-shm"] {
        let _ = fs::remove_file(to.join(name));
        if from.join(name).exists() {
            fs::rename(from.join(name), to.join(name)).expect("moved");
        }
    }
}

#[test]
fn broker_without_its_index_does_not_start_over_the_objects() {
    let mut broker = stopped_with_a_record(&[]);
    let (directory, aside) = (broker.data_dir().to_owned(), tempfile::tempdir().expect("a temporary directory"));
    let before = files(&directory.join("diskless"));
    move_index(&directory, aside.path());
    for _ in 0..2 {
        let refused = serve_refused(&directory, &[]);
        let refusal = refused.stderr.lines().last().expect("it says why");
        assert!(!refused.status.success() && refusal.contains(UNKNOWN), "{}", refused.stderr);
        assert!(refusal.contains("diskless.storage=") && refusal.contains("diskless.db"), "{refusal}");
        assert_eq!(files(&directory.join("diskless")), before);
    }
    let elsewhere = aside.path().join("elsewhere");
    drop(Broker::start_in(&directory, &[&storage(&elsewhere)]));
    move_index(aside.path(), &directory);
    broker.restart();
    assert_goes_on(&broker);
}

#[test]
fn broker_set_to_another_store_does_not_start() {
    let mut broker = stopped_with_a_record(&[]);
    let (directory, other) = (broker.data_dir().to_owned(), tempfile::tempdir().expect("a temporary directory"));
    let refused = |set: &str, expected: &str| {
        let refused = serve_refused(&directory, &[set]);
        let refusal = refused.stderr.lines().last().expect("it says why");
        assert!(!refused.status.success() && refusal.contains(expected), "{}", refused.stderr);
    };
    let empty = other.path().join("empty");
    refused(&storage(&empty), OTHER);
    assert!(files(&empty).is_empty());
    // The ownership marker of this store names the same cluster, but with another store number.
    let claim = fs::read_to_string(directory.join("diskless/cluster")).expect("the claim");
    let (cluster, _) = claim.split_once(' ').expect("whose it is, and its number");
    let second = other.path().join("second");
    fs::create_dir(&second).expect("made");
    fs::write(second.join("cluster"), format!("{cluster} 012345678901234567890A")).expect("written");
    refused(&storage(&second), OTHER);
    // The directory of objects is empty, as if its disk were not mounted.
    fs::rename(directory.join("diskless"), other.path().join("mounted")).expect("moved");
    fs::create_dir(directory.join("diskless")).expect("made");
    refused(&storage(&directory.join("diskless")), OTHER);
    broker.restart_with(&[&storage(&other.path().join("mounted"))]);
    assert_goes_on(&broker);
}

#[test]
fn unused_store_may_be_replaced_by_another() {
    let mut broker = Broker::start(&[]);
    broker.stop();
    let s3 = S3::start();
    let sets = s3.sets();
    broker.restart_with(&sets.iter().map(String::as_str).collect::<Vec<_>>());
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    assert_eq!(client.produced(TOPIC, 0, &Batch::of(&["before"])), 0);
    assert_goes_on(&broker);
}

/// The store is unavailable, so it cannot show that it has objects. The index is new and lists no objects. The broker
/// must refuse requests until it has its former index again.
#[test]
fn broker_without_its_index_waits_for_an_unavailable_store() {
    let s3 = S3::start();
    let sets = s3.sets();
    let mut broker = stopped_with_a_record(&sets.iter().map(String::as_str).collect::<Vec<_>>());
    let aside = tempfile::tempdir().expect("a temporary directory");
    move_index(broker.data_dir(), aside.path());
    for method in ["PUT", "GET", "DELETE"] {
        s3.every(method, S3Fault::Status(503, "SlowDown"));
    }
    broker.restart();
    let objects = files(&s3.directory());
    let refuses = || {
        let mut client = broker.client();
        // The broker must not respond that the producer is unknown or the offset is out of range, because a client
        // would believe that.
        let batch = Batch::of(&["a"]).from_producer(1000, 0, 5);
        assert_eq!(client.produce(TOPIC, 0, &batch).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
        assert_eq!(client.fetch(TOPIC, 0, 1).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
        assert_eq!(client.list_offset(TOPIC, 0, -1).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    };
    refuses();
    s3.heal();
    broker.wait_for_stderr(UNKNOWN);
    refuses();
    // The broker may be probing the store, which leaves an object there for a moment.
    wait_until("the objects are as they were", SOON, || files(&s3.directory()) == objects);
    broker.stop();
    move_index(aside.path(), broker.data_dir());
    for method in ["PUT", "GET", "DELETE"] {
        s3.every(method, S3Fault::Status(503, "SlowDown"));
    }
    broker.restart();
    s3.heal();
    let mut client = broker.client();
    wait_until("it goes on with its index", SOON, || client.list_offset(TOPIC, 0, -1).error_code == ErrorCode::NONE);
    assert_goes_on(&broker);
}

#[test]
fn missing_store_directory_is_an_error_until_it_is_back() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let (at, aside) = (place.path().join("objects"), place.path().join("aside"));
    let broker = Broker::start(&[&storage(&at)]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    assert_eq!(client.produced(TOPIC, 0, &Batch::of(&["before"])), 0);
    fs::rename(&at, &aside).expect("moved");
    let refused = client.produce(TOPIC, 0, &Batch::of(&["nowhere"]));
    assert_eq!(refused.error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    broker.wait_for_stderr("the store's ownership marker is gone");
    assert!(!at.exists());
    fs::rename(&aside, &at).expect("moved");
    assert_goes_on(&broker);
}
