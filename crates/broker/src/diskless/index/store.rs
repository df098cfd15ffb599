//! Traits of the index's storage. An [`IndexStore`] reads, under locks, the state for a commit, and writes the commit.
//!
//! A back end makes no decisions. Its calls block the thread.
//!
//! Invariants: a transaction locks its partitions, in the order of their ids, from [`IndexStore::begin`] to its end, so
//! that no other broker commits to them. A commit that has returned is on the disk.

use std::collections::HashMap;
use std::ops::Range;

use fullbore_rules::commit::{
    AppendedBatch, AppendedBatches, BatchRun, CommitDecision, DisklessPartitionId, ObjectId, ObjectState,
    PartitionState, last_stable_offset,
};
use fullbore_rules::sequence::{AbortedTransaction, NO_PRODUCER_ID, PRODUCERS_MAX, ProducerTails, Stamp};
use fullbore_wire::Uuid;

use super::packed::{FORGOTTEN_AT, forgotten_row, pack_producer};
use fullbore_db::{CommitError, StoreError};

/// Shortest time after a failed DELETE before the object is returned again, in ms.
pub const DELETE_AGAIN_MS: i64 = 600_000;

/// Back end of the index.
pub trait IndexStore: Send {
    /// Begins a transaction that locks the partitions of `question`, and reads the state for a commit to them. Takes
    /// one round trip over a network. If `question` has no objects, no commit follows: the caller only reads, and no
    /// lock is needed.
    ///
    /// # Errors
    /// [`StoreError`] if the state cannot be read; no transaction is open then.
    fn begin(&mut self, question: &CommitQuestion) -> Result<CommitFound, StoreError>;

    /// Writes a decision and ends the transaction, in one round trip over a network.
    ///
    /// # Errors
    /// [`CommitError::Refused`] if nothing was written, [`CommitError::Unknown`] if the rows may have been written.
    fn commit(&mut self, write: &CommitWrite) -> Result<(), CommitError>;

    /// Ends the transaction without changes.
    fn abandon(&mut self);

    /// Carries out due work that a later commit would otherwise have to do. Returns true if there was any.
    fn checkpoint(&mut self) -> bool {
        false
    }

    /// Draws `count` ids for objects that will be uploaded, and registers those that no object in the index has yet.
    /// Returns the registered ids. The ids are [`ObjectNumbers`](fullbore_rules::commit::ObjectNumbers): even if this
    /// index is an older copy, none is the id of an object that the copy lacks.
    ///
    /// # Errors
    /// [`CommitError`] if none was registered, or the outcome is unknown. The drawn ids are then never used.
    fn register(&mut self, count: usize, now_ms: i64) -> Result<Vec<ObjectId>, CommitError>;

    /// Creates those of the topic's first `count` partitions that do not exist yet. First deletes the partitions of
    /// other topics with the same name, as [`IndexStore::delete`] does. Returns the rows of all `count` partitions in
    /// order; no rows if the topic is known to be deleted.
    ///
    /// # Errors
    /// [`CommitError`] if none was created, or the outcome is unknown.
    fn create(&mut self, topic: (&str, Uuid), count: i32) -> Result<Vec<PartitionRow>, CommitError>;

    /// Records deleted classic partitions as the predecessors of the topic's partitions with the same numbers. Has no
    /// effect for a partition of the topic that exists already.
    ///
    /// # Errors
    /// [`CommitError`] if nothing was changed, or the outcome is unknown.
    fn succeed_classic(&mut self, topic: (&str, Uuid), before: &[ClassicTails]) -> Result<(), CommitError>;

