//! Producer state that a recreated partition takes over from the deleted one: the epoch of each producer, and the
//! sequence with which the producer continues.
//!
//! Producer ids are assigned in increasing order. So the state of missing producers is a single bound. An unknown
//! producer with an id at the bound or above it never wrote to the deleted partition, and begins with sequence 0.
//!
//! The state of producers that have written to the recreated partition is in [`super::producers`].
//!
//! Invariant: a producer that has written to the recreated partition has no state here.

use std::collections::HashMap;

use super::{HALF_RANGE, Stamp, sequence_add, sequence_distance};

/// The state of a deleted partition's producers, as far as this broker knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerTails {
    pub(super) by_producer: HashMap<i64, ProducerTail>,
    /// Unknown producers with smaller ids than this may have written to the deleted partition. 0 if no unknown producer
    /// may have written.
    pub(super) unknown_below: i64,
    /// When the recreated partition took the state over, in ms.
    pub(super) since_ms: Option<i64>,
}

/// The last epoch of a producer in the deleted partition, and its next sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProducerTail {
    pub epoch: i16,
    /// The sequence after the last one that the producer wrote.
    pub unwritten: i32,
}

impl ProducerTail {
    /// Returns true if the producer may continue with this batch. The batch must be its next one, or an earlier one
    /// whose response was lost. A later batch is not accepted, because earlier batches were refused while the topic did
    /// not exist.
    fn is_continued_by(&self, stamp: &Stamp) -> bool {
        stamp.producer_epoch == self.epoch && sequence_distance(stamp.base_sequence, self.unwritten) < HALF_RANGE
    }
}

impl ProducerTails {
    /// Creates a state that knows no producers, for a broker that lacks records of the deleted partition.
    pub fn partial() -> ProducerTails {
        ProducerTails::default().of_unknown()
    }

    /// Marks the state as incomplete, so that any unknown producer may have written.
    pub(super) fn of_unknown(self) -> ProducerTails {
        ProducerTails { unknown_below: i64::MAX, ..self }
    }

    /// Limits the unknown producers that may have written to those with ids below `bound`. Ids from `bound` on were
    /// assigned after the deletion.
    pub fn of_ids_below(mut self, bound: i64) -> ProducerTails {
        self.unknown_below = self.unknown_below.min(bound);
        self
    }

    /// Sets when the state was taken over. The state expires `producer.id.expiration.ms` later.
    pub fn since(self, now_ms: i64) -> ProducerTails {
        ProducerTails { since_ms: Some(now_ms), ..self }
    }

    /// Returns the state for the next recreated partition, with the producers that have written `here`. The new state
    /// also includes the producers of this state, if all together are at most `limit`. Otherwise the new state records
    /// that these producers may be missing.
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

    /// Returns a stamp for the last record of each known producer.
    pub fn last_records(&self) -> impl Iterator<Item = Stamp> {
        let last = |(&producer_id, tail): (&i64, &ProducerTail)| Stamp {
            producer_id,
            producer_epoch: tail.epoch,
            base_sequence: sequence_add(tail.unwritten, -1),
            record_count: 1,
        };
        self.by_producer.iter().map(last)
    }

    /// Returns a bound: unknown producers with smaller ids may have written to the deleted partition. The bound is 0 if
    /// no unknown producer may have written, and `i64::MAX` if all may.
    pub fn unknown_below(&self) -> i64 {
        self.unknown_below
    }

    /// Returns true if no producer can have written to the deleted partition.
    pub fn is_empty(&self) -> bool {
        self.by_producer.is_empty() && self.unknown_below == 0
    }

    /// Returns for how many producers memory is allocated.
    pub fn capacity(&self) -> usize {
        self.by_producer.capacity()
    }

    /// Returns true if the producer may continue with this batch. This is true for any batch if the producer's state
    /// may be missing.
    pub(super) fn are_continued_by(&self, stamp: &Stamp) -> bool {
        match self.by_producer.get(&stamp.producer_id) {
            Some(tail) => tail.is_continued_by(stamp),
            None => stamp.producer_id < self.unknown_below,
        }
    }

    /// Returns true if the producer's state is known and it may continue with this batch.
    pub(super) fn tail_is_continued_by(&self, stamp: &Stamp) -> bool {
        self.by_producer.get(&stamp.producer_id).is_some_and(|tail| tail.is_continued_by(stamp))
    }

    /// Returns true if the state of a producer may be missing, and its id is below a known bound.
    pub(super) fn may_lack_that_of(&self, producer_id: i64) -> bool {
        self.unknown_below < i64::MAX
            && producer_id < self.unknown_below
            && !self.by_producer.contains_key(&producer_id)
    }

    /// Returns true if the batch has the producer's epoch, but its sequence is later than the one with which the
    /// producer must continue.
    pub(super) fn are_overtaken_by(&self, stamp: &Stamp) -> bool {
        let tail = self.by_producer.get(&stamp.producer_id);
        tail.is_some_and(|tail| tail.epoch == stamp.producer_epoch && !tail.is_continued_by(stamp))
    }

    /// Removes a producer that has written to the recreated partition.
    pub(super) fn forget(&mut self, producer_id: i64) {
        self.by_producer.remove(&producer_id);
    }

    /// Notes that the state of a producer is lost, so that the producer may continue with any batch.
    pub(super) fn may_lack(&mut self, producer_id: i64) {
        self.may_lack_below(producer_id.saturating_add(1));
    }

    /// Notes that the states of all producers with ids below `bound` may be lost.
    pub(super) fn may_lack_below(&mut self, bound: i64) {
        self.unknown_below = self.unknown_below.max(bound);
    }

    /// Removes all known producers if `expiration_ms` have passed since the state was taken over. They then count as
    /// unknown producers that may have written.
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
