//! A batch on its way into a diskless topic, and the numbers of what it belongs to.

use crate::sequence::{Marker, Producers, Stamp, VersionedMarker};

/// A partition of a diskless topic, by a number that is given once.
pub type DisklessPartitionId = i64;

/// An object in the store, by a number that is given once.
pub type ObjectId = i64;

/// Batch in an object, in the order in which its broker has admitted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectBatch {
    /// Its partition.
    pub partition: DisklessPartitionId,
    /// Begin in the object, in bytes.
    pub position: u32,
    /// Its length in bytes.
    pub size: u32,
    /// Stamp of its producer; its `record_count` is the number of offsets that it takes. A marker has no sequence, and
    /// takes one offset.
    pub stamp: Stamp,
    /// The largest timestamp of its records in ms, or the broker's time where the topic has LogAppendTime.
    pub max_timestamp: i64,
    /// Part of the batch in a transaction.
    pub kind: BatchKind,
    /// Confirmation of the coordinator that the partition is in the producer's transaction, which the commit needs of a
    /// batch that opens one here. `None` of a batch that was not verified. Of a
    /// marker, the moment of its request.
    pub verified: Option<Verified>,
}

/// Word of a transaction's coordinator that the partition is in it (KIP-890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// A next offset of the partition that the broker knew before the verification. A marker at that offset or later
    /// may have ended the transaction.
    pub next_offset: i64,
    /// True if the coordinator has added the partition for the batch (transaction version 2): a producer without state
    /// here begins with 0.
    pub is_added: bool,
}

/// Part of a batch in a transaction.
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
        /// True to commit, false to abort. A row of producers has false.
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
    /// Returns true if a producer's sequence decides on the batch: it is idempotent, and no marker.
    pub fn is_sequenced(&self) -> bool {
        self.stamp.is_idempotent() && !self.kind.is_marker()
    }

    /// Returns the marker that the batch is; its transaction version is 1 or 2.
    pub fn marker(&self) -> Option<VersionedMarker> {
        marker(&self.stamp, self.kind)
    }
}

/// Batches that one commit has appended of one producer to one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendedBatches {
    /// The partition.
    pub partition: DisklessPartitionId,
    /// The producer.
    pub producer_id: i64,
    /// The batches, in the order of the offsets. There may be several epochs.
    pub batches: Vec<AppendedBatch>,
}

/// Batch of a producer that is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedBatch {
    /// Stamp of the batch. Of a marker, `base_sequence` is the one with which the producer goes on.
    pub stamp: Stamp,
    /// The offset of its first record.
    pub base_offset: i64,
    /// The timestamp that a retry is answered with, in ms.
    pub timestamp: i64,
    /// Part of the batch in a transaction.
    pub kind: BatchKind,
}

impl AppendedBatch {
    /// A batch in no transaction.
    pub fn plain(stamp: Stamp, base_offset: i64, timestamp: i64) -> AppendedBatch {
        AppendedBatch { stamp, base_offset, timestamp, kind: BatchKind::Plain }
    }

    /// Returns the marker that the batch is; its transaction version is 1 or 2.
    pub fn marker(&self) -> Option<VersionedMarker> {
        marker(&self.stamp, self.kind)
    }

    /// Lets the producers of a partition remember the batch; `window` batches are retained of each. One that they know
    /// is passed over.
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
