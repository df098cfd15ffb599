//! The reorder buffer of a partition, in which out-of-order batches wait for the ones before them.
//!
//! For each batch the buffer stores an item of the caller, which has the bytes and the waiting request. The buffer does
//! not check batches, so the caller checks each of them again before the append.
//!
//! All waiting batches of a producer are of the same epoch. A batch of a newer epoch, waiting or appended, removes the
//! older ones, because the producer has given them up. If a batch is resent while its first copy waits, both have the
//! same sequences. The caller appends one of the copies and responds to both. A batch stays in the buffer when its
//! connection is lost, because its sequence alone determines when it is appended. A retry finds it here or in the log.
//!
//! If the buffer is full, a batch that is further ahead makes room for a nearer one. So no batch is refused while
//! another waits for it. That would be a deadlock, because responses on a connection keep the order of the requests.
//! The error for the nearer batch could be queued after the response to the farther one. That response would wait until
//! the client resends the nearer batch, which it does only after the error.
//!
//! Invariant: a producer never has more batches than the limit, and no two of them have the same first sequence. Each
//! batch leaves the buffer once, when it is appended, refused or expired.

use std::collections::{BTreeMap, HashMap};

use super::{HALF_RANGE, SequenceRefusal, Stamp, sequence_add, sequence_distance};

/// The batches of a partition that wait for earlier ones ("parked"). `T` is the caller's item for each batch.
#[derive(Debug)]
pub struct Parking<T> {
    producers: HashMap<i64, ParkedProducer<T>>,
    /// All parked batches in the order of their arrival, which is also the order of their deadlines.
    by_age: BTreeMap<u64, ParkingSlot>,
    numbers: u64,
}

/// The parked batches of a producer, by their first sequence.
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
    /// The key of the batch in [`Parking::by_age`].
    number: u64,
    item: T,
}

#[derive(Clone, Copy, Debug)]
struct ParkingSlot {
    due_ms: u64,
    producer_id: i64,
    base_sequence: i32,
}

/// The parked batches that leave the buffer when another batch is appended.
#[derive(Debug, PartialEq, Eq)]
pub struct Freed<T> {
    /// Batches of an older epoch. They get INVALID_PRODUCER_EPOCH.
    pub fenced: Vec<T>,
    /// The producer's next batch, which the caller checks again and appends; `None` if it is not parked.
    pub next: Option<T>,
}

/// Returns true if a batch of `bytes` bytes may be parked. Its producer has already parked `own` bytes. All producers
/// together have parked `used` bytes, of which `max` are allowed.
///
/// A producer may use at most half of the bytes that the other producers do not use. So even if its batches never
/// become the next ones, the others can still park theirs.
pub fn fits(own: usize, bytes: usize, used: usize, max: usize) -> bool {
    // The rule is 2 (own + bytes) <= own + free, where free = max - used.
    own.saturating_add(bytes.saturating_mul(2)) <= max.saturating_sub(used)
}

impl<T> Default for Parking<T> {
    fn default() -> Self {
        Parking { producers: HashMap::new(), by_age: BTreeMap::new(), numbers: 0 }
    }
}

impl<T> Parking<T> {
    /// Returns how many bytes the producer of an out-of-order batch has already parked; None if the producer has
    /// reached the limit of `batches_max` batches.
    ///
    /// # Errors
    /// Returns [`SequenceRefusal::InvalidProducerEpoch`] if a batch of a newer epoch is parked, and
    /// [`SequenceRefusal::OutOfOrderSequence`] if a batch is already parked at this sequence.
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

    /// Makes room for the batch `stamp`: removes and returns the batch of the same producer and epoch that is furthest
    /// ahead. Returns None if no parked batch is further ahead than `stamp`, or if the parked batches are of another
    /// epoch. Takes time linear in the producer's parked batches.
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

    /// Returns the parked copy of a batch, if there is one.
    pub fn find(&mut self, stamp: &Stamp) -> Option<&mut T> {
        let waiting = self.producers.get_mut(&stamp.producer_id)?;
        let parked = waiting.batches.get_mut(&stamp.base_sequence)?;
        let same = waiting.epoch == stamp.producer_epoch && parked.record_count == stamp.record_count;
        same.then_some(&mut parked.item)
    }

    /// Parks a batch that [`Parking::room_for`] has admitted, until `due_ms`. From call to call, `due_ms` must never
    /// fall. Returns the batches of an older epoch, which get INVALID_PRODUCER_EPOCH.
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

    /// Removes and returns the batches that leave the buffer because this batch was appended.
    pub fn appended(&mut self, stamp: &Stamp) -> Freed<T> {
        let fenced = self.fence(stamp.producer_id, stamp.producer_epoch);
        let is_current =
            self.producers.get(&stamp.producer_id).is_some_and(|waiting| waiting.epoch == stamp.producer_epoch);
        let next = is_current.then(|| self.take(stamp.producer_id, sequence_add(stamp.last_sequence(), 1)));
        Freed { fenced, next: next.flatten() }
    }

    /// Removes all batches of a producer, because an earlier batch could not be appended. Returns them in the order of
    /// their arrival.
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

    /// Returns the stamps of a producer's batches, in any order.
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

    /// Removes a batch and returns it; None if it is not parked.
    pub fn take_out(&mut self, stamp: &Stamp) -> Option<T> {
        self.find(stamp)?;
        self.take(stamp.producer_id, stamp.base_sequence)
    }

    /// Removes and returns the batches whose deadline has passed.
    pub fn expire(&mut self, now_ms: u64) -> Vec<T> {
        let mut expired = Vec::new();
        while let Some(oldest) = self.by_age.first_entry().filter(|oldest| oldest.get().due_ms <= now_ms) {
            let ParkingSlot { producer_id, base_sequence, .. } = oldest.remove();
            expired.extend(self.take(producer_id, base_sequence));
        }
        expired
    }

    /// Returns the earliest deadline of a batch; None if no batch is parked.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.by_age.first_key_value().map(|(_, place)| place.due_ms)
    }

    /// Returns all items, in the order of their arrival.
    pub fn into_items(mut self) -> impl Iterator<Item = T> {
        let by_age = std::mem::take(&mut self.by_age);
        by_age.into_values().filter_map(move |slot| self.take(slot.producer_id, slot.base_sequence))
    }

    /// Returns the number of parked batches.
    pub fn len(&self) -> usize {
        self.by_age.len()
    }

    /// Returns true if no batch is parked.
    pub fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// Removes and returns all batches of an older epoch than `epoch`.
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
