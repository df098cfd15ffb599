//! Compaction as consumers see it: the records that they get while it runs, afterwards, and after a kill during a
//! compaction.

use crate::disk_full::SmallDisk;
use bytes::{Bytes, BytesMut};
use fullbore_tests::{Broker, Client, produce_request, wait_until};
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchTopic, PartitionData};
use fullbore_wire::apis::produce::PartitionProduceResponse;
use fullbore_wire::batch::{BatchBuilder, Compression, RecordIter, Stamp, batches, decompress};
use fullbore_wire::{ErrorCode, Records, Uuid};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DEADLINE: Duration = Duration::from_secs(60);
const PRODUCE: i16 = 8;
/// The first version of Fetch in which a session may read ahead.
const READ_AHEAD: i16 = 18;
const KEYS: u32 = 50;
const SETTINGS: &[&str] = &["log.cleaner.backoff.ms=20", "log.segment.delete.delay.ms=100"];
const COMPACTED: &[(&str, &str)] =
    &[("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0.01"), ("segment.bytes", "1048576")];

/// The key and value of a record to be written.
type Row<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);
/// The keys and values of records that were read, by offset.
type Rows = BTreeMap<i64, (Vec<u8>, Option<Vec<u8>>)>;

fn batch(codec: Compression, stamp: Stamp, rows: &[Row<'_>]) -> Bytes {
    let mut builder = BatchBuilder::new(BytesMut::new(), codec, None);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64;
    rows.iter().for_each(|(key, value)| builder.append(now, *key, *value, &[]));
    builder.seal(stamp).expect("sealed").0.freeze()
}

fn produce(client: &mut Client, topic: &str, bytes: Bytes) -> PartitionProduceResponse {
    let mut response = client.call(&produce_request(topic, 0, bytes), PRODUCE);
    response.responses.remove(0).partition_responses.remove(0)
}

/// Returns a few hundred records for the round `number`. Each value contains the record's key and the round.
fn round_of(number: u32) -> Vec<(Vec<u8>, Vec<u8>)> {
    let row = |at: u32| {
        let key = (number.wrapping_mul(7).wrapping_add(at)) % KEYS;
        let mut value = format!("{number}-{at}-").into_bytes();
        value.resize(500, b'.');
        (format!("key-{key}").into_bytes(), value)
    };
    (0..200).map(row).collect()
}

fn append_round(client: &mut Client, topic: &str, number: u32, stamp: Stamp, written: &mut Rows) {
    let rows = round_of(number);
    let refs: Vec<_> = rows.iter().map(|(key, value)| (Some(&key[..]), Some(&value[..]))).collect();
    let codec = [Compression::None, Compression::Lz4, Compression::Snappy][number as usize % 3];
    let answer = produce(client, topic, batch(codec, stamp, &refs));
    assert_eq!(answer.error_code, ErrorCode::NONE);
    for (offset, (key, value)) in (answer.base_offset..).zip(rows) {
        written.insert(offset, (key, Some(value)));
    }
}

/// Reads all records as a consumer does. Every fetch below the end must return records.
fn consume(client: &mut Client, topic: &str) -> Rows {
    let mut rows = Rows::new();
    let mut offset = 0;
    loop {
        let data = client.fetch(topic, 0, offset);
        assert_eq!(data.error_code, ErrorCode::NONE);
        let bytes = match data.records {
            Some(Records::Memory(bytes)) => bytes,
            _ => Bytes::new(),
        };
        if bytes.is_empty() {
            assert!(offset >= data.high_watermark, "stuck at {offset} of {}", data.high_watermark);
            return rows;
        }
        for batch in batches(&bytes) {
            let batch = batch.expect("a batch");
            batch.check_crc().expect("a checksum");
            offset = batch.last_offset() + 1;
            let codec = batch.compression().expect("a codec");
            let payload = if batch.record_count() == 0 {
                Bytes::new()
            } else {
                decompress(codec, batch.payload(), 1 << 24).expect("opens")
            };
            for record in RecordIter::new(&payload, batch.record_count()) {
                let record = record.expect("a record");
                let row = (record.key.expect("a key").to_vec(), record.value.map(<[u8]>::to_vec));
                rows.insert(record.offset(&batch), row);
            }
        }
    }
}

/// Checks that every found record was written, and that the newest record of each key is among them.
fn assert_holds(found: &Rows, written: &Rows) {
    for (offset, row) in found {
        assert_eq!(written.get(offset), Some(row), "at {offset}");
    }
    let newest = |rows: &Rows| {
        let newest: BTreeMap<_, _> = rows.iter().map(|(offset, (key, _))| (key.clone(), *offset)).collect();
        newest
    };
    assert_eq!(newest(found), newest(written));
}

fn log_bytes(broker: &Broker, topic: &str) -> u64 {
    let files = broker.partition_files(topic, 0, "log");
    files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|file| file.len()).sum()
}

