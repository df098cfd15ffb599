//! Answers of a partition to who reads: records, offsets, and leader epochs.

use fullbore_wire::Records;

use crate::txn_index::AbortedTransaction;

/// Records that a consumer reads (`isolation.level`, KIP-98).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Records up to the high watermark.
    ReadUncommitted,
    /// Records up to the last stable offset, with the transactions among them that were aborted.
    ReadCommitted,
}

impl Isolation {
    /// Returns the level of a request; `None` of a code that Kafka has no level for.
    pub fn from_code(code: i8) -> Option<Isolation> {
        match code {
            0 => Some(Isolation::ReadUncommitted),
            1 => Some(Isolation::ReadCommitted),
            _ => None,
        }
    }
}

/// A slice of the log, and the partition's offsets at that moment.
#[derive(Debug)]
pub struct Read {
    /// Whole batches first; the last one may be cut where the byte limit fell.
    pub records: Records,
    /// The offset after the last record that consumers may see.
    pub high_watermark: i64,
    /// The offset before which every transaction is decided.
    pub last_stable_offset: i64,
    /// The first offset of the partition.
    pub log_start_offset: i64,
    /// Transactions with records among these that were aborted, in the order of their markers; `None` at
    /// read_uncommitted.
    pub aborted: Option<Vec<AbortedTransaction>>,
    /// The offset after the records, if the last batch is whole as well.
    pub end_offset: Option<i64>,
    /// True if there was no room for further records that are known to follow.
    pub is_cut: bool,
}

/// The partition's limits; `log_start <= high_watermark <= log_end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOffsets {
    /// The first offset there is.
    pub log_start: i64,
    /// The offset after the last record that consumers may see.
    pub high_watermark: i64,
    /// The offset the next record gets.
    pub log_end: i64,
}

/// An answer of ListOffsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampOffset {
    /// The record's offset.
    pub offset: i64,
    /// The record's timestamp in ms.
    pub timestamp: i64,
    /// The epoch of the leader that appended it.
    pub leader_epoch: i32,
}

/// An answer of OffsetForLeaderEpoch; -1 and -1 if the epoch is not known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest known epoch that is not larger than the one asked for.
    pub leader_epoch: i32,
    /// The offset after its last record.
    pub end_offset: i64,
}
