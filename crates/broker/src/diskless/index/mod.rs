//! The order of diskless partitions: which batches there are, in which objects, and what their producers have written.
//!
//! Decisions are [`fullbore_rules::commit`]'s. Here a commit reads what it is decided on and writes what was decided,
//! in one transaction of a [`store`]. What was read of a partition is kept: rows of producers are only ever added, so
//! that it is brought up to date by those past its next offset.
//!
//! - [`store`]: what is needed of a back end.
//! - [`sqlite`]: a file, for one broker; [`postgres`]: a database, for those of a cluster.
//! - [`owner`]: the thread that commits, which all of a broker ask.
//! - [`noted`]: changes that are known to be committed, which an older copy lacks.
//! - [`finder`]: where records are, which does not wait for commits.
//!
//! Not here: objects' bytes, nor who waits for a verdict.
//!
//! Invariant: what is kept of a partition is what a transaction that is known to be committed has left.

#[cfg(test)]
pub mod by_hand;
mod finder;
#[cfg(test)]
mod measure;
mod noted;
#[cfg(test)]
pub mod own;
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
mod tests;
#[cfg(test)]
mod transaction_tests;
mod trimming;

use std::collections::{BTreeSet, HashMap};

use fullbore_rules::commit::{
    AppendedBatch, BatchRun, CommitVerdict, Coordinator, DisklessPartitionId, FinishedObject, ObjectBatch, ObjectId,
    ObjectNumbers, ObjectState, PartitionState, commit,
};

use fullbore_rules::sequence::{NO_PRODUCER_ID, Producers, Stamp, Stops};
use fullbore_wire::Uuid;

pub use finder::{IndexChanges, RunFinder};
pub use noted::{FILE as NOTED_CHANGES, Lacking, lacking, noted_changes};
pub use owner::{Deleted, IndexOwner, IndexThread, MOVED_MAX, QueuePlace, StopsBefore};
pub use sqlite::{NAME as SQLITE_FILE, OpenFileError, SqliteIndex};
pub use store::{
    AbortedTransactions, ChangeSource, ClassicStops, CommitFound, CommitQuestion, CommitWrite, IndexStore, KnownStore,
    PartitionRow, ProducerRow, ProducerRowPlace, RunSource, UnusedObject,
};

use packed::forgotten_below;
use trimming::Trims;

use fullbore_control::random_id;
use fullbore_db::{CommitError, StoreError};

/// Between two rounds through all partitions in search of silent producers, in ms.
const EXPIRY_INTERVAL_MS: i64 = 600_000;
/// Partitions of which everything is read in one question. It has to be answered within a time limit, and of each a few
/// thousand rows are usual.
pub const UNKNOWN_AT_ONCE: usize = 16;
/// Producers that are removed at a time, so that nobody waits long.
const EXPIRED_AT_ONCE: usize = 1024;

/// An object that is in the store, as its broker wants it committed.
#[derive(Clone, Debug)]
pub struct UploadedObject {
    pub id: ObjectId,
    /// Batches, those of a partition side by side, in the order of their admission.
    pub batches: Vec<ObjectBatch>,
}

/// State of a partition, and its changes since an earlier look.
#[derive(Clone, Debug)]
pub struct Looked {
    /// Row of the partition now.
    pub row: PartitionRow,
    /// Batches of producers since then.
    pub producers: Vec<ProducerRow>,
    /// Last sequences, on the deleted partition of the same name, of producers that have written nothing to this one.
    /// Empty in a look from any offset but 0.
    pub predecessor: Stops,
}

/// Outcome of a commit.
#[derive(Clone, Debug)]
pub struct CommitAnswer {
    /// For each object what became of each of its batches.
    pub verdicts: Vec<Vec<CommitVerdict>>,
    /// The partitions that it touched, as they are now, each with the offset from which on `producers` has all that was
    /// appended.
    pub partitions: Vec<(PartitionRow, i64)>,
    /// Batches of producers, by others, and then by this commit. Some may have been returned before.
    pub producers: Vec<ProducerRow>,
    /// Runs of the batches that this commit has appended.
    pub runs: Vec<BatchRun>,
}

