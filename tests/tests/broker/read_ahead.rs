//! Fetch sessions that read ahead, which is our extension. The client sends fetches without waiting, and each continues
//! where the one before it ended. All other rules of KIP-227 apply.

use fullbore_tests::{Batch, Broker, Client, wait_until};
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData};
use fullbore_wire::batch::BatchView;
use fullbore_wire::{ErrorCode, Uuid};
use std::collections::HashMap;
use std::time::Duration;

const TOPIC: &str = "ahead";
const FETCH: i16 = 18;
const PARTITIONS: i32 = 3;
const BATCHES: i64 = 20;
const IN_BATCH: i64 = 5;
/// Maximum wait of a poll in milliseconds, which is longer than any test.
const LONG_MS: i32 = 300_000;
const SOON: Duration = Duration::from_secs(60);

/// Starts a broker that has batches in three partitions.
fn broker_with_batches() -> (Broker, Client, Uuid) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let id = client.create_topic(TOPIC, PARTITIONS, &[]);
    for partition in 0..PARTITIONS {
        for _ in 0..BATCHES {
            client.produced(TOPIC, partition, &Batch::of(&["one", "two", "three", "four", "five"]));
        }
    }
    (broker, client, id)
}

/// Returns a fetch of the given partitions and offsets in a session that reads ahead.
fn request(topic_id: Uuid, (session_id, session_epoch): (i32, i32), partitions: &[(i32, i64)]) -> FetchRequest {
    let partition = |(partition, fetch_offset): &(i32, i64)| FetchPartition {
        partition: *partition,
        fetch_offset: *fetch_offset,
        partition_max_bytes: 300,
        ..Default::default()
    };
    let partitions: Vec<FetchPartition> = partitions.iter().map(partition).collect();
    let topics = match partitions.is_empty() {
        true => Vec::new(),
        false => vec![FetchTopic { topic_id, partitions, ..Default::default() }],
    };
    FetchRequest { session_id, session_epoch, read_ahead: true, max_bytes: 500, topics, ..Default::default() }
}

fn partitions(response: &FetchResponse) -> impl Iterator<Item = &PartitionData> {
    assert_eq!(response.error_code, ErrorCode::NONE);
    response.responses.iter().flat_map(|topic| &topic.partitions)
}

/// Returns the first and last offset of the records in a response, which must be whole batches. `None` if it has no
/// records.
fn offsets(data: &PartitionData) -> Option<(i64, i64)> {
    let mut bytes = data.records.as_ref().and_then(|records| records.memory()).map_or(&[][..], |bytes| bytes);
    let mut range = None;
    while !bytes.is_empty() {
        let batch = BatchView::first(bytes).expect("whole batches");
        range = Some((range.map_or(batch.base_offset(), |(first, _)| first), batch.last_offset()));
        bytes = &bytes[batch.size()..];
    }
    range
}

#[test]
fn fetches_sent_without_waiting_continue_at_the_end_of_the_former_one() {
    let (_broker, mut client, id) = broker_with_batches();
    let opened = client.call(&request(id, (0, 0), &[(0, 0), (1, 7), (2, 0)]), FETCH);
    assert_ne!(opened.session_id, 0);
    let mut answers = vec![opened];
    let session = answers[0].session_id;
    // More fetches are sent than all records need, so the last fetches find no records.
    let fetches = 80;
    (1..=fetches).for_each(|epoch| _ = client.send(&request(id, (session, epoch), &[]), FETCH));
    answers.extend((1..=fetches).map(|_| client.receive::<FetchRequest>(FETCH).1));
    let mut next = HashMap::from([(0, 0), (1, 7), (2, 0)]);
    for data in answers.iter().flat_map(partitions) {
        assert_eq!(data.error_code, ErrorCode::NONE);
        let next = next.get_mut(&data.partition_index).expect("it was asked for");
        assert_eq!(data.from_offset, *next, "partition {}", data.partition_index);
        if let Some((first, last)) = offsets(data) {
            assert!(first <= *next && last >= *next);
            *next = last + 1;
        }
    }
    assert_eq!(next, (0..PARTITIONS).map(|partition| (partition, BATCHES * IN_BATCH)).collect());
    let firsts: Vec<i32> =
        answers[..4].iter().map(|of| partitions(of).next().expect("records").partition_index).collect();
    assert_ne!(firsts[0], firsts[1], "each has its turn");
}

#[test]
fn a_partition_whose_offset_is_deleted_leaves_the_session_until_it_is_named_again() {
    let (_broker, mut client, id) = broker_with_batches();
    let session = client.call(&request(id, (0, 0), &[(0, 0)]), FETCH).session_id;
    client.delete_records(TOPIC, 0, 50);
    let refused = client.call(&request(id, (session, 1), &[]), FETCH);
    let refused: Vec<_> = partitions(&refused).map(|data| (data.partition_index, data.error_code)).collect();
    assert_eq!(refused, [(0, ErrorCode::OFFSET_OUT_OF_RANGE)]);
    let after = client.call(&request(id, (session, 2), &[]), FETCH);
    assert_eq!(partitions(&after).count(), 0, "once is enough");
    let again = client.call(&request(id, (session, 3), &[(0, 50)]), FETCH);
    assert_eq!(partitions(&again).map(|data| data.from_offset).collect::<Vec<_>>(), [50]);
    let on = client.call(&request(id, (session, 4), &[]), FETCH);
    let (_, last) = partitions(&again).find_map(offsets).expect("records");
    assert_eq!(partitions(&on).map(|data| data.from_offset).collect::<Vec<_>>(), [last + 1]);
}

