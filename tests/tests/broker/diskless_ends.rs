//! The broker, its machine or its store fails at a known stage of a diskless batch. Acknowledged records must survive,
//! and other batches can be resent.
//!
//! Kills at random moments under load are tested in `crash`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fullbore_tests::s3::{S3, S3Fault};
use fullbore_tests::{
    Batch, Broker, Client, Disk, FetchFrom, another_boot, fetch_request, produce_request, wait_until,
};
use fullbore_wire::ErrorCode;

use super::disk_full::SmallDisk;

const TOPIC: &str = "diskless";
const OTHER: &str = "other";
const CONFIGS: &[(&str, &str)] = &[("diskless.enable", "true")];
const SOON: Duration = Duration::from_secs(60);
/// Length of a record.
const LEN: usize = 2_000;
/// Short intervals, so that orphans are soon deleted.
const CLEANER: [&str; 2] = ["diskless.file.cleaner.interval.ms=100", "diskless.file.cleaner.retention.period.ms=1000"];

/// Returns how many files are in a directory and below it.
fn files(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

/// A broker that stores its objects in a bucket, and a topic with one batch.
struct OnS3 {
    s3: S3,
    broker: Broker,
    client: Client,
    id: i64,
}

impl OnS3 {
    fn start() -> OnS3 {
        let s3 = S3::start();
        let sets = s3.sets();
        let broker = Broker::start(&sets.iter().map(String::as_str).chain(CLEANER).collect::<Vec<_>>());
        let mut client = broker.client();
        client.create_topic(TOPIC, 2, CONFIGS);
        let id = client.init_producer_id();
        assert_eq!(client.produced(TOPIC, 0, &Batch::numbered(id, 0, LEN)), 0);
        OnS3 { s3, broker, client, id }
    }

    /// Sends the second batch, and kills the broker once the store has received `puts` more PUTs. Then removes the
    /// store's faults and restarts the broker.
    fn kill_after_puts(&mut self, puts: usize) {
        let before = self.s3.requests("PUT");
        self.client.send_produce(TOPIC, 0, &Batch::numbered(self.id, 1, LEN));
        wait_until("the PUTs have come", SOON, || self.s3.requests("PUT") >= before + puts);
        self.broker.kill();
        self.s3.heal();
        self.broker.restart();
        self.client = self.broker.client();
    }

    /// Checks that the topic has `batches` batches. Then sends the second batch twice and the third batch once, after
    /// which the topic must have each batch once.
    fn goes_on(&mut self, batches: i64) {
        assert_eq!(self.client.latest(TOPIC, 0), batches);
        for sequence in [1, 1, 2] {
            assert_eq!(self.client.produced(TOPIC, 0, &Batch::numbered(self.id, sequence, LEN)), i64::from(sequence));
        }
        assert_has(&self.broker, 3);
    }
}

fn assert_has(broker: &Broker, count: i32) {
    let records = broker.client().fetch_records(TOPIC, 0);
    let values = records.iter().map(|record| &record.value);
    let expected = (0..count).map(|sequence| Batch::numbered(-1, sequence, LEN).records.remove(0).value);
    assert!(values.eq(&expected.collect::<Vec<_>>()), "{} records and not {count}", records.len());
}

#[test]
fn kill_before_the_put_loses_no_acknowledged_batch() {
    let mut on = OnS3::start();
    on.s3.every("PUT", S3Fault::Hang);
    on.kill_after_puts(1);
    on.goes_on(1);
}

#[test]
fn kill_between_put_and_commit_loses_no_acknowledged_batch() {
    let mut on = OnS3::start();
    let before = files(&on.s3.directory());
    on.s3.next("PUT", S3Fault::AnswerLost);
    on.s3.every("PUT", S3Fault::Hang);
    on.kill_after_puts(2);
    assert!(files(&on.s3.directory()) > before, "its object is there");
    on.goes_on(1);
}

/// The client sends a long poll, and then the produce. The broker sends responses in order, so it cannot send that of
/// the produce before the kill.
#[test]
fn kill_between_commit_and_response_keeps_the_batch_once() {
    let mut on = OnS3::start();
    let waiting = fetch_request(&[FetchFrom { topic: TOPIC, partition: 1, offset: 0 }], 1, 300_000);
    on.client.send(&waiting, 12);
    on.client.send_produce(TOPIC, 0, &Batch::numbered(on.id, 1, LEN));
    let mut other = on.broker.client();
    wait_until("it is committed", SOON, || other.latest(TOPIC, 0) == 2);
    on.broker.kill();
    on.broker.restart();
    on.client = on.broker.client();
    on.goes_on(2);
}

#[test]
fn kill_amid_deletion_of_orphans_loses_no_acknowledged_batch() {
    let mut on = OnS3::start();
    on.client.create_topic(OTHER, 1, CONFIGS);
    assert_eq!(on.client.produced(OTHER, 0, &Batch::numbered(-1, 0, LEN)), 0);
    on.s3.every("DELETE", S3Fault::Hang);
    let before = (on.s3.requests("DELETE"), files(&on.s3.directory()));
    on.client.delete_topic(OTHER);
    wait_until("something is deleted", SOON, || on.s3.requests("DELETE") > before.0);
    on.broker.kill();
    on.s3.heal();
    on.broker.restart();
    on.client = on.broker.client();
    on.goes_on(1);
    assert!(files(&on.s3.directory()) >= before.1, "nothing was deleted");
}

#[test]
fn store_silent_for_half_a_minute_loses_no_acknowledged_batch() {
    let mut on = OnS3::start();
    for method in ["PUT", "GET", "DELETE"] {
        on.s3.every(method, S3Fault::Hang);
    }
    // The produce fails only after its timeout of 30 s.
    assert_eq!(produce_request(TOPIC, 0, Batch::numbered(on.id, 1, LEN).bytes()).timeout_ms, 30_000);
    assert_eq!(on.client.produce(TOPIC, 0, &Batch::numbered(on.id, 1, LEN)).error_code, ErrorCode::REQUEST_TIMED_OUT);
    on.s3.heal();
    wait_until("the batch is taken", SOON, || {
        let answer = on.client.produce(TOPIC, 0, &Batch::numbered(on.id, 1, LEN));
        let may_come = [ErrorCode::REQUEST_TIMED_OUT, ErrorCode::KAFKA_STORAGE_ERROR].contains(&answer.error_code);
        assert!(answer.error_code == ErrorCode::NONE || may_come, "{:?}", answer.error_code);
        (answer.error_code, answer.base_offset) == (ErrorCode::NONE, 1)
    });
    on.goes_on(2);
}

/// Before a batch is acknowledged, its objects, their directory entries and the index must be flushed.
#[test]
fn power_loss_keeps_every_acknowledged_batch_of_a_directory() {
    let Some(disk) = Disk::make() else { return };
    let mut broker = Broker::start_in(&disk.data(), &[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    let id = client.init_producer_id();
    let mut cuts = Vec::new();
    for sequence in 0..10 {
        assert_eq!(client.produced(TOPIC, 0, &Batch::numbered(id, sequence, LEN)), i64::from(sequence));
        if sequence % 3 == 0 {
            cuts.push((sequence + 1, disk.cut_power()));
        }
    }
    broker.kill();
    for (acknowledged, cut) in cuts {
        another_boot(&cut.data());
        let broker = Broker::start_in(&cut.data(), &[]);
        let mut client = broker.client();
        assert_has(&broker, acknowledged);
        for sequence in [acknowledged - 1, acknowledged] {
            assert_eq!(client.produced(TOPIC, 0, &Batch::numbered(id, sequence, LEN)), i64::from(sequence));
        }
    }
}

fn remount(path: &Path, how: &str) -> bool {
    Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(path).status().is_ok_and(|done| done.success())
}

#[test]
fn read_only_directory_is_an_error_until_it_is_writable() {
    let Some(disk) = SmallDisk::mount(8 << 20) else { return };
    let storage = format!("diskless.storage={}", disk.path().join("objects").display());
    let broker = Broker::start(&[&storage]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    let id = client.init_producer_id();
    assert_eq!(client.produced(TOPIC, 0, &Batch::numbered(id, 0, LEN)), 0);
    // A remount fails while the broker is writing a file, so the remount is repeated until it succeeds.
    wait_until("nothing is written any more", SOON, || remount(disk.path(), "ro"));
    for _ in 0..2 {
        assert_eq!(client.produce(TOPIC, 0, &Batch::numbered(id, 1, LEN)).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
        assert_has(&broker, 1);
    }
    broker.wait_for_stderr("Read-only file system");
    assert!(remount(disk.path(), "rw"));
    for sequence in 1..3 {
        assert_eq!(client.produced(TOPIC, 0, &Batch::numbered(id, sequence, LEN)), i64::from(sequence));
    }
    assert_has(&broker, 3);
}
