//! Tests readers of a log that loses records after they were read, for example in an unclean election.

use super::several::{ReceivedRequest, cluster, listeners, metadata, serve};
use super::{cursors, plan};
use fullbore_client::consume::{ConsumeError, ConsumeOutcome, ConsumePlan, FetchSettings, consume};
use fullbore_tests::Batch;
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::fetch::{EpochEndOffset, FetchRequest, FetchResponse, FetchableTopicResponse, PartitionData};
use fullbore_wire::apis::list_offsets::{
    ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::{ErrorCode, Frame, Records, Uuid};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const TOPIC_ID: Uuid = Uuid([1; 16]);
const IN_BATCH: i64 = 10;
/// The log end that the leader returns to a reader that ends there.
const LOG_END: i64 = 40;
/// The epoch of a position to which the leader itself has moved.
const MOVED: i32 = i32::MIN;

/// The response to a fetch at a position.
#[derive(Clone, Copy)]
enum Answer {
    /// A batch of this epoch.
    Batch(i32),
    /// The leader's newest epoch that the reader may have, and its end.
    Diverging(i32, i64),
    Error(ErrorCode),
    Nothing,
}

/// The offset and the last epoch of each fetch that named the partition.
type Positions = Arc<Mutex<Vec<(i64, i32)>>>;

fn fetched(from: i64, answer: Answer, reads_ahead: bool) -> FetchResponse {
    let mut data = PartitionData { high_watermark: LOG_END, ..Default::default() };
    if reads_ahead {
        (data.from_offset, data.next_offset) = (from, from);
    }
    match answer {
        Answer::Batch(leader_epoch) => {
            let batch = Batch { base_offset: from, leader_epoch, ..Batch::of(&["x"; IN_BATCH as usize]) };
            data.records = Some(Records::Memory(batch.bytes()));
            data.next_offset = if reads_ahead { from + IN_BATCH } else { -1 };
        }
        Answer::Diverging(epoch, end_offset) => {
            data.diverging_epoch = EpochEndOffset { epoch, end_offset, ..Default::default() };
        }
        Answer::Error(code) => data.error_code = code,
        Answer::Nothing => {}
    }
    let topic = FetchableTopicResponse { topic_id: TOPIC_ID, partitions: vec![data], ..Default::default() };
    FetchResponse { session_id: if reads_ahead { 7 } else { 0 }, responses: vec![topic], ..Default::default() }
}

/// Answers ListOffsets with the bounds of the log.
fn bounds(requested: &ReceivedRequest) -> Frame {
    requested.answer::<ListOffsetsRequest>(|request| {
        let offset = |timestamp| if timestamp == -1 { LOG_END } else { 0 };
        let partitions = request.topics[0]
            .partitions
            .iter()
            .map(|of| ListOffsetsPartitionResponse { offset: offset(of.timestamp), ..Default::default() });
        let topic =
            ListOffsetsTopicResponse { name: "t".into(), partitions: partitions.collect(), ..Default::default() };
        ListOffsetsResponse { topics: vec![topic], ..Default::default() }
    })
}

/// Starts the leader of the only partition. `answer` gets the offset and the last epoch of each fetch.
fn lead(reads_ahead: bool, answer: impl Fn(i64, i32) -> Answer + Send + Sync + 'static) -> (u16, Positions) {
    let ([listener], ports) = listeners();
    let (port, named) = (ports[0], Positions::default());
    let (notes, position) = (named.clone(), Mutex::new(None));
    serve(listener, move |key, requested| match key {
        ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| {
            let mut known = metadata(&ports, 1);
            known.topics[0].topic_id = TOPIC_ID;
            known
        })),
        ApiKey::ListOffsets => Some(bounds(requested)),
        _ => Some(requested.answer::<FetchRequest>(|request| {
            let mut position = position.lock().expect("no panic");
            for of in request.topics.iter().flat_map(|topic| &topic.partitions).filter(|of| !of.read_on) {
                notes.lock().expect("no panic").push((of.fetch_offset, of.last_fetched_epoch));
                *position = Some((of.fetch_offset, of.last_fetched_epoch));
            }
            // After an error the partition is not in the session.
            let Some((offset, last_epoch)) = *position else {
                return FetchResponse { session_id: 7, ..Default::default() };
            };
            let answer = answer(offset, last_epoch);
            match answer {
                Answer::Batch(_) if reads_ahead => *position = Some((offset + IN_BATCH, MOVED)),
                Answer::Error(_) => *position = None,
                _ => {}
            }
            fetched(offset, answer, reads_ahead)
        })),
    });
    (port, named)
}

