//! The index of a single broker, in a SQLite file. The metadata has its own file, so that a change of the metadata
//! never waits for a commit of records.
//!
//! `file` creates and upgrades the file, `cleaning` deletes rows, and `finder` reads while commits run. When a commit
//! returns, it is on the disk (write-ahead log, `synchronous=FULL`).
//!
//! Each transaction that changes rows adds one to the number in the table `changes`. After the COMMIT, this number is
//! also written to a separate file (see [`super::noted`]). When the broker starts, it compares the two numbers.
//!
//! Invariant: the number in the separate file is never larger than the number in the index file on the disk.

mod cleaning;
mod file;
mod finder;
mod rows;

use std::path::Path;
use std::sync::Arc;

use fullbore_rules::commit::{
    AppendedBatch, AppendedBatches, BatchRun, DisklessPartitionId, ObjectId, ObjectNumbers, ObjectState,
    PartitionAborted,
};
use fullbore_rules::sequence::AbortedTransaction;
use fullbore_wire::Uuid;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::noted::NotedChanges;
use super::packed::{LAST_BASE_OFFSET, pack_producer, pack_run, unpack_offset, unpack_producer};
use super::store::{
    ClassicTails, CommitFound, CommitQuestion, CommitWrite, DELETE_AGAIN_MS, IndexStore, KnownStore, PartitionRow,
    ProducerRow, ProducerRowPlace, UnusedObject, length_bits,
};
use super::{damaged, random_numbers};
use cleaning::{clear_runs, note_expired, remove_partitions, succeed_classic};
pub use file::{NAME, OpenFileError};
pub use finder::SqliteFinder;
use fullbore_db::sqlite::{failed as sqlite_failed, not_committed as sqlite_not_committed};
use fullbore_db::{CommitError, StoreError};
use fullbore_host::disk_space::DiskSpace;
use rows::{DELETE_FAILED, DELETED, LIVE, REGISTERED, RUN, UNUSED, partition, partition_row, runs};

/// A query for the producer rows of a partition at or after an offset.
const PRODUCERS: &str =
    "SELECT producer_id, written_ms, batches FROM producers WHERE partition = ?1 AND base_offset >= ?2
     ORDER BY base_offset";
/// A query for the newest row of each producer on the predecessor of a partition.
const PRODUCERS_BEFORE: &str = "SELECT producer_id, written_ms, batches FROM
     (SELECT *, max(base_offset) FROM producers WHERE base_offset >= ?2 AND partition =
       (SELECT before.partition FROM predecessors AS before JOIN partitions AS p USING (topic, partition_index) WHERE p.id = ?1)
      GROUP BY producer_id) ORDER BY base_offset";
/// Number of changed rows since the last checkpoint at which the next checkpoint is due. A checkpoint copies the
/// write-ahead log into the file, between two commits.
const CHANGES_UNMOVED: u64 = 16_384;
/// How long an object may remain uncommitted after its registration, in ms.
const REGISTERED_MS: i64 = 3_600_000;
/// How long after its first deletion an object is deleted from the store a second time, in ms.
const DELETED_MS: i64 = 86_400_000;

/// An open index file.
pub struct SqliteIndex {
    connection: Connection,
    noted: NotedChanges,
    space: Arc<DiskSpace>,
    numbers: ObjectNumbers,
    /// The total number of rows that the connection had changed at the last checkpoint.
    moved: u64,
}

impl SqliteIndex {
    /// Opens or creates the index file in a directory. On a full disk, this uses the disk reserve if necessary. Later,
    /// only transactions that free space or that create or delete partitions may use the reserve.
    ///
    /// # Errors
    /// Returns an [`OpenFileError`] if the disk fails or the contents of the file are refused.
    pub fn open_in(
        directory: &Path,
        cluster_id: Uuid,
        broker_id: i32,
        space: Arc<DiskSpace>,
    ) -> Result<SqliteIndex, OpenFileError> {
        let is_full = |error: &OpenFileError| *error == OpenFileError::Store(StoreError::Full);
        let (connection, noted) = space.freeing(is_full, || file::open(directory, cluster_id, broker_id))?;
        Ok(SqliteIndex { connection, noted, space, numbers: random_numbers(), moved: 0 })
    }

