//! Finds the aborted transactions in a range of offsets, for consumers that read only committed records. Keeps the
//! answers of the index in memory, so that one query serves many fetches.
//!
//! All transactions before the last stable offset have ended, so the answer for a range never changes. Offsets after
//! the partition's newest abort marker (`aborted_to`) need no query.
//!
//! Invariant: the ranges together have at most [`TRANSACTIONS_MAX`] transactions, unless the newest range alone has
//! more. The least recently used range is dropped first.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use fullbore_host::task;
use fullbore_rules::commit::DisklessPartitionId;
use fullbore_rules::sequence::AbortedTransaction;

use super::Reader;
use crate::fair_permits::{ReadFor, ReaderId};
use crate::index::AbortedTransactions;
use crate::partition_view::PartitionView;
use fullbore_log::partition::error::ReadError;

/// Maximum number of transactions whose markers one query finds. It is small because a fetch waits for the answer. In
/// addition, the answer has the transactions that are open at the end of its range, at most
/// [`PRODUCERS_MAX`](fullbore_rules::sequence::PRODUCERS_MAX).
const FOUND_MAX: usize = 512;
/// Maximum number of transactions in all ranges together. Each of them takes 32 bytes.
const TRANSACTIONS_MAX: usize = 1 << 18;
/// The cost of a range in addition to its transactions. The unit is the cost of one transaction.
const RANGE_COST: usize = 8;
/// Maximum number of queries of a partition that are waiting or under way.
const ASKED_MAX: usize = 16;

/// A range of offsets of a partition, with all aborted transactions that have records in it.
#[derive(Debug)]
pub struct AbortedRange {
    offsets: Range<i64>,
    /// The transactions, ordered by their first offsets.
    transactions: Vec<AbortedTransaction>,
}

impl AbortedRange {
    /// Returns the range that was covered by a query from `start` on.
    fn found(start: i64, found: AbortedTransactions) -> AbortedRange {
        AbortedRange { offsets: start..found.end, transactions: found.transactions }
    }

    /// Returns the offset after the range.
    pub fn end(&self) -> i64 {
        self.offsets.end
    }

    /// Returns the transactions with records in `offsets`, ordered by their markers. `offsets` must be within the
    /// range.
    pub fn of(&self, offsets: Range<i64>) -> Vec<AbortedTransaction> {
        let begun = self.transactions.partition_point(|aborted| aborted.first_offset < offsets.end);
        let overlaps = |aborted: &&AbortedTransaction| aborted.last_offset >= offsets.start;
        let mut found: Vec<_> = self.transactions.iter().take(begun).filter(overlaps).copied().collect();
        found.sort_unstable_by_key(|aborted| aborted.last_offset);
        found
    }

    fn cost(&self) -> usize {
        self.transactions.len() + RANGE_COST
    }
}

/// The ranges of all partitions.
#[derive(Debug, Default)]
pub struct AbortedRanges {
    of_partition: HashMap<DisklessPartitionId, Vec<(u64, Arc<AbortedRange>)>>,
    /// The partition of each range, ordered by the last use of the range.
    order: BTreeMap<u64, DisklessPartitionId>,
    cost: usize,
    clock: u64,
    /// The first offsets of the queries that are under way, by partition.
    requested: HashMap<DisklessPartitionId, Vec<i64>>,
}

impl AbortedRanges {
    fn find(&mut self, partition: DisklessPartitionId, offset: i64) -> Option<Arc<AbortedRange>> {
        self.clock += 1;
        let ranges = self.of_partition.get_mut(&partition)?;
        let (used, range) = ranges.iter_mut().find(|(_, range)| range.offsets.contains(&offset))?;
        self.order.remove(used);
        *used = self.clock;
        self.order.insert(self.clock, partition);
        Some(Arc::clone(range))
    }

    /// Adds a range. Removes the ranges that lie completely within it.
    fn insert(&mut self, partition: DisklessPartitionId, range: AbortedRange) {
        self.clock += 1;
        let of = range.offsets.clone();
        self.remove(partition, |(_, other)| of.start <= other.offsets.start && other.offsets.end <= of.end);
        self.cost += range.cost();
        self.order.insert(self.clock, partition);
        self.of_partition.entry(partition).or_default().push((self.clock, Arc::new(range)));
        while self.cost > TRANSACTIONS_MAX && self.order.len() > 1 {
            let Some((used, partition)) = self.order.first_key_value().map(|(used, of)| (*used, *of)) else { return };
            self.remove(partition, |(of, _)| *of == used);
        }
    }

    /// Removes the ranges of a partition.
    pub fn forget(&mut self, partition: DisklessPartitionId) {
        self.remove(partition, |_| true);
    }

    fn remove(&mut self, partition: DisklessPartitionId, is_one: impl Fn(&(u64, Arc<AbortedRange>)) -> bool) {
        let Some(ranges) = self.of_partition.get_mut(&partition) else { return };
        for (used, range) in ranges.extract_if(.., |of| is_one(of)) {
            self.order.remove(&used);
            self.cost -= range.cost();
        }
        if ranges.is_empty() {
            self.of_partition.remove(&partition);
        }
    }

