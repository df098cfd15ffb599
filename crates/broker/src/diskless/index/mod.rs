//! The order of diskless partitions: which batches there are, in which objects, and what their producers have written.
//!
//! Decisions are [`fullbore_rules::commit`]'s. Here a commit reads what it is decided on and writes what was decided, in one transaction of
//! a [`store`]. What was read of a partition is kept: rows of producers are only ever added, so that it is brought up to date by those past
//! its next offset.
//!
//! - [`store`]: what is needed of a back end.
//! - [`sqlite`]: a file, for one broker.
//!
//! Not here: objects' bytes, nor who waits for a verdict.
//!
//! Invariant: what is kept of a partition is what a transaction that is known to be committed has left.

mod packed;
mod sqlite;
mod store;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use fullbore_rules::commit::{
    CommitDecision, CommitVerdict, Coordinator, DisklessPartitionId, FinishedObject, ObjectBatch, ObjectId,
    ObjectState, PartitionState, commit,
};

pub use sqlite::SqliteIndex;
pub use store::{CommitFound, CommitQuestion, CommitWrite, IndexStore, PartitionRow, ProducerRow};

use crate::control::{CommitError, StoreError};

/// An object that is in the store, as its broker wants it committed.
#[derive(Clone, Debug)]
pub struct UploadedObject {
    pub id: ObjectId,
    /// Those of a partition side by side, in the order of their admission.
    pub batches: Vec<ObjectBatch>,
}

/// When a commit is made, and which producers must be new.
#[derive(Clone, Copy, Debug)]
pub struct CommitTime {
    /// The wall clock in ms.
    pub now_ms: i64,
    /// The first producer id that was handed out within `producer.id.expiration.ms`.
    pub fresh_from: i64,
}

/// The index of diskless partitions, and what this broker knows of it.
pub struct Index<S> {
    store: S,
    known: HashMap<DisklessPartitionId, PartitionState>,
    /// Batches retained of each producer.
    window: usize,
}

impl<S: IndexStore> Index<S> {
    /// Nothing of it is known yet.
    pub fn new(store: S, window: usize) -> Index<S> {
        Index { store, known: HashMap::new(), window }
    }

    /// Commits these objects in this order; for each what became of each of its batches.
    ///
    /// # Errors
    /// Nothing is committed, or it is not known: the same is to be asked for again.
    pub fn commit(
        &mut self,
        objects: &[UploadedObject],
        time: CommitTime,
    ) -> Result<Vec<Vec<CommitVerdict>>, CommitError> {
        let touched = self.touched(objects);
        let decided = self.decide_and_write(objects, &touched, time);
        if decided.is_err() {
            // It was changed by the decision, and may be other than what is there.
            touched.iter().for_each(|partition| drop(self.known.remove(partition)));
        }
        decided
    }

    fn decide_and_write(
        &mut self,
        objects: &[UploadedObject],
        touched: &BTreeSet<DisklessPartitionId>,
        time: CommitTime,
    ) -> Result<Vec<Vec<CommitVerdict>>, CommitError> {
        let known_to = |id: &DisklessPartitionId| (*id, self.known.get(id).map_or(0, |state| state.next_offset));
        let question = CommitQuestion {
            partitions: touched.iter().map(known_to).collect(),
            objects: objects.iter().map(|object| object.id).collect(),
        };
        let found = self.store.begin(&question).map_err(CommitError::Refused)?;
        let objects = with_states(objects, found.objects);
        self.bring_up_to_date(touched, found.partitions, found.producers);
        let Index { known, .. } = self;
        let mut coordinator = Coordinator { partitions: known, fresh_from: time.fresh_from, now_ms: time.now_ms };
        let decision = commit(&mut coordinator, &objects);
        let verdicts = decision.verdicts.clone();
        self.write(touched, decision, time.now_ms)?;
        Ok(verdicts)
    }

    fn write(
        &mut self,
        touched: &BTreeSet<DisklessPartitionId>,
        decision: CommitDecision,
        now_ms: i64,
    ) -> Result<(), CommitError> {
        if decision.objects.is_empty() {
            self.store.abandon();
            return Ok(());
        }
        let row = |id: &DisklessPartitionId| self.known.get(id).map(|state| PartitionRow::of(*id, state));
        let partitions = touched.iter().filter_map(row).collect();
        self.store.commit(CommitWrite { partitions, decision, now_ms })
    }

    fn touched(&self, objects: &[UploadedObject]) -> BTreeSet<DisklessPartitionId> {
        objects.iter().flat_map(|object| &object.batches).map(|batch| batch.partition).collect()
    }

    /// Takes over what others have committed; forgets what is deleted.
    fn bring_up_to_date(
        &mut self,
        touched: &BTreeSet<DisklessPartitionId>,
        partitions: Vec<PartitionRow>,
        producers: Vec<ProducerRow>,
    ) {
        let there: BTreeSet<_> = partitions.iter().map(|row| row.id).collect();
        touched.difference(&there).for_each(|id| drop(self.known.remove(id)));
        for row in &producers {
            let state = self.known.entry(row.batches.partition).or_insert_with(|| PartitionState::new(self.window));
            for (stamp, base_offset, timestamp) in &row.batches.batches {
                state.take_over(stamp, *base_offset, *timestamp, row.written_ms);
            }
        }
        for row in partitions {
            let state = self.known.entry(row.id).or_insert_with(|| PartitionState::new(self.window));
            row.put_into(state);
        }
    }
}

/// The objects as the coordinator has them; one that it does not know is gone.
fn with_states(objects: &[UploadedObject], mut states: HashMap<ObjectId, ObjectState>) -> Vec<FinishedObject> {
    let finished = |object: &UploadedObject| FinishedObject {
        id: object.id,
        state: states.remove(&object.id).unwrap_or(ObjectState::Gone),
        batches: object.batches.clone(),
    };
    objects.iter().map(finished).collect()
}

/// What a store says where its contents cannot be.
fn damaged(what: impl Into<String>) -> StoreError {
    StoreError::Damaged(what.into())
}
