//! Remembers which transactions have recently ended in a shard (KIP-890).
//!
//! A write in a transaction is first verified with the transaction coordinator. If a marker ends the transaction
//! between that verification and the write, the write must be refused. Otherwise the write would open a transaction
//! that no marker ends.
//!
//! With transaction version 2, a marker contains the producer's next epoch. The producer may already write in that
//! epoch before the marker is appended, so the marker ends only transactions of earlier epochs.
//!
//! The last [`MARKERS_MAX`] markers are remembered. If more than that were appended since a verification, the verified
//! transaction counts as ended.

use fullbore_rules::sequence::Marker;
use fullbore_rules::transaction::ProducerIdAndEpoch;
use std::collections::VecDeque;

/// How many markers are remembered.
const MARKERS_MAX: usize = 1024;

/// How many markers a shard had at some time, such as the start of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkersSeen {
    /// The leader epoch in which this broker wrote to the shard at that time.
    leader_epoch: i32,
    count: u64,
}

/// The transactions that one marker ends: those of a producer, up to and including an epoch.
#[derive(Debug)]
struct Ended {
    producer_id: i64,
    last_epoch: i16,
}

/// The transactions that the last markers have ended, in the order in which the markers were requested.
#[derive(Debug, Default)]
pub(super) struct EndedTransactions {
    last: VecDeque<Ended>,
    /// The number of all markers since the shard was created, including those that are no longer remembered.
    count: u64,
}

impl EndedTransactions {
    pub fn seen(&self, leader_epoch: i32) -> MarkersSeen {
        MarkersSeen { leader_epoch, count: self.count }
    }

    pub fn note(&mut self, marker: &Marker, transaction_version: i8) {
        if self.last.len() == MARKERS_MAX {
            self.last.pop_front();
        }
        let &Marker { producer_id, producer_epoch, .. } = marker;
        let last_epoch = if transaction_version < 2 { producer_epoch } else { producer_epoch.saturating_sub(1) };
        self.last.push_back(Ended { producer_id, last_epoch });
        self.count += 1;
    }

    /// Returns true if a transaction of this producer and epoch may have ended since `since`.
    pub fn may_have_ended(&self, producer: ProducerIdAndEpoch, since: MarkersSeen, leader_epoch: i32) -> bool {
        let is_of = |ended: &Ended| ended.producer_id == producer.id && producer.epoch <= ended.last_epoch;
        let later = self.count.checked_sub(since.count).and_then(|later| usize::try_from(later).ok());
        match later.filter(|later| since.leader_epoch == leader_epoch && *later <= self.last.len()) {
            Some(later) => self.last.iter().rev().take(later).any(is_of),
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(producer_id: i64, producer_epoch: i16) -> Marker {
        Marker { producer_id, producer_epoch, coordinator_epoch: 0, is_commit: true }
    }

    fn producer(id: i64, epoch: i16) -> ProducerIdAndEpoch {
        ProducerIdAndEpoch { id, epoch }
    }

    #[test]
    fn marker_after_a_verification_ends_its_transaction() {
        let mut ended = EndedTransactions::default();
        ended.note(&marker(1, 0), 1);
        let seen = ended.seen(3);
        ended.note(&marker(2, 0), 1);
        assert_eq!([1, 2].map(|id| ended.may_have_ended(producer(id, 0), seen, 3)), [false, true]);
        assert!(ended.may_have_ended(producer(1, 0), seen, 4), "another leader may have written one");
        assert!(EndedTransactions::default().may_have_ended(producer(1, 0), seen, 3), "of another shard");
        (0..MARKERS_MAX as i64 - 1).for_each(|_| ended.note(&marker(4, 0), 1));
        assert!(!ended.may_have_ended(producer(1, 0), seen, 3));
        ended.note(&marker(4, 0), 1);
        assert!(ended.may_have_ended(producer(1, 0), seen, 3), "more than are remembered");
        assert_eq!(ended.last.len(), MARKERS_MAX);
    }

    /// With transaction version 2, the producer may already write in its next epoch before the marker is appended. The
    /// marker must not end the transaction of that next epoch.
    #[test]
    fn marker_of_the_next_epoch_keeps_a_transaction_in_that_epoch_open() {
        let mut ended = EndedTransactions::default();
        let seen = ended.seen(3);
        ended.note(&marker(1, 5), 2);
        assert_eq!([4, 5].map(|epoch| ended.may_have_ended(producer(1, epoch), seen, 3)), [true, false]);
        ended.note(&marker(1, 5), 1);
        assert_eq!([5, 6].map(|epoch| ended.may_have_ended(producer(1, epoch), seen, 3)), [true, false]);
    }
}
