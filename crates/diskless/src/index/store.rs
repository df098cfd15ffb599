//! Traits for the storage of the index. For a commit, an [`IndexStore`] locks and reads the state of partitions, and
//! then writes the result.
//!
//! A storage back end makes no decisions. Its calls block the thread.
//!
//! Invariants: a transaction locks its partitions in the order of their ids, from [`IndexStore::begin`] to its end, so
//! that no other broker commits to them. When a commit returns, it is on the disk.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use fullbore_rules::commit::{
    AppendedBatch, AppendedBatches, BatchRun, CommitDecision, DisklessPartitionId, ObjectId, ObjectState,
    PartitionState, last_stable_offset,
};
use fullbore_rules::sequence::{AbortedTransaction, NO_PRODUCER_ID, PRODUCERS_MAX, ProducerTails, Stamp};
use fullbore_wire::Uuid;

use super::packed::{FORGOTTEN_AT, forgotten_row, pack_producer};
use super::time_search::{RunPlace, RunTime};
use crate::append_clock::AppendClock;
use fullbore_db::{CommitError, StoreError};

/// How long after a failed DELETE [`IndexStore::unused`] returns the object again, in ms.
pub const DELETE_AGAIN_MS: i64 = 600_000;

/// A storage back end of the index.
pub trait IndexStore: Send {
    /// Begins a transaction that locks the partitions of `question`, and reads the state that a commit to them needs.
    /// Over a network, this takes one round trip. If `question` has no objects, the caller only reads, and no lock is
    /// needed.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the state cannot be read. No transaction is open then.
    fn begin(&mut self, question: &CommitQuestion) -> Result<CommitFound, StoreError>;

    /// Writes a decision and ends the transaction. Over a network, this takes one round trip.
    ///
    /// # Errors
    /// Returns [`CommitError::Refused`] if nothing was written, or [`CommitError::Unknown`] if the rows may have been
    /// written.
    fn commit(&mut self, write: &CommitWrite) -> Result<(), CommitError>;

    /// Ends the transaction without changes.
    fn abandon(&mut self);

    /// Does periodic work now, so that a later commit need not do it. Returns true if there was any work.
    fn checkpoint(&mut self) -> bool {
        false
    }

    /// Draws `count` ids for objects that will be uploaded, and registers those that are new to the index. Returns the
    /// registered ids.
    ///
    /// The ids are [`ObjectNumbers`](fullbore_rules::commit::ObjectNumbers). A new id is never the id of another
    /// object, even if this index is an older copy that lacks this object.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was registered or the outcome is unknown. The drawn ids are then never
    /// used.
    fn register(&mut self, count: usize, now_ms: i64) -> Result<Vec<ObjectId>, CommitError>;

    /// Creates those of the first `count` partitions of a topic that do not exist yet. Before that, deletes the
    /// partitions of other topics with the same name, as [`IndexStore::delete`] does. Returns the rows of all `count`
    /// partitions in order, or no rows if the topic is known to be deleted.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if no partition was created or the outcome is unknown.
    fn create(&mut self, name: &str, topic_id: Uuid, count: i32) -> Result<Vec<PartitionRow>, CommitError>;

    /// Makes deleted classic partitions the predecessors of the topic's partitions with the same numbers. Skips the
    /// partitions of the topic that already exist.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was changed or the outcome is unknown.
    fn succeed_classic(&mut self, name: &str, topic_id: Uuid, before: &[ClassicTails]) -> Result<(), CommitError>;

