//! Stops with requests that are still being carried out when the time for responses is over.

use crate::pipe::Pipe;
use fullbore_tests::{Batch, Broker, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::delete_topics::DeleteTopicsRequest;
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};
use std::fs;
use std::io::Write;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const DELETE_TOPICS: i16 = 3;
const METADATA: i16 = 9;

fn is_known(broker: &Broker, topic: &str) -> bool {
    let topics = vec![MetadataRequestTopic { name: Some(topic.into()), ..Default::default() }];
    let request = MetadataRequest { topics: Some(topics), allow_auto_topic_creation: false, ..Default::default() };
    !broker.client().call(&request, METADATA).topics[0].error_code.is_err()
}

fn delete(topic: &str) -> DeleteTopicsRequest {
    DeleteTopicsRequest { topic_names: vec![topic.into()], timeout_ms: 60_000, ..Default::default() }
}

#[test]
fn request_at_the_end_of_a_stop_is_done_whole_or_not_at_all() {
    let mut broker = Broker::start(&[]);
    for topic in ["slow", "last"] {
        broker.client().create_topic(topic, 1, &[]);
        broker.client().produced(topic, 0, &Batch::of(&["v"]));
    }
    broker.stop();
    let slow = Pipe::in_place_of(&broker.partition_dir("slow", 0).join("partition.metadata"));
    broker.restart();
    let mut requesting = broker.client();
    // The first deletion hangs, and the broker handles the second one only afterwards. By then, the broker no longer
    // waits for its last responses.
    requesting.send(&delete("slow"), DELETE_TOPICS);
    requesting.send(&delete("last"), DELETE_TOPICS);
    let pipe = slow.wait_for_reader();
    broker.terminate();
    broker.wait_for_stderr("some clients have not read their responses in time");
    slow.give(pipe);
    assert_eq!(broker.wait_for_end().code(), Some(0));
    let first = requesting.try_receive::<DeleteTopicsRequest>(DELETE_TOPICS);
    let second = first.and_then(|_| requesting.try_receive::<DeleteTopicsRequest>(DELETE_TOPICS));
    let is_deleted = second.is_some_and(|(_, response)| response.responses[0].error_code == ErrorCode::NONE);
    broker.restart();
    assert!(!is_known(&broker, "slow") && !broker.partition_dir("slow", 0).exists());
    if is_known(&broker, "last") {
        assert!(!is_deleted, "it was said that it is deleted");
        assert_eq!(broker.client().fetch_records("last", 0).len(), 1);
    } else {
        wait_until("its directory is out of the way", SOON, || !broker.partition_dir("last", 0).exists());
    }
}

#[test]
fn stop_does_not_wait_for_the_scan_of_a_damaged_log() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    client.produced("t", 0, &Batch::of(&["v"]));
    broker.kill();
    let log = broker.partition_files("t", 0, "log").remove(0);
    let mut file = fs::File::options().append(true).open(log).expect("there");
    // The broker finds no batch in these bytes when it starts, and searches 32 GiB of zeros after them for one. This
    // search takes longer than a stop may take.
    file.write_all(&[0xff; 100]).expect("written");
    file.set_len(32 << 30).expect("a file with a hole");
    broker.restart();
    let before = broker.bytes_read();
    wait_until("it is searched for batches", SOON, || broker.bytes_read() > before + (16 << 20));
    broker.stop();
}

/// The stop waits for a response that takes longer than the idle limit. The broker must send it before it closes the
/// connection.
#[test]
fn stop_waits_for_a_response_past_the_idle_limit() {
    let mut broker = Broker::start(&[
        "fullbore.diskless.put.delay.ms=6000",
        "connections.max.idle.ms=2000",
        "fullbore.admin.listener=127.0.0.1:0",
    ]);
    let mut client = broker.client();
    client.create_topic("slow", 1, &[("diskless.enable", "true")]);
    client.send_produce("slow", 0, &Batch::of(&["v"]));
    wait_until("it is on its way to the store", SOON, || {
        let page = broker.admin_page("/metrics");
        let bytes = page.lines().find_map(|line| line.strip_prefix("fullbore_diskless_uncommitted_bytes "));
        bytes.is_some_and(|bytes| bytes != "0")
    });
    broker.terminate();
    assert_eq!(client.receive_produced().error_code, ErrorCode::NONE);
    assert_eq!(broker.wait_for_end().code(), Some(0));
}
