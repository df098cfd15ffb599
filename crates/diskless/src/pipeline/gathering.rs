//! Gathers batches for the next object. If they do not fit into one object, chooses among them.
//!
//! In that case, each producer gets an equal share of the object's bytes. A producer with few batches then waits for a
//! single object, no matter how much other producers send.
//!
//! When an object is closed is decided in [`fullbore_rules::commit::rotation`]. Invariant: the batches of a producer
//! are taken in the order of their admission.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use fullbore_rules::commit::admission::BatchNumber;
use fullbore_rules::commit::fair::FairClock;
use fullbore_rules::commit::rotation::{ActiveObject, OBJECT_BATCHES_MAX};
use fullbore_rules::commit::{BatchKind, Confirmation, DisklessPartitionId};
use fullbore_rules::sequence::Stamp;

use fullbore_log::partition::memory_budget::{MemoryPermit, ProducerKey};
use fullbore_log::partition::reorder_buffer::BATCH_COST;

/// A batch that is admitted, whole and checked.
#[derive(Debug)]
pub struct NewBatch {
    pub partition: DisklessPartitionId,
    /// The producer of the batch. All producers get a fair share of an object's bytes.
    pub producer: ProducerKey,
    pub bytes: Bytes,
    pub stamp: Stamp,
    /// The largest timestamp of the records, in ms.
    pub max_timestamp: i64,
    /// The role of the batch in a transaction.
    pub kind: BatchKind,
    /// The confirmation of the transaction; see [`ObjectBatch`](fullbore_rules::commit::ObjectBatch).
    pub confirmation: Option<Confirmation>,
    /// True if the producer waits for the end of a transaction. This is so for the marker of a transaction and for the
    /// batch with its last records.
    pub ends_transaction: bool,
    /// The batch's memory; it is released together with the object.
    pub room: Option<MemoryPermit>,
}

/// A batch with its position in the fair order.
#[derive(Debug)]
pub struct GatheredBatch {
    pub batch_number: BatchNumber,
    pub batch: NewBatch,
    /// The start time that the fair clock assigned, and the number of bytes that it counted for the batch.
    order: (u64, usize),
    at: Duration,
}

impl GatheredBatch {
    fn len(&self) -> usize {
        self.batch.bytes.len()
    }
}

/// The batches that wait for the next objects.
#[derive(Debug, Default)]
pub struct Gathering {
    batches: Vec<GatheredBatch>,
    bytes: usize,
    /// How many of the batches end a transaction.
    ends: usize,
    first_at: Duration,
    last_at: Duration,
    clock: FairClock<ProducerKey>,
}

impl Gathering {
    /// Returns true if no batch is waiting.
    pub fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Adds a batch.
    pub fn push(&mut self, batch_number: BatchNumber, batch: NewBatch, now: Duration) {
        if self.batches.is_empty() {
            self.first_at = now;
        }
        self.last_at = now;
        self.bytes += batch.bytes.len();
        self.ends += usize::from(batch.ends_transaction);
        let cost = batch.bytes.len() + BATCH_COST;
        let order = (self.clock.begin(batch.producer, cost), cost);
        self.batches.push(GatheredBatch { batch_number, batch, order, at: now });
    }

    /// Returns the size and the times of an object with all gathered batches.
    pub fn active(&self) -> ActiveObject {
        let Gathering { bytes, ends, first_at, last_at, .. } = *self;
        ActiveObject { bytes, batches: self.batches.len(), first_at, last_at, ends_transaction: ends > 0 }
    }

    /// Removes and returns the batches of the next object, all of them if they fit. Otherwise takes them in order, up
    /// to [`OBJECT_BATCHES_MAX`] batches or `bytes_max` bytes, which only the last batch may exceed.
    pub fn take(&mut self, bytes_max: usize) -> Vec<GatheredBatch> {
        let before_last = self.bytes - self.batches.last().map_or(0, GatheredBatch::len);
        if before_last < bytes_max && self.batches.len() <= OBJECT_BATCHES_MAX {
            (self.bytes, self.ends) = (0, 0);
            self.clock.reset();
            return std::mem::take(&mut self.batches);
        }
        self.batches.sort_by_key(|gathered| (gathered.order, gathered.batch_number));
        let mut bytes = 0;
        let fills = |gathered: &GatheredBatch| {
            bytes += gathered.len();
            bytes >= bytes_max
        };
        let count = self.batches.iter().position(fills).map_or(self.batches.len(), |last| last + 1);
        let left = self.batches.split_off(count.min(OBJECT_BATCHES_MAX));
        let taken = std::mem::replace(&mut self.batches, left);
        self.bytes -= taken.iter().map(GatheredBatch::len).sum::<usize>();
        self.ends -= taken.iter().filter(|gathered| gathered.batch.ends_transaction).count();
        if let Some(last) = taken.last() {
            self.clock.serve(last.order.0);
        }
        self.first_at = self.batches.iter().map(|gathered| gathered.at).min().unwrap_or_default();
        taken
    }

