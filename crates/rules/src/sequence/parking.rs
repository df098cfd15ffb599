//! The reorder buffer of one partition: batches that came before their turn, waiting for those before them.
//!
//! What it is not: the batches. It keeps an item of the caller's for each, which holds bytes and who waits for an
//! answer. It decides no verdict either: whatever leaves to be appended is checked again.
//!
//! A producer waits with one epoch. A batch of a newer one, parked or appended, throws the older ones out: it proves
//! that the producer has given them up. A batch sent again while its first copy waits is no second one: both have the
//! same sequences, so by the protocol they are the same batch, and the caller answers both with the one append. A
//! batch stays when the connection it came over is lost, as one that needs no parking would: what becomes of it
//! depends on its sequence alone, and a retry finds it either here or in the log.
//!
//! Where there is no place, the batch that is farthest ahead makes room for one that is nearer. So none is refused
//! while another waits for it: on one connection answers keep the order of requests, and the refusal could stand behind
//! the answer of a batch that can only come after the refused one was sent again.
//!
//! Invariant: of one producer there are never more than the limit, each with its own first sequence, and each leaves
//! once: to be appended, as refused, or as expired.

use std::collections::{BTreeMap, HashMap};

use super::{HALF_RANGE, SequenceRefusal, Stamp, sequence_add, sequence_distance};

/// Everything parked on one partition. `T` is the caller's item.
#[derive(Debug)]
pub struct Parking<T> {
    producers: HashMap<i64, ParkedProducer<T>>,
    /// Every parked batch by the order in which they came, and so by when they are due.
    by_age: BTreeMap<u64, ParkingSlot>,
    numbers: u64,
}

/// The batches of one producer, by first sequence.
#[derive(Debug)]
struct ParkedProducer<T> {
    epoch: i16,
    bytes: usize,
    batches: HashMap<i32, Parked<T>>,
}

#[derive(Debug)]
struct Parked<T> {
    record_count: i32,
    bytes: usize,
    /// Its key in [`Parking::by_age`].
    number: u64,
    item: T,
}

#[derive(Clone, Copy, Debug)]
struct ParkingSlot {
    due_ms: u64,
    producer_id: i64,
    base_sequence: i32,
}

/// Parked batches that an append sets free.
#[derive(Debug, PartialEq, Eq)]
pub struct Freed<T> {
    /// Batches of an older epoch, to be answered INVALID_PRODUCER_EPOCH.
    pub fenced: Vec<T>,
    /// The batch that follows, to be appended.
    pub next: Option<T>,
}

/// Returns true if a batch of `bytes` may be parked where one producer has `own` bytes already and all have
/// `used` of `max`.
///
/// Nobody takes more than half of what the others leave, so that one producer whose batches never come to their turn
/// cannot keep all others from parking.
pub fn fits(own: usize, bytes: usize, used: usize, max: usize) -> bool {
    // 2 (own + bytes) <= what the others leave = own + free.
    own.saturating_add(bytes.saturating_mul(2)) <= max.saturating_sub(used)
}

impl<T> Default for Parking<T> {
    fn default() -> Self {
        Parking { producers: HashMap::new(), by_age: BTreeMap::new(), numbers: 0 }
    }
}

impl<T> Parking<T> {
    /// How many bytes its producer has parked already where a batch that is ahead finds a place; `None` where there are
    /// `batches_max`.
    ///
    /// # Errors
    /// [`SequenceRefusal::InvalidProducerEpoch`] if a newer epoch waits; [`SequenceRefusal::OutOfOrderSequence`] if
    /// another batch waits at this sequence.
    pub fn room_for(&self, stamp: &Stamp, batches_max: usize) -> Result<Option<usize>, SequenceRefusal> {
        let (own, count) = match self.producers.get(&stamp.producer_id) {
            Some(waiting) if stamp.producer_epoch < waiting.epoch => return Err(SequenceRefusal::InvalidProducerEpoch),
            Some(waiting) if stamp.producer_epoch == waiting.epoch => {
                if waiting.batches.contains_key(&stamp.base_sequence) {
                    return Err(SequenceRefusal::OutOfOrderSequence);
                }
                (waiting.bytes, waiting.batches.len())
            }
            _ => (0, 0),
        };
        Ok((count < batches_max).then_some(own))
    }

    /// Takes out the batch that is farthest ahead of its producer and epoch, if it is farther than this one, which
    /// finds no place. Linear in what is parked of the producer.
    pub fn take_farther(&mut self, stamp: &Stamp) -> Option<T> {
        let waiting = self.producers.get(&stamp.producer_id)?;
        if waiting.epoch != stamp.producer_epoch {
            return None;
        }
        let ahead = |sequence: &i32| sequence_distance(stamp.base_sequence, *sequence);
        let farther = waiting.batches.keys().copied().filter(|sequence| (1..HALF_RANGE).contains(&ahead(sequence)));
        let farthest = farther.max_by_key(ahead)?;
        self.take(stamp.producer_id, farthest)
    }

