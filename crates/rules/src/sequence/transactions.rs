//! The transactions of a partition: the open ones, the markers that end them, and the first unstable offset.
//!
//! The list of aborted transactions is a file beside the log and not here. The coordinator decides on commits and
//! aborts.
//!
//! Invariants: a producer has at most one open transaction. While records are only appended, the first unstable offset
//! never falls.
//!
//! The rules are from KIP-98, KIP-890 (a marker of transaction version 2 has the next epoch) and KAFKA-19999 (such a
//! marker may arrive twice).

use std::collections::BTreeMap;

use super::producers::{NO_EPOCH, Producer, Producers};
use super::window::SequenceWindow;
use super::{SequenceRefusal, Stamp};

pub use fullbore_wire::batch::EndTransactionMarker as Marker;

/// A marker with its transaction version, which is not stored in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionedMarker {
    pub marker: Marker,
    /// The transaction version, beginning with 0.
    pub transaction_version: i8,
}

impl VersionedMarker {
    /// The first transaction version in which a marker has the epoch after that of its transaction (KIP-890).
    pub const BUMPED_FROM: i8 = 2;

    /// Returns true if the marker has the same epoch as its transaction. Such a marker does not fence late batches of
    /// that epoch.
    pub fn leaves_epoch(&self) -> bool {
        self.transaction_version < Self::BUMPED_FROM
    }
}

/// A transaction that a marker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedTransaction {
    /// The producer of the transaction.
    pub producer_id: i64,
    /// The offset of the transaction's first record.
    pub first_offset: i64,
    /// The offset of the transaction's marker.
    pub last_offset: i64,
    /// The first offset of the oldest transaction that is still open, or the offset after the marker.
    pub last_stable_offset: i64,
    /// True if the transaction is committed, false if it is aborted.
    pub is_commit: bool,
}

/// A transaction whose records must be skipped by consumers at read_committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// The producer of the transaction.
    pub producer_id: i64,
    /// The offset of the transaction's first record.
    pub first_offset: i64,
    /// The offset of the transaction's marker.
    pub last_offset: i64,
    /// The first offset of the oldest transaction that was still open after the marker, or the offset after the marker.
    pub last_stable_offset: i64,
}

impl AbortedTransaction {
    /// Returns the entry for a transaction that was aborted; None if it was committed.
    pub fn of(completed: &CompletedTransaction) -> Option<AbortedTransaction> {
        let &CompletedTransaction { producer_id, first_offset, last_offset, last_stable_offset, is_commit } = completed;
        (!is_commit).then_some(AbortedTransaction { producer_id, first_offset, last_offset, last_stable_offset })
    }
}

/// The knowledge of a partition about a producer's transactions at some moment of a leader epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionsSeen {
    /// How many producers the partition had added to its state by that moment, including forgotten ones.
    remembered: u64,
    /// The producer's `number` and `last_marker` at that moment; `None` if the producer was unknown.
    known: Option<(u64, Option<i64>)>,
}

/// How a batch relates to the open transaction of its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionOfBatch {
    /// The batch is not in a transaction.
    None,
    /// The batch continues the open transaction.
    Ongoing,
    /// The batch opens a transaction here. The coordinator must have added this partition to the transaction before.
    Begins,
}

/// The open transactions of a partition, and the ended ones whose markers are not replicated yet.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenTransactions {
    /// The producers, by the first offset of their open transactions.
    open: BTreeMap<i64, i64>,
    /// The offsets of markers that are not replicated yet, by the first offset of the ended transaction.
    unreplicated: BTreeMap<i64, i64>,
}

impl OpenTransactions {
    pub fn producers(&self) -> impl Iterator<Item = i64> {
        self.open.values().copied()
    }

    pub fn begin(&mut self, first_offset: i64, producer_id: i64) {
        self.open.insert(first_offset, producer_id);
    }

    /// Ends a transaction. Returns the first offset of the oldest transaction that is still open, if there is one.
    fn end(&mut self, first_offset: i64, marker_offset: i64) -> Option<i64> {
        self.open.remove(&first_offset);
        self.unreplicated.insert(first_offset, marker_offset);
        self.first_open()
    }

