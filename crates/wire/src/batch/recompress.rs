//! Compresses a batch with another codec, for topics that have their own `compression.type`.
//!
//! The batch is not checked, and the payload that is passed in must be that of the batch. Invariant: the bytes of the
//! records do not change. In the header, only the length, the checksum, the attributes and the largest timestamp
//! change. The caller passes the largest timestamp that it has read in the records.

use super::compression::{Level, compress};
use super::view::{BatchError, BatchView, Compression, HEADER_LEN, crc32c};
use bytes::{BufMut, BytesMut};

/// The attributes that are kept: the source of the timestamps, and whether the batch is in a transaction. As in Kafka,
/// the others are dropped, because clients do not use them.
const KEPT: i16 = 0x18;

/// Returns the batch compressed with `codec` at `level`. `payload` has its records without compression.
///
/// # Errors
/// Returns [`BatchError::Decompress`] if the codec fails, and [`BatchError::TooLarge`] if the batch would exceed the
/// maximum length.
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
