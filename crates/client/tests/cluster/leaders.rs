//! Readers whose leader reads ahead.

use super::several::{Asked, cluster, listeners, metadata, serve};
use super::{cursors, plan};
use fullbore_client::consume::consume;
use fullbore_tests::Batch;
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::fetch::{FetchRequest, FetchResponse, FetchableTopicResponse, PartitionData};
use fullbore_wire::apis::list_offsets::{
    ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::{ErrorCode, Frame, Records, Uuid};
use std::sync::{Arc, Mutex};

const TOPIC_ID: Uuid = Uuid([1; 16]);
const IN_BATCH: i64 = 10;

/// An answer's first offset, the offset of its batch if it has one, and the offset at which the leader goes on.
type Range = (i64, Option<i64>, i64);

fn fetched(&(from_offset, batch, next_offset): &Range) -> FetchResponse {
    let bytes = batch.map(|base_offset| Batch { base_offset, ..Batch::of(&["x"; IN_BATCH as usize]) }.bytes());
    let records = bytes.map(Records::Memory);
    let data = PartitionData { from_offset, next_offset, records, high_watermark: 1_000, ..Default::default() };
    let topic = FetchableTopicResponse { topic_id: TOPIC_ID, partitions: vec![data], ..Default::default() };
    FetchResponse { session_id: 7, responses: vec![topic], ..Default::default() }
}

/// The answer of a leader whose only partition starts at 0, or this error.
fn start(asked: &Asked, error_code: ErrorCode) -> Frame {
    asked.answer::<ListOffsetsRequest>(|_| {
        let partition = ListOffsetsPartitionResponse { error_code, offset: 0, ..Default::default() };
        let topic = ListOffsetsTopicResponse { name: "t".into(), partitions: vec![partition], ..Default::default() };
        ListOffsetsResponse { topics: vec![topic], ..Default::default() }
    })
}

/// The metadata of a topic with an id, whose only partition the first broker leads.
fn with_id(asked: &Asked, ports: &[u16]) -> Frame {
    asked.answer::<MetadataRequest>(|_| {
        let mut known = metadata(ports, 1);
        known.topics[0].topic_id = TOPIC_ID;
        known
    })
}

#[test]
fn a_reader_whose_answer_ends_in_a_hole_goes_on_behind_it_without_asking_for_the_offset() {
    let in_one: &[Range] = &[(0, Some(0), 100), (100, Some(100), 110)];
    let between: &[Range] = &[(0, Some(0), 10), (10, None, 100), (100, Some(100), 110)];
    for ranges in [in_one, between] {
        let ([listener], ports) = listeners();
        let (port, named) = (ports[0], Arc::new(Mutex::new(Vec::new())));
        let (notes, answers, fetches) = (named.clone(), ranges.to_vec(), Mutex::new(0));
        serve(listener, move |key, asked| match key {
            ApiKey::Metadata => Some(with_id(asked, &ports)),
            ApiKey::ListOffsets => Some(start(asked, ErrorCode::NONE)),
            _ => Some(asked.answer::<FetchRequest>(|request| {
                let partitions = request.topics.iter().flat_map(|topic| &topic.partitions);
                let offsets = partitions.filter(|of| !of.read_on).map(|of| of.fetch_offset);
                notes.lock().expect("no panic").extend(offsets);
                let mut fetches = fetches.lock().expect("no panic");
                *fetches += 1;
                answers.get(*fetches - 1).map_or_else(|| fetched(&(110, None, 110)), fetched)
            })),
        });
        let mut cluster = cluster(port);
        let begun = cursors(&mut cluster, || ());
        let outcome = consume(&cluster, begun, &plan(2 * IN_BATCH as u64), |_| true).expect("read");
        assert_eq!((outcome.progress.records(), outcome.cursors[0].offset), (20, Some(110)));
        assert_eq!(*named.lock().expect("no panic"), [0], "the partition is named once: {ranges:?}");
    }
}
