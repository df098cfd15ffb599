//! Results of reads from a partition: records, offsets and leader epochs.

use fullbore_wire::Records;

use crate::txn_index::AbortedTransaction;

/// Records that a consumer reads (`isolation.level`, KIP-98).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Records up to the high watermark.
    ReadUncommitted,
    /// Records up to the last stable offset, with the aborted transactions among them.
    ReadCommitted,
}

impl Isolation {
    /// Returns the level of a request; None for a code without a level in Kafka.
    pub fn from_code(code: i8) -> Option<Isolation> {
        match code {
            0 => Some(Isolation::ReadUncommitted),
            1 => Some(Isolation::ReadCommitted),
            _ => None,
        }
    }
}

/// Slice of the log, and the partition's offsets at the time of the read.
#[derive(Debug)]
pub struct Read {
    /// Whole batches; the byte limit may cut the last one.
    pub records: Records,
    /// Offset after the last record that consumers may see.
    pub high_watermark: i64,
    /// Offset before which every transaction is decided.
    pub last_stable_offset: i64,
    /// First offset of the partition.
    pub log_start_offset: i64,
    /// Aborted transactions that have records in `records`, in the order of their markers; `None` at read_uncommitted.
    pub aborted: Option<Vec<AbortedTransaction>>,
    /// Offset after the records; `None` if the last batch is cut.
    pub end_offset: Option<i64>,
    /// True if the byte limit left out further records that are known to follow.
    pub is_cut: bool,
}

/// The partition's limits; `log_start <= high_watermark <= log_end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOffsets {
    /// First offset of the partition.
    pub log_start: i64,
    /// Offset after the last record that consumers may see.
    pub high_watermark: i64,
    /// Offset that the next record gets.
    pub log_end: i64,
}

/// Result of ListOffsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampOffset {
    /// Offset of the record.
    pub offset: i64,
    /// Timestamp of the record in ms.
    pub timestamp: i64,
    /// Epoch of the leader that appended the record.
    pub leader_epoch: i32,
}

/// Result of OffsetForLeaderEpoch; -1 and -1 if the epoch is unknown here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochEnd {
    /// Largest known epoch that is not above the requested one.
    pub leader_epoch: i32,
    /// Offset after the last record of that epoch.
    pub end_offset: i64,
}