    /// Opens the file without a disk reserve, with a fixed cluster and broker.
    ///
    /// # Errors
    /// Returns an error if [`SqliteIndex::open_in`] does.
    #[cfg(test)]
    pub fn open(directory: &Path) -> Result<SqliteIndex, OpenFileError> {
        SqliteIndex::open_in(directory, Uuid([7; 16]), 1, Arc::new(DiskSpace::open(directory, 0)))
    }

    /// Makes the counter in the ids of new objects start at `start`.
    #[cfg(test)]
    pub fn numbered_from(self, start: u32) -> SqliteIndex {
        SqliteIndex { numbers: ObjectNumbers::new(start), ..self }
    }

    /// Makes every write fail, as if the disk refused it. If `refuse` is false, writes succeed again.
    #[cfg(test)]
    pub fn refuse_writes(&self, refuse: bool) {
        self.connection.pragma_update(None, "query_only", refuse).expect("pragma");
    }

    /// Marks every partition as if it had evicted producers because there were too many.
    #[cfg(test)]
    pub fn have_forgotten(&self) {
        self.connection.execute("UPDATE partitions SET has_forgotten = 1", []).expect("updated");
    }

    /// Returns the row of every partition.
    #[cfg(test)]
    pub fn partitions(&self) -> Vec<PartitionRow> {
        let text = "SELECT id, log_start, next_offset, bytes, max_timestamp, has_forgotten, expired_to, first_unstable, aborted_to FROM partitions ORDER BY id";
        let mut find = self.connection.prepare_cached(text).expect("prepared");
        let rows = find.query_map([], |row| partition_row(row.get(0)?, row, 1)).expect("queried");
        rows.collect::<rusqlite::Result<_>>().expect("read")
    }

    /// Adds `count` aborted transactions of ten offsets each to partition 1. Their last stable offset is `stable`, or
    /// the offset after each transaction if `stable` is `None`.
    #[cfg(test)]
    pub fn add_aborted(&self, count: i64, stable: Option<i64>) {
        let rows = "WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < ?1)
             INSERT INTO aborted SELECT 1, n * 10 + 9, n * 10, coalesce(?2, n * 10 + 10), 7, 4 FROM numbers";
        self.connection.execute(rows, params![count, stable]).expect("written");
    }

    /// Returns the number of producer rows of a partition, even of a deleted one.
    #[cfg(test)]
    pub fn producer_rows(&self, id: DisklessPartitionId) -> usize {
        let count = "SELECT count(*) FROM producers WHERE partition = ?1";
        self.connection.query_row(count, [id], |row| row.get(0)).expect("counted")
    }

