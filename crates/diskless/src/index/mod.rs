//! The index of diskless partitions. It has the order of their batches, the objects that contain the batches, and the
//! last batches of each producer.
//!
//! [`fullbore_rules::commit`] decides on a commit. This module reads the state for the decision and writes the result,
//! in one transaction of a [`store`]. The state of a partition stays in memory between commits. Producer rows are added
//! and removed, but never changed. The index therefore updates its state by reading only the rows past the state's next
//! offset.
//!
//! - [`store`]: the trait that a storage back end implements.
//! - [`sqlite`]: a file, for one broker; [`postgres`]: a database, for the brokers of a cluster.
//! - [`owner`]: the thread that carries out commits for the whole broker.
//! - [`noted`]: counts of committed changes, which reveal an older copy of the index.
//! - [`finder`]: reads that do not wait for commits; [`time_search`]: searches by time, which use it.
//!
//! The index has neither the bytes of objects nor batches that wait for a commit.
//!
//! Invariant: after each call, the state in memory contains only changes that are known to be committed.

#[cfg(test)]
pub mod counted;
mod finder;
#[cfg(test)]
pub mod manual_index;
#[cfg(test)]
mod measure;
mod noted;
mod owner;
mod packed;
pub mod postgres;
#[cfg(test)]
mod producer_tests;
mod sqlite;
mod store;
#[cfg(test)]
mod store_tests;
#[cfg(test)]
pub mod temp_index;
#[cfg(test)]
mod tests;
mod time_search;
#[cfg(test)]
mod transaction_tests;
mod trimming;

use std::collections::{BTreeSet, HashMap};

use fullbore_rules::commit::{
    AppendedBatch, BatchRun, CommitState, CommitVerdict, DisklessPartitionId, FinishedObject, ObjectBatch, ObjectId,
    ObjectNumbers, ObjectState, PartitionState, commit,
};

use fullbore_rules::sequence::{NO_PRODUCER_ID, ProducerTails, Producers, Stamp};
use fullbore_wire::Uuid;

pub use finder::{IndexChanges, RunFinder};
pub use noted::{FILE as NOTED_CHANGES, Lacking, lacking, noted_changes};
pub use owner::{Deleted, IndexOwner, IndexThread, MOVED_MAX, QueueSlot, TailsBefore};
pub use sqlite::{NAME as SQLITE_FILE, OpenFileError, SqliteIndex};
pub use store::{
    AbortedTransactions, ChangeSource, ClassicTails, CommitFound, CommitQuestion, CommitWrite, IndexStore, KnownStore,
    PartitionRow, ProducerRow, ProducerRowPlace, RunSource, UnusedObject,
};
pub use time_search::{RUNS_AT_ONCE, TimeSearch};

use packed::forgotten_below;
use trimming::Trims;

use fullbore_db::{CommitError, StoreError};
use fullbore_host::random_id;

/// Time between two passes of producer expiry through all partitions, in ms.
const EXPIRY_INTERVAL_MS: i64 = 600_000;
/// Maximum number of partitions whose state one query reads completely. The query has a time limit, and a partition
/// often has a few thousand rows.
pub const UNKNOWN_AT_ONCE: usize = 16;
/// Maximum number of producers that one transaction removes. Other requests wait until the transaction ends, so it must
/// be short.
const EXPIRED_AT_ONCE: usize = 1024;

/// An uploaded object that this broker wants to commit.
#[derive(Clone, Debug)]
pub struct UploadedObject {
    pub id: ObjectId,
    /// The batches of the object, sorted by partition. Batches of one producer in a partition are in the order of their
    /// admission.
    pub batches: Vec<ObjectBatch>,
}

/// The answer to a refresh of one partition.
#[derive(Clone, Debug)]
pub struct RefreshedPartition {
    /// The current row of the partition.
    pub row: PartitionRow,
    /// The batches of the partition's producers at the requested offset or later.
    pub producers: Vec<ProducerRow>,
    /// The last sequences of producers that have written to the deleted partition of the same name, but not to this
    /// one. Empty if the requested offset is not 0.
    pub predecessor: ProducerTails,
}

/// The outcome of a commit.
#[derive(Clone, Debug)]
pub struct CommitAnswer {
    /// The verdict on each batch of each object.
    pub verdicts: Vec<Vec<CommitVerdict>>,
    /// The rows of the partitions that have batches in the objects, as they are after the commit. For each row there is
    /// an offset: `producers` contains all batches of the partition that were appended at or after it.
    pub partitions: Vec<(PartitionRow, i64)>,
    /// The batches of producers: first those that other brokers have committed, then those of this commit. An earlier
    /// answer may already have contained some of them.
    pub producers: Vec<ProducerRow>,
    /// The extents that this commit has added.
    pub runs: Vec<BatchRun>,
}

