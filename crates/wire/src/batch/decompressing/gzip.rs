//! gzip (RFC 1952): a series of members, each with the checksum and the length of its contents.
//!
//! Bytes after the last member are an error, because some clients could not read such a batch.

use super::super::view::BatchError;
use flate2::bufread::MultiGzDecoder;
use std::io::{ErrorKind, Read};

/// Decompresses `input` through `buffer`, piece by piece.
///
/// # Errors
/// Returns [`BatchError::Malformed`] if `input` is not gzip. Also fails if `take` fails.
pub fn pieces(
    input: &[u8],
    buffer: &mut [u8],
    take: &mut impl FnMut(&[u8]) -> Result<(), BatchError>,
) -> Result<(), BatchError> {
    let mut decoder = MultiGzDecoder::new(input);
    loop {
        match decoder.read(buffer) {
            Ok(0) => return Ok(()),
            Ok(len) => take(&buffer[..len])?,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(BatchError::Malformed("the gzip data is cut short"));
            }
            Err(_) => return Err(BatchError::Malformed("the gzip data is damaged")),
        }
    }
}
