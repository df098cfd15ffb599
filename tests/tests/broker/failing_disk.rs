//! A disk that cannot read parts of a log, or that has become read-only after an error. Skipped without root.

use crate::log_rate_limits::assert_seldom;
use bytes::BytesMut;
use fullbore_tests::{Broker, Client, Disk, FetchFrom, NO_RETENTION, fetch_request, produce_request, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::fetch::FetchRequest;
use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};
use std::fs::File;
use std::time::{Duration, Instant};

const ADMIN: &str = "fullbore.admin.listener=127.0.0.1:0";
const TOPIC: &str = "failing";
const BATCHES: i64 = 8;
const SOON: Duration = Duration::from_secs(30);
const FETCH: i16 = 12;
const PRODUCE: i16 = 9;

/// The timestamp of the batch with this offset.
fn time(offset: i64) -> i64 {
    1_700_000_000_000 + offset
}

/// Produces a record with a key, so that a compacted topic accepts it.
fn produce(client: &mut Client, offset: i64, value: &[u8]) -> ErrorCode {
    let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
    builder.append(time(offset), Some(b"key"), Some(value), &[]);
    let bytes = builder.seal(Stamp::NONE).expect("sealed").0.freeze();
    let mut response = client.call(&produce_request(TOPIC, 0, bytes), PRODUCE);
    response.responses.remove(0).partition_responses.remove(0).error_code
}

/// Fills a log on a disk of its own. Afterwards the page cache contains nothing of the log.
fn filled(sets: &[&str], configs: &[(&str, &str)]) -> Option<(Disk, Broker)> {
    let disk = Disk::make()?;
    let mut broker = Broker::start_in(&disk.data(), &[&[ADMIN, NO_RETENTION], sets].concat());
    let mut client = broker.client();
    let always = ("message.timestamp.before.max.ms", "9223372036854775807");
    client.create_topic(TOPIC, 1, &[&[always], configs].concat());
    for offset in 0..BATCHES {
        assert_eq!(produce(&mut client, offset, &[b'x'; 900_000]), ErrorCode::NONE);
    }
    broker.stop();
    broker.restart();
    assert_eq!(broker.client().latest(TOPIC, 0), BATCHES);
    cool(&broker);
    Some((disk, broker))
}

fn cool(broker: &Broker) {
    for path in broker.partition_files(TOPIC, 0, "log") {
        let file = File::open(path).expect("a segment");
        file.sync_all().expect("on disk");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice is taken");
    }
}

fn wait_for(broker: &Broker, name: &str, value: u32) {
    let line = format!("{name} {value}");
    wait_until(&line, SOON, || broker.admin_page("/metrics").lines().any(|found| found == line));
}

/// Checks that the broker reports the partition until the disk can read its records again.
fn assert_noted_until_mended(broker: &Broker, mend: impl FnOnce()) {
    wait_for(broker, "fullbore_partitions_unwritable", 1);
    broker.wait_for_stderr("cannot read records of a partition for seconds");
    let ready = broker.admin_page("/readyz");
    assert!(ready.starts_with("HTTP/1.1 503 ") && ready.contains("cannot use 1 partitions"), "{ready}");
    mend();
    wait_for(broker, "fullbore_partitions_unwritable", 0);
    let records = broker.client().fetch_records(TOPIC, 0);
    assert_eq!(records.len(), usize::try_from(BATCHES).expect("few"));
}

/// Fetches from the last offset. `None` if the broker closes the connection.
fn fetch_last(client: &mut Client) -> Option<ErrorCode> {
    let from = FetchFrom { topic: TOPIC, partition: 0, offset: BATCHES - 1 };
    let request: FetchRequest = fetch_request(&[from], 0, 0);
    client.try_call(&request, FETCH).map(|mut response| response.responses.remove(0).partitions.remove(0).error_code)
}

#[test]
fn fetch_of_records_that_the_disk_does_not_return_marks_the_partition() {
    let Some((disk, broker)) = filled(&[], &[]) else { return };
    let lost = disk.lose_end_of(&broker.partition_files(TOPIC, 0, "log").pop().expect("a segment"));
    // The first response ends in the middle, because the disk cannot read its records. Later responses have an error
    // code.
    wait_until("the error is answered", SOON, || {
        fetch_last(&mut broker.client()) == Some(ErrorCode::KAFKA_STORAGE_ERROR)
    });
    assert_eq!(broker.client().fetch(TOPIC, 0, 0).error_code, ErrorCode::NONE, "the first records can be read");
    broker.wait_for_stderr("cannot read a partition");
    assert_noted_until_mended(&broker, || lost.give_back());
}

#[test]
fn search_by_time_in_records_that_the_disk_does_not_return_marks_the_partition() {
    let Some((disk, broker)) = filled(&[], &[]) else { return };
    let lost = disk.lose_end_of(&broker.partition_files(TOPIC, 0, "log").pop().expect("a segment"));
    let mut client = broker.client();
    assert_eq!(client.list_offset(TOPIC, 0, time(BATCHES - 1)).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    broker.wait_for_stderr("cannot read a partition");
    assert_noted_until_mended(&broker, || lost.give_back());
}

#[test]
fn cleaning_of_records_that_the_disk_does_not_return_marks_the_partition() {
    let configs = [("segment.bytes", "1048576"), ("min.cleanable.dirty.ratio", "0")];
    let Some((disk, broker)) = filled(&["log.cleaner.backoff.ms=100"], &configs) else { return };
    let mut segments = broker.partition_files(TOPIC, 0, "log");
    segments.sort();
    let lost = disk.lose_end_of(&segments[usize::try_from(BATCHES / 2).expect("few")]);
    broker.client().set_config(2, TOPIC, "cleanup.policy", "compact");
    wait_for(&broker, "fullbore_cleaner_uncleanable_partitions", 1);
    broker.wait_for_stderr("cannot compact a log");
    assert_noted_until_mended(&broker, || lost.give_back());
}

#[test]
fn read_only_remount_after_an_error_is_logged_once_a_minute() {
    let Some((disk, broker)) = filled(&["replica.high.watermark.checkpoint.interval.ms=100"], &[]) else { return };
    let since = Instant::now();
    // This record raises the high watermark, so the broker must write the checkpoint again.
    assert_eq!(produce(&mut broker.client(), BATCHES, b"x"), ErrorCode::NONE);
    disk.fail();
    broker.wait_for_stderr("cannot write high watermarks");
    // The housekeeping thread tries to write the checkpoint once a second. It must not log every failure.
    wait_until("several rounds have failed", SOON, || since.elapsed() > Duration::from_secs(6));
    assert_eq!(produce(&mut broker.client(), BATCHES + 1, b"x"), ErrorCode::KAFKA_STORAGE_ERROR);
    assert_seldom(&broker, "cannot write high watermarks", since);
}