    /// Returns the last batches of each producer on the predecessor of each partition. The predecessor is the deleted
    /// partition of the same name; its rows are returned with the id from `ids`. Reads within the open transaction, if
    /// there is one.
    ///
    /// The rows of a deleted partition stay until the next partition of its name is deleted, or until their producers
    /// have expired. That deletion carries over the rows of producers that have not written to the next partition. If
    /// unknown producers may have written to the predecessor, one row has
    /// [`NO_PRODUCER_ID`](fullbore_rules::sequence::NO_PRODUCER_ID).
    ///
    /// # Errors
    /// [`StoreError`] if the index cannot be read.
    fn predecessors(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<ProducerRow>, StoreError>;

    /// Deletes the partitions of a topic; `known` are those of them that this broker knows. Extents and producer rows
    /// are left to [`IndexStore::clear`].
    ///
    /// # Errors
    /// [`CommitError`] if nothing was changed, or the outcome is unknown.
    fn delete(&mut self, topic_id: Uuid, known: &[DisklessPartitionId]) -> Result<(), CommitError>;

    /// Moves each partition's log start forward to the given offset, but not past the next offset. A log start that is
    /// past the offset already stays. Returns the new rows in the order of `moves`, with `None` for a deleted
    /// partition. Records before the log starts are left to [`IndexStore::clear`].
    ///
    /// # Errors
    /// [`CommitError`] if nothing was changed, or the outcome is unknown.
    fn move_log_starts(
        &mut self,
        moves: &[(DisklessPartitionId, i64)],
    ) -> Result<Vec<Option<PartitionRow>>, CommitError>;

    /// Moves one log start as [`IndexStore::move_log_starts`] does.
    ///
    /// # Errors
    /// [`CommitError`] if nothing was changed, or the outcome is unknown.
    fn move_log_start(&mut self, id: DisklessPartitionId, offset: i64) -> Result<Option<PartitionRow>, CommitError> {
        self.move_log_starts(&[(id, offset)]).map(|mut rows| rows.pop().flatten())
    }

    /// Removes at most `runs_max` extents that lie before a log start or belong to a deleted partition. After the last
    /// of these, removes the aborted transactions there. An object that loses its last extent is unused from then on.
    /// Returns true if there may be more to remove.
    ///
    /// # Errors
    /// [`CommitError`] if nothing was removed, or the outcome is unknown.
    fn clear(&mut self, runs_max: usize, now_ms: i64) -> Result<bool, CommitError>;

    /// Raises the number of batches that every broker retains of each producer of these partitions to at least
    /// `window`. A standalone broker stores nothing here, because its [`Index`](super::Index) has the number in memory.
    ///
    /// # Errors
    /// [`CommitError`] if nothing was changed, or the outcome is unknown.
    fn retain_batches(&mut self, partitions: &[DisklessPartitionId], window: usize) -> Result<(), CommitError>;

    /// Returns the positions of at most `count` producer rows of a partition, from `offset` on, in the order of their
    /// offsets.
    ///
    /// # Errors
    /// [`StoreError`] if the index cannot be read.
    fn producers_from(
        &mut self,
        id: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<ProducerRowPlace>, StoreError>;

    /// Removes the producer rows of a partition whose first batches have these offsets.
    ///
    /// # Errors
    /// [`CommitError`] if nothing was removed, or the outcome is unknown.
    fn remove_producers(&mut self, id: DisklessPartitionId, base_offsets: &[i64]) -> Result<(), CommitError>;

    /// Removes the producer rows of idle producers, which have not written to the partition after `before_ms`. One call
    /// handles the first partition after `after` that has producer rows, and removes at most `producers_max` producers.
    /// Keeps the largest removed id in [`PartitionRow::expired_to`]. A producer with an open transaction stays, unless
    /// the partition is deleted. Returns the partition, and true if it may have more idle producers; `None` after the
    /// last partition.
    ///
    /// # Errors
    /// [`CommitError`] if nothing was removed, or the outcome is unknown.
    fn expire_producers(
        &mut self,
        after: DisklessPartitionId,
        before_ms: i64,
        producers_max: usize,
    ) -> Result<Option<(DisklessPartitionId, bool)>, CommitError>;

    /// Marks objects as deleted, and returns them for deletion from the store. Returns at most `count` of each of four
    /// kinds. The first two are objects unused for `for_ms` milliseconds, and objects registered an hour ago and not
    /// committed. The others are objects whose DELETE failed [`DELETE_AGAIN_MS`] ago, and objects marked a day ago,
    /// which a late upload may have written again. A marked object can no longer be committed, and is returned each day
    /// until it is forgotten.
    ///
    /// # Errors
    /// [`CommitError`] if none was taken, or the outcome is unknown.
    fn unused(&mut self, count: usize, for_ms: u64, now_ms: i64) -> Result<Vec<UnusedObject>, CommitError>;

    /// Notes objects whose DELETE failed. [`IndexStore::unused`] returns them again after [`DELETE_AGAIN_MS`], even
    /// after a restart and to another broker.
    ///
    /// # Errors
    /// [`CommitError`] if none was noted, or the outcome is unknown.
    fn delete_failed(&mut self, ids: &[ObjectId], now_ms: i64) -> Result<(), CommitError>;

    /// Forgets objects that were deleted from the store a second time.
    ///
    /// # Errors
    /// [`CommitError`] if none was forgotten, or the outcome is unknown.
    fn forget(&mut self, ids: &[ObjectId]) -> Result<(), CommitError>;

    /// Returns the time, in ms since 1970, by which the ages of records and producers are computed. This is `now_ms`,
    /// but no later than the clock of a database that several brokers share. Otherwise a broker whose clock is ahead
    /// would delete records, and forget producers, too early for all brokers.
    ///
    /// # Errors
    /// [`StoreError`] if the index cannot be read.
    fn judged_at(&mut self, now_ms: i64) -> Result<i64, StoreError> {
        Ok(now_ms)
    }

    /// Returns the id of the object store that has the objects of the index, and whether that store is in use.
    ///
    /// # Errors
    /// [`StoreError`] if the index cannot be read.
    fn known_store(&mut self) -> Result<KnownStore, StoreError>;

    /// Notes `store_id` as the store that has the objects of the index, unless another store is in use. Returns the id
    /// that is noted then.
    ///
    /// # Errors
    /// [`CommitError`] if nothing was changed, or the outcome is unknown.
    fn adopt_store(&mut self, store_id: &str) -> Result<String, CommitError>;
}

/// Last sequences of producers on a deleted classic partition.
#[derive(Clone, Debug)]
pub struct ClassicTails {
    /// Number of the partition within its topic.
    pub index: i32,
    /// Last record of each producer.
    pub last_records: Vec<Stamp>,
    /// Exclusive upper bound of the ids of unknown producers that may also have written; 0 if there are no such
    /// producers.
    pub unknown_below: i64,
}

impl ClassicTails {
    /// Returns the last sequences on the predecessors of the first `count` partitions of a topic; predecessors without
    /// producers are left out. To bound the transaction, at most [`PRODUCERS_MAX`] producers are returned in all: if
    /// the producers of a predecessor would exceed that, all of them count as unknown.
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

    /// Returns true if no producer is known.
    pub fn are_unknown(&self) -> bool {
        self.last_records.is_empty()
    }

    /// Returns the rows of the producers: offset, producer id and batches of each.
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

/// Returns the id under which the classic predecessor of a topic is stored. No existing topic has such an id.
pub fn classic_before(topic_id: Uuid) -> Uuid {
    Uuid(topic_id.0.map(|byte| !byte))
}

/// Object store as the index knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownStore {
    /// Id of the store with the objects; `None` before the first adoption.
    pub store_id: Option<String>,
    /// True if no other store may be used, because this one has objects, or because other brokers may be putting some.
    pub is_in_use: bool,
}

/// Reads of extents, partition rows and aborted transactions that do not wait for commits. Its calls block the thread.
pub trait RunSource: Send {
    /// Returns at most `count` extents of a partition: the last one that begins at or before `offset`, and those after
    /// it.
    ///
    /// # Errors
    /// [`StoreError`] if the index cannot be read.
    fn runs_from(
        &mut self,
        partition: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<BatchRun>, StoreError>;

    /// Returns the current rows of these partitions, without those that do not exist.
    ///
    /// # Errors
    /// [`StoreError`] if the index cannot be read.
    fn partitions(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<PartitionRow>, StoreError>;

    /// Returns the aborted transactions in `offsets`. If `count` or more of them have a marker there, the answer covers
    /// only the range up to the `count`-th marker. Transactions that are open at the end of the covered range are
    /// included.
    ///
    /// # Errors
    /// [`StoreError`] if the index cannot be read.
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
    /// Offset after the range: the requested end, or the offset after the `count`-th marker.
    pub end: i64,
    /// Transactions with an offset in the range, in the order of their first offsets.
    pub transactions: Vec<AbortedTransaction>,
}

impl AbortedTransactions {
    /// Creates the answer for a range up to `end`. If `count` of the `transactions` have a marker before `end`, the
    /// range ends after the last of these markers. The other `transactions` are those that are open at the end of the
    /// range.
    pub fn new(end: i64, mut transactions: Vec<AbortedTransaction>, count: usize) -> AbortedTransactions {
        transactions.sort_unstable_by_key(|of| of.last_offset);
        let last = count.checked_sub(1).and_then(|at| transactions.get(at)).filter(|last| last.last_offset < end);
        let end = last.map_or(end, |last| last.last_offset.saturating_add(1));
        transactions.sort_unstable_by_key(|of| of.first_offset);
        AbortedTransactions { end, transactions }
    }
}

/// Largest value of [`length_bits`], even for longer transactions, because `1 << bits` must fit into an offset.
pub const LENGTH_BITS_MAX: u32 = 62;

/// Returns the number of bits of a transaction's length in offsets. If it is `bits`, and the transaction is open at an
/// offset, the transaction begins less than `1 << bits` offsets before. A search in a database index by this number
/// therefore reads few rows.
pub fn length_bits(of: &AbortedTransaction) -> u32 {
    let length = of.last_offset.saturating_sub(of.first_offset).max(0).unsigned_abs();
    (u64::BITS - length.leading_zeros()).min(LENGTH_BITS_MAX)
}

/// Feed of the changes that other brokers commit. Its calls block the thread.
pub trait ChangeSource: Send {
    /// Returns the rows of partitions that other brokers have changed since the last call. The first call returns all
    /// rows whose last change was another broker's. A row may be returned twice.
    ///
    /// # Errors
    /// [`StoreError`] if the index cannot be read. A later call returns the changes.
    fn changed(&mut self) -> Result<Vec<PartitionRow>, StoreError>;
}

/// Object to be deleted from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnusedObject {
    pub id: ObjectId,
    /// True if the object was marked as deleted a day ago: after this second DELETE the caller forgets the object.
    pub is_again: bool,
}

/// Request for the state that a commit needs.
#[derive(Clone, Debug)]
pub struct CommitQuestion {
    /// Partitions in the order of their ids, each with the offset up to which its producers' rows are known.
    pub partitions: Vec<(DisklessPartitionId, i64)>,
    pub objects: Vec<ObjectId>,
}

/// State on which a commit is decided.
#[derive(Clone, Debug, Default)]
pub struct CommitFound {
    /// Rows of the partitions that exist.
    pub partitions: Vec<PartitionRow>,
    /// Producers' rows past the known offsets, grouped by partition, and there in the order of their first offsets.
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
    /// Wall clock in ms.
    pub now_ms: i64,
}

/// Row of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionRow {
    pub id: DisklessPartitionId,
    pub log_start: i64,
    pub next_offset: i64,
    pub bytes: i64,
    /// Largest timestamp in ms; -1 before the first batch.
    pub max_timestamp: i64,
    pub has_forgotten: bool,
    /// Largest number of batches that a broker of the cluster retains of each producer; 0 if no broker has stored a
    /// number.
    pub window: usize,
    /// Largest id of a producer that was removed as idle; -1 if none was.
    pub expired_to: i64,
    /// First offset of the oldest open transaction; `None` if none is open. The log start may have passed this offset.
    pub first_unstable: Option<i64>,
    /// Offset of the newest marker that aborted a transaction; -1 if there is none. Records after this marker are not
    /// aborted.
    pub aborted_to: i64,
}

impl PartitionRow {
    /// Returns the offset before which every transaction has ended.
    pub fn last_stable_offset(&self) -> i64 {
        last_stable_offset(self.first_unstable, self.log_start, self.next_offset)
    }

    /// Returns the row of a partition in this state.
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

    /// Copies the row into the state of a partition. The caller has brought the state's producers and open transactions
    /// up to date before.
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

/// Row with the batches of one producer that one commit has appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerRow {
    pub batches: AppendedBatches,
    /// Wall clock of the commit in ms, from which the producer's idleness counts.
    pub written_ms: i64,
}

/// Position of a producer's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerRowPlace {
    /// Offset of the first batch of the row.
    pub base_offset: i64,
    /// Offset of the last batch of the row.
    pub last_base_offset: i64,
    pub producer_id: i64,
}

impl ProducerRow {
    /// Returns the offset of the first batch, by which rows are ordered.
    pub fn base_offset(&self) -> i64 {
        self.batches.batches.first().map_or(0, |batch| batch.base_offset)
    }
}
