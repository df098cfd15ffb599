//! The seam to a back end of the index: the state that a commit is decided on, under locks, and the commit.
//!
//! A back end decides nothing. Its calls block.
//!
//! Invariants: between [`IndexStore::begin`] and its end nobody else commits to the same partitions, which are locked
//! in the order of their ids; a commit that returned is on the disk.

use std::collections::HashMap;
use std::ops::Range;

use fullbore_rules::commit::{
    AppendedBatch, AppendedBatches, BatchRun, CommitDecision, DisklessPartitionId, ObjectId, ObjectState,
    PartitionState, last_stable_offset,
};
use fullbore_rules::sequence::{AbortedTransaction, NO_PRODUCER_ID, PRODUCERS_MAX, Stamp, Stops};
use fullbore_wire::Uuid;

use super::packed::{FORGOTTEN_AT, forgotten_row, pack_producer};
use fullbore_db::{CommitError, StoreError};

/// Time after which an object whose DELETE failed is given again, ms.
pub const DELETE_AGAIN_MS: i64 = 600_000;

/// A back end of the index.
pub trait IndexStore: Send {
    /// Begins a transaction with these partitions locked, and reads what a commit to them is decided on. In one round
    /// trip where there is one to be made. Without objects nothing will be committed, and nothing need be locked.
    ///
    /// # Errors
    /// There is no transaction then.
    fn begin(&mut self, question: &CommitQuestion) -> Result<CommitFound, StoreError>;

    /// Writes what was decided, and ends the transaction. In one round trip, too.
    ///
    /// # Errors
    /// [`CommitError::Unknown`] where it may have been written.
    fn commit(&mut self, write: &CommitWrite) -> Result<(), CommitError>;

    /// Ends the transaction; nothing was written.
    fn abandon(&mut self);

    /// Does between commits what one of them would have to do otherwise, if that is due; whether it was.
    fn checkpoint(&mut self) -> bool {
        false
    }

    /// Registers objects that are about to be uploaded, at most
    /// `count`, and returns their numbers: [`ObjectNumbers`](fullbore_rules::commit::ObjectNumbers) that no other
    /// object has, also where this index is an older copy. Fewer where some that were drawn are taken.
    ///
    /// # Errors
    /// None is registered, or that is not known; those are never used then.
    fn register(&mut self, count: usize, now_ms: i64) -> Result<Vec<ObjectId>, CommitError>;

    /// Makes the partitions of a topic as far as they are missing: the first `count`, in their order. None where it is
    /// known that the topic is deleted. Those of another topic of its name are gone, as by [`IndexStore::delete`].
    ///
    /// # Errors
    /// None is made, or that is not known.
    fn create(&mut self, topic: (&str, Uuid), count: i32) -> Result<Vec<PartitionRow>, CommitError>;

    /// Enters deleted classic partitions of a topic's name as the ones before its partitions of the same numbers, where
    /// these are not made yet.
    ///
    /// # Errors
    /// Nothing is changed, or that is not known.
    fn succeed_classic(&mut self, topic: (&str, Uuid), before: &[ClassicStops]) -> Result<(), CommitError>;