    fn first_open(&self) -> Option<i64> {
        self.open.first_key_value().map(|(&first_offset, _)| first_offset)
    }

    fn first_unstable(&mut self, high_watermark: i64) -> Option<i64> {
        while let Some(eldest) = self.unreplicated.first_entry()
            && *eldest.get() < high_watermark
        {
            eldest.remove();
        }
        let unreplicated = self.unreplicated.first_key_value().map(|(&first_offset, _)| first_offset);
        self.first_open().into_iter().chain(unreplicated).min()
    }
}

impl Producer {
    /// Notes a batch without a sequence that ends at `offset`. This is a marker or a batch of a group's offsets. If
    /// it has another epoch than the producer, the state continues in that epoch and has no sequences yet.
    fn begin_epoch(&mut self, epoch: i16, offset: i64, timestamp: i64) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.last_marker = None;
            self.run = 0;
            self.window = SequenceWindow::empty();
        }
        self.last_timestamp = timestamp;
        self.last_unsequenced = Some(offset);
    }
}

impl Producers {
    /// Returns how a batch relates to the producer's open transaction. The batch must be the next one in the producer's
    /// sequence.
    ///
    /// # Errors
    /// Returns [`SequenceRefusal::InvalidTxnState`] for a plain batch if its producer has an open transaction, and
    /// [`SequenceRefusal::TooManyTransactions`] if the partition has reached its limit of open transactions.
    pub fn transaction_of(&self, stamp: &Stamp, is_transactional: bool) -> Result<TransactionOfBatch, SequenceRefusal> {
        if !is_transactional && self.open.open.is_empty() {
            return Ok(TransactionOfBatch::None);
        }
        let producer = self.by_id.get(&stamp.producer_id);
        let is_open = producer.is_some_and(|producer| producer.open_from.is_some());
        let is_current = producer.is_some_and(|producer| producer.epoch == stamp.producer_epoch);
        match (is_transactional, is_open) {
            (false, false) => Ok(TransactionOfBatch::None),
            (false, true) => Err(SequenceRefusal::InvalidTxnState),
            (true, true) if is_current => Ok(TransactionOfBatch::Ongoing),
            (true, false) if self.open.open.len() >= self.limit => Err(SequenceRefusal::TooManyTransactions),
            (true, _) => Ok(TransactionOfBatch::Begins),
        }
    }

    /// Notes that a batch in the log belongs to a transaction, and opens the transaction if the producer has none. If
    /// the batch has a sequence, the caller must have called [`Producers::append`] before. A batch of a group's offsets
    /// has none.
    pub fn append_transactional(&mut self, stamp: &Stamp, base_offset: i64, timestamp: i64, now_ms: i64) {
        if stamp.producer_id < 0 || stamp.producer_epoch < 0 {
            return;
        }
        if stamp.base_sequence < 0 {
            self.predecessor.forget(stamp.producer_id);
            let last_offset = base_offset.saturating_add(i64::from(stamp.record_count) - 1);
            self.known_or_new(stamp.producer_id).begin_epoch(stamp.producer_epoch, last_offset, timestamp);
            self.touch(stamp.producer_id, now_ms);
            self.evict();
        }
        let Some(producer) = self.by_id.get_mut(&stamp.producer_id) else { return };
        if producer.open_from.is_none() {
            producer.open_from = Some(base_offset);
            self.idle.remove(&producer.turn);
            self.open.begin(base_offset, stamp.producer_id);
        }
    }

    /// Checks a batch of a group's offsets, which has no sequence.
    ///
    /// # Errors
    /// Returns [`SequenceRefusal::InvalidProducerEpoch`] if the producer has already written in a newer epoch.
    pub fn check_unsequenced(&self, stamp: &Stamp) -> Result<(), SequenceRefusal> {
        let is_old = |producer: &Producer| stamp.producer_epoch < producer.epoch;
        match self.by_id.get(&stamp.producer_id) {
            Some(producer) if is_old(producer) => Err(SequenceRefusal::InvalidProducerEpoch),
            _ => Ok(()),
        }
    }

