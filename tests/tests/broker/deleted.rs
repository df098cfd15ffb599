//! Acknowledged deletions of topics that a kill of the broker interrupts.

use crate::pipe::Pipe;
use fullbore_tests::{Batch, Broker, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::delete_topics::DeleteTopicsRequest;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// Returns the directories whose names begin with the partition's name.
fn directories(broker: &Broker) -> Vec<PathBuf> {
    let entries = fs::read_dir(broker.data_dir()).expect("listed");
    let paths = entries.map(|entry| entry.expect("listed").path());
    paths.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("t-0"))).collect()
}

/// Deletes the topic. Does not wait until the topic's directory is moved away.
fn delete_without_waiting(broker: &Broker) {
    let delete = DeleteTopicsRequest { topic_names: vec!["t".into()], timeout_ms: 1, ..Default::default() };
    assert_eq!(broker.client().call(&delete, 3).responses[0].error_code, ErrorCode::NONE);
}

#[test]
fn deletion_interrupted_by_a_kill_is_finished_by_the_next_start() {
    for is_made_again in [false, true] {
        let mut broker = Broker::start(&["log.segment.delete.delay.ms=0"]);
        broker.client().create_topic("t", 1, &[]);
        broker.client().produced("t", 0, &Batch::of(&["old"]));
        broker.stop();
        // At its start, the broker reads this file to find the topic of a directory before it renames the directory. A
        // pipe in place of the file blocks this read.
        let slow = Pipe::in_place_of(&broker.partition_dir("t", 0).join("partition.metadata"));
        broker.restart();
        delete_without_waiting(&broker);
        let pipe = slow.wait_for_reader();
        if is_made_again {
            broker.client().create_topic("t", 1, &[]);
        }
        broker.kill();
        drop(pipe);
        slow.put_back();
        assert_eq!(directories(&broker).len(), 1);
        broker.restart();
        if is_made_again {
            assert_eq!(broker.client().produced("t", 0, &Batch::of(&["new"])), 0);
        }
        let left = usize::from(is_made_again);
        wait_until("the directory of the deleted topic is gone", SOON, || directories(&broker).len() == left);
        assert!(!broker.stderr().contains("does not know"), "{}", broker.stderr());
        // Later starts find nothing to clean up.
        for _ in 0..2 {
            broker.stop();
            broker.restart();
            if is_made_again {
                let records = broker.client().fetch_records("t", 0);
                assert_eq!(records.iter().map(|record| record.text()).collect::<Vec<_>>(), ["new"]);
            }
            assert_eq!(directories(&broker).len(), left);
        }
    }
}

#[test]
fn state_of_a_topic_survives_a_start_that_deletes_an_older_topic_of_its_name() {
    let mut broker = Broker::start(&["log.segment.delete.delay.ms=0"]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    client.produced("t", 0, &Batch::of(&["old"]));
    take_name_of_deleted(&broker);
    client.delete_topic("t");
    broker.wait_for_stderr("cannot move the directory of a deleted partition out of the way");
    client.create_topic("t", 1, &[]);
    for value in ["a", "b", "c", "d"] {
        client.produced("t", 0, &Batch::of(&[value]));
    }
    client.delete_records("t", 0, 2);
    broker.stop();
    broker.restart();
    let values: Vec<_> = broker.client().fetch_records("t", 0).iter().map(|record| record.text()).collect();
    assert_eq!(values, ["c", "d"], "deleted records stay deleted");
}

/// The broker fails once to rename the directory of the deleted partition. It must still remove the directory, even if
/// the topic was created again.
#[test]
fn failed_rename_of_a_deleted_directory_leaves_no_record() {
    for is_made_again in [false, true] {
        let broker = Broker::start(&["log.segment.delete.delay.ms=0"]);
        let mut client = broker.client();
        client.create_topic("t", 1, &[]);
        client.produced("t", 0, &Batch::of(&["secret"]));
        let taken = take_name_of_deleted(&broker);
        client.delete_topic("t");
        broker.wait_for_stderr("cannot move the directory of a deleted partition out of the way");
        if is_made_again {
            client.create_topic("t", 1, &[]);
            assert_eq!(client.produced("t", 0, &Batch::of(&["new"])), 0);
        }
        let is_gone = || {
            directories(&broker).iter().filter(|directory| **directory != taken).count() == usize::from(is_made_again)
        };
        wait_until("the directory of the deleted topic is gone", SOON, is_gone);
        assert!(!broker.stderr().contains("set aside the directory of another topic"), "{}", broker.stderr());
    }
}

/// Occupies the name to which the broker would rename the partition's directory. Returns the path.
fn take_name_of_deleted(broker: &Broker) -> PathBuf {
    let id = fs::read_to_string(broker.partition_dir("t", 0).join("partition.metadata")).expect("read");
    let id = fullbore_wire::Uuid::parse(id.split("topic_id: ").nth(1).expect("it says").trim()).expect("an id");
    let taken = broker.data_dir().join(format!("t-0.{:032x}-delete", u128::from_be_bytes(id.0)));
    fs::create_dir_all(taken.join("something")).expect("made");
    taken
}
