//! Reads with read_committed: where they end, which aborted transactions they list, and what wakes a long poll.

use super::{TOPIC, one};
use fullbore_tests::{Batch, Broker, Client, FetchFrom, NO_RETENTION, Protocol, Transactional, fetch_request};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::fetch::FetchRequest;

/// A maximum wait in milliseconds that is longer than the client's read timeout.
const FOREVER_MS: i32 = 300_000;

/// Returns the first offsets of the aborted transactions that a fetch at `offset` lists.
fn aborted(client: &mut Client, offset: i64) -> Vec<i64> {
    let data = client.fetch_committed(TOPIC, 0, offset);
    assert_eq!(data.error_code, ErrorCode::NONE);
    let mut first: Vec<i64> =
        data.aborted_transactions.unwrap_or_default().iter().map(|entry| entry.first_offset).collect();
    first.sort_unstable();
    first
}

#[test]
fn stable_offset_is_the_first_offset_of_the_oldest_open_transaction() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let [mut eldest, mut second] = super::two_open(&mut client);
    second.end(&mut client, true);
    assert_eq!(client.stable(TOPIC, 0), 1, "the eldest is open still");
    assert_eq!(client.committed_texts(TOPIC, 0), ["plain"]);
    let data = client.fetch_committed(TOPIC, 0, 0);
    assert_eq!((data.last_stable_offset, data.high_watermark), (1, 5));
    let uncommitted = client.fetch(TOPIC, 0, 0);
    assert_eq!((uncommitted.last_stable_offset, uncommitted.high_watermark), (1, 5));
    assert_eq!(uncommitted.aborted_transactions.unwrap_or_default(), []);
    eldest.end(&mut client, false);
    assert_eq!((client.stable(TOPIC, 0), client.latest(TOPIC, 0)), (6, 6));
    assert_eq!(client.committed_texts(TOPIC, 0), ["plain", "2", "plain, too"]);
}

#[test]
fn fetch_names_only_aborted_transactions_that_overlap_its_records() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut within = Transactional::begin(&mut client, "within", Protocol::New);
    let mut around = Transactional::begin(&mut client, "around", Protocol::New);
    one(&mut client, &mut within, "aborted before", false); // 0, marker 1
    around.write(&mut client, TOPIC, 0, &["around"]); // 2
    one(&mut client, &mut within, "aborted within", false); // 3, marker 4
    one(&mut client, &mut within, "committed within", true); // 5, marker 6
    around.end(&mut client, false); // marker 7
    let last = one(&mut client, &mut within, "aborted after", false); // 8, marker 9
    assert_eq!((last, client.stable(TOPIC, 0)), (8, 10));
    assert_eq!(aborted(&mut client, 0), [0, 2, 3, 8]);
    assert_eq!(aborted(&mut client, 1), [0, 2, 3, 8], "the marker of the first");
    assert_eq!(aborted(&mut client, 2), [2, 3, 8]);
    assert_eq!(aborted(&mut client, 5), [2, 8]);
    assert_eq!(aborted(&mut client, 7), [2, 8]);
    assert_eq!(aborted(&mut client, 8), [8]);
    assert_eq!(aborted(&mut client, 10), [0; 0]);
    assert_eq!(client.committed_texts(TOPIC, 0), ["committed within"]);
    // The response has only the first batch, so it must list only the aborted transactions that overlap this batch.
    client.send_committed_small(TOPIC, 3);
    let data = client.receive_long_poll();
    let batches = Batch::parse_all(data.records.as_ref().and_then(|records| records.memory()).expect("read"));
    let first: Vec<i64> =
        data.aborted_transactions.unwrap_or_default().iter().map(|entry| entry.first_offset).collect();
    assert_eq!(batches.len(), 1);
    assert!(first.contains(&3) && !first.contains(&0) && !first.contains(&8), "{first:?}");
}

/// Fetches with limits so small that a response has only one batch.
trait Small {
    fn send_committed_small(&mut self, topic: &str, offset: i64);
}

impl Small for Client {
    fn send_committed_small(&mut self, topic: &str, offset: i64) {
        let mut request = fetch_request(&[FetchFrom { topic, partition: 0, offset }], 0, 0);
        request.isolation_level = 1;
        request.topics[0].partitions[0].partition_max_bytes = 1;
        self.send(&request, 12);
    }
}

