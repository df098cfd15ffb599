//! Refreshes the state of producers from the index. One query covers several partitions of a request. A producer's
//! first request with many partitions therefore takes only a few round trips.
//!
//! The callers decide which batches need a refresh.
//!
//! Invariants: a query covers at most [`UNKNOWN_AT_ONCE`] partitions. At most [`REFRESHES_MAX`] queries are queued at
//! the index, so that commits do not wait for many of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fullbore_rules::commit::{DisklessPartitionId, PartitionState};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{Pipeline, Released, Shared};
use crate::index::{QueueSlot, RefreshedPartition, UNKNOWN_AT_ONCE};
use fullbore_log::partition::error::AppendError;

/// The outcome of a refresh for each partition.
pub type Refreshed = HashMap<DisklessPartitionId, Result<(), AppendError>>;

/// Maximum number of refresh queries that are queued at the index.
const REFRESHES_MAX: usize = 2;

/// Limits how many refreshes are queued at the index.
pub struct RefreshLimit {
    slots: Arc<Semaphore>,
    /// The only slot for the periodic refreshes of partitions with parked batches.
    watches: Semaphore,
}

impl Default for RefreshLimit {
    fn default() -> RefreshLimit {
        RefreshLimit { slots: Arc::new(Semaphore::new(REFRESHES_MAX)), watches: Semaphore::new(1) }
    }
}

impl RefreshLimit {
    /// Waits for a slot, which becomes free again when the index has answered the query, even if the caller gives up
    /// earlier.
    async fn acquire(&self) -> QueueSlot {
        Arc::clone(&self.slots).acquire_owned().await.ok()
    }

    /// Waits for the single slot of the periodic refreshes.
    pub async fn acquire_for_watch(&self) -> Option<SemaphorePermit<'_>> {
        self.watches.acquire().await.ok()
    }
}

impl Pipeline {
    /// Refreshes the state of partitions, and adds the outcomes to `refreshed`. If the caller gives up, `refreshed`
    /// keeps the outcomes of the queries that were already answered.
    pub async fn refresh(&self, numbers: BTreeSet<DisklessPartitionId>, refreshed: &mut Refreshed) {
        let numbers: Vec<_> = numbers.into_iter().collect();
        for chunk in numbers.chunks(UNKNOWN_AT_ONCE) {
            self.refresh_chunk(chunk, refreshed).await;
        }
    }

    async fn refresh_chunk(&self, numbers: &[DisklessPartitionId], refreshed: &mut Refreshed) {
        let slot = self.shared.refreshes.acquire().await;
        let from: Vec<_> = {
            let state = self.shared.state.lock();
            let known_to = |number: &DisklessPartitionId| state.known.get(number).map_or(0, |known| known.next_offset);
            numbers.iter().map(|number| (*number, known_to(number))).collect()
        };
        match self.shared.index.refresh(from.clone(), slot).await {
            Ok(found) => {
                let mut released = Vec::new();
                for ((number, from), found) in from.into_iter().zip(found) {
                    let outcome = self.shared.learn(number, from, found, &mut released);
                    refreshed.insert(number, outcome);
                }
                self.shared.answer_released(released);
            }
            // The query may have failed only because this number of partitions takes longer than its time limit.
            Err(_) if numbers.len() > 1 => Box::pin(self.refresh_one_by_one(numbers, refreshed)).await,
            Err(error) => {
                self.shared.log_commit_failure(&error);
                refreshed.extend(numbers.iter().map(|number| (*number, Err(AppendError::Storage))));
            }
        }
    }

    /// Refreshes each partition with its own query. After the first failure, sends no more queries, and all remaining
    /// partitions fail.
    async fn refresh_one_by_one(&self, numbers: &[DisklessPartitionId], refreshed: &mut Refreshed) {
        for (at, number) in numbers.iter().enumerate() {
            self.refresh_chunk(std::slice::from_ref(number), refreshed).await;
            if matches!(refreshed.get(number), Some(Err(AppendError::Storage))) {
                refreshed.extend(numbers[at..].iter().map(|number| (*number, Err(AppendError::Storage))));
                return;
            }
        }
    }

    /// Returns true if the next batch of this producer must wait for a refresh of the partition.
    pub fn is_stale_for(&self, number: DisklessPartitionId, producer_id: i64) -> bool {
        let state = self.shared.state.lock();
        let is_known = |known: &PartitionState| !state.others_commit || known.producers.knows(producer_id);
        !state.known.get(&number).is_some_and(is_known) && !state.queue.has_pending(number, producer_id)
    }
}

impl Shared {
    /// Applies the answer to a refresh of a partition. The answer has the batches from offset `from` on, and is `None`
    /// if the partition is deleted. Adds parked batches that now have an outcome to `released`.
    fn learn(
        self: &Arc<Self>,
        number: DisklessPartitionId,
        from: i64,
        found: Option<RefreshedPartition>,
        released: &mut Vec<Released>,
    ) -> Result<(), AppendError> {
        let RefreshedPartition { row, producers, predecessor } = found.ok_or(AppendError::Deleted)?;
        let mut state = self.state.lock();
        if self.reader.partition(number).is_none() {
            // The partition is deleted. Its state must not be added to `known`, because nothing would remove it.
            return Err(AppendError::Deleted);
        }
        let is_new = !state.known.contains_key(&number);
        let known = state.known.entry(number).or_insert_with(|| PartitionState::new(row.window));
        if (is_new || known.next_offset == 0) && !predecessor.is_empty() {
            known.succeed(predecessor, row.next_offset > 0);
        }
        released.extend(self.take_over(&mut state, &[(row, from)], &producers));
        Ok(())
    }
}
