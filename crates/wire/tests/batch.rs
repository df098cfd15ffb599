//! Tests of record batches. Both our reader and the oracle's read the batches that we build. Hostile bytes must not
//! cost much time or memory.

use bytes::{Bytes, BytesMut};
use fullbore_wire::batch::{
    BatchBuilder, BatchError, BatchView, ChunkedBuilder, Compression, HEADER_LEN, Header, RecordIter, Stamp,
    Timestamps, batches, check_records, compress, decompress, recompress, record_size_max, restamp, set_max_timestamp,
};
use kafka_protocol::records::RecordBatchDecoder;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const CODECS: [Compression; 5] =
    [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
const MAX: usize = 64 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq)]
struct Owned {
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn record() -> impl Strategy<Value = Owned> {
    let bytes = || option::of(vec(any::<u8>(), 0..300));
    // There are only a few keys, so some of them repeat.
    let key = "[ab]{0,2}".prop_map(String::into_bytes);
    let headers = vec((key, option::of(vec(any::<u8>(), 0..20))), 0..4);
    (0..1_i64 << 42, bytes(), bytes(), headers).prop_map(|(timestamp, key, value, headers)| Owned {
        timestamp,
        key,
        value,
        headers,
    })
}

fn build(records: &[Owned], codec: Compression, stamp: Stamp) -> BytesMut {
    fill(BatchBuilder::new(BytesMut::new(), codec, None), records, stamp)
}

fn fill(mut builder: BatchBuilder, records: &[Owned], stamp: Stamp) -> BytesMut {
    for record in records {
        let headers: Vec<_> =
            record.headers.iter().map(|(key, value)| Header { key, value: value.as_deref() }).collect();
        let before = builder.size();
        let (key, value) = (record.key.as_deref(), record.value.as_deref());
        builder.append(record.timestamp, key, value, &headers);
        assert!(builder.size() - before <= record_size_max(key, value, &headers));
    }
    builder.seal(stamp).expect("compresses").0
}

fn read(batch: &BatchView<'_>) -> Result<Vec<Owned>, BatchError> {
    let payload = decompress(batch.compression()?, batch.payload(), MAX)?;
    RecordIter::new(&payload, batch.record_count())
        .map(|record| {
            let record = record?;
            Ok(Owned {
                timestamp: record.timestamp(batch),
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                headers: record.headers.map(|(k, v)| (k.to_vec(), v.map(<[u8]>::to_vec))).collect(),
            })
        })
        .collect()
}

fn checked(bytes: &[u8]) -> Result<Timestamps, BatchError> {
    let batch = BatchView::first(bytes).expect("whole");
    check_records(&batch, batch.payload()).map(|checked| checked.timestamps)
}

/// Returns true if the offset deltas do not count up from 0.
fn is_renumbered(batch: &BatchView<'_>) -> bool {
    let deltas = RecordIter::new(batch.payload(), batch.record_count()).map_while(Result::ok);
    deltas.zip(0..).any(|(record, expected)| record.offset_delta != expected)
}

proptest! {
    #[test]
    fn built_batches_read_back(records in vec(record(), 1..30), codec in 0..5_usize, producer_id: i64, epoch: i16, sequence: i32) {
        let stamp = Stamp { producer_id, producer_epoch: epoch, base_sequence: sequence };
        let bytes = build(&records, CODECS[codec], stamp);
        let batch = BatchView::first(&bytes).expect("whole");
        prop_assert_eq!(batch.size(), bytes.len());
        batch.check_crc().expect("checksum");
        prop_assert_eq!((batch.producer_id(), batch.producer_epoch(), batch.base_sequence()), (producer_id, epoch, sequence));
        prop_assert_eq!(batch.max_timestamp(), records.iter().map(|r| r.timestamp).max().expect("one"));
        prop_assert_eq!(batch.last_offset_delta() + 1, batch.record_count());
        prop_assert_eq!(read(&batch).expect("reads"), &records[..]);
        if codec == 0 {
            let times = || records.iter().map(|record| record.timestamp);
            let expected = Timestamps { earliest: times().min().expect("one"), latest: times().max().expect("one") };
            prop_assert_eq!(checked(&bytes), Ok(expected));
        }
    }

    /// A transactional batch differs from a plain one only in this bit and the checksum. A new stamp does not change
    /// the bit.
    #[test]
    fn a_transactional_builder_sets_the_transactional_bit(records in vec(record(), 1..10), codec in 0..5_usize) {
        let stamp = Stamp { producer_id: 9, producer_epoch: 2, base_sequence: 3 };
        let new = || BatchBuilder::new(BytesMut::new(), CODECS[codec], None);
        let (plain, mut bytes) = (fill(new(), &records, stamp), fill(new().transactional(), &records, stamp));
        for epoch in [2, 3] {
            restamp(&mut bytes, Stamp { producer_epoch: epoch, ..stamp });
            let batch = BatchView::first(&bytes).expect("whole");
            batch.check_crc().expect("checksum");
            prop_assert!(batch.is_transactional() && !batch.is_control());
            prop_assert_eq!(batch.compression(), Ok(CODECS[codec]));
            prop_assert_eq!(read(&batch).expect("reads"), &records[..]);
        }
        restamp(&mut bytes, stamp);
        let different: Vec<_> = (0..bytes.len()).filter(|at| bytes[*at] != plain[*at]).collect();
        prop_assert!(different.iter().all(|at| (17..=20).contains(at) || *at == 22), "{different:?}");
    }

    #[test]
    fn a_batch_in_chunks_has_the_bytes_of_one_in_a_single_buffer(
        records in vec(record(), 1..20),
        codec in 0..5_usize,
        chunk in HEADER_LEN..400_usize,
        transactional: bool,
    ) {
        let stamp = Stamp { producer_id: 9, producer_epoch: 2, base_sequence: 1 << 20 };
        let mut builder = ChunkedBuilder::new(BytesMut::with_capacity(chunk), CODECS[codec], None);
        let mut single = BatchBuilder::new(BytesMut::new(), CODECS[codec], None);
        if transactional {
            (builder, single) = (builder.transactional(), single.transactional());
        }
        for record in &records {
            let headers: Vec<_> =
                record.headers.iter().map(|(key, value)| Header { key, value: value.as_deref() }).collect();
            let (key, value) = (record.key.as_deref(), record.value.as_deref());
            let size = record_size_max(key, value, &headers);
            while builder.room() < size {
                builder.add_chunk(BytesMut::with_capacity(chunk));
            }
            builder.append(record.timestamp, key, value, &headers, size);
        }
        let sealed = builder.seal(stamp).expect("compresses");
        prop_assert!(sealed.pieces.iter().all(|piece| !piece.is_empty()));
        prop_assert_eq!(sealed.is_compressed, CODECS[codec] != Compression::None);
        prop_assert_eq!(sealed.pieces.concat(), fill(single, &records, stamp).to_vec());
    }

    /// The oracle stores headers in a map, so only records with distinct header keys can be compared.
    #[test]
    fn the_oracle_reads_built_batches(mut records in vec(record(), 1..10), codec in 0..5_usize) {
        for record in &mut records {
            let mut seen = std::collections::HashSet::new();
            record.headers.retain(|(key, _)| seen.insert(key.clone()));
        }
        let stamp = Stamp { producer_id: 7, producer_epoch: 3, base_sequence: 11 };
        let mut bytes = build(&records, CODECS[codec], stamp).freeze();
        let decoded = match CODECS[codec] {
            // The compressed bytes of zstd are not compared, because the oracle uses the same library.
            Compression::Zstd => {
                let opened = |bytes: &mut Bytes, _| Ok(zstd::decode_all(&bytes[..])?.into());
                RecordBatchDecoder::decode_with_custom_compression(&mut bytes, Some(opened))
            }
            _ => RecordBatchDecoder::decode(&mut bytes),
        };
        let decoded = decoded.expect("the oracle reads it").records;
        prop_assert_eq!(decoded.len(), records.len());
        for (at, (theirs, ours)) in decoded.iter().zip(&records).enumerate() {
            prop_assert_eq!(theirs.offset, at as i64);
            prop_assert_eq!(theirs.sequence, 11 + at as i32);
            prop_assert_eq!(theirs.timestamp, ours.timestamp);
            prop_assert_eq!(theirs.key.as_deref(), ours.key.as_deref());
            prop_assert_eq!(theirs.value.as_deref(), ours.value.as_deref());
            let headers: Vec<_> = theirs.headers.iter().map(|(k, v)| (k.as_bytes().to_vec(), v.as_ref().map(|v| v.to_vec()))).collect();
            prop_assert_eq!(&headers, &ours.headers);
        }
    }

    #[test]
    fn mutated_bytes_never_panic(records in vec(record(), 1..5), codec in 0..5_usize, at: usize, byte: u8) {
        let mut bytes = build(&records, CODECS[codec], Stamp::NONE);
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(batch) = BatchView::first(&bytes) {
            let (checked, read) = (check_records(&batch, batch.payload()), read(&batch));
            // A broker accepts header keys that are not UTF-8, because it does not read them.
            prop_assert!(codec != 0 || read.is_err() || checked.is_ok() || is_renumbered(&batch), "{:?}", checked);
        }
    }

    #[test]
    fn a_block_of_any_bytes_never_panics(codec in 1..5_usize, bytes in vec(any::<u8>(), 0..200)) {
        let _ = decompress(CODECS[codec], &bytes, 1 << 16);
    }
}

#[test]
fn cut_short_at_every_byte_is_truncated() {
    let records = [Owned { timestamp: 5, key: None, value: Some(vec![1; 40]), headers: vec![] }];
    let bytes = build(&records, Compression::None, Stamp::NONE);
    for len in 0..bytes.len() {
        assert_eq!(BatchView::first(&bytes[..len]).err(), Some(BatchError::Truncated), "at {len}");
    }
    let twice: Bytes = [&bytes[..], &bytes[..bytes.len() - 1]].concat().into();
    assert_eq!(batches(&twice).filter(Result::is_ok).count(), 1);
}

#[test]
fn counts_that_do_not_add_up_are_seen() {
    let records: Vec<_> =
        (0..3).map(|_| Owned { timestamp: 5, key: None, value: Some(vec![1; 40]), headers: vec![] }).collect();
    let bytes = build(&records, Compression::None, Stamp::NONE);
    let five = Timestamps { earliest: 5, latest: 5 };
    assert_eq!(checked(&bytes), Ok(five));
    for count in [2_i32, 4, i32::MAX, -1] {
        let mut wrong = bytes.clone();
        wrong[57..61].copy_from_slice(&count.to_be_bytes());
        assert!(checked(&wrong).is_err(), "{count}");
    }
}

#[test]
fn a_bomb_costs_no_more_than_the_cap() {
    let zeros = vec![0; 50 << 20];
    for codec in &CODECS[1..] {
        let mut bomb = BytesMut::new();
        compress(*codec, None, &zeros, &mut bomb).expect("compresses");
        assert_eq!(decompress(*codec, &bomb, 1 << 20), Err(BatchError::TooLarge(1 << 20)), "{codec:?}");
        assert_eq!(decompress(*codec, &bomb, 50 << 20).expect("at the cap").len(), 50 << 20, "{codec:?}");
    }
    // This snappy block claims a decompressed size of 4 GiB.
    let claim = [0xff, 0xff, 0xff, 0xff, 0x0f, 0];
    assert!(decompress(Compression::Snappy, &claim, usize::MAX).is_err());
}

#[test]
fn a_restamped_batch_differs_in_stamp_and_checksum_only() {
    let records = [Owned { timestamp: 5, key: None, value: Some(vec![1; 40]), headers: vec![] }];
    let stamp = Stamp { producer_id: 9, producer_epoch: 1, base_sequence: 0 };
    let mut bytes = build(&records, Compression::None, Stamp::NONE);
    restamp(&mut bytes, stamp);
    assert_eq!(bytes, build(&records, Compression::None, stamp));
    BatchView::first(&bytes).expect("whole").check_crc().expect("checksum");
}

/// The records start at byte 61: length, attributes, timestamp delta, offset delta, key length, value length, value.
#[test]
fn a_field_that_leaves_its_record_and_an_offset_out_of_order_are_seen() {
    let records = [5, 6].map(|timestamp| Owned { timestamp, key: None, value: Some(vec![1; 40]), headers: vec![] });
    let bytes = build(&records, Compression::None, Stamp::NONE);
    let (first, second) = (61, 61 + (bytes.len() - 61) / 2);
    for (at, byte) in
        [(first + 3, 2), (second + 3, 0), (first + 5, 82), (first + 5, 78), (first + 46, 1), (first + 46, 2)]
    {
        let mut wrong = bytes.clone();
        wrong[at] = byte;
        assert!(matches!(checked(&wrong), Err(BatchError::Record(_))), "{byte} at {at}");
    }
}

#[test]
fn records_without_a_timestamp_do_not_count() {
    let times = |timestamps: &[i64]| {
        let record = |&timestamp| Owned { timestamp, key: None, value: None, headers: vec![] };
        let bytes = build(&timestamps.iter().map(record).collect::<Vec<_>>(), Compression::None, Stamp::NONE);
        checked(&bytes).expect("valid")
    };
    assert_eq!(times(&[-1, -1]), Timestamps { earliest: -1, latest: -1 });
    assert_eq!(times(&[9, -1, 7]), Timestamps { earliest: 7, latest: 9 });
}

#[test]
fn another_max_timestamp_changes_that_and_the_checksum_only() {
    let records = [Owned { timestamp: 5, key: None, value: Some(vec![1; 40]), headers: vec![] }];
    let bytes = build(&records, Compression::None, Stamp::NONE);
    let mut changed = bytes.clone();
    set_max_timestamp(&mut changed, 9);
    let view = BatchView::first(&changed).expect("whole");
    view.check_crc().expect("checksum");
    assert_eq!(view.max_timestamp(), 9);
    set_max_timestamp(&mut changed, 5);
    assert_eq!(changed, bytes);
}

#[test]
fn snappy_is_read_with_and_without_javas_framing() {
    let text = b"the same words, the same words, the same words".repeat(2000);
    let mut framed = BytesMut::new();
    compress(Compression::Snappy, None, &text, &mut framed).expect("compresses");
    assert_eq!(&framed[..8], b"\x82SNAPPY\0");
    assert_eq!(decompress(Compression::Snappy, &framed, MAX).expect("framed"), text);
    let mut bare = vec![0; 80_000];
    // Other clients send bare blocks. The blocks inside the framing are bare blocks as well.
    let len = u32::from_be_bytes(framed[16..20].try_into().expect("4 bytes")) as usize;
    bare.truncate(0);
    bare.extend_from_slice(&framed[20..20 + len]);
    assert_eq!(decompress(Compression::Snappy, &bare, MAX).expect("bare"), text[..32 * 1024]);
}

/// gzip once panicked with levels above 9. zstd once could not read what it had written at levels 20 to 22, whose
/// windows are larger than 8 MiB.
#[test]
fn every_level_reads_back() {
    let text = b"the same words, the same words, the same words".repeat(200);
    for codec in CODECS {
        for level in [i32::MIN, -1, 0, 1, 9, 10, 19, 20, 22, 23, i32::MAX] {
            let mut bytes = BytesMut::new();
            compress(codec, Some(level), &text, &mut bytes).expect("compresses");
            assert_eq!(decompress(codec, &bytes, text.len()).expect("reads"), text, "{codec:?} {level}");
            assert!(decompress(codec, &bytes, text.len() - 1).is_err(), "{codec:?} {level}");
        }
    }
}

/// In Kafka, level 9 of LZ4 selects the fast compressor, and all other levels select the slow one.
#[test]
fn a_higher_level_makes_less() {
    let text: Vec<u8> =
        (0..60_000_u32).flat_map(|at| format!("{} and {}, ", at * at % 977, at * 7 % 1013).into_bytes()).collect();
    let size = |codec, level| {
        let mut bytes = BytesMut::new();
        compress(codec, level, &text, &mut bytes).expect("compresses");
        assert_eq!(decompress(codec, &bytes, text.len()).expect("reads"), text, "{codec:?} {level:?}");
        bytes.len()
    };
    for (codec, levels) in
        [(Compression::Gzip, &[1, 6, 9][..]), (Compression::Lz4, &[9, 1, 12]), (Compression::Zstd, &[-100, 1, 3, 22])]
    {
        let sizes: Vec<_> = levels.iter().map(|level| size(codec, Some(*level))).collect();
        assert!(sizes.is_sorted_by(|one, next| one > next), "{codec:?}: {sizes:?}");
        let own = match codec {
            Compression::Gzip => 6,
            Compression::Lz4 => 9,
            _ => 3,
        };
        assert_eq!(size(codec, None), size(codec, Some(own)), "{codec:?}");
    }
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    let noise: Vec<u8> = noise.take(200_000).collect();
    let mut bytes = BytesMut::new();
    compress(Compression::Lz4, Some(12), &noise, &mut bytes).expect("compresses");
    assert_eq!(decompress(Compression::Lz4, &bytes, noise.len()).expect("reads"), noise);
    assert_eq!(bytes.len(), 7 + 4 * 4 + noise.len() + 4, "blocks that do not shrink stay as they are");
}

proptest! {
    #[test]
    fn recompressed_a_batch_keeps_its_records_byte_for_byte_and_its_header(
        records in vec(record(), 1..30), from in 0..5_usize, to in 0..5_usize, level in option::of(1..10_i32), time: i64,
        attributes: u8,
    ) {
        let stamp = Stamp { producer_id: 7, producer_epoch: 3, base_sequence: 11 };
        let mut bytes = build(&records, CODECS[from], stamp);
        bytes[..8].copy_from_slice(&1234_i64.to_be_bytes());
        bytes[22] |= attributes & !7;
        let before = BatchView::first(&bytes).expect("whole");
        let payload = decompress(CODECS[from], before.payload(), MAX).expect("opens");
        let out = recompress(&before, &payload, time, CODECS[to], level).expect("recompressed");
        let after = BatchView::first(&out).expect("whole");
        prop_assert_eq!(after.size(), out.len());
        after.check_crc().expect("checksum");
        prop_assert_eq!((after.compression(), after.max_timestamp()), (Ok(CODECS[to]), time));
        prop_assert_eq!(decompress(CODECS[to], after.payload(), MAX).expect("opens"), payload);
        prop_assert_eq!(after.timestamp_type(), before.timestamp_type());
        prop_assert_eq!(after.is_transactional(), before.is_transactional());
        prop_assert_eq!((after.is_control(), after.delete_horizon_ms()), (false, None));
        // These ranges of the header are unchanged: base offset; leader epoch and magic; offset delta and base
        // timestamp; producer and record count.
        for kept in [0..8, 12..17, 23..35, 43..61] {
            prop_assert_eq!(&out[kept.clone()], &bytes[kept]);
        }
    }
}
