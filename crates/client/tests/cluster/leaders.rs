//! Tests readers of a leader that reads ahead: the fetch after a gap in the offsets, and the end of the session when
//! the reader ends.

use super::broker::TestBroker;
use super::several::{ReceivedRequest, cluster, listeners, metadata, serve, serve_unless};
use super::{cursors, plan, write_numbers};
use fullbore_client::admin::create_topic;
use fullbore_client::blocking::{Cluster, LATEST};
use fullbore_client::consume::{ConsumeError, ConsumePlan, FetchSettings, StartOffset, consume};
use fullbore_tests::{Batch, wait_until};
use fullbore_wire::api::ApiKey;
use fullbore_wire::apis::fetch::{
    FetchPartition, FetchRequest, FetchResponse, FetchTopic, FetchableTopicResponse, PartitionData,
};
use fullbore_wire::apis::list_offsets::{
    ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopicResponse,
};
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataResponse};
use fullbore_wire::{ErrorCode, Frame, Records, Uuid};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TOPIC_ID: Uuid = Uuid([1; 16]);
const IN_BATCH: i64 = 10;
const DEADLINE: Duration = Duration::from_secs(60);

/// A response of a leader: the offset at which it begins, the base offset of its batch if it has one, and the offset at
/// which the leader continues.
type Range = (i64, Option<i64>, i64);

fn fetched(&(from_offset, batch, next_offset): &Range) -> FetchResponse {
    let bytes = batch.map(|base_offset| Batch { base_offset, ..Batch::of(&["x"; IN_BATCH as usize]) }.bytes());
    let records = bytes.map(Records::Memory);
    let data = PartitionData { from_offset, next_offset, records, high_watermark: 1_000, ..Default::default() };
    let topic = FetchableTopicResponse { topic_id: TOPIC_ID, partitions: vec![data], ..Default::default() };
    FetchResponse { session_id: 7, responses: vec![topic], ..Default::default() }
}

/// Answers ListOffsets with offset 0 for the only partition, or with this error.
fn start(requested: &ReceivedRequest, error_code: ErrorCode) -> Frame {
    requested.answer::<ListOffsetsRequest>(|_| {
        let partition = ListOffsetsPartitionResponse { error_code, offset: 0, ..Default::default() };
        let topic = ListOffsetsTopicResponse { name: "t".into(), partitions: vec![partition], ..Default::default() };
        ListOffsetsResponse { topics: vec![topic], ..Default::default() }
    })
}

/// Returns the metadata of a topic with an id, whose only partition is led by the first broker.
fn with_id(requested: &ReceivedRequest, ports: &[u16]) -> Frame {
    led_by(requested, ports, 1)
}

/// Returns the metadata of a topic with an id, whose only partition is led by this broker.
fn led_by(requested: &ReceivedRequest, ports: &[u16], leader: i32) -> Frame {
    requested.answer::<MetadataRequest>(|_| {
        let mut known = metadata(ports, leader);
        known.topics[0].topic_id = TOPIC_ID;
        known
    })
}

