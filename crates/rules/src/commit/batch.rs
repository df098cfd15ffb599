//! Batches on their way into a diskless topic, and the ids of their partitions and objects.

use crate::sequence::{Marker, Producers, Stamp, VersionedMarker};

/// Id of a partition of a diskless topic, never reused.
pub type DisklessPartitionId = i64;

/// Id of an object in the store, never reused.
pub type ObjectId = i64;

/// Batch in an object, in the order in which its broker has admitted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectBatch {
    /// Partition of the batch.
    pub partition: DisklessPartitionId,
    /// Position of the batch's first byte in the object.
    pub position: u32,
    /// Length of the batch in bytes.
    pub size: u32,
    /// Stamp of its producer; `record_count` is the number of offsets that the batch takes. A marker has no sequence,
    /// and takes one offset.
    pub stamp: Stamp,
    /// Largest timestamp of the batch's records in ms; the broker's time if the topic has LogAppendTime.
    pub max_timestamp: i64,
    /// Role of the batch in a transaction.
    pub kind: BatchKind,
    /// Confirmation by the coordinator that the partition is in the producer's transaction; None for a batch that was
    /// not verified. The commit requires it of a batch that opens a transaction here. For a marker, the state when the
    /// marker was requested.
    pub verified: Option<Verified>,
}

/// Confirmation by a transaction's coordinator that the partition is in it (KIP-890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Next offset of the partition that the broker knew before the verification. A marker at that offset or later may
    /// have ended the transaction.
    pub next_offset: i64,
    /// True if the coordinator has added the partition for the batch (transaction version 2): a producer without state
    /// here begins with sequence 0.
    pub is_added: bool,
}

/// Role of a batch in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// Records in no transaction.
    Plain,
    /// Records of the producer's transaction.
    Transactional,
    /// A control batch that ends the producer's transaction.
    Marker {
        /// Leader epoch of the partition of `__transaction_state` that decided.
        coordinator_epoch: i32,
        /// True to commit, false to abort. In a row of producer state always false.
        is_commit: bool,
        /// True if the marker has the epoch after that of its transaction, as with transaction version 2.
        has_next_epoch: bool,
    },
}

impl BatchKind {
    /// Returns the kind of a marker that WriteTxnMarkers or the coordinator requests.
    pub fn marker(marker: &Marker, transaction_version: i8) -> BatchKind {
        let &Marker { coordinator_epoch, is_commit, .. } = marker;
        let has_next_epoch = transaction_version >= VersionedMarker::BUMPED_FROM;
        BatchKind::Marker { coordinator_epoch, is_commit, has_next_epoch }
    }

    /// Returns true for a marker.
    pub fn is_marker(self) -> bool {
        matches!(self, BatchKind::Marker { .. })
    }
}

impl ObjectBatch {
    /// Returns true if the batch is checked by its producer's sequence: it is idempotent, and not a marker.
    pub fn is_sequenced(&self) -> bool {
        self.stamp.is_idempotent() && !self.kind.is_marker()
    }

    /// Returns the marker in this batch, with transaction version 1 or 2; None if the batch is not a marker.
    pub fn marker(&self) -> Option<VersionedMarker> {
        marker(&self.stamp, self.kind)
    }
}

/// Batches of one producer that one commit has appended to one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendedBatches {
    pub partition: DisklessPartitionId,
    pub producer_id: i64,
    /// The batches in the order of their offsets, possibly of several epochs.
    pub batches: Vec<AppendedBatch>,
}

/// Appended batch of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedBatch {
    /// Stamp of the batch. `base_sequence` of a marker is the sequence with which the producer continues.
    pub stamp: Stamp,
    /// Offset of the batch's first record.
    pub base_offset: i64,
    /// Timestamp in the response to a retry, in ms.
    pub timestamp: i64,
    /// Role of the batch in a transaction.
    pub kind: BatchKind,
}

impl AppendedBatch {
    /// Returns a batch outside transactions.
    pub fn plain(stamp: Stamp, base_offset: i64, timestamp: i64) -> AppendedBatch {
        AppendedBatch { stamp, base_offset, timestamp, kind: BatchKind::Plain }
    }

    /// Returns the marker in this batch, with transaction version 1 or 2; None if the batch is not a marker.
    pub fn marker(&self) -> Option<VersionedMarker> {
        marker(&self.stamp, self.kind)
    }

    /// Records the batch in a partition's producer state, which retains `window` batches of each producer. A batch that
    /// the state has already is ignored.
    pub fn remember(&self, producers: &mut Producers, now_ms: i64, window: usize) {
        let AppendedBatch { stamp, base_offset, timestamp, kind } = self;
        if producers.has_reached(stamp.producer_id, *base_offset) {
            return;
        }
        if let Some(versioned) = self.marker() {
            producers.end_committed(&versioned, *base_offset, *timestamp, now_ms);
            return;
        }
        producers.append(stamp, *base_offset, *timestamp, now_ms, window);
        if *kind == BatchKind::Transactional {
            producers.append_transactional(stamp, *base_offset, *timestamp, now_ms);
        }
    }
}

fn marker(stamp: &Stamp, kind: BatchKind) -> Option<VersionedMarker> {
    let BatchKind::Marker { coordinator_epoch, is_commit, has_next_epoch } = kind else { return None };
    let &Stamp { producer_id, producer_epoch, .. } = stamp;
    let marker = Marker { producer_id, producer_epoch, coordinator_epoch, is_commit };
    let bumped_from = VersionedMarker::BUMPED_FROM;
    let transaction_version = if has_next_epoch { bumped_from } else { bumped_from - 1 };
    Some(VersionedMarker { marker, transaction_version })
}
