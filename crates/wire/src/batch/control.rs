//! Control batches. Those of a partition contain the markers that end transactions.
//!
//! A control batch has one record. Its key is a version and a type, in 16 bits each. The value of a marker is a version
//! in 16 bits and the coordinator's epoch in 32 bits. Kafka 4.3 writes version 0 of key and value, and reads later
//! versions as if they were version 0. The values of KRaft's control records are not read here.
//!
//! Source: `ControlRecordType`, `EndTransactionMarker` and `MemoryRecords.withEndTransactionMarker` of Kafka 4.3.
//!
//! Invariant: a marker that was built here is read back unchanged.

use super::builder::{Stamp, Unsealed, restamp};
use super::new_record::NewRecord;
use super::record::{Record, RecordIter};
use super::view::{BatchError, BatchView, CONTROL, Compression, HEADER_LEN, LENGTH_END, TRANSACTIONAL};
use bytes::{BufMut, BytesMut};
use std::fmt;

/// The version of a key, and of a marker's value.
const VERSION: i16 = 0;
/// Size of a key in bytes.
const KEY_LEN: usize = 4;
/// Size of a marker's value in bytes.
const VALUE_LEN: usize = 6;

/// The type of a control record, which is in its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlType {
    /// 0: a marker that aborts a transaction.
    Abort,
    /// 1: a marker that commits a transaction.
    Commit,
    /// 2: a new leader of a KRaft quorum.
    LeaderChange,
    /// 3: the first record of a KRaft snapshot.
    SnapshotHeader,
    /// 4: the last record of a KRaft snapshot.
    SnapshotFooter,
    /// 5: the version of KRaft's protocol.
    KraftVersion,
    /// 6: the voters of a KRaft quorum.
    KraftVoters,
    /// Any other type.
    Unknown(i16),
}

impl ControlType {
    /// Returns the type that has this code.
    pub const fn from_code(code: i16) -> ControlType {
        match code {
            0 => ControlType::Abort,
            1 => ControlType::Commit,
            2 => ControlType::LeaderChange,
            3 => ControlType::SnapshotHeader,
            4 => ControlType::SnapshotFooter,
            5 => ControlType::KraftVersion,
            6 => ControlType::KraftVoters,
            other => ControlType::Unknown(other),
        }
    }

    /// Returns the code on the wire.
    pub const fn code(self) -> i16 {
        match self {
            ControlType::Abort => 0,
            ControlType::Commit => 1,
            ControlType::LeaderChange => 2,
            ControlType::SnapshotHeader => 3,
            ControlType::SnapshotFooter => 4,
            ControlType::KraftVersion => 5,
            ControlType::KraftVoters => 6,
            ControlType::Unknown(code) => code,
        }
    }

    /// Returns the type of the first record in a control batch; `None` if the records were removed by compaction.
    ///
    /// # Errors
    /// Returns [`ControlError`] if the batch is not a control batch, or if its first record or the record's key cannot
    /// be read. The value is not checked.
    pub fn of(batch: &BatchView<'_>) -> Result<Option<ControlType>, ControlError> {
        first_record(batch)?.map(|record| ControlType::parse(record.key.unwrap_or_default())).transpose()
    }

    /// Reads the type in the key of a record. Bytes after the type are ignored, as in Kafka.
    fn parse(key: &[u8]) -> Result<ControlType, ControlError> {
        let [v0, v1, t0, t1, ..] = *key else { return Err(ControlError::Key(key.len())) };
        match i16::from_be_bytes([v0, v1]) {
            VERSION.. => Ok(ControlType::from_code(i16::from_be_bytes([t0, t1]))),
            negative => Err(ControlError::KeyVersion(negative)),
        }
    }
}

impl fmt::Display for ControlType {
    /// Formats the type as Kafka's name for it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ControlType::Abort => "ABORT",
            ControlType::Commit => "COMMIT",
            ControlType::LeaderChange => "LEADER_CHANGE",
            ControlType::SnapshotHeader => "SNAPSHOT_HEADER",
            ControlType::SnapshotFooter => "SNAPSHOT_FOOTER",
            ControlType::KraftVersion => "KRAFT_VERSION",
            ControlType::KraftVoters => "KRAFT_VOTERS",
            ControlType::Unknown(code) => return write!(f, "UNKNOWN ({code})"),
        })
    }
}

