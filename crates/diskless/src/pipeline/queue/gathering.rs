//! Gathers admitted batches for the next objects, and shares the bytes of an object among connections.
//!
//! Invariant: the batches of one producer are taken in the order of their admission, whichever connections they came
//! over.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use fullbore_rules::commit::admission::BatchNumber;
use fullbore_rules::commit::fair::FairClock;
use fullbore_rules::commit::rotation::{ActiveObject, OBJECT_BATCHES_MAX};
use fullbore_rules::sequence::NO_PRODUCER_ID;

use super::NewBatch;
use fullbore_log::partition::reorder_buffer::BATCH_COST;

/// Identifies those among whom the bytes of an object are shared fairly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ShareKey {
    /// The connection from this address, with all its producers. A client may use thousands of producer ids.
    Connection(SocketAddr),
    /// The producer with this id, for its markers, which do not come over a connection of a producer.
    MarkersOf(i64),
}

/// A batch with its position in the fair order.
#[derive(Debug)]
pub(super) struct GatheredBatch {
    pub batch_number: BatchNumber,
    pub batch: NewBatch,
    /// The end of the batch in the virtual time of [`Gathering`], by which all batches are sorted. `None` until the
    /// batches exceed an object.
    end: Option<u64>,
    at: Duration,
}

impl GatheredBatch {
    fn len(&self) -> usize {
        self.batch.bytes.len()
    }

    /// Returns the number of bytes that the batch counts in its share.
    fn cost(&self) -> usize {
        self.len() + BATCH_COST
    }

    fn share(&self) -> ShareKey {
        let of_markers = ShareKey::MarkersOf(self.batch.stamp.producer_id);
        self.batch.room.as_ref().map_or(of_markers, |room| ShareKey::Connection(room.peer()))
    }

    /// Returns when the batch starts in virtual time.
    fn start(&self) -> u64 {
        self.end.unwrap_or_default().saturating_sub(self.cost() as u64)
    }
}