    /// Returns all objects, each with two values. The first is true if the object was deleted from the store. The
    /// second is the position of the object's last extent, if it has any.
    #[cfg(test)]
    pub fn objects(&self) -> Vec<(ObjectId, bool, Option<i64>)> {
        let text = "SELECT id, state, (SELECT max(position) FROM runs WHERE object = id) FROM objects";
        let mut find = self.connection.prepare(text).expect("prepared");
        let row = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)? == DELETED, row.get(2)?));
        find.query_map([], row).expect("queried").collect::<rusqlite::Result<_>>().expect("read")
    }

    fn in_transaction<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        self.run("BEGIN IMMEDIATE")?;
        let before = self.connection.total_changes();
        let done = work(&self.connection).and_then(|done| match self.connection.total_changes() == before {
            true => self.run("COMMIT").map(|()| done),
            false => self.commit_counted().map(|()| done),
        });
        if done.is_err() {
            self.roll_back();
        }
        done
    }

    /// Runs a transaction that frees space, or that creates or deletes partitions. If the disk is full, copies the
    /// write-ahead log into the file and runs the transaction again. If the disk is still full, runs it a third time
    /// with the disk reserve.
    fn free<T>(&self, work: impl Fn(&Connection) -> rusqlite::Result<T>) -> Result<T, CommitError> {
        let attempt = || self.in_transaction(&work).map_err(|error| sqlite_not_committed(&error));
        let is_full = |error: &CommitError| *error == CommitError::Refused(StoreError::Full);
        match attempt() {
            Err(error) if is_full(&error) => {
                // This copies as much of the log as possible, without waiting for readers.
                let _ = file::checkpoint(&self.connection);
                self.space.freeing(is_full, attempt)
            }
            done => done,
        }
    }

    /// Commits a transaction that changes rows, and records the number of the change.
    fn commit_counted(&self) -> rusqlite::Result<()> {
        let raise = "UPDATE changes SET number = number + 1 RETURNING number";
        let number = self.connection.prepare_cached(raise)?.query_row([], |row| row.get(0))?;
        self.run("COMMIT")?;
        self.noted.raise_own(number);
        Ok(())
    }

    fn run(&self, statement: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(statement)?.execute([]).map(drop)
    }

    /// Rolls the transaction back if SQLite has not ended it already.
    fn roll_back(&self) {
        if !self.connection.is_autocommit()
            && let Err(error) = self.run("ROLLBACK")
        {
            tracing::error!(%error, "cannot roll back a transaction of {}: later changes may fail", file::NAME);
        }
    }

    fn find(&self, question: &CommitQuestion) -> Result<CommitFound, StoreError> {
        let mut found = CommitFound::default();
        for (id, known_to) in &question.partitions {
            if let Some(row) = partition(&self.connection, *id).map_err(|error| sqlite_failed(&error))? {
                found.partitions.push(row);
            }
            // A deleted partition has no row, but it may have left producer rows.
            self.producers(PRODUCERS, *id, *known_to, &mut found.producers)?;
        }
        for id in &question.objects {
            if let Some(state) = self.object(*id)? {
                found.objects.insert(*id, state);
            }
        }
        Ok(found)
    }

    fn producers(
        &self,
        query: &str,
        partition: DisklessPartitionId,
        known_to: i64,
        found: &mut Vec<ProducerRow>,
    ) -> Result<(), StoreError> {
        let failed = |error: rusqlite::Error| sqlite_failed(&error);
        let mut find = self.connection.prepare_cached(query).map_err(failed)?;
        let mut rows = find.query(params![partition, known_to]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let producer_id = row.get(0).map_err(failed)?;
            let packed = row.get_ref(2).map_err(failed)?;
            let batches = unpack_producer(producer_id, packed.as_blob().map_err(|error| damaged(error.to_string()))?)?;
            let written_ms = row.get(1).map_err(failed)?;
            found.push(ProducerRow { batches: AppendedBatches { partition, producer_id, batches }, written_ms });
        }
        Ok(())
    }

    fn object(&self, id: ObjectId) -> Result<Option<ObjectState>, StoreError> {
        let failed = |error: rusqlite::Error| sqlite_failed(&error);
        let mut find = self.connection.prepare_cached("SELECT state FROM objects WHERE id = ?1").map_err(failed)?;
        let state: Option<i64> = find.query_row([id], |row| row.get(0)).optional().map_err(failed)?;
        Ok(match state {
            None => None,
            Some(REGISTERED) => Some(ObjectState::Registered),
            Some(LIVE | UNUSED) => Some(ObjectState::Live(self.runs_of(id)?)),
            Some(_) => Some(ObjectState::Gone),
        })
    }

    pub(super) fn runs_of(&self, object: ObjectId) -> Result<Vec<BatchRun>, StoreError> {
        let text = format!("SELECT {RUN} FROM runs WHERE object = ?1 ORDER BY position");
        runs(&self.connection, &text, params![object])
    }

    fn write(&self, write: &CommitWrite) -> rusqlite::Result<()> {
        let connection = &self.connection;
        let mut partition = connection.prepare_cached(
            "UPDATE partitions SET next_offset = ?2, bytes = ?3, max_timestamp = ?4, has_forgotten = ?5, first_unstable = ?6,
               aborted_to = ?7
             WHERE id = ?1",
        )?;
        for row in &write.partitions {
            partition.execute(params![
                row.id,
                row.next_offset,
                row.bytes,
                row.max_timestamp,
                row.has_forgotten,
                row.first_unstable,
                row.aborted_to
            ])?;
        }
        let mut object = connection
            .prepare_cached("UPDATE objects SET state = ?2, live_bytes = ?3, changed_ms = ?4 WHERE id = ?1")?;
        for of in &write.decision.objects {
            // An object without live bytes has no extents. Mark it as unused here, because no later removal of an
            // extent will do so.
            let state = if of.live_bytes > 0 { LIVE } else { UNUSED };
            object.execute(params![of.id, state, of.live_bytes, write.now_ms])?;
        }
        let mut run = connection.prepare_cached(
            "INSERT INTO runs (partition, base_offset, object, position, max_timestamp_so_far, batches)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        for of in &write.decision.runs {
            let packed = pack_run(&of.batches);
            run.execute(params![
                of.partition,
                of.base_offset,
                of.object,
                of.position,
                of.max_timestamp_so_far,
                packed
            ])?;
        }
        let mut producer = connection.prepare_cached(
            "INSERT INTO producers (partition, base_offset, producer_id, written_ms, batches) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        for of in &write.decision.producers {
            let Some(AppendedBatch { base_offset, .. }) = of.batches.first() else { continue };
            let packed = pack_producer(&of.batches);
            producer.execute(params![of.partition, base_offset, of.producer_id, write.now_ms, packed])?;
        }
        let mut aborted = connection.prepare_cached(
            "INSERT INTO aborted (partition, last_offset, first_offset, last_stable_offset, producer_id, length_bits)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        for PartitionAborted { partition, transaction: of } in &write.decision.aborted {
            let &AbortedTransaction { producer_id, first_offset, last_offset, last_stable_offset } = of;
            let bits = length_bits(of);
            aborted.execute(params![partition, last_offset, first_offset, last_stable_offset, producer_id, bits])?;
        }
        self.commit_counted()
    }
}