    /// Removes the batches in `dead`. Returns how many bytes they had.
    pub fn drop_dead(&mut self, dead: &HashSet<BatchNumber>) -> usize {
        let before = self.bytes;
        self.batches.retain(|gathered| !dead.contains(&gathered.batch_number));
        self.bytes = self.batches.iter().map(GatheredBatch::len).sum();
        self.ends = self.batches.iter().filter(|gathered| gathered.batch.ends_transaction).count();
        before - self.bytes
    }

    /// Returns true if a marker of the producer is among the batches.
    pub fn has_marker_of(&self, producer_id: i64) -> bool {
        let is_one = |of: &GatheredBatch| of.batch.kind.is_marker() && of.batch.stamp.producer_id == producer_id;
        self.ends > 0 && self.batches.iter().any(is_one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Duration = Duration::from_millis;

    /// Gathers batches of these producers and sizes, one per millisecond.
    fn gathering(batches: impl IntoIterator<Item = (i64, usize)>) -> Gathering {
        let mut gathering = Gathering::default();
        batches.into_iter().for_each(|(producer, bytes)| push(&mut gathering, producer, bytes));
        gathering
    }

    fn push(gathering: &mut Gathering, producer_id: i64, bytes: usize) {
        let batch_number = gathering.last_at.as_millis() as BatchNumber + 1;
        let batch = NewBatch {
            partition: 1,
            producer: ProducerKey::Id(producer_id),
            bytes: Bytes::from(vec![0; bytes]),
            stamp: Stamp { producer_id, producer_epoch: 0, base_sequence: batch_number as i32, record_count: 1 },
            max_timestamp: 0,
            kind: BatchKind::Plain,
            confirmation: None,
            ends_transaction: false,
            room: None,
        };
        gathering.push(batch_number, batch, AT(batch_number));
    }

    /// Takes the next object. Returns how many batches of each producer it has.
    fn taken<const N: usize>(gathering: &mut Gathering, producers: [i64; N]) -> [usize; N] {
        let taken = gathering.take(1_000_000);
        for producer in producers {
            let of_it = taken.iter().filter(|gathered| gathered.batch.stamp.producer_id == producer);
            assert!(of_it.map(|gathered| gathered.batch_number).is_sorted(), "producer {producer}");
        }
        producers.map(|producer| taken.iter().filter(|of| of.batch.stamp.producer_id == producer).count())
    }

    #[test]
    fn other_producers_have_backlogs_a_newcomer_is_in_the_next_object() {
        let mut gathering = gathering([(1, 100_000); 30].into_iter().chain([(2, 100_000); 30]).chain([(3, 10)]));
        assert_eq!(taken(&mut gathering, [1, 2, 3]), [5, 5, 1]);
        assert_eq!(gathering.active().first_at, AT(6), "the first that is left");
        push(&mut gathering, 3, 10);
        assert_eq!(taken(&mut gathering, [1, 2, 3]), [5, 5, 1]);
        let bytes = gathering.batches.iter().map(GatheredBatch::len).sum::<usize>();
        assert_eq!((gathering.active().bytes, bytes), (4_000_000, 4_000_000));
    }

    #[test]
    fn small_batches_fill_an_object_a_newcomer_is_in_it() {
        let mut gathering = gathering((0..OBJECT_BATCHES_MAX + 5).map(|_| (1, 10)).chain([(2, 10)]));
        assert_eq!(taken(&mut gathering, [1, 2]), [OBJECT_BATCHES_MAX - 1, 1]);
        assert_eq!(taken(&mut gathering, [1, 2]), [6, 0]);
        assert!(gathering.is_empty());
    }

    #[test]
    fn one_producer_has_a_backlog_objects_have_one_size() {
        let mut gathering = gathering([(1, 300_000); 9]);
        assert_eq!([(); 3].map(|()| taken(&mut gathering, [1])), [[4], [4], [1]]);
    }

    #[test]
    fn dead_batches_are_removed_their_bytes_do_not_count() {
        let mut gathering = gathering([(1, 10), (2, 20), (1, 30)]);
        assert_eq!(gathering.drop_dead(&HashSet::from([1, 3, 9])), 40);
        assert_eq!((gathering.active().bytes, gathering.active().batches), (20, 1));
    }
}
