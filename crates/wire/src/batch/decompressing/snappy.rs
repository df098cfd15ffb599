//! Snappy, with Java's framing of blocks (xerial) or as one bare block, as other clients send it.
//!
//! Google's framing is not accepted, because no client of Kafka can read it. Several streams with Java's framing may
//! follow each other, as in `SnappyInputStream`.

use super::super::view::BatchError;

/// The header of Java's framing: magic, version 1, compatible version 1.
pub const XERIAL_HEADER: [u8; 16] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1];
const MAGIC_LEN: usize = 8;
const CUT: BatchError = BatchError::Malformed("the snappy data is cut short");
const DAMAGED: BatchError = BatchError::Malformed("a snappy block is damaged");
/// Maximum ratio of the size that a block claims to its compressed size. Snappy reaches 64 / 3 at most.
const EXPANSION_MAX: usize = 22;

/// Returns the compressed blocks of a payload.
pub fn blocks(input: &[u8]) -> Blocks<'_> {
    let is_framed = input.len() >= XERIAL_HEADER.len() && input.starts_with(&XERIAL_HEADER[..MAGIC_LEN]);
    if is_framed { Blocks::Framed(input) } else { Blocks::Bare(Some(input)) }
}

/// The compressed blocks that have not been returned yet.
pub enum Blocks<'a> {
    Framed(&'a [u8]),
    Bare(Option<&'a [u8]>),
}

impl<'a> Iterator for Blocks<'a> {
    type Item = Result<&'a [u8], BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Blocks::Bare(block) => block.take().map(Ok),
            Blocks::Framed(input) => next_framed(input).transpose(),
        }
    }
}

/// Skips headers, and removes and returns the next block; None at the end. A header is recognised by its magic, whose
/// first bytes would be an impossible length of a block.
fn next_framed<'a>(input: &mut &'a [u8]) -> Result<Option<&'a [u8]>, BatchError> {
    while input.starts_with(&XERIAL_HEADER[..MAGIC_LEN]) {
        let (header, rest) = input.split_first_chunk::<{ XERIAL_HEADER.len() }>().ok_or(CUT)?;
        if header[MAGIC_LEN..MAGIC_LEN + 4] == [0; 4] {
            return Err(BatchError::Malformed("a version of the snappy framing that does not exist"));
        }
        *input = rest;
    }
    if input.is_empty() {
        return Ok(None);
    }
    let (len, rest) = input.split_first_chunk::<4>().ok_or(CUT)?;
    let (block, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize).ok_or(CUT)?;
    *input = rest;
    Ok(Some(block))
}

/// Returns the size of a block after decompression, in bytes.
///
/// # Errors
/// Returns [`BatchError::Malformed`] if the claimed size is impossible.
pub fn decompressed_len(block: &[u8]) -> Result<usize, BatchError> {
    let len = snap::raw::decompress_len(block).map_err(|_| DAMAGED)?;
    if len > block.len().saturating_mul(EXPANSION_MAX) { Err(DAMAGED) } else { Ok(len) }
}

/// Decompresses a block into `out`, which must have the length that [`decompressed_len`] returns.
///
/// # Errors
/// Returns [`BatchError::Malformed`] if the block is not snappy or has another length.
pub fn decompress_block(block: &[u8], out: &mut [u8]) -> Result<(), BatchError> {
    match snap::raw::Decoder::new().decompress(block, out) {
        Ok(len) if len == out.len() => Ok(()),
        _ => Err(DAMAGED),
    }
}
