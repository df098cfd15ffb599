//! The state of a partition in the index: where its records end, and its producers with their open transactions.
//!
//! Invariant: the next offset is after every recorded batch.

use super::batch::{AppendedBatch, BatchKind, Confirmation, ObjectBatch};
use super::object::Refusal;
use crate::sequence::{
    self, AbortedTransaction, ProducerTails, Producers, SequenceRefusal, Stamp, TransactionOfBatch, VersionedMarker,
};

/// The state of a partition.
#[derive(Clone, Debug)]
pub struct PartitionState {
    /// The first offset that can be read.
    pub log_start: i64,
    /// The offset that the next record will get.
    pub next_offset: i64,
    /// The size in bytes of all batches that can be read.
    pub bytes: i64,
    /// The largest timestamp so far, in ms; -1 before the first batch.
    pub max_timestamp: i64,
    /// State of each producer.
    pub producers: Producers,
    /// True if a limit has removed producers, or if the partition replaces a deleted one. An unknown producer may then
    /// have written before.
    pub has_forgotten: bool,
    /// How many batches of each producer are remembered. No broker of the cluster grants a producer a larger window.
    pub window: usize,
    /// The largest id of a producer whose state has expired, here or on the deleted partition of the same name; -1 if
    /// there is none. An unknown producer with a larger id has never written, unless `has_forgotten` is true.
    pub expired_to: i64,
    /// The offset of the newest marker that aborted a transaction; -1 if there is none.
    pub aborted_to: i64,
    /// True once the state was read from rows, which may lack the markers of forgotten producers. Set by
    /// [`PartitionState::note_read`].
    pub(super) is_read: bool,
}