impl IndexStore for SqliteIndex {
    fn begin(&mut self, question: &CommitQuestion) -> Result<CommitFound, StoreError> {
        self.run("BEGIN IMMEDIATE").map_err(|error| sqlite_failed(&error))?;
        let found = self.find(question);
        if found.is_err() {
            self.roll_back();
        }
        found
    }

    fn commit(&mut self, write: &CommitWrite) -> Result<(), CommitError> {
        let written = self.write(write);
        if written.is_err() {
            self.roll_back();
        }
        written.map_err(|error| sqlite_not_committed(&error))
    }

    fn abandon(&mut self) {
        self.roll_back();
    }

    fn checkpoint(&mut self) -> bool {
        let changed = self.connection.total_changes();
        let is_due = changed - self.moved >= CHANGES_UNMOVED;
        if is_due {
            self.moved = changed;
            if let Err(error) = file::checkpoint(&self.connection) {
                tracing::warn!(%error, "cannot move the write-ahead log of {} into the file: the log grows until a later attempt succeeds; check the disk", file::NAME);
            }
        }
        is_due
    }

    fn register(&mut self, count: usize, now_ms: i64) -> Result<Vec<ObjectId>, CommitError> {
        let drawn = self.numbers.draw(count, now_ms);
        let registered = self.in_transaction(move |connection| {
            let insert =
                "INSERT INTO objects (id, state, live_bytes, changed_ms) VALUES (?1, ?2, 0, ?3) ON CONFLICT DO NOTHING";
            let mut insert = connection.prepare_cached(insert)?;
            let mut taken = Vec::with_capacity(drawn.len());
            for id in drawn {
                if insert.execute(params![id, REGISTERED, now_ms])? > 0 {
                    taken.push(id);
                }
            }
            Ok(taken)
        });
        registered.map_err(|error| sqlite_not_committed(&error))
    }

    fn create(&mut self, name: &str, topic_id: Uuid, count: i32) -> Result<Vec<PartitionRow>, CommitError> {
        self.free(|connection| {
            let others = "SELECT id FROM partitions WHERE topic = ?1 AND topic_id <> ?2";
            remove_partitions(connection, others, params![name, topic_id.0])?;
            let mut insert = connection.prepare_cached(
                "INSERT INTO partitions (topic_id, partition_index, log_start, next_offset, bytes, max_timestamp, has_forgotten, expired_to, topic)
                 VALUES (?1, ?2, 0, 0, 0, -1, 0, -1, ?3)
                 ON CONFLICT (topic_id, partition_index) DO NOTHING",
            )?;
            for index in 0..count {
                insert.execute(params![topic_id.0, index, name])?;
            }
            let mut find = connection.prepare_cached(
                "SELECT id, log_start, next_offset, bytes, max_timestamp, has_forgotten, expired_to, first_unstable, aborted_to
                 FROM partitions
                 WHERE topic_id = ?1 AND partition_index < ?2 ORDER BY partition_index",
            )?;
            find.query_map(params![topic_id.0, count], |row| partition_row(row.get(0)?, row, 1))?.collect()
        })
    }

    fn succeed_classic(&mut self, name: &str, topic_id: Uuid, before: &[ClassicTails]) -> Result<(), CommitError> {
        self.free(|connection| before.iter().try_for_each(|tails| succeed_classic(connection, name, topic_id, tails)))
    }

    fn predecessors(&mut self, ids: &[DisklessPartitionId]) -> Result<Vec<ProducerRow>, StoreError> {
        let mut found = Vec::new();
        for id in ids {
            self.producers(PRODUCERS_BEFORE, *id, i64::MIN, &mut found)?;
        }
        Ok(found)
    }