/// Starts a leader that loses the second batch once it was read. An older epoch goes on instead, and then a new one.
fn losing(reads_ahead: bool) -> (u16, Positions) {
    let is_lost = AtomicBool::new(false);
    lead(reads_ahead, move |offset, last_epoch| match offset {
        0 => Answer::Batch(4),
        10 if is_lost.load(SeqCst) => Answer::Batch(6),
        10 => Answer::Batch(5),
        20 if last_epoch == 5 => {
            is_lost.store(true, SeqCst);
            Answer::Diverging(4, 15)
        }
        20 if last_epoch == MOVED && !is_lost.load(SeqCst) => Answer::Error(ErrorCode::FENCED_LEADER_EPOCH),
        _ => Answer::Nothing,
    })
}

fn read(port: u16, plan: &ConsumePlan) -> Result<ConsumeOutcome<()>, ConsumeError> {
    let mut cluster = cluster(port);
    let begun = cursors(&mut cluster, || ());
    consume(&cluster, begun, plan, |_| true)
}

#[test]
fn log_lost_read_records_the_reader_continues_where_the_logs_part() {
    for (reads_ahead, expected) in
        [(false, &[(0, -1), (10, 4), (20, 5), (10, 4)][..]), (true, &[(0, -1), (20, 5), (10, 4)][..])]
    {
        let (port, named) = losing(reads_ahead);
        let outcome = read(port, &plan(3 * IN_BATCH as u64)).expect("read");
        assert_eq!((outcome.progress.records(), outcome.cursors[0].offset), (30, Some(20)));
        let notice = "partition 0 of topic 't' lost offsets 10 to 19 after they were read: the read continues at \
                      offset 10";
        assert_eq!(outcome.progress.take_notices(), [notice]);
        assert_eq!(named.lock().expect("no panic")[..expected.len()], *expected, "read ahead: {reads_ahead}");
    }
}

#[test]
fn leader_lacks_an_epoch_but_not_the_offsets_the_reader_goes_back_without_an_error() {
    let was_compared = AtomicBool::new(false);
    let (port, named) = lead(false, move |offset, last_epoch| match (offset, last_epoch) {
        (0, _) => Answer::Batch(4),
        (10, _) if !was_compared.load(SeqCst) => Answer::Batch(5),
        (20, 5) => {
            was_compared.store(true, SeqCst);
            Answer::Diverging(4, LOG_END)
        }
        (10 | 20, _) => Answer::Batch(6),
        _ => Answer::Nothing,
    });
    let fetch = FetchSettings { reset: None, ..Default::default() };
    let outcome = read(port, &ConsumePlan { fetch, ..plan(4 * IN_BATCH as u64) }).expect("read");
    assert_eq!((outcome.progress.records(), outcome.cursors[0].offset), (40, Some(30)));
    assert!(outcome.progress.take_notices().is_empty());
    let expected = [(0, -1), (10, 4), (20, 5), (10, 4), (20, 6)];
    assert_eq!(named.lock().expect("no panic")[..expected.len()], expected);
}

#[test]
fn log_lost_read_records_a_reader_without_a_reset_policy_fails() {
    let (port, _) = losing(false);
    let fetch = FetchSettings { reset: None, ..Default::default() };
    let error = read(port, &ConsumePlan { fetch, ..plan(30) }).err().expect("lost");
    let reported = "partition 0 of topic 't' lost offsets 10 to 19 after they were read; start again at offset 10 \
                    to read the records that replace them";
    assert_eq!(error.to_string(), reported);
}

#[test]
fn log_lost_read_records_a_read_to_the_end_is_over() {
    for reads_ahead in [false, true] {
        let (port, _) = losing(reads_ahead);
        let outcome = read(port, &ConsumePlan { to_end: true, ..plan(u64::MAX) }).expect("read");
        assert!(outcome.finished.is_some(), "it has waited for its timeout");
        let cursor = &outcome.cursors[0];
        assert_eq!((cursor.offset, cursor.end, cursor.placed.end), (Some(10), Some(10), Some(10)));
    }
}

/// Kafka's leader returns OFFSET_OUT_OF_RANGE for an epoch that it does not know.
#[test]
fn leader_does_not_know_the_epoch_the_reader_fetches_without_it() {
    let (port, named) = lead(false, |offset, last_epoch| match (offset, last_epoch) {
        (0, _) => Answer::Batch(4),
        (10, -1) => Answer::Batch(5),
        (10, _) => Answer::Error(ErrorCode::OFFSET_OUT_OF_RANGE),
        _ => Answer::Nothing,
    });
    let outcome = read(port, &plan(2 * IN_BATCH as u64)).expect("read");
    assert_eq!((outcome.progress.records(), outcome.progress.take_notices()), (20, Vec::new()));
    assert_eq!(named.lock().expect("no panic")[..3], [(0, -1), (10, 4), (10, -1)]);
}
