//! Finds out-of-order batches: earlier batches of the same producer are missing.
//!
//! The caller decides what to do with such a batch. By default [`Producers::check`] refuses it. A producer can declare
//! that it sends the batches of a partition over several connections. Then the batch waits in [`super::parking`]
//! instead.
//!
//! Invariant: a batch that is ahead is neither the next one nor already written.

use super::producers::Producers;
use super::{HALF_RANGE, Stamp, sequence_distance};

impl Producers {
    /// Returns how many sequences are missing before this batch; 0 if the batch is not out of order.
    ///
    /// In the producer's present epoch, a batch can be ahead by up to half of the sequence range. A batch that is
    /// further ahead counts as old. In a later epoch, and for an unknown producer, the missing sequences are counted
    /// from 0. [`Producers::check`] may accept any first sequence of an unknown producer. Here, a batch that has
    /// overtaken earlier ones must not count as the first.
    pub fn ahead(&self, stamp: &Stamp) -> i32 {
        if !stamp.is_valid() {
            return 0;
        }
        match self.by_id.get(&stamp.producer_id) {
            Some(known) if stamp.producer_epoch < known.epoch => 0,
            Some(known) if stamp.producer_epoch == known.epoch => {
                let ahead = sequence_distance(known.next_sequence(), stamp.base_sequence);
                if ahead < HALF_RANGE { ahead } else { 0 }
            }
            _ => stamp.base_sequence,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SequenceRefusal, Verdict};
    use super::*;
    use proptest::prelude::*;

    fn stamp(producer_epoch: i16, base_sequence: i32, record_count: i32) -> Stamp {
        Stamp { producer_id: 7, producer_epoch, base_sequence, record_count }
    }

    /// Returns a producer in epoch 3 that has written three batches of two records. `next` is its next sequence.
    fn written(next: i32) -> Producers {
        let mut producers = Producers::default();
        for back in [6, 4, 2] {
            let base_sequence = super::super::sequence_add(next, -back);
            producers.append(&stamp(3, base_sequence, 2), i64::from(100 - back), 0, 0, 5);
        }
        producers
    }

    #[test]
    fn next_written_and_older_batches_are_not_ahead() {
        for next in [10, 0, 1, i32::MAX] {
            let producers = written(next);
            assert_eq!(producers.ahead(&stamp(3, next, 1)), 0);
            assert_eq!(producers.ahead(&stamp(3, super::super::sequence_add(next, -2), 2)), 0);
            assert_eq!(producers.ahead(&stamp(3, super::super::sequence_add(next, -9), 2)), 0, "older than is known");
            assert_eq!(producers.ahead(&stamp(2, super::super::sequence_add(next, 5), 2)), 0);
            assert_eq!(producers.ahead(&stamp(3, super::super::sequence_add(next, 5), 2)), 5, "over the wrap, too");
        }
    }

    #[test]
    fn half_of_the_range_is_ahead_and_half_behind() {
        let producers = written(10);
        assert_eq!(producers.ahead(&stamp(3, 10 + HALF_RANGE - 1, 1)), HALF_RANGE - 1);
        assert_eq!(producers.ahead(&stamp(3, 10 + HALF_RANGE, 1)), 0);
    }

    #[test]
    fn epoch_or_producer_without_writes_begins_at_zero() {
        assert_eq!(written(10).ahead(&stamp(4, 0, 1)), 0);
        assert_eq!(written(10).ahead(&stamp(4, 12, 1)), 12);
        assert_eq!(Producers::default().ahead(&stamp(0, 0, 1)), 0);
        assert_eq!(Producers::default().ahead(&stamp(0, 5, 1)), 5);
        assert_eq!(Producers::default().ahead(&stamp(0, -1, 1)), 0, "no sequence at all");
    }

    proptest! {
        /// If the producer's state is certain, a batch that is ahead is refused as out of order.
        #[test]
        fn batch_ahead_would_be_refused(next in 0..=i32::MAX, epoch in 2..=4i16, base in 0..=i32::MAX, near in -20..20i32) {
            let producers = written(next);
            for base_sequence in [base, super::super::sequence_add(next, near)] {
                let stamp = stamp(epoch, base_sequence, 2);
                if producers.ahead(&stamp) > 0 {
                    prop_assert_eq!(producers.check(&stamp, 100), Verdict::Refuse(SequenceRefusal::OutOfOrderSequence));
                }
            }
        }
    }
}
