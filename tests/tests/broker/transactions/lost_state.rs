//! The broker starts without the newest records of `__transaction_state`, because its directory is lost or was replaced
//! by an older copy. No transaction may stay open, and no earlier producer may continue.

use super::{SOON, TOPIC, both, one};
use fullbore_tests::{Broker, Client, Transactional, wait_until};
use fullbore_wire::ErrorCode;
use std::fs;
use std::path::Path;

const STATE_TOPIC: &str = "__transaction_state";
const SETS: &[&str] = &["transaction.state.log.num.partitions=1", "offsets.topic.num.partitions=1"];

fn started() -> (Broker, Client) {
    let broker = Broker::start(SETS);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, &[]);
    (broker, client)
}

/// Leaves an open transaction of each producer in both partitions.
fn open(client: &mut Client, producers: &mut [Transactional]) {
    for producer in producers {
        one(client, producer, "committed", true);
        producer.write(client, TOPIC, 0, &["open"]);
        producer.write(client, TOPIC, 1, &["open"]);
    }
}

/// Checks that the open transactions are aborted and their producers fenced, and that new producers do not reuse their
/// ids.
fn is_settled(broker: &Broker, producers: Vec<Transactional>) {
    let mut client = broker.client();
    wait_until("the stable offset reaches the end", SOON, || {
        (0..2).all(|partition| client.stable(TOPIC, partition) == client.latest(TOPIC, partition))
    });
    for mut old in producers {
        let refused = old.try_end(&mut client, true).error_code;
        let known = [ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_PRODUCER_ID_MAPPING];
        assert!(known.contains(&refused), "{}: {refused}", old.transactional_id);
        let mut new = Transactional::begin(&mut client, &old.transactional_id, old.protocol);
        assert_ne!(new.id, old.id, "{}", old.transactional_id);
        let late = old.batch(TOPIC, 0, &["late"]);
        assert!(old.send(&mut client, TOPIC, 0, &late).error_code.is_err(), "{} goes on", old.transactional_id);
        one(&mut client, &mut new, "new", true);
    }
    assert_eq!(client.committed_texts(TOPIC, 0), ["committed", "committed", "new", "new"]);
    assert_eq!(client.committed_texts(TOPIC, 1), [""; 0]);
}

#[test]
fn lost_state_directory_after_a_kill_aborts_open_transactions() {
    let (mut broker, mut client) = started();
    let mut producers = both(&mut client, "open");
    open(&mut client, &mut producers);
    broker.kill();
    fs::remove_dir_all(broker.partition_dir(STATE_TOPIC, 0)).expect("ours");
    broker.restart();
    is_settled(&broker, producers.to_vec());
}

#[test]
fn lost_state_directory_after_a_stop_aborts_open_transactions() {
    let (mut broker, mut client) = started();
    let mut producers = both(&mut client, "open");
    open(&mut client, &mut producers);
    broker.stop();
    fs::remove_dir_all(broker.partition_dir(STATE_TOPIC, 0)).expect("ours");
    broker.restart();
    is_settled(&broker, producers.to_vec());
}

#[test]
fn restored_older_state_fences_its_producers() {
    let (mut broker, mut client) = started();
    let mut producers = both(&mut client, "open");
    let directory = broker.partition_dir(STATE_TOPIC, 0);
    let copy = tempfile::tempdir().expect("temporary directory");
    broker.stop();
    copy_files(&directory, copy.path());
    broker.restart();
    client = broker.client();
    open(&mut client, &mut producers);
    broker.stop();
    fs::remove_dir_all(&directory).and_then(|()| fs::create_dir(&directory)).expect("ours");
    copy_files(copy.path(), &directory);
    broker.restart();
    is_settled(&broker, producers.to_vec());
}

/// A kill alone loses no state, so open transactions can continue.
#[test]
fn whole_state_after_a_kill_lets_open_transactions_commit() {
    let (mut broker, mut client) = started();
    let mut producers = both(&mut client, "open");
    open(&mut client, &mut producers);
    broker.kill();
    broker.restart();
    client = broker.client();
    for producer in &mut producers {
        producer.write(&mut client, TOPIC, 1, &["after the kill"]);
        producer.end(&mut client, true);
    }
    wait_until("the stable offset reaches the end", SOON, || client.stable(TOPIC, 1) == client.latest(TOPIC, 1));
    assert_eq!(client.committed_texts(TOPIC, 1), ["open", "open", "after the kill", "after the kill"]);
}

fn copy_files(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).expect("readable") {
        let path = entry.expect("readable").path();
        fs::copy(&path, to.join(path.file_name().expect("a file"))).expect("copied");
    }
}
