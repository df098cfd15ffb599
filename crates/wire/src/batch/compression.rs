//! Compresses and decompresses the records of a batch. The size that a compressed block claims may be false, so the
//! output is limited while it is written.

use super::decompressing::{XERIAL_HEADER, blocks, decompress_block, decompressed_len, lz4_pieces};
use super::view::{BatchError, Compression};
use bytes::{BufMut, Bytes, BytesMut};
use std::cell::Cell;
use std::io::{Read, Write};
use zstd::zstd_safe::{CCtx, CParameter};

/// The level of a codec; `None` for the default level.
pub type Level = Option<i32>;

/// Size of a block in Java's snappy stream before compression, in bytes.
const XERIAL_BLOCK: usize = 32 * 1024;

/// The first bytes of the LZ4 frames that Kafka writes: the magic, the flags for independent blocks of 64 KiB without
/// checksums, and the checksum of this header.
const LZ4_HEADER: [u8; 7] = [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
/// Size of a block in an LZ4 frame before compression, in bytes.
const LZ4_BLOCK: usize = 64 * 1024;
/// Flag of an LZ4 block that is not compressed.
const LZ4_AS_IT_WAS: u32 = 1 << 31;
/// The level for which Kafka uses LZ4's fast compressor. For every other level it uses a slow one
/// (`Lz4BlockOutputStream`).
const LZ4_FAST: i32 = 9;

/// Compresses `input` and appends the result to `out`. The levels are Kafka's: gzip has 1-9, LZ4 has 1-17 where 9 is
/// the fast compressor, and zstd has up to 22. A higher level counts as the highest. Snappy has only one level.
///
/// # Errors
/// Returns [`BatchError::Decompress`] if the codec fails, which happens only if memory runs out.
pub fn compress(codec: Compression, level: Level, input: &[u8], out: &mut BytesMut) -> Result<(), BatchError> {
    let failed = |_| BatchError::Decompress;
    match codec {
        Compression::None => out.put_slice(input),
        Compression::Gzip => {
            let level = level.and_then(|level| u32::try_from(level).ok());
            let level = level.map_or_else(Default::default, |level| flate2::Compression::new(level.min(9)));
            let mut encoder = flate2::write::GzEncoder::new(out.writer(), level);
            encoder.write_all(input).map_err(failed)?;
            encoder.finish().map_err(failed)?;
        }
        Compression::Snappy => xerial(input, out)?,
        Compression::Lz4 if level.is_some_and(|level| level != LZ4_FAST) => {
            slow_lz4(level.unwrap_or(LZ4_FAST), input, out)?;
        }
        Compression::Lz4 => {
            let info = lz4_flex::frame::FrameInfo::new()
                .block_size(lz4_flex::frame::BlockSize::Max64KB)
                .block_mode(lz4_flex::frame::BlockMode::Independent);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, out.writer());
            encoder.write_all(input).map_err(failed)?;
            encoder.finish().map_err(|_| BatchError::Decompress)?;
        }
        Compression::Zstd => zstd_frame(level.unwrap_or(3), input, out)?,
    }
    Ok(())
}

/// Maximum memory of a zstd context that is kept for the next batch, in bytes. A context takes less than 4 MiB at level
/// 3, and up to 700 MB at level 22.
const ZSTD_KEPT_MAX: usize = 8 << 20;

thread_local! {
    /// The context of the last batch, for reuse: to create a context takes longer than to compress a batch of 4 KiB.
    static ZSTD: Cell<Option<CCtx<'static>>> = const { Cell::new(None) };
}

/// Writes a zstd frame. The input is compressed in a single call, so the context allocates only the memory that this
/// input needs.
fn zstd_frame(level: i32, input: &[u8], out: &mut BytesMut) -> Result<(), BatchError> {
    let mut context = ZSTD.take().or_else(CCtx::try_create).ok_or(BatchError::Decompress)?;
    context.set_parameter(CParameter::CompressionLevel(level)).map_err(|_| BatchError::Decompress)?;
    let at = out.len();
    out.put_bytes(0, zstd::zstd_safe::compress_bound(input.len()));
    let len = context.compress2(&mut out[at..], input).map_err(|_| BatchError::Decompress)?;
    out.truncate(at + len);
    if context.sizeof() <= ZSTD_KEPT_MAX {
        ZSTD.set(Some(context));
    }
    Ok(())
}

/// Writes an LZ4 frame with the slow compressor.
fn slow_lz4(level: i32, input: &[u8], out: &mut BytesMut) -> Result<(), BatchError> {
    let failed = |_| BatchError::Decompress;
    let mode = lz4::block::CompressionMode::HIGHCOMPRESSION(level);
    let mut compressed = vec![0; lz4::block::compress_bound(input.len().min(LZ4_BLOCK)).map_err(failed)?];
    out.put_slice(&LZ4_HEADER);
    for block in input.chunks(LZ4_BLOCK) {
        let len = lz4::block::compress_to_buffer(block, Some(mode), false, &mut compressed).map_err(failed)?;
        if len < block.len() {
            out.put_u32_le(len as u32);
            out.put_slice(&compressed[..len]);
        } else {
            out.put_u32_le(block.len() as u32 | LZ4_AS_IT_WAS);
            out.put_slice(block);
        }
    }
    out.put_u32_le(0);
    Ok(())
}