    /// The item of the same batch, if it is parked.
    pub fn find(&mut self, stamp: &Stamp) -> Option<&mut T> {
        let waiting = self.producers.get_mut(&stamp.producer_id)?;
        let parked = waiting.batches.get_mut(&stamp.base_sequence)?;
        let same = waiting.epoch == stamp.producer_epoch && parked.record_count == stamp.record_count;
        same.then_some(&mut parked.item)
    }

    /// Parks a batch that [`Parking::room_for`] has let in, until `due_ms`, which never goes back from one call to the
    /// next. Gives back the batches of an older epoch, to be answered INVALID_PRODUCER_EPOCH.
    pub fn park(&mut self, stamp: &Stamp, item: T, bytes: usize, due_ms: u64) -> Vec<T> {
        let &Stamp { producer_id, producer_epoch: epoch, base_sequence, record_count } = stamp;
        let fenced = self.fence(producer_id, epoch);
        self.numbers += 1;
        let number = self.numbers;
        self.by_age.insert(number, ParkingSlot { due_ms, producer_id, base_sequence });
        let nothing = || ParkedProducer { epoch, bytes: 0, batches: HashMap::new() };
        let waiting = self.producers.entry(producer_id).or_insert_with(nothing);
        waiting.bytes += bytes;
        waiting.batches.insert(base_sequence, Parked { record_count, bytes, number, item });
        fenced
    }

    /// Returns the batches that the append of a batch sets free, parked before or not.
    pub fn appended(&mut self, stamp: &Stamp) -> Freed<T> {
        let fenced = self.fence(stamp.producer_id, stamp.producer_epoch);
        let is_current =
            self.producers.get(&stamp.producer_id).is_some_and(|waiting| waiting.epoch == stamp.producer_epoch);
        let next = is_current.then(|| self.take(stamp.producer_id, sequence_add(stamp.last_sequence(), 1)));
        Freed { fenced, next: next.flatten() }
    }

    /// Takes out all batches of one producer, in the order in which they came: the log has failed one they need.
    pub fn give_up(&mut self, producer_id: i64) -> Vec<T> {
        let Some(waiting) = self.producers.remove(&producer_id) else { return Vec::new() };
        let mut batches: Vec<_> = waiting.batches.into_values().collect();
        batches.sort_unstable_by_key(|parked| parked.number);
        for parked in &batches {
            self.by_age.remove(&parked.number);
        }
        batches.into_iter().map(|parked| parked.item).collect()
    }

    /// Returns true if a batch of this producer is parked.
    pub fn has(&self, producer_id: i64) -> bool {
        self.producers.contains_key(&producer_id)
    }

    /// The stamp of each batch of a producer, in any order.
    pub fn stamps_of(&self, producer_id: i64) -> impl Iterator<Item = Stamp> {
        self.producers.get(&producer_id).into_iter().flat_map(move |waiting| {
            let producer_epoch = waiting.epoch;
            let of = move |(&base_sequence, parked): (&i32, &Parked<T>)| Stamp {
                producer_id,
                producer_epoch,
                base_sequence,
                record_count: parked.record_count,
            };
            waiting.batches.iter().map(of)
        })
    }

    /// Takes out one batch, if it is parked.
    pub fn take_out(&mut self, stamp: &Stamp) -> Option<T> {
        self.find(stamp)?;
        self.take(stamp.producer_id, stamp.base_sequence)
    }

    /// Takes out the batches that are due.
    pub fn expire(&mut self, now_ms: u64) -> Vec<T> {
        let mut expired = Vec::new();
        while let Some(oldest) = self.by_age.first_entry().filter(|oldest| oldest.get().due_ms <= now_ms) {
            let ParkingSlot { producer_id, base_sequence, .. } = oldest.remove();
            expired.extend(self.take(producer_id, base_sequence));
        }
        expired
    }

    /// When the next batch is due.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.by_age.first_key_value().map(|(_, place)| place.due_ms)
    }

    /// Everything, in the order in which it came.
    pub fn into_items(mut self) -> impl Iterator<Item = T> {
        let by_age = std::mem::take(&mut self.by_age);
        by_age.into_values().filter_map(move |slot| self.take(slot.producer_id, slot.base_sequence))
    }

    /// Batches parked.
    pub fn len(&self) -> usize {
        self.by_age.len()
    }

    /// Returns true if none is parked.
    pub fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// Takes out all batches of an epoch older than `epoch`.
    fn fence(&mut self, producer_id: i64, epoch: i16) -> Vec<T> {
        match self.producers.get(&producer_id) {
            Some(waiting) if waiting.epoch < epoch => self.give_up(producer_id),
            _ => Vec::new(),
        }
    }

    fn take(&mut self, producer_id: i64, base_sequence: i32) -> Option<T> {
        let waiting = self.producers.get_mut(&producer_id)?;
        let parked = waiting.batches.remove(&base_sequence)?;
        waiting.bytes -= parked.bytes;
        if waiting.batches.is_empty() {
            self.producers.remove(&producer_id);
        }
        self.by_age.remove(&parked.number);
        Some(parked.item)
    }
}

#[cfg(test)]
mod tests;
