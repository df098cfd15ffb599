//! Transactions of one partition: open transactions, their markers, and the end of the stable records.
//!
//! Not here: the list of aborted transactions, which the log stores in a file of its own, and the coordinator's
//! decisions.
//!
//! Invariants: a producer has at most one open transaction. The first unstable offset never falls while records are
//! only appended.
//!
//! Rules: KIP-98, KIP-890 (a marker of transaction version 2 has the next epoch), KAFKA-19999 (such a marker may come
//! twice).

use std::collections::BTreeMap;

use super::producers::{NO_EPOCH, Producer, Producers};
use super::window::SequenceWindow;
use super::{SequenceRefusal, Stamp};

pub use fullbore_wire::batch::EndTransactionMarker as Marker;

/// Marker with the version of its transaction, which the log does not store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionedMarker {
    pub marker: Marker,
    /// Transaction version, from 0 on.
    pub transaction_version: i8,
}

impl VersionedMarker {
    /// First transaction version whose markers raise the epoch of the transaction by one (KIP-890).
    pub const BUMPED_FROM: i8 = 2;

    /// Returns true if the marker has the epoch of its transaction. Such a marker does not fence late batches of that
    /// epoch.
    pub fn leaves_epoch(&self) -> bool {
        self.transaction_version < Self::BUMPED_FROM
    }
}

/// Transaction that a marker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedTransaction {
    /// Producer of the transaction.
    pub producer_id: i64,
    /// Offset of the transaction's first record.
    pub first_offset: i64,
    /// Offset of the transaction's marker.
    pub last_offset: i64,
    /// First offset of the oldest transaction that is open now, or the offset after the marker.
    pub last_stable_offset: i64,
    /// False if the transaction's records are aborted.
    pub is_commit: bool,
}

/// Transaction whose records a consumer at read_committed skips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// Producer of the transaction.
    pub producer_id: i64,
    /// Offset of the transaction's first record.
    pub first_offset: i64,
    /// Offset of the transaction's marker.
    pub last_offset: i64,
    /// First offset of the oldest transaction that was open after the marker, or the offset after the marker.
    pub last_stable_offset: i64,
}

impl AbortedTransaction {
    /// Returns the entry of an aborted transaction; None for a committed one.
    pub fn of(completed: &CompletedTransaction) -> Option<AbortedTransaction> {
        let &CompletedTransaction { producer_id, first_offset, last_offset, last_stable_offset, is_commit } = completed;
        (!is_commit).then_some(AbortedTransaction { producer_id, first_offset, last_offset, last_stable_offset })
    }
}

/// State of one producer's transactions at a partition, recorded at some moment of a leader epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionsSeen {
    /// Number of producers remembered up to that moment.
    remembered: u64,
    /// Number of the producer, and offset of the last marker that ended a transaction of its epoch without raising it;
    /// None if the producer was unknown.
    known: Option<(u64, Option<i64>)>,
}

/// Relation of a batch to the open transaction of its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionOfBatch {
    /// The batch is in no transaction.
    None,
    /// The batch continues the open transaction.
    Ongoing,
    /// The batch opens a transaction here: the coordinator must have added this partition first.
    Begins,
}

/// Open transactions of a partition, and ended ones whose markers are not replicated yet.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenTransactions {
    /// Producers, by the first offset of their open transactions.
    open: BTreeMap<i64, i64>,
    /// Offsets of markers that are not replicated, by the first offset of the transaction that each has ended.
    unreplicated: BTreeMap<i64, i64>,
}

impl OpenTransactions {
    pub fn producers(&self) -> impl Iterator<Item = i64> {
        self.open.values().copied()
    }

    pub fn begin(&mut self, first_offset: i64, producer_id: i64) {
        self.open.insert(first_offset, producer_id);
    }

    /// Ends a transaction. Returns the first offset of the oldest transaction that is still open; None if none is.
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
    /// Records a batch without a sequence that ends at `offset`: a marker, or offsets of a group. If its epoch is
    /// another one than the producer's, the state continues without sequences in that epoch.
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
    /// Returns the relation of a batch to the producer's open transaction. The batch must be next in its sequence.
    ///
    /// # Errors
    /// [`SequenceRefusal::InvalidTxnState`] for a plain batch of a producer with an open transaction;
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

    /// Records that a batch of the log belongs to a transaction, and opens one if its producer has none. The caller
    /// must have called [`Producers::append`] for the batch before, except for a batch without a sequence, such as a
    /// group's offsets.
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
    /// [`SequenceRefusal::InvalidProducerEpoch`] if a newer epoch of the producer has written.
    pub fn check_unsequenced(&self, stamp: &Stamp) -> Result<(), SequenceRefusal> {
        let is_old = |producer: &Producer| stamp.producer_epoch < producer.epoch;
        match self.by_id.get(&stamp.producer_id) {
            Some(producer) if is_old(producer) => Err(SequenceRefusal::InvalidProducerEpoch),
            _ => Ok(()),
        }
    }

    /// Checks a marker before the caller writes it.
    ///
    /// With transaction version 2 the epoch of a marker is above the epoch of the records. A marker may arrive again
    /// after it was written.
    ///
    /// # Errors
    /// [`SequenceRefusal::CoordinatorFenced`] if a later coordinator has ended a transaction of the producer;
    /// [`SequenceRefusal::InvalidProducerEpoch`] if the producer has a newer epoch.
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

