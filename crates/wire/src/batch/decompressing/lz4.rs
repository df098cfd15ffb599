//! LZ4 frames as Kafka's brokers accept them (`Lz4BlockInputStream`): a single frame of independent blocks.
//!
//! Two rules are stricter than Kafka's, because some clients could not read the frame otherwise. The checksum and the
//! size of the content must be right, and no bytes may follow the frame. Invariant: at most one block of 4 MiB is in
//! memory.

use super::super::view::BatchError;
use lz4_flex::block::{DecompressError, decompress_into};
use std::hash::Hasher;
use twox_hash::XxHash32;

const MAGIC: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
/// The bits of the version in the first byte of a frame's descriptor. The other bits show which optional fields the
/// frame has.
const VERSION: u8 = 0xc0;
const VERSION_1: u8 = 0x40;
const INDEPENDENT: u8 = 0x20;
const BLOCK_CHECKSUMS: u8 = 0x10;
const CONTENT_SIZE: u8 = 0x08;
const CONTENT_CHECKSUM: u8 = 0x04;
const RESERVED: u8 = 0x03;
/// Bit in the length of a block that is not compressed.
const AS_IT_WAS: u32 = 1 << 31;
/// Minimum size of the buffer for blocks, in bytes.
const BUFFER_LEAST: usize = 64 << 10;
const CUT: BatchError = BatchError::Malformed("the LZ4 frame is cut short");

/// The descriptor of a frame.
struct Descriptor {
    flags: u8,
    /// Maximum size of a block in bytes.
    block_max: usize,
    content_size: Option<u64>,
}

/// Decompresses a frame block by block through `buffer`, which grows to the size of a block.
///
/// # Errors
/// Returns [`BatchError::Malformed`] if `input` is not a frame that is accepted here. Also fails if `take` fails.
pub fn pieces(
    mut input: &[u8],
    buffer: &mut Vec<u8>,
    take: &mut impl FnMut(&[u8]) -> Result<(), BatchError>,
) -> Result<(), BatchError> {
    let frame = descriptor(&mut input)?;
    let has = |flag| frame.flags & flag != 0;
    let (mut content, mut content_len) = (XxHash32::with_seed(0), 0_u64);
    loop {
        let word = take_u32(&mut input)?;
        if word == 0 {
            break;
        }
        let len = (word & !AS_IT_WAS) as usize;
        if len == 0 || len > frame.block_max {
            return Err(BatchError::Malformed("an LZ4 block has a length that no block has"));
        }
        let (block, rest) = input.split_at_checked(len).ok_or(CUT)?;
        input = rest;
        if has(BLOCK_CHECKSUMS) && take_u32(&mut input)? != XxHash32::oneshot(0, block) {
            return Err(BatchError::Malformed("the checksum of an LZ4 block does not match"));
        }
        let piece = if word & AS_IT_WAS != 0 { block } else { decompress_block(block, frame.block_max, buffer)? };
        content_len += piece.len() as u64;
        if has(CONTENT_CHECKSUM) {
            content.write(piece);
        }
        take(piece)?;
    }
    if has(CONTENT_CHECKSUM) && u64::from(take_u32(&mut input)?) != content.finish() {
        return Err(BatchError::Malformed("the checksum of the LZ4 frame does not match"));
    }
    if frame.content_size.is_some_and(|size| size != content_len) {
        return Err(BatchError::Malformed("the LZ4 frame has another size than it says"));
    }
    if input.is_empty() { Ok(()) } else { Err(BatchError::Malformed("bytes after the LZ4 frame")) }
}

fn descriptor(input: &mut &[u8]) -> Result<Descriptor, BatchError> {
    let bytes = input.strip_prefix(&MAGIC).ok_or(BatchError::Malformed("no LZ4 frame"))?;
    let (&[flags, block], _) = bytes.split_first_chunk::<2>().ok_or(CUT)?;
    if flags & VERSION != VERSION_1 || flags & RESERVED != 0 {
        return Err(BatchError::Malformed("an LZ4 frame of an unknown kind"));
    }
    if flags & INDEPENDENT == 0 {
        return Err(BatchError::Malformed("the LZ4 frame has blocks that depend on each other"));
    }
    let block_max = match block {
        0x40 => 64 << 10,
        0x50 => 256 << 10,
        0x60 => 1 << 20,
        0x70 => 4 << 20,
        _ => return Err(BatchError::Malformed("an LZ4 frame with blocks of an unknown size")),
    };
    let len = if flags & CONTENT_SIZE != 0 { 10 } else { 2 };
    let (described, rest) = bytes.split_at_checked(len).ok_or(CUT)?;
    let (&checksum, rest) = rest.split_first().ok_or(CUT)?;
    if (XxHash32::oneshot(0, described) >> 8) as u8 != checksum {
        return Err(BatchError::Malformed("the checksum of the LZ4 descriptor does not match"));
    }
    *input = rest;
    let content_size = described[2..].first_chunk::<8>().map(|size| u64::from_le_bytes(*size));
    Ok(Descriptor { flags, block_max, content_size })
}

fn take_u32(input: &mut &[u8]) -> Result<u32, BatchError> {
    let (bytes, rest) = input.split_first_chunk::<4>().ok_or(CUT)?;
    *input = rest;
    Ok(u32::from_le_bytes(*bytes))
}

/// Decompresses a block. The block does not contain its decompressed size, so a small buffer is tried first.
fn decompress_block<'b>(block: &[u8], block_max: usize, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], BatchError> {
    let mut room = block.len().saturating_mul(8).max(BUFFER_LEAST).max(buffer.len()).min(block_max);
    loop {
        if buffer.len() < room {
            // The system provides zeroed pages only when they are written, so unused pages of the buffer cost nothing.
            *buffer = vec![0; room];
        }
        match decompress_into(block, &mut buffer[..room]) {
            Ok(len) => return Ok(&buffer[..len]),
            Err(DecompressError::OutputTooSmall { .. }) if room < block_max => room = block_max,
            Err(_) => return Err(BatchError::Malformed("an LZ4 block is damaged")),
        }
    }
}
