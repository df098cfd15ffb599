//! A batch is refused while later batches of its producer are in flight (librdkafka#4953). The broker must refuse these
//! with the same error until the client resends the first one, even if the cause is gone. After
//! OUT_OF_ORDER_SEQUENCE_NUMBER an idempotent client would have to begin a new epoch.

use fullbore_tests::{Batch, Broker, Client};
use fullbore_wire::ErrorCode;
use std::fs;

use super::disk_freed::fill;
use super::disk_full::SmallDisk;

const TOPIC: &str = "refused";
const STORAGE: ErrorCode = ErrorCode::KAFKA_STORAGE_ERROR;

fn one(id: i64, sequence: i32) -> Batch {
    Batch::of(&[format!("record {sequence}")]).from_producer(id, 0, sequence)
}

fn error(client: &mut Client, id: i64, sequence: i32) -> ErrorCode {
    client.produce(TOPIC, 0, &one(id, sequence)).error_code
}

/// Checks that the four batches after `refused` fail with `why`, and that all five succeed when they are resent. Then
/// checks that a batch after a gap is refused as out of order.
fn assert_goes_on(client: &mut Client, id: i64, refused: i32, why: ErrorCode) {
    for sequence in refused + 1..refused + 5 {
        assert_eq!(error(client, id, sequence), why, "{sequence} behind {refused}");
    }
    let end = client.latest(TOPIC, 0);
    for (at, sequence) in (0..).zip(refused..refused + 5) {
        assert_eq!(client.produced(TOPIC, 0, &one(id, sequence)), end + at);
    }
    assert_eq!(error(client, id, refused + 6), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
}

/// The log cannot be opened, because one of its file names is taken by a directory.
#[test]
fn unopened_log_refuses_later_batches_of_known_and_new_producers_for_its_reason() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let known = client.init_producer_id();
    (0..3).for_each(|sequence| _ = client.produced(TOPIC, 0, &one(known, sequence)));
    broker.stop();
    let obstacle = broker.partition_dir(TOPIC, 0).join("refused.tmp");
    fs::create_dir(&obstacle).expect("made");
    broker.restart();
    let mut client = broker.client();
    let new = client.init_producer_id();
    for (id, sequence) in [(known, 3), (new, 0)] {
        assert_eq!(error(&mut client, id, sequence), STORAGE);
    }
    fs::remove_dir(&obstacle).expect("removed");
    for (id, sequence) in [(known, 3), (new, 0)] {
        assert_goes_on(&mut client, id, sequence, STORAGE);
    }
}

/// The partition's directory cannot be created, because its name is taken by a file.
#[test]
fn directory_not_created_refuses_later_batches_for_its_reason() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let id = client.init_producer_id();
    let directory = broker.partition_dir(TOPIC, 0);
    assert!(!directory.exists(), "it is made with the first record");
    fs::write(&directory, "").expect("written");
    assert_eq!(error(&mut client, id, 0), STORAGE);
    fs::remove_file(&directory).expect("removed");
    assert_goes_on(&mut client, id, 0, STORAGE);
}

#[test]
fn append_without_a_descriptor_refuses_later_batches_for_its_reason() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[("segment.bytes", "1048576")]);
    let id = client.init_producer_id();
    let large = |sequence| Batch::of(&[vec![b'.'; 600_000]]).from_producer(id, 0, sequence);
    assert_eq!(client.produced(TOPIC, 0, &large(0)), 0);
    broker.refuse_descriptors();
    // The next batch needs a new segment, but the broker cannot open its files.
    assert_eq!(client.produce(TOPIC, 0, &large(1)).error_code, STORAGE);
    broker.allow_descriptors();
    assert_goes_on(&mut client, id, 1, STORAGE);
}

#[test]
fn object_not_stored_refuses_later_batches_for_its_reason() {
    let Some(disk) = SmallDisk::mount(8 << 20) else { return };
    let storage = format!("diskless.storage={}", disk.path().join("objects").display());
    let broker = Broker::start(&[&storage]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[("diskless.enable", "true")]);
    let [known, new] = [(); 2].map(|()| client.init_producer_id());
    assert_eq!(client.produced(TOPIC, 0, &one(known, 0)), 0);
    fill(&disk);
    for (id, sequence) in [(known, 1), (new, 0)] {
        assert_eq!(error(&mut client, id, sequence), STORAGE);
    }
    fs::remove_file(disk.path().join("ballast")).expect("ours");
    for (id, sequence) in [(known, 1), (new, 0)] {
        assert_goes_on(&mut client, id, sequence, STORAGE);
    }
}