/// The index of diskless partitions, with the state that this broker keeps in memory.
pub struct Index<S> {
    store: S,
    known: HashMap<DisklessPartitionId, PartitionState>,
    /// How many batches of each producer are retained in a partition that is not in `windows`.
    window: usize,
    /// How many batches of each producer are retained, for each partition with its own setting.
    windows: HashMap<DisklessPartitionId, usize>,
    trims: Trims,
    expiry: Expiry,
}

/// The progress of producer expiry, which goes through the partitions one by one.
struct Expiry {
    /// `producer.id.expiration.ms`.
    after_ms: i64,
    /// The last partition that the current pass has finished, or 0 at the start of a pass.
    done_to: DisklessPartitionId,
    /// When the next pass is due, in ms since 1970.
    due_ms: i64,
    /// When the current pass began, in ms. The whole pass computes idle times for this moment. The rows and the memory
    /// therefore lose the same producers.
    began_ms: i64,
}

impl<S: IndexStore> Index<S> {
    /// Creates an index without any partition's state in memory.
    pub fn new(store: S, window: usize) -> Index<S> {
        let expiry = Expiry { after_ms: i64::MAX, done_to: 0, due_ms: 0, began_ms: 0 };
        Index { store, known: HashMap::new(), window, windows: HashMap::new(), trims: Trims::default(), expiry }
    }