/// The reason why a batch is not a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The batch is not a control batch.
    #[error("the batch is not a control batch")]
    Data,
    /// The record is compressed, which no broker writes.
    #[error("the control batch is compressed")]
    Compressed,
    /// The record is malformed.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The key is null or too short, with fewer than 4 bytes. Contains the length of the key.
    #[error("a control record's key has {0} bytes instead of 4")]
    Key(usize),
    /// The version in the key is negative.
    #[error("a control record's key has version {0}, below 0")]
    KeyVersion(i16),
    /// The record is not a marker, but has this type.
    #[error("a control record of type {0} is not a marker of a transaction")]
    Type(ControlType),
    /// The value is null or too short, with fewer than 6 bytes. Contains the length of the value.
    #[error("a marker's value has {0} bytes instead of 6")]
    Value(usize),
    /// The version in the value is negative.
    #[error("a marker's value has version {0}, below 0")]
    ValueVersion(i16),
}

/// A marker that ends a producer's transaction in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndTransactionMarker {
    /// The producer id.
    pub producer_id: i64,
    /// The producer epoch of the marker. It equals that of the transaction's records, or is higher with
    /// `transaction.version` 2 (KIP-890).
    pub producer_epoch: i16,
    /// True for a commit, false for an abort.
    pub is_commit: bool,
    /// The leader epoch of the coordinator's partition of `__transaction_state`.
    pub coordinator_epoch: i32,
}

impl EndTransactionMarker {
    /// Size of the whole batch in bytes.
    pub const BATCH_LEN: usize = HEADER_LEN + 17;

    /// Returns the marker as a control batch with base offset 0 and leader epoch -1. `timestamp_ms` is the time in
    /// milliseconds since 1970.
    pub fn batch(&self, timestamp_ms: i64) -> BytesMut {
        let code = if self.is_commit { ControlType::Commit } else { ControlType::Abort }.code();
        let mut key = [0; KEY_LEN];
        (&mut key[..]).put_i16(VERSION);
        (&mut key[2..]).put_i16(code);
        let mut value = [0; VALUE_LEN];
        (&mut value[..]).put_i16(VERSION);
        (&mut value[2..]).put_i32(self.coordinator_epoch);
        let mut batch = BytesMut::with_capacity(Self::BATCH_LEN);
        batch.put_bytes(0, HEADER_LEN);
        let record =
            NewRecord { timestamp_delta: 0, offset_delta: 0, key: Some(&key), value: Some(&value), headers: &[] };
        record.write(&mut batch);
        let unsealed = Unsealed {
            length: (batch.len() - LENGTH_END) as i32,
            attributes: CONTROL | TRANSACTIONAL,
            record_count: 1,
            base_timestamp: timestamp_ms,
            max_timestamp: timestamp_ms,
        };
        unsealed.write(&mut batch[..HEADER_LEN]);
        let (producer_id, producer_epoch) = (self.producer_id, self.producer_epoch);
        restamp(&mut batch, Stamp { producer_id, producer_epoch, base_sequence: -1 });
        batch
    }

    /// Reads the marker in a control batch; `None` if the marker was removed by compaction. The caller must have
    /// verified the checksum. Only the first record is read, and bytes after the known fields are ignored, as in Kafka.
    ///
    /// # Errors
    /// Returns [`ControlError`] if the batch is not a marker.
    pub fn read(batch: &BatchView<'_>) -> Result<Option<EndTransactionMarker>, ControlError> {
        let Some(record) = first_record(batch)? else { return Ok(None) };
        let is_commit = match ControlType::parse(record.key.unwrap_or_default())? {
            ControlType::Commit => true,
            ControlType::Abort => false,
            other => return Err(ControlError::Type(other)),
        };
        let value = record.value.unwrap_or_default();
        let [v0, v1, e0, e1, e2, e3, ..] = *value else { return Err(ControlError::Value(value.len())) };
        match i16::from_be_bytes([v0, v1]) {
            VERSION.. => Ok(Some(EndTransactionMarker {
                producer_id: batch.producer_id(),
                producer_epoch: batch.producer_epoch(),
                is_commit,
                coordinator_epoch: i32::from_be_bytes([e0, e1, e2, e3]),
            })),
            negative => Err(ControlError::ValueVersion(negative)),
        }
    }
}

/// Returns the first record of a control batch; `None` if it has no records.
fn first_record<'a>(batch: &BatchView<'a>) -> Result<Option<Record<'a>>, ControlError> {
    if !batch.is_control() {
        return Err(ControlError::Data);
    }
    if batch.compression()? != Compression::None {
        return Err(ControlError::Compressed);
    }
    Ok(RecordIter::new(batch.payload(), batch.record_count()).next().transpose()?)
}
