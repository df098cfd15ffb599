//! Tests of the bytes of Produce 14. The expected bytes are written by hand, by both revisions of KIP-1269 and with
//! Fullbore's own tags.

use bytes::Bytes;
use fullbore_wire::api::{ApiKey, decode_response, encode_request, encode_response};
use fullbore_wire::apis::produce::{PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceResponse};
use fullbore_wire::{Frame, Part, Uuid};

const VERSION: i16 = 14;

fn flat(frame: &Frame) -> Vec<u8> {
    let [Part::Bytes(bytes)] = &frame.parts[..] else { panic!("one part") };
    bytes[4..].to_vec()
}

fn response(of_broker: i32, of_topic: i32) -> ProduceResponse {
    let partition = PartitionProduceResponse { index: 2, base_offset: 3, log_start_offset: 1, ..Default::default() };
    let topic = TopicProduceResponse {
        topic_id: Uuid([0xab; 16]),
        partition_responses: vec![partition],
        producer_state_batches_to_retain: of_topic,
        ..Default::default()
    };
    ProduceResponse { responses: vec![topic], max_idempotence_batches_to_retain: of_broker, ..Default::default() }
}

/// A response with correlation id 7, header tags, one topic with one partition, and throttle time 0. The caller passes
/// the bytes of the tags.
fn expected(topic_tags: &[u8], tags: &[u8]) -> Vec<u8> {
    let partition: &[u8] = &[
        0, 0, 0, 2, // index
        0, 0, // no error
        0, 0, 0, 0, 0, 0, 0, 3, // base offset
        255, 255, 255, 255, 255, 255, 255, 255, // no append time
        0, 0, 0, 0, 0, 0, 0, 1, // log start offset
        1, // no record errors
        0, // no message
        0, // no tags
    ];
    let start: &[u8] = &[0, 0, 0, 7, 0, 2];
    [start, &[0xab; 16], &[2], partition, topic_tags, &[0, 0, 0, 0], tags].concat()
}

fn check(response: &ProduceResponse, bytes: Vec<u8>) {
    let v = ApiKey::Produce.version(VERSION).expect("a version of Produce");
    let frame = encode_response::<ProduceRequest>(response, v, 7).expect("a response");
    assert_eq!(flat(&frame), bytes);
    let (id, back) = decode_response::<ProduceRequest>(Bytes::from(bytes), VERSION).expect("the same response");
    assert_eq!((id, &back), (7, response));
}

#[test]
fn a_response_with_the_default_has_no_tag() {
    check(&response(5, -1), expected(&[0], &[0]));
}

#[test]
fn the_brokers_value_is_tag_1_of_the_response() {
    check(&response(1024, -1), expected(&[0], &[1, 1, 4, 0, 0, 4, 0]));
}

#[test]
fn the_topics_value_is_tag_0_of_the_topic_also_when_it_is_5() {
    check(&response(5, 5), expected(&[1, 0, 4, 0, 0, 0, 5], &[0]));
    check(&response(20, 64), expected(&[1, 0, 4, 0, 0, 0, 64], &[1, 1, 4, 0, 0, 0, 20]));
}

#[test]
fn fullbores_own_tags_start_at_1000_and_are_absent_by_default() {
    let with = ProduceResponse { reorder_batches: 256, ..response(5, -1) };
    check(&with, expected(&[0], &[1, 0xe8, 7, 4, 0, 0, 1, 0]));
    let request = |reorder| ProduceRequest { acks: -1, timeout_ms: 1, reorder, ..Default::default() };
    let bytes_of = |reorder| flat(&encode_request(&request(reorder), VERSION, 7, None).expect("a request"));
    let head: &[u8] = &[0, 0, 0, 14, 0, 0, 0, 7, 255, 255, 0, 0, 255, 255, 0, 0, 0, 1, 1];
    assert_eq!(bytes_of(false), [head, &[0]].concat());
    assert_eq!(bytes_of(true), [head, &[1, 0xe8, 7, 1, 1]].concat());
    let last = ProduceRequest { ends_transaction: true, ..request(false) };
    let bytes = flat(&encode_request(&last, VERSION, 7, None).expect("a request"));
    assert_eq!(bytes, [head, &[1, 0xe9, 7, 1, 1]].concat());
}

#[test]
fn the_topics_value_goes_before_the_brokers() {
    let granted = |response: ProduceResponse| response.batches_to_retain(&response.responses[0]);
    assert_eq!(granted(response(5, -1)), 5);
    assert_eq!(granted(response(1024, -1)), 1024);
    assert_eq!(granted(response(1024, 5)), 5);
    assert_eq!(granted(response(5, 1024)), 1024);
    assert_eq!(granted(response(5, 0)), 0, "what a broker says is passed on as it is");
}

#[test]
fn older_versions_have_neither_value() {
    for version in 3..VERSION {
        let v = ApiKey::Produce.version(version).expect("a version of Produce");
        let bytes = |response| flat(&encode_response::<ProduceRequest>(&response, v, 7).expect("a response"));
        assert_eq!(bytes(response(1024, 64)), bytes(response(5, -1)), "version {version}");
    }
}