    fn delete(&mut self, topic_id: Uuid, _: &[DisklessPartitionId]) -> Result<(), CommitError> {
        self.free(|connection| {
            remove_partitions(connection, "SELECT id FROM partitions WHERE topic_id = ?1", params![topic_id.0])
        })
    }

    fn move_log_starts(
        &mut self,
        moves: &[(DisklessPartitionId, i64)],
    ) -> Result<Vec<Option<PartitionRow>>, CommitError> {
        self.free(|connection| {
            let mut set = connection.prepare_cached(
                "UPDATE partitions SET log_start = max(log_start, min(?2, next_offset)) WHERE id = ?1",
            )?;
            let mut clear = connection
                .prepare_cached("INSERT OR REPLACE INTO cleared SELECT id, log_start FROM partitions WHERE id = ?1")?;
            let mut moved = |(id, offset): &(DisklessPartitionId, i64)| {
                if set.execute(params![id, offset])? > 0 {
                    clear.execute([id])?;
                }
                partition(connection, *id)
            };
            moves.iter().map(&mut moved).collect()
        })
    }

    fn clear(&mut self, runs_max: usize, now_ms: i64) -> Result<bool, CommitError> {
        let next = self
            .connection
            .prepare_cached("SELECT partition, before FROM cleared LIMIT 1")
            .and_then(|mut find| find.query_row([], |row| Ok((row.get(0)?, row.get(1)?))).optional());
        let next = next.map_err(|error| CommitError::Refused(sqlite_failed(&error)))?;
        let Some((partition, before)): Option<(DisklessPartitionId, i64)> = next else { return Ok(false) };
        let text = format!("SELECT {RUN} FROM runs WHERE partition = ?1 ORDER BY base_offset LIMIT ?2");
        let limit = i64::try_from(runs_max).unwrap_or(i64::MAX);
        let mut runs = runs(&self.connection, &text, params![partition, limit]).map_err(CommitError::Refused)?;
        let found = runs.len();
        runs.retain(|run| run.end_offset() <= before);
        let is_last = runs.len() < found || found < runs_max;
        self.free(|connection| clear_runs(connection, partition, before, &runs, is_last, now_ms)).map(|()| true)
    }

    fn retain_batches(&mut self, _: &[DisklessPartitionId], _: usize) -> Result<(), CommitError> {
        Ok(())
    }

