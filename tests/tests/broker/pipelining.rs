//! Many requests on one connection at the same time. They are admitted in order, carried out concurrently, and answered
//! in order.
//!
//! Times are checked only to distinguish one behaviour from another. They are no measurements.

use fullbore_tests::{Batch, Broker, Client, FetchFrom, fetch_request, produce_request, wait_until};
use fullbore_wire::apis::fetch::FetchRequest;
use fullbore_wire::apis::list_offsets::ListOffsetsRequest;
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::apis::produce::ProduceRequest;
use fullbore_wire::{ErrorCode, Records};
use std::time::{Duration, Instant};

const FETCH: i16 = 12;
const PRODUCE: i16 = 9;
const METADATA: i16 = 9;
const SOON: Duration = Duration::from_secs(30);
/// A maximum wait in milliseconds that is longer than any test.
const LONG_MS: i32 = 60_000;

/// Returns a fetch that waits for the first record of partition 0.
fn long_poll(topic: &str, max_wait_ms: i32) -> FetchRequest {
    fetch_request(&[FetchFrom { topic, partition: 0, offset: 0 }], 1, max_wait_ms)
}

/// Receives the response to a fetch of one partition. Returns how many bytes of records it has.
fn receive_fetched(client: &mut Client) -> usize {
    let (_, response) = client.receive::<FetchRequest>(FETCH);
    assert_eq!(response.error_code, ErrorCode::NONE);
    response.responses[0].partitions[0].records.as_ref().map_or(0, Records::len)
}

fn broker_with_topics(topics: &[&str]) -> (Broker, Client) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    for topic in topics {
        client.create_topic(topic, 1, &[]);
        // The first fetch of a partition may have to open files, so it is done before the measurement.
        client.fetch(topic, 0, 0);
    }
    (broker, client)
}

/// A broker that serves only one request of a connection at a time would need 10 s for these requests.
#[test]
fn five_long_polls_of_two_seconds_on_one_connection_end_together() {
    let (_broker, mut client) = broker_with_topics(&["quiet"]);
    let started = Instant::now();
    let sent: Vec<i32> = (0..5).map(|_| client.send(&long_poll("quiet", 2_000), FETCH)).collect();
    let answered: Vec<i32> = (0..5).map(|_| client.receive::<FetchRequest>(FETCH).0).collect();
    let elapsed = started.elapsed();
    assert_eq!(answered, sent);
    assert!(elapsed >= Duration::from_secs(2), "the polls ended early: {elapsed:?}");
    assert!(elapsed < Duration::from_secs(8), "the polls waited for each other: {elapsed:?}");
}

#[test]
fn responses_leave_in_request_order_regardless_of_completion() {
    let (_broker, mut client) = broker_with_topics(&["slow", "fast"]);
    let sent = [
        client.send(&long_poll("slow", 400), FETCH),
        client.send_produce("fast", 0, &Batch::of(&["x"])),
        client.send(&long_poll("slow", 200), FETCH),
        client.send(&MetadataRequest { topics: None, ..Default::default() }, METADATA),
        client.send(&long_poll("fast", LONG_MS), FETCH),
    ];
    let answered = [
        client.receive::<FetchRequest>(FETCH).0,
        client.receive::<ProduceRequest>(PRODUCE).0,
        client.receive::<FetchRequest>(FETCH).0,
        client.receive::<MetadataRequest>(METADATA).0,
        client.receive::<FetchRequest>(FETCH).0,
    ];
    assert_eq!(answered, sent);
}

#[test]
fn a_produce_behind_a_long_poll_is_in_the_log_long_before_it_is_answered() {
    let (broker, mut other) = broker_with_topics(&["polled", "written"]);
    let mut client = broker.client();
    client.send(&long_poll("polled", LONG_MS), FETCH);
    client.send_produce("written", 0, &Batch::of(&["behind"]));
    wait_until("the produce is in the log", SOON, || other.latest("written", 0) == 1);
    other.produced("polled", 0, &Batch::of(&["wakes"]));
    assert!(receive_fetched(&mut client) > 0, "the poll is answered first, with the record");
    assert_eq!(client.receive_produced().base_offset, 0);
}

#[test]
fn a_produce_ahead_of_a_long_poll_is_answered_at_once() {
    let (_broker, mut client) = broker_with_topics(&["polled", "written"]);
    let started = Instant::now();
    client.send_produce("written", 0, &Batch::of(&["ahead"]));
    client.send(&long_poll("polled", LONG_MS), FETCH);
    assert_eq!(client.receive_produced().base_offset, 0);
    assert!(started.elapsed() < SOON);
}

#[test]
fn a_long_poll_returns_records_produced_behind_it_on_its_connection() {
    let (_broker, mut client) = broker_with_topics(&["own"]);
    client.send(&long_poll("own", LONG_MS), FETCH);
    client.send_produce("own", 0, &Batch::of(&["mine"]));
    assert!(receive_fetched(&mut client) > 0);
    assert_eq!(client.receive_produced().base_offset, 0);
}

