//! gzip (RFC 1952): members one after the other, each with the checksum and the length of what it holds.
//!
//! Not lenient: bytes after the last member are an error, which some clients' readers make of them.

use super::super::view::BatchError;
use crc_fast::{CrcAlgorithm, Digest};
use flate2::{Decompress, FlushDecompress, Status};

const CUT: BatchError = BatchError::Malformed("the gzip data is cut short");
/// Flags of a member's header.
const HEADER_CHECKSUM: u8 = 2;
const EXTRA: u8 = 4;
const NAME: u8 = 8;
const COMMENT: u8 = 16;
const RESERVED: u8 = 0xe0;

/// A gzip decoder that is used again.
pub struct GzipDecoder {
    inflate: Decompress,
}

impl Default for GzipDecoder {
    fn default() -> Self {
        GzipDecoder { inflate: Decompress::new(false) }
    }
}

impl GzipDecoder {
    /// Decompresses `input` by way of `buffer`, piece by piece.
    ///
    /// # Errors
    /// [`BatchError::Malformed`], and those of `take`.
    pub fn pieces(
        &mut self,
        mut input: &[u8],
        buffer: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), BatchError>,
    ) -> Result<(), BatchError> {
        loop {
            input = self.member(after_header(input)?, buffer, take)?;
            if input.is_empty() {
                return Ok(());
            }
        }
    }

    /// Decompresses one member whose header was read. Returns the bytes behind it.
    fn member<'a>(
        &mut self,
        mut input: &'a [u8],
        buffer: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), BatchError>,
    ) -> Result<&'a [u8], BatchError> {
        self.inflate.reset(false);
        let (mut checksum, mut len) = (Digest::new(CrcAlgorithm::Crc32IsoHdlc), 0_u32);
        loop {
            let (read, made) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress(input, buffer, FlushDecompress::None);
            let status = status.map_err(|_| BatchError::Malformed("the gzip data is damaged"))?;
            let read = (self.inflate.total_in() - read) as usize;
            let piece = &buffer[..(self.inflate.total_out() - made) as usize];
            input = &input[read..];
            checksum.update(piece);
            len = len.wrapping_add(piece.len() as u32);
            take(piece)?;
            match status {
                Status::StreamEnd => break,
                _ if read == 0 && piece.is_empty() => return Err(CUT),
                _ => {}
            }
        }
        let (trailer, rest) = input.split_first_chunk::<8>().ok_or(CUT)?;
        let expected = (checksum.finalize() as u32).to_le_bytes();
        if trailer[..4] != expected || trailer[4..] != len.to_le_bytes() {
            return Err(BatchError::Malformed("the gzip checksum does not match"));
        }
        Ok(rest)
    }
}

/// Returns the bytes behind a member's header.
fn after_header(input: &[u8]) -> Result<&[u8], BatchError> {
    let (fixed, mut rest) = input.split_first_chunk::<10>().ok_or(CUT)?;
    let flags = fixed[3];
    if fixed[..3] != [0x1f, 0x8b, 8] || flags & RESERVED != 0 {
        return Err(BatchError::Malformed("no gzip header"));
    }
    if flags & EXTRA != 0 {
        let (len, after) = rest.split_first_chunk::<2>().ok_or(CUT)?;
        rest = after.get(usize::from(u16::from_le_bytes(*len))..).ok_or(CUT)?;
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            let end = rest.iter().position(|byte| *byte == 0).ok_or(CUT)?;
            rest = &rest[end + 1..];
        }
    }
    if flags & HEADER_CHECKSUM != 0 {
        let header = &input[..input.len() - rest.len()];
        let (checksum, after) = rest.split_first_chunk::<2>().ok_or(CUT)?;
        if crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, header) as u16 != u16::from_le_bytes(*checksum) {
            return Err(BatchError::Malformed("the checksum of the gzip header does not match"));
        }
        rest = after;
    }
    Ok(rest)
}
