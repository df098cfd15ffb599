//! Responses, limits and refusals of Fetch. Sessions are tested in `sessions`, and waits in `pipelining`.

use fullbore_tests::{Batch, Broker, Client, FetchFrom, fetch_request};
use fullbore_wire::apis::fetch::{
    FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData, ReplicaState,
};
use fullbore_wire::{ErrorCode, Records, Text, Uuid};

const TOPIC: &str = "fetched";
const FETCH: i16 = 12;
/// How long these fetches may wait, in milliseconds. This exceeds the client's read timeout, so a fetch that wrongly
/// waits fails its test.
const LONG_MS: i32 = 120_000;

/// Writes three batches of two records to partition 0 and one batch to partition 1.
fn broker_with_records() -> (Broker, Client, Uuid) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let id = client.create_topic(TOPIC, 2, &[]);
    for pair in [["a", "b"], ["c", "d"], ["e", "f"]] {
        client.produced(TOPIC, 0, &Batch::of(&pair));
    }
    client.produced(TOPIC, 1, &Batch::of(&["other"]));
    (broker, client, id)
}

fn batch_len() -> i32 {
    i32::try_from(Batch::of(&["a", "b"]).bytes().len()).expect("small")
}

fn topic(name: &str, partitions: Vec<FetchPartition>) -> FetchTopic {
    FetchTopic { topic: Text::from(name), partitions, ..Default::default() }
}

fn at(partition: i32, fetch_offset: i64) -> FetchPartition {
    FetchPartition { partition, fetch_offset, partition_max_bytes: 1 << 20, ..Default::default() }
}

fn request(topics: Vec<FetchTopic>) -> FetchRequest {
    FetchRequest { max_wait_ms: LONG_MS, min_bytes: 1, topics, ..Default::default() }
}

fn only(mut response: FetchResponse) -> PartitionData {
    assert_eq!(response.error_code, ErrorCode::NONE);
    response.responses.remove(0).partitions.remove(0)
}

fn texts(data: &PartitionData) -> Vec<String> {
    let bytes = data.records.as_ref().and_then(Records::memory).cloned().unwrap_or_default();
    let batches = Batch::parse_all(&bytes);
    batches.iter().flat_map(|batch| &batch.records).map(|record| record.text()).collect()
}

#[test]
fn every_version_from_4_to_18_is_served() {
    let (_broker, mut client, id) = broker_with_records();
    for version in 4..=18 {
        let mut topic = topic(TOPIC, vec![at(0, 2)]);
        if version >= 13 {
            topic.topic_id = id;
        }
        let data = only(client.call(&request(vec![topic]), version));
        assert_eq!(texts(&data), ["c", "d", "e", "f"], "version {version}");
        assert_eq!((data.high_watermark, data.last_stable_offset), (6, 6));
        assert_eq!(data.log_start_offset, if version >= 5 { 0 } else { -1 });
    }
}

#[test]
fn an_offset_inside_a_batch_returns_the_whole_batch() {
    let (_broker, mut client, _) = broker_with_records();
    for (offset, expected) in [(0, "a"), (1, "a"), (2, "c"), (3, "c"), (4, "e"), (5, "e")] {
        let data = only(client.call(&request(vec![topic(TOPIC, vec![at(0, offset)])]), FETCH));
        assert_eq!(texts(&data)[0], expected, "offset {offset}");
    }
}

#[test]
fn offsets_beyond_either_end_are_out_of_range_at_once() {
    let (_broker, mut client, _) = broker_with_records();
    for offset in [7, i64::MAX, -1, i64::MIN] {
        let data = only(client.call(&request(vec![topic(TOPIC, vec![at(0, offset)])]), FETCH));
        assert_eq!(data.error_code, ErrorCode::OFFSET_OUT_OF_RANGE, "offset {offset}");
        assert!(texts(&data).is_empty());
    }
    let end = FetchRequest { max_wait_ms: 0, ..request(vec![topic(TOPIC, vec![at(0, 6)])]) };
    let data = only(client.call(&end, FETCH));
    assert_eq!((data.error_code, data.high_watermark), (ErrorCode::NONE, 6), "the end itself is in range");
}

