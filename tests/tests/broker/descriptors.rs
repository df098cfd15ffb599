//! A broker that has no free descriptors for a while. It refuses requests that need one, and works as before once some
//! are free.

use fullbore_tests::{Batch, Broker, Client, FetchFrom, fetch_request, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::fetch::FetchRequest;
use std::time::Duration;

const TOPIC: &str = "scarce";
const PARTITIONS: i32 = 8;
const SOON: Duration = Duration::from_secs(60);
/// Length of a batch in bytes. Four batches fill a segment.
const LEN: usize = 250_000;

/// Produces a batch to each partition and ignores the results.
fn produce_anyhow(client: &mut Client) {
    for partition in 0..PARTITIONS {
        client.produce(TOPIC, partition, &Batch::sized(LEN));
    }
}

#[test]
fn a_moment_without_descriptors_disables_no_partition() {
    for flush in ["flush.ms=100", "flush.ms=9223372036854775807"] {
        let broker = Broker::start(&[]);
        let mut client = broker.client();
        let (key, value) = flush.split_once('=').expect("a setting");
        client.create_topic(TOPIC, PARTITIONS, &[("segment.bytes", "1048576"), (key, value)]);
        produce_anyhow(&mut client);
        broker.refuse_descriptors();
        // The broker needs descriptors for new segments and indexes, and to flush directories, but gets none.
        (0..8).for_each(|_| produce_anyhow(&mut client));
        broker.wait_for_stderr("Too many open files");
        broker.allow_descriptors();
        for partition in 0..PARTITIONS {
            wait_until("records are taken again", SOON, || {
                !client.produce(TOPIC, partition, &Batch::sized(LEN)).error_code.is_err()
            });
            let end = client.latest(TOPIC, partition);
            assert_eq!(client.fetch_records(TOPIC, partition).len() as i64, end, "partition {partition}");
        }
        let stderr = broker.stderr();
        assert!(!stderr.contains("no appends until the next start"), "{stderr}");
    }
}

/// A response waits for a flush that needs a descriptor. Once descriptors are free again, the broker must flush and
/// send the response.
#[test]
fn flush_without_descriptors_is_retried() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    client.produced(TOPIC, 0, &Batch::sized(LEN));
    client.set_config(2, TOPIC, "flush.messages", "1");
    // The log file is open, but its directory was never flushed. To flush the directory, the broker must open it.
    broker.refuse_descriptors();
    client.send_produce(TOPIC, 0, &Batch::sized(LEN));
    broker.wait_for_stderr("cannot flush a partition");
    broker.allow_descriptors();
    let produced = client.receive_produced();
    assert!(!produced.error_code.is_err(), "{produced:?}");
    assert_eq!(client.produced(TOPIC, 0, &Batch::sized(LEN)), 2);
}

/// The log cannot be opened, because a directory has the name of one of its files. The test removes this directory
/// later.
#[test]
fn waiting_fetch_gets_the_error_of_a_failed_log_open() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    client.produced(TOPIC, 0, &Batch::sized(LEN));
    broker.stop();
    let refused = broker.partition_dir(TOPIC, 0).join("refused.tmp");
    std::fs::create_dir(&refused).expect("made");
    broker.restart();
    let reported = broker.stderr().matches("cannot open a partition").count();
    let mut client = broker.client();
    let from = [FetchFrom { topic: TOPIC, partition: 0, offset: 0 }];
    // The maximum wait of the fetch is much longer than the opening of a log. The failure must end the wait.
    client.set_read_timeout(3 * SOON);
    let max_wait_ms = i32::try_from(SOON.as_millis()).expect("a minute");
    let fetched = client.call::<FetchRequest>(&fetch_request(&from, 1, max_wait_ms), 12);
    assert_eq!(fetched.responses[0].partitions[0].error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    assert!(broker.stderr().matches("cannot open a partition").count() <= reported + 3, "it is tried over and over");
    std::fs::remove_dir(&refused).expect("removed");
    assert_eq!(client.fetch_records(TOPIC, 0).len(), 1);
}

#[test]
fn files_of_a_deleted_topic_are_removed_once_descriptors_are_free() {
    let broker = Broker::start(&["log.segment.delete.delay.ms=5000"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    client.produced(TOPIC, 0, &Batch::sized(LEN));
    client.delete_topic(TOPIC);
    broker.refuse_descriptors();
    broker.wait_for_stderr("cannot remove files");
    broker.allow_descriptors();
    wait_until("the directory is gone", SOON, || {
        let entries = std::fs::read_dir(broker.data_dir()).expect("listed");
        !entries.map(|entry| entry.expect("listed").file_name()).any(|name| name.to_string_lossy().starts_with(TOPIC))
    });
}