    /// Returns the last batches of each producer on the predecessors of these partitions. A predecessor is the last
    /// deleted partition of the same name. The rows are returned with the ids in `ids`, not with the ids of the
    /// predecessors. If a transaction is open, they are read within it.
    ///
    /// The rows of a deleted partition stay until the next partition of its name is deleted, or until their producers
    /// expire. When the next partition is deleted, it first gets copies of the rows of producers that have not written
    /// to it. If unknown producers may have written to the predecessor, one of the returned rows has
    /// [`NO_PRODUCER_ID`](fullbore_rules::sequence::NO_PRODUCER_ID).
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    fn predecessors(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<ProducerRow>, StoreError>;

    /// Deletes the partitions of a topic. `known` are those of its partitions that this broker knows.
    /// [`IndexStore::clear`] later removes the extents and producer rows.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was changed or the outcome is unknown.
    fn delete(&mut self, topic_id: Uuid, known: &[DisklessPartitionId]) -> Result<(), CommitError>;

    /// Moves each log start forward to the given offset, but at most to the next offset. A log start never moves back.
    /// Returns the new rows in the order of `moves`, with `None` for each deleted partition. [`IndexStore::clear`]
    /// later removes the records before the log starts.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was changed or the outcome is unknown.
    fn move_log_starts(
        &mut self,
        moves: &[(DisklessPartitionId, i64)],
    ) -> Result<Vec<Option<PartitionRow>>, CommitError>;

    /// Moves one log start; see [`IndexStore::move_log_starts`].
    ///
    /// # Errors
    /// Returns an error if [`IndexStore::move_log_starts`] does.
    fn move_log_start(&mut self, id: DisklessPartitionId, offset: i64) -> Result<Option<PartitionRow>, CommitError> {
        self.move_log_starts(&[(id, offset)]).map(|mut rows| rows.pop().flatten())
    }

    /// Removes at most `runs_max` extents that lie before a log start or belong to a deleted partition. When a
    /// partition has no such extents left, its aborted transactions before the log start are removed. If it is deleted,
    /// all its aborted transactions are removed, and the producer rows that no later partition of its name needs. An
    /// object that loses its last extent becomes unused. Returns true if there may be more to remove.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was removed or the outcome is unknown.
    fn clear(&mut self, runs_max: usize, now_ms: i64) -> Result<bool, CommitError>;

    /// Makes every broker retain at least `window` batches of each producer of these partitions. A standalone broker
    /// stores nothing, because its [`Index`](super::Index) has the number in memory.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was changed or the outcome is unknown.
    fn retain_batches(&mut self, partitions: &[DisklessPartitionId], window: usize) -> Result<(), CommitError>;

    /// Returns the offsets of up to `count` producer rows of a partition, in order. The first row is the first one at
    /// or after `offset`.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    fn producers_from(
        &mut self,
        id: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<ProducerRowPlace>, StoreError>;

    /// Removes the producer rows of a partition that have these offsets. The offset of a row is that of its first
    /// batch.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was removed or the outcome is unknown.
    fn remove_producers(&mut self, id: DisklessPartitionId, base_offsets: &[i64]) -> Result<(), CommitError>;

    /// Removes the rows of idle producers, those that have not written to a partition after `before_ms`. Each call
    /// handles one partition, the first one after `after` that has producer rows, and removes up to `producers_max`
    /// producers.
    ///
    /// Stores the largest removed id in [`PartitionRow::expired_to`]. Keeps producers with an open transaction, unless
    /// the partition is deleted. Returns the partition, and true if it may have more idle producers. Returns `None`
    /// after the last partition.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was removed or the outcome is unknown.
    fn expire_producers(
        &mut self,
        after: DisklessPartitionId,
        before_ms: i64,
        producers_max: usize,
    ) -> Result<Option<(DisklessPartitionId, bool)>, CommitError>;

    /// Marks objects as deleted and returns them. The caller must delete them from the store. Returns at most `count`
    /// objects of each of these kinds:
    ///
    /// - objects that have been unused for `for_ms` milliseconds;
    /// - objects that were registered an hour ago and not committed;
    /// - objects whose DELETE failed [`DELETE_AGAIN_MS`] ago;
    /// - objects that were marked a day ago, because a late upload may have written such an object again.
    ///
    /// A marked object can no longer be committed. It is returned again each day, until [`IndexStore::forget`] removes
    /// it from the index.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if no object was marked or the outcome is unknown.
    fn unused(&mut self, count: usize, for_ms: u64, now_ms: i64) -> Result<Vec<UnusedObject>, CommitError>;

    /// Records that the DELETE of these objects failed. After [`DELETE_AGAIN_MS`], [`IndexStore::unused`] returns them
    /// again, to this broker or to another one.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was recorded or the outcome is unknown.
    fn delete_failed(&mut self, ids: &[ObjectId], now_ms: i64) -> Result<(), CommitError>;

    /// Removes objects from the index whose second DELETE in the store has succeeded.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was forgotten or the outcome is unknown.
    fn forget(&mut self, ids: &[ObjectId]) -> Result<(), CommitError>;

    /// Returns the time by which the ages of records and producers are computed, in ms since 1970.
    ///
    /// If several brokers share a database, this is the earlier of `now_ms` and the database's clock. A broker whose
    /// clock is ahead would otherwise delete records and forget producers too early, for all brokers.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    fn judged_at(&mut self, now_ms: i64) -> Result<i64, StoreError> {
        Ok(now_ms)
    }