    /// Registers a query. Returns false if the same query is already under way, or if `ASKED_MAX` queries of the
    /// partition are.
    fn request(&mut self, partition: DisklessPartitionId, offset: i64) -> bool {
        let requested = self.requested.entry(partition).or_default();
        let is_new = requested.len() < ASKED_MAX && !requested.contains(&offset);
        if is_new {
            requested.push(offset);
        }
        is_new
    }

    fn answered(&mut self, partition: DisklessPartitionId, offset: i64) {
        let Some(requested) = self.requested.get_mut(&partition) else { return };
        requested.retain(|of| *of != offset);
        if requested.is_empty() {
            self.requested.remove(&partition);
        }
    }
}

impl Reader {
    /// Returns the range in memory that contains `offset`, or `None` if there is none.
    pub fn aborted(&self, partition: &PartitionView, offset: i64) -> Option<Arc<AbortedRange>> {
        self.shared.aborted.lock().find(partition.number()?, offset)
    }

    /// Requests the aborted transactions from `offset` on, and returns at once. The partition's waiters are woken when
    /// the answer arrives.
    ///
    /// If `ASKED_MAX` queries of the partition are already under way, this request is dropped. When one of them ends,
    /// the waiter is woken and makes its request again.
    pub fn request_aborted(&self, partition: &Arc<PartitionView>, offset: i64) {
        let Some(number) = partition.number() else { return };
        if !self.shared.aborted.lock().request(number, offset) {
            return;
        }
        let (shared, partition) = (Arc::clone(&self.shared), Arc::clone(partition));
        task::spawn(async move {
            let offsets = offset..partition.bounds().last_stable_offset;
            let read = ReadFor { reader: ReaderId::LookUp(number), partition: number, offset };
            let turn = shared.finds.acquire(read, 1, 1).await;
            let found = shared.finder.aborted(number, offsets, FOUND_MAX).await;
            drop(turn);
            let mut aborted = shared.aborted.lock();
            aborted.answered(number, offset);
            match found {
                Ok(found) if !partition.is_gone() => aborted.insert(number, AbortedRange::found(offset, found)),
                Ok(_) => {}
                Err(error) => {
                    let why: ReadError = shared.find_failed(&error);
                    drop(aborted);
                    partition.failed(why);
                    return;
                }
            }
            drop(aborted);
            partition.wake();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction(first_offset: i64, last_offset: i64) -> AbortedTransaction {
        AbortedTransaction { producer_id: first_offset, first_offset, last_offset, last_stable_offset: last_offset + 1 }
    }

    #[test]
    fn range_is_read_in_part_only_transactions_with_records_there_are_returned() {
        let transactions = vec![transaction(2, 30), transaction(5, 9), transaction(12, 14), transaction(20, 22)];
        let range = AbortedRange::found(0, AbortedTransactions { end: 40, transactions });
        let of = |offsets| range.of(offsets).iter().map(|aborted| aborted.first_offset).collect::<Vec<_>>();
        assert_eq!((of(0..40), of(9..12), of(10..13)), (vec![5, 12, 20, 2], vec![5, 2], vec![12, 2]));
        assert_eq!((of(31..40), of(0..2), of(30..31)), (vec![], vec![], vec![2]));
    }

    #[test]
    fn ranges_exceed_the_limit_the_least_recently_used_are_dropped() {
        let mut ranges = AbortedRanges::default();
        let full = |at: i64| {
            let transactions = (0..8_192).map(|of| transaction(at + of, at + of)).collect();
            AbortedRange::found(at, AbortedTransactions { end: at + 100_000, transactions })
        };
        for at in 0..100 {
            ranges.insert(at % 3, full(at * 100_000));
            assert!(ranges.find(0, 5).is_some(), "the first is in use, {at}");
            assert!(ranges.cost <= TRANSACTIONS_MAX, "{}", ranges.cost);
        }
        assert!(ranges.find(1, 100_001).is_none() && ranges.find(0, 99 * 100_000).is_some());
        let transactions = Vec::new();
        ranges.insert(0, AbortedRange::found(0, AbortedTransactions { end: 200_000, transactions }));
        assert_eq!(ranges.find(0, 5).map(|range| range.end()), Some(200_000), "in the place of the first");
        (0..3).for_each(|partition| ranges.forget(partition));
        assert_eq!((ranges.cost, ranges.order.len(), ranges.of_partition.len()), (0, 0, 0));
    }

    #[test]
    fn query_is_under_way_it_is_not_sent_twice() {
        let mut ranges = AbortedRanges::default();
        assert!(ranges.request(1, 5) && !ranges.request(1, 5) && ranges.request(2, 5));
        let taken = (6..100).filter(|offset| ranges.request(1, *offset)).count();
        assert_eq!(taken, ASKED_MAX - 1);
        assert_eq!(ranges.requested[&1].len(), ASKED_MAX);
        (0..100).for_each(|offset| ranges.answered(1, offset));
        assert!(ranges.request(1, 5) && ranges.requested.len() == 2);
    }
}
