//! Frames that no client sends. The broker must answer each with an error or a closed connection, at a limited cost,
//! and serve all other clients as before.
//!
//! Limits of connections and sizes are tested in `limits`.

use crate::assert_serves;
use fullbore_tests::{Batch, Broker, FetchFrom, bytes_of, fetch_request};
use fullbore_wire::ErrorCode;
use fullbore_wire::api::{ApiKey, Request, Visit, encode_request};
use fullbore_wire::apis::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
use fullbore_wire::apis::fetch::FetchRequest;
use fullbore_wire::apis::metadata::MetadataRequest;

const MIB: u64 = 1 << 20;
/// Maximum memory of a broker that gets only small frames, in bytes. Measured with a debug build.
const RSS_MAX: u64 = 64 * MIB;

/// Returns a frame with this body and the correct length.
fn frame(body: &[u8]) -> Vec<u8> {
    let length = i32::try_from(body.len()).expect("a small frame");
    [&length.to_be_bytes(), body].concat()
}

/// Returns a request header without a client id. In flexible versions it ends with an empty list of tags.
fn header(key: i16, version: i16, flexible: bool) -> Vec<u8> {
    let mut header = [key.to_be_bytes(), version.to_be_bytes()].concat();
    header.extend(7_i32.to_be_bytes());
    header.extend((-1_i16).to_be_bytes());
    if flexible {
        header.push(0);
    }
    header
}

/// Returns every version of every API that the broker offers. The broker refuses other versions before it reads their
/// bodies.
fn every_version(broker: &Broker) -> impl Iterator<Item = (ApiKey, i16)> + use<> {
    broker.client().offered().into_iter().flat_map(|key| key.versions().map(move |version| (key, version)))
}

/// An empty request of an API that is known only at run time.
struct Empty(i16);

impl Visit for Empty {
    type Output = Vec<u8>;
    fn visit<R: Request>(self) -> Vec<u8> {
        bytes_of(&encode_request(&R::default(), self.0, 7, None).expect("the default is a request"))
    }
}

/// Sends bytes, closes the sending side, and waits until the broker closes the connection after its responses.
fn exchange(broker: &Broker, bytes: &[u8]) {
    let mut client = broker.client();
    // The broker may close the connection before it has read everything.
    let _ = client.try_send_bytes(bytes);
    client.finish();
    client.wait_for_close();
}

fn assert_unharmed(broker: &Broker) {
    assert_serves(broker);
    assert!(broker.rss() < RSS_MAX, "{} MiB", broker.rss() / MIB);
}

#[test]
fn counts_of_two_billion_in_every_request_cost_nothing() {
    let broker = Broker::start(&[]);
    for (key, version) in every_version(&broker) {
        let flexible = version >= key.flexible_from();
        let huge: &[u8] = if flexible { &[0xff, 0xff, 0xff, 0xff, 0x0f] } else { &[0x7f, 0xff, 0xff, 0xff] };
        for fields_before in 0..24 {
            let mut body = header(key.code(), version, flexible);
            body.extend(vec![0; fields_before]);
            body.extend(huge.repeat(16));
            exchange(&broker, &frame(&body));
        }
    }
    assert_unharmed(&broker);
}

#[test]
fn negative_lengths_in_every_request_are_survived() {
    let broker = Broker::start(&[]);
    for (key, version) in every_version(&broker) {
        for byte in [0x80, 0xfe, 0xff] {
            for fields_before in [0, 1, 2, 4, 6, 8, 10] {
                let mut body = header(key.code(), version, version >= key.flexible_from());
                body.extend(vec![0; fields_before]);
                body.extend([byte; 64]);
                exchange(&broker, &frame(&body));
            }
        }
    }
    assert_unharmed(&broker);
}

#[test]
fn every_request_cut_at_every_byte_is_survived() {
    let broker = Broker::start(&[]);
    for (key, version) in every_version(&broker) {
        let whole = key.visit(Empty(version));
        for end in 4..whole.len() {
            exchange(&broker, &frame(&whole[4..end]));
        }
        let mut longer = whole[4..].to_vec();
        longer.push(0);
        exchange(&broker, &frame(&longer));
    }
    assert_unharmed(&broker);
}

#[test]
fn random_bytes_behind_every_header_are_survived() {
    let broker = Broker::start(&[]);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    for (key, version) in every_version(&broker) {
        for _ in 0..20 {
            let mut body = header(key.code(), version, version >= key.flexible_from());
            let len = usize::from(random());
            body.extend((0..len).map(|_| random()));
            exchange(&broker, &frame(&body));
        }
    }
    assert_unharmed(&broker);
}

#[test]
fn negative_frame_lengths_close_the_connection() {
    let broker = Broker::start(&[]);
    for length in [-1, -4, i32::MIN] {
        let mut client = broker.client();
        client.send_bytes(&length.to_be_bytes());
        assert_eq!(client.wait_for_close(), 0, "{length}");
    }
    assert_unharmed(&broker);
}

