//! The results of reading from a partition: records, offsets and leader epochs.

use fullbore_wire::Records;

use crate::txn_index::AbortedTransaction;

/// The records that a consumer gets (`isolation.level`, KIP-98).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// All records up to the high watermark.
    ReadUncommitted,
    /// All records up to the last stable offset. The consumer also gets a list of aborted transactions.
    ReadCommitted,
}

impl Isolation {
    /// Returns the isolation level of a request; `None` if Kafka does not have such a level.
    pub fn from_code(code: i8) -> Option<Isolation> {
        match code {
            0 => Some(Isolation::ReadUncommitted),
            1 => Some(Isolation::ReadCommitted),
            _ => None,
        }
    }
}

/// A slice of the log, and the partition's offsets at the time of the read.
#[derive(Debug)]
pub struct Read {
    /// The batches. All are complete, except that the byte limit may cut off the last one.
    pub records: Records,
    /// The offset after the last record that consumers may see.
    pub high_watermark: i64,
    /// The offset before which all transactions have ended.
    pub last_stable_offset: i64,
    /// The partition's first offset.
    pub log_start_offset: i64,
    /// The aborted transactions that have records in `records`, in the order of their markers. `None` with
    /// read_uncommitted.
    pub aborted: Option<Vec<AbortedTransaction>>,
    /// The offset after the records; `None` if the last batch is cut off.
    pub end_offset: Option<i64>,
    /// True if more records are known to follow, which did not fit into the byte limit.
    pub is_cut: bool,
}

/// The offsets at which the partition begins and ends. Always `log_start <= high_watermark <= log_end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOffsets {
    /// The partition's first offset.
    pub log_start: i64,
    /// The offset after the last record that consumers may see.
    pub high_watermark: i64,
    /// The offset that the next record will get.
    pub log_end: i64,
}

/// The record that a ListOffsets request searches by its timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeQuery {
    /// The first record whose timestamp in ms is at least this one.
    Since(i64),
    /// The first record with the largest timestamp.
    Largest,
}

/// The result of a ListOffsets request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampOffset {
    /// The record's offset.
    pub offset: i64,
    /// The record's timestamp in ms.
    pub timestamp: i64,
    /// The epoch of the leader that appended the record.
    pub leader_epoch: i32,
}

/// The result of an OffsetForLeaderEpoch request. Both fields are -1 if the epoch is unknown here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest known epoch that is not larger than the requested one.
    pub leader_epoch: i32,
    /// The offset after the last record of that epoch.
    pub end_offset: i64,
}
