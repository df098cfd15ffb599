//! Reads from the index what is known of partitions, those of one request together, so that a producer's first request
//! to many partitions takes few round trips.
//!
//! Not here: when a batch needs it. Invariants: one question to the index has at most [`UNKNOWN_AT_ONCE`] partitions, and
//! at most [`LOOKS_MAX`] wait in its queue, so that a commit waits for few of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fullbore_rules::commit::{DisklessPartitionId, PartitionState};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{Settled, Shared, Writer};
use crate::diskless::index::{Looked, QueuePlace, UNKNOWN_AT_ONCE};
use fullbore_log::partition::error::AppendError;

/// Outcome of a look at each of some partitions.
pub type LookedAt = HashMap<DisklessPartitionId, Result<(), AppendError>>;

/// Looks that the index is asked for at a time.
const LOOKS_MAX: usize = 2;

/// Whose turn it is to look.
pub struct Looks {
    turns: Arc<Semaphore>,
    /// Those who look again and again as long as something is parked take one turn among themselves.
    watches: Semaphore,
}

impl Default for Looks {
    fn default() -> Looks {
        Looks { turns: Arc::new(Semaphore::new(LOOKS_MAX)), watches: Semaphore::new(1) }
    }
}

impl Looks {
    /// Waits for a turn, which lasts until the look is done, whether or not who asked still waits.
    pub async fn turn(&self) -> QueuePlace {
        Arc::clone(&self.turns).acquire_owned().await.ok()
    }

    /// Waits until who looks again and again may wait for a turn.
    pub async fn watch(&self) -> Option<SemaphorePermit<'_>> {
        self.watches.acquire().await.ok()
    }
}

impl Writer {
    /// Brings what is known of partitions up to date. A caller that gives up has the outcomes of the questions answered
    /// by then.
    pub async fn look(&self, numbers: BTreeSet<DisklessPartitionId>, looked: &mut LookedAt) {
        let numbers: Vec<_> = numbers.into_iter().collect();
        for piece in numbers.chunks(UNKNOWN_AT_ONCE) {
            self.look_at_few(piece, looked).await;
        }
    }

    async fn look_at_few(&self, numbers: &[DisklessPartitionId], looked: &mut LookedAt) {
        let turn = self.shared.looks.turn().await;
        let from: Vec<_> = {
            let state = self.shared.state.lock();
            let known_to = |number: &DisklessPartitionId| state.known.get(number).map_or(0, |known| known.next_offset);
            numbers.iter().map(|number| (*number, known_to(number))).collect()
        };
        match self.shared.index.look(from.clone(), turn).await {
            Ok(found) => {
                let mut released = Vec::new();
                for ((number, from), found) in from.into_iter().zip(found) {
                    let known = self.shared.learn((number, from), found, &mut released);
                    looked.insert(number, known);
                }
                self.shared.settle(released);
            }
            // A question of many partitions may exceed its time limit where a question of one does not.
            Err(_) if numbers.len() > 1 => Box::pin(self.look_one_by_one(numbers, looked)).await,
            Err(error) => {
                self.shared.tell_commit_failure(&error);
                looked.extend(numbers.iter().map(|number| (*number, Err(AppendError::Storage))));
            }
        }
    }

    /// Looks at partitions by a question each, until one of them fails, too.
    async fn look_one_by_one(&self, numbers: &[DisklessPartitionId], looked: &mut LookedAt) {
        for (at, number) in numbers.iter().enumerate() {
            self.look_at_few(std::slice::from_ref(number), looked).await;
            if matches!(looked.get(number), Some(Err(AppendError::Storage))) {
                looked.extend(numbers[at..].iter().map(|number| (*number, Err(AppendError::Storage))));
                return;
            }
        }
    }

    /// Returns true if the index is asked before this producer's next batch to the partition is taken.
    pub fn lacks(&self, number: DisklessPartitionId, producer_id: i64) -> bool {
        let state = self.shared.state.lock();
        let is_known = |known: &PartitionState| !state.others_commit || known.producers.knows(producer_id);
        !state.known.get(&number).is_some_and(is_known) && !state.line.has_pending(number, producer_id)
    }
}

impl Shared {
    /// Takes over what a look has found of a partition from this offset on.
    fn learn(
        self: &Arc<Self>,
        (number, from): (DisklessPartitionId, i64),
        found: Option<Looked>,
        released: &mut Vec<Settled>,
    ) -> Result<(), AppendError> {
        let Looked { row, producers, predecessor } = found.ok_or(AppendError::Deleted)?;
        let mut state = self.state.lock();
        if self.reader.partition(number).is_none() {
            // The deletion that would remove the entry has passed.
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
