//! Limits of connections, frames and memory. Each is tested just below and just above the limit.

use crate::assert_serves;
use fullbore_tests::{Batch, Broker, FetchFrom, bytes_of, fetch_request, produce_request, wait_until};
use fullbore_wire::api::encode_request;
use fullbore_wire::apis::fetch::FetchRequest;
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::apis::produce::ProduceRequest;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(30);

fn metadata_of_all() -> MetadataRequest {
    MetadataRequest { topics: None, ..Default::default() }
}

#[test]
fn a_frame_above_socket_request_max_bytes_closes_the_connection_and_one_below_is_served() {
    let broker = Broker::start(&["socket.request.max.bytes=10000"]);
    broker.client().create_topic("small", 1, &[]);
    let of_size = |size: usize| produce_request("small", 0, Batch::of(&[vec![b'x'; size]]).bytes());
    assert!(broker.client().call(&of_size(9_000), 9).responses[0].partition_responses[0].error_code.0 == 0);
    let mut client = broker.client();
    // The broker may close the connection before it has received the rest.
    let _ = client.try_send_bytes(&bytes_of(&encode_request(&of_size(10_001), 9, 0, None).expect("a request")));
    assert_eq!(client.wait_for_close(), 0);
    assert_serves(&broker);
}

#[test]
fn a_hundred_announced_frames_of_a_hundred_megabytes_take_only_the_received_bytes() {
    let broker = Broker::start(&[]);
    assert_serves(&broker);
    let before = broker.rss();
    let mut claims: Vec<_> = (0..100).map(|_| broker.client()).collect();
    for client in &mut claims {
        client.send_bytes(&104_857_600_i32.to_be_bytes());
        client.send_bytes(&[0; 1000]);
    }
    // When the broker answers this later request on another connection, it has already read from each of these
    // connections.
    assert_serves(&broker);
    let grown = broker.rss().saturating_sub(before);
    assert!(grown < 32 * MIB, "{} MiB for 100 kB", grown / MIB);
    drop(claims);
    assert_serves(&broker);
}

/// A client sends requests and reads no response. Its requests must wait in the kernel instead of in the broker.
#[test]
fn flood_of_requests_with_unread_responses_is_held_back() {
    let broker = Broker::start(&["fullbore.connection.bytes.max=1048576"]);
    let mut client = broker.client();
    (0..50).for_each(|n| {
        client.create_topic(&format!("topic-with-a-long-name-to-make-answers-large-{n}"), 20, &[]);
    });
    let before = broker.rss();
    let request = bytes_of(&encode_request(&metadata_of_all(), 9, 0, None).expect("a request"));
    let burst = request.repeat(1000);
    let mut floods: Vec<_> = (0..4).map(|_| broker.client()).collect();
    for flood in &mut floods {
        flood.set_write_timeout(Duration::from_secs(1));
        let stuck = (0..10_000).any(|_| flood.try_send_bytes(&burst).is_err());
        assert!(stuck, "the broker read ten million requests without being read");
        assert_serves(&broker);
    }
    let grown = broker.rss().saturating_sub(before);
    assert!(grown < 64 * MIB, "{} MiB", grown / MIB);
    for flood in &mut floods {
        (0..100).for_each(|_| {
            flood.receive::<MetadataRequest>(9);
        });
    }
    assert_serves(&broker);
}

