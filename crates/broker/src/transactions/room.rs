//! Room for the partitions of all transactions that are open: each is held in memory until its transaction has ended, and a request that adds ten
//! thousand is a few kilobytes.
//!
//! Invariant: a share counts as long as its id is in service.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Partitions of all transactions together; past it none can be added. They take about 150 MB.
const PARTITIONS_MAX: usize = 2_000_000;

/// Partitions of all transactions of a broker.
#[derive(Clone, Default)]
pub(super) struct PartitionsRoom(Arc<AtomicUsize>);

/// Share of one transactional id.
pub(super) struct PartitionsShare {
    room: PartitionsRoom,
    held: usize,
}

impl PartitionsRoom {
    /// Returns true if no transaction may have more partitions.
    pub fn is_full(&self) -> bool {
        self.0.load(Relaxed) >= PARTITIONS_MAX
    }

    /// Returns the share of an id whose transaction has so many.
    pub fn share(&self, held: usize) -> PartitionsShare {
        self.0.fetch_add(held, Relaxed);
        PartitionsShare { room: self.clone(), held }
    }
}

impl PartitionsShare {
    /// Takes note of the partitions that the transaction has now.
    pub fn set(&mut self, held: usize) {
        if self.held != held {
            self.room.0.fetch_add(held, Relaxed);
            self.room.0.fetch_sub(std::mem::replace(&mut self.held, held), Relaxed);
        }
    }
}

impl Drop for PartitionsShare {
    fn drop(&mut self) {
        self.room.0.fetch_sub(self.held, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_have_all_the_room_it_is_full_until_one_ends_or_is_dropped() {
        let room = PartitionsRoom::default();
        let mut ends = room.share(1);
        let dropped = room.share(PARTITIONS_MAX - 2);
        assert!(!room.is_full());
        ends.set(2);
        assert!(room.is_full());
        ends.set(0);
        assert!(!room.is_full());
        ends.set(2);
        drop(dropped);
        assert!(!room.is_full());
        drop(ends);
        assert_eq!(room.0.load(Relaxed), 0);
    }
}