/// On this disk, only compaction can free space. It needs more space than is free to write the newest record of each
/// key, but less than the disk reserve.
#[test]
fn a_disk_full_of_compacted_topics_has_free_space_after_compaction() {
    let Some(disk) = SmallDisk::mount(16 << 20) else { return };
    let mut broker = Broker::start_in(&disk.path().join("data"), &["log.cleaner.enable=false"]);
    let mut client = broker.client();
    client.create_topic("t", 1, COMPACTED);
    let mut written = Rows::new();
    let write = |client: &mut Client, number: usize, written: &mut Rows| {
        let (key, value) = (format!("key-{}", number % 50).into_bytes(), vec![b'a' + (number % 26) as u8; 12_000]);
        let answer = produce(client, "t", batch(Compression::None, Stamp::NONE, &[(Some(&key), Some(&value))]));
        if answer.error_code == ErrorCode::NONE {
            written.insert(answer.base_offset, (key, Some(value)));
        }
        answer.error_code
    };
    let mut number = 0;
    while write(&mut client, number, &mut written) == ErrorCode::NONE {
        number += 1;
    }
    broker.stop();
    broker.restart_with(SETTINGS);
    let mut client = broker.client();
    wait_until("there is room", DEADLINE, || {
        (0..100).all(|more| write(&mut client, number + more, &mut written) == ErrorCode::NONE)
    });
    wait_until("all of it is compacted", DEADLINE, || log_bytes(&broker, "t") < 4 << 20);
    assert_holds(&consume(&mut client, "t"), &written);
}

#[test]
fn a_log_is_compacted_while_it_is_written_and_read_and_offsets_stay() {
    let broker = Broker::start(SETTINGS);
    let mut client = broker.client();
    client.create_topic("t", 1, COMPACTED);
    let (done, seen) = (AtomicBool::new(false), AtomicI64::new(0));
    let mut written = Rows::new();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut client = broker.client();
            while !done.load(Ordering::Relaxed) {
                let rows = consume(&mut client, "t");
                seen.fetch_add(rows.len() as i64, Ordering::Relaxed);
            }
        });
        for number in 0..300 {
            append_round(&mut client, "t", number, Stamp::NONE, &mut written);
        }
        wait_until("the log is compacted", DEADLINE, || log_bytes(&broker, "t") < 3 << 20);
        done.store(true, Ordering::Relaxed);
        reader.join().expect("the reader was never stuck");
    });
    assert!(seen.into_inner() > 0);
    let found = consume(&mut client, "t");
    assert_holds(&found, &written);
    assert!(found.len() < written.len() / 4, "{} of {} are left", found.len(), written.len());
    assert_eq!(client.latest("t", 0), written.len() as i64);
    assert_eq!(client.earliest("t", 0), 0);
}

/// Reads the whole log in a session that reads ahead. Returns the responses, each of which has one batch.
fn read_ahead(client: &mut Client, topic_id: Uuid) -> Vec<PartitionData> {
    let (mut session, mut answers) = ((0, 0), Vec::new());
    loop {
        let partition = FetchPartition { partition_max_bytes: 1, ..Default::default() };
        let topic = FetchTopic { topic_id, partitions: vec![partition], ..Default::default() };
        let (session_id, session_epoch) = session;
        let topics = if session_epoch == 0 { vec![topic] } else { Vec::new() };
        let sized = FetchRequest { max_bytes: 1, min_bytes: 1, topics, ..Default::default() };
        let request = FetchRequest { session_id, session_epoch, read_ahead: true, ..sized };
        let mut answer = client.call(&request, READ_AHEAD);
        assert_eq!(answer.error_code, ErrorCode::NONE);
        session = (answer.session_id, session_epoch + 1);
        let found = answer.responses.pop().and_then(|mut topic| topic.partitions.pop());
        match found.filter(|data| data.records.as_ref().is_some_and(|records| !records.is_empty())) {
            Some(data) => answers.push(data),
            None => {
                client.call(&FetchRequest { session_id, session_epoch: -1, ..Default::default() }, READ_AHEAD);
                return answers;
            }
        }
    }
}

