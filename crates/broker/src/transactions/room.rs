//! Limits the memory that transactional ids and the partitions of open transactions may take. An id can be 32 KB long,
//! and a request of a few kilobytes can add ten thousand partitions.
//!
//! The memory of an id counts while the id is in service.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Maximum number of partitions in all transactions together, which take about 150 MB. At this number, no transaction
/// can add partitions.
const PARTITIONS_MAX: usize = 2_000_000;

/// Maximum length of all ids together, in bytes. A new id beyond this is refused.
const ID_BYTES_MAX: usize = 128 << 20;

/// The memory budget of a broker.
#[derive(Clone, Default)]
pub(super) struct TransactionsRoom(Arc<Held>);

/// The totals of all ids.
#[derive(Default)]
struct Held {
    partitions: AtomicUsize,
    id_bytes: AtomicUsize,
}

/// The share of one transactional id, which is released when dropped.
pub(super) struct TransactionShare {
    room: TransactionsRoom,
    partitions: usize,
    id_bytes: usize,
}

impl TransactionsRoom {
    /// Returns true if no more partitions can be added to any transaction.
    pub fn is_full(&self) -> bool {
        self.0.partitions.load(Relaxed) >= PARTITIONS_MAX
    }

    /// Returns true if there is memory for a new id.
    pub fn has_room_for(&self, id: &str) -> bool {
        self.0.id_bytes.load(Relaxed).saturating_add(id.len()) <= ID_BYTES_MAX
    }

    /// Returns the length of all ids together.
    pub fn id_bytes(&self) -> usize {
        self.0.id_bytes.load(Relaxed)
    }

    /// Takes the share of a new id whose transaction has `partitions` partitions.
    pub fn share(&self, id: &str, partitions: usize) -> TransactionShare {
        self.0.partitions.fetch_add(partitions, Relaxed);
        self.0.id_bytes.fetch_add(id.len(), Relaxed);
        TransactionShare { room: self.clone(), partitions, id_bytes: id.len() }
    }
}

impl TransactionShare {
    /// Changes the share after the transaction's number of partitions has changed.
    pub fn set(&mut self, partitions: usize) {
        if self.partitions != partitions {
            let held = &self.room.0.partitions;
            held.fetch_add(partitions, Relaxed);
            held.fetch_sub(std::mem::replace(&mut self.partitions, partitions), Relaxed);
        }
    }
}

impl Drop for TransactionShare {
    fn drop(&mut self) {
        self.room.0.partitions.fetch_sub(self.partitions, Relaxed);
        self.room.0.id_bytes.fetch_sub(self.id_bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_for_partitions_is_full_until_a_transaction_ends_or_is_dropped() {
        let room = TransactionsRoom::default();
        let mut ends = room.share("ends", 1);
        let dropped = room.share("dropped", PARTITIONS_MAX - 2);
        assert!(!room.is_full());
        ends.set(2);
        assert!(room.is_full());
        ends.set(0);
        assert!(!room.is_full());
        ends.set(2);
        drop(dropped);
        assert!(!room.is_full());
        drop(ends);
        assert_eq!((room.0.partitions.load(Relaxed), room.0.id_bytes.load(Relaxed)), (0, 0));
    }

    #[test]
    fn budget_for_ids_is_full_until_a_long_id_is_dropped() {
        let room = TransactionsRoom::default();
        let long = "x".repeat(1 << 20);
        let mut shares: Vec<_> = (0..128).map(|_| room.share(&long, 0)).collect();
        assert!(!room.has_room_for("y"));
        shares.pop();
        assert!(room.has_room_for(&long));
    }
}