    /// Checks a marker before the caller writes it.
    ///
    /// With transaction version 2, the marker must have a higher epoch than the records. There is one exception: a
    /// marker that arrives again after it was written passes, unless another transaction is open.
    ///
    /// # Errors
    /// Returns [`SequenceRefusal::CoordinatorFenced`] if a later coordinator has ended a transaction of the producer,
    /// and [`SequenceRefusal::InvalidProducerEpoch`] if the producer has a newer epoch.
    pub fn check_marker(&self, versioned: &VersionedMarker) -> Result<(), SequenceRefusal> {
        let marker = &versioned.marker;
        let Some(producer) = self.by_id.get(&marker.producer_id) else { return Ok(()) };
        if marker.coordinator_epoch < producer.coordinator_epoch {
            return Err(SequenceRefusal::CoordinatorFenced);
        }
        let is_repeated = marker.producer_epoch == producer.epoch && producer.open_from.is_none();
        let is_next = match versioned.leaves_epoch() {
            true => marker.producer_epoch >= producer.epoch,
            false => marker.producer_epoch > producer.epoch || is_repeated,
        };
        if is_next { Ok(()) } else { Err(SequenceRefusal::InvalidProducerEpoch) }
    }

    /// Notes a marker in the log at `offset`. Returns the transaction that it ends, if one was open. If the marker has
    /// another epoch than the producer, the state continues in that epoch and has no sequences yet.
    pub fn end_transaction(
        &mut self,
        marker: &Marker,
        offset: i64,
        timestamp: i64,
        now_ms: i64,
    ) -> Option<CompletedTransaction> {
        let leaves_epoch = self.may_leave_epoch(marker);
        self.end(marker, leaves_epoch, offset, timestamp, now_ms)
    }

    /// Notes a marker as [`Producers::end_transaction`] does, but for a caller that has written the marker itself and
    /// knows its transaction version. If the version is below 2, a batch that was verified before the marker may belong
    /// to the ended transaction. So such a marker is always remembered, even if the partition did not know its epoch
    /// before.
    pub fn end_appended(
        &mut self,
        versioned: &VersionedMarker,
        offset: i64,
        timestamp: i64,
        now_ms: i64,
    ) -> Option<CompletedTransaction> {
        let leaves_epoch = versioned.leaves_epoch() || self.may_leave_epoch(&versioned.marker);
        self.end(&versioned.marker, leaves_epoch, offset, timestamp, now_ms)
    }

    /// Returns false if the marker raises the known epoch, as markers of version 2 do.
    fn may_leave_epoch(&self, marker: &Marker) -> bool {
        let known = self.by_id.get(&marker.producer_id).map_or(NO_EPOCH, |producer| producer.epoch);
        known == NO_EPOCH || marker.producer_epoch <= known
    }

    fn end(
        &mut self,
        marker: &Marker,
        leaves_epoch: bool,
        offset: i64,
        timestamp: i64,
        now_ms: i64,
    ) -> Option<CompletedTransaction> {
        if marker.producer_id < 0 || marker.producer_epoch < 0 {
            return None;
        }
        self.predecessor.forget(marker.producer_id);
        let producer = self.known_or_new(marker.producer_id);
        producer.begin_epoch(marker.producer_epoch, offset, timestamp);
        if leaves_epoch {
            producer.last_marker = Some(offset);
        }
        producer.coordinator_epoch = marker.coordinator_epoch;
        let completed = producer.open_from.take().map(|first_offset| CompletedTransaction {
            producer_id: marker.producer_id,
            first_offset,
            last_offset: offset,
            last_stable_offset: self.open.end(first_offset, offset).unwrap_or(offset.saturating_add(1)),
            is_commit: marker.is_commit,
        });
        self.touch(marker.producer_id, now_ms);
        self.evict();
        completed
    }

    /// Notes a marker as [`Producers::end_transaction`] does, but for partitions whose writes are replicated at once
    /// and whose rows store the transaction version.
    pub fn end_committed(
        &mut self,
        versioned: &VersionedMarker,
        offset: i64,
        timestamp: i64,
        now_ms: i64,
    ) -> Option<CompletedTransaction> {
        let completed = self.end(&versioned.marker, versioned.leaves_epoch(), offset, timestamp, now_ms);
        self.open.unreplicated.clear();
        completed
    }

