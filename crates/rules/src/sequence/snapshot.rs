//! Converts producer state to the entries of a Kafka producer snapshot (`.snapshot` files), and back.
//!
//! The broker writes the bytes of the file.
//!
//! Kafka writes one entry for each producer, with its last batch, so a restart shrinks the window to one. Here every
//! remembered batch has an entry, oldest first, and a restart restores the whole window. When Kafka reads such a file,
//! it puts the entries into a map by producer id. The map keeps the last entry of each producer, which equals the only
//! one that Kafka itself would write.
//!
//! If more consecutive sequences were written than the window has, another entry comes before the producer's batches.
//! Its `last_offset` is -1, which Kafka reads as "no batch". Its `last_sequence` is the last one before the window, and
//! `offset_delta` is the number of these earlier sequences less one. So duplicates that are older than the window are
//! still recognised after a restart.
//!
//! If a marker has begun a producer's epoch and the producer has written nothing since then, it has one entry, as in
//! Kafka. `last_sequence` and `last_offset` are -1, and `offset_delta` is 0.
//!
//! State taken over from the deleted partition of the same name ([`ProducerTails`]) comes first, as entries without
//! records. Their `last_offset` and `offset_delta` are -1. `last_sequence` is the producer's last one in the deleted
//! partition, and `timestamp` is when this partition took the state over. If `last_sequence` is -1, the state of this
//! producer and of all with smaller ids may be missing.
//!
//! Invariant: a restored state decides on every batch as the original state would.

use super::producer_tails::{ProducerTail, ProducerTails};
use super::producers::{Producer, Producers};
use super::window::WINDOW_MAX;
use super::{HALF_RANGE, Stamp, sequence_add};

/// The value of `last_offset` in an entry that is not a batch.
const NO_OFFSET: i64 = SnapshotEntry::NONE;

/// An entry of a producer snapshot, with the fields of Kafka's entry (`ProducerSnapshot.json`, version 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// The producer id, at least 0.
    pub producer_id: i64,
    /// The producer's epoch: 0..=32767.
    pub producer_epoch: i16,
    /// The sequence of the batch's last record.
    pub last_sequence: i32,
    /// The offset of the batch's last record; -1 if the entry is not a batch.
    pub last_offset: i64,
    /// The last offset of the batch minus its first.
    pub offset_delta: i32,
    /// The timestamp of the batch, in ms.
    pub timestamp: i64,
    /// The coordinator epoch of the producer's last marker; -1 before the first.
    pub coordinator_epoch: i32,
    /// The first offset of the open transaction; -1 if none is open.
    pub current_txn_first_offset: i64,
}

impl SnapshotEntry {
    /// The value of an offset or timestamp that is missing.
    pub(super) const NONE: i64 = -1;
    /// The value of `last_sequence` in an entry that has no sequence.
    const NO_SEQUENCE: i32 = -1;
    /// The value of `offset_delta` in an entry that was taken over from a deleted partition.
    const NO_RECORDS: i32 = -1;

    fn is_tail(&self) -> bool {
        self.last_offset == NO_OFFSET && self.offset_delta == SnapshotEntry::NO_RECORDS && self.producer_id >= 0
    }

    fn stamp(&self) -> Stamp {
        Stamp {
            producer_id: self.producer_id,
            producer_epoch: self.producer_epoch,
            base_sequence: sequence_add(self.last_sequence, self.offset_delta.wrapping_neg()),
            record_count: self.offset_delta.saturating_add(1),
        }
    }

    /// Returns true if this is the entry of a producer that has written nothing since a marker began its epoch.
    fn is_marker(&self) -> bool {
        self.last_offset == NO_OFFSET
            && self.last_sequence == SnapshotEntry::NO_SEQUENCE
            && self.offset_delta == 0
            && self.producer_id >= 0
            && self.producer_epoch >= 0
    }

    /// Returns true if this is the entry of a batch, or of the sequences before a window.
    fn has_sequences(&self) -> bool {
        self.last_sequence >= 0 && self.stamp().is_valid()
    }

    fn is_followed_by(&self, next: &Stamp) -> bool {
        self.producer_id == next.producer_id
            && self.producer_epoch == next.producer_epoch
            && sequence_add(self.last_sequence, 1) == next.base_sequence
    }
}

impl Producers {
    /// Returns the entries of a snapshot. The state taken over from a deleted partition comes first, and then every
    /// remembered batch by producer. The producer that has been idle the longest is the first one, and each producer's
    /// batches begin with the oldest.
    pub fn snapshot(&self) -> impl Iterator<Item = SnapshotEntry> {
        let batches = self.in_order().flat_map(|(producer_id, producer)| {
            let first = run_before_window(producer_id, producer).or_else(|| marker(producer_id, producer));
            first.into_iter().chain(batches(producer_id, producer))
        });
        self.tails_to_keep().into_entries().chain(batches)
    }