/// The index of diskless partitions, and what this broker knows of it.
pub struct Index<S> {
    store: S,
    known: HashMap<DisklessPartitionId, PartitionState>,
    /// Batches retained of each producer, where a partition does not say.
    window: usize,
    /// Retained batches of partitions with a setting of their own.
    windows: HashMap<DisklessPartitionId, usize>,
    trims: Trims,
    expiry: Expiry,
}

/// The removal of producers that are silent, partition by partition.
struct Expiry {
    /// `producer.id.expiration.ms`.
    after_ms: i64,
    /// The last partition that has none any more.
    done_to: DisklessPartitionId,
    /// When the next round begins, by the wall clock in ms.
    due_ms: i64,
    /// When this one began: who was silent for long enough then is removed, and nobody else, so that memory and rows
    /// are of one mind.
    began_ms: i64,
}

impl<S: IndexStore> Index<S> {
    /// Creates an index without partitions in memory.
    pub fn new(store: S, window: usize) -> Index<S> {
        let expiry = Expiry { after_ms: i64::MAX, done_to: 0, due_ms: 0, began_ms: 0 };
        Index { store, known: HashMap::new(), window, windows: HashMap::new(), trims: Trims::default(), expiry }
    }

    /// Reads what a commit to these partitions would be decided on now, of each from its offset on; no partition is
    /// there twice. `None` for one that does not exist.
    ///
    /// # Errors
    /// It is not known.
    pub fn look(&mut self, partitions: &[(DisklessPartitionId, i64)]) -> Result<Vec<Option<Looked>>, StoreError> {
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
        let looked = |(id, from): &(DisklessPartitionId, i64)| {
            let state = self.known.get(id)?;
            let mut producers = producers.remove(id).unwrap_or_default();
            producers.retain(|row| row.base_offset() >= *from);
            let predecessor = match from {
                0 => state.producers.predecessor().clone(),
                _ => Stops::default(),
            };
            Some(Looked { row: PartitionRow::of(*id, state), producers, predecessor })
        };
        Ok(partitions.iter().map(looked).collect())
    }

    /// Looks at one partition.
    #[cfg(test)]
    pub fn look_at(&mut self, partition: DisklessPartitionId, from: i64) -> Result<Option<Looked>, StoreError> {
        Ok(self.look(&[(partition, from)])?.pop().flatten())
    }

    /// Reads what there is of these partitions from these offsets on.
    fn read(&mut self, partitions: Vec<(DisklessPartitionId, i64)>) -> Result<CommitFound, StoreError> {
        let found = self.store.begin(&CommitQuestion { partitions, objects: Vec::new() })?;
        let succeeded = self.succeed(&found.partitions);
        self.store.abandon();
        succeeded.map(|()| found)
    }

    /// Reads the partitions that a commit touches and that are not known, as after a commit of unknown outcome. Reads
    /// them piece by piece, but for the first piece, which the commit reads itself. Returns the rows of producers that
    /// were read.
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