/// The memory of freed responses must return to the system. Each response has 78 KB, and a connection may have 6.5 MB
/// of them. When they are freed together, they leave holes below memory that is still in use.
#[test]
fn memory_of_unread_responses_returns_to_the_system_after_the_close() {
    const CLIENTS: usize = 60;
    // While the machine is busy with other tests, the broker must build thousands of large responses.
    const IN_TIME: Duration = Duration::from_secs(150);
    let broker = Broker::start(&[]);
    for topic in 0..3 {
        broker.client().create_topic(&format!("wide-{topic}-{}", "n".repeat(200)), 1000, &[]);
    }
    let request = bytes_of(&encode_request(&metadata_of_all(), 9, 0, None).expect("a request")).repeat(1000);
    let before = broker.rss();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut client = broker.client();
            client.set_write_timeout(IN_TIME);
            client.send_bytes(&request);
            client
        })
        .collect();
    let held = || broker.rss().saturating_sub(before) / MIB;
    wait_until("answers take memory", IN_TIME, || held() > 250);
    // These connections allocate memory between and above the responses, so that freed responses leave holes.
    let others: Vec<_> = (0..200)
        .map(|_| {
            let mut other = broker.client();
            assert!(other.metadata(&[]).topics.is_empty());
            other
        })
        .collect();
    drop(clients);
    wait_until("their memory is the system's", IN_TIME, || held() < 100);
    drop(others);
}

#[test]
fn request_of_single_bytes_is_answered_and_delays_no_other() {
    let broker = Broker::start(&[]);
    let mut slow = broker.client();
    let request = bytes_of(&encode_request(&metadata_of_all(), 9, 0, None).expect("a request"));
    for byte in request {
        slow.send_bytes(&[byte]);
        assert_serves(&broker);
    }
    slow.receive::<MetadataRequest>(9);
}

#[test]
fn a_connection_idle_for_connections_max_idle_ms_is_closed_and_a_busy_one_is_not() {
    let broker = Broker::start(&["connections.max.idle.ms=1000"]);
    let (mut idle, mut half) = (broker.client(), broker.client());
    let idle_since = Instant::now();
    idle.call(&metadata_of_all(), 9);
    half.send_bytes(&[0, 0, 0]);
    let waiting = std::thread::spawn(move || {
        assert_eq!(idle.wait_for_close(), 0);
        let closed_after = idle_since.elapsed();
        assert_eq!(half.wait_for_close(), 0, "so is one that stopped inside a frame");
        closed_after
    });
    let (mut busy, mut opened, mut requested) = (broker.client(), Instant::now(), Instant::now());
    wait_until("the idle connections are closed, and the busy one is not", SOON, || {
        // If the machine has suspended this test, the busy connection was idle for that time, and the broker may have
        // closed it. The test then opens another one.
        if requested.elapsed() > Duration::from_millis(700) {
            (busy, opened) = (broker.client(), Instant::now());
        }
        busy.call(&metadata_of_all(), 9);
        requested = Instant::now();
        waiting.is_finished() && opened.elapsed() > Duration::from_millis(1_500)
    });
    let closed_after = waiting.join().expect("both were closed");
    assert!(closed_after >= Duration::from_millis(900), "closed after {closed_after:?} already");
}

#[test]
fn connection_that_waits_for_a_response_is_not_idle() {
    let mut broker = Broker::start(&[]);
    broker.client().create_topic("quiet", 1, &[]);
    broker.stop();
    broker.restart_with(&["connections.max.idle.ms=1500"]);
    let mut waiting = broker.client();
    let requested = Instant::now();
    waiting.send(&fetch_request(&[FetchFrom { topic: "quiet", partition: 0, offset: 0 }], 1, 4_000), 12);
    let (_, response) = waiting.receive::<FetchRequest>(12);
    assert_eq!(response.error_code.0, 0);
    assert!(requested.elapsed() >= Duration::from_millis(3_900), "the poll was to last longer than idleness may");
    assert_eq!(waiting.wait_for_close(), 0);
    assert!(requested.elapsed() >= Duration::from_millis(5_400), "idleness begins with the answer");
}

/// How many bytes a slow client transfers.
const SLOW_BYTES: usize = 32 << 20;
/// The number of pieces in which a slow client transfers them.
const PIECES: usize = 128;
/// How long a slow client pauses after each piece. The sum of the pauses is twice the idle limit [`IDLE`], while each
/// of them is far shorter than the limit, even on a busy machine.
const PAUSE: Duration = Duration::from_millis(65);
const IDLE: &str = "connections.max.idle.ms=4000";

