//! Tests readers of a log that loses records after they were read, for example in an unclean election, and of a log
//! whose start moves.

use super::several::{ReceivedRequest, cluster, listeners, metadata, serve};
use super::{cursors, plan};
use fullbore_client::consume::{
    ConsumeError, ConsumeOutcome, ConsumePlan, Cursor, FetchSettings, Placed, StartOffset, consume,
};
use fullbore_tests::Batch;
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::fetch::{EpochEndOffset, FetchRequest, FetchResponse, FetchableTopicResponse, PartitionData};
use fullbore_wire::apis::list_offsets::{
    ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::{ErrorCode, Frame, Records, Uuid};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TOPIC_ID: Uuid = Uuid([1; 16]);
const IN_BATCH: i64 = 10;
/// The log end that the leader returns to a reader that ends there.
const LOG_END: i64 = 40;
/// The leader epoch in the metadata.
const METADATA_EPOCH: i32 = 7;
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

fn fetched(from: i64, answer: Answer, reads_ahead: bool, log_start: i64) -> FetchResponse {
    let mut data = PartitionData { high_watermark: LOG_END, log_start_offset: log_start, ..Default::default() };
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
fn bounds(requested: &ReceivedRequest, log_start: i64) -> Frame {
    requested.answer::<ListOffsetsRequest>(|request| {
        let offset = |timestamp| if timestamp == -1 { LOG_END } else { log_start };
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
    lead_from(Arc::default(), reads_ahead, answer)
}

/// Starts a leader like [`lead`]. Its log begins at `log_start`, and earlier offsets are out of range.
fn lead_from(
    log_start: Arc<AtomicI64>,
    reads_ahead: bool,
    answer: impl Fn(i64, i32) -> Answer + Send + Sync + 'static,
) -> (u16, Positions) {
    let ([listener], ports) = listeners();
    let (port, named) = (ports[0], Positions::default());
    let (notes, position) = (named.clone(), Mutex::new(None));
    serve(listener, move |key, requested| match key {
        ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| {
            let mut known = metadata(&ports, 1);
            known.topics[0].topic_id = TOPIC_ID;
            known.topics[0].partitions[0].leader_epoch = METADATA_EPOCH;
            known
        })),
        ApiKey::ListOffsets => Some(bounds(requested, log_start.load(SeqCst))),
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
            let answer = match answer(offset, last_epoch) {
                Answer::Batch(_) | Answer::Nothing if offset < log_start.load(SeqCst) => {
                    Answer::Error(ErrorCode::OFFSET_OUT_OF_RANGE)
                }
                answer => answer,
            };
            match answer {
                Answer::Batch(_) if reads_ahead => *position = Some((offset + IN_BATCH, MOVED)),
                Answer::Error(_) => *position = None,
                _ => {}
            }
            fetched(offset, answer, reads_ahead, log_start.load(SeqCst))
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

/// Retention may delete records at any time.
#[test]
fn log_start_moves_before_the_first_fetch_a_reader_from_the_beginning_starts_there() {
    for reads_ahead in [false, true] {
        let log_start = Arc::new(AtomicI64::new(0));
        let moved = log_start.clone();
        let (port, _) = lead_from(log_start, reads_ahead, move |offset, _| {
            moved.store(20, SeqCst);
            if offset < LOG_END { Answer::Batch(4) } else { Answer::Nothing }
        });
        let fetch = FetchSettings { reset: None, ..Default::default() };
        let outcome = read(port, &ConsumePlan { fetch, to_end: true, ..plan(u64::MAX) }).expect("read");
        assert!(outcome.finished.is_some());
        assert_eq!((outcome.progress.records(), outcome.cursors[0].offset), (20, Some(LOG_END)));
    }
}

#[test]
fn log_start_moves_past_an_offset_that_the_caller_chose_the_reader_fails() {
    let (port, _) = lead_from(Arc::new(AtomicI64::new(20)), false, |_, _| Answer::Batch(4));
    let fetch = FetchSettings { reset: None, ..Default::default() };
    let start = StartOffset::At(10);
    let error = read(port, &ConsumePlan { fetch, start, ..plan(u64::MAX) }).err().expect("it is gone");
    assert!(matches!(error, ConsumeError::OutOfRange { offset: 10, .. }), "{error}");
}

/// The log was truncated to offset 10, got new records, and then retention has deleted some of these.
#[test]
fn log_begins_after_the_truncation_the_reader_continues_at_its_start() {
    for (reads_ahead, reset) in
        [(false, StartOffset::Earliest), (true, StartOffset::Earliest), (false, StartOffset::Latest)]
    {
        let log_start = Arc::new(AtomicI64::new(0));
        let moved = log_start.clone();
        let (port, named) = lead_from(log_start, reads_ahead, move |offset, last_epoch| match (offset, last_epoch) {
            (0, _) => Answer::Batch(4),
            (10, _) => Answer::Batch(5),
            (20, MOVED) => Answer::Error(ErrorCode::FENCED_LEADER_EPOCH),
            (20, 5) => {
                moved.store(15, SeqCst);
                Answer::Diverging(4, 10)
            }
            (15, _) => Answer::Batch(6),
            _ => Answer::Nothing,
        });
        let fetch = FetchSettings { reset: Some(reset), ..Default::default() };
        let outcome = read(port, &ConsumePlan { fetch, ..plan(30) }).expect("read");
        assert_eq!((outcome.progress.records(), outcome.cursors[0].offset), (30, Some(25)));
        let notice = "partition 0 of topic 't' lost offsets 10 to 19 after they were read: the read continues at \
                      offset 15";
        assert_eq!(outcome.progress.take_notices(), [notice]);
        assert!(outcome.progress.take_deleted_offsets().is_empty());
        assert!(named.lock().expect("no panic").contains(&(15, -1)));
    }
}

/// The leader's response does not contain the log start, as in older releases.
#[test]
fn log_start_is_unknown_at_the_truncation_the_reader_finds_it() {
    let (log_start, is_lost) = (Arc::new(AtomicI64::new(0)), AtomicBool::new(false));
    let moved = log_start.clone();
    let (port, _) = lead_from(log_start, false, move |offset, last_epoch| match (offset, last_epoch) {
        (0, _) => Answer::Batch(4),
        (10, _) if !is_lost.swap(true, SeqCst) => Answer::Batch(5),
        (10, _) => {
            moved.store(15, SeqCst);
            Answer::Nothing
        }
        (20, 5) => Answer::Diverging(4, 10),
        (15, _) => Answer::Batch(6),
        _ => Answer::Nothing,
    });
    let fetch = FetchSettings { reset: Some(StartOffset::Latest), ..Default::default() };
    let outcome = read(port, &ConsumePlan { fetch, ..plan(30) }).expect("read");
    assert_eq!((outcome.progress.records(), outcome.cursors[0].offset), (30, Some(25)));
}

/// Reads from a committed offset of 20 after a record of epoch 5.
fn read_from_commit(port: u16, plan: &ConsumePlan) -> Result<ConsumeOutcome<()>, ConsumeError> {
    let placed = Placed { topic_id: TOPIC_ID, offset: Some(20), leader_epoch: Some(5), end: None };
    consume(&cluster(port), vec![Cursor::placed("t".into(), 0, placed, ())], plan, |_| true)
}

#[test]
fn log_lost_records_before_a_committed_offset_the_reader_continues_where_the_logs_part() {
    for reads_ahead in [false, true] {
        let (port, named) = lead(reads_ahead, |offset, last_epoch| match (offset, last_epoch) {
            (20, 5) => Answer::Diverging(4, 10),
            (10 | 20 | 30, _) => Answer::Batch(6),
            _ => Answer::Nothing,
        });
        let outcome = read_from_commit(port, &ConsumePlan { to_end: true, ..plan(u64::MAX) }).expect("read");
        assert!(outcome.finished.is_some());
        // The records were lost before the reader began, so the log end at its start is not one of the lost offsets.
        assert_eq!((outcome.progress.records(), outcome.cursors[0].offset), (30, Some(LOG_END)));
        let notice = "partition 0 of topic 't' lost offsets 10 to 19 after they were read: the read continues at \
                      offset 10";
        assert_eq!(outcome.progress.take_notices(), [notice]);
        assert_eq!(named.lock().expect("no panic")[..2], [(20, 5), (10, -1)]);
    }
}

#[test]
fn log_lost_records_before_a_committed_offset_a_reader_without_a_reset_policy_fails() {
    let (port, _) = lead(false, |_, _| Answer::Diverging(4, 10));
    let fetch = FetchSettings { reset: None, ..Default::default() };
    let error = read_from_commit(port, &ConsumePlan { fetch, ..plan(30) }).err().expect("lost");
    assert!(matches!(error, ConsumeError::Truncated { first: 10, last: 19, .. }), "{error}");
}

/// The log now ends before the committed offset.
#[test]
fn committed_offset_is_past_the_log_end_a_read_to_the_end_continues_where_the_logs_part() {
    let placed = Placed { topic_id: TOPIC_ID, offset: Some(60), leader_epoch: Some(5), end: None };
    let (port, _) = lead(false, |offset, last_epoch| match (offset, last_epoch) {
        (60, 5) => Answer::Diverging(4, 30),
        (30, _) => Answer::Batch(6),
        _ => Answer::Nothing,
    });
    let plan = ConsumePlan { to_end: true, ..plan(u64::MAX) };
    let begun = vec![Cursor::placed("t".into(), 0, placed, ())];
    let outcome = consume(&cluster(port), begun, &plan, |_| true).expect("read");
    assert!(outcome.finished.is_some());
    assert_eq!((outcome.progress.records(), outcome.cursors[0].offset), (10, Some(LOG_END)));
}

/// The group has read everything, and an empty response shows that nothing is lost.
#[test]
fn committed_offset_is_the_log_end_and_nothing_is_lost_a_read_to_the_end_is_over() {
    for reads_ahead in [false, true] {
        let placed = Placed { topic_id: TOPIC_ID, offset: Some(LOG_END), leader_epoch: Some(5), end: None };
        let (port, named) = lead(reads_ahead, |_, _| Answer::Nothing);
        let plan = ConsumePlan { to_end: true, ..plan(u64::MAX) };
        let begun = vec![Cursor::placed("t".into(), 0, placed, ())];
        let outcome = consume(&cluster(port), begun, &plan, |_| true).expect("read");
        assert!(outcome.finished.is_some() && outcome.progress.take_notices().is_empty());
        assert_eq!(named.lock().expect("no panic")[..], [(LOG_END, 5)]);
    }
}

/// No broker knows epoch 9 any more, because all were restored from an older copy. The log has got other records in
/// epoch 7 since.
#[test]
fn brokers_went_back_to_an_older_epoch_the_reader_goes_back_after_a_while() {
    let is_restored = AtomicBool::new(false);
    let (port, named) = lead(false, move |offset, last_epoch| match (offset, last_epoch) {
        (0, _) => Answer::Batch(4),
        (10, _) if !is_restored.load(SeqCst) => Answer::Batch(9),
        (20, 9) => {
            is_restored.store(true, SeqCst);
            Answer::Error(ErrorCode::UNKNOWN_LEADER_EPOCH)
        }
        (10, 4) => Answer::Batch(METADATA_EPOCH),
        _ => Answer::Nothing,
    });
    let mut cluster = cluster(port).patient(Duration::from_secs(2));
    let begun = cursors(&mut cluster, || ());
    let outcome = consume(&cluster, begun, &plan(3 * IN_BATCH as u64), |_| true).expect("read");
    assert_eq!((outcome.progress.records(), outcome.cursors[0].offset), (30, Some(20)));
    let notice = "partition 0 of topic 't' went back from leader epoch 9 to 7, for example because the cluster was \
                  restored from an older copy: the read continues at offset 10";
    assert_eq!(outcome.progress.take_notices(), [notice]);
    assert!(named.lock().expect("no panic").contains(&(10, 4)));
}