    /// Returns the clock that dates the records and producers of this broker. If several brokers share a database, the
    /// returned clock follows the database's clock.
    fn append_clock(&self) -> Arc<AppendClock> {
        Arc::default()
    }

    /// Returns the id of the object store that has the objects of the index. Also returns whether that store is in use.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    fn known_store(&mut self) -> Result<KnownStore, StoreError>;

    /// Records `store_id` as the store that has the objects of the index, unless another store is in use. Returns the
    /// id that is then recorded.
    ///
    /// # Errors
    /// Returns a [`CommitError`] if nothing was changed or the outcome is unknown.
    fn adopt_store(&mut self, store_id: &str) -> Result<String, CommitError>;
}

/// The last sequences of producers on a deleted classic partition.
#[derive(Clone, Debug)]
pub struct ClassicTails {
    /// The number of the partition within its topic.
    pub index: i32,
    /// The last record of each producer.
    pub last_records: Vec<Stamp>,
    /// A bound for unknown producers: any producer with a smaller id may also have written to the partition, even if it
    /// is not in `last_records`. 0 if there are no unknown producers.
    pub unknown_below: i64,
}

impl ClassicTails {
    /// Returns the last sequences on the predecessors of the first `count` partitions of a topic. Skips predecessors
    /// without producers.
    ///
    /// To keep the transaction small, returns at most [`PRODUCERS_MAX`] producers in total. If the producers of a
    /// predecessor would exceed this limit, all producers of this predecessor count as unknown.
    pub fn of_topic(count: i32, tails_before: impl Fn(i32) -> ProducerTails) -> Vec<ClassicTails> {
        let mut room = PRODUCERS_MAX;
        let of = |index| {
            let tails = tails_before(index);
            let is_kept = tails.len() <= room;
            room -= if is_kept { tails.len() } else { 0 };
            let last_records = tails.last_records().filter(|_| is_kept).collect();
            let unknown_below = if is_kept { tails.unknown_below() } else { i64::MAX };
            let of = ClassicTails { index, last_records, unknown_below };
            (!tails.is_empty()).then_some(of)
        };
        (0..count).filter_map(of).collect()
    }

    /// Returns true if no producer of the partition is known.
    pub fn are_unknown(&self) -> bool {
        self.last_records.is_empty()
    }

    /// Returns the rows to be stored for the producers, each as an offset, a producer id and packed batches.
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

/// Returns the topic id under which the classic predecessor of a topic is stored. No real topic has this id.
pub fn classic_before(topic_id: Uuid) -> Uuid {
    Uuid(topic_id.0.map(|byte| !byte))
}

/// The object store as the index knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownStore {
    /// The id of the store that has the objects of the index. `None` until a store is adopted.
    pub store_id: Option<String>,
    /// True if no other store may be adopted, because this store has objects, or because other brokers may be putting
    /// objects there.
    pub is_in_use: bool,
}

