//! Index of diskless partitions: the order of their batches, the objects that contain the batches, and the last batches
//! of each producer.
//!
//! [`fullbore_rules::commit`] decides on a commit. This module reads the state for the decision and writes the result,
//! in one transaction of a [`store`]. The state of a partition stays in memory. Producer rows are only added and
//! removed. To bring the state up to date, the index therefore reads only the rows past the state's next offset.
//!
//! - [`store`]: the trait of a back end.
//! - [`sqlite`]: a file, for one broker; [`postgres`]: a database, for the brokers of a cluster.
//! - [`owner`]: the thread that commits, for the whole broker.
//! - [`noted`]: counts of committed changes, by which an older copy is detected.
//! - [`finder`]: reads that do not wait for commits.
//!
//! Not here: the bytes of objects, and batches that wait for a verdict.
//!
//! Invariant: after each call, the state in memory contains only changes that are known to be committed.

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
#[cfg(test)]
mod transaction_tests;
mod trimming;

use std::collections::{BTreeSet, HashMap};

use fullbore_rules::commit::{
    AppendedBatch, BatchRun, CommitVerdict, Coordinator, DisklessPartitionId, FinishedObject, ObjectBatch, ObjectId,
    ObjectNumbers, ObjectState, PartitionState, commit,
};

use fullbore_rules::sequence::{NO_PRODUCER_ID, ProducerTails, Producers, Stamp};
use fullbore_wire::Uuid;

pub use finder::{IndexChanges, RunFinder};
pub use noted::{FILE as NOTED_CHANGES, Lacking, lacking, noted_changes};
pub use owner::{Deleted, IndexOwner, IndexThread, MOVED_MAX, QueuePlace, TailsBefore};
pub use sqlite::{NAME as SQLITE_FILE, OpenFileError, SqliteIndex};
pub use store::{
    AbortedTransactions, ChangeSource, ClassicTails, CommitFound, CommitQuestion, CommitWrite, IndexStore, KnownStore,
    PartitionRow, ProducerRow, ProducerRowPlace, RunSource, UnusedObject,
};

use packed::forgotten_below;
use trimming::Trims;

use fullbore_control::random_id;
use fullbore_db::{CommitError, StoreError};

/// Pause between two passes of producer expiry through all partitions, in ms.
const EXPIRY_INTERVAL_MS: i64 = 600_000;
/// Most partitions whose whole state one query reads. The query has a time limit, and a few thousand rows of each
/// partition are usual.
pub const UNKNOWN_AT_ONCE: usize = 16;
/// Most producers removed by one transaction, so that other requests wait only briefly.
const EXPIRED_AT_ONCE: usize = 1024;

/// Uploaded object that this broker wants to commit.
#[derive(Clone, Debug)]
pub struct UploadedObject {
    pub id: ObjectId,
    /// Batches, sorted by partition. Those of one producer in a partition are in the order of their admission.
    pub batches: Vec<ObjectBatch>,
}

/// Row of a partition, and the batches of its producers from a requested offset on.
#[derive(Clone, Debug)]
pub struct RefreshedPartition {
    /// Current row.
    pub row: PartitionRow,
    /// Batches of producers from the requested offset on.
    pub producers: Vec<ProducerRow>,
    /// Last sequences on the deleted partition of the same name, of producers that have not written to this partition.
    /// Empty if the requested offset is not 0.
    pub predecessor: ProducerTails,
}

/// Outcome of a commit.
#[derive(Clone, Debug)]
pub struct CommitAnswer {
    /// Verdict on each batch of each object.
    pub verdicts: Vec<Vec<CommitVerdict>>,
    /// Rows, after the commit, of the partitions that have batches in the objects. Each has the offset from which on
    /// `producers` contains all appended batches of the partition.
    pub partitions: Vec<(PartitionRow, i64)>,
    /// Batches of producers: first those that other brokers have committed, then those of this commit. Some may have
    /// been in an earlier answer.
    pub producers: Vec<ProducerRow>,
    /// Extents of the batches that this commit has appended.
    pub runs: Vec<BatchRun>,
}

/// Index of diskless partitions, with the state that this broker has in memory.
pub struct Index<S> {
    store: S,
    known: HashMap<DisklessPartitionId, PartitionState>,
    /// Number of batches retained of each producer, unless the partition has a setting of its own.
    window: usize,
    /// Number of batches retained of each producer, for the partitions that have a setting of their own.
    windows: HashMap<DisklessPartitionId, usize>,
    trims: Trims,
    expiry: Expiry,
}

