//! Batches that Produce refuses, and some that it accepts. A refused batch leaves the log unchanged.

use fullbore_tests::{Batch, Broker, Client, produce_request, topic_data};
use fullbore_wire::apis::produce::{PartitionProduceResponse, ProduceRequest, TopicProduceData};
use fullbore_wire::{ErrorCode, Uuid};

const TOPIC: &str = "produced";

fn broker_with_topic(configs: &[(&str, &str)]) -> (Broker, Client, Uuid) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let id = client.create_topic(TOPIC, 1, configs);
    (broker, client, id)
}

/// Produces bytes to partition 0. Returns the response of the partition.
fn outcome(client: &mut Client, version: i16, records: bytes::Bytes) -> PartitionProduceResponse {
    answer(client, version, &produce_request(TOPIC, 0, records))
}

fn answer(client: &mut Client, version: i16, request: &ProduceRequest) -> PartitionProduceResponse {
    client.call(request, version).responses.remove(0).partition_responses.remove(0)
}

/// Checks that the broker refuses the bytes with `expected` and appends nothing.
fn assert_refused(client: &mut Client, records: bytes::Bytes, expected: ErrorCode) {
    let end = client.latest(TOPIC, 0);
    let response = outcome(client, 9, records);
    assert_eq!(response.error_code, expected, "{:?}", response.error_message);
    assert_eq!(response.base_offset, -1);
    assert_eq!(client.latest(TOPIC, 0), end);
}

fn good() -> Batch {
    Batch::of(&["one", "two"])
}

#[test]
fn every_version_from_3_to_13_is_served() {
    let (_broker, mut client, id) = broker_with_topic(&[]);
    for version in 3..=13 {
        let mut request = produce_request(TOPIC, 0, good().bytes());
        if version >= 13 {
            request.topic_data[0].topic_id = id;
        }
        let response = answer(&mut client, version, &request);
        assert_eq!(response.error_code, ErrorCode::NONE, "version {version}");
        assert_eq!((response.base_offset, response.log_append_time_ms), (2 * i64::from(version - 3), -1));
        assert_eq!(response.log_start_offset, if version >= 5 { 0 } else { -1 });
    }
}

#[test]
fn a_wrong_checksum_is_corrupt_message() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    assert_refused(&mut client, Batch { crc: Some(1), ..good() }.bytes(), ErrorCode::CORRUPT_MESSAGE);
    let mut flipped = good().bytes().to_vec();
    *flipped.last_mut().expect("bytes") ^= 1;
    assert_refused(&mut client, flipped.into(), ErrorCode::CORRUPT_MESSAGE);
}

#[test]
fn a_batch_cut_short_or_with_a_wrong_length_is_refused() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    let whole = good().bytes();
    for len in [17, 60, 61, whole.len() - 1] {
        assert_refused(&mut client, whole.slice(..len), ErrorCode::CORRUPT_MESSAGE);
    }
    for length in [-1, 0, 14, 48, i32::MAX] {
        let mut bytes = whole.to_vec();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        assert_refused(&mut client, bytes.into(), ErrorCode::CORRUPT_MESSAGE);
    }
}

#[test]
fn magic_0_and_1_are_unsupported_for_message_format() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    for magic in [0, 1] {
        assert_refused(&mut client, Batch { magic, ..good() }.bytes(), ErrorCode::UNSUPPORTED_FOR_MESSAGE_FORMAT);
    }
}

#[test]
fn a_magic_that_does_not_exist_is_refused() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    for magic in [3, 127, -1] {
        let response = outcome(&mut client, 9, Batch { magic, ..good() }.bytes());
        assert!(response.error_code.is_err(), "magic {magic}");
    }
    assert_eq!(client.latest(TOPIC, 0), 0);
}

#[test]
fn a_batch_above_max_message_bytes_is_message_too_large_and_one_of_exactly_that_size_is_not() {
    let size = good().bytes().len();
    let (_broker, mut client, _) = broker_with_topic(&[("max.message.bytes", &size.to_string())]);
    assert_refused(&mut client, Batch::of(&["one", "two+"]).bytes(), ErrorCode::MESSAGE_TOO_LARGE);
    assert_eq!(client.produced(TOPIC, 0, &good()), 0);
}