/// The batches that wait for the next objects. If they do not fit into one object, each connection gets an equal share
/// of its bytes. A producer with few batches therefore waits for only one object, however much other connections send.
///
/// The batches of one producer are taken in the order of their admission. A producer may come back over another
/// connection while its earlier batches wait in the share of the first one. Its next batch then waits behind them.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    batches: Vec<GatheredBatch>,
    bytes: usize,
    /// Number of these batches that end a transaction.
    ends: usize,
    first_at: Duration,
    last_at: Duration,
    clock: FairClock<ShareKey>,
    /// The end of the newest batch of each idempotent producer in virtual time.
    producers: HashMap<i64, u64>,
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
        self.batches.push(GatheredBatch { batch_number, batch, end: None, at: now });
    }

    /// Describes an object with all gathered batches: its size, when its first and last batches were added, and whether
    /// a batch ends a transaction.
    pub fn active(&self) -> ActiveObject {
        let Gathering { bytes, ends, first_at, last_at, .. } = *self;
        ActiveObject { bytes, batches: self.batches.len(), first_at, last_at, ends_transaction: ends > 0 }
    }

    /// Removes and returns the batches of the next object. Takes all gathered batches if they fit. Otherwise takes them
    /// in the fair order, up to [`OBJECT_BATCHES_MAX`] batches or `bytes_max` bytes. Only the last batch may exceed
    /// `bytes_max`.
    pub fn take(&mut self, bytes_max: usize) -> Vec<GatheredBatch> {
        let before_last = self.bytes - self.batches.last().map_or(0, GatheredBatch::len);
        if before_last < bytes_max && self.batches.len() <= OBJECT_BATCHES_MAX {
            (self.bytes, self.ends) = (0, 0);
            self.clock.reset();
            self.producers.clear();
            return std::mem::take(&mut self.batches);
        }
        self.place();
        self.batches.sort_by_key(|gathered| (gathered.end, gathered.batch_number));
        let mut bytes = 0;
        let fills = |gathered: &GatheredBatch| {
            bytes += gathered.len();
            bytes >= bytes_max
        };
        let count = self.batches.iter().position(fills).map_or(self.batches.len(), |last| last + 1);
        let left = self.batches.split_off(count.min(OBJECT_BATCHES_MAX));
        let taken = std::mem::replace(&mut self.batches, left);
        let bytes = taken.iter().map(GatheredBatch::len).sum::<usize>();
        self.bytes -= bytes;
        self.ends -= taken.iter().filter(|gathered| gathered.batch.ends_transaction).count();
        self.clock.serve(self.batches.iter().map(GatheredBatch::start).min().unwrap_or_default(), bytes);
        self.first_at = self.batches.iter().map(|gathered| gathered.at).min().unwrap_or_default();
        taken
    }

    /// Places the batches that came after the last object in the fair order. The clock has not moved since they came.
    fn place(&mut self) {
        if self.producers.len() > 2 * self.batches.len() {
            let placed = self.batches.iter().filter_map(|of| Some((of.batch.stamp.producer_id, of.end?)));
            self.producers = placed.collect();
        }
        for gathered in self.batches.iter_mut().filter(|gathered| gathered.end.is_none()) {
            let (producer_id, cost) = (gathered.batch.stamp.producer_id, gathered.cost());
            let newest = self.producers.entry(producer_id).or_default();
            // Batches without a producer id have no order among connections.
            let earliest = if producer_id == NO_PRODUCER_ID { 0 } else { *newest };
            let start = self.clock.begin_from(gathered.share(), cost, earliest);
            *newest = start.saturating_add(cost as u64);
            gathered.end = Some(*newest);
        }
    }

    /// Removes the batches in `dead`. Returns the number of their bytes.
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
    use bytes::Bytes;
    use fullbore_log::partition::memory_budget::MemoryBudget;

    use super::super::tests::batch;
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Gathers batches of these producers and sizes, one per millisecond.
    fn gathering(batches: impl IntoIterator<Item = (i64, usize)>) -> Gathering {
        let mut gathering = Gathering::default();
        batches.into_iter().for_each(|(producer, bytes)| push(&mut gathering, producer, bytes));
        gathering
    }

    fn push(gathering: &mut Gathering, producer_id: i64, bytes: usize) {
        push_from(gathering, None, producer_id, bytes);
    }

    /// Gathers a batch that came over the connection with the port `port`. Without a port, the batch has its own share.
    fn push_from(gathering: &mut Gathering, port: Option<u16>, producer_id: i64, bytes: usize) {
        let batch_number = gathering.last_at.as_millis() as BatchNumber + 1;
        let permit = |port| MemoryBudget::new(1 << 30).try_take(([127, 0, 0, 1], port).into(), bytes);
        let room = port.and_then(|port| permit(port).expect("it is open"));
        let bytes = Bytes::from(vec![0; bytes]);
        let batch = NewBatch { bytes, room, ..batch(1, producer_id, batch_number as i32) };
        gathering.push(batch_number, batch, MS(batch_number));
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
        assert_eq!(gathering.active().first_at, MS(6), "the first that is left");
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
    #[test]
    fn connection_has_thousands_of_producers_the_batches_of_another_one_are_in_each_object() {
        let mut gathering = Gathering::default();
        (0..2_000).for_each(|id| push_from(&mut gathering, Some(1), 100 + id, 10_000));
        for round in 0..15 {
            (0..3).for_each(|_| push_from(&mut gathering, Some(2), 7, 10));
            assert_eq!(taken(&mut gathering, [7]), [3], "round {round}");
            (0..100).for_each(|id| push_from(&mut gathering, Some(1), 100 + 100 * round + id, 10_000));
        }
        assert!(gathering.producers.len() <= 2 * 2_000, "{}", gathering.producers.len());
    }

    #[test]
    fn connections_have_one_and_many_producers_they_get_equal_parts_of_an_object() {
        let mut gathering = Gathering::default();
        for at in 0..30 {
            push_from(&mut gathering, Some(1), 1, 100_000);
            push_from(&mut gathering, Some(2), 100 + at, 100_000);
        }
        assert_eq!(taken(&mut gathering, [1]), [5]);
        assert_eq!(taken(&mut gathering, [1]), [5]);
    }

    #[test]
    fn many_connections_have_one_large_batch_each_a_small_one_is_in_each_object() {
        let mut gathering = Gathering::default();
        (0..200).for_each(|port| push_from(&mut gathering, Some(port), 100 + i64::from(port), 100_000));
        for round in 0..100 {
            push_from(&mut gathering, Some(1_000), 7, 10);
            let object = gathering.take(1_000_000);
            let count = object.iter().filter(|of| of.batch.stamp.producer_id == 7).count();
            assert_eq!(count, 1, "round {round}");
            // Each of the others sends its next batch once it has an answer.
            let answered = object.iter().map(|of| of.batch.stamp.producer_id).filter(|id| *id != 7);
            answered.for_each(|id| push_from(&mut gathering, Some(id as u16 - 100), id, 100_000));
        }
    }

    #[test]
    fn producer_comes_back_over_another_connection_its_batches_keep_their_order() {
        let mut gathering = Gathering::default();
        (0..30).for_each(|id| push_from(&mut gathering, Some(1), 100 + id, 100_000));
        (0..3).for_each(|_| push_from(&mut gathering, Some(1), 7, 100_000));
        let mut all = gathering.take(1_000_000);
        (0..3).for_each(|_| push_from(&mut gathering, Some(2), 7, 10));
        push_from(&mut gathering, Some(2), 8, 10);
        assert_eq!(taken(&mut gathering, [7, 8]), [0, 1], "only one has batches over the first connection");
        while !gathering.is_empty() {
            all.extend(gathering.take(1_000_000));
        }
        let of_it = all.iter().filter(|of| of.batch.stamp.producer_id == 7).map(|of| of.batch_number);
        assert_eq!(of_it.collect::<Vec<_>>(), [31, 32, 33, 34, 35, 36]);
    }

    #[test]
    fn marker_is_behind_the_batches_of_its_producer_and_its_next_batch_is_behind_the_marker() {
        let mut gathering = Gathering::default();
        (0..30).for_each(|_| push_from(&mut gathering, Some(1), 7, 100_000));
        push(&mut gathering, 7, 80);
        push_from(&mut gathering, Some(2), 7, 10);
        let mut numbers = Vec::new();
        while !gathering.is_empty() {
            numbers.extend(gathering.take(1_000_000).iter().map(|of| of.batch_number));
        }
        assert_eq!(numbers, (1..=32).collect::<Vec<_>>());
    }
}
