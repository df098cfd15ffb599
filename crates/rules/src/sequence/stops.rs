//! Stops of producers on a deleted partition: with which batch each of them goes on in the next partition of the same
//! name.
//!
//! Producer ids are handed out in increasing order. So one bound covers all producers whose stop may be missing: a
//! producer with a larger id was never there, and begins with 0.
//!
//! What they are not: the state of producers that have written to the partition itself, which [`super::producers`] has.
//!
//! Invariant: a producer that has written to the partition has no stop.

use std::collections::HashMap;

use super::{HALF_RANGE, Stamp, sequence_add, sequence_distance};

/// Stops of producers on a partition that is deleted, as far as this broker knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    pub(super) by_producer: HashMap<i64, Stop>,
    /// Producers with a lesser id may have written as well. 0 if all are known.
    pub(super) unknown_below: i64,
    /// When the partition took them over, in ms.
    pub(super) since_ms: Option<i64>,
}

/// Stop of one producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub epoch: i16,
    /// The sequence after the last that was written.
    pub unwritten: i32,
}

impl Stop {
    /// Returns true if the batch may be its producer's next one. Answers of written batches may be lost, and the first
    /// of those batches is sent again first. A batch past the next one has overtaken it: the next one was refused while
    /// there was no topic.
    fn is_continued_by(&self, stamp: &Stamp) -> bool {
        stamp.producer_epoch == self.epoch && sequence_distance(stamp.base_sequence, self.unwritten) < HALF_RANGE
    }
}

impl Stops {
    /// Stops of no known producer, where this broker did not have all records of the deleted partition.
    pub fn partial() -> Stops {
        Stops::default().of_unknown()
    }

    /// Returns the stops with those of any other producer possibly missing.
    pub(super) fn of_unknown(self) -> Stops {
        Stops { unknown_below: i64::MAX, ..self }
    }

    /// Returns the stops as they are known where ids from `bound` on were given out later: no such producer was there
    /// unknown.
    pub fn of_ids_below(mut self, bound: i64) -> Stops {
        self.unknown_below = self.unknown_below.min(bound);
        self
    }

    /// Returns the stops as taken over at `now_ms`, from which on they expire.
    pub fn since(self, now_ms: i64) -> Stops {
        Stops { since_ms: Some(now_ms), ..self }
    }

    /// Returns the stops for the partition after the next: those of producers that wrote `here`, and, where there is
    /// room, of those that did not.
    pub(super) fn followed_by(&self, here: impl ExactSizeIterator<Item = (i64, Stop)>, limit: usize) -> Stops {
        let keeps = self.len() + here.len() <= limit;
        let mut next = Stops { by_producer: here.collect(), unknown_below: self.unknown_below, since_ms: None };
        if keeps {
            next.by_producer.extend(&self.by_producer);
        } else {
            self.by_producer.keys().for_each(|&producer_id| next.may_lack(producer_id));
        }
        next
    }

    /// Number of producers that are known to have written.
    pub fn len(&self) -> usize {
        self.by_producer.len()
    }

    /// Returns the last record of each producer that is known to have written.
    pub fn last_records(&self) -> impl Iterator<Item = Stamp> {
        let last = |(&producer_id, stop): (&i64, &Stop)| Stamp {
            producer_id,
            producer_epoch: stop.epoch,
            base_sequence: sequence_add(stop.unwritten, -1),
            record_count: 1,
        };
        self.by_producer.iter().map(last)
    }

    /// Returns a bound of the ids of other producers that may have written as well: 0 if there are none, `i64::MAX` if
    /// none is known.
    pub fn unknown_below(&self) -> i64 {
        self.unknown_below
    }

    /// Returns true if no producer has written.
    pub fn is_empty(&self) -> bool {
        self.by_producer.is_empty() && self.unknown_below == 0
    }

    /// Producers for which there is room.
    pub fn capacity(&self) -> usize {
        self.by_producer.capacity()
    }

    /// Returns true if the batch goes on where its producer stopped. Where the stop of its producer may be missing, any
    /// batch may.
    pub(super) fn are_continued_by(&self, stamp: &Stamp) -> bool {
        match self.by_producer.get(&stamp.producer_id) {
            Some(stop) => stop.is_continued_by(stamp),
            None => stamp.producer_id < self.unknown_below,
        }
    }

    /// Returns true if the batch goes on where its producer is known to have stopped.
    pub(super) fn stop_is_continued_by(&self, stamp: &Stamp) -> bool {
        self.by_producer.get(&stamp.producer_id).is_some_and(|stop| stop.is_continued_by(stamp))
    }

    /// Returns true if the stop of a producer may be missing, and the producer is as old as the deleted partition.
    pub(super) fn may_lack_that_of(&self, producer_id: i64) -> bool {
        self.unknown_below < i64::MAX
            && producer_id < self.unknown_below
            && !self.by_producer.contains_key(&producer_id)
    }

    /// Returns true if the batch has overtaken the one at which its producer stopped.
    pub(super) fn are_overtaken_by(&self, stamp: &Stamp) -> bool {
        let stop = self.by_producer.get(&stamp.producer_id);
        stop.is_some_and(|stop| stop.epoch == stamp.producer_epoch && !stop.is_continued_by(stamp))
    }

    /// Notes that the producer has written to the partition itself.
    pub(super) fn forget(&mut self, producer_id: i64) {
        self.by_producer.remove(&producer_id);
    }

    /// Notes that what the producer wrote is forgotten, so that it may go on with any batch.
    pub(super) fn may_lack(&mut self, producer_id: i64) {
        self.may_lack_below(producer_id.saturating_add(1));
    }

    /// Notes the same of producers with ids below `bound`.
    pub(super) fn may_lack_below(&mut self, bound: i64) {
        self.unknown_below = self.unknown_below.max(bound);
    }

    /// Forgets the stops of producers that have written nothing to the partition for `expiration_ms`.
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
