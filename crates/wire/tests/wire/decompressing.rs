//! Tests of how a broker checks compressed batches before it acknowledges them. Every form that Kafka's clients write
//! is accepted. A form that one of these clients cannot read is refused.

use bytes::{BufMut, BytesMut};
use flate2::{Crc, GzBuilder};
use fullbore_wire::batch::{
    BatchBuilder, BatchError, BatchView, Compression, Decompressor, HEADER_LEN, Stamp, check_records, compress, crc32c,
    decompress, decompress_sent,
};
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use proptest::prelude::*;
use std::io::Write;

const MAX: usize = 64 << 20;
const CODECS: [Compression; 4] = [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
/// The first bytes of Google's framing of snappy.
const GOOGLE_FRAMING: &[u8] = b"\xff\x06\x00\x00sNaPpY";

/// Returns an uncompressed batch of `count` records.
fn plain(count: usize, value_len: usize) -> BytesMut {
    let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
    for at in 0..count {
        let value: Vec<u8> = (0..value_len).map(|byte| (byte * byte / 7 + at) as u8).collect();
        builder.append(1_000 + at as i64, Some(b"key"), Some(&value), &[]);
    }
    builder.seal(Stamp::NONE).expect("sealed").0
}

fn payload(batch: &[u8]) -> &[u8] {
    BatchView::first(batch).expect("whole").payload()
}

/// Returns the batch with `payload` instead of its own payload, and with this codec in its header.
fn with_payload(batch: &[u8], codec: Compression, payload: &[u8]) -> BytesMut {
    let mut bytes = BytesMut::from(&batch[..HEADER_LEN]);
    bytes.put_slice(payload);
    let length = (bytes.len() - 12) as i32;
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[22] = codec as u8;
    let crc = crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes
}

fn with_count(mut batch: BytesMut, count: i32) -> BytesMut {
    batch[23..27].copy_from_slice(&(count - 1).to_be_bytes());
    batch[57..61].copy_from_slice(&count.to_be_bytes());
    let crc = crc32c(&batch[21..]);
    batch[17..21].copy_from_slice(&crc.to_be_bytes());
    batch
}

fn packed(codec: Compression, input: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    compress(codec, None, input, &mut out).expect("compresses");
    out
}

fn lz4_frame(info: FrameInfo, input: &[u8]) -> Vec<u8> {
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(input).expect("in memory");
    encoder.finish().expect("in memory")
}

fn independent() -> FrameInfo {
    FrameInfo::new().block_mode(BlockMode::Independent)
}

fn bare_snappy(input: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(input).expect("compresses")
}

/// Returns a zstd frame that does not contain its size, as Java's stream writes it.
fn zstd_stream(level: i32, input: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), level).expect("a level");
    encoder.include_checksum(true).expect("a parameter");
    encoder.write_all(input).expect("in memory");
    encoder.finish().expect("in memory")
}

fn accepted(decompressor: &mut Decompressor, name: &str, batch: &[u8]) {
    let view = BatchView::first(batch).expect("whole");
    let checked = decompressor.check(&view, MAX).unwrap_or_else(|error| panic!("{name}: {error}"));
    let payload =
        decompress(view.compression().expect("a codec"), view.payload(), MAX).expect("a reader decompresses it");
    assert_eq!(check_records(&view, &payload), Ok(checked), "{name}");
    let sent = decompress_sent(view.compression().expect("a codec"), view.payload(), MAX);
    assert_eq!(sent, Ok(payload), "{name}: decompressed to be compressed anew");
}