#[test]
fn a_long_poll_is_woken_by_another_connection_and_not_before_it_has_its_minimum() {
    let (broker, mut writer) = broker_with_topics(&["woken"]);
    let mut reader = broker.client();
    let one = Batch::of(&["record"]).bytes().len();
    let min_bytes = i32::try_from(3 * one).expect("small");
    let started = Instant::now();
    reader.send(&fetch_request(&[FetchFrom { topic: "woken", partition: 0, offset: 0 }], min_bytes, LONG_MS), FETCH);
    (0..3).for_each(|_| {
        writer.produced("woken", 0, &Batch::of(&["record"]));
    });
    assert_eq!(receive_fetched(&mut reader), 3 * one, "woken for the third, not for the first");
    assert!(started.elapsed() < SOON, "woken, not timed out");
}

#[test]
fn produce_with_acks_zero_is_written_without_a_response() {
    let (_broker, mut client) = broker_with_topics(&["unheard"]);
    for n in 0..10 {
        let batch = Batch::of(&[format!("{n}")]).bytes();
        client.send(&ProduceRequest { acks: 0, ..produce_request("unheard", 0, batch) }, PRODUCE);
    }
    // The ten produce requests have acks=0, so their client gets no response to them. The next response is that of the
    // lookup.
    assert_eq!(client.latest("unheard", 0), 10);
    let texts: Vec<String> = client.fetch_records("unheard", 0).iter().map(|record| record.text()).collect();
    assert_eq!(texts, (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn failed_produce_with_acks_zero_closes_the_connection() {
    let (broker, _) = broker_with_topics(&[]);
    let mut client = broker.client();
    let batch = Batch::of(&["lost"]).bytes();
    client.send(&ProduceRequest { acks: 0, ..produce_request("nowhere", 0, batch) }, PRODUCE);
    assert_eq!(client.wait_for_close(), 0);
    crate::assert_serves(&broker);
}

/// The client sends more requests at once than the broker admits. The broker stops reading from time to time, and all
/// responses must arrive in order.
#[test]
fn ten_thousand_pipelined_requests_are_all_answered_in_order() {
    const REQUESTS: i32 = 10_000;
    let (broker, _) = broker_with_topics(&["busy"]);
    let mut reader = broker.client();
    let mut writer = reader.split();
    let writing = std::thread::spawn(move || {
        let request = ListOffsetsRequest { replica_id: -1, ..Default::default() };
        (0..REQUESTS).for_each(|_| {
            writer.send(&request, 7);
        });
    });
    for id in 0..REQUESTS {
        assert_eq!(reader.receive::<ListOffsetsRequest>(7).0, id);
    }
    writing.join().expect("the writer does not fail");
}

/// A connection has its maximum number of polls, so the broker does not read from it. The broker continues to read as
/// polls end.
#[test]
fn long_polls_beyond_the_limit_of_a_connection_are_admitted_as_others_end() {
    let broker = Broker::start(&["fullbore.connection.requests.max=4"]);
    let mut client = broker.client();
    client.create_topic("few", 1, &[]);
    let sent: Vec<i32> = (0..12).map(|_| client.send(&long_poll("few", 100), FETCH)).collect();
    let answered: Vec<i32> = (0..12).map(|_| client.receive::<FetchRequest>(FETCH).0).collect();
    assert_eq!(answered, sent);
}

/// With a limit of one request, the request after a poll is not handled before the poll's response.
#[test]
fn connection_limited_to_one_request_handles_one() {
    let broker = Broker::start(&["fullbore.connection.requests.max=1"]);
    let mut client = broker.client();
    client.create_topic("polled", 1, &[]);
    client.create_topic("written", 1, &[]);
    let mut full = broker.client();
    full.send(&long_poll("polled", 100_000), FETCH);
    (0..3).for_each(|_| _ = full.send_produce("written", 0, &Batch::of(&["v"])));
    // The broker has read the poll, which waits. While these requests are answered, the three requests after the poll
    // arrive, but the broker must not handle any of them.
    (0..100).for_each(|_| assert_eq!(client.latest("written", 0), 0));
    client.produced("polled", 0, &Batch::of(&["enough"]));
    full.receive::<FetchRequest>(FETCH);
    (0..3).for_each(|n| assert_eq!(full.receive_produced().base_offset, n));
    // A request that gets no response must release its permit, too.
    let unnoticed = ProduceRequest { acks: 0, ..produce_request("written", 0, Batch::of(&["v"]).bytes()) };
    (0..3).for_each(|_| _ = full.send(&unnoticed, PRODUCE));
    assert_eq!(full.latest("written", 0), 6);
}

/// Batches after a poll are appended at once, until the connection has its maximum number of pending responses.
#[test]
fn connection_at_its_limit_of_pending_responses_is_not_read() {
    let broker = Broker::start(&["fullbore.connection.requests.max=4"]);
    let mut client = broker.client();
    client.create_topic("polled", 1, &[]);
    client.create_topic("written", 1, &[]);
    let mut full = broker.client();
    full.send(&long_poll("polled", 100_000), FETCH);
    for _ in 0..20 {
        full.send_produce("written", 0, &Batch::of(&["v"]));
    }
    wait_until("the connection is full", SOON, || client.latest("written", 0) >= 3);
    // While these requests are answered, all twenty batches arrive. A broker that reads beyond its limit would append
    // them all.
    (0..100).for_each(|_| assert!(client.latest("written", 0) >= 3));
    assert_eq!(client.latest("written", 0), 3, "and the poll is the fourth");
    client.produced("polled", 0, &Batch::of(&["enough"]));
    full.receive::<FetchRequest>(FETCH);
    (0..20).for_each(|n| assert_eq!(full.receive_produced().base_offset, n));
}