#[test]
fn acks_other_than_0_1_and_all_are_invalid() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    for acks in [2, -2, i16::MAX, i16::MIN] {
        let request = ProduceRequest { acks, ..produce_request(TOPIC, 0, good().bytes()) };
        assert_eq!(answer(&mut client, 9, &request).error_code, ErrorCode::INVALID_REQUIRED_ACKS);
    }
    assert_eq!(client.latest(TOPIC, 0), 0);
    let request = ProduceRequest { acks: 1, ..produce_request(TOPIC, 0, good().bytes()) };
    assert_eq!(answer(&mut client, 9, &request).base_offset, 0);
}

#[test]
fn acks_all_needs_no_more_in_sync_replicas_than_exist() {
    let (_broker, mut client, _) = broker_with_topic(&[("min.insync.replicas", "2")]);
    for (acks, base_offset) in [(-1, 0), (1, 2)] {
        let request = ProduceRequest { acks, ..produce_request(TOPIC, 0, good().bytes()) };
        let response = answer(&mut client, 9, &request);
        assert_eq!((response.error_code, response.base_offset), (ErrorCode::NONE, base_offset), "acks={acks}");
    }
}

#[test]
fn unknown_topics_partitions_and_ids_are_errors_and_the_others_are_written() {
    let (_broker, mut client, id) = broker_with_topic(&[]);
    let data = good().bytes();
    let request = ProduceRequest {
        acks: -1,
        timeout_ms: 1000,
        topic_data: vec![
            topic_data("nowhere", &[(0, data.clone())]),
            topic_data(TOPIC, &[(-1, data.clone()), (0, data.clone()), (1, data.clone())]),
        ],
        ..Default::default()
    };
    let response = client.call(&request, 9);
    let codes: Vec<_> = response.responses.iter().flat_map(|topic| &topic.partition_responses).collect();
    let codes: Vec<_> = codes.iter().map(|partition| (partition.index, partition.error_code)).collect();
    let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    assert_eq!(codes, [(0, unknown), (-1, unknown), (0, ErrorCode::NONE), (1, unknown)]);

    let by_id = |topic_id| {
        let topic = TopicProduceData { topic_id, ..topic_data("", &[(0, data.clone())]) };
        ProduceRequest { acks: -1, timeout_ms: 1000, topic_data: vec![topic], ..Default::default() }
    };
    assert_eq!(answer(&mut client, 13, &by_id(Uuid([9; 16]))).error_code, ErrorCode::UNKNOWN_TOPIC_ID);
    assert_eq!(answer(&mut client, 13, &by_id(id)).base_offset, 2);
}

#[test]
fn records_that_are_not_exactly_one_batch_are_invalid() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    let one = good().bytes();
    assert_refused(&mut client, [one.clone(), one.clone()].concat().into(), ErrorCode::INVALID_RECORD);
    assert_refused(&mut client, [&one[..], &[0; 10]].concat().into(), ErrorCode::INVALID_RECORD);
    assert_refused(&mut client, bytes::Bytes::new(), ErrorCode::INVALID_RECORD);
    let mut null = produce_request(TOPIC, 0, one);
    null.topic_data[0].partition_data[0].records = None;
    assert!(answer(&mut client, 9, &null).error_code.is_err());
    assert_eq!(client.latest(TOPIC, 0), 0);
}

#[test]
fn a_control_batch_of_a_client_is_invalid() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    let control = Batch { attributes: 0x20, ..good() }.from_producer(1, 0, 0);
    assert_refused(&mut client, control.bytes(), ErrorCode::INVALID_RECORD);
}

#[test]
fn a_timestamp_too_far_ahead_or_behind_is_invalid() {
    let limits = [("message.timestamp.after.max.ms", "60000"), ("message.timestamp.before.max.ms", "3600000")];
    let (_broker, mut client, _) = broker_with_topic(&limits);
    let now = good().base_timestamp;
    for timestamp in [now + 120_000, now - 7_200_000, i64::MAX, 0] {
        let batch = Batch::at(timestamp, &["elsewhen"]);
        assert_refused(&mut client, batch.bytes(), ErrorCode::INVALID_TIMESTAMP);
    }
    assert_eq!(client.produced(TOPIC, 0, &Batch::at(now + 10_000, &["soon"])), 0);
    assert_eq!(client.produced(TOPIC, 0, &Batch::at(now - 600_000, &["a while ago"])), 1);
}

