//! Producer state carried to a recreated partition: the sequence with which each producer of the deleted partition
//! continues in the next partition of the name.
//!
//! Producer ids are assigned in increasing order. So one bound covers all producers whose carried state may be missing:
//! a producer with a larger id never wrote to the deleted partition, and begins with 0.
//!
//! Not here: the state of producers that have written to the recreated partition ([`super::producers`]).
//!
//! Invariant: a producer that has written to the partition has no carried state.

use std::collections::HashMap;

use super::{HALF_RANGE, Stamp, sequence_add, sequence_distance};

/// Carried state of the producers of a deleted partition, as known to this broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerTails {
    pub(super) by_producer: HashMap<i64, ProducerTail>,
    /// Exclusive upper bound of the ids of unknown producers that may also have written to the deleted partition; 0 if
    /// there are no such producers.
    pub(super) unknown_below: i64,
    /// Time at which the partition took the state over, in ms.
    pub(super) since_ms: Option<i64>,
}

/// Carried state of one producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProducerTail {
    pub epoch: i16,
    /// Sequence after the producer's last written one.
    pub unwritten: i32,
}

impl ProducerTail {
    /// Returns true if the producer may continue with this batch: with the next one, or with an earlier one whose
    /// response was lost. A batch past the next one has overtaken it: the next one was refused while the topic did not
    /// exist.
    fn is_continued_by(&self, stamp: &Stamp) -> bool {
        stamp.producer_epoch == self.epoch && sequence_distance(stamp.base_sequence, self.unwritten) < HALF_RANGE
    }
}

impl ProducerTails {
    /// Returns carried state without known producers, for a broker that lacks records of the deleted partition.
    pub fn partial() -> ProducerTails {
        ProducerTails::default().of_unknown()
    }

    /// Returns the state, marked as incomplete: the carried state of any other producer may be missing.
    pub(super) fn of_unknown(self) -> ProducerTails {
        ProducerTails { unknown_below: i64::MAX, ..self }
    }

    /// Returns the state for a bound of ids: ids from `bound` on were assigned later, so their producers never wrote to
    /// the deleted partition.
    pub fn of_ids_below(mut self, bound: i64) -> ProducerTails {
        self.unknown_below = self.unknown_below.min(bound);
        self
    }

    /// Returns the state, taken over at `now_ms`. Its expiration counts from that time.
    pub fn since(self, now_ms: i64) -> ProducerTails {
        ProducerTails { since_ms: Some(now_ms), ..self }
    }

    /// Returns the state for the next recreated partition. It has the producers that wrote `here`. It also has all
    /// others if together they are at most `limit`; if not, it records that the others' state may be missing.
    pub(super) fn followed_by(
        &self,
        here: impl ExactSizeIterator<Item = (i64, ProducerTail)>,
        limit: usize,
    ) -> ProducerTails {
        let keeps = self.len() + here.len() <= limit;
        let mut next = ProducerTails { by_producer: here.collect(), unknown_below: self.unknown_below, since_ms: None };
        if keeps {
            next.by_producer.extend(&self.by_producer);
        } else {
            self.by_producer.keys().for_each(|&producer_id| next.may_lack(producer_id));
        }
        next
    }

    /// Returns the number of known producers.
    pub fn len(&self) -> usize {
        self.by_producer.len()
    }

    /// Returns the stamp of the last record of each known producer.
    pub fn last_records(&self) -> impl Iterator<Item = Stamp> {
        let last = |(&producer_id, tail): (&i64, &ProducerTail)| Stamp {
            producer_id,
            producer_epoch: tail.epoch,
            base_sequence: sequence_add(tail.unwritten, -1),
            record_count: 1,
        };
        self.by_producer.iter().map(last)
    }

    /// Returns the bound of the ids of unknown producers that may have written: 0 if there are none, `i64::MAX` if no
    /// bound is known.
    pub fn unknown_below(&self) -> i64 {
        self.unknown_below
    }

    /// Returns true if no producer can have written to the deleted partition.
    pub fn is_empty(&self) -> bool {
        self.by_producer.is_empty() && self.unknown_below == 0
    }

    /// Returns the number of producers for which memory is allocated.
    pub fn capacity(&self) -> usize {
        self.by_producer.capacity()
    }

    /// Returns true if the batch continues the carried state of its producer. Returns true for any batch if that state
    /// may be missing.
    pub(super) fn are_continued_by(&self, stamp: &Stamp) -> bool {
        match self.by_producer.get(&stamp.producer_id) {
            Some(tail) => tail.is_continued_by(stamp),
            None => stamp.producer_id < self.unknown_below,
        }
    }

    /// Returns true if the batch continues the known carried state of its producer.
    pub(super) fn tail_is_continued_by(&self, stamp: &Stamp) -> bool {
        self.by_producer.get(&stamp.producer_id).is_some_and(|tail| tail.is_continued_by(stamp))
    }

    /// Returns true if the carried state of a producer may be missing, and its id is below a known bound.
    pub(super) fn may_lack_that_of(&self, producer_id: i64) -> bool {
        self.unknown_below < i64::MAX
            && producer_id < self.unknown_below
            && !self.by_producer.contains_key(&producer_id)
    }

    /// Returns true if the batch has overtaken its producer's next batch.
    pub(super) fn are_overtaken_by(&self, stamp: &Stamp) -> bool {
        let tail = self.by_producer.get(&stamp.producer_id);
        tail.is_some_and(|tail| tail.epoch == stamp.producer_epoch && !tail.is_continued_by(stamp))
    }

    /// Removes the carried state of a producer that has written to the recreated partition.
    pub(super) fn forget(&mut self, producer_id: i64) {
        self.by_producer.remove(&producer_id);
    }

    /// Records that the carried state of a producer is lost. The producer may continue with any batch.
    pub(super) fn may_lack(&mut self, producer_id: i64) {
        self.may_lack_below(producer_id.saturating_add(1));
    }

    /// Records that the carried state of all producers with ids below `bound` may be lost.
    pub(super) fn may_lack_below(&mut self, bound: i64) {
        self.unknown_below = self.unknown_below.max(bound);
    }

    /// Expires the carried state, `expiration_ms` after it was taken over.
    pub(super) fn expire(&mut self, now_ms: i64, expiration_ms: i64) {
        if self.by_producer.is_empty() {
            return;
        }
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(since_ms) >= expiration_ms {
            let silent = std::mem::take(&mut self.by_producer);
            silent.into_keys().for_each(|producer_id| self.may_lack(producer_id));
        }
    }
}
