//! skeleton
use std::sync::Arc;
use fullbore_wire::batch::BatchView;
use tokio::sync::Notify;
use super::answer::*;
use super::waiters::{Registration, Waiters};

/// One partition of a topic.
pub struct Partition { waiters: Arc<Waiters> }
impl Partition {
    /// Appends one batch whose bytes the caller has checked.
    pub fn append(&self, _batch: BatchView<'_>, _now_ms: i64) -> Result<Appended, AppendError> { Err(AppendError::Storage) }
    /// Batches from `offset` on, up to the high watermark.
    pub fn read(&self, _offset: i64, _max_bytes: u32, _at_least_one: bool) -> Result<Read, ReadError> { Err(ReadError::Storage) }
    /// Log start, high watermark and log end.
    pub fn offsets(&self) -> Result<Offsets, ReadError> { Err(ReadError::Storage) }
    /// The first record at or after a time.
    pub fn offset_for_timestamp(&self, _timestamp_ms: i64) -> Result<Option<TimestampOffset>, ReadError> { Err(ReadError::Storage) }
    /// The record with the largest timestamp.
    pub fn max_timestamp(&self) -> Result<Option<TimestampOffset>, ReadError> { Err(ReadError::Storage) }
    /// Where the log of a leader epoch ends.
    pub fn epoch_end_offset(&self, _leader_epoch: i32) -> Result<EpochEnd, ReadError> { Err(ReadError::Storage) }
    /// Moves the log start; the new log start.
    pub fn delete_records_before(&self, _offset: i64) -> Result<i64, ReadError> { Err(ReadError::Storage) }
    /// The epoch stamped on batches from now on; 0 at first.
    pub fn set_leader_epoch(&self, _leader_epoch: i32) -> Result<(), ReadError> { Ok(()) }
    /// The epoch stamped on batches.
    pub fn leader_epoch(&self) -> i32 { 0 }
    /// Wakes `waiter` each time the high watermark moves, until the registration is dropped.
    pub fn register(&self, waiter: &Arc<Notify>) -> Registration { Registration::new(&self.waiters, waiter) }
}