#[test]
fn unknown_topics_partitions_and_ids_are_errors_at_once() {
    let (_broker, mut client, id) = broker_with_records();
    for unknown in [topic("nowhere", vec![at(0, 0)]), topic(TOPIC, vec![at(2, 0)]), topic(TOPIC, vec![at(-1, 0)])] {
        let data = only(client.call(&request(vec![unknown]), FETCH));
        assert_eq!(data.error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    }
    let by_id = |topic_id| request(vec![FetchTopic { topic_id, ..topic("", vec![at(0, 0)]) }]);
    assert_eq!(only(client.call(&by_id(Uuid([9; 16])), 13)).error_code, ErrorCode::UNKNOWN_TOPIC_ID);
    assert_eq!(texts(&only(client.call(&by_id(id), 13))).len(), 6);
}

#[test]
fn a_leader_epoch_of_the_future_is_unknown() {
    let (_broker, mut client, _) = broker_with_records();
    let believing =
        |current_leader_epoch| request(vec![topic(TOPIC, vec![FetchPartition { current_leader_epoch, ..at(0, 0) }])]);
    assert_eq!(only(client.call(&believing(1), FETCH)).error_code, ErrorCode::UNKNOWN_LEADER_EPOCH);
    assert_eq!(texts(&only(client.call(&believing(0), FETCH))).len(), 6);
}

#[test]
fn a_first_batch_larger_than_every_limit_is_returned_whole() {
    let (_broker, mut client, _) = broker_with_records();
    for limit in [0, 1, batch_len() - 1] {
        let tight = FetchPartition { partition_max_bytes: limit, ..at(0, 0) };
        let data = only(client.call(&request(vec![topic(TOPIC, vec![tight])]), FETCH));
        assert_eq!(texts(&data), ["a", "b"], "partition_max_bytes {limit}");
        let whole = FetchRequest { max_bytes: limit, ..request(vec![topic(TOPIC, vec![at(0, 0)])]) };
        assert_eq!(texts(&only(client.call(&whole, FETCH))), ["a", "b"], "max_bytes {limit}");
    }
}

#[test]
fn only_the_first_partition_with_data_may_exceed_max_bytes() {
    let (_broker, mut client, _) = broker_with_records();
    let both = FetchRequest { max_bytes: 1, ..request(vec![topic(TOPIC, vec![at(0, 6), at(1, 0), at(0, 0)])]) };
    let response = client.call(&both, FETCH);
    let got: Vec<usize> = response.responses[0].partitions.iter().map(|data| texts(data).len()).collect();
    assert_eq!(got.iter().filter(|count| **count > 0).count(), 1, "{got:?}");
}

#[test]
fn limits_are_kept_after_the_first_batch() {
    let (_broker, mut client, _) = broker_with_records();
    for (limit, expected) in [(batch_len(), 2), (2 * batch_len(), 4), (3 * batch_len() - 1, 4), (3 * batch_len(), 6)] {
        let partition = FetchPartition { partition_max_bytes: limit, ..at(0, 0) };
        let data = only(client.call(&request(vec![topic(TOPIC, vec![partition])]), FETCH));
        assert!(data.records.as_ref().map_or(0, Records::len) <= usize::try_from(limit).expect("positive"));
        assert_eq!(texts(&data).len(), expected, "{limit} bytes");
    }
}

#[test]
fn fetch_max_bytes_of_the_broker_limits_responses() {
    let broker = Broker::start(&["fetch.max.bytes=1024"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    (0..10).for_each(|_| {
        client.produced(TOPIC, 0, &Batch::of(&[vec![b'x'; 400]]));
    });
    let data = only(client.call(&request(vec![topic(TOPIC, vec![at(0, 0)])]), FETCH));
    assert_eq!(texts(&data).len(), 2);
}

#[test]
fn read_committed_without_transactions_returns_all_records() {
    let (_broker, mut client, _) = broker_with_records();
    let committed = FetchRequest { isolation_level: 1, ..request(vec![topic(TOPIC, vec![at(0, 0)])]) };
    let data = only(client.call(&committed, FETCH));
    assert_eq!(texts(&data).len(), 6);
    assert!(data.aborted_transactions.unwrap_or_default().is_empty());
}

#[test]
fn valid_partitions_of_a_fetch_are_returned_beside_invalid_ones() {
    let (_broker, mut client, _) = broker_with_records();
    let topics = vec![topic("nowhere", vec![at(0, 0)]), topic(TOPIC, vec![at(9, 0), at(0, 0), at(1, 5)])];
    let response = client.call(&request(topics), FETCH);
    let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
    let codes: Vec<_> = partitions.map(|data| (data.error_code, texts(data).len())).collect();
    let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
    assert_eq!(codes, [(unknown, 0), (unknown, 0), (ErrorCode::NONE, 6), (ErrorCode::OFFSET_OUT_OF_RANGE, 0)]);
}

/// Fetches of followers change the state of a partition, such as its ISR. A client that pretends to be a follower must
/// not do that.
#[test]
fn fetch_with_a_replica_id_is_refused() {
    let (_broker, mut client, _) = broker_with_records();
    let of_topic = vec![topic(TOPIC, vec![at(0, 0)])];
    let old = FetchRequest { replica_id: 0, ..request(of_topic.clone()) };
    assert_eq!(client.call(&old, FETCH).error_code, ErrorCode::CLUSTER_AUTHORIZATION_FAILED);
    let replica_state = ReplicaState { replica_id: 1, ..Default::default() };
    let new = FetchRequest { replica_state, ..request(of_topic) };
    assert_eq!(client.call(&new, 15).error_code, ErrorCode::CLUSTER_AUTHORIZATION_FAILED);
}

#[test]
fn unreachable_minimum_is_not_waited_for() {
    let (_broker, mut client, _) = broker_with_records();
    let of = |partition_max_bytes, max_bytes, min_bytes| {
        let partition = FetchPartition { partition_max_bytes, ..at(0, 0) };
        FetchRequest { max_bytes, min_bytes, ..request(vec![topic(TOPIC, vec![partition])]) }
    };
    let one_and_a_half = batch_len() + batch_len() / 2;
    for requested in [of(1 << 20, one_and_a_half, 1 << 20), of(one_and_a_half, 1 << 20, one_and_a_half)] {
        let reported = only(client.call(&requested, FETCH));
        assert!(reported.records.is_some_and(|records| records.len() >= batch_len() as usize));
    }
}

#[test]
fn a_fetch_of_nothing_is_answered_at_once() {
    let (_broker, mut client, _) = broker_with_records();
    assert!(client.call(&request(Vec::new()), FETCH).responses.is_empty());
}

/// A consumer waits for records of a topic. When the topic is deleted, it must get a response at once.
#[test]
fn long_poll_on_a_deleted_topic_ends() {
    let (broker, mut client, _) = broker_with_records();
    let mut poller = broker.client();
    poller.send(&fetch_request(&[FetchFrom { topic: TOPIC, partition: 0, offset: 6 }], 1, LONG_MS), FETCH);
    // The broker admits the requests of a connection in order. Once this later one is admitted, the poll is waiting.
    poller.send_produce(TOPIC, 1, &Batch::of(&["behind the poll"]));
    fullbore_tests::wait_until("the poll waits", std::time::Duration::from_secs(30), || client.latest(TOPIC, 1) == 2);
    client.delete_topic(TOPIC);
    let (_, response) = poller.receive::<FetchRequest>(FETCH);
    assert!(only(response).error_code.is_err());
}

/// Large batches are sent directly from the file to the socket. Here the same response also has small batches.
#[test]
fn large_and_small_batches_of_many_segments_are_returned_unchanged() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[("segment.bytes", "1048576")]);
    let values: Vec<Vec<u8>> = (0..40_u8).map(|n| vec![n; if n % 3 == 0 { 200_000 } else { 10 }]).collect();
    for value in &values {
        client.produced(TOPIC, 0, &Batch::of(&[value]));
    }
    let read: Vec<Vec<u8>> = client.fetch_records(TOPIC, 0).into_iter().map(|record| record.value).collect();
    assert!(read == values, "the values differ");
    assert!(broker.partition_files(TOPIC, 0, "log").len() >= 3, "several segments");
}