    /// Last batches of each producer on the deleted partition of the same name, as rows of these partitions; in the
    /// transaction, if there is one. A partition leaves that behind until the next one of its name is deleted, or its
    /// producers have expired; to the next one it leaves its producers that have written nothing there. Where others
    /// may have written, one row is of [`NO_PRODUCER_ID`](fullbore_rules::sequence::NO_PRODUCER_ID).
    ///
    /// # Errors
    /// It is not known.
    fn predecessors(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<ProducerRow>, StoreError>;

    /// The partitions of a topic are gone, of which these were known here; what they have is left to
    /// [`IndexStore::clear`].
    ///
    /// # Errors
    /// Nothing is changed, or that is not known.
    fn delete(&mut self, topic_id: Uuid, known: &[DisklessPartitionId]) -> Result<(), CommitError>;

    /// Moves the log starts of partitions to these offsets, which are at most the next ones, and never back. Returns
    /// their rows then, in the order of `moves`, with `None` for one that is gone. Records before them are left to
    /// [`IndexStore::clear`].
    ///
    /// # Errors
    /// Nothing is changed, or that is not known.
    fn move_log_starts(
        &mut self,
        moves: &[(DisklessPartitionId, i64)],
    ) -> Result<Vec<Option<PartitionRow>>, CommitError>;

    /// Moves one log start as [`IndexStore::move_log_starts`] does.
    ///
    /// # Errors
    /// The same.
    fn move_log_start(&mut self, id: DisklessPartitionId, offset: i64) -> Result<Option<PartitionRow>, CommitError> {
        self.move_log_starts(&[(id, offset)]).map(|mut rows| rows.pop().flatten())
    }

    /// Removes at most `runs_max` runs of which nothing may be read any more, and the aborted transactions before them.
    /// Returns true if there may be more. An object without runs is not used from then on.
    ///
    /// # Errors
    /// A store that removed nothing, or gave no answer.
    fn clear(&mut self, runs_max: usize, now_ms: i64) -> Result<bool, CommitError>;

    /// Retains at least `window` batches of each producer of these partitions, whichever broker commits; never fewer
    /// than before. A single broker keeps that itself.
    ///
    /// # Errors
    /// Nothing is changed, or that is not known.
    fn retain_batches(&mut self, partitions: &[DisklessPartitionId], window: usize) -> Result<(), CommitError>;

    /// Returns the places of a partition's producer rows from an offset on, in the order of their offsets, `count` at
    /// most.
    ///
    /// # Errors
    /// The index cannot be read.
    fn producers_from(
        &mut self,
        id: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<ProducerRowPlace>, StoreError>;

    /// Removes the rows of producers of a partition that begin at these offsets.
    ///
    /// # Errors
    /// A store that removed nothing, or gave no answer.
    fn remove_producers(&mut self, id: DisklessPartitionId, base_offsets: &[i64]) -> Result<(), CommitError>;

    /// Removes the rows of producers of one partition, the first behind
    /// `after`, that have written nothing there after `before_ms`: of at most `producers_max` of them. Keeps the
    /// largest of their ids on record. Producers with an open transaction stay, unless the partition is deleted.
    /// Returns the partition, and true if it may have more of them; `None` behind the last partition.
    ///
    /// # Errors
    /// A store that removed nothing, or gave no answer.
    fn expire_producers(
        &mut self,
        after: DisklessPartitionId,
        before_ms: i64,
        producers_max: usize,
    ) -> Result<Option<(DisklessPartitionId, bool)>, CommitError>;

    /// Takes at most `count` objects out of those that may be committed, unused for `for_ms` milliseconds or for good:
    /// the caller deletes them from the store. Each is returned again a day later, since a late upload may have brought
    /// it back, and then every day until it is forgotten.
    ///
    /// # Errors
    /// A store that took none, or gave no answer.
    fn unused(&mut self, count: usize, for_ms: u64, now_ms: i64) -> Result<Vec<UnusedObject>, CommitError>;

    /// Notes objects whose DELETE failed: [`IndexStore::unused`] gives them again after [`DELETE_AGAIN_MS`], also after
    /// a restart and to another broker.
    ///
    /// # Errors
    /// None is noted, or that is not known.
    fn delete_failed(&mut self, ids: &[ObjectId], now_ms: i64) -> Result<(), CommitError>;

    /// Forgets objects that were deleted from the store a second time.
    ///
    /// # Errors
    /// None is forgotten, or that is not known.
    fn forget(&mut self, ids: &[ObjectId]) -> Result<(), CommitError>;

    /// Returns the time by which what is old is deleted, ms since 1970: that of the caller, and where several brokers
    /// share the index no later than its clock. One broker whose clock is ahead would delete what all of them have.
    ///
    /// # Errors
    /// It is not known.
    fn judged_at(&mut self, now_ms: i64) -> Result<i64, StoreError> {
        Ok(now_ms)
    }

    /// In which object store the objects are.
    ///
    /// # Errors
    /// It is not known.
    fn known_store(&mut self) -> Result<KnownStore, StoreError>;

    /// Notes the number of the store with the objects, unless another one is in use; returns the number in use.
    ///
    /// # Errors
    /// Nothing is changed, or that is not known.
    fn adopt_store(&mut self, store_id: &str) -> Result<String, CommitError>;
}

/// Stops of producers on a deleted classic partition.
#[derive(Clone, Debug)]
pub struct ClassicStops {
    /// The partition's number within its topic.
    pub index: i32,
    /// The last record of each producer.
    pub last_records: Vec<Stamp>,
    /// Bound of the ids of other producers that may have written to it as well; 0 if there are none.
    pub unknown_below: i64,
}

impl ClassicStops {
    /// Returns the stops of the partitions before the first
    /// `count` of a topic, where there were any. Those of producers past [`PRODUCERS_MAX`] count as missing, so that no
    /// transaction is larger.
    pub fn of_topic(count: i32, stops_before: impl Fn(i32) -> Stops) -> Vec<ClassicStops> {
        let mut room = PRODUCERS_MAX;
        let of = |index| {
            let stops = stops_before(index);
            let is_kept = stops.len() <= room;
            room -= if is_kept { stops.len() } else { 0 };
            let last_records = stops.last_records().filter(|_| is_kept).collect();
            let unknown_below = if is_kept { stops.unknown_below() } else { i64::MAX };
            let of = ClassicStops { index, last_records, unknown_below };
            (!stops.is_empty()).then_some(of)
        };
        (0..count).filter_map(of).collect()
    }

    /// Returns true if no producer is known.
    pub fn are_unknown(&self) -> bool {
        self.last_records.is_empty()
    }

    /// Returns the rows of its producers: offset, producer id and batches of each.
    pub fn rows(&self) -> impl Iterator<Item = (i64, i64, Vec<u8>)> {
        let bound = self.unknown_below;
        let unknown = (bound > 0).then(|| (FORGOTTEN_AT, NO_PRODUCER_ID, forgotten_row(bound)));
        let known = (0..).zip(&self.last_records);
        let known = known.map(|(offset, last)| {
            (offset, last.producer_id, pack_producer(&[AppendedBatch::plain(*last, offset, -1)]))
        });
        unknown.into_iter().chain(known)
    }
}

/// Returns the id of a classic topic that was deleted before this one: no topic has it.
pub fn classic_before(topic_id: Uuid) -> Uuid {
    Uuid(topic_id.0.map(|byte| !byte))
}

/// Object store, as the index has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownStore {
    /// The number of the one that was used so far.
    pub store_id: Option<String>,
    /// True if no other store will do: objects are in it, or other brokers may be about to put some there.
    pub is_in_use: bool,
}

/// Reads where records are, beside the commits. Its calls block.
pub trait RunSource: Send {
    /// The run with this offset and those behind it, `count` at most.
    ///
    /// # Errors
    /// The index cannot be read.
    fn runs_from(
        &mut self,
        partition: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<BatchRun>, StoreError>;

    /// The rows of these partitions as they are now, of those that there are.
    ///
    /// # Errors
    /// The index cannot be read.
    fn partitions(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<PartitionRow>, StoreError>;

    /// Returns the aborted transactions of `offsets`, as [`AbortedTransactions`] has them: `count` whose markers are
    /// there, and those that are open where the answer ends.
    ///
    /// # Errors
    /// The index cannot be read.
    fn aborted(
        &mut self,
        partition: DisklessPartitionId,
        offsets: Range<i64>,
        count: usize,
    ) -> Result<AbortedTransactions, StoreError>;
}

/// Aborted transactions of a range of offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortedTransactions {
    /// The offset after the range: the end that was asked for, or the one after the last marker that was counted.
    pub end: i64,
    /// Every transaction with an offset in the range, in the order of their first offsets.
    pub transactions: Vec<AbortedTransaction>,
}

impl AbortedTransactions {
    /// Sorts `transactions`: those with a marker before `end`, the first `count` of them, and those that were open
    /// after the last of these.
    pub fn new(end: i64, mut transactions: Vec<AbortedTransaction>, count: usize) -> AbortedTransactions {
        transactions.sort_unstable_by_key(|of| of.last_offset);
        let last = count.checked_sub(1).and_then(|at| transactions.get(at)).filter(|last| last.last_offset < end);
        let end = last.map_or(end, |last| last.last_offset.saturating_add(1));
        transactions.sort_unstable_by_key(|of| of.first_offset);
        AbortedTransactions { end, transactions }
    }
}

/// The largest value of [`length_bits`], also of longer transactions: a length of as many bits is added to an offset.
pub const LENGTH_BITS_MAX: u32 = 62;

/// Returns how many bits the length of a transaction has. Of those with one value, the ones that are open at an offset
/// begin within twice their length before it, so that an index finds them.
pub fn length_bits(of: &AbortedTransaction) -> u32 {
    let length = of.last_offset.saturating_sub(of.first_offset).max(0).unsigned_abs();
    (u64::BITS - length.leading_zeros()).min(LENGTH_BITS_MAX)
}

/// Tells what other brokers change in the index. Its calls block.
pub trait ChangeSource: Send {
    /// The rows of partitions that others have changed since the last call; with the first one, of all that they ever
    /// changed last. A row may come twice.
    ///
    /// # Errors
    /// The index cannot be read; what was changed meanwhile is told by a later call.
    fn changed(&mut self) -> Result<Vec<PartitionRow>, StoreError>;
}

/// An object that is to be deleted from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnusedObject {
    pub id: ObjectId,
    /// True if this is the second deletion, a day after the first: the caller forgets the object after it.
    pub is_again: bool,
}

/// Request of the state for a commit.
#[derive(Clone, Debug)]
pub struct CommitQuestion {
    /// Each with the offset up to which its producers' rows are known, in the order of their ids.
    pub partitions: Vec<(DisklessPartitionId, i64)>,
    pub objects: Vec<ObjectId>,
}

/// State that a commit is decided on.
#[derive(Clone, Debug, Default)]
pub struct CommitFound {
    /// Rows of the partitions that exist.
    pub partitions: Vec<PartitionRow>,
    /// Rows past what was known, by partition in the order of their first offsets.
    pub producers: Vec<ProducerRow>,
    /// States of the objects that exist.
    pub objects: HashMap<ObjectId, ObjectState>,
}

/// Rows of a commit.
#[derive(Clone, Debug)]
pub struct CommitWrite {
    /// Rows of the partitions after the commit.
    pub partitions: Vec<PartitionRow>,
    pub decision: CommitDecision,
    /// The wall clock in ms.
    pub now_ms: i64,
}

/// A partition's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionRow {
    pub id: DisklessPartitionId,
    pub log_start: i64,
    pub next_offset: i64,
    pub bytes: i64,
    /// In ms; -1 before the first batch.
    pub max_timestamp: i64,
    pub has_forgotten: bool,
    /// The largest number of batches that a broker of the cluster retains of each producer; 0 where only one broker
    /// commits.
    pub window: usize,
    /// The largest id of a producer that was removed for its silence; -1 if none was.
    pub expired_to: i64,
    /// The first offset of the eldest open transaction, which the log start may have passed.
    pub first_unstable: Option<i64>,
    /// The offset of the newest marker that has aborted a transaction; -1 if none has. Nothing from there on is
    /// aborted.
    pub aborted_to: i64,
}