#[test]
fn frames_too_short_for_a_header_close_the_connection() {
    let broker = Broker::start(&[]);
    for length in 0..8 {
        let mut client = broker.client();
        client.send_bytes(&frame(&vec![0; length]));
        assert_eq!(client.wait_for_close(), 0, "{length}");
    }
    assert_unharmed(&broker);
}

#[test]
fn unknown_api_keys_and_versions_close_the_connection() {
    let broker = Broker::start(&[]);
    let unknown = [(999, 0), (-1, 0), (i16::MAX, 3), (3, 99), (3, -1), (1, 3), (0, 99), (19, 1)];
    for (key, version) in unknown {
        let mut client = broker.client();
        client.send_bytes(&frame(&header(key, version, false)));
        assert_eq!(client.wait_for_close(), 0, "key {key}, version {version}");
    }
    assert_unharmed(&broker);
}

#[test]
fn api_versions_of_the_future_is_answered_in_version_0_with_error_35_and_the_connection_goes_on() {
    let broker = Broker::start(&[]);
    for version in [5, 99, i16::MAX] {
        let mut client = broker.client();
        // The body belongs to a future version, whose layout the broker does not know.
        client.send_bytes(&frame(&[header(18, version, true), vec![9; 30]].concat()));
        let (id, response) = client.receive::<ApiVersionsRequest>(0);
        assert_eq!((id, response.error_code), (7, ErrorCode::UNSUPPORTED_VERSION));
        assert_offers_what_it_serves(&response);
        let again = client.call(&named_client(), 4);
        assert_eq!(again.error_code, ErrorCode::NONE);
        assert_offers_what_it_serves(&again);
    }
}

fn named_client() -> ApiVersionsRequest {
    ApiVersionsRequest {
        client_software_name: "fullbore-tests".into(),
        client_software_version: "1.0".into(),
        ..Default::default()
    }
}

/// The broker offers Produce from version 0 although it serves it only from version 3 (KAFKA-18659). Otherwise
/// librdkafka would disable features.
fn assert_offers_what_it_serves(response: &ApiVersionsResponse) {
    let range = |key: i16| {
        let found = response.api_keys.iter().find(|api| api.api_key == key).expect("offered");
        (found.min_version, found.max_version)
    };
    assert_eq!((range(0), range(18), range(60)), ((0, 14), (0, 4), (0, 2)));
    assert_eq!(range(1).0, 4);
}

#[test]
fn garbage_instead_of_api_versions_closes_the_connection() {
    let broker = Broker::start(&[]);
    let tls_hello = [&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03][..], &[0x5a; 500]].concat();
    let zeros = vec![0; 64];
    for garbage in [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), tls_hello, vec![0xff; 64], zeros] {
        let mut client = broker.client();
        client.send_bytes(&garbage);
        assert_eq!(client.wait_for_close(), 0);
    }
    assert_unharmed(&broker);
}

#[test]
fn disconnects_in_the_middle_of_a_frame_are_survived_and_leave_no_descriptor() {
    let broker = Broker::start(&[]);
    assert_serves(&broker);
    let before = broker.descriptors();
    let whole = bytes_of(&encode_request(&MetadataRequest::default(), 9, 0, None).expect("a request"));
    for round in 0..200 {
        let mut client = broker.client();
        client.send_bytes(&whole[..1 + round % (whole.len() - 1)]);
    }
    fullbore_tests::wait_until("the descriptors are free again", std::time::Duration::from_secs(30), || {
        broker.descriptors() <= before + 1
    });
    assert_unharmed(&broker);
}

#[test]
fn a_bad_request_ends_its_own_connection_only() {
    let broker = Broker::start(&[]);
    let mut bystander = broker.client();
    bystander.call(&MetadataRequest::default(), 9);
    let mut client = broker.client();
    client.call(&MetadataRequest::default(), 9);
    client.send_bytes(&frame(&header(999, 0, false)));
    assert_eq!(client.wait_for_close(), 0);
    bystander.call(&MetadataRequest::default(), 9);
    assert_unharmed(&broker);
}

#[test]
fn requests_before_a_bad_one_are_answered_before_the_close() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("polled", 2, &[]);
    let poll = fetch_request(&[FetchFrom { topic: "polled", partition: 0, offset: 0 }], 1, 300);
    client.send(&poll, 12);
    client.send_produce("polled", 1, &Batch::of(&["before"]));
    client.send_bytes(&frame(&header(999, 0, false)));
    client.receive::<FetchRequest>(12);
    assert_eq!(client.receive_produced().error_code, ErrorCode::NONE);
    assert_eq!(client.wait_for_close(), 0);
    assert_unharmed(&broker);
}