impl PartitionState {
    /// Creates the state of a partition that was never written.
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
            aborted_to: -1,
            is_read: false,
        }
    }

    /// Notes that the state was read from rows. The rows may lack markers below the next offset, if their producers
    /// were forgotten before.
    pub fn note_read(&mut self) {
        let may_lack_markers = self.has_forgotten || self.expired_to >= 0;
        if !std::mem::replace(&mut self.is_read, true) && may_lack_markers {
            self.producers.note_forgotten_markers(self.next_offset);
        }
    }

    /// Lets the producers of a deleted partition with the same name continue from its final state, `tails`. If
    /// `is_written`, the new partition already has rows, from which the caller will read its state. The rows may lack a
    /// producer that has written, so any unknown producer is assumed to have written.
    pub fn succeed(&mut self, tails: ProducerTails, is_written: bool) {
        self.producers.succeed(tails);
        if is_written {
            self.producers.note_forgotten();
        }
        self.has_forgotten = true;
    }

    /// Returns the first offset of the oldest open transaction; None if none is open. The log start may be after this
    /// offset.
    pub fn first_unstable(&self) -> Option<i64> {
        self.producers.first_open()
    }

    /// Returns the offset before which every transaction has ended. Committed batches are already replicated, so the
    /// next offset is the high watermark.
    pub fn last_stable_offset(&self) -> i64 {
        last_stable_offset(self.first_unstable(), self.log_start, self.next_offset)
    }

    /// Decides on the next batch of an object by its sequence and its transaction.
    pub(super) fn decide(&self, batch: &ObjectBatch) -> Result<sequence::Verdict, Refusal> {
        let verdict = self.check(&batch.stamp);
        if let sequence::Verdict::Refuse(why) = verdict {
            return Err(Refusal::Sequence(why));
        }
        if verdict == sequence::Verdict::Append && batch.stamp.is_idempotent() {
            let is_transactional = batch.kind == BatchKind::Transactional;
            let transaction = self.producers.transaction_of(&batch.stamp, is_transactional);
            if transaction.map_err(Refusal::Sequence)? == TransactionOfBatch::Begins {
                self.check_opening(batch)?;
            }
        }
        Ok(verdict)
    }

    /// Decides on a marker; see [`Producers::check_marker`].
    pub(super) fn check_marker(&self, versioned: &VersionedMarker) -> Result<(), SequenceRefusal> {
        if versioned.marker.producer_id < 0 || versioned.marker.producer_epoch < 0 {
            return Err(SequenceRefusal::InvalidRecord);
        }
        self.producers.check_marker(versioned)
    }

    /// Returns true if a marker with transaction version 1 of the same producer was appended after `marker` was queued.
    /// The queued marker may then be a late copy, which would end the next transaction of the same epoch.
    pub(super) fn has_overtaken(&self, marker: &ObjectBatch, transaction_version: i8) -> bool {
        let ObjectBatch { stamp, confirmation, .. } = marker;
        let has_come = |confirmation: &Confirmation| self.producers.has_ended_since(stamp, confirmation.next_offset);
        transaction_version < 2
            && self.producers.knows(stamp.producer_id)
            && confirmation.as_ref().is_some_and(has_come)
    }

    /// Checks that a batch may open a transaction. The coordinator must have confirmed the transaction, and no marker
    /// may follow the confirmation. With transaction version 2, a marker raises the epoch. A batch from before the
    /// marker is then refused for its old epoch, unless the producer is forgotten.
    fn check_opening(&self, batch: &ObjectBatch) -> Result<(), Refusal> {
        let Confirmation { next_offset, is_added } = batch.confirmation.ok_or(Refusal::Unverified)?;
        if self.producers.has_ended_since(&batch.stamp, next_offset) {
            return Err(Refusal::Unverified);
        }
        if is_added && batch.stamp.base_sequence > 0 && !self.producers.knows(batch.stamp.producer_id) {
            return Err(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence));
        }
        Ok(())
    }

    /// Decides on a batch by its sequence. An unknown producer must begin with sequence 0 if it cannot have written
    /// before. This is certain if the partition was never written, or if the producer's id is larger than those of all
    /// expired producers (KAFKA-15591).
    pub(super) fn check(&self, stamp: &Stamp) -> sequence::Verdict {
        let is_expired = stamp.producer_id <= self.expired_to;
        let written_to = match (is_expired, self.has_forgotten) {
            // The producer may have written here, or to the deleted partition with the same name.
            (true, _) => self.next_offset.max(1),
            (false, true) => self.next_offset,
            (false, false) => 0,
        };
        self.producers.check(stamp, written_to)
    }

    /// Appends a batch that [`PartitionState::decide`] has accepted, and returns it with its offset.
    pub(super) fn append(&mut self, batch: &ObjectBatch, now_ms: i64) -> AppendedBatch {
        let &ObjectBatch { stamp, max_timestamp: timestamp, kind, .. } = batch;
        let appended = AppendedBatch { stamp, base_offset: self.next_offset, timestamp, kind };
        self.take_over(&appended, now_ms);
        self.count(batch);
        appended
    }

    /// Appends a marker that [`Producers::check_marker`] has accepted. Returns it with its offset, and with the
    /// transaction that it aborts, if any.
    pub(super) fn append_marker(
        &mut self,
        batch: &ObjectBatch,
        now_ms: i64,
    ) -> (AppendedBatch, Option<AbortedTransaction>) {
        let &ObjectBatch { stamp, max_timestamp: timestamp, kind, .. } = batch;
        let base_offset = self.next_offset;
        let evicted = self.producers.evicted();
        let completed =
            batch.marker().and_then(|marker| self.producers.end_committed(&marker, base_offset, timestamp, now_ms));
        self.has_forgotten |= self.producers.evicted() > evicted;
        self.next_offset = base_offset.saturating_add(i64::from(stamp.record_count));
        self.count(batch);
        let stamp = Stamp { base_sequence: self.producers.next_sequence(stamp.producer_id), ..stamp };
        let appended = AppendedBatch { stamp, base_offset, timestamp, kind };
        let aborted = completed.as_ref().and_then(AbortedTransaction::of);
        if aborted.is_some() {
            self.aborted_to = base_offset;
        }
        (appended, aborted)
    }

    fn count(&mut self, batch: &ObjectBatch) {
        self.max_timestamp = self.max_timestamp.max(batch.max_timestamp);
        self.bytes += i64::from(batch.size);
    }

    /// Removes producers that have been silent for `expiration_ms` and have no open transaction.
    pub fn expire(&mut self, now_ms: i64, expiration_ms: i64) {
        let PartitionState { producers, expired_to, .. } = self;
        producers.expire_each(now_ms, expiration_ms, |id| *expired_to = id.max(*expired_to));
    }

    /// Adds a committed batch to the state. Another broker may have appended the batch since the state was read.
    pub fn take_over(&mut self, batch: &AppendedBatch, now_ms: i64) {
        self.next_offset = batch.base_offset.saturating_add(i64::from(batch.stamp.record_count));
        let evicted = self.producers.evicted();
        if batch.stamp.is_idempotent() {
            batch.remember(&mut self.producers, now_ms, self.window);
        }
        self.has_forgotten |= self.producers.evicted() > evicted;
    }
}

/// Returns the last stable offset, given the first offset of the oldest open transaction. The result is never less than
/// `log_start`, which may be after that offset.
pub fn last_stable_offset(first_unstable: Option<i64>, log_start: i64, next_offset: i64) -> i64 {
    first_unstable.map_or(next_offset, |first| first.max(log_start).min(next_offset))
}
