//! Partitions that are deleted, recreated, added, full or truncated while they are in an open transaction.

use super::{SOON, TOPIC, wait_for_state};
use crate::disk_full::SmallDisk;
use fullbore_tests::{Batch, Broker, Client, Protocol, Transactional, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use std::fs;
use std::io::Write;
use std::path::PathBuf;

const OTHER: &str = "other";

/// Starts a broker and opens a transaction in two topics.
fn open(protocol: Protocol, sets: &[&str]) -> (Broker, Client, Transactional) {
    let broker = Broker::start(sets);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, &[]);
    client.create_topic(OTHER, 1, &[]);
    let mut producer = Transactional::begin(&mut client, "inside", protocol);
    producer.write(&mut client, TOPIC, 0, &["gone"]);
    producer.write(&mut client, TOPIC, 1, &["gone"]);
    producer.write(&mut client, OTHER, 0, &["stays"]);
    (broker, client, producer)
}

#[test]
fn topic_deleted_inside_a_transaction_does_not_block_its_end() {
    for protocol in Protocol::BOTH {
        let (_broker, mut client, mut producer) = open(protocol, &[]);
        client.delete_topic(TOPIC);
        producer.end(&mut client, true);
        wait_for_state(&mut client, "inside", "CompleteCommit");
        assert_eq!(client.committed_texts(OTHER, 0), ["stays"]);
        producer.write(&mut client, OTHER, 0, &["goes on"]);
        producer.end(&mut client, true);
        assert_eq!(client.committed_texts(OTHER, 0), ["stays", "goes on"]);
    }
}

#[test]
fn topic_recreated_inside_a_transaction_is_empty_without_an_open_transaction() {
    for protocol in Protocol::BOTH {
        for is_restarted in [false, true] {
            let (mut broker, mut client, mut producer) = open(protocol, &[]);
            client.delete_topic(TOPIC);
            client.create_topic(TOPIC, 1, &[]);
            if is_restarted {
                broker.kill();
                broker.restart();
                client = broker.client();
            }
            client.produced(TOPIC, 0, &Batch::of(&["of the new topic"]));
            assert_eq!(client.stable(TOPIC, 0), 1);
            producer.end(&mut client, true);
            wait_for_state(&mut client, "inside", "CompleteCommit");
            assert_eq!(client.committed_texts(TOPIC, 0), ["of the new topic"]);
            assert_eq!(client.stable(TOPIC, 0), client.latest(TOPIC, 0));
            assert_eq!(client.committed_texts(OTHER, 0), ["stays"]);
        }
    }
}

/// The new topic does not know the producer's sequences. In the new protocol it refuses the next batch, and the client
/// aborts. In the old protocol it accepts the batch, and the transaction continues.
#[test]
fn transaction_on_a_recreated_topic_is_refused_or_continues_by_its_protocol() {
    for protocol in Protocol::BOTH {
        let (_broker, mut client, mut producer) = open(protocol, &[]);
        client.delete_topic(TOPIC);
        client.create_topic(TOPIC, 2, &[]);
        let batch = producer.batch(TOPIC, 0, &["again"]);
        let code = producer.send(&mut client, TOPIC, 0, &batch).error_code;
        let is_refused = protocol == Protocol::New;
        assert_eq!(code, if is_refused { ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER } else { ErrorCode::NONE });
        producer.end(&mut client, !is_refused);
        producer.write(&mut client, TOPIC, 0, &["next"]);
        producer.end(&mut client, true);
        let expected: &[&str] = if is_refused { &["next"] } else { &["again", "next"] };
        assert_eq!(client.committed_texts(TOPIC, 0), expected);
        assert_eq!(client.stable(TOPIC, 1), client.latest(TOPIC, 1));
    }
}

#[test]
fn partitions_added_inside_a_transaction_belong_to_it_once_written() {
    for protocol in Protocol::BOTH {
        let (_broker, mut client, mut producer) = open(protocol, &[]);
        let topic = CreatePartitionsTopic { name: OTHER.into(), count: 3, ..Default::default() };
        let request = CreatePartitionsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
        assert_eq!(client.call(&request, 3).results[0].error_code, ErrorCode::NONE);
        producer.write(&mut client, OTHER, 2, &["new partition"]);
        assert_eq!((client.stable(OTHER, 2), client.stable(OTHER, 1)), (0, 0));
        producer.end(&mut client, true);
        assert_eq!(client.committed_texts(OTHER, 2), ["new partition"]);
        assert_eq!(client.latest(OTHER, 1), 0, "no marker where nothing was added");
    }
}

#[test]
fn records_deleted_over_an_open_transaction_move_the_stable_offset_and_leave_its_end_readable() {
    for protocol in Protocol::BOTH {
        for is_killed in [false, true] {
            let (mut broker, mut client, mut producer) = open(protocol, &["log.segment.delete.delay.ms=0"]);
            producer.write(&mut client, OTHER, 0, &["second"]);
            client.produced(OTHER, 0, &Batch::of(&["plain"]));
            // The new log start is after the first record of the transaction, but below the high watermark.
            client.delete_records(OTHER, 0, 1);
            assert_eq!((client.stable(OTHER, 0), client.latest(OTHER, 0)), (1, 3));
            if is_killed {
                broker.kill();
                broker.restart();
                client = broker.client();
                assert_eq!((client.earliest(OTHER, 0), client.stable(OTHER, 0)), (1, 1));
            }
            client.delete_records(OTHER, 0, 3);
            assert_eq!(client.stable(OTHER, 0), 3);
            producer.write(&mut client, OTHER, 0, &["third"]);
            assert_eq!(client.stable(OTHER, 0), 3);
            producer.end(&mut client, true);
            wait_for_state(&mut client, "inside", "CompleteCommit");
            assert_eq!(client.committed_texts(OTHER, 0), ["third"]);
            assert_eq!(client.stable(OTHER, 0), client.latest(OTHER, 0));
        }
    }
}

