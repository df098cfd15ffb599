//! Values of `compression.type` other than `producer`. The broker stores batches with the topic's codec, as Kafka does.
//!
//! Tests in `wire` check how a batch is rewritten record by record. The cost of large batches for other clients is
//! tested in `recompression_bounds`.

use crate::reorder;
use bytes::{Bytes, BytesMut};
use fullbore_tests::{Broker, Client, NO_RETENTION, alter_resource, produce_request, wait_until};
use fullbore_wire::apis::produce::{PartitionProduceResponse, ProduceRequest};
use fullbore_wire::batch::{
    BatchBuilder, BatchView, Compression, HEADER_LEN, Header, Stamp, TimestampType, batches, compress, crc32c,
    decompress,
};
use fullbore_wire::{ErrorCode, Records};
use std::time::Duration;

const PRODUCE: i16 = 9;
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const SOON: Duration = Duration::from_secs(30);
const NOW: i64 = 1_700_000_000_000;
const CODECS: [(&str, Compression); 5] = [
    ("uncompressed", Compression::None),
    ("gzip", Compression::Gzip),
    ("snappy", Compression::Snappy),
    ("lz4", Compression::Lz4),
    ("zstd", Compression::Zstd),
];

/// Returns a batch of forty records with keys, headers and timestamps, some of which are null. The third record is the
/// newest.
pub fn batch(codec: Compression, stamp: Stamp) -> Bytes {
    let mut builder = BatchBuilder::new(BytesMut::new(), codec, None);
    for at in 0..40_u8 {
        let value = [at % 7; 60];
        let header = Header { key: b"of", value: (at % 5 != 0).then_some(&value[..3]) };
        let time = if at == 2 { NOW + 1000 } else { NOW + i64::from(at) };
        let value = (at % 3 != 0).then_some(&value[..]);
        builder.append(time, Some(&[at]), value, &[header; 2][..usize::from(at % 3)]);
    }
    builder.seal(stamp).expect("sealed").0.freeze()
}

/// Returns a batch of one record of `len` repeating bytes.
fn large(codec: Compression, len: usize) -> Bytes {
    let mut builder = BatchBuilder::new(BytesMut::new(), codec, None);
    let value: Vec<u8> = b"the same words again ".iter().copied().cycle().take(len).collect();
    builder.append(NOW, Some(b"k"), Some(&value), &[]);
    builder.seal(Stamp::NONE).expect("sealed").0.freeze()
}

/// Produces a batch to partition 0. Returns the response of the partition.
pub fn produce(client: &mut Client, topic: &str, bytes: Bytes) -> PartitionProduceResponse {
    let mut response = client.call(&produce_request(topic, 0, bytes), PRODUCE);
    response.responses.remove(0).partition_responses.remove(0)
}

/// Produces a batch to partition 0, which must succeed. Returns its offset.
pub fn produced(client: &mut Client, topic: &str, bytes: Bytes) -> i64 {
    let response = produce(client, topic, bytes);
    assert_eq!(response.error_code, ErrorCode::NONE, "{:?}", response.error_message);
    response.base_offset
}

/// Returns the batch at an offset, exactly as the log stores it.
fn stored(client: &mut Client, topic: &str, offset: i64) -> Bytes {
    let Some(Records::Memory(bytes)) = client.fetch(topic, 0, offset).records else { panic!("no records") };
    let batch = batches(&bytes).next().expect("one").expect("whole");
    batch.check_crc().expect("a checksum");
    assert_eq!(batch.base_offset(), offset);
    bytes.slice(..batch.size())
}

fn codec_at(client: &mut Client, topic: &str, offset: i64) -> Compression {
    BatchView::first(&stored(client, topic, offset)).expect("whole").compression().expect("a codec")
}

/// Returns the decompressed records of a batch.
fn records(bytes: &[u8]) -> Bytes {
    let batch = BatchView::first(bytes).expect("whole");
    decompress(batch.compression().expect("a codec"), batch.payload(), 1 << 26).expect("opens")
}

/// Returns the fields of the header that recompression must keep, which are all except offset, leader epoch, length,
/// checksum and codec.
fn header(bytes: &[u8]) -> (i32, i64, i64, i64, i16, i32, i32) {
    let batch = BatchView::first(bytes).expect("whole");
    let times = (batch.base_timestamp(), batch.max_timestamp());
    let stamp = (batch.producer_id(), batch.producer_epoch(), batch.base_sequence());
    (batch.last_offset_delta(), times.0, times.1, stamp.0, stamp.1, stamp.2, batch.record_count())
}

