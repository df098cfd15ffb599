//! Producer state as the entries of a Kafka producer snapshot (`.snapshot` files), and back.
//!
//! Not here: the bytes of the file, which the broker writes.
//!
//! Kafka writes one entry for each producer, its last batch, so that a restart shrinks the window to one. Here every
//! retained batch has an entry, oldest first, and a restart restores the whole window. Kafka reads such a file into a
//! map by producer id. The map keeps a producer's last entry, which is the one that Kafka would have written.
//!
//! If more consecutive sequences were written than the window retains, one entry precedes the producer's batches. Its
//! `last_offset` is -1, which Kafka reads as "no batch". Its `last_sequence` is the last one before the window, and
//! `offset_delta` is the number of these earlier sequences less one. So batches older than the window remain provable
//! after a restart.
//!
//! A producer that has written nothing after a marker began its epoch has one entry, as in Kafka: `last_sequence` and
//! `last_offset` are -1, and `offset_delta` is 0.
//!
//! The state carried from the deleted partition of the same name ([`ProducerTails`]) comes first, as entries without
//! records. Their `last_offset` and `offset_delta` are -1. `last_sequence` is the producer's last one in the deleted
//! partition, and `timestamp` the time at which this partition took the state over. An entry with `last_sequence` -1
//! means that the carried state of this producer and of all with smaller ids may be missing.
//!
//! Invariant: a restored state gives every batch the same verdict as the state in the snapshot.

use super::producer_tails::{ProducerTail, ProducerTails};
use super::producers::{Producer, Producers};
use super::window::WINDOW_MAX;
use super::{HALF_RANGE, Stamp, sequence_add};

/// Value of `last_offset` in an entry that is no batch.
const NO_OFFSET: i64 = SnapshotEntry::NONE;

/// Entry of a producer snapshot, with the fields of Kafka's entry (`ProducerSnapshot.json`, version 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Producer id, at least 0.
    pub producer_id: i64,
    /// Epoch: 0..=32767.
    pub producer_epoch: i16,
    /// Sequence of the batch's last record.
    pub last_sequence: i32,
    /// Offset of the batch's last record; -1 if the entry is no batch.
    pub last_offset: i64,
    /// Last offset of the batch less its first.
    pub offset_delta: i32,
    /// Timestamp of the batch, in ms.
    pub timestamp: i64,
    /// Coordinator epoch of the producer's last marker; -1 before the first.
    pub coordinator_epoch: i32,
    /// First offset of the open transaction; -1 if none is open.
    pub current_txn_first_offset: i64,
}

impl SnapshotEntry {
    /// Value of a missing offset or timestamp.
    pub(super) const NONE: i64 = -1;
    /// Value of `last_sequence` in an entry without one.
    const NO_SEQUENCE: i32 = -1;
    /// Value of `offset_delta` in an entry of carried state.
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

    /// Returns true if the entry is of a producer whose epoch was begun by a marker and has no writes.
    fn is_marker(&self) -> bool {
        self.last_offset == NO_OFFSET
            && self.last_sequence == SnapshotEntry::NO_SEQUENCE
            && self.offset_delta == 0
            && self.producer_id >= 0
            && self.producer_epoch >= 0
    }

    /// Returns true if the entry is a batch, or the sequences before a window.
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
    /// Returns first the carried state, then every retained batch by producer. The longest idle producer and its oldest
    /// batch come first.
    pub fn snapshot(&self) -> impl Iterator<Item = SnapshotEntry> {
        let batches = self.in_order().flat_map(|(producer_id, producer)| {
            let first = run_before_window(producer_id, producer).or_else(|| marker(producer_id, producer));
            first.into_iter().chain(batches(producer_id, producer))
        });
        self.tails_to_keep().into_entries().chain(batches)
    }

    /// Adds the batches of a snapshot, in its order. Every producer counts as active at `now_ms`, since a batch's
    /// timestamp is whatever its client chose. All batches are kept: a window above the configured size shrinks as it
    /// would without the restart. `window` is the largest window granted before the restart, which producers may still
    /// fill.
    ///
    /// An entry that cannot come from a batch is skipped.
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

    /// Adds the sequences before a window to the series that has just begun with `first`.
    fn extend_run(&mut self, first: &Stamp, record_count: i32) {
        if let Some(producer) = self.by_id.get_mut(&first.producer_id)
            && producer.run == first.record_count as u64
        {
            producer.run += record_count as u64;
        }
    }
}

impl ProducerTails {
    /// Returns the carried state as entries without records.
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

    /// Adds an entry of carried state. If `limit` producers have carried state already, records instead that the
    /// entry's may be missing.
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

/// Returns the entry of a producer without retained batches; None for any other producer.
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
