//! Slow work for one partition or request must not delay other requests, even if a single thread serves all
//! connections.

use crate::pipe::Pipe;
use fullbore_tests::{Batch, Broker, FetchFrom, NO_RETENTION, fetch_request, produce_request, topic_data, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::api_versions::ApiVersionsRequest;
use fullbore_wire::apis::delete_topics::DeleteTopicsRequest;
use fullbore_wire::apis::fetch::FetchRequest;
use fullbore_wire::apis::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::apis::produce::ProduceRequest;
use std::fs;
use std::path::Path;
use std::time::Duration;

const ONE_THREAD: &str = "env:TOKIO_WORKER_THREADS=1";
const SOON: Duration = Duration::from_secs(60);
const PRODUCE: i16 = 9;
const FETCH: i16 = 12;
const LIST_OFFSETS: i16 = 7;
const METADATA: i16 = 9;

fn list_offsets(topic: &str, timestamp: i64) -> ListOffsetsRequest {
    let partition = ListOffsetsPartition { partition_index: 0, timestamp, ..Default::default() };
    let topic = ListOffsetsTopic { name: topic.into(), partitions: vec![partition], ..Default::default() };
    ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() }
}

/// Checks that requests for topics other than `slow` are served.
fn assert_others_are_served(broker: &Broker, round: &str) {
    let mut client = broker.client();
    assert_eq!(client.call(&ApiVersionsRequest::default(), 0).error_code, ErrorCode::NONE);
    let offset = client.produced("other", 0, &Batch::of(&[round]));
    let records = client.fetch_records("other", 0);
    assert_eq!(records[usize::try_from(offset).expect("an offset")].text(), round);
    client.create_topic(round, 1, &[]);
    client.produced(round, 0, &Batch::of(&["new"]));
    client.set_config(2, "slow", "retention.ms", "123456789");
    client.init_producer_id();
    client.delete_topic(round);
}

#[test]
fn log_in_recovery_delays_no_other_partition_of_any_request() {
    let mut broker = Broker::start(&[ONE_THREAD]);
    let mut client = broker.client();
    client.create_topic("slow", 1, &[]);
    client.create_topic("other", 1, &[]);
    for number in 0..3 {
        client.produced("slow", 0, &Batch::of(&[number.to_string()]));
        client.produced("other", 0, &Batch::of(&[number.to_string()]));
    }
    broker.kill();
    let slow = Pipe::in_place_of(&broker.partition_dir("slow", 0).join("leader-epoch-checkpoint"));
    broker.restart();
    let pipe = slow.wait_for_reader();
    assert_others_are_served(&broker, "first");

    // A request for both topics gets a retriable error for `slow` and a result for the other topic.
    let mut client = broker.client();
    let batch = Batch::of(&["beside"]).bytes();
    let topic_data = vec![topic_data("slow", &[(0, batch.clone())]), topic_data("other", &[(0, batch)])];
    let request = ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data, ..Default::default() };
    let produced = client.call(&request, PRODUCE).responses;
    let codes = [0, 1].map(|topic: usize| produced[topic].partition_responses[0].error_code);
    assert_eq!(codes, [ErrorCode::NOT_LEADER_OR_FOLLOWER, ErrorCode::NONE]);
    let listed = client.call(&list_offsets("slow", -1), LIST_OFFSETS);
    assert_eq!(listed.topics[0].partitions[0].error_code, ErrorCode::NOT_LEADER_OR_FOLLOWER);

    // A fetch of both topics returns the records of the other topic. A fetch of `slow` alone returns neither records
    // nor an error.
    let both =
        [FetchFrom { topic: "slow", partition: 0, offset: 0 }, FetchFrom { topic: "other", partition: 0, offset: 0 }];
    let fetched = client.call::<FetchRequest>(&fetch_request(&both, 1, 30_000), FETCH);
    let of = |at: usize| &fetched.responses[at].partitions[0];
    assert_eq!((of(0).error_code, of(0).high_watermark, of(0).log_start_offset), (ErrorCode::NONE, -1, -1));
    assert!(of(0).records.as_ref().is_none_or(|records| records.is_empty()));
    assert!(of(1).records.as_ref().is_some_and(|records| !records.is_empty()));
    let alone = client.call::<FetchRequest>(&fetch_request(&both[..1], 1, 0), FETCH);
    assert_eq!(alone.responses[0].partitions[0].error_code, ErrorCode::NONE);
    let mut polling = broker.client();
    polling.send(&fetch_request(&both[..1], 1, 120_000), FETCH);
    assert_others_are_served(&broker, "second");

    slow.give(pipe);
    let again = Batch::of(&["3"]);
    let mut base_offset = -1;
    wait_until("it takes records", SOON, || {
        let produced = client.produce("slow", 0, &again);
        base_offset = produced.base_offset;
        produced.error_code == ErrorCode::NONE
    });
    assert_eq!((base_offset, client.latest("slow", 0)), (3, 4), "what was refused is not there");
    let polled = polling.receive::<FetchRequest>(FETCH).1;
    assert!(polled.responses[0].partitions[0].records.as_ref().is_some_and(|records| !records.is_empty()));
    assert_eq!(broker.client().fetch_records("slow", 0).len(), 4);
}

