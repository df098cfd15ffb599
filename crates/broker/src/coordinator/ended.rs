//! Transactions that have ended in a shard of late: a verification from before the end must not open one of them again
//! (KIP-890).
//!
//! Needed for transaction version 1. With version 2 a marker has the next epoch, which fences late batches.
//!
//! Invariant: the last [`MARKERS_MAX`] markers are remembered; if more have come since a verification, its transaction
//! counts as ended.

use std::collections::VecDeque;

/// Markers that are remembered.
const MARKERS_MAX: usize = 1024;

/// The markers of a shard up to some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkersSeen {
    /// Leader epoch in which the shard was written.
    leader_epoch: i32,
    count: u64,
}

/// Producers of the last markers, in the order of the queue.
#[derive(Debug, Default)]
pub(super) struct EndedTransactions {
    producers: VecDeque<i64>,
    /// Number of all markers so far.
    count: u64,
}

impl EndedTransactions {
    pub fn seen(&self, leader_epoch: i32) -> MarkersSeen {
        MarkersSeen { leader_epoch, count: self.count }
    }

    pub fn note(&mut self, producer_id: i64) {
        if self.producers.len() == MARKERS_MAX {
            self.producers.pop_front();
        }
        self.producers.push_back(producer_id);
        self.count += 1;
    }

    /// Returns true if a transaction of the producer may have ended since.
    pub fn may_have_ended(&self, producer_id: i64, since: MarkersSeen, leader_epoch: i32) -> bool {
        let later = self.count.checked_sub(since.count).and_then(|later| usize::try_from(later).ok());
        match later.filter(|later| since.leader_epoch == leader_epoch && *later <= self.producers.len()) {
            Some(later) => self.producers.iter().rev().take(later).any(|&ended| ended == producer_id),
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_has_come_since_the_transaction_counts_as_ended() {
        let mut ended = EndedTransactions::default();
        ended.note(1);
        let seen = ended.seen(3);
        ended.note(2);
        assert_eq!([1, 2].map(|producer| ended.may_have_ended(producer, seen, 3)), [false, true]);
        assert!(ended.may_have_ended(1, seen, 4), "another leader may have written one");
        assert!(EndedTransactions::default().may_have_ended(1, seen, 3), "of another shard");
        (0..MARKERS_MAX as i64 - 1).for_each(|_| ended.note(4));
        assert!(!ended.may_have_ended(1, seen, 3));
        ended.note(4);
        assert!(ended.may_have_ended(1, seen, 3), "more than are remembered");
        assert_eq!(ended.producers.len(), MARKERS_MAX);
    }
}