/// Removal of idle producers, partition by partition.
struct Expiry {
    /// `producer.id.expiration.ms`.
    after_ms: i64,
    /// Last partition that the current pass has finished; 0 before the first partition.
    done_to: DisklessPartitionId,
    /// Time of the next pass, by the wall clock in ms.
    due_ms: i64,
    /// Start of the current pass, in ms. Idleness is computed at this time for the whole pass, so that it removes the
    /// same producers from the rows and from memory.
    began_ms: i64,
}

impl<S: IndexStore> Index<S> {
    /// Creates an index without partitions in memory.
    pub fn new(store: S, window: usize) -> Index<S> {
        let expiry = Expiry { after_ms: i64::MAX, done_to: 0, due_ms: 0, began_ms: 0 };
        Index { store, known: HashMap::new(), window, windows: HashMap::new(), trims: Trims::default(), expiry }
    }

    /// Brings the state of `partitions` up to date. Returns the row of each, and its producers' batches from the given
    /// offset on; `None` for a partition that does not exist. No partition may occur twice.
    ///
    /// # Errors
    /// [`StoreError`] if the index cannot be read.
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

    /// Refreshes one partition as [`Index::refresh`] does.
    #[cfg(test)]
    pub fn refresh_one(
        &mut self,
        partition: DisklessPartitionId,
        from: i64,
    ) -> Result<Option<RefreshedPartition>, StoreError> {
        Ok(self.refresh(&[(partition, from)])?.pop().flatten())
    }

    /// Reads the rows of these partitions, and the rows of their producers from the given offsets on.
    fn read(&mut self, partitions: Vec<(DisklessPartitionId, i64)>) -> Result<CommitFound, StoreError> {
        let found = self.store.begin(&CommitQuestion { partitions, objects: Vec::new() })?;
        let succeeded = self.succeed(&found.partitions);
        self.store.abandon();
        succeeded.map(|()| found)
    }

    /// Reads the touched partitions that are not in memory, piece by piece. Leaves the first piece to the commit, which
    /// reads it anyway. Returns the producer rows that were read.
    fn read_ahead(&mut self, touched: &BTreeSet<DisklessPartitionId>) -> Result<Vec<ProducerRow>, StoreError> {
        let unknown: Vec<_> = touched.iter().copied().filter(|id| !self.known.contains_key(id)).collect();
        let mut producers = Vec::new();
        for piece in unknown.chunks(UNKNOWN_AT_ONCE).skip(1) {
            let found = self.read(piece.iter().map(|id| (*id, 0)).collect())?;
            self.bring_up_to_date(&piece.iter().copied().collect(), found.partitions, &found.producers);
            producers.extend(found.producers);
        }
        Ok(producers)
    }

    /// Commits objects in this order. `now_ms` is the wall clock.
    ///
    /// # Errors
    /// [`CommitError`] if nothing was committed, or the outcome is unknown. The caller repeats the same commit.
    pub fn commit(&mut self, objects: &[UploadedObject], now_ms: i64) -> Result<CommitAnswer, CommitError> {
        let touched = self.touched(objects);
        let since = self.known_to(&touched);
        // If this read fails, the state in memory stays: reading all of it again may take longer than the read that
        // failed.
        let told = self.read_ahead(&touched).map_err(CommitError::Refused)?;
        let objects_asked = objects.iter().map(|object| object.id).collect();
        let question = CommitQuestion { partitions: self.known_to(&touched), objects: objects_asked };
        let found = self.store.begin(&question).map_err(CommitError::Refused)?;
        if let Err(error) = self.succeed(&found.partitions) {
            self.store.abandon();
            return Err(CommitError::Refused(error));
        }
        match self.decide_and_write(objects, (&touched, &since, found), now_ms) {
            Ok(mut answer) => {
                answer.producers.splice(0..0, told);
                Ok(answer)
            }
            Err(error) => {
                // The decision has changed the state in memory, which may now differ from the rows: a later call reads
                // it again.
                touched.iter().for_each(|partition| drop(self.known.remove(partition)));
                Err(error)
            }
        }
    }