/// Starts a broker with a topic of `SLOW_BYTES` and small socket buffers. Returns the broker and a fetch of the whole
/// topic.
fn broker_with_a_large_answer(idle: &str) -> (Broker, FetchRequest) {
    let sets = ["socket.send.buffer.bytes=65536", "message.max.bytes=8388608"];
    let mut broker = Broker::start(&sets);
    let mut client = broker.client();
    client.create_topic("large", 1, &[]);
    let batch = Batch::of(&[vec![b'x'; SLOW_BYTES / 8]]);
    (0..8).for_each(|_| _ = client.produced("large", 0, &batch));
    // The idle limit is set after the batches are written, which may take longer than the limit on a busy machine.
    broker.stop();
    broker.restart_with(&[&sets[..], &[idle]].concat());
    let mut fetch = fetch_request(&[FetchFrom { topic: "large", partition: 0, offset: 0 }], 0, 0);
    fetch.topics[0].partitions[0].partition_max_bytes = i32::MAX;
    (broker, fetch)
}

#[test]
fn client_that_reads_a_response_slowly_is_not_idle() {
    let (broker, fetch) = broker_with_a_large_answer(IDLE);
    let mut slow = broker.client();
    slow.send(&fetch, 12);
    let prefix = slow.take(4).expect("an answer");
    let length = i32::from_be_bytes(prefix.try_into().expect("four bytes"));
    let mut left = usize::try_from(length).expect("a length");
    assert!(left > SLOW_BYTES);
    while left > 0 {
        let piece = slow.take(left.min(SLOW_BYTES / PIECES)).expect("the connection is not closed while bytes move");
        left -= piece.len();
        std::thread::sleep(PAUSE);
    }
    slow.call(&metadata_of_all(), 9);
}

#[test]
fn client_that_sends_a_request_slowly_is_not_idle() {
    let broker = Broker::start(&[IDLE, "message.max.bytes=67108864"]);
    broker.client().create_topic("large", 1, &[]);
    let batch = Batch::of(&[vec![b'x'; SLOW_BYTES]]).bytes();
    let request = bytes_of(&encode_request(&produce_request("large", 0, batch), 9, 0, None).expect("a request"));
    // The client connects only after the request is encoded, which may take as long as the idle limit.
    let mut slow = broker.client();
    for piece in request.chunks(SLOW_BYTES / PIECES) {
        slow.send_bytes(piece);
        std::thread::sleep(PAUSE);
    }
    let (_, response) = slow.receive::<ProduceRequest>(9);
    assert_eq!(response.responses[0].partition_responses[0].base_offset, 0);
}

/// Three clients stop transferring. `deaf` has read only the beginning of a response. So has `flood`, which has also
/// sent more requests than the broker reads. `half` has sent only a part of a request.
#[test]
fn clients_that_transfer_nothing_are_idle_even_with_responses_pending() {
    let (broker, fetch) = broker_with_a_large_answer("connections.max.idle.ms=3000");
    let mut deaf = broker.client();
    deaf.send(&fetch, 12);
    deaf.wait_for_answer();
    let mut flood = broker.client();
    flood.send(&fetch, 12);
    flood.wait_for_answer();
    flood.set_write_timeout(Duration::from_secs(1));
    let burst = bytes_of(&encode_request(&fetch, 12, 0, None).expect("a request")).repeat(1000);
    assert!((0..10_000).any(|_| flood.try_send_bytes(&burst).is_err()), "it is read without end");
    let mut half = broker.client();
    half.send_bytes(&[&1000_i32.to_be_bytes()[..], &[0; 500]].concat());
    assert_eq!(half.wait_for_close(), 0);
    let mut other = broker.client();
    other.call(&metadata_of_all(), 9);
    assert!(other.is_open_at_broker(), "one that is open is found to be");
    for mut client in [deaf, flood] {
        // The client starts to read after the close. It gets only the bytes that are already in the sockets' buffers.
        wait_until("it is closed", SOON, || !client.is_open_at_broker());
        assert!(client.take_what_comes().len() < SLOW_BYTES);
    }
    assert_serves(&broker);
}