/// The header has the present time as timestamp, but one record inside is a week ahead.
#[test]
fn a_record_too_far_ahead_inside_an_honest_batch_is_invalid() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    let mut batch = good();
    let now = batch.base_timestamp;
    batch.records[1].timestamp = now + 7 * 86_400_000;
    batch.max_timestamp = Some(now);
    assert_refused(&mut client, batch.bytes(), ErrorCode::INVALID_TIMESTAMP);
}

#[test]
fn a_header_whose_max_timestamp_is_not_that_of_its_records_is_corrected() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    let batch = good();
    let right = batch.base_timestamp;
    for (offset, wrong) in [(0, right - 600_000), (2, right + 600_000)] {
        let sent = Batch { max_timestamp: Some(wrong), ..batch.clone() };
        assert_eq!(client.produced(TOPIC, 0, &sent), offset);
    }
    let stored: Vec<_> = client.fetch_batches(TOPIC, 0).iter().map(|batch| batch.max_timestamp).collect();
    assert_eq!(stored, [Some(right), Some(right)]);
}

/// If the broker accepted a record that consumers cannot parse, every consumer would stop there.
#[test]
fn a_record_whose_fields_leave_it_is_invalid() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    let whole = good().bytes();
    // The bytes at these positions are the first record's offset delta, the length of its value, and the number of its
    // headers.
    for (at, byte) in [(64, 2), (66, 8), (70, 2)] {
        let mut bytes = whole.to_vec();
        bytes[at] = byte;
        let crc = fullbore_wire::batch::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        assert_refused(&mut client, bytes.into(), ErrorCode::INVALID_RECORD);
    }
}

#[test]
fn zstd_is_refused_before_version_7_and_accepted_from_then_on() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    // Before version 7, the broker refuses a batch because of the codec zstd in its header. From version 7 on, it
    // refuses no batch because of the version.
    let zstd = Batch { attributes: 4, ..good() }.bytes();
    for version in 3..=6 {
        let response = outcome(&mut client, version, zstd.clone());
        assert_eq!(response.error_code, ErrorCode::UNSUPPORTED_COMPRESSION_TYPE, "version {version}");
    }
    assert_eq!(client.latest(TOPIC, 0), 0);
    assert_ne!(outcome(&mut client, 7, zstd).error_code, ErrorCode::UNSUPPORTED_COMPRESSION_TYPE);
}

#[test]
fn a_codec_that_does_not_exist_is_refused() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    for attributes in [5, 6, 7] {
        let response = outcome(&mut client, 9, Batch { attributes, ..good() }.bytes());
        assert!(response.error_code.is_err(), "codec {attributes}");
    }
    assert_eq!(client.latest(TOPIC, 0), 0);
}

#[test]
fn producer_fields_that_contradict_each_other_are_refused() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    let id = client.init_producer_id();
    for (epoch, sequence) in [(-1, 0), (0, -1), (-1, -1), (i16::MIN, i32::MIN)] {
        let response = outcome(&mut client, 9, good().from_producer(id, epoch, sequence).bytes());
        assert!(response.error_code.is_err(), "epoch {epoch}, sequence {sequence}");
    }
    assert_eq!(client.latest(TOPIC, 0), 0);
}

#[test]
fn log_append_time_is_the_brokers_clock_for_every_record() {
    let (_broker, mut client, _) = broker_with_topic(&[("message.timestamp.type", "LogAppendTime")]);
    let before = good().base_timestamp;
    let response = outcome(&mut client, 9, Batch::at(1_000_000, &["long ago", "also"]).bytes());
    assert_eq!(response.error_code, ErrorCode::NONE);
    assert!(response.log_append_time_ms >= before);
    let batch = client.fetch_batches(TOPIC, 0).remove(0);
    assert_eq!(batch.attributes & 8, 8, "the batch says whose time it is");
    assert_eq!(batch.max_timestamp, Some(response.log_append_time_ms));
}

#[test]
fn fetched_batches_equal_produced_ones_except_offset_and_epoch() {
    let (_broker, mut client, _) = broker_with_topic(&[]);
    client.produced(TOPIC, 0, &good());
    let sent = Batch { leader_epoch: 77, ..good() }.from_producer(5, 0, 0);
    assert_eq!(client.produced(TOPIC, 0, &sent), 2);
    let stored = client.fetch_batches(TOPIC, 0).remove(1);
    assert_eq!((stored.base_offset, stored.leader_epoch), (2, 0));
    let as_sent = Batch { base_offset: 0, leader_epoch: 77, ..stored };
    assert_eq!(as_sent.bytes(), sent.bytes());
}
