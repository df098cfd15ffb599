//! Batches that are about to be committed to diskless topics, and the ids of partitions and objects.

use crate::sequence::{Marker, Producers, Stamp, VersionedMarker};

/// The id of a partition of a diskless topic, which is never reused.
pub type DisklessPartitionId = i64;

/// The id of an object in the store, which is never reused.
pub type ObjectId = i64;

/// A batch in an object. The batches of a partition are in the order in which their broker has admitted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectBatch {
    /// The partition that the batch belongs to.
    pub partition: DisklessPartitionId,
    /// The position of the batch's first byte in the object.
    pub position: u32,
    /// Length of the batch in bytes.
    pub size: u32,
    /// The producer's stamp. `record_count` is the number of offsets that the batch takes. A marker has no sequence and
    /// takes one offset.
    pub stamp: Stamp,
    /// The largest timestamp of the batch's records in ms. With LogAppendTime, this is the broker's time.
    pub max_timestamp: i64,
    /// How the batch takes part in a transaction.
    pub kind: BatchKind,
    /// The coordinator's confirmation that the partition is in the producer's transaction; None if the batch was not
    /// verified. A batch that opens a transaction here can be committed only if it has been verified. For a marker,
    /// `next_offset` is the partition's next offset when the coordinator requested the marker.
    pub confirmation: Option<Confirmation>,
}

/// A confirmation by the transaction's coordinator that a partition is in the transaction (KIP-890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmation {
    /// The partition's next offset, as the broker knew it before the verification. A marker at that offset or later may
    /// have ended the transaction.
    pub next_offset: i64,
    /// True if the coordinator has added the partition for this batch (transaction version 2). A producer without state
    /// here must then begin with sequence 0.
    pub is_added: bool,
}

/// How a batch takes part in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// The records are not in a transaction.
    Plain,
    /// The records belong to the producer's transaction.
    Transactional,
    /// The batch is a control batch that ends the producer's transaction.
    Marker {
        /// The epoch of the coordinator that decided to end the transaction. It is the leader epoch of the
        /// coordinator's partition of `__transaction_state`.
        coordinator_epoch: i32,
        /// True to commit, false to abort. A row of producer state does not store this, so it is false in a batch that
        /// was read from such a row.
        is_commit: bool,
        /// True if the marker has the epoch after that of its transaction, as in transaction version 2.
        has_next_epoch: bool,
    },
}

impl BatchKind {
    /// Returns the kind of a batch with this marker. `transaction_version` is the version in the request for the
    /// marker.
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
    /// Returns true if the batch has a sequence to check: it is idempotent and not a marker.
    pub fn is_sequenced(&self) -> bool {
        self.stamp.is_idempotent() && !self.kind.is_marker()
    }

    /// Returns the marker in this batch with its transaction version (1 or 2); None if the batch is not a marker.
    pub fn marker(&self) -> Option<VersionedMarker> {
        marker(&self.stamp, self.kind)
    }
}

/// The batches of a producer that one commit has appended to a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendedBatches {
    pub partition: DisklessPartitionId,
    pub producer_id: i64,
    /// The batches in the order of their offsets. They may be of several epochs.
    pub batches: Vec<AppendedBatch>,
}

/// An appended batch of an idempotent producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedBatch {
    /// The stamp of the batch. For a marker, `base_sequence` is the sequence with which the producer continues.
    pub stamp: Stamp,
    /// The offset of the batch's first record.
    pub base_offset: i64,
    /// The timestamp for the response to a retry of the batch, in ms.
    pub timestamp: i64,
    /// How the batch takes part in a transaction.
    pub kind: BatchKind,
}

impl AppendedBatch {
    /// Creates a batch that is not in a transaction.
    pub fn plain(stamp: Stamp, base_offset: i64, timestamp: i64) -> AppendedBatch {
        AppendedBatch { stamp, base_offset, timestamp, kind: BatchKind::Plain }
    }

    /// Returns the marker in this batch with its transaction version (1 or 2); None if the batch is not a marker.
    pub fn marker(&self) -> Option<VersionedMarker> {
        marker(&self.stamp, self.kind)
    }

    /// Adds the batch to a partition's producer state, which remembers the newest `window` batches of each producer.
    /// Ignores a batch that the state already has.
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