#[test]
fn max_connections_closes_the_excess_connection_and_admits_one_after_a_close() {
    one_too_many_is_closed(&Broker::start(&["max.connections=3"]));
}

#[test]
fn max_connections_per_ip_closes_the_excess_connection_and_admits_one_after_a_close() {
    one_too_many_is_closed(&Broker::start(&["max.connections.per.ip=3"]));
}

#[test]
fn max_connections_per_ip_overrides_take_precedence() {
    let sets = ["max.connections.per.ip=1000", "max.connections.per.ip.overrides=127.0.0.1:3"];
    one_too_many_is_closed(&Broker::start(&sets));
}

#[test]
fn limits_on_connections_may_change_while_the_broker_runs() {
    const BROKERS: i8 = 4;
    let broker = Broker::start(&[]);
    let mut first = broker.client();
    for key in ["max.connections", "max.connections.per.ip"] {
        first.set_config(BROKERS, "", key, "1");
        assert_eq!(broker.client().wait_for_close(), 0, "{key}");
        first.set_config(BROKERS, "", key, "3");
        broker.client().call(&metadata_of_all(), 9);
    }
    first.set_config(BROKERS, "1", "max.connections.per.ip.overrides", "127.0.0.1:1");
    assert_eq!(broker.client().wait_for_close(), 0);
    first.call(&metadata_of_all(), 9);
}

fn one_too_many_is_closed(broker: &Broker) {
    // The test opens its connections only now. An earlier one may still be closing.
    let mut served: Vec<_> = (0..3).map(|_| broker.client()).collect();
    for client in &mut served {
        client.call(&metadata_of_all(), 9);
    }
    assert_eq!(broker.client().wait_for_close(), 0);
    served.pop();
    wait_until("there is room again", SOON, || {
        let mut next = broker.client();
        let request = encode_request(&metadata_of_all(), 9, 0, None).expect("a request");
        let sent = next.try_send_bytes(&bytes_of(&request));
        sent.is_ok() && next.try_receive::<MetadataRequest>(9).is_some()
    });
    for client in &mut served {
        client.call(&metadata_of_all(), 9);
    }
}

/// Sixteen requests of 4 MiB arrive on one connection, whose limit is 1 MiB. They are admitted one at a time, and all
/// are served.
#[test]
fn requests_larger_than_a_connections_limit_are_admitted_one_at_a_time() {
    let broker = Broker::start(&["fullbore.connection.bytes.max=1048576", "message.max.bytes=8388608"]);
    let mut reader = broker.client();
    reader.create_topic("large", 1, &[]);
    let before = broker.rss();
    let mut writer = reader.split();
    let batch = Batch::of(&[vec![b'x'; 4 << 20]]).bytes();
    let writing = std::thread::spawn(move || {
        (0..16).for_each(|_| {
            writer.send(&produce_request("large", 0, batch.clone()), 9);
        });
    });
    for offset in 0..16 {
        let (_, response) = reader.receive::<ProduceRequest>(9);
        assert_eq!(response.responses[0].partition_responses[0].base_offset, offset);
    }
    writing.join().expect("the writer does not fail");
    let grown = broker.rss().saturating_sub(before);
    assert!(grown < 64 * MIB, "{} MiB", grown / MIB);
}

#[test]
fn idle_connections_take_little_memory_and_delay_no_other() {
    let broker = Broker::start(&[]);
    assert_serves(&broker);
    let before = broker.rss();
    let mut idle: Vec<_> = (0..400).map(|_| broker.client()).collect();
    for client in &mut idle {
        client.call(&metadata_of_all(), 9);
    }
    assert_serves(&broker);
    let grown = broker.rss().saturating_sub(before);
    assert!(grown < 400 * 16 * 1024, "{} KiB for each", grown / 400 / 1024);
}