#[test]
fn topic_is_deleted_during_the_recovery_of_its_log() {
    let mut broker = Broker::start(&[ONE_THREAD, "log.segment.delete.delay.ms=0"]);
    let mut client = broker.client();
    client.create_topic("slow", 1, &[]);
    client.produced("slow", 0, &Batch::of(&["old"]));
    broker.kill();
    let slow = Pipe::in_place_of(&broker.partition_dir("slow", 0).join("leader-epoch-checkpoint"));
    broker.restart();
    let mut producing = broker.client();
    producing.send(&produce_request("slow", 0, Batch::of(&["late"]).bytes()), PRODUCE);
    let pipe = slow.wait_for_reader();
    let mut client = broker.client();
    let delete = DeleteTopicsRequest { topic_names: vec!["slow".into()], timeout_ms: 1, ..Default::default() };
    assert_eq!(client.call(&delete, 3).responses[0].error_code, ErrorCode::NONE);
    client.create_topic("slow", 1, &[]);
    let mut again = broker.client();
    again.send(&produce_request("slow", 0, Batch::of(&["new"]).bytes()), PRODUCE);
    drop((pipe, slow));
    assert_eq!(again.receive::<ProduceRequest>(PRODUCE).1.responses[0].partition_responses[0].base_offset, 0);
    let late = producing.receive::<ProduceRequest>(PRODUCE).1.responses[0].partition_responses[0].error_code;
    assert!(late == ErrorCode::NOT_LEADER_OR_FOLLOWER || late == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, "{late}");
    let records: Vec<String> = client.fetch_records("slow", 0).iter().map(|record| record.text()).collect();
    assert_eq!(records, ["new"]);
    assert!(!broker.stderr().contains("cannot open a partition"), "that it was given up is no failure");
    let is_left = |path: &Path| path.to_string_lossy().contains("slow-0");
    wait_until("the old directory is gone", SOON, || {
        let entries = fs::read_dir(broker.data_dir()).expect("listed");
        entries.filter(|entry| is_left(&entry.as_ref().expect("listed").path())).count() == 1
    });
}

#[test]
fn lookup_by_time_delays_no_other_request() {
    let broker = Broker::start(&[ONE_THREAD, NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic("slow", 1, &[("segment.bytes", "1048576")]);
    client.create_topic("other", 1, &[]);
    for number in 0..3_i64 {
        client.produced("slow", 0, &Batch::at(1000 + number, &[vec![b'v'; 700_000]]));
    }
    let first = broker.partition_files("slow", 0, "timeindex").remove(0);
    let slow = Pipe::in_place_of(&first);
    let mut listing = broker.client();
    listing.send(&list_offsets("slow", 1000), LIST_OFFSETS);
    // The lookup waits until the test opens the pipe. Meanwhile these connections are opened and served.
    for _ in 0..100 {
        let mut others = broker.client();
        assert_eq!(others.call(&ApiVersionsRequest::default(), 0).error_code, ErrorCode::NONE);
        others.produced("other", 0, &Batch::of(&["v"]));
    }
    let pipe = slow.wait_for_reader();
    drop(pipe);
    // The broker reads no valid index from the pipe, so it responds to the lookup with an error.
    assert_eq!(listing.receive::<ListOffsetsRequest>(LIST_OFFSETS).1.topics.len(), 1);
}

/// A client polls a topic by its name. When the topic is recreated, the poll continues with the new topic.
#[test]
fn long_poll_by_name_returns_records_of_the_topic_created_again() {
    let mut broker = Broker::start(&[ONE_THREAD]);
    let mut client = broker.client();
    client.create_topic("slow", 1, &[]);
    client.produced("slow", 0, &Batch::of(&["old"]));
    broker.kill();
    let slow = Pipe::in_place_of(&broker.partition_dir("slow", 0).join("leader-epoch-checkpoint"));
    broker.restart();
    let pipe = slow.wait_for_reader();
    let mut client = broker.client();
    client.create_topic("polled", 1, &[]);
    let mut polling = broker.client();
    polling.set_read_timeout(SOON);
    let from = [FetchFrom { topic: "polled", partition: 0, offset: 0 }];
    polling.send(&fetch_request(&from, 1, 250_000), FETCH);
    for _ in 0..100 {
        assert_eq!(broker.client().call(&ApiVersionsRequest::default(), 0).error_code, ErrorCode::NONE);
    }
    // The deletion of `slow` waits for the pipe, and delays that of `polled`. No event can therefore wake the poll
    // before its topic is created again.
    for topic in ["slow", "polled"] {
        let delete = DeleteTopicsRequest { topic_names: vec![topic.into()], timeout_ms: 1, ..Default::default() };
        assert_eq!(client.call(&delete, 3).responses[0].error_code, ErrorCode::NONE);
    }
    client.create_topic("polled", 1, &[]);
    client.produced("polled", 0, &Batch::of(&["new"]));
    let polled = polling.receive::<FetchRequest>(FETCH).1;
    assert!(polled.responses[0].partitions[0].records.as_ref().is_some_and(|records| !records.is_empty()));
    drop((pipe, slow));
}

/// The broker must not build all responses of a connection at once: each has 70 KB, and a thousand requests may be in
/// flight.
#[test]
fn unread_responses_are_built_a_few_at_a_time() {
    const CLIENTS: usize = 10;
    let broker = Broker::start(&[]);
    broker.client().create_topic("wide", 2000, &[]);
    let metadata = MetadataRequest { topics: None, ..Default::default() };
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| broker.client()).collect();
    let before = broker.rss();
    for client in &mut clients {
        for _ in 0..1000 {
            client.send(&metadata, METADATA);
        }
    }
    // Responses arrive in order, so a client that has the last one has all of them.
    for client in &mut clients {
        (0..1000).for_each(|_| drop(client.receive::<MetadataRequest>(METADATA)));
    }
    let grown = broker.rss_peak().saturating_sub(before) >> 20;
    assert!(grown < 250, "{grown} MiB");
}
