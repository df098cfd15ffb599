//! Recompression of a batch with another codec, by a broker whose topic has its own `compression.type`.
//!
//! Not a check: the given records must be the batch's. Invariant: the records stay byte for byte. The header stays too,
//! except for length, checksum, codec and largest timestamp, which the caller has read in the records.

use super::compression::{Level, compress};
use super::view::{BatchError, BatchView, Compression, HEADER_LEN, crc32c};
use bytes::{BufMut, BytesMut};

/// Attributes that stay: the source of the timestamps, and whether the batch is in a transaction. Kafka also drops the
/// others, because clients have no use for them.
const KEPT: i16 = 0x18;

/// Returns the batch with `codec` at `level` in place of its own; `payload` is its records without compression.
///
/// # Errors
/// [`BatchError::Decompress`] if the codec fails; [`BatchError::TooLarge`] past the largest length of a batch.
pub fn recompress(
    batch: &BatchView<'_>,
    payload: &[u8],
    max_timestamp: i64,
    codec: Compression,
    level: Level,
) -> Result<BytesMut, BatchError> {
    let expected = if codec == Compression::None { payload.len() } else { payload.len() / 2 };
    let mut out = BytesMut::with_capacity(HEADER_LEN + expected);
    out.put_slice(&batch.bytes()[..HEADER_LEN]);
    compress(codec, level, payload, &mut out)?;
    let length = i32::try_from(out.len() - 12).map_err(|_| BatchError::TooLarge(i32::MAX as usize))?;
    out[8..12].copy_from_slice(&length.to_be_bytes());
    out[21..23].copy_from_slice(&(batch.attributes() & KEPT | codec as i16).to_be_bytes());
    out[35..43].copy_from_slice(&max_timestamp.to_be_bytes());
    let crc = crc32c(&out[21..]);
    out[17..21].copy_from_slice(&crc.to_be_bytes());
    Ok(out)
}
