//! Consumers that read while producers write and records are deleted. Each record must arrive once and in order,
//! whatever happens to the files.

use fullbore_tests::{Batch, Broker, Client, FetchFrom, fetch_request, wait_until};
use fullbore_wire::ErrorCode;
use std::time::Duration;

const TOPIC: &str = "followed";
const FETCH: i16 = 12;
const SOON: Duration = Duration::from_secs(30);

/// Reads from offset 0 until `count` records have arrived. The offsets must have no gap, and each value must begin with
/// its record's offset.
fn follow(mut client: Client, count: i64) {
    let mut offset = 0;
    while offset < count {
        let request = fetch_request(&[FetchFrom { topic: TOPIC, partition: 0, offset }], 1, 30_000);
        let mut response = client.call(&request, FETCH);
        let data = response.responses.remove(0).partitions.remove(0);
        assert_eq!(data.error_code, ErrorCode::NONE);
        let records = data.records.unwrap_or_default();
        for batch in Batch::parse_all(records.memory().expect("read from a socket")) {
            for record in batch.records {
                assert_eq!(record.offset, offset, "no gap and no step back");
                assert!(record.text().starts_with(&format!("{offset} ")), "record {offset}");
                assert!(record.offset < data.high_watermark);
                offset += 1;
            }
        }
    }
}

fn numbered(first: i64, count: i64) -> Batch {
    let value = |n: i64| {
        let mut value = format!("{n} ").into_bytes();
        value.resize(100 + usize::try_from(n * 131 % 5000).expect("positive"), b'.');
        value
    };
    Batch::of(&(first..first + count).map(value).collect::<Vec<_>>())
}

#[test]
fn consumers_behind_a_producer_over_rolling_segments_see_each_record_once() {
    const RECORDS: i64 = 4000;
    let broker = Broker::start(&[]);
    let mut writer = broker.client();
    writer.create_topic(TOPIC, 1, &[("segment.bytes", "1048576"), ("index.interval.bytes", "1000")]);
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let client = broker.client();
            std::thread::spawn(move || follow(client, RECORDS))
        })
        .collect();
    for first in (0..RECORDS).step_by(4) {
        assert_eq!(writer.produced(TOPIC, 0, &numbered(first, 4)), first);
    }
    for reader in readers {
        reader.join().expect("a reader saw something else");
    }
    assert!(broker.partition_files(TOPIC, 0, "log").len() > 5, "segments rolled meanwhile");
}

/// retention.bytes deletes closed segments. After that their offsets are out of range and all other records are
/// unchanged, even after a kill.
#[test]
fn retention_moves_the_log_start_for_good() {
    let mut broker = Broker::start(&["log.retention.check.interval.ms=100", "log.segment.delete.delay.ms=0"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[("segment.bytes", "1048576"), ("retention.bytes", "1500000")]);
    for n in 0..10_u8 {
        client.produced(TOPIC, 0, &Batch::of(&[vec![n; 500_000]]));
    }
    wait_until("old segments are deleted", SOON, || client.earliest(TOPIC, 0) >= 6);
    let start = client.earliest(TOPIC, 0);
    wait_until("their files are gone", SOON, || broker.partition_files(TOPIC, 0, "log").len() <= 3);
    assert_eq!(client.fetch(TOPIC, 0, start - 1).error_code, ErrorCode::OFFSET_OUT_OF_RANGE);
    for end in [Broker::kill, Broker::stop] {
        end(&mut broker);
        broker.restart();
        let mut client = broker.client();
        assert_eq!((client.earliest(TOPIC, 0), client.latest(TOPIC, 0)), (start, 10));
        let kept: Vec<i64> = client.fetch_records(TOPIC, 0).iter().map(|record| i64::from(record.value[0])).collect();
        assert_eq!(kept, (start..10).collect::<Vec<_>>());
    }
}