#[test]
fn aborted_transactions_are_named_over_many_segments_and_after_restarts() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[("segment.bytes", "1048576")]);
    let mut long = Transactional::begin(&mut client, "long", Protocol::New);
    let mut short = Transactional::begin(&mut client, "short", Protocol::Old);
    let first = long.write(&mut client, TOPIC, 0, &["begins segments ago"]);
    let filler = "x".repeat(100_000);
    let mut expected = Vec::new();
    for n in 0..30 {
        let value = format!("{n} {filler}");
        one(&mut client, &mut short, &value, n % 2 == 0);
        if n % 2 == 0 {
            expected.push(value);
        }
    }
    long.end(&mut client, false);
    assert!(broker.partition_files(TOPIC, 0, "log").len() > 2);
    let mut client = broker.client();
    for end in [None, Some(Broker::stop as fn(&mut Broker)), Some(Broker::kill)] {
        if let Some(end) = end {
            end(&mut broker);
            broker.restart();
            client = broker.client();
        }
        assert!(client.committed_texts(TOPIC, 0) == expected);
        for offset in 0..10 {
            assert!(aborted(&mut client, offset).contains(&first), "offset {offset}");
        }
        assert_eq!(client.stable(TOPIC, 0), client.latest(TOPIC, 0));
    }
}

#[test]
fn long_poll_ends_by_the_marker_and_not_by_the_records() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut producer = Transactional::begin(&mut client, "wakes", Protocol::New);
    for is_commit in [true, false] {
        let mut consumer = broker.client();
        let at = client.latest(TOPIC, 0);
        consumer.send_committed_poll(TOPIC, 0, at, 1, FOREVER_MS);
        let mut other = broker.client();
        other.send_long_poll(TOPIC, 0, at);
        producer.write(&mut client, TOPIC, 0, &["waits for its marker"]);
        other.receive_long_poll();
        producer.end(&mut client, is_commit);
        let data = consumer.receive_long_poll();
        let batches = Batch::parse_all(data.records.as_ref().and_then(|records| records.memory()).expect("read"));
        assert_eq!(batches.len(), 2, "the record and its marker");
        let first: Vec<i64> =
            data.aborted_transactions.unwrap_or_default().iter().map(|entry| entry.first_offset).collect();
        assert_eq!(first, if is_commit { vec![] } else { vec![at] });
    }
}

#[test]
fn offsets_are_listed_up_to_the_stable_one() {
    let broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    client.produced(TOPIC, 0, &Batch::at(1_000_000, &["plain"]));
    let mut producer = Transactional::begin(&mut client, "listed", Protocol::New);
    let batch =
        Batch { attributes: 0x10, ..Batch::at(2_000_000, &["open"]) }.from_producer(producer.id, producer.epoch, 0);
    assert_eq!(producer.send(&mut client, TOPIC, 0, &batch).error_code, ErrorCode::NONE);
    for (timestamp, offset) in [(-1, 1), (-2, 0), (500_000, 0), (1_500_000, -1)] {
        let listed = client.list_stable(TOPIC, 0, timestamp);
        assert_eq!((listed.error_code, listed.offset), (ErrorCode::NONE, offset), "{timestamp}");
    }
    assert_eq!(client.list_offset(TOPIC, 0, 1_500_000).offset, 1, "read_uncommitted");
    producer.end(&mut client, true);
    assert_eq!(client.list_stable(TOPIC, 0, 1_500_000).offset, 1);
    assert_eq!(client.stable(TOPIC, 0), 3);
}

/// In a session, a response leaves out unchanged partitions. A partition whose last stable offset has moved must count
/// as changed.
#[test]
fn session_returns_a_partition_again_when_its_stable_offset_moves() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, &[]);
    let mut producer = Transactional::begin(&mut client, "session", Protocol::New);
    let request = |session_id, session_epoch, topics| FetchRequest {
        session_id,
        session_epoch,
        isolation_level: 1,
        min_bytes: 1,
        max_wait_ms: if session_epoch == 0 { 0 } else { 30_000 },
        topics,
        ..Default::default()
    };
    let at = |offset| fetch_request(&[FetchFrom { topic: TOPIC, partition: 0, offset }], 1, 0).topics;
    let mut consumer = broker.client();
    let session = consumer.call(&request(0, 0, at(0)), 12).session_id;
    let mut offset = 0;
    for epoch in 1..=4 {
        let is_commit = epoch % 2 == 0;
        consumer.send(&request(session, epoch, at(offset)), 12);
        producer.write(&mut client, TOPIC, 0, &["in a session"]);
        producer.end(&mut client, is_commit);
        let response = consumer.receive::<FetchRequest>(12).1;
        assert_eq!((response.error_code, response.responses.len()), (ErrorCode::NONE, 1));
        let data = &response.responses[0].partitions[0];
        assert_eq!((data.last_stable_offset, data.high_watermark), (offset + 2, offset + 2));
        assert_eq!(data.aborted_transactions.as_ref().map_or(0, Vec::len), usize::from(!is_commit));
        offset += 2;
    }
}
