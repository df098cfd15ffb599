//! A standalone broker that starts on an older copy of its data directory, which has the index of its diskless topics.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fullbore_tests::{Batch, Broker, Protocol, Transactional, wait_until};

const TOPIC: &str = "diskless";
const CONFIGS: &[(&str, &str)] = &[("diskless.enable", "true")];

fn numbered(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{what} {number}")).collect()
}

fn produced(broker: &Broker, texts: &[String]) {
    let mut client = broker.client();
    for text in texts {
        client.produced(TOPIC, 0, &Batch::of(&[text]));
    }
}

fn texts(broker: &Broker) -> Vec<String> {
    broker.client().fetch_records(TOPIC, 0).iter().map(|record| record.text()).collect()
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(copied.success(), "{} is copied", from.display());
}

/// Only the index is replaced by an older copy. The store keeps the newest objects, and writes after the replacement
/// must not overwrite them.
#[test]
fn writes_after_a_restored_older_index_overwrite_no_newer_object() {
    let place = tempfile::tempdir().expect("a directory");
    let (directory, older) = (place.path().join("data"), place.path().join("older"));
    let storage = format!("diskless.storage={}", place.path().join("store").display());
    fs::create_dir(&directory).expect("made");
    let mut broker = Broker::start_in(&directory, &[&storage]);
    broker.client().create_topic(TOPIC, 1, CONFIGS);
    let newest = numbered("newest", 100);
    produced(&broker, &newest[..1]);
    broker.stop();
    copy(&directory, &older);
    broker.restart();
    produced(&broker, &newest[1..]);
    broker.stop();
    let mut of_older = Broker::start_in(&older, &[&storage]);
    assert_eq!(texts(&of_older), newest[..1]);
    produced(&of_older, &numbered("older", 200));
    of_older.stop();
    broker.restart();
    assert_eq!(texts(&broker), newest);
}

/// The marker of the transaction is in the lost part of the index, while `__transaction_state` shows the transaction as
/// complete.
#[test]
fn transaction_that_is_open_in_a_restored_older_index_is_aborted() {
    let place = tempfile::tempdir().expect("a directory");
    let (directory, older) = (place.path().join("data"), place.path().join("older"));
    let storage = format!("diskless.storage={}", place.path().join("store").display());
    fs::create_dir(&directory).expect("made");
    let mut broker = Broker::start_in(&directory, &[&storage]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    client.produced(TOPIC, 0, &Batch::of(&["before"]));
    let mut producer = Transactional::begin(&mut client, "open", Protocol::New);
    producer.write(&mut client, TOPIC, 0, &["open"]);
    broker.stop();
    copy(&directory, &older);
    broker.restart();
    let mut client = broker.client();
    wait_until("the transaction is committed", Duration::from_secs(30), || {
        !producer.try_end(&mut client, true).error_code.is_err()
    });
    wait_until("the coordinator has completed it", Duration::from_secs(30), || {
        client.describe_transaction("open").transaction_state.as_str() == "CompleteCommit"
    });
    broker.stop();
    for name in ["diskless.db", "diskless.db-wal", "diskless.db-shm", "diskless-counter"] {
        let _ = fs::remove_file(directory.join(name));
    }
    fs::copy(older.join("diskless.db"), directory.join("diskless.db")).expect("restored");
    broker.restart();
    let mut client = broker.client();
    wait_until("no transaction is open", Duration::from_secs(30), || {
        client.latest(TOPIC, 0) > 1 && client.stable(TOPIC, 0) == client.latest(TOPIC, 0)
    });
    assert_eq!(client.committed_texts(TOPIC, 0), ["before"], "the copy does not know of the commit");
}