    /// Updates the state of `partitions` from the store. For each partition, returns its row and the batches of its
    /// producers at or after the given offset, or `None` if the partition does not exist. The partitions must be
    /// distinct.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    pub fn refresh(
        &mut self,
        partitions: &[(DisklessPartitionId, i64)],
    ) -> Result<Vec<Option<RefreshedPartition>>, StoreError> {
        let ids: BTreeSet<_> = partitions.iter().map(|(id, _)| *id).collect();
        let known: HashMap<_, _> = self.known_to(&ids).into_iter().collect();
        let known_to = |id: &DisklessPartitionId| known.get(id).copied().unwrap_or(0);
        let found = self.read(partitions.iter().map(|(id, from)| (*id, known_to(id).min(*from))).collect())?;
        let new = |row: &&ProducerRow| row.base_offset() >= known_to(&row.batches.partition);
        let unknown: Vec<_> = found.producers.iter().filter(new).cloned().collect();
        self.bring_up_to_date(&ids, found.partitions, &unknown);
        let mut producers: HashMap<_, Vec<ProducerRow>> = HashMap::new();
        for row in found.producers {
            producers.entry(row.batches.partition).or_default().push(row);
        }
        let refreshed = |(id, from): &(DisklessPartitionId, i64)| {
            let state = self.known.get(id)?;
            let mut producers = producers.remove(id).unwrap_or_default();
            producers.retain(|row| row.base_offset() >= *from);
            let predecessor = match from {
                0 => state.producers.predecessor().clone(),
                _ => ProducerTails::default(),
            };
            Some(RefreshedPartition { row: PartitionRow::of(*id, state), producers, predecessor })
        };
        Ok(partitions.iter().map(refreshed).collect())
    }

    /// Refreshes one partition; see [`Index::refresh`].
    #[cfg(test)]
    pub fn refresh_one(
        &mut self,
        partition: DisklessPartitionId,
        from: i64,
    ) -> Result<Option<RefreshedPartition>, StoreError> {
        Ok(self.refresh(&[(partition, from)])?.pop().flatten())
    }

    /// Reads the rows of these partitions, and the rows of their producers at or after the given offsets.
    fn read(&mut self, partitions: Vec<(DisklessPartitionId, i64)>) -> Result<CommitFound, StoreError> {
        let found = self.store.begin(&CommitQuestion { partitions, objects: Vec::new() })?;
        let succeeded = self.succeed(&found.partitions);
        self.store.abandon();
        succeeded.map(|()| found)
    }

    /// Reads the state of the partitions in a commit that are not in memory, [`UNKNOWN_AT_ONCE`] at a time. Skips the
    /// first group, because the commit reads it in its own first round trip. Returns the producer rows that were read.
    fn read_rest(&mut self, touched: &BTreeSet<DisklessPartitionId>) -> Result<Vec<ProducerRow>, StoreError> {
        let unknown: Vec<_> = touched.iter().copied().filter(|id| !self.known.contains_key(id)).collect();
        let mut producers = Vec::new();
        for piece in unknown.chunks(UNKNOWN_AT_ONCE).skip(1) {
            let found = self.read(piece.iter().map(|id| (*id, 0)).collect())?;
            self.bring_up_to_date(&piece.iter().copied().collect(), found.partitions, &found.producers);
            producers.extend(found.producers);
        }
        Ok(producers)
    }

    /// Commits objects in the given order. `now_ms` is the time of the append clock ([`IndexStore::append_clock`]).
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was committed or the outcome is unknown. The caller must then repeat the
    /// same commit.
    pub fn commit(&mut self, objects: &[UploadedObject], now_ms: i64) -> Result<CommitAnswer, CommitError> {
        let touched = self.touched(objects);
        let since = self.known_to(&touched);
        // If this read fails, the state in memory is kept. A retry that had to read everything again could take even
        // longer.
        let rest = self.read_rest(&touched).map_err(CommitError::Refused)?;
        let objects_requested = objects.iter().map(|object| object.id).collect();
        let question = CommitQuestion { partitions: self.known_to(&touched), objects: objects_requested };
        let found = self.store.begin(&question).map_err(CommitError::Refused)?;
        if let Err(error) = self.succeed(&found.partitions) {
            self.store.abandon();
            return Err(CommitError::Refused(error));
        }
        match self.decide_and_write(objects, (&touched, &since, found), now_ms) {
            Ok(mut answer) => {
                answer.producers.splice(0..0, rest);
                Ok(answer)
            }
            Err(error) => {
                // The decision has already changed the state in memory, but the commit has failed, so the state may
                // differ from the rows. Drop the state; a later call reads it again.
                touched.iter().for_each(|partition| drop(self.known.remove(partition)));
                Err(error)
            }
        }
    }

    /// Retains at least `window` batches of each producer of these partitions. If a larger number was set earlier, it
    /// stays in force.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if other brokers might not see the setting. The caller must then repeat the request.
    pub fn retain_batches(&mut self, partitions: &[DisklessPartitionId], window: usize) -> Result<(), CommitError> {
        for id in partitions {
            let known = self.windows.entry(*id).or_insert(window);
            *known = (*known).max(window);
            if let Some(state) = self.known.get_mut(id) {
                state.window = state.window.max(*known);
            }
        }
        self.store.retain_batches(partitions, window)
    }

    /// Deletes the partitions of a topic. `known` are those of its partitions that this broker knows.
    ///
    /// # Errors
    /// Returns an error if [`IndexStore::delete`] does.
    pub fn delete(&mut self, topic_id: Uuid, known: &[DisklessPartitionId]) -> Result<(), CommitError> {
        for id in known {
            self.known.remove(id);
            self.windows.remove(id);
            self.trims.forget(*id);
        }
        self.store.delete(topic_id, known)
    }

    fn window_of(&self, partition: DisklessPartitionId) -> usize {
        self.windows.get(&partition).copied().unwrap_or(self.window)
    }

    /// Runs one step of the GC, which takes a limited time. Returns true if there may be more to do.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if the index fails. A later call repeats the step.
    pub fn tidy(&mut self, runs_max: usize, now_ms: i64) -> Result<bool, CommitError> {
        if self.store.checkpoint() {
            return Ok(true);
        }
        let trim = self.trims.due();
        if let Some((partition, from)) = trim {
            self.trim(partition, from)?;
        }
        // Delete extents even if this call has trimmed producer rows. Otherwise, a producer that adds rows as fast as
        // they are trimmed would delay the deletion of extents forever.
        let has_cleared = self.store.clear(runs_max, now_ms)?;
        Ok(trim.is_some() || has_cleared || self.expire_producers(now_ms)?)
    }

    /// Reads some producer rows of a partition, beginning at offset `from`, and removes those that are no longer
    /// needed. If the partition's state is not in memory, removes nothing.
    fn trim(&mut self, id: DisklessPartitionId, from: i64) -> Result<(), CommitError> {
        let mut next = from;
        if let Some(state) = self.known.get(&id) {
            let rows = self.store.producers_from(id, from, trimming::PIECE).map_err(CommitError::Refused)?;
            let removable = trimming::removable(&rows, state);
            if !removable.is_empty() {
                self.store.remove_producers(id, &removable)?;
            }
            next = trimming::next_piece(&rows);
        }
        self.trims.done(id, next);
        Ok(())
    }

    /// Sets `producer.id.expiration.ms`. A producer that has not written to a partition for this long is forgotten
    /// there, and may begin again with any sequence. Until the first call, no producer is forgotten.
    pub fn expire_producers_after(&mut self, expiration_ms: i64) {
        self.expiry.after_ms = expiration_ms;
    }

    /// Runs the next step of producer expiry if a pass is due. Returns false if no pass is due or the pass has ended.
    fn expire_producers(&mut self, now_ms: i64) -> Result<bool, CommitError> {
        let Index { store, known, expiry, .. } = self;
        // If the due time is more than one interval ahead, the clock was set back, and the pass is due now.
        let is_early = now_ms < expiry.due_ms && expiry.due_ms.saturating_sub(now_ms) <= EXPIRY_INTERVAL_MS;
        if is_early || expiry.after_ms == i64::MAX {
            return Ok(false);
        }
        if expiry.done_to == 0 {
            expiry.began_ms = store.judged_at(now_ms).map_err(CommitError::Refused)?;
        }
        let before_ms = expiry.began_ms.saturating_sub(expiry.after_ms);
        match store.expire_producers(expiry.done_to, before_ms, EXPIRED_AT_ONCE)? {
            Some((_, true)) => {}
            Some((partition, false)) => expiry.done_to = partition,
            None => {
                known.values_mut().for_each(|state| state.expire(expiry.began_ms, expiry.after_ms));
                (expiry.done_to, expiry.due_ms) = (0, now_ms.saturating_add(EXPIRY_INTERVAL_MS));
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the next offset of each partition's state in memory, or 0 for a partition without state in memory.
    fn known_to(&self, touched: &BTreeSet<DisklessPartitionId>) -> Vec<(DisklessPartitionId, i64)> {
        let known_to = |id: &DisklessPartitionId| (*id, self.known.get(id).map_or(0, |state| state.next_offset));
        touched.iter().map(known_to).collect()
    }

    /// Decides on a commit and writes the result within the open transaction. `since` has the next offset of each
    /// partition's state in memory before the commit read any row.
    fn decide_and_write(
        &mut self,
        objects: &[UploadedObject],
        (touched, since, found): (&BTreeSet<DisklessPartitionId>, &[(DisklessPartitionId, i64)], CommitFound),
        now_ms: i64,
    ) -> Result<CommitAnswer, CommitError> {
        let objects = with_states(objects, found.objects);
        let deleted = self.bring_up_to_date(touched, found.partitions, &found.producers);
        let Index { known, .. } = self;
        let mut commit_state = CommitState { partitions: known, deleted: &deleted, now_ms };
        let mut decision = commit(&mut commit_state, &objects);
        let verdicts = std::mem::take(&mut decision.verdicts);
        let row = |id: &DisklessPartitionId| self.known.get(id).map(|state| PartitionRow::of(*id, state));
        let partitions: Vec<_> = touched.iter().filter_map(row).collect();
        let write = CommitWrite { partitions, decision, now_ms };
        if write.decision.objects.is_empty() {
            self.store.abandon();
        } else {
            self.store.commit(&write)?;
        }
        let CommitWrite { partitions, decision, .. } = write;
        let with_since = |row: PartitionRow| {
            let at = since.binary_search_by_key(&row.id, |(id, _)| *id);
            (row, at.map_or(0, |at| since[at].1))
        };
        let partitions = partitions.into_iter().map(with_since).collect();
        for row in &decision.producers {
            self.trims.added(row.partition);
        }
        let own = decision.producers.into_iter().map(|batches| ProducerRow { batches, written_ms: now_ms });
        let producers = found.producers.into_iter().chain(own).collect();
        Ok(CommitAnswer { verdicts, partitions, producers, runs: decision.runs })
    }

    /// Creates states for those partitions that have a predecessor but no state in memory yet. The predecessor is a
    /// deleted partition of the same name, and its producer rows form the first part of the state. The caller then
    /// applies the partition's own batches.
    fn succeed(&mut self, partitions: &[PartitionRow]) -> Result<(), StoreError> {
        let new = partitions.iter().filter(|row| !self.known.contains_key(&row.id));
        let new: HashMap<_, _> = new.map(|row| (row.id, row.next_offset > 0)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut ids: Vec<_> = new.keys().copied().collect();
        ids.sort_unstable();
        let mut before: HashMap<_, Producers> = HashMap::new();
        for ProducerRow { batches: of, written_ms } in self.store.predecessors(&ids)? {
            let producers = before.entry(of.partition).or_default();
            if of.producer_id == NO_PRODUCER_ID {
                match forgotten_below(&of.batches) {
                    i64::MAX => producers.note_forgotten(),
                    bound => producers.note_forgotten_below(bound),
                }
            }
            for batch in &of.batches {
                remember_last(producers, batch, written_ms);
            }
        }
        for (id, producers) in before {
            let window = self.window_of(id);
            let tails = producers.tails();
            let is_written = new.get(&id).copied().unwrap_or(true);
            self.known.entry(id).or_insert_with(|| PartitionState::new(window)).succeed(tails, is_written);
        }
        Ok(())
    }

    fn touched(&self, objects: &[UploadedObject]) -> BTreeSet<DisklessPartitionId> {
        objects.iter().flat_map(|object| &object.batches).map(|batch| batch.partition).collect()
    }

    /// Applies rows that other brokers have committed, and drops the state of deleted partitions. Returns the producer
    /// state of the deleted partitions.
    fn bring_up_to_date(
        &mut self,
        touched: &BTreeSet<DisklessPartitionId>,
        partitions: Vec<PartitionRow>,
        producers: &[ProducerRow],
    ) -> HashMap<DisklessPartitionId, Producers> {
        let there: BTreeSet<_> = partitions.iter().map(|row| row.id).collect();
        let (mut deleted, window): (HashMap<_, Producers>, _) = (HashMap::new(), self.window);
        for gone in touched.difference(&there) {
            let known = self.known.remove(gone).map(|state| state.producers);
            deleted.insert(*gone, known.unwrap_or_default());
            self.windows.remove(gone);
            self.trims.forget(*gone);
        }
        // Set the window before batches are applied. If another broker has set a larger window, more batches must be
        // retained.
        for row in &partitions {
            let window = self.window_of(row.id).max(row.window);
            let state = self.known.entry(row.id).or_insert_with(|| PartitionState::new(window));
            state.window = state.window.max(window);
        }
        for row in producers {
            // A deleted partition leaves its producer rows in the index, for the next partition of the same name. The
            // batches of these rows are added to `deleted`.
            let (mut state, mut left) =
                (self.known.get_mut(&row.batches.partition), deleted.get_mut(&row.batches.partition));
            for batch in &row.batches.batches {
                match (&mut state, &mut left) {
                    (Some(state), _) => state.take_over(batch, row.written_ms),
                    (None, Some(left)) => batch.remember(left, row.written_ms, window),
                    (None, None) => {}
                }
            }
        }
        for row in partitions {
            if let Some(state) = self.known.get_mut(&row.id) {
                row.put_into(state);
                debug_assert_eq!(
                    row.first_unstable,
                    state.first_unstable(),
                    "the open transactions of {} are known",
                    row.id
                );
            }
        }
        deleted
    }
}

/// Adds a batch of a producer's newest row to the state of a deleted partition. If the row begins with a marker, the
/// producer's last record is in no row that was read. The sequence of that record is then computed: it is one less than
/// the producer's next sequence, which the marker contains.
fn remember_last(producers: &mut Producers, batch: &AppendedBatch, written_ms: i64) {
    let &AppendedBatch { stamp, base_offset, timestamp, kind } = batch;
    if kind.is_marker() && stamp.base_sequence > 0 && !producers.knows(stamp.producer_id) {
        let last = Stamp { base_sequence: stamp.base_sequence - 1, record_count: 1, ..stamp };
        producers.append(&last, base_offset - 1, timestamp, written_ms, 1);
    }
    batch.remember(producers, written_ms, 1);
}

/// Returns the objects with their states. An object that the index does not know counts as gone.
fn with_states(objects: &[UploadedObject], mut states: HashMap<ObjectId, ObjectState>) -> Vec<FinishedObject> {
    let finished = |object: &UploadedObject| FinishedObject {
        id: object.id,
        state: states.remove(&object.id).unwrap_or(ObjectState::Gone),
        batches: object.batches.clone(),
    };
    objects.iter().map(finished).collect()
}

/// Creates the source of object ids. The counter in the ids starts at a random number.
fn random_numbers() -> ObjectNumbers {
    let [first, second, third, fourth, ..] = random_id().0;
    ObjectNumbers::new(u32::from_be_bytes([first, second, third, fourth]))
}

/// Returns the error for a store whose contents are inconsistent.
fn damaged(what: impl Into<String>) -> StoreError {
    StoreError::Damaged(what.into())
}
