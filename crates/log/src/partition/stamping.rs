//! Sets the fields in a batch's header that the broker decides: the offset, the leader epoch, the timestamp type, and
//! the timestamp of topics with LogAppendTime.
//!
//! Only the 61 bytes of the header are copied, and the records stay where they are. Invariant: the checksum is correct
//! for the bytes that are written. The checksum is computed again only if one of the fields that it covers has changed.

use bytes::{BufMut, Bytes, BytesMut};
use crc_fast::{CrcAlgorithm, Digest};
use fullbore_wire::batch::{BatchView, HEADER_LEN, TimestampType as Stamped};

use fullbore_config::TimestampType;

/// The position in a batch of the first byte that the checksum covers.
const CRC_END: usize = 21;
/// The bytes of a batch that hold its attributes.
const ATTRIBUTES: std::ops::Range<usize> = 21..23;
/// The bytes of a batch that hold its largest timestamp.
const MAX_TIMESTAMP: std::ops::Range<usize> = 35..43;
/// The bit of the attributes that is set if the records have the time of their append as their timestamp.
const LOG_APPEND_TIME: i16 = 0x08;

/// The batch header that the broker writes to the log, in place of the header that the client has sent.
pub struct Stamping {
    bytes: [u8; HEADER_LEN],
    /// The largest timestamp in ms.
    pub max_timestamp: i64,
}

impl Stamping {
    /// Creates the header with the topic's timestamp type `clock`. The offset and the leader epoch are set later.
    pub fn new(batch: &BatchView<'_>, clock: TimestampType, now_ms: i64) -> Stamping {
        let mut stamping = Stamping::as_is(batch);
        match (clock, batch.timestamp_type()) {
            (TimestampType::CreateTime, Stamped::CreateTime) => {}
            (TimestampType::CreateTime, Stamped::LogAppendTime) => {
                stamping.retime(batch, batch.attributes() & !LOG_APPEND_TIME, batch.max_timestamp());
            }
            (TimestampType::LogAppendTime, _) => {
                stamping.retime(batch, batch.attributes() | LOG_APPEND_TIME, now_ms);
            }
        }
        stamping
    }

    /// Returns the complete batch as it is stored, and its largest timestamp in ms. The batch has the topic's timestamp
    /// type `clock`, and for now the offset 0.
    pub fn stored(batch: &BatchView<'_>, clock: TimestampType, now_ms: i64, leader_epoch: i32) -> (Bytes, i64) {
        let mut stamping = Stamping::new(batch, clock, now_ms);
        let mut bytes = BytesMut::with_capacity(batch.size());
        bytes.put_slice(stamping.at(0, leader_epoch));
        bytes.put_slice(batch.payload());
        (bytes.freeze(), stamping.max_timestamp)
    }

    /// Returns the header as the leader has written it, without changes.
    pub fn as_is(batch: &BatchView<'_>) -> Stamping {
        let mut bytes = [0; HEADER_LEN];
        bytes.copy_from_slice(&batch.bytes()[..HEADER_LEN]);
        Stamping { bytes, max_timestamp: batch.max_timestamp() }
    }

    /// Returns the header.
    pub fn bytes(&self) -> &[u8; HEADER_LEN] {
        &self.bytes
    }

    fn retime(&mut self, batch: &BatchView<'_>, attributes: i16, max_timestamp: i64) {
        self.bytes[ATTRIBUTES].copy_from_slice(&attributes.to_be_bytes());
        self.bytes[MAX_TIMESTAMP].copy_from_slice(&max_timestamp.to_be_bytes());
        self.max_timestamp = max_timestamp;
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&self.bytes[CRC_END..]);
        digest.update(batch.payload());
        let crc = digest.finalize() as u32;
        self.bytes[17..CRC_END].copy_from_slice(&crc.to_be_bytes());
    }

    /// Sets the offset and the leader epoch, and returns the header.
    pub fn at(&mut self, base_offset: i64, leader_epoch: i32) -> &[u8; HEADER_LEN] {
        self.bytes[..8].copy_from_slice(&base_offset.to_be_bytes());
        self.bytes[12..16].copy_from_slice(&leader_epoch.to_be_bytes());
        &self.bytes
    }
}
