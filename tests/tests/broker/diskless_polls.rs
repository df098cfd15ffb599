//! Fetches of diskless topics that require a minimum of bytes. Some wait for more bytes than there are, and others
//! begin far before the end of the log.

use std::time::Duration;

use fullbore_tests::{Batch, Broker, Client, FetchFrom, fetch_request, produce_request, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::fetch::{FetchRequest, PartitionData};

const TOPIC: &str = "diskless";
const CONFIGS: &[(&str, &str)] = &[("diskless.enable", "true")];
const SOON: Duration = Duration::from_secs(60);
/// A maximum wait in milliseconds that is longer than any test.
const LONG: i32 = 300_000;
const FETCH: i16 = 11;
/// A response size in bytes that exceeds all records of any test.
const ALL: i32 = 50 << 20;

fn poll(offset: i64, min_bytes: usize, partition_max_bytes: i32, max_wait_ms: i32) -> FetchRequest {
    let from = FetchFrom { topic: TOPIC, partition: 0, offset };
    let mut request = fetch_request(&[from], i32::try_from(min_bytes).expect("small"), max_wait_ms);
    request.max_bytes = ALL;
    request.topics[0].partitions[0].partition_max_bytes = partition_max_bytes;
    request
}

fn answered(client: &mut Client) -> PartitionData {
    let answer = client.receive::<FetchRequest>(FETCH).1.responses.remove(0).partitions.remove(0);
    assert_eq!(answer.error_code, ErrorCode::NONE);
    answer
}

fn len(answer: &PartitionData) -> usize {
    answer.records.as_ref().map_or(0, |records| records.len())
}

/// Writes `batch` `count` times. Returns how many bytes were written.
fn write(client: &mut Client, batch: &Batch, count: usize) -> usize {
    let mut request = produce_request(TOPIC, 0, batch.bytes());
    request.acks = 0;
    let before = client.latest(TOPIC, 0);
    for _ in 0..count {
        client.send(&request, 9);
    }
    wait_until("all are committed", SOON, || client.latest(TOPIC, 0) == before + count as i64);
    count * batch.bytes().len()
}

#[test]
fn polls_for_more_than_there_is_do_little_work_at_each_write() {
    let broker = Broker::start(&["diskless.puts.per.second.max=1000"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    // Batches of this size are so small that the broker copies them into responses.
    let mut all = write(&mut client, &Batch::of(&[vec![b'x'; 4_000]]), 5_000);
    let polling = |_| {
        let mut reader = broker.client();
        reader.send(&poll(0, 40 << 20, ALL, LONG), FETCH);
        reader
    };
    let _readers: Vec<_> = (0..30).map(polling).collect();
    let before = broker.processor_ticks();
    let small = Batch::of(&["small"]);
    for _ in 0..60 {
        client.produced(TOPIC, 0, &small);
    }
    all += 60 * small.bytes().len();
    let used = broker.processor_ticks() - before;
    assert!(used < 200, "{used} hundredths of a second for 60 writes");
    // A poll returns when it has its minimum of bytes, and at its deadline with the records that are there.
    let wanted = all + 3 * small.bytes().len();
    let mut reader = broker.client();
    reader.send(&poll(0, wanted, ALL, LONG), FETCH);
    for _ in 0..3 {
        client.produced(TOPIC, 0, &small);
    }
    assert_eq!(len(&answered(&mut reader)), wanted);
    reader.send(&poll(0, wanted + 1, ALL, 50), FETCH);
    assert_eq!(len(&answered(&mut reader)), wanted);
}

#[test]
fn consumer_behind_does_not_wait_at_the_end_of_a_window() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, CONFIGS);
    let batch = Batch::of(&[vec![b'x'; 100_000]]);
    write(&mut client, &batch, 600);
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    for (min_bytes, partition_max_bytes) in [(1 << 20, 1 << 20), (500_000, 1 << 20), (5 << 20, ALL)] {
        let mut offset = 0;
        // While the log has more than `min_bytes` bytes after the offset, a poll must return without waiting.
        while (600 - offset) as usize * batch.bytes().len() > min_bytes {
            client.send(&poll(offset, min_bytes, partition_max_bytes, LONG), FETCH);
            let answer = answered(&mut client);
            assert!(len(&answer) > 0, "from {offset} on");
            offset += Batch::parse_all(answer.records.expect("some").memory().expect("in one")).len() as i64;
        }
    }
}
