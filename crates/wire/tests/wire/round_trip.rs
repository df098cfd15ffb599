//! Tests that every message in every version has the same bytes after it is decoded and encoded.

use crate::recode::{flat, recode};
use crate::schema::{Dice, Schema, every_message};
use bytes::Bytes;
use fullbore_wire::api::{self, RequestHeader};
use fullbore_wire::apis::delete_topics::DeleteTopicsRequest;
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchTopic, ReplicaState};
use fullbore_wire::apis::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::apis::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use fullbore_wire::{EncodeError, Records, TaggedFields, Text};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_message_of_every_version_keeps_its_bytes(seed: u64) {
        for (key, side, version) in every_message() {
            let bytes = Bytes::from(Schema::new(key, side, version).message(&mut Dice(seed)));
            let recoded = recode(key, side, version, bytes.clone());
            let recoded = recoded.unwrap_or_else(|e| panic!("{key:?} {side:?} {version:?} {bytes:?}: {e}"));
            prop_assert_eq!(&recoded.bytes, &bytes, "{:?} {:?} {:?}: {}", key, side, version, recoded.debug);
        }
    }
}

#[test]
fn a_field_outside_its_versions_is_not_written_and_reads_as_its_default() {
    let partition = FetchPartition { current_leader_epoch: 7, high_watermark: 9, ..Default::default() };
    let topics = vec![FetchTopic { topic: "t".into(), partitions: vec![partition], ..Default::default() }];
    let replica_state = ReplicaState { replica_id: 3, ..Default::default() };
    let request = FetchRequest { replica_id: 4, replica_state, session_id: 5, topics, ..Default::default() };
    let frame = api::encode_request(&request, 4, 1, None).expect("a version of Fetch");
    let (header, back) = decode::<FetchRequest>(flat(&frame));
    assert_eq!((header.api_key, header.api_version), (1, 4));
    assert_eq!((back.replica_id, back.session_id, back.session_epoch), (4, 0, -1));
    assert_eq!(back.replica_state, ReplicaState::default());
    assert_eq!(back.topics[0].partitions[0], FetchPartition::default());
}

#[test]
fn null_is_refused_in_versions_that_have_none() {
    let request = MetadataRequest { topics: None, ..Default::default() };
    assert_eq!(api::encode_request(&request, 0, 1, None).err(), Some(EncodeError::Null("topics")));
    let frame = api::encode_request(&request, 1, 1, None).expect("version 1 has null");
    assert_eq!(decode::<MetadataRequest>(flat(&frame)).1, request);
}

#[test]
fn strings_longer_than_kafka_reads_are_refused() {
    let name = |len: usize| DeleteTopicsRequest { topic_names: vec!["a".repeat(len).into()], ..Default::default() };
    for version in [1, 5] {
        assert!(api::encode_request(&name(32_767), version, 1, None).is_ok());
        assert_eq!(api::encode_request(&name(32_768), version, 1, None).err(), Some(EncodeError::TooLong(32_768)));
    }
}

#[test]
fn versions_outside_the_range_are_refused() {
    let request = InitProducerIdRequest::default();
    assert_eq!(api::encode_request(&request, 6, 1, None).err(), Some(EncodeError::Version(6)));
    assert!(api::decode_response::<InitProducerIdRequest>(Bytes::from_static(&[0; 32]), -1).is_err());
}

#[test]
fn a_frame_carries_header_body_and_response() {
    let client = Text::from("perf");
    let request = InitProducerIdRequest { transaction_timeout_ms: 60_000, ..Default::default() };
    for version in 0..=5 {
        let frame = api::encode_request(&request, version, 77, Some(&client)).expect("a version of the API");
        let (header, back) = decode::<InitProducerIdRequest>(flat(&frame));
        assert_eq!((header.correlation_id, header.client_id.as_deref()), (77, Some("perf")));
        assert_eq!(back, request);
        let (key, v) = header.api().expect("the header names an API of ours");
        let answer = InitProducerIdResponse { producer_id: 9, producer_epoch: 2, ..Default::default() };
        let frame = api::encode_response::<InitProducerIdRequest>(&answer, v, 77).expect("a version of the API");
        let frame = flat(&frame).slice(4..);
        assert_eq!(key.code(), 22);
        assert_eq!(api::decode_response::<InitProducerIdRequest>(frame, version), Ok((77, answer)));
    }
}

#[test]
fn large_records_go_out_by_reference() {
    let records = Bytes::from(vec![7; 10_000]);
    let partition =
        PartitionProduceData { index: 0, records: Some(Records::Memory(records.clone())), ..Default::default() };
    let topic = TopicProduceData { name: "t".into(), partition_data: vec![partition], ..Default::default() };
    let request = ProduceRequest { acks: -1, topic_data: vec![topic], ..Default::default() };
    let frame = api::encode_request(&request, 9, 1, None).expect("a version of Produce");
    assert_eq!(frame.parts.len(), 3, "before the records, the records, and the tagged fields after them");
    let bytes = flat(&frame);
    assert_eq!(bytes.len(), frame.len());
    assert_eq!(bytes[..4], (bytes.len() as u32 - 4).to_be_bytes());
    let (_, back) = decode::<ProduceRequest>(bytes.clone());
    assert_eq!(back, request);
    let read = back.topic_data[0].partition_data[0].records.as_ref().and_then(Records::memory).expect("in memory");
    assert!(bytes.as_ptr_range().contains(&read.as_ptr()), "decoded records are a slice of the frame");
}

#[test]
fn one_tag_cannot_be_written_twice() {
    let twice = TaggedFields::new(vec![(8, Bytes::new()), (8, Bytes::new())]);
    let request = ProduceRequest { tagged: twice, ..Default::default() };
    assert_eq!(api::encode_request(&request, 9, 1, None).err(), Some(EncodeError::Tag(8)));
}

/// Returns the header and the body of a whole frame.
fn decode<R: api::Request>(frame: Bytes) -> (RequestHeader, R) {
    let mut reader = api::request_reader(frame.slice(4..));
    let header = RequestHeader::decode(&mut reader).expect("our own header");
    let (_, version) = header.api().expect("an API of ours");
    (header, api::decode_request(&mut reader, version).expect("our own request"))
}