#[test]
fn queued_long_polls_return_new_records_one_after_the_other() {
    let (broker, mut client, id) = broker_with_batches();
    let end = BATCHES * IN_BATCH;
    let session = client.call(&request(id, (0, 0), &[(0, end), (1, end)]), FETCH).session_id;
    let mut writer = broker.client();
    for epoch in 1..=3 {
        let poll = FetchRequest { max_wait_ms: LONG_MS, min_bytes: 1, ..request(id, (session, epoch), &[]) };
        client.send(&poll, FETCH);
    }
    for (partition, from) in [(1, end), (0, end), (1, end + 1)] {
        writer.produced(TOPIC, partition, &Batch::of(&["late"]));
        let (_, found) = client.receive::<FetchRequest>(FETCH);
        let found: Vec<_> = partitions(&found).map(|data| (data.partition_index, data.from_offset)).collect();
        assert_eq!(found, [(partition, from)]);
    }
}

#[test]
fn partition_named_with_read_on_changes_its_limit_and_keeps_its_offset() {
    let (_broker, mut client, id) = broker_with_batches();
    let opened = client.call(&request(id, (0, 0), &[(0, 0)]), FETCH);
    let (_, last) = partitions(&opened).find_map(offsets).expect("records");
    let mut larger = request(id, (opened.session_id, 1), &[(0, 0), (1, 0)]);
    for partition in &mut larger.topics[0].partitions {
        (partition.read_on, partition.partition_max_bytes) = (true, 1 << 20);
    }
    larger.max_bytes = 1 << 20;
    let rest = client.call(&larger, FETCH);
    let rest: Vec<_> = partitions(&rest).map(|data| (data.partition_index, data.from_offset, offsets(data))).collect();
    let end = BATCHES * IN_BATCH;
    assert_eq!(rest, [(0, last + 1, Some((last + 1, end - 1)))], "partition 1 is not in the session");
}

#[test]
fn session_without_read_ahead_keeps_its_offset() {
    let (_broker, mut client, id) = broker_with_batches();
    let plain = |session, named: &[(i32, i64)]| FetchRequest { read_ahead: false, ..request(id, session, named) };
    let opened = client.call(&plain((0, 0), &[(0, 0)]), FETCH);
    for epoch in 1..3 {
        let again = client.call(&plain((opened.session_id, epoch), &[]), FETCH);
        let again = partitions(&again).next().expect("the same records");
        let first = BatchView::first(again.records.as_ref().and_then(|of| of.memory()).expect("records"));
        assert_eq!((again.from_offset, first.expect("one is whole").base_offset()), (-1, 0));
    }
}

#[test]
fn full_response_does_not_wait_for_the_minimum() {
    let (_broker, mut client, id) = broker_with_batches();
    let poll = |session, min_bytes, named: &[(i32, i64)]| FetchRequest {
        max_wait_ms: LONG_MS,
        min_bytes,
        ..request(id, session, named)
    };
    let opened = client.call(&poll((0, 0), 1, &[(0, 0), (1, 95)]), FETCH);
    // In the first fetch, `min_bytes` exceeds the limit of a partition. In the second, it exceeds the limit of the
    // response.
    for (epoch, min_bytes) in [(1, 400), (2, 1 << 20)] {
        let full = client.call(&poll((opened.session_id, epoch), min_bytes, &[]), FETCH);
        assert!(partitions(&full).any(|data| offsets(data).is_some()));
    }
}

#[test]
fn a_session_that_reads_ahead_ends_with_its_connection() {
    let (broker, mut client, id) = broker_with_batches();
    let end = BATCHES * IN_BATCH;
    let session = client.call(&request(id, (0, 0), &[(0, end)]), FETCH).session_id;
    for epoch in 1..=3 {
        let poll = FetchRequest { max_wait_ms: LONG_MS, min_bytes: 1, ..request(id, (session, epoch), &[]) };
        client.send(&poll, FETCH);
    }
    client.reset();
    let mut other = broker.client();
    wait_until("the session is gone", SOON, || {
        let requested = other.call(&request(id, (session, i32::MAX), &[]), FETCH);
        requested.error_code == ErrorCode::FETCH_SESSION_ID_NOT_FOUND
    });
}

#[test]
fn response_takes_an_oversized_batch_if_it_fits_and_ends_otherwise() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let id = client.create_topic(TOPIC, PARTITIONS, &[]);
    let value = "x".repeat(400);
    (0..PARTITIONS).for_each(|partition| _ = client.produced(TOPIC, partition, &Batch::of(&[&value])));
    let requested = FetchRequest { max_bytes: 1200, ..request(id, (0, 0), &[(0, 0), (1, 0), (2, 0)]) };
    let opened = client.call(&requested, FETCH);
    let on = client.call(&FetchRequest { max_bytes: 1200, ..request(id, (opened.session_id, 1), &[]) }, FETCH);
    let with_records = |answer: &FetchResponse| -> Vec<i32> {
        partitions(answer).filter(|data| offsets(data).is_some()).map(|data| data.partition_index).collect()
    };
    assert_eq!((with_records(&opened), with_records(&on)), (vec![0, 1], vec![2]));
}