    /// Restores the state from the entries of a snapshot, in their order. Every producer counts as active at `now_ms`,
    /// because the timestamp of a batch is chosen by its client and may be wrong. All batches are kept. If a window is
    /// larger than the configured size, it shrinks as it would without the restart. `window` is the largest window that
    /// was granted before the restart, because producers may still use it.
    ///
    /// An entry that does not belong to a batch, a marker or a deleted partition is skipped.
    pub fn restore(&mut self, entries: impl IntoIterator<Item = SnapshotEntry>, now_ms: i64, window: usize) {
        let mut run: Option<SnapshotEntry> = None;
        for entry in entries {
            if entry.is_tail() {
                self.predecessor.restore(&entry, self.limit);
                continue;
            }
            if entry.is_marker() {
                self.restore_marker(&entry, now_ms);
                continue;
            }
            if !entry.has_sequences() {
                continue;
            }
            if entry.last_offset == NO_OFFSET {
                run = Some(entry);
                continue;
            }
            let base_offset = entry.last_offset.saturating_sub(i64::from(entry.offset_delta));
            if base_offset < 0 {
                continue;
            }
            let stamp = entry.stamp();
            self.append(&stamp, base_offset, entry.timestamp, now_ms, WINDOW_MAX);
            self.restore_transaction(&entry);
            if let Some(before) = run.take().filter(|before| before.is_followed_by(&stamp)) {
                self.extend_run(&stamp, before.stamp().record_count);
            }
        }
        self.by_id.values_mut().for_each(|producer| producer.window.restore_size(window));
    }

    fn restore_marker(&mut self, entry: &SnapshotEntry, now_ms: i64) {
        let producer = self.known_or_new(entry.producer_id);
        producer.epoch = entry.producer_epoch;
        producer.last_timestamp = entry.timestamp;
        self.touch(entry.producer_id, now_ms);
        self.restore_transaction(entry);
        self.evict();
    }

    fn restore_transaction(&mut self, entry: &SnapshotEntry) {
        let Some(producer) = self.by_id.get_mut(&entry.producer_id) else { return };
        producer.coordinator_epoch = entry.coordinator_epoch;
        if entry.current_txn_first_offset >= 0 && producer.open_from.is_none() {
            producer.open_from = Some(entry.current_txn_first_offset);
            self.idle.remove(&producer.turn);
            self.open.begin(entry.current_txn_first_offset, entry.producer_id);
        }
    }

    /// Adds the sequences before a window to the series that `first` has just begun.
    fn extend_run(&mut self, first: &Stamp, record_count: i32) {
        if let Some(producer) = self.by_id.get_mut(&first.producer_id)
            && producer.run == first.record_count as u64
        {
            producer.run += record_count as u64;
        }
    }
}

impl ProducerTails {
    /// Converts the state to entries without records.
    fn into_entries(self) -> impl Iterator<Item = SnapshotEntry> {
        let timestamp = self.since_ms.unwrap_or(SnapshotEntry::NONE);
        let entry = move |producer_id, producer_epoch, last_sequence| SnapshotEntry {
            producer_id,
            producer_epoch,
            last_sequence,
            last_offset: SnapshotEntry::NONE,
            offset_delta: SnapshotEntry::NO_RECORDS,
            timestamp,
            coordinator_epoch: -1,
            current_txn_first_offset: SnapshotEntry::NONE,
        };
        let bound = (self.unknown_below > 0).then(|| entry(self.unknown_below - 1, -1, SnapshotEntry::NO_SEQUENCE));
        let mut tails: Vec<_> = self.by_producer.into_iter().collect();
        tails.sort_unstable_by_key(|(producer_id, _)| *producer_id);
        let tails = tails.into_iter().map(move |(id, tail)| entry(id, tail.epoch, sequence_add(tail.unwritten, -1)));
        bound.into_iter().chain(tails)
    }

    /// Restores an entry that was taken over from a deleted partition. If there are already `limit` of them, notes
    /// instead that the state of this producer may be missing.
    fn restore(&mut self, entry: &SnapshotEntry, limit: usize) {
        if entry.timestamp >= 0 {
            self.since_ms = Some(entry.timestamp);
        }
        if entry.last_sequence < 0 || self.len() >= limit {
            self.may_lack(entry.producer_id);
        } else {
            let tail = ProducerTail { epoch: entry.producer_epoch, unwritten: sequence_add(entry.last_sequence, 1) };
            self.by_producer.insert(entry.producer_id, tail);
        }
    }
}

fn batches(producer_id: i64, producer: &Producer) -> impl Iterator<Item = SnapshotEntry> {
    producer.window.iter().map(move |batch| SnapshotEntry {
        last_sequence: batch.last_sequence(),
        last_offset: batch.last_offset(),
        offset_delta: batch.record_count - 1,
        timestamp: batch.timestamp,
        ..transaction(producer_id, producer)
    })
}

/// Returns the fields that all entries of a producer share.
fn transaction(producer_id: i64, producer: &Producer) -> SnapshotEntry {
    SnapshotEntry {
        producer_id,
        producer_epoch: producer.epoch,
        last_sequence: SnapshotEntry::NO_SEQUENCE,
        last_offset: NO_OFFSET,
        offset_delta: 0,
        timestamp: producer.last_timestamp,
        coordinator_epoch: producer.coordinator_epoch,
        current_txn_first_offset: producer.open_from.unwrap_or(SnapshotEntry::NONE),
    }
}

/// Returns an entry for a producer that has no remembered batches; None for any other producer.
fn marker(producer_id: i64, producer: &Producer) -> Option<SnapshotEntry> {
    producer.window.newest().is_none().then(|| transaction(producer_id, producer))
}

fn run_before_window(producer_id: i64, producer: &Producer) -> Option<SnapshotEntry> {
    let before = producer.run.saturating_sub(producer.window.span()).min(HALF_RANGE as u64) as i32;
    let oldest = producer.window.oldest().filter(|_| before > 0)?;
    Some(SnapshotEntry {
        last_sequence: sequence_add(oldest.base_sequence, -1),
        offset_delta: before - 1,
        timestamp: oldest.timestamp,
        ..transaction(producer_id, producer)
    })
}