/// Decompresses `input` to at most `max` bytes.
///
/// # Errors
/// Returns [`BatchError::Decompress`] or [`BatchError::Malformed`] if `input` was not written by the codec, and
/// [`BatchError::TooLarge`] if the output would exceed `max`.
pub fn decompress(codec: Compression, input: &[u8], max: usize) -> Result<Bytes, BatchError> {
    match codec {
        Compression::None if input.len() > max => Err(BatchError::TooLarge(max)),
        Compression::None => Ok(Bytes::copy_from_slice(input)),
        Compression::Gzip => read_bounded(flate2::read::MultiGzDecoder::new(input), max),
        Compression::Snappy => unsnappy(input, max),
        Compression::Lz4 => read_bounded(lz4_flex::frame::FrameDecoder::new(input), max),
        Compression::Zstd => unzstd(input, max),
    }
}

/// Decompresses a batch that a client has sent to the broker. Unlike [`decompress`], refuses LZ4 frames that some
/// consumers could not read.
///
/// # Errors
/// Fails like [`decompress`].
pub fn decompress_sent(codec: Compression, input: &[u8], max: usize) -> Result<Bytes, BatchError> {
    if codec != Compression::Lz4 {
        return decompress(codec, input, max);
    }
    let mut out = Vec::new();
    lz4_pieces(input, &mut Vec::new(), &mut |piece| append(piece, max, &mut out))?;
    Ok(out.into())
}

fn append(piece: &[u8], max: usize, out: &mut Vec<u8>) -> Result<(), BatchError> {
    if piece.len() > max - out.len() {
        return Err(BatchError::TooLarge(max));
    }
    out.extend_from_slice(piece);
    Ok(())
}

fn read_bounded(reader: impl Read, max: usize) -> Result<Bytes, BatchError> {
    let mut out = Vec::new();
    reader.take(max as u64 + 1).read_to_end(&mut out).map_err(|_| BatchError::Decompress)?;
    if out.len() > max { Err(BatchError::TooLarge(max)) } else { Ok(out.into()) }
}

/// Decompresses in a single call, into a buffer that doubles until the records fit. A streaming decoder would allocate
/// a window of the size that the frame claims. This can be 128 MiB, as at level 22, for a few bytes from an unknown
/// client.
fn unzstd(input: &[u8], max: usize) -> Result<Bytes, BatchError> {
    /// The error that zstd returns for `dstSize_tooSmall`. zstd_errors.h promises to keep this number.
    const OUTPUT_FULL: usize = 0usize.wrapping_sub(70);
    let mut context = zstd::zstd_safe::DCtx::create();
    let mut capacity = input.len().saturating_mul(8).max(4096).min(max);
    loop {
        let mut out = Vec::with_capacity(capacity);
        match context.decompress(&mut out, input) {
            // The vector may have more capacity than was requested, so the output can exceed `max`.
            Ok(_) if out.len() > max => return Err(BatchError::TooLarge(max)),
            Ok(_) => return Ok(out.into()),
            Err(OUTPUT_FULL) if capacity == max => return Err(BatchError::TooLarge(max)),
            Err(OUTPUT_FULL) => capacity = capacity.saturating_mul(2).min(max),
            Err(_) => return Err(BatchError::Decompress),
        }
    }
}

/// Compresses with Java's framing of snappy: a header, and then blocks with big-endian lengths.
fn xerial(input: &[u8], out: &mut BytesMut) -> Result<(), BatchError> {
    let mut encoder = snap::raw::Encoder::new();
    out.put_slice(&XERIAL_HEADER);
    for block in input.chunks(XERIAL_BLOCK) {
        let at = out.len();
        out.put_bytes(0, 4 + snap::raw::max_compress_len(block.len()));
        let len = encoder.compress(block, &mut out[at + 4..]).map_err(|_| BatchError::Decompress)?;
        out[at..at + 4].copy_from_slice(&(len as u32).to_be_bytes());
        out.truncate(at + 4 + len);
    }
    Ok(())
}

/// Decompresses snappy, either with Java's framing or as the bare block that other clients send.
fn unsnappy(input: &[u8], max: usize) -> Result<Bytes, BatchError> {
    let mut out = Vec::new();
    for block in blocks(input) {
        let block = block?;
        let (at, len) = (out.len(), decompressed_len(block)?);
        if len > max - at {
            return Err(BatchError::TooLarge(max));
        }
        out.resize(at + len, 0);
        decompress_block(block, &mut out[at..])?;
    }
    Ok(out.into())
}