fn refused(decompressor: &mut Decompressor, name: &str, batch: &[u8]) -> BatchError {
    let view = BatchView::first(batch).expect("whole");
    view.check_crc().expect("the checksum holds");
    let codec = view.compression().expect("a codec");
    let sent = decompress_sent(codec, view.payload(), MAX).and_then(|records| check_records(&view, &records));
    assert!(sent.is_err(), "{name}: decompressed to be compressed anew");
    match decompressor.check(&view, MAX) {
        Err(error @ (BatchError::Malformed(_) | BatchError::Record(_))) => error,
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn batches_of_every_codec_and_level_decompressed_are_accepted() {
    let mut decompressor = Decompressor::default();
    for (count, value_len) in [(1, 10), (40, 100), (2_000, 100), (300, 1_000), (3, 200_000)] {
        let batch = plain(count, value_len);
        for codec in CODECS {
            for level in [None, Some(1), Some(9), Some(16)] {
                let mut out = BytesMut::new();
                compress(codec, level, payload(&batch), &mut out).expect("compresses");
                let name = format!("{codec:?} {level:?} {count} records of {value_len}");
                accepted(&mut decompressor, &name, &with_payload(&batch, codec, &out));
            }
        }
    }
}

#[test]
fn lz4_frames_of_every_kind_that_clients_write_decompressed_are_accepted() {
    let (mut decompressor, batch) = (Decompressor::default(), plain(3_000, 1_000));
    for size in [BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max1MB, BlockSize::Max4MB] {
        for (block, content) in [(false, false), (true, false), (false, true), (true, true)] {
            let info = independent().block_size(size).block_checksums(block).content_checksum(content);
            let info = if block { info.content_size(Some(payload(&batch).len() as u64)) } else { info };
            let frame = lz4_frame(info, payload(&batch));
            accepted(
                &mut decompressor,
                &format!("{size:?} {block} {content}"),
                &with_payload(&batch, Compression::Lz4, &frame),
            );
        }
    }
}

#[test]
fn snappy_bare_or_in_javas_framing_once_or_twice_decompressed_is_accepted() {
    let (mut decompressor, batch) = (Decompressor::default(), plain(300, 1_000));
    let (first, second) = payload(&batch).split_at(100_000);
    let twice = [packed(Compression::Snappy, first), packed(Compression::Snappy, second)].concat();
    for (name, sent) in [("bare", bare_snappy(payload(&batch))), ("framed twice", twice)] {
        accepted(&mut decompressor, name, &with_payload(&batch, Compression::Snappy, &sent));
    }
}

#[test]
fn gzip_members_with_every_header_field_decompressed_are_accepted() {
    let (mut decompressor, batch) = (Decompressor::default(), plain(300, 1_000));
    let (first, second) = payload(&batch).split_at(100_000);
    let named = GzBuilder::new().filename("name").comment("comment").extra("extra").mtime(7);
    let mut encoder = named.write(Vec::new(), flate2::Compression::fast());
    encoder.write_all(first).expect("in memory");
    let mut twice = encoder.finish().expect("in memory");
    let mut checked = packed(Compression::Gzip, second).to_vec();
    checked[3] |= 2;
    let mut crc = Crc::new();
    crc.update(&checked[..10]);
    checked.splice(10..10, (crc.sum() as u16).to_le_bytes());
    twice.extend_from_slice(&checked);
    accepted(&mut decompressor, "two members", &with_payload(&batch, Compression::Gzip, &twice));
}

#[test]
fn zstd_frames_of_unknown_size_or_several_decompressed_are_accepted() {
    let (mut decompressor, batch) = (Decompressor::default(), plain(300, 1_000));
    let (first, second) = payload(&batch).split_at(100_000);
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    for level in [-5, 1, 3, 10, 16] {
        let twice = [zstd_stream(level, first), skippable.clone(), packed(Compression::Zstd, second).to_vec()].concat();
        accepted(&mut decompressor, &format!("level {level}"), &with_payload(&batch, Compression::Zstd, &twice));
    }
    // With one of these lengths, the payload fills the decoder's buffer exactly.
    for value_len in 131_050..131_072 {
        let batch = plain(1, value_len);
        let sent = zstd_stream(3, payload(&batch));
        accepted(&mut decompressor, &value_len.to_string(), &with_payload(&batch, Compression::Zstd, &sent));
    }
}

#[test]
fn a_zstd_window_above_the_limit_decompressed_is_left_to_a_whole_decompression() {
    let batch = plain(300, 1_000);
    let sent = with_payload(&batch, Compression::Zstd, &zstd_stream(22, payload(&batch)));
    let view = BatchView::first(&sent).expect("whole");
    assert_eq!(Decompressor::default().check(&view, MAX), Err(BatchError::Memory(Decompressor::MEMORY_MAX)));
    assert_eq!(decompress(Compression::Zstd, view.payload(), MAX).expect("decompressed"), payload(&batch));
}

#[test]
fn payloads_cut_short_at_any_byte_decompressed_are_refused() {
    let (mut decompressor, batch) = (Decompressor::default(), plain(5, 100));
    for codec in CODECS {
        let whole = packed(codec, payload(&batch));
        for len in 0..whole.len() {
            let name = format!("{codec:?}, {len} of {} bytes", whole.len());
            refused(&mut decompressor, &name, &with_payload(&batch, codec, &whole[..len]));
        }
        accepted(&mut decompressor, "the same after an error", &with_payload(&batch, codec, &whole));
    }
}

#[test]
fn payloads_that_no_consumer_reads_decompressed_are_refused() {
    let (mut decompressor, batch) = (Decompressor::default(), plain(5, 100));
    let records = payload(&batch);
    let mut wrong_crc = packed(Compression::Gzip, records).to_vec();
    let at = wrong_crc.len() - 8;
    wrong_crc[at] ^= 1;
    let mut wrong_len = packed(Compression::Gzip, records).to_vec();
    *wrong_len.last_mut().expect("a trailer") ^= 1;
    let lz4 = lz4_frame(independent(), records);
    let mut wrong_descriptor = lz4.clone();
    wrong_descriptor[6] ^= 1;
    let linked = lz4_frame(FrameInfo::new().block_mode(BlockMode::Linked), records);
    let mut wrong_content = lz4_frame(independent().content_checksum(true), records);
    *wrong_content.last_mut().expect("a checksum") ^= 1;
    let google = [GOOGLE_FRAMING, &bare_snappy(records)].concat();
    let zstd = packed(Compression::Zstd, records);
    let cases: [(&str, Compression, &[u8]); 14] = [
        ("gzip that is no gzip", Compression::Gzip, records),
        ("gzip with a wrong checksum", Compression::Gzip, &wrong_crc),
        ("gzip with a wrong length", Compression::Gzip, &wrong_len),
        ("snappy in Google's framing", Compression::Snappy, &google),
        ("snappy that is no snappy", Compression::Snappy, records),
        ("LZ4 whose blocks depend on each other", Compression::Lz4, &linked),
        ("LZ4 with a wrong descriptor checksum", Compression::Lz4, &wrong_descriptor),
        ("LZ4 with a wrong content checksum", Compression::Lz4, &wrong_content),
        ("LZ4 without its end", Compression::Lz4, &lz4[..lz4.len() - 4]),
        ("LZ4 twice", Compression::Lz4, &[&lz4[..], &lz4].concat()),
        ("zstd cut short", Compression::Zstd, &zstd[..zstd.len() - 1]),
        ("zstd of no bytes", Compression::Zstd, &[]),
        ("zstd with bytes behind", Compression::Zstd, &[&zstd[..], b"abcdefgh"].concat()),
        ("zstd twice", Compression::Zstd, &[&zstd[..], &zstd].concat()),
    ];
    for (name, codec, sent) in cases {
        refused(&mut decompressor, name, &with_payload(&batch, codec, sent));
    }
}

#[test]
fn counts_and_lengths_that_the_records_do_not_bear_out_decompressed_are_refused() {
    let (mut decompressor, batch) = (Decompressor::default(), plain(5, 100));
    let records = payload(&batch);
    let mut renumbered = records.to_vec();
    renumbered[4] = 2;
    for codec in CODECS {
        let sent = with_payload(&batch, codec, &packed(codec, records));
        for count in [1, 4, 6, i32::MAX] {
            refused(&mut decompressor, &format!("{codec:?} counts {count}"), &with_count(sent.clone(), count));
        }
        for (name, wrong) in [
            ("bytes behind", &[records, b"more"].concat()[..]),
            ("cut records", &records[..records.len() - 1]),
            ("an offset out of order", &renumbered),
            ("no record", &[]),
        ] {
            refused(
                &mut decompressor,
                &format!("{codec:?}, {name}"),
                &with_payload(&batch, codec, &packed(codec, wrong)),
            );
        }
    }
}

#[test]
fn a_bomb_decompressed_is_refused_at_the_limit() {
    let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
    builder.append(7, None, Some(&vec![0; 50 << 20]), &[]);
    let batch = builder.seal(Stamp::NONE).expect("sealed").0;
    let mut decompressor = Decompressor::default();
    for codec in CODECS {
        let bomb = with_payload(&batch, codec, &packed(codec, payload(&batch)));
        let view = BatchView::first(&bomb).expect("whole");
        assert_eq!(decompressor.check(&view, 1 << 20), Err(BatchError::TooLarge(1 << 20)), "{codec:?}");
        assert_eq!(decompressor.check(&view, MAX).expect("within the limit").bytes, payload(&batch).len(), "{codec:?}");
    }
}

proptest! {
    #[test]
    fn damaged_payloads_that_are_accepted_can_be_read(codec in 0..4_usize, at: usize, byte: u8, value_len in 0..300_usize) {
        let (codec, batch) = (CODECS[codec], plain(5, value_len));
        let mut damaged = packed(codec, payload(&batch));
        let at = at % damaged.len();
        damaged[at] = byte;
        let sent = with_payload(&batch, codec, &damaged);
        let view = BatchView::first(&sent).expect("whole");
        if let Ok(checked) = Decompressor::default().check(&view, MAX) {
            let payload = decompress(codec, view.payload(), MAX).expect("a reader decompresses it");
            prop_assert_eq!(check_records(&view, &payload), Ok(checked));
        }
    }
}