    /// Returns true if the producer has a marker at `offset` or later that left the batch's epoch unchanged. For an
    /// unknown producer, the newest marker of any forgotten producer counts.
    pub fn has_ended_since(&self, stamp: &Stamp, offset: i64) -> bool {
        match self.by_id.get(&stamp.producer_id) {
            None => self.forgotten_marker >= offset,
            Some(producer) if producer.epoch == stamp.producer_epoch => {
                producer.last_marker.is_some_and(|last_marker| last_marker >= offset)
            }
            Some(_) => false,
        }
    }

    /// Notes that markers before `offset` may have been forgotten together with their producers.
    pub fn note_forgotten_markers(&mut self, offset: i64) {
        self.forgotten_marker = self.forgotten_marker.max(offset.saturating_sub(1));
    }

    /// Notes the epoch of a marker whose batch is empty, because compaction has removed its record after all data of
    /// its transaction. Such a marker ends no transaction.
    ///
    /// When Kafka starts, it ignores such a marker. Kafka then does not know a producer whose other batches are all
    /// removed.
    pub fn note_emptied_marker(
        &mut self,
        producer_id: i64,
        producer_epoch: i16,
        offset: i64,
        timestamp: i64,
        now_ms: i64,
    ) {
        if producer_id < 0 || producer_epoch < 0 {
            return;
        }
        self.predecessor.forget(producer_id);
        self.known_or_new(producer_id).begin_epoch(producer_epoch, offset, timestamp);
        self.touch(producer_id, now_ms);
        self.evict();
    }

    /// Returns what the partition now knows of a producer's transactions, for a later call of
    /// [`Producers::may_have_ended_since`].
    pub fn transactions_seen(&self, producer_id: i64) -> TransactionsSeen {
        let known = self.by_id.get(&producer_id).map(|producer| (producer.number, producer.last_marker));
        TransactionsSeen { remembered: self.remembered, known }
    }

    /// Returns true if a transaction of the producer may have ended here since `seen` without a change of the
    /// producer's epoch. Either the marker had the same epoch, or it was forgotten together with the producer.
    pub fn may_have_ended_since(&self, producer_id: i64, seen: TransactionsSeen) -> bool {
        let found = self.by_id.get(&producer_id).map(|producer| (producer.number, producer.last_marker));
        match (seen.known, found) {
            // If a marker has raised the epoch, `last` is None, because late batches of the older epoch are refused
            // anyway.
            (Some((known, seen)), Some((number, last))) => number != known || (last.is_some() && last != seen),
            (Some(_), None) => true,
            (None, _) if self.forgotten > seen.remembered => true,
            (None, found) => found.is_some_and(|(_, last_marker)| last_marker.is_some()),
        }
    }

    /// Returns true if the producer and its state may have been forgotten since `seen`.
    pub fn is_forgotten_since(&self, producer_id: i64, seen: TransactionsSeen) -> bool {
        let number = self.by_id.get(&producer_id).map(|producer| producer.number);
        match seen.known {
            Some((before, _)) => number != Some(before),
            None => number.is_none() && self.forgotten > seen.remembered,
        }
    }

    /// Returns true if a later coordinator has ended a transaction of the producer here, which the coordinator of
    /// `coordinator_epoch` may not know.
    pub fn has_later_coordinator(&self, producer_id: i64, coordinator_epoch: i32) -> bool {
        self.by_id.get(&producer_id).is_some_and(|producer| producer.coordinator_epoch > coordinator_epoch)
    }

    /// Returns how many markers are not known to be replicated.
    pub fn unreplicated_markers(&self) -> usize {
        self.open.unreplicated.len()
    }

    /// Returns the first offset of the oldest open transaction, if there is one.
    pub fn first_open(&self) -> Option<i64> {
        self.open.first_open()
    }

    /// Returns the first offset that may still be aborted, if there is one. Its transaction is open, or the
    /// transaction's marker is at or after `high_watermark`.
    pub fn first_unstable(&mut self, high_watermark: i64) -> Option<i64> {
        self.open.first_unstable(high_watermark)
    }
}
