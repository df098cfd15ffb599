//! Clients that close one side of their connection. A client still gets the responses to its earlier requests. A client
//! that reads no responses is disconnected.

use crate::tls::Secured;
use fullbore_tests::{Batch, Broker, Client, FetchFrom, fetch_request, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::fetch::FetchRequest;
use fullbore_wire::apis::metadata::MetadataRequest;
use std::time::Duration;

const FETCH: i16 = 12;
const METADATA: i16 = 9;
const CREATE_TOPICS: i16 = 7;
const SOON: Duration = Duration::from_secs(30);

/// Returns a fetch that waits for one second, because there are no records.
fn long_poll() -> FetchRequest {
    fetch_request(&[FetchFrom { topic: "quiet", partition: 0, offset: 0 }], 1, 1000)
}

fn assert_polled(client: &mut Client) {
    let (_, response) = client.receive::<FetchRequest>(FETCH);
    assert_eq!(response.responses[0].partitions[0].error_code, ErrorCode::NONE);
}

/// Sends requests of every kind and closes the sending side at once. Every response must arrive.
fn assert_all_is_answered(mut client: Client, made: &str) {
    client.send(&long_poll(), FETCH);
    client.send_produce("written", 0, &Batch::of(&["behind"]));
    let topic = CreatableTopic { name: made.into(), num_partitions: 1, replication_factor: 1, ..Default::default() };
    client.send(&CreateTopicsRequest { topics: vec![topic], ..Default::default() }, CREATE_TOPICS);
    client.send(&MetadataRequest { topics: None, ..Default::default() }, METADATA);
    client.send(&long_poll(), FETCH);
    client.finish();
    assert_polled(&mut client);
    assert_eq!(client.receive_produced().error_code, ErrorCode::NONE);
    assert_eq!(client.receive::<CreateTopicsRequest>(CREATE_TOPICS).1.topics[0].error_code, ErrorCode::NONE);
    let metadata = client.receive::<MetadataRequest>(METADATA).1;
    assert!(metadata.topics.iter().any(|topic| topic.name.as_deref() == Some(made)));
    assert_polled(&mut client);
    assert_eq!(client.wait_for_close(), 0, "the broker ends its side, too");
}

fn with_topics(broker: &Broker) -> Client {
    let mut client = broker.client();
    client.create_topic("quiet", 1, &[]);
    client.create_topic("written", 1, &[]);
    client
}

#[test]
fn client_that_closes_its_side_after_its_requests_gets_every_response() {
    let broker = Broker::start(&[]);
    let mut client = with_topics(&broker);
    assert_all_is_answered(broker.client(), "made");
    assert_eq!(client.latest("written", 0), 1);
    let secured = Secured::start(&[]);
    with_topics(&secured.broker);
    assert_all_is_answered(secured.client(), "made");
}

#[test]
fn whole_requests_are_answered_before_a_broken_one() {
    let broker = Broker::start(&[]);
    with_topics(&broker);
    let cut: &[u8] = &[0, 0, 0, 50, 0, 3, 0];
    let without_end: &[u8] = &[0x7f, 0xff, 0xff, 0xff];
    let negative: &[u8] = &[0xff; 8];
    let cut_length: &[u8] = &[0, 0];
    for behind in [cut, without_end, negative, cut_length] {
        let mut client = broker.client();
        client.send(&long_poll(), FETCH);
        client.send_produce("written", 0, &Batch::of(&["whole"]));
        client.send_bytes(behind);
        client.finish();
        assert_polled(&mut client);
        assert_eq!(client.receive_produced().error_code, ErrorCode::NONE, "before {behind:?}");
        assert_eq!(client.wait_for_close(), 0);
    }
}

#[test]
fn client_that_stops_reading_is_disconnected() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("large", 1, &[]);
    for _ in 0..10 {
        client.produced("large", 0, &Batch::of(&[vec![b'v'; 900_000]]));
    }
    // The idle limit is set after the batches are written, which may take longer than the limit.
    broker.stop();
    broker.restart_with(&["connections.max.idle.ms=1000"]);
    let mut deaf = broker.client();
    deaf.stop_reading();
    let fetch = fetch_request(&[FetchFrom { topic: "large", partition: 0, offset: 0 }], 1, 0);
    // The client sends requests until the system's buffers are full. The broker stops reading when the connection has
    // the maximum number of requests without a response.
    let mut writing = deaf.split();
    writing.set_write_timeout(Duration::from_secs(5));
    while writing.try_send(&fetch, FETCH).is_ok() {}
    wait_until("the connection is closed", SOON, || !deaf.is_open_at_broker());
}

/// The maximum wait of a poll may be weeks. If the client has closed its sending side, the broker must disconnect it
/// earlier.
#[test]
fn client_that_closed_its_side_is_disconnected_while_its_poll_waits() {
    let broker = Broker::start(&["connections.max.idle.ms=5000"]);
    with_topics(&broker);
    let poll = fetch_request(&[FetchFrom { topic: "quiet", partition: 0, offset: 0 }], 1, i32::MAX);
    let mut waiting = broker.client();
    waiting.send(&poll, FETCH);
    let mut gone = broker.client();
    gone.send(&poll, FETCH);
    gone.finish();
    assert_eq!(gone.wait_for_close(), 0);
    // The poll continues although its client was silent for longer than the idle limit.
    broker.client().produced("quiet", 0, &Batch::of(&["late"]));
    assert_polled(&mut waiting);
}