#[test]
fn a_fetch_that_ends_before_a_hole_of_a_compacted_log_returns_a_next_offset_behind_the_hole() {
    let broker = Broker::start(SETTINGS);
    let mut client = broker.client();
    let id = client.create_topic("t", 1, COMPACTED);
    let alone: &[Row<'_>] = &[(Some(b"alone"), Some(b"stays"))];
    assert_eq!(produce(&mut client, "t", batch(Compression::None, Stamp::NONE, alone)).error_code, ErrorCode::NONE);
    let mut written = Rows::new();
    (0..60).for_each(|number| append_round(&mut client, "t", number, Stamp::NONE, &mut written));
    wait_until("an answer ends before a hole", DEADLINE, || {
        let answers = read_ahead(&mut client, id);
        let mut next = 0;
        let ends = answers.iter().map(|data| {
            assert_eq!((data.error_code, data.from_offset), (ErrorCode::NONE, next));
            next = data.next_offset;
            let bytes = data.records.as_ref().and_then(|records| records.memory()).expect("records");
            let last = batches(bytes).map(|batch| batch.expect("whole").last_offset()).last().expect("a batch");
            assert!(next > last, "{next} is behind {last}");
            next > last + 1
        });
        let ends_before_a_hole = ends.fold(false, |any, ends| any | ends);
        assert_eq!(next, 1 + written.len() as i64, "nothing is left out");
        ends_before_a_hole
    });
}

#[test]
fn a_kill_amid_compaction_loses_no_newest_record_and_no_producer() {
    let mut broker = Broker::start(SETTINGS);
    let mut client = broker.client();
    client.create_topic("t", 1, COMPACTED);
    let producer_id = client.init_producer_id();
    let mut written = Rows::new();
    let mut stamp = Stamp { producer_id, producer_epoch: 0, base_sequence: 0 };
    for number in 0..160 {
        append_round(&mut client, "t", number, stamp, &mut written);
        stamp.base_sequence += 200;
        if number % 8 == 7 {
            broker.kill();
            broker.restart();
            client = broker.client();
            assert_holds(&consume(&mut client, "t"), &written);
        }
    }
    wait_until("the log is compacted", DEADLINE, || log_bytes(&broker, "t") < 3 << 20);
    broker.kill();
    for file in broker.partition_files("t", 0, "snapshot") {
        std::fs::remove_file(file).expect("removed");
    }
    broker.restart();
    client = broker.client();
    assert_holds(&consume(&mut client, "t"), &written);
    append_round(&mut client, "t", 1000, stamp, &mut written);
    assert_holds(&consume(&mut client, "t"), &written);
}

#[test]
fn records_without_a_key_are_refused_one_by_one_and_only_in_a_compacted_topic() {
    let broker = Broker::start(SETTINGS);
    let mut client = broker.client();
    client.create_topic("t", 1, COMPACTED);
    client.create_topic("plain", 1, &[]);
    let rows: &[Row<'_>] = &[(Some(b"k"), Some(b"v")), (None, Some(b"v")), (None, None)];
    for codec in [Compression::None, Compression::Zstd] {
        let answer = produce(&mut client, "t", batch(codec, Stamp::NONE, rows));
        assert_eq!(answer.error_code, ErrorCode::INVALID_RECORD);
        let reported: Vec<_> = answer.record_errors.iter().map(|error| error.batch_index).collect();
        assert_eq!(reported, [1, 2]);
        let message = answer.record_errors[0].batch_index_error_message.as_deref().unwrap_or_default();
        assert!(message.contains("cannot accept message without key in topic partition t-0"), "{message}");
        assert_eq!(produce(&mut client, "plain", batch(codec, Stamp::NONE, rows)).error_code, ErrorCode::NONE);
    }
    assert_eq!(client.latest("t", 0), 0);
}

/// A compressed batch of a thousand records without keys takes 100 bytes, but the list of its record errors takes 200
/// KB.
#[test]
fn record_errors_of_one_response_are_bounded_whatever_the_number_of_its_batches() {
    let broker = Broker::start(SETTINGS);
    let mut client = broker.client();
    client.create_topic("t", 1, COMPACTED);
    let keyless = batch(Compression::Zstd, Stamp::NONE, &[(None, None); 1000]);
    let of_one = |index| fullbore_wire::apis::produce::PartitionProduceData {
        index,
        records: Some(Records::Memory(keyless.clone())),
        ..Default::default()
    };
    let mut request = produce_request("t", 0, Bytes::new());
    request.topic_data[0].partition_data = (0..300).map(|_| of_one(0)).collect();
    let answered = client.call(&request, PRODUCE).responses.remove(0).partition_responses;
    assert_eq!(answered.len(), 300);
    assert!(answered.iter().all(|answer| answer.error_code == ErrorCode::INVALID_RECORD));
    assert_eq!(answered[0].record_errors.len(), 1000);
    assert_eq!(answered.iter().map(|answer| answer.record_errors.len()).sum::<usize>(), 1000);
}

#[test]
fn a_topic_set_to_compact_is_compacted_and_expired_tombstones_go() {
    const TOPIC: i8 = 2;
    let broker = Broker::start(SETTINGS);
    let mut client = broker.client();
    client.create_topic("t", 1, &[("segment.bytes", "1048576"), ("delete.retention.ms", "0")]);
    let mut written = Rows::new();
    for number in 0..30 {
        append_round(&mut client, "t", number, Stamp::NONE, &mut written);
    }
    let before = consume(&mut client, "t");
    assert_eq!(before.len(), written.len());
    let keys: Vec<_> = (0..KEYS).map(|key| format!("key-{key}").into_bytes()).collect();
    let tombstones: Vec<_> = keys.iter().map(|key| (Some(&key[..]), None)).collect();
    assert_eq!(
        produce(&mut client, "t", batch(Compression::None, Stamp::NONE, &tombstones)).error_code,
        ErrorCode::NONE
    );
    client.set_config(TOPIC, "t", "min.cleanable.dirty.ratio", "0.01");
    client.set_config(TOPIC, "t", "cleanup.policy", "compact");
    // The test writes other keys until compaction removes the tombstones.
    let mut number: u32 = 0;
    wait_until("the tombstones are gone", DEADLINE, || {
        let other = format!("other-{}", number % 3).into_bytes();
        let answer = produce(
            &mut client,
            "t",
            batch(Compression::None, Stamp::NONE, &[(Some(&other[..]), Some(&[b'x'; 200_000][..]))]),
        );
        assert_eq!(answer.error_code, ErrorCode::NONE);
        number += 1;
        number.is_multiple_of(5) && consume(&mut client, "t").values().all(|(key, _)| key.starts_with(b"other"))
    });
    assert_eq!(client.latest("t", 0), 30 * 200 + i64::from(KEYS) + i64::from(number));
}

#[test]
fn a_damaged_batch_makes_its_partition_uncleanable_and_others_go_on() {
    let mut broker = Broker::start(SETTINGS);
    let mut client = broker.client();
    let mut written = Rows::new();
    for topic in ["bad", "good"] {
        client.create_topic(topic, 1, &[("segment.bytes", "1048576"), ("min.cleanable.dirty.ratio", "0.01")]);
        for number in 0..30 {
            append_round(&mut client, topic, number, Stamp::NONE, &mut written);
        }
    }
    broker.stop();
    let first = broker.partition_files("bad", 0, "log").remove(0);
    let mut bytes = std::fs::read(&first).expect("read");
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&first, &bytes).expect("written");
    broker.restart();
    let mut client = broker.client();
    for topic in ["bad", "good"] {
        client.set_config(2, topic, "cleanup.policy", "compact");
    }
    wait_until("the good one is compacted", DEADLINE, || log_bytes(&broker, "good") < 3 << 20);
    wait_until("the bad one is told of", DEADLINE, || broker.stderr().contains("damaged at byte"));
    assert_eq!(std::fs::read(&first).expect("read"), bytes, "nothing has touched it");
    assert_eq!(client.latest("bad", 0), 6000);
}
