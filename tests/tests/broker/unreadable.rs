//! Compressed batches that no consumer could read. As in Kafka, the broker refuses them on every kind of topic and
//! appends nothing.
//!
//! Tests in `wire` check every way in which a codec's data can be wrong. How `fullbore consume` reacts to a bad batch
//! is tested in `readers`.

use crate::recompression::{produce, produced};
use bytes::{BufMut, Bytes, BytesMut};
use fullbore_tests::{Broker, NO_RETENTION, produce_request, topic_data};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::produce::ProduceRequest;
use fullbore_wire::batch::{BatchBuilder, BatchView, Compression, HEADER_LEN, Stamp, compress, crc32c, decompress};

const PRODUCE: i16 = 9;
const TOPIC: i8 = 2;
const NOW: i64 = 1_700_000_000_000;
const CODECS: [Compression; 4] = [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

/// Returns an uncompressed batch of `count` records with keys.
fn plain(count: usize, value_len: usize) -> BytesMut {
    let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
    (0..count).for_each(|_| builder.append(NOW, Some(b"key"), Some(&vec![7; value_len]), &[]));
    builder.seal(Stamp::NONE).expect("sealed").0
}

/// Returns the batch with another codec and payload. Its header states `count` records.
fn with_payload(batch: &[u8], codec: Compression, payload: &[u8], count: i32) -> Bytes {
    let mut bytes = BytesMut::from(&batch[..HEADER_LEN]);
    bytes.put_slice(payload);
    let length = i32::try_from(bytes.len() - 12).expect("small");
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[22] = codec as u8;
    bytes[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    bytes[57..61].copy_from_slice(&count.to_be_bytes());
    let crc = crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.freeze()
}

fn packed(codec: Compression, input: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    compress(codec, None, input, &mut out).expect("compresses");
    out
}

fn good(codec: Compression, count: usize, value_len: usize) -> Bytes {
    let batch = plain(count, value_len);
    let payload = packed(codec, &batch[HEADER_LEN..]);
    with_payload(&batch, codec, &payload, i32::try_from(count).expect("few"))
}

/// Returns a snappy block without Java's framing, as other clients send it.
fn bare_snappy(input: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    let mut left = input.len();
    while left >= 0x80 {
        block.push(left as u8 | 0x80);
        left >>= 7;
    }
    block.push(left as u8);
    for literal in input.chunks(1 << 16) {
        block.push(61 << 2);
        block.extend_from_slice(&u16::try_from(literal.len() - 1).expect("a chunk").to_le_bytes());
        block.extend_from_slice(literal);
    }
    block
}

/// Returns batches whose checksum is correct but whose records cannot be read, each with a name.
fn unreadable() -> Vec<(String, Bytes)> {
    let batch = plain(3, 100);
    let records = &batch[HEADER_LEN..];
    let mut cases = Vec::new();
    for codec in CODECS {
        let sent = packed(codec, records);
        let mut add = |kind: &str, payload: &[u8], count| {
            cases.push((format!("{codec:?}, {kind}"), with_payload(&batch, codec, payload, count)));
        };
        add("cut short", &sent[..sent.len() - 1], 3);
        add("empty", &[], 3);
        add("not compressed", records, 3);
        add("counts too many", &sent, i32::MAX);
        add("counts too few", &sent, 2);
        add("bytes behind the records", &packed(codec, &[records, b"more"].concat()), 3);
        add("records cut short", &packed(codec, &records[..records.len() - 1]), 3);
    }
    let mut wrong_crc = packed(Compression::Gzip, records);
    let at = wrong_crc.len() - 8;
    wrong_crc[at] ^= 1;
    // Replaces the LZ4 frame header by one for linked blocks. Its last byte is a checksum.
    let mut linked = packed(Compression::Lz4, records);
    linked[4..7].copy_from_slice(&[0x40, 0x40, 0xc0]);
    let google = [b"\xff\x06\x00\x00sNaPpY".to_vec(), bare_snappy(records)].concat();
    for (kind, codec, payload) in [
        ("gzip with a wrong checksum", Compression::Gzip, &wrong_crc[..]),
        ("LZ4 with dependent blocks", Compression::Lz4, &linked),
        ("snappy in Google's framing", Compression::Snappy, &google),
    ] {
        cases.push((kind.to_owned(), with_payload(&batch, codec, payload, 3)));
    }
    cases.push(("no codec, counts too many".to_owned(), with_payload(&batch, Compression::None, records, i32::MAX)));
    cases
}

#[test]
fn unreadable_batches_are_refused_and_nothing_is_appended() {
    let broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    for (topic, configs) in [
        ("classic", &[][..]),
        ("diskless", &[("diskless.enable", "true")]),
        ("compacted", &[("cleanup.policy", "compact")]),
        ("stamped", &[("message.timestamp.type", "LogAppendTime")]),
        ("recompressed", &[("compression.type", "zstd")]),
    ] {
        client.create_topic(topic, 1, configs);
        for (kind, bytes) in unreadable() {
            let refused = produce(&mut client, topic, bytes);
            let message = refused.error_message.as_deref().unwrap_or_default();
            assert_eq!(refused.error_code, ErrorCode::INVALID_RECORD, "{topic}: {kind}: {message}");
            assert!(message.contains("record"), "{topic}: {kind}: {message}");
        }
        assert_eq!(client.latest(topic, 0), 0, "{topic}");
        for (at, codec) in CODECS.into_iter().enumerate() {
            assert_eq!(produced(&mut client, topic, good(codec, 3, 100)), 3 * at as i64, "{topic}");
        }
    }
}

#[test]
fn unreadable_batches_beside_good_ones_affect_no_other_partition() {
    let broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic("t", 3, &[]);
    let (_, bad) = unreadable().remove(0);
    let sent = [(0, good(Compression::Zstd, 3, 100)), (1, bad), (2, good(Compression::Lz4, 3, 100))];
    let request = ProduceRequest { topic_data: vec![topic_data("t", &sent)], ..produce_request("t", 0, Bytes::new()) };
    let mut response = client.call(&request, PRODUCE);
    let codes: Vec<_> = response.responses.remove(0).partition_responses.iter().map(|at| at.error_code).collect();
    assert_eq!(codes, [ErrorCode::NONE, ErrorCode::INVALID_RECORD, ErrorCode::NONE]);
    assert_eq!([0, 1, 2].map(|partition| client.latest("t", partition)), [3, 0, 3]);
}

#[test]
fn trusted_header_is_appended_unchecked_until_records_are_validated_again() {
    let broker = Broker::start(&["fullbore.produce.validation=header", NO_RETENTION]);
    let mut client = broker.client();
    let batch = plain(3, 100);
    let bad = with_payload(&batch, Compression::Zstd, &[], 3);
    let wrong = with_payload(&batch, Compression::None, &batch[HEADER_LEN..], 9);
    for (topic, configs) in [("classic", &[][..]), ("diskless", &[("diskless.enable", "true")])] {
        client.create_topic(topic, 1, configs);
        assert_eq!(produced(&mut client, topic, bad.clone()), 0);
        assert_eq!(produce(&mut client, topic, wrong.clone()).error_code, ErrorCode::INVALID_RECORD);
        client.set_config(TOPIC, topic, "fullbore.produce.validation", "records");
        assert_eq!(produce(&mut client, topic, bad.clone()).error_code, ErrorCode::INVALID_RECORD);
        assert_eq!(produced(&mut client, topic, good(Compression::Gzip, 3, 100)), 3);
    }
    client.create_topic("compacted", 1, &[("cleanup.policy", "compact")]);
    assert_eq!(produce(&mut client, "compacted", bad).error_code, ErrorCode::INVALID_RECORD);
}

#[test]
fn batches_with_large_decompressed_records_are_appended_in_order() {
    let broker = Broker::start(&[NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic("t", 3, &[("max.message.bytes", "20000000")]);
    // The broker decompresses some of these batches as a whole and others block by block. It must accept both.
    let batch = plain(5, 1 << 20);
    let whole = with_payload(&batch, Compression::Snappy, &bare_snappy(&batch[HEADER_LEN..]), 5);
    for at in 0..3 {
        let large = [good(Compression::Lz4, 20, 1 << 20), good(Compression::Zstd, 20, 1 << 20), whole.clone()];
        let sent: Vec<_> = (0..).zip(large.clone()).collect();
        let request =
            ProduceRequest { topic_data: vec![topic_data("t", &sent)], ..produce_request("t", 0, Bytes::new()) };
        let mut response = client.call(&request, PRODUCE);
        let answers = response.responses.remove(0).partition_responses;
        let offsets: Vec<_> = answers.iter().map(|answer| (answer.error_code, answer.base_offset)).collect();
        assert_eq!(offsets, [20 * at, 20 * at, 5 * at].map(|offset| (ErrorCode::NONE, offset)));
    }
    let kept = client.fetch("t", 2, 0).records.expect("records");
    let bytes = kept.memory().expect("in memory");
    let view = BatchView::first(bytes).expect("whole");
    let records = decompress(Compression::Snappy, view.payload(), 64 << 20).expect("opens");
    assert_eq!(records, batch[HEADER_LEN..]);
}