/// Maximum number of extents at which one call of [`RunSource::skip_old`] looks. On a slow disk each may need a read.
pub const OLD_RUNS_AT_ONCE: usize = 1_000;

/// Reads extents, partition rows and aborted transactions without waiting for commits. The calls block the thread.
pub trait RunSource: Send {
    /// Returns up to `count` consecutive extents of a partition. The first one is the last extent that begins at or
    /// before `offset`. If no extent does, the answer starts with the first extent after `offset`.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    fn runs_from(
        &mut self,
        partition: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<BatchRun>, StoreError>;

    /// Returns the last extent of each partition that begins at or before the given offset, in the order of `places`.
    /// Over a network, this takes one round trip. Returns `None` where no extent does.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    fn last_runs(&mut self, places: &[RunPlace]) -> Result<Vec<Option<BatchRun>>, StoreError>;

    /// Returns the times of the extents that [`RunSource::last_runs`] returns, without their batches.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    fn last_times(&mut self, places: &[RunPlace]) -> Result<Vec<Option<RunTime>>, StoreError>;

    /// Looks for the first extent that begins at or after `from` and may have a record of `since_ms` or later. A record
    /// without a timestamp is as old as its object. Looks at no more than [`OLD_RUNS_AT_ONCE`] extents, without their
    /// batches. Returns the base offset of the extent. If all of them are too old, returns that of the last one.
    /// Returns `None` if no extent begins there.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    fn skip_old(&mut self, partition: DisklessPartitionId, from: i64, since_ms: i64)
    -> Result<Option<i64>, StoreError>;

    /// Returns the current rows of these partitions. Partitions that do not exist are left out.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    fn partitions(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<PartitionRow>, StoreError>;

    /// Returns the aborted transactions with records in `offsets`. If `count` or more of their markers are in
    /// `offsets`, the answer covers only the range up to the `count`-th marker. It includes transactions with records
    /// in the covered range whose markers come after it.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read.
    fn aborted(
        &mut self,
        partition: DisklessPartitionId,
        offsets: Range<i64>,
        count: usize,
    ) -> Result<AbortedTransactions, StoreError>;
}

/// The aborted transactions in a range of offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortedTransactions {
    /// The end of the covered range: either the requested end, or the offset after the `count`-th marker.
    pub end: i64,
    /// The transactions with records in the range, ordered by their first offsets.
    pub transactions: Vec<AbortedTransaction>,
}

impl AbortedTransactions {
    /// Creates the answer for a range up to `end`. If `count` or more of the `transactions` have markers before `end`,
    /// the range ends after the `count`-th marker. All other `transactions` are open at the end of the range.
    pub fn new(end: i64, mut transactions: Vec<AbortedTransaction>, count: usize) -> AbortedTransactions {
        transactions.sort_unstable_by_key(|of| of.last_offset);
        let last = count.checked_sub(1).and_then(|at| transactions.get(at)).filter(|last| last.last_offset < end);
        let end = last.map_or(end, |last| last.last_offset.saturating_add(1));
        transactions.sort_unstable_by_key(|of| of.first_offset);
        AbortedTransactions { end, transactions }
    }
}

/// Maximum result of [`length_bits`]. Longer transactions get this value too, because `1 << bits` must fit into an
/// offset.
pub const LENGTH_BITS_MAX: u32 = 62;

/// Returns how many bits the length of a transaction has, in offsets. If a transaction with `bits` bits is open at an
/// offset, it begins less than `1 << bits` offsets before this offset. One search for each value of `bits` therefore
/// finds all open transactions, and reads only rows that begin in this range.
pub fn length_bits(of: &AbortedTransaction) -> u32 {
    let length = of.last_offset.saturating_sub(of.first_offset).max(0).unsigned_abs();
    (u64::BITS - length.leading_zeros()).min(LENGTH_BITS_MAX)
}