/// Checks that the broker refuses the bytes with `expected` and appends nothing.
fn assert_refused(client: &mut Client, topic: &str, bytes: Bytes, expected: ErrorCode) -> PartitionProduceResponse {
    let end = client.latest(topic, 0);
    let response = produce(client, topic, bytes);
    assert_eq!(response.error_code, expected, "{:?}", response.error_message);
    assert_eq!(client.latest(topic, 0), end);
    response
}

#[test]
fn batch_is_stored_with_the_codec_of_its_topic_and_otherwise_unchanged() {
    let broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    let producer_id = client.init_producer_id();
    for (name, target) in CODECS {
        client.create_topic(name, 1, &[("compression.type", name)]);
        for (at, (_, source)) in CODECS.into_iter().enumerate() {
            let base_sequence = i32::try_from(at).expect("few") * 40;
            let sent = batch(source, Stamp { producer_id, producer_epoch: 0, base_sequence });
            let offset = produced(&mut client, name, sent.clone());
            assert_eq!(offset, i64::from(base_sequence));
            let kept = stored(&mut client, name, offset);
            let view = BatchView::first(&kept).expect("whole");
            assert_eq!((view.compression(), header(&kept)), (Ok(target), header(&sent)), "{source:?} to {name}");
            assert_eq!(view.timestamp_type(), TimestampType::CreateTime);
            assert_eq!(records(&kept), records(&sent), "{source:?} to {name}");
            assert_eq!(produced(&mut client, name, sent), offset, "a retry is the batch that is there");
        }
        assert_eq!(client.latest(name, 0), 200);
    }
}

#[test]
fn batch_with_the_codec_of_its_topic_is_stored_as_received_at_any_level() {
    let broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    for (name, codec) in CODECS {
        let levels =
            [("compression.gzip.level", "1"), ("compression.lz4.level", "17"), ("compression.zstd.level", "-5")];
        client.create_topic(name, 1, &[&[("compression.type", name)], &levels[..]].concat());
        let sent = batch(codec, Stamp::NONE);
        let offset = produced(&mut client, name, sent.clone());
        assert_eq!(stored(&mut client, name, offset)[17..], sent[17..], "{name}");
    }
    client.create_topic("as-sent", 1, &[("compression.type", "producer")]);
    for (_, codec) in CODECS {
        let sent = batch(codec, Stamp::NONE);
        let offset = produced(&mut client, "as-sent", sent.clone());
        assert_eq!(stored(&mut client, "as-sent", offset)[17..], sent[17..], "{codec:?}");
    }
}