    /// Retains at least `window` batches of each producer of these partitions. A larger number set earlier stays in
    /// force.
    ///
    /// # Errors
    /// [`CommitError`] if it is not certain that the setting was stored where other brokers see it. The caller repeats
    /// the request.
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

    /// Deletes the partitions of a topic; `known` are those of them that this broker knows.
    ///
    /// # Errors
    /// [`CommitError`] if [`IndexStore::delete`] returns one.
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

    /// Runs a bounded piece of the GC. Returns true if there may be more work.
    ///
    /// # Errors
    /// [`CommitError`] if the index fails; a later call repeats the piece.
    pub fn tidy(&mut self, runs_max: usize, now_ms: i64) -> Result<bool, CommitError> {
        if self.store.checkpoint() {
            return Ok(true);
        }
        let trim = self.trims.due();
        if let Some((partition, from)) = trim {
            self.trim(partition, from)?;
        }
        // Extents are deleted even if producer rows were trimmed in this call: rows that are added as fast as they are
        // trimmed would otherwise delay the deletion of extents forever.
        let has_cleared = self.store.clear(runs_max, now_ms)?;
        Ok(trim.is_some() || has_cleared || self.expire_producers(now_ms)?)
    }

    /// Removes unneeded producer rows from one piece of a partition's rows. Removes none if the partition's state is
    /// not in memory.
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

    /// Sets `producer.id.expiration.ms`. A producer that has not written to a partition for this time is forgotten
    /// there, and may begin again with any sequence. Before the first call no producer is forgotten.
    pub fn expire_producers_after(&mut self, expiration_ms: i64) {
        self.expiry.after_ms = expiration_ms;
    }

    /// Runs the next step of a pass of producer expiry, if a pass is due. Returns false if none is due, or if the pass
    /// has ended.
    fn expire_producers(&mut self, now_ms: i64) -> Result<bool, CommitError> {
        let Index { store, known, expiry, .. } = self;
        // If the due time is more than an interval ahead, the clock was set back: the pass is due now.
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

    /// Returns these partitions, each with the offset up to which its state is in memory; 0 if it is not in memory.
    fn known_to(&self, touched: &BTreeSet<DisklessPartitionId>) -> Vec<(DisklessPartitionId, i64)> {
        let known_to = |id: &DisklessPartitionId| (*id, self.known.get(id).map_or(0, |state| state.next_offset));
        touched.iter().map(known_to).collect()
    }

    /// Decides on a commit and writes the result, within the open transaction. `since` has the offset of each partition
    /// up to which its state was in memory before the commit read any row.
    fn decide_and_write(
        &mut self,
        objects: &[UploadedObject],
        (touched, since, found): (&BTreeSet<DisklessPartitionId>, &[(DisklessPartitionId, i64)], CommitFound),
        now_ms: i64,
    ) -> Result<CommitAnswer, CommitError> {
        let objects = with_states(objects, found.objects);
        let deleted = self.bring_up_to_date(touched, found.partitions, &found.producers);
        let Index { known, .. } = self;
        let mut coordinator = Coordinator { partitions: known, deleted: &deleted, now_ms };
        let mut decision = commit(&mut coordinator, &objects);
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

    /// Creates the state of partitions that are not in memory, from the producer rows that deleted partitions of the
    /// same names have left. The caller then applies the partitions' own batches.
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

    /// Applies rows that other brokers have committed, and forgets deleted partitions. Returns the producer state of
    /// the deleted partitions.
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
        // Windows are set before batches are applied, so that a larger window of another broker retains them.
        for row in &partitions {
            let window = self.window_of(row.id).max(row.window);
            let state = self.known.entry(row.id).or_insert_with(|| PartitionState::new(window));
            state.window = state.window.max(window);
        }
        for row in producers {
            // A deleted partition may still have rows, kept for the next partition of its name: these go into
            // `deleted`.
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
/// marker contains the producer's next sequence: the last record had the sequence before that.
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

/// Creates the source of object ids. The counter in the ids has a random start.
fn random_numbers() -> ObjectNumbers {
    let [first, second, third, fourth, ..] = random_id().0;
    ObjectNumbers::new(u32::from_be_bytes([first, second, third, fourth]))
}

/// Returns the error of a store whose contents cannot be right.
fn damaged(what: impl Into<String>) -> StoreError {
    StoreError::Damaged(what.into())
}
