//! Limits on the memory and requests that one client of a diskless topic can occupy while the store is slow.

use std::time::Duration;

use bytes::Bytes;
use fullbore_tests::{Batch, Broker, produce_request, topic_data, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::produce::ProduceRequest;

use crate::reorder;

const TOPIC: &str = "diskless";
const CONFIGS: &[(&str, &str)] = &[("diskless.enable", "true")];
const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);

#[test]
fn batch_waiting_for_its_commit_holds_no_other_part_of_its_request() {
    let broker = Broker::start(&["fullbore.diskless.put.delay.ms=5000"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    let before = broker.rss();
    let mut request = produce_request(TOPIC, 0, Batch::of(&["small"]).bytes());
    request.topic_data.push(topic_data("nosuch", &[(0, Bytes::from(vec![0; 20 << 20]))]));
    for _ in 0..10 {
        client.send(&request, 9);
    }
    for _ in 0..10 {
        let answer = client.receive::<ProduceRequest>(9).1;
        let codes = answer.responses.iter().map(|topic| topic.partition_responses[0].error_code);
        assert_eq!(codes.collect::<Vec<_>>(), [ErrorCode::NONE, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION]);
    }
    let grown = broker.rss_peak().saturating_sub(before) / MIB;
    assert!(grown < 100, "{grown} MiB for ten requests of 20 MiB, one of which is read at a time");
}

#[test]
fn small_batches_count_with_their_bookkeeping() {
    let memory = "diskless.produce.memory.bytes=8388608";
    let broker = Broker::start(&[memory, "fullbore.diskless.put.delay.ms=2000", "num.partitions=1"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1000, CONFIGS);
    let batch = Batch::of(&["x"]).bytes();
    let all: Vec<_> = (0..1000).map(|partition| (partition, batch.clone())).collect();
    let mut request = produce_request(TOPIC, 0, batch.clone());
    (request.acks, request.topic_data) = (0, vec![topic_data(TOPIC, &all)]);
    // The first request creates and opens each partition, before memory is measured.
    client.send(&request, 9);
    let written = |client: &mut fullbore_tests::Client| client.latest(TOPIC, 999);
    wait_until("the first is written", SOON, || written(&mut broker.client()) == 1);
    let before = broker.rss();
    // The hundred requests have 100,000 batches, 7 MB in total.
    for _ in 0..100 {
        client.send(&request, 9);
    }
    wait_until("all are written", SOON * 3, || written(&mut broker.client()) == 101);
    let grown = broker.rss_peak().saturating_sub(before) / MIB;
    assert!(grown < 50, "{grown} MiB");
}

#[test]
fn disconnected_client_is_closed_while_its_batch_waits_for_memory() {
    let memory = ["diskless.produce.memory.bytes=8388608", "fullbore.diskless.put.delay.ms=60000"];
    let broker = Broker::start(&[&memory[..], &["connections.max.idle.ms=5000"]].concat());
    broker.client().create_topic(TOPIC, 1, CONFIGS);
    let batch = Batch::of(&[vec![b'v'; 900_000]]).bytes();
    let request = ProduceRequest { timeout_ms: i32::MAX, ..produce_request(TOPIC, 0, batch) };
    // The first batches get memory, and the later ones wait for it.
    let hung_up = (0..16).map(|_| {
        let mut client = broker.client();
        client.send(&request, 9);
        client.finish();
        client
    });
    let mut clients: Vec<_> = hung_up.collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.wait_for_close(), 0));
}

/// A batch waits for its predecessor, whose object has not reached the store. Both must fail after the timeout of their
/// requests.
#[test]
fn out_of_order_batch_times_out_by_its_request() {
    let settings = ["fullbore.diskless.put.delay.ms=60000", "fullbore.reorder.wait.ms=30000"];
    let broker = Broker::start(&settings);
    let mut client = broker.client();
    let topic = client.create_topic(TOPIC, 1, CONFIGS);
    let mut early = broker.client();
    for (client, sequence) in [(&mut early, 1), (&mut client, 0)] {
        let mut request = reorder::request(topic, &reorder::one(7, sequence), true);
        request.timeout_ms = 2_000;
        client.send(&request, reorder::PRODUCE);
    }
    for mut client in [client, early] {
        assert_eq!(reorder::receive_error(&mut client), ErrorCode::REQUEST_TIMED_OUT);
    }
}

/// The store accepts one object at a time, while the memory budget is enough for 32 objects.
#[test]
fn flooded_broker_commits_a_small_batch_with_one_of_the_next_objects() {
    let broker = Broker::start(&[
        "diskless.produce.memory.bytes=33554432",
        "diskless.produce.buffer.max.bytes=1048576",
        "diskless.produce.upload.thread.pool.size=1",
        "fullbore.diskless.put.delay.ms=200",
    ]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, CONFIGS);
    let mut flooder = broker.client();
    let flood = std::thread::spawn(move || {
        let mut request = produce_request(TOPIC, 0, Batch::of(&[vec![b'x'; 100_000]]).bytes());
        request.acks = 0;
        // The broker may close the connection before everything is sent.
        while flooder.try_send(&request, 9).is_ok() {}
    });
    wait_until("three objects are committed", SOON, || client.latest(TOPIC, 0) > 30);
    for _ in 0..5 {
        let before = client.latest(TOPIC, 0);
        client.produced(TOPIC, 1, &Batch::of(&["small"]));
        let passed = client.latest(TOPIC, 0) - before;
        // The memory budget has room for about 300 large records. If the small batch waited for all of them, the broker
        // would commit more than the limit before it. The limit has a margin for slow machines.
        assert!(passed < 200, "{passed} records of 100 kB were committed before it");
    }
    drop(broker);
    flood.join().expect("it ends with the broker");
}

#[test]
fn batch_waits_for_memory_up_to_the_timeout_of_its_request() {
    let broker = Broker::start(&["diskless.produce.memory.bytes=8388608", "fullbore.diskless.put.delay.ms=60000"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    let batch = Batch::of(&[vec![b'x'; 900_000]]).bytes();
    for _ in 0..12 {
        let mut request = produce_request(TOPIC, 0, batch.clone());
        request.timeout_ms = 500;
        client.send(&request, 9);
    }
    // The first PUT takes a minute, and no memory is free before it is done.
    for at in 0..12 {
        assert_eq!(client.receive_produced().error_code, ErrorCode::REQUEST_TIMED_OUT, "the batch {at}");
    }
}