impl PartitionRow {
    /// Returns the offset before which every transaction has ended.
    pub fn last_stable_offset(&self) -> i64 {
        last_stable_offset(self.first_unstable, self.log_start, self.next_offset)
    }

    /// That of a partition in this state.
    pub fn of(id: DisklessPartitionId, state: &PartitionState) -> PartitionRow {
        let &PartitionState { log_start, next_offset, bytes, max_timestamp, has_forgotten, window, expired_to, .. } =
            state;
        let (first_unstable, aborted_to) = (state.first_unstable(), state.aborted_to);
        PartitionRow {
            id,
            log_start,
            next_offset,
            bytes,
            max_timestamp,
            has_forgotten,
            window,
            expired_to,
            first_unstable,
            aborted_to,
        }
    }

    /// Replaces the state of a partition, whose producers are up to date, by that of the row. The open transactions are
    /// those of the producers.
    pub fn put_into(self, state: &mut PartitionState) {
        let PartitionRow { log_start, next_offset, bytes, max_timestamp, has_forgotten, window, expired_to, .. } = self;
        (state.log_start, state.next_offset, state.bytes) = (log_start, next_offset, bytes);
        (state.max_timestamp, state.has_forgotten) = (max_timestamp, has_forgotten || state.has_forgotten);
        state.window = state.window.max(window);
        state.expired_to = state.expired_to.max(expired_to);
        state.aborted_to = state.aborted_to.max(self.aborted_to);
        state.note_read();
    }
}

/// A row of what one commit has appended of one producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerRow {
    pub batches: AppendedBatches,
    /// When, in ms of the wall clock, from which the producer's idleness counts.
    pub written_ms: i64,
}

/// Place of a producer's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerRowPlace {
    /// The offset of its first batch.
    pub base_offset: i64,
    /// The offset of its last batch.
    pub last_base_offset: i64,
    pub producer_id: i64,
}

impl ProducerRow {
    /// The first offset of its batches, in whose order rows are.
    pub fn base_offset(&self) -> i64 {
        self.batches.batches.first().map_or(0, |batch| batch.base_offset)
    }
}