    /// Records a marker of the log at `offset`. Returns the transaction that the marker ends; None if none was open. A
    /// marker of another epoch begins that epoch, without writes.
    pub fn end_transaction(
        &mut self,
        marker: &Marker,
        offset: i64,
        timestamp: i64,
        now_ms: i64,
    ) -> Option<CompletedTransaction> {
        let leaves_epoch = self.may_leave_epoch(marker);
        self.end(marker, leaves_epoch, (offset, timestamp), now_ms)
    }

    /// Records a marker like [`Producers::end_transaction`], for a caller that has written the marker and knows its
    /// transaction version. With a version below 2, a batch verified before the marker may belong to the ended
    /// transaction, even if the marker raises the known epoch.
    pub fn end_appended(
        &mut self,
        versioned: &VersionedMarker,
        offset: i64,
        timestamp: i64,
        now_ms: i64,
    ) -> Option<CompletedTransaction> {
        let leaves_epoch = versioned.leaves_epoch() || self.may_leave_epoch(&versioned.marker);
        self.end(&versioned.marker, leaves_epoch, (offset, timestamp), now_ms)
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
        (offset, timestamp): (i64, i64),
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

    /// Records a marker like [`Producers::end_transaction`], in a partition whose writes are replicated at once, and
    /// whose rows store the transaction version.
    pub fn end_committed(
        &mut self,
        versioned: &VersionedMarker,
        offset: i64,
        timestamp: i64,
        now_ms: i64,
    ) -> Option<CompletedTransaction> {
        let completed = self.end(&versioned.marker, versioned.leaves_epoch(), (offset, timestamp), now_ms);
        self.open.unreplicated.clear();
        completed
    }

    /// Returns true if a marker that left the batch's epoch unchanged is at `offset` or later. For an unknown producer
    /// any forgotten marker counts.
    pub fn has_ended_since(&self, stamp: &Stamp, offset: i64) -> bool {
        match self.by_id.get(&stamp.producer_id) {
            None => self.forgotten_marker >= offset,
            Some(producer) if producer.epoch == stamp.producer_epoch => {
                producer.last_marker.is_some_and(|last_marker| last_marker >= offset)
            }
            Some(_) => false,
        }
    }

    /// Records that markers before `offset` may be forgotten with their producers.
    pub fn note_forgotten_markers(&mut self, offset: i64) {
        self.forgotten_marker = self.forgotten_marker.max(offset.saturating_sub(1));
    }

    /// Records the epoch of a marker at `offset` whose record compaction has removed, after all data of its
    /// transaction. The marker ends no transaction.
    ///
    /// At its start, Kafka ignores such a marker. It then does not know a producer whose other batches are all removed.
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

    /// Returns the present state of a producer's transactions.
    pub fn transactions_seen(&self, producer_id: i64) -> TransactionsSeen {
        let known = self.by_id.get(&producer_id).map(|producer| (producer.number, producer.last_marker));
        TransactionsSeen { remembered: self.remembered, known }
    }

    /// Returns true if a transaction of the producer may have ended here after `seen`, and the producer's epoch does
    /// not show it. In such a case the marker had the same epoch, or was forgotten with the producer.
    pub fn may_have_ended_since(&self, producer_id: i64, seen: TransactionsSeen) -> bool {
        let found = self.by_id.get(&producer_id).map(|producer| (producer.number, producer.last_marker));
        match (seen.known, found) {
            // A marker that has raised the epoch refuses late batches of the older one, and has reset the last marker.
            (Some((known, seen)), Some((number, last))) => number != known || (last.is_some() && last != seen),
            (Some(_), None) => true,
            (None, _) if self.forgotten > seen.remembered => true,
            (None, found) => found.is_some_and(|(_, last_marker)| last_marker.is_some()),
        }
    }

    /// Returns true if the producer may have been forgotten after `seen`, and its state with it.
    pub fn is_forgotten_since(&self, producer_id: i64, seen: TransactionsSeen) -> bool {
        let number = self.by_id.get(&producer_id).map(|producer| producer.number);
        match seen.known {
            Some((before, _)) => number != Some(before),
            None => number.is_none() && self.forgotten > seen.remembered,
        }
    }

    /// Returns true if a later coordinator has ended a transaction of the producer here. The coordinator of
    /// `coordinator_epoch` may not know of that.
    pub fn has_later_coordinator(&self, producer_id: i64, coordinator_epoch: i32) -> bool {
        self.by_id.get(&producer_id).is_some_and(|producer| producer.coordinator_epoch > coordinator_epoch)
    }

    /// Returns the number of markers that are not known to be replicated.
    pub fn unreplicated_markers(&self) -> usize {
        self.open.unreplicated.len()
    }

    /// Returns the first offset of the oldest open transaction; None if none is open.
    pub fn first_open(&self) -> Option<i64> {
        self.open.first_open()
    }

    /// Returns the first offset that may still be aborted, of an open transaction or of one whose marker is at or past
    /// `high_watermark`; None if there is none.
    pub fn first_unstable(&mut self, high_watermark: i64) -> Option<i64> {
        self.open.first_unstable(high_watermark)
    }
}