#[test]
fn a_reader_goes_on_after_a_gap_without_naming_the_offset() {
    let in_one: &[Range] = &[(0, Some(0), 100), (100, Some(100), 110)];
    let between: &[Range] = &[(0, Some(0), 10), (10, None, 100), (100, Some(100), 110)];
    for ranges in [in_one, between] {
        let ([listener], ports) = listeners();
        let (port, named) = (ports[0], Arc::new(Mutex::new(Vec::new())));
        let (notes, answers, fetches) = (named.clone(), ranges.to_vec(), Mutex::new(0));
        serve(listener, move |key, requested| match key {
            ApiKey::Metadata => Some(with_id(requested, &ports)),
            ApiKey::ListOffsets => Some(start(requested, ErrorCode::NONE)),
            _ => Some(requested.answer::<FetchRequest>(|request| {
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

#[test]
fn a_reader_retries_a_refused_start_offset_and_reads() {
    let ([listener], ports) = listeners();
    let (port, requests) = (ports[0], Arc::new(AtomicUsize::new(0)));
    let counted = requests.clone();
    serve(listener, move |key, requested| match key {
        ApiKey::Metadata => Some(with_id(requested, &ports)),
        ApiKey::ListOffsets => Some(match counted.fetch_add(1, SeqCst) {
            0 => start(requested, ErrorCode::NOT_LEADER_OR_FOLLOWER),
            1 => start(requested, ErrorCode::UNKNOWN_SERVER_ERROR),
            _ => start(requested, ErrorCode::NONE),
        }),
        _ => Some(requested.answer::<FetchRequest>(|_| fetched(&(0, Some(0), 10)))),
    });
    let mut cluster = cluster(port);
    let begun = cursors(&mut cluster, || ());
    let outcome = consume(&cluster, begun, &plan(IN_BATCH as u64), |_| true).expect("read");
    assert_eq!((outcome.progress.records(), requests.load(SeqCst)), (10, 3));
}

#[test]
fn whole_fetch_fails_unexpectedly_a_reader_fetches_again() {
    let ([listener], ports) = listeners();
    let (port, fetches) = (ports[0], AtomicUsize::new(0));
    serve(listener, move |key, requested| match key {
        ApiKey::Metadata => Some(with_id(requested, &ports)),
        ApiKey::ListOffsets => Some(start(requested, ErrorCode::NONE)),
        _ => Some(requested.answer::<FetchRequest>(|_| match fetches.fetch_add(1, SeqCst) {
            0 => FetchResponse { error_code: ErrorCode::UNKNOWN_SERVER_ERROR, ..Default::default() },
            _ => fetched(&(0, Some(0), 10)),
        })),
    });
    let mut cluster = cluster(port);
    let begun = cursors(&mut cluster, || ());
    let outcome = consume(&cluster, begun, &plan(IN_BATCH as u64), |_| true).expect("read");
    assert_eq!(outcome.progress.records(), 10);
}

#[test]
fn listed_broker_is_behind_a_reader_finds_the_leader_through_another() {
    let ([behind, leading], mut ports) = listeners();
    // No broker listens on this port.
    ports.push(1);
    let (port, known) = (ports[0], ports.clone());
    serve(behind, move |_, requested| Some(led_by(requested, &known, 3)));
    serve(leading, move |key, requested| match key {
        ApiKey::Metadata => Some(led_by(requested, &ports, 2)),
        ApiKey::ListOffsets => Some(start(requested, ErrorCode::NONE)),
        _ => Some(requested.answer::<FetchRequest>(|_| fetched(&(0, Some(0), 10)))),
    });
    let mut cluster = cluster(port);
    let begun = cursors(&mut cluster, || ());
    let plan = ConsumePlan { timeout: DEADLINE, ..plan(IN_BATCH as u64) };
    let outcome = consume(&cluster, begun, &plan, |_| true).expect("read");
    assert_eq!(outcome.progress.records(), 10);
}

/// Starts a broker that is behind after its first response, and the leader. Returns the port of the broker behind.
fn one_behind(changed: impl Fn(&mut MetadataResponse) + Send + Sync + 'static) -> u16 {
    let ([behind, leading], ports) = listeners();
    let (port, known, looks) = (ports[0], ports.clone(), AtomicUsize::new(0));
    serve(behind, move |_, requested| {
        Some(requested.answer::<MetadataRequest>(|_| {
            let mut known = metadata(&known, 2);
            known.topics[0].topic_id = TOPIC_ID;
            if looks.fetch_add(1, SeqCst) > 0 {
                changed(&mut known);
            }
            known
        }))
    });
    serve(leading, move |key, requested| match key {
        ApiKey::Metadata => Some(led_by(requested, &ports, 2)),
        ApiKey::ListOffsets => Some(start(requested, ErrorCode::NONE)),
        _ => Some(requested.answer::<FetchRequest>(|_| fetched(&(0, Some(0), 10)))),
    });
    port
}

#[test]
fn broker_behind_does_not_know_the_topic_a_read_to_the_end_queries_another() {
    let port = one_behind(|known| {
        known.topics[0].partitions.clear();
        known.topics[0].error_code = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    });
    let mut cluster = cluster(port);
    let begun = cursors(&mut cluster, || ());
    let outcome = consume(&cluster, begun, &ConsumePlan { to_end: true, ..plan(u64::MAX) }, |_| true).expect("read");
    assert!(outcome.finished.is_some() && outcome.progress.deleted().is_empty());
    assert!(outcome.progress.take_notices().is_empty());
}

#[test]
fn broker_behind_names_a_former_topic_a_read_to_the_end_queries_another() {
    let port = one_behind(|known| known.topics[0].topic_id = Uuid([9; 16]));
    let mut cluster = cluster(port);
    let begun = cursors(&mut cluster, || ());
    let fetch = FetchSettings { reset: None, ..Default::default() };
    let plan = ConsumePlan { fetch, to_end: true, ..plan(u64::MAX) };
    let outcome = consume(&cluster, begun, &plan, |_| true).expect("read");
    assert!(outcome.finished.is_some());
}

/// Starts a former leader, which still answers, and the leader of the next epoch. The former leader has no record, and
/// the leader has one batch. Returns the port of the former leader.
fn one_deposed() -> u16 {
    let ([former, leading], ports) = listeners();
    let port = ports[0];
    for (listener, leader_epoch) in [(former, 1), (leading, 2)] {
        let (ports, is_former) = (ports.clone(), leader_epoch == 1);
        serve(listener, move |key, requested| match key {
            ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| {
                let mut known = metadata(&ports, leader_epoch);
                known.topics[0].topic_id = TOPIC_ID;
                known.topics[0].partitions[0].leader_epoch = leader_epoch;
                known
            })),
            ApiKey::ListOffsets => Some(requested.answer::<ListOffsetsRequest>(|request| {
                let is_end = request.topics[0].partitions[0].timestamp == LATEST;
                let offset = if is_end && !is_former { IN_BATCH } else { 0 };
                let partition = ListOffsetsPartitionResponse { offset, ..Default::default() };
                let partitions = vec![partition];
                let topic = ListOffsetsTopicResponse { name: "t".into(), partitions, ..Default::default() };
                ListOffsetsResponse { topics: vec![topic], ..Default::default() }
            })),
            _ if is_former => {
                // The next response follows after a while, as if the broker had waited for records.
                std::thread::sleep(Duration::from_millis(10));
                Some(requested.answer::<FetchRequest>(|_| fetched(&(0, None, 0))))
            }
            _ => Some(requested.answer::<FetchRequest>(|_| fetched(&(0, Some(0), IN_BATCH)))),
        });
    }
    port
}

/// Regression test: a reader got no new record for as long as the former leader was cut off from the database.
#[test]
fn former_leader_still_answers_a_reader_moves_to_the_leader_that_another_broker_names() {
    let mut cluster = cluster(one_deposed());
    let begun = cursors(&mut cluster, || ());
    let metadata_max_age = Duration::from_millis(100);
    let plan = ConsumePlan { metadata_max_age, timeout: DEADLINE, ..plan(IN_BATCH as u64) };
    let outcome = consume(&cluster, begun, &plan, |_| true).expect("read");
    assert_eq!((outcome.progress.records(), outcome.cursors[0].offset), (10, Some(10)));
}

/// Regression test: a read to the end left out records that were acknowledged before it began.
#[test]
fn former_leader_returns_an_old_end_a_read_to_the_end_reads_to_the_end_of_the_leader() {
    let mut cluster = cluster(one_deposed());
    let begun = cursors(&mut cluster, || ());
    let outcome = consume(&cluster, begun, &ConsumePlan { to_end: true, ..plan(u64::MAX) }, |_| true).expect("read");
    assert!(outcome.finished.is_some());
    assert_eq!(outcome.progress.records(), 10);
}

/// The reader has read no record yet, since it starts at the end of the log.
#[test]
fn broker_behind_names_a_former_topic_a_reader_at_the_log_end_keeps_its_position() {
    const FORMER: Uuid = Uuid([9; 16]);
    let ([listener], ports) = listeners();
    let (port, fetches, is_behind) = (ports[0], AtomicUsize::new(0), AtomicBool::new(false));
    serve(listener, move |key, requested| match key {
        ApiKey::Metadata => Some(requested.answer::<MetadataRequest>(|_| {
            let mut known = metadata(&ports, 1);
            known.topics[0].topic_id = if is_behind.swap(false, SeqCst) { FORMER } else { TOPIC_ID };
            known
        })),
        ApiKey::ListOffsets => Some(requested.answer::<ListOffsetsRequest>(|_| {
            let partition = ListOffsetsPartitionResponse { offset: 70, ..Default::default() };
            let partitions = vec![partition];
            let topic = ListOffsetsTopicResponse { name: "t".into(), partitions, ..Default::default() };
            ListOffsetsResponse { topics: vec![topic], ..Default::default() }
        })),
        // The connection breaks after the first answer, which has no records.
        _ if fetches.fetch_add(1, SeqCst) == 1 => {
            is_behind.store(true, SeqCst);
            None
        }
        _ => Some(requested.answer::<FetchRequest>(|request| match request.topics.first() {
            Some(topic) if topic.topic_id == FORMER => {
                let mut refused = fetched(&(0, None, -1));
                refused.responses[0].topic_id = FORMER;
                refused.responses[0].partitions[0].error_code = ErrorCode::UNKNOWN_TOPIC_ID;
                refused
            }
            Some(topic) if topic.partitions[0].fetch_offset < 70 => fetched(&(0, Some(0), 10)),
            _ if fetches.load(SeqCst) == 1 => fetched(&(70, None, 70)),
            _ => fetched(&(70, Some(70), 80)),
        })),
    });
    let mut cluster = cluster(port);
    let begun = cursors(&mut cluster, || ());
    let plan = ConsumePlan { start: StartOffset::Latest, ..plan(IN_BATCH as u64) };
    let outcome = consume(&cluster, begun, &plan, |_| true).expect("read");
    assert_eq!((outcome.progress.records(), outcome.cursors[0].offset), (10, Some(80)));
}

#[test]
fn leader_closes_new_connections_for_a_while_a_reader_connects_again_and_reads() {
    let ([listener], ports) = listeners();
    let (port, is_down) = (ports[0], Arc::new(AtomicBool::new(false)));
    serve_unless(listener, is_down.clone(), move |key, requested| match key {
        ApiKey::Metadata => Some(with_id(requested, &ports)),
        ApiKey::ListOffsets => Some(start(requested, ErrorCode::NONE)),
        _ => Some(requested.answer::<FetchRequest>(|_| fetched(&(0, Some(0), 10)))),
    });
    let mut cluster = cluster(port);
    let begun = cursors(&mut cluster, || ());
    is_down.store(true, SeqCst);
    let plan = ConsumePlan { timeout: DEADLINE, ..plan(IN_BATCH as u64) };
    let outcome = consume(&cluster, begun, &plan, |progress| {
        if progress.trouble().is_some() {
            is_down.store(false, SeqCst);
        }
        true
    });
    assert_eq!(outcome.expect("read").progress.records(), 10);
}

#[test]
fn topic_has_no_partitions_a_read_to_the_end_is_over_at_once() {
    let ([listener], ports) = listeners();
    let port = ports[0];
    serve(listener, move |_, requested| {
        Some(requested.answer::<MetadataRequest>(|_| {
            let mut known = metadata(&ports, 1);
            known.topics[0].partitions.clear();
            known
        }))
    });
    let mut cluster = cluster(port);
    let begun = cursors(&mut cluster, || ());
    let outcome = consume(&cluster, begun, &ConsumePlan { to_end: true, ..plan(u64::MAX) }, |_| true).expect("read");
    assert!(outcome.finished.is_some(), "it has waited for its timeout");
}

#[test]
fn partition_stays_without_a_leader_a_read_to_the_end_gives_it_up() {
    let ([listener], ports) = listeners();
    let port = ports[0];
    serve(listener, move |_, requested| Some(requested.answer::<MetadataRequest>(|_| metadata(&ports, -1))));
    let mut cluster = cluster(port).patient(Duration::from_secs(2));
    let begun = cursors(&mut cluster, || ());
    let plan = ConsumePlan { to_end: true, ..plan(u64::MAX) };
    let error = consume(&cluster, begun, &plan, |_| true).err().expect("nothing can be read");
    let reported = "partition 0 of topic 't' has no leader; check whether the brokers of its replicas are running";
    assert!(matches!(error, ConsumeError::Refusing(_)) && error.to_string() == reported, "{error}");
}

/// Starts a broker that keeps only one fetch session.
fn broker_with_one_session() -> TestBroker {
    let broker = TestBroker::start_with(None, &[("max.incremental.fetch.session.cache.slots", "1")]);
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    create_topic(&mut cluster, "t", Some(1), None, &[]).expect("created");
    write_numbers(&broker.address, 1, 1_000, 100);
    assert!(has_room_for_a_session(&broker.address));
    broker
}

/// Opens a session and closes it again. Returns false if no session can be opened.
fn has_room_for_a_session(address: &str) -> bool {
    const VERSION: i16 = 18;
    let mut cluster = Cluster::new(address, "test").expect("valid");
    let place = cluster.partitions(&"t".into()).expect("the topic exists").remove(0);
    let partition = FetchPartition { partition: 0, partition_max_bytes: 1_000, ..Default::default() };
    let topic = FetchTopic { topic_id: place.topic_id, partitions: vec![partition], ..Default::default() };
    let opening = FetchRequest { session_epoch: 0, read_ahead: true, topics: vec![topic], ..Default::default() };
    let request = FetchRequest { max_bytes: 1_000, ..opening };
    let mut connection = cluster.connect(address).expect("it answers");
    let opened = connection.call_up_to(&request, VERSION).expect("an answer").session_id;
    let closing = FetchRequest { session_id: opened, session_epoch: -1, ..Default::default() };
    connection.call_up_to(&closing, VERSION).expect("an answer");
    opened != 0
}

#[test]
fn a_finished_reader_closes_its_session() {
    let broker = broker_with_one_session();
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    let begun = cursors(&mut cluster, || ());
    let fetch = FetchSettings { partition_max_bytes: 1_000, max_bytes: 1_000, ..Default::default() };
    let plan = ConsumePlan { fetch, to_end: true, ..plan(u64::MAX) };
    let outcome = consume(&cluster, begun, &plan, |_| true).expect("read");
    assert_eq!(outcome.progress.records(), 1_000);
    wait_until("the session is closed", DEADLINE, || has_room_for_a_session(&broker.address));
}

#[test]
fn a_waiting_reader_that_is_stopped_closes_its_session() {
    let broker = broker_with_one_session();
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    let begun = cursors(&mut cluster, || ());
    let mut is_full = false;
    let outcome = consume(&cluster, begun, &plan(u64::MAX), |counts| {
        is_full |= counts.records() == 1_000 && !has_room_for_a_session(&broker.address);
        !is_full
    });
    assert_eq!(outcome.expect("read").progress.records(), 1_000);
    assert!(is_full, "the reader had the one session");
    wait_until("the session is closed", DEADLINE, || has_room_for_a_session(&broker.address));
}