#[test]
fn records_deleted_over_an_aborted_transaction_leave_the_rest_of_it_unread() {
    let (_broker, mut client, mut producer) = open(Protocol::New, &["log.segment.delete.delay.ms=0"]);
    producer.write(&mut client, OTHER, 0, &["second"]);
    client.delete_records(OTHER, 0, 1);
    producer.end(&mut client, false);
    client.produced(OTHER, 0, &Batch::of(&["plain"]));
    assert_eq!(client.committed_texts(OTHER, 0), ["plain"]);
}

/// Retention deletes the segments with the first records of a transaction. After a restart, the broker can restore the
/// transaction only from a producer snapshot.
#[test]
fn segments_deleted_over_an_open_transaction_leave_it_open_over_kills() {
    for end in [Broker::stop as fn(&mut Broker), Broker::kill] {
        let mut broker = Broker::start(&["log.segment.delete.delay.ms=0", "log.retention.check.interval.ms=50"]);
        let mut client = broker.client();
        client.create_topic(TOPIC, 1, &[("segment.bytes", "1048576"), ("retention.bytes", "1048576")]);
        let mut producer = Transactional::begin(&mut client, "retained", Protocol::New);
        producer.write(&mut client, TOPIC, 0, &["first"]);
        let filler = "x".repeat(200_000);
        (0..30).for_each(|_| _ = client.produced(TOPIC, 0, &Batch::of(&[&filler])));
        wait_until("retention takes segments", SOON, || client.earliest(TOPIC, 0) > 0);
        end(&mut broker);
        broker.restart();
        let mut client = broker.client();
        assert_eq!(client.describe_producers(TOPIC, 0).active_producers[0].current_txn_start_offset, 0);
        assert_eq!(client.stable(TOPIC, 0), client.earliest(TOPIC, 0));
        producer.write(&mut client, TOPIC, 0, &["second"]);
        producer.end(&mut client, false);
        assert_eq!(client.stable(TOPIC, 0), client.latest(TOPIC, 0));
        let texts = client.committed_texts(TOPIC, 0);
        assert!(texts.iter().all(|text| *text == filler), "nothing aborted");
    }
}

/// Fills the disk and returns the path of the file.
fn fill(disk: &SmallDisk) -> PathBuf {
    let path = disk.path().join("filler");
    let mut file = fs::File::create(&path).expect("a name is free");
    while file.write_all(&[0; 4096]).is_ok() {}
    path
}

/// Many transactions commit on a full disk. Acknowledged commits must be valid, and all others must complete once there
/// is space.
#[test]
fn ends_on_a_full_disk_are_refused_or_completed_once_space_is_free() {
    for protocol in Protocol::BOTH {
        let Some(disk) = SmallDisk::mount(16 << 20) else { return };
        let mut broker = Broker::start_in(&disk.path().join("data"), &["transaction.state.log.num.partitions=1"]);
        let mut client = broker.client();
        client.create_topic(TOPIC, 4, &[]);
        let begin = |n: i32| {
            let mut producer = Transactional::begin(&mut client, &format!("full-{n}"), protocol);
            (0..4).for_each(|partition| _ = producer.write(&mut client, TOPIC, partition, &[n.to_string()]));
            producer
        };
        let mut producers: Vec<Transactional> = (0..100).map(begin).collect();
        let filler = fill(&disk);
        let answers: Vec<ErrorCode> =
            producers.iter().map(|producer| producer.try_end(&mut client, true).error_code).collect();
        assert!(answers.iter().any(|code| code.is_err()), "some find no room");
        for partition in 0..4 {
            let read = client.committed_texts(TOPIC, partition);
            assert!(read.iter().all(|text| !answers[text.parse::<usize>().expect("a number")].is_err()), "{read:?}");
        }
        fs::remove_file(filler).expect("ours");
        for producer in &mut producers {
            wait_until("the commit is decided", SOON, || {
                let response = producer.try_end(&mut client, true);
                let code = response.error_code;
                assert!(!code.is_err() || code.is_retriable(), "{code}");
                if !code.is_err() {
                    producer.ended(&response);
                }
                !code.is_err()
            });
        }
        for round in [100, 200] {
            wait_until("every marker is written", SOON, || {
                (0..4).all(|partition| client.stable(TOPIC, partition) == client.latest(TOPIC, partition))
            });
            assert!((0..4).all(|partition| client.committed_texts(TOPIC, partition).len() == round));
            if round == 100 {
                broker.kill();
                broker.restart();
                client = broker.client();
                for producer in &mut producers {
                    (0..4).for_each(|partition| _ = producer.write(&mut client, TOPIC, partition, &["after"]));
                    producer.end(&mut client, true);
                }
            }
        }
    }
}