    fn producers_from(
        &mut self,
        id: DisklessPartitionId,
        offset: i64,
        count: usize,
    ) -> Result<Vec<ProducerRowPlace>, StoreError> {
        let text = "SELECT base_offset, producer_id, substr(batches, -?4, 8) FROM producers WHERE partition = ?1 AND base_offset >= ?2
             ORDER BY base_offset LIMIT ?3";
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let found = self.connection.prepare_cached(text).and_then(|mut find| {
            let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get::<_, Vec<u8>>(2)?));
            find.query_map(params![id, offset, count, LAST_BASE_OFFSET], row)?.collect::<rusqlite::Result<Vec<_>>>()
        });
        let place = |(base_offset, producer_id, last): (i64, i64, Vec<u8>)| {
            Ok(ProducerRowPlace { base_offset, last_base_offset: unpack_offset(&last)?, producer_id })
        };
        found.map_err(|error| sqlite_failed(&error))?.into_iter().map(place).collect()
    }

    fn remove_producers(&mut self, id: DisklessPartitionId, base_offsets: &[i64]) -> Result<(), CommitError> {
        self.free(|connection| {
            let text = "DELETE FROM producers WHERE partition = ?1 AND base_offset = ?2";
            let mut remove = connection.prepare_cached(text)?;
            base_offsets.iter().try_for_each(|offset| remove.execute(params![id, offset]).map(drop))
        })
    }

    fn expire_producers(
        &mut self,
        after: DisklessPartitionId,
        before_ms: i64,
        producers_max: usize,
    ) -> Result<Option<(DisklessPartitionId, bool)>, CommitError> {
        self.free(|connection| {
            let next = "SELECT partition FROM producers WHERE partition > ?1 ORDER BY partition LIMIT 1";
            let next = connection.prepare_cached(next)?.query_row([after], |row| row.get(0)).optional()?;
            let Some(partition): Option<DisklessPartitionId> = next else { return Ok(None) };
            let limit = i64::try_from(producers_max).unwrap_or(i64::MAX);
            let silent = cleaning::silent_producers();
            let count = format!("SELECT max(producer_id), count(*) FROM ({silent})");
            let (largest, found): (Option<i64>, usize) = connection
                .prepare_cached(&count)?
                .query_row(params![partition, before_ms, limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
            if let Some(largest) = largest {
                let largest = largest.max(cleaning::last_forgotten(connection, partition, before_ms)?);
                // Remove the rows of all these producers with one statement. With a statement for each producer, each
                // one would read all producer rows of the partition.
                let remove = format!("DELETE FROM producers WHERE partition = ?1 AND producer_id IN ({silent})");
                connection.prepare_cached(&remove)?.execute(params![partition, before_ms, limit])?;
                note_expired(connection, partition, largest)?;
            }
            Ok(Some((partition, found >= producers_max)))
        })
    }

    fn unused(&mut self, count: usize, for_ms: u64, now_ms: i64) -> Result<Vec<UnusedObject>, CommitError> {
        self.free(|connection| {
            let limit = i64::try_from(count).unwrap_or(i64::MAX);
            let ids = |text: &str, state: i64, before_ms: i64| {
                let mut find = connection.prepare_cached(text)?;
                let found = find.query_map(params![state, before_ms, limit], |row| row.get(0))?;
                found.collect::<rusqlite::Result<Vec<ObjectId>>>()
            };
            let find = "SELECT id FROM objects WHERE state = ?1 AND changed_ms <= ?2 LIMIT ?3";
            let mut taken = ids(find, UNUSED, now_ms.saturating_sub_unsigned(for_ms))?;
            taken.extend(ids(find, REGISTERED, now_ms - REGISTERED_MS)?);
            taken.extend(ids(find, DELETE_FAILED, now_ms - DELETE_AGAIN_MS)?);
            let again = ids(find, DELETED, now_ms - DELETED_MS)?;
            let mut mark = connection.prepare_cached("UPDATE objects SET state = ?2, changed_ms = ?3 WHERE id = ?1")?;
            taken.iter().try_for_each(|id| mark.execute(params![id, DELETED, now_ms]).map(drop))?;
            again.iter().try_for_each(|id| mark.execute(params![id, DELETED, now_ms]).map(drop))?;
            let taken = taken.into_iter().map(|id| UnusedObject { id, is_again: false });
            Ok(taken.chain(again.into_iter().map(|id| UnusedObject { id, is_again: true })).collect())
        })
    }

    fn delete_failed(&mut self, ids: &[ObjectId], now_ms: i64) -> Result<(), CommitError> {
        self.free(|connection| {
            let note = "UPDATE objects SET state = ?2, changed_ms = ?3 WHERE id = ?1 AND state = ?4";
            let mut note = connection.prepare_cached(note)?;
            ids.iter().try_for_each(|id| note.execute(params![id, DELETE_FAILED, now_ms, DELETED]).map(drop))
        })
    }

    fn forget(&mut self, ids: &[ObjectId]) -> Result<(), CommitError> {
        self.free(|connection| {
            let mut forget = connection.prepare_cached("DELETE FROM objects WHERE id = ?1 AND state = ?2")?;
            ids.iter().try_for_each(|id| forget.execute(params![id, DELETED]).map(drop))
        })
    }

    fn known_store(&mut self) -> Result<KnownStore, StoreError> {
        let text = "SELECT (SELECT store_id FROM store), EXISTS (SELECT 1 FROM objects WHERE state IN (?1, ?2))";
        let known = self.connection.query_row(text, params![LIVE, UNUSED], |row| {
            Ok(KnownStore { store_id: row.get(0)?, is_in_use: row.get(1)? })
        });
        known.map_err(|error| sqlite_failed(&error))
    }

    fn adopt_store(&mut self, store_id: &str) -> Result<String, CommitError> {
        let adopted = self.in_transaction(|connection| {
            connection.execute(
                "INSERT INTO store SELECT 1, ?1
                   WHERE NOT EXISTS (SELECT 1 FROM store) OR NOT EXISTS (SELECT 1 FROM objects WHERE state IN (?2, ?3))
                 ON CONFLICT DO UPDATE SET store_id = excluded.store_id",
                params![store_id, LIVE, UNUSED],
            )?;
            connection.query_row("SELECT store_id FROM store", [], |row| row.get(0))
        });
        adopted.map_err(|error| sqlite_not_committed(&error))
    }
}