/// Reports the changes that other brokers have committed. The calls block the thread.
pub trait ChangeSource: Send {
    /// Returns the rows of partitions that other brokers have changed since the previous call. The first call returns
    /// all rows whose last change was made by another broker. A row may be returned twice.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the index cannot be read. A later call then returns the changes.
    fn changed(&mut self) -> Result<Vec<PartitionRow>, StoreError>;
}

/// An object that must be deleted from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnusedObject {
    pub id: ObjectId,
    /// True if the object was marked as deleted a day ago, so that the next DELETE is its second one. After this
    /// DELETE, the caller removes the object from the index.
    pub is_again: bool,
}

/// The request for the state that a commit needs.
#[derive(Clone, Debug)]
pub struct CommitQuestion {
    /// The partitions, ordered by id. For each one, the offset before which the caller already knows the producers'
    /// rows.
    pub partitions: Vec<(DisklessPartitionId, i64)>,
    /// The objects to commit. Empty if the caller only reads the state.
    pub objects: Vec<ObjectId>,
}

/// The state on which the decision about a commit is based.
#[derive(Clone, Debug, Default)]
pub struct CommitFound {
    /// The rows of those partitions that exist.
    pub partitions: Vec<PartitionRow>,
    /// The rows of producers that begin at or after the offsets in [`CommitQuestion::partitions`], grouped by partition
    /// and ordered by first offset.
    pub producers: Vec<ProducerRow>,
    /// The states of those objects that exist.
    pub objects: HashMap<ObjectId, ObjectState>,
}

/// The rows that a commit writes.
#[derive(Clone, Debug)]
pub struct CommitWrite {
    /// The rows of the partitions after the commit.
    pub partitions: Vec<PartitionRow>,
    pub decision: CommitDecision,
    /// The time of the commit in ms, by the append clock ([`IndexStore::append_clock`]).
    pub now_ms: i64,
}

/// The row of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionRow {
    pub id: DisklessPartitionId,
    pub log_start: i64,
    pub next_offset: i64,
    pub bytes: i64,
    /// The largest timestamp in ms, or -1 before the first batch.
    pub max_timestamp: i64,
    pub has_forgotten: bool,
    /// The largest number of batches that any broker of the cluster retains of each producer. 0 if no broker has stored
    /// its number.
    pub window: usize,
    /// The largest id of a producer that was removed because it was idle, or -1 if none was removed.
    pub expired_to: i64,
    /// The first offset of the oldest open transaction, or `None` if no transaction is open. This offset may be before
    /// the log start.
    pub first_unstable: Option<i64>,
    /// The offset of the newest marker that aborted a transaction, or -1 if there is none. No record after this marker
    /// is aborted.
    pub aborted_to: i64,
}

impl PartitionRow {
    /// Returns the offset before which all transactions have ended.
    pub fn last_stable_offset(&self) -> i64 {
        last_stable_offset(self.first_unstable, self.log_start, self.next_offset)
    }

    /// Returns the row for a partition with this state.
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

    /// Copies the row into the state of a partition. Before that, the caller must have updated the producers and open
    /// transactions of the state.
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

/// The batches of one producer that a single commit has appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerRow {
    pub batches: AppendedBatches,
    /// The time of the commit in ms, by the append clock of the broker. The producer's idle time begins then.
    pub written_ms: i64,
}

/// The offsets of a producer's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerRowPlace {
    /// The offset of the first batch in the row.
    pub base_offset: i64,
    /// The offset of the last batch in the row.
    pub last_base_offset: i64,
    pub producer_id: i64,
}

impl ProducerRow {
    /// Returns the offset of the first batch, by which the rows are ordered.
    pub fn base_offset(&self) -> i64 {
        self.batches.batches.first().map_or(0, |batch| batch.base_offset)
    }
}
