//! Responses to Produce 3-13, byte for byte as in Kafka's message definitions. Clients of released versions must get no
//! field of KIP-1269, whatever the configuration is.
//!
//! The test writes the expected bytes field by field. It does not use the product's encoder.

use fullbore_tests::{Batch, Broker, produce_request, topic_data};
use fullbore_wire::apis::produce::ProduceRequest;
use fullbore_wire::{Text, Uuid};

const TOPIC: &str = "golden";
const UNKNOWN: &str = "The broker does not host this topic or partition.";

/// Returns the expected response to a request with two batches. One is appended to partition 0 at `base_offset`. The
/// other is for partition 7, which does not exist.
fn expected(version: i16, correlation_id: i32, topic_id: Uuid, base_offset: i64) -> Vec<u8> {
    let flexible = version >= 9;
    let mut out = correlation_id.to_be_bytes().to_vec();
    // The length of an array or string takes four or two bytes. From version 9 on it is a varint that is larger by one.
    let array = |out: &mut Vec<u8>, len: u8| match flexible {
        true => out.push(len + 1),
        false => out.extend([0, 0, 0, len]),
    };
    let text = |out: &mut Vec<u8>, text: &str| {
        let len = u8::try_from(text.len()).expect("short");
        match flexible {
            true => out.push(len + 1),
            false => out.extend([0, len]),
        }
        out.extend(text.as_bytes());
    };
    let no_tags = |out: &mut Vec<u8>| out.extend(flexible.then_some(0));
    no_tags(&mut out); // the header's
    array(&mut out, 1);
    match version {
        13 => out.extend(topic_id.0),
        _ => text(&mut out, TOPIC),
    }
    array(&mut out, 2);
    for (index, error, offset, start, message) in
        [(0_i32, 0_i16, base_offset, 0_i64, None), (7, 3, -1, -1, Some(UNKNOWN))]
    {
        out.extend(index.to_be_bytes());
        out.extend(error.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend((-1_i64).to_be_bytes()); // the time of the append
        if version >= 5 {
            out.extend(start.to_be_bytes());
        }
        if version >= 8 {
            array(&mut out, 0); // record errors
            match message {
                Some(message) => text(&mut out, message),
                None if flexible => out.push(0),
                None => out.extend([255, 255]),
            }
        }
        no_tags(&mut out);
    }
    no_tags(&mut out); // the topic's
    out.extend([0; 4]); // throttle time
    no_tags(&mut out);
    out
}

fn check(sets: &[&str]) {
    let broker = Broker::start(sets);
    let mut client = broker.client();
    let topic_id = client.create_topic(TOPIC, 1, &[("producer.state.batches.to.retain", "77")]);
    let producer_id = client.init_producer_id();
    for (n, version) in (0..).zip(3..=13) {
        let batch = Batch::of(&["v"]).from_producer(producer_id, 0, n);
        let mut topic = topic_data(TOPIC, &[(0, batch.bytes()), (7, batch.bytes())]);
        if version == 13 {
            (topic.name, topic.topic_id) = (Text::default(), topic_id);
        }
        let request = ProduceRequest { topic_data: vec![topic], ..produce_request(TOPIC, 0, batch.bytes()) };
        // The second request is a retry of the first, so its response must be the same.
        for _ in 0..2 {
            let id = client.send(&request, version);
            let frame = client.receive_frame().expect("an answer");
            assert_eq!(frame[..], expected(version, id, topic_id, i64::from(n)), "version {version}");
        }
    }
}

#[test]
fn produce_3_to_13_with_the_default_window_is_answered_as_by_kafka() {
    check(&[]);
}

#[test]
fn produce_3_to_13_is_answered_the_same_with_a_window_of_1024() {
    check(&["max.idempotence.batches.to.retain=1024"]);
}