#[test]
fn new_level_applies_from_the_next_append_on() {
    let broker = Broker::start(&["compression.type=gzip", NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    let text: String = (0..4000_u32).map(|at| format!("{} and {}, ", at * at % 977, at * 7 % 1013)).collect();
    let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
    builder.append(NOW, None, Some(text.as_bytes()), &[]);
    let sent = builder.seal(Stamp::NONE).expect("sealed").0.freeze();
    let size = |client: &mut Client| {
        let offset = produced(client, "t", sent.clone());
        let kept = stored(client, "t", offset);
        assert_eq!(records(&kept), records(&sent));
        kept.len()
    };
    for (codec, key, low, high) in [
        ("gzip", "compression.gzip.level", "1", "9"),
        ("lz4", "compression.lz4.level", "9", "17"),
        ("zstd", "compression.zstd.level", "-100", "19"),
    ] {
        client.set_config(TOPIC, "t", "compression.type", codec);
        client.set_config(TOPIC, "t", key, low);
        let fast = size(&mut client);
        client.set_config(TOPIC, "t", key, high);
        let small = size(&mut client);
        assert!(small < fast, "{codec}: {small} bytes at {high}, {fast} at {low}");
        // The broker's level applies to topics without a level of their own.
        client.set_config(BROKER, "", key, low);
        assert_eq!(size(&mut client), small);
        let answers = client.alter(vec![alter_resource(TOPIC, "t", &[(key, 1, None)])], false);
        assert_eq!(answers[0].error_code, ErrorCode::NONE);
        assert_eq!(size(&mut client), fast);
    }
}

#[test]
fn dynamic_codec_of_the_broker_applies_and_a_topics_own_takes_precedence() {
    let broker = Broker::start(&["compression.type=snappy", NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic("free", 1, &[]);
    client.create_topic("own", 1, &[("compression.type", "zstd")]);
    let codecs = |client: &mut Client| {
        ["free", "own"].map(|topic| {
            let offset = produced(client, topic, batch(Compression::Lz4, Stamp::NONE));
            codec_at(client, topic, offset)
        })
    };
    assert_eq!(codecs(&mut client), [Compression::Snappy, Compression::Zstd]);
    client.set_config(BROKER, "", "compression.type", "gzip");
    assert_eq!(codecs(&mut client), [Compression::Gzip, Compression::Zstd]);
    client.set_config(BROKER, "", "compression.type", "producer");
    assert_eq!(codecs(&mut client), [Compression::Lz4, Compression::Zstd]);
}

#[test]
fn codecs_and_levels_kafka_does_not_have_are_refused() {
    let broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    for (key, values) in [
        ("compression.type", &["none", "GZIP", "brotli", ""][..]),
        ("compression.gzip.level", &["0", "10", "-2", "x"]),
        ("compression.lz4.level", &["0", "18", "-1"]),
        ("compression.zstd.level", &["23", "-131073", ""]),
    ] {
        for value in values {
            for (kind, name) in [(TOPIC, "t"), (BROKER, "")] {
                let answers = client.alter(vec![alter_resource(kind, name, &[(key, 0, Some(value))])], false);
                let reported = &answers[0];
                assert_eq!(
                    reported.error_code,
                    ErrorCode::INVALID_CONFIG,
                    "{key}={value}: {:?}",
                    reported.error_message
                );
            }
        }
    }
}

#[test]
fn max_message_bytes_bounds_a_batch_before_and_after() {
    let broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic("smaller", 1, &[("compression.type", "gzip"), ("max.message.bytes", "20000")]);
    client.create_topic("larger", 1, &[("compression.type", "uncompressed"), ("max.message.bytes", "20000")]);
    // The batch would be small enough after compression, but Kafka checks the size on arrival.
    assert_refused(&mut client, "smaller", large(Compression::None, 30_000), ErrorCode::MESSAGE_TOO_LARGE);
    produced(&mut client, "smaller", large(Compression::None, 15_000));
    let sent = large(Compression::Gzip, 30_000);
    assert!(sent.len() < 1000);
    assert_refused(&mut client, "larger", sent, ErrorCode::MESSAGE_TOO_LARGE);
    let just = large(Compression::None, 19_900).len();
    client.set_config(TOPIC, "larger", "max.message.bytes", &just.to_string());
    produced(&mut client, "larger", large(Compression::Gzip, 19_900));
    client.set_config(TOPIC, "larger", "max.message.bytes", &(just - 1).to_string());
    assert_refused(&mut client, "larger", large(Compression::Gzip, 19_900), ErrorCode::MESSAGE_TOO_LARGE);
}

/// Returns a batch with this payload and a correct checksum. Its other fields are those of `like`.
fn with_payload(like: &[u8], payload: &[u8]) -> Bytes {
    let mut bytes = [&like[..HEADER_LEN], payload].concat();
    let length = i32::try_from(bytes.len() - 12).expect("small");
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    let crc = crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.into()
}

#[test]
fn a_broken_batch_is_refused_and_nothing_appended() {
    let broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[("compression.type", "zstd")]);
    produced(&mut client, "t", batch(Compression::None, Stamp::NONE));
    for (_, codec) in &CODECS[..4] {
        let whole = batch(*codec, Stamp::NONE);
        let payload = &whole[HEADER_LEN..];
        // The payload is incomplete, or its records differ from those that the header states.
        let cut = with_payload(&whole, &payload[..payload.len() / 2]);
        assert_refused(&mut client, "t", cut, ErrorCode::INVALID_RECORD);
        let mut opened = records(&whole).to_vec();
        opened.pop();
        let mut short = BytesMut::new();
        compress(*codec, None, &opened, &mut short).expect("compresses");
        assert_refused(&mut client, "t", with_payload(&whole, &short), ErrorCode::INVALID_RECORD);
        let mut flipped = whole.to_vec();
        *flipped.last_mut().expect("bytes") ^= 1;
        assert_refused(&mut client, "t", flipped.into(), ErrorCode::CORRUPT_MESSAGE);
    }
    assert_eq!(produced(&mut client, "t", batch(Compression::Lz4, Stamp::NONE)), 40);
}

#[test]
fn records_are_validated_when_a_batch_is_recompressed() {
    let broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    let codec = ("compression.type", "lz4");
    client.create_topic("compacted", 1, &[codec, ("cleanup.policy", "compact")]);
    client.create_topic("timed", 1, &[codec, ("message.timestamp.before.max.ms", "3600000")]);
    client.create_topic("appended", 1, &[codec, ("message.timestamp.type", "LogAppendTime")]);
    for (_, source) in [CODECS[0], CODECS[1]] {
        let mut builder = BatchBuilder::new(BytesMut::new(), source, None);
        for key in [Some(&b"a"[..]), None, Some(b"b"), None] {
            builder.append(NOW, key, Some(b"v"), &[]);
        }
        let keyless = builder.seal(Stamp::NONE).expect("sealed").0.freeze();
        let reported = assert_refused(&mut client, "compacted", keyless, ErrorCode::INVALID_RECORD);
        assert_eq!(reported.record_errors.iter().map(|record| record.batch_index).collect::<Vec<_>>(), [1, 3]);
        produced(&mut client, "compacted", batch(source, Stamp::NONE));
        // The header has the present time as timestamp, but the records are years old.
        let mut young = batch(source, Stamp::NONE).to_vec();
        young[35..43].copy_from_slice(&i64::MAX.to_be_bytes());
        let young = with_payload(&young, &young[HEADER_LEN..]);
        let reported = assert_refused(&mut client, "timed", young, ErrorCode::INVALID_TIMESTAMP);
        assert_eq!(reported.record_errors.len(), 40);
        // If older records are permitted, the broker corrects the timestamp in the header.
        let offset = produced(&mut client, "compacted", {
            let mut wrong = batch(source, Stamp::NONE).to_vec();
            wrong[35..43].copy_from_slice(&NOW.to_be_bytes());
            with_payload(&wrong, &wrong[HEADER_LEN..])
        });
        let kept = stored(&mut client, "compacted", offset);
        assert_eq!(BatchView::first(&kept).expect("whole").max_timestamp(), NOW + 1000);

        let answer = produce(&mut client, "appended", batch(source, Stamp::NONE));
        assert_eq!(answer.error_code, ErrorCode::NONE);
        let kept = stored(&mut client, "appended", answer.base_offset);
        let view = BatchView::first(&kept).expect("whole");
        assert_eq!(view.timestamp_type(), TimestampType::LogAppendTime);
        assert!(answer.log_append_time_ms > NOW && view.max_timestamp() == answer.log_append_time_ms);
        assert_eq!((view.compression(), records(&kept)), (Ok(Compression::Lz4), records(&batch(source, Stamp::NONE))));
    }
}

#[test]
fn recompressed_batches_survive_a_kill() {
    let mut broker = Broker::start(&["compression.type=zstd", NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    let producer_id = client.init_producer_id();
    let of = |n: i32| batch(CODECS[n as usize % 4].1, Stamp { producer_id, producer_epoch: 0, base_sequence: n * 40 });
    let before: Vec<Bytes> = (0..20)
        .map(|n| {
            let offset = produced(&mut client, "t", of(n));
            stored(&mut client, "t", offset)
        })
        .collect();
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    for (n, kept) in before.iter().enumerate() {
        assert_eq!(stored(&mut client, "t", n as i64 * 40), kept);
    }
    assert_eq!(produced(&mut client, "t", of(19)), 19 * 40, "a retry");
    assert_eq!(produced(&mut client, "t", of(20)), 20 * 40);
}

#[test]
fn out_of_order_batch_is_stored_with_the_codec_of_its_topic() {
    let broker = Broker::start(&[reorder::FOREVER, NO_RETENTION]);
    let mut client = broker.client();
    let topic = client.create_topic("t", 1, &[("compression.type", "lz4")]);
    let producer_id = client.init_producer_id();
    let (mut early, mut first) = (broker.client(), broker.client());
    for sequence in [1, 2] {
        reorder::send(&mut early, topic, &reorder::one(producer_id, sequence));
    }
    reorder::send(&mut first, topic, &reorder::one(producer_id, 0));
    assert_eq!(reorder::receive_offset(&mut first), 0);
    assert_eq!([1, 2].map(|_| reorder::receive_offset(&mut early)), [1, 2]);
    for offset in 0..3 {
        let kept = stored(&mut client, "t", offset);
        let view = BatchView::first(&kept).expect("whole");
        assert_eq!((view.compression(), i64::from(view.base_sequence())), (Ok(Compression::Lz4), offset));
    }
}

#[test]
fn refused_batch_with_acks_0_closes_the_connection_without_a_response() {
    let broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[("compression.type", "gzip")]);
    let unacknowledged = |bytes| ProduceRequest { acks: 0, ..produce_request("t", 0, bytes) };
    let mut silent = broker.client();
    silent.send(&unacknowledged(batch(Compression::Lz4, Stamp::NONE)), PRODUCE);
    wait_until("it is there", SOON, || client.latest("t", 0) == 40);
    assert_eq!(codec_at(&mut client, "t", 0), Compression::Gzip);
    let whole = batch(Compression::Lz4, Stamp::NONE);
    silent.send(&unacknowledged(with_payload(&whole, &whole[HEADER_LEN..HEADER_LEN + 40])), PRODUCE);
    assert_eq!(silent.wait_for_close(), 0);
    assert_eq!(client.latest("t", 0), 40);
}