    /// Commits these objects in this order; `now_ms` is the wall clock.
    ///
    /// # Errors
    /// Nothing is committed, or it is not known: the same is to be asked for again.
    pub fn commit(&mut self, objects: &[UploadedObject], now_ms: i64) -> Result<CommitAnswer, CommitError> {
        let touched = self.touched(objects);
        let since = self.known_to(&touched);
        // What is known stays if this fails: to read all of it once more may take longer than what has failed.
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
                // It was changed by the decision, and may be other than what is there.
                touched.iter().for_each(|partition| drop(self.known.remove(partition)));
                Err(error)
            }
        }
    }

    /// Retains `window` batches of each producer of these partitions; never fewer than before.
    ///
    /// # Errors
    /// Other brokers may not see it; the caller repeats the request.
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

    /// The partitions of a topic are gone, of which these were known here.
    ///
    /// # Errors
    /// As [`IndexStore::delete`].
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

    /// Removes a bounded piece of what is of no use any more; whether there may be more.
    ///
    /// # Errors
    /// It is to be tried again later.
    pub fn tidy(&mut self, runs_max: usize, now_ms: i64) -> Result<bool, CommitError> {
        if self.store.checkpoint() {
            return Ok(true);
        }
        let trim = self.trims.due();
        if let Some((partition, from)) = trim {
            self.trim(partition, from)?;
        }
        // In turns, since rows may come as fast as they are trimmed.
        let has_cleared = self.store.clear(runs_max, now_ms)?;
        Ok(trim.is_some() || has_cleared || self.expire_producers(now_ms)?)
    }

    /// Goes through a piece of a partition's rows of producers. Where it is not known now what is retained, nothing is
    /// done before the next one is due.
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

    /// Forgets producers of a partition that have written nothing there for `expiration_ms`, from now on: they may
    /// begin anywhere again. Before the first call none is forgotten.
    pub fn expire_producers_after(&mut self, expiration_ms: i64) {
        self.expiry.after_ms = expiration_ms;
    }

    /// Goes on with the round, if it is time for one; whether there may be more.
    fn expire_producers(&mut self, now_ms: i64) -> Result<bool, CommitError> {
        let Index { store, known, expiry, .. } = self;
        // A clock that was set back does not put it off.
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

    /// These partitions, each with the offset to which it is known.
    fn known_to(&self, touched: &BTreeSet<DisklessPartitionId>) -> Vec<(DisklessPartitionId, i64)> {
        let known_to = |id: &DisklessPartitionId| (*id, self.known.get(id).map_or(0, |state| state.next_offset));
        touched.iter().map(known_to).collect()
    }

    /// Within a transaction that has begun; `since` is what was known before anything was read.
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

    /// Lets producers of deleted partitions go on in those of the same names, as far as these are not known yet. To be
    /// called before what was appended there is taken over.
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
            let stops = producers.stops();
            let is_written = new.get(&id).copied().unwrap_or(true);
            self.known.entry(id).or_insert_with(|| PartitionState::new(window)).succeed(stops, is_written);
        }
        Ok(())
    }

    fn touched(&self, objects: &[UploadedObject]) -> BTreeSet<DisklessPartitionId> {
        objects.iter().flat_map(|object| &object.batches).map(|batch| batch.partition).collect()
    }

    /// Takes over what others have committed; forgets what is deleted, and returns what is left of the producers of
    /// that.
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
        // First, or what another has granted more would not be retained.
        for row in &partitions {
            let window = self.window_of(row.id).max(row.window);
            let state = self.known.entry(row.id).or_insert_with(|| PartitionState::new(window));
            state.window = state.window.max(window);
        }
        for row in producers {
            // Those of a deleted one stay for the next of its name.
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

/// Lets the producers of a deleted partition remember a batch of their newest row. A marker may be all that is left of
/// a producer which goes on in its epoch.
fn remember_last(producers: &mut Producers, batch: &AppendedBatch, written_ms: i64) {
    let &AppendedBatch { stamp, base_offset, timestamp, kind } = batch;
    if kind.is_marker() && stamp.base_sequence > 0 && !producers.knows(stamp.producer_id) {
        let last = Stamp { base_sequence: stamp.base_sequence - 1, record_count: 1, ..stamp };
        producers.append(&last, base_offset - 1, timestamp, written_ms, 1);
    }
    batch.remember(producers, written_ms, 1);
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

/// Numbers for objects from a random one on.
fn random_numbers() -> ObjectNumbers {
    let [first, second, third, fourth, ..] = random_id().0;
    ObjectNumbers::new(u32::from_be_bytes([first, second, third, fourth]))
}

/// Returns the error of a store whose contents cannot be right.
fn damaged(what: impl Into<String>) -> StoreError {
    StoreError::Damaged(what.into())
}
