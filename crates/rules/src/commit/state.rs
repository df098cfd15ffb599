//! State of a partition at the coordinator: the end of its records, and its producers.
//!
//! Invariant: the next offset is past every batch that was taken over.

use super::batch::ObjectBatch;
use crate::sequence::{self, Producers, Stamp, Stops};

/// State of one partition.
#[derive(Clone, Debug)]
pub struct PartitionState {
    /// The first offset that may be read.
    pub log_start: i64,
    /// The offset of the next record.
    pub next_offset: i64,
    /// Bytes of all batches that may be read.
    pub bytes: i64,
    /// The largest timestamp so far, in ms; -1 before the first batch.
    pub max_timestamp: i64,
    /// State of each producer.
    pub producers: Producers,
    /// True if producers were forgotten for want of room: then one that is not known may have written.
    pub has_forgotten: bool,
    /// Batches retained of each producer, at least what any broker of the cluster grants.
    pub window: usize,
    /// The largest id of a producer that was forgotten for its silence, here or on the deleted partition of the same name; -1 if none was. Ids
    /// grow: one with a larger id that is not known has never written.
    pub expired_to: i64,
}

impl PartitionState {
    /// A partition that was never written.
    pub fn new(window: usize) -> PartitionState {
        PartitionState {
            log_start: 0,
            next_offset: 0,
            bytes: 0,
            max_timestamp: -1,
            producers: Producers::default(),
            has_forgotten: false,
            window,
            expired_to: -1,
        }
    }

    /// Lets producers of a deleted partition of the same name go on where they stopped there. Of a partition that `is_written` the state is read
    /// from rows next, where a producer that has written may be missing.
    pub fn succeed(&mut self, stops: Stops, is_written: bool) {
        self.producers.succeed(stops);
        if is_written {
            self.producers.note_forgotten();
        }
        self.has_forgotten = true;
    }

    /// Decides on a batch that is next in its object. A producer that is not known here must begin at 0 if all its possible writes
    /// are known: nothing was ever written, or its id was handed out so lately that its state cannot have expired
    /// (KAFKA-15591).
    pub(super) fn check(&self, stamp: &Stamp) -> sequence::Verdict {
        let is_expired = stamp.producer_id <= self.expired_to;
        let written_to = match (is_expired, self.has_forgotten) {
            // It wrote here, or to the deleted partition of the same name.
            (true, _) => self.next_offset.max(1),
            (false, true) => self.next_offset,
            (false, false) => 0,
        };
        self.producers.check(stamp, written_to)
    }

    /// Appends a batch that [`PartitionState::check`] lets pass; its first offset.
    pub(super) fn append(&mut self, batch: &ObjectBatch, now_ms: i64) -> i64 {
        let base_offset = self.next_offset;
        self.max_timestamp = self.max_timestamp.max(batch.max_timestamp);
        self.take_over(&batch.stamp, base_offset, batch.max_timestamp, now_ms);
        self.bytes += i64::from(batch.size);
        base_offset
    }

    /// Forgets producers that were silent for so long.
    pub fn expire(&mut self, now_ms: i64, expiration_ms: i64) {
        let PartitionState { producers, expired_to, .. } = self;
        producers.expire_each(now_ms, expiration_ms, |id| *expired_to = id.max(*expired_to));
    }

    /// Takes over a batch that is committed: what another broker has appended since this state was read.
    pub fn take_over(&mut self, stamp: &Stamp, base_offset: i64, timestamp: i64, now_ms: i64) {
        self.next_offset = base_offset + i64::from(stamp.record_count);
        let evicted = self.producers.evicted();
        if stamp.is_idempotent() {
            self.producers.append(stamp, base_offset, timestamp, now_ms, self.window);
        }
        self.has_forgotten |= self.producers.evicted() > evicted;
    }
}
