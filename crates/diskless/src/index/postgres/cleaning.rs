//! Registers objects, and runs the GC of extents, objects and producer rows.
//!
//! Several brokers may call these functions at the same time. An advisory lock ensures that only one broker at a time
//! deletes extents. Concurrent calls return different unused objects. The age of an object is computed from the
//! database's clock.

use std::collections::BTreeMap;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId, ObjectId};
use fullbore_rules::sequence::NO_PRODUCER_ID;

use super::super::damaged;
use super::super::packed::{LAST_BASE_OFFSET, LAST_COUNT, LAST_SEQUENCE, last_of_forgotten_row};
use super::super::store::{DELETE_AGAIN_MS, ProducerRowPlace, UnusedObject};
use super::guarded::Guarded;
use super::rows::{
    CLOCK_MS, DELETE_FAILED, DELETED, IndexAnswers, REGISTERED, RUN, UNUSED, array, each, producer_place, run, unhex,
};
use fullbore_db::postgres::rows::{flag, next, number, text};
use fullbore_db::{CommitError, StoreError};

/// Maximum number of rows that a step of the GC removes, as a multiple of its maximum number of extents. The limit
/// applies separately to rows of producers and to rows of aborted transactions.
const ROWS_A_RUN: usize = 64;
/// The advisory lock of the broker that deletes extents. The number is "clearing" in ASCII.
const CLEARING: i64 = 0x636c_6561_7269_6e67;
/// How long an object may remain uncommitted after its registration.
const REGISTERED_FOR: &str = "interval '1 hour'";
/// How long after its first deletion an object is deleted from the store a second time.
const DELETED_FOR: &str = "interval '1 day'";

/// Registers objects with the ids `drawn`. Returns the ids that were not in use yet.
pub fn register(session: &mut Guarded, drawn: &[ObjectId]) -> Result<Vec<ObjectId>, CommitError> {
    session.begin("").map_err(CommitError::Refused)?;
    let mut answers = session.end(&format!(
        "INSERT INTO fullbore.diskless_objects (id, state, live_bytes, changed_at)
         SELECT id, {REGISTERED}, 0, clock_timestamp() FROM unnest({}::bigint[]) AS drawn (id)
         ON CONFLICT DO NOTHING RETURNING id",
        array(drawn.iter())
    ))?;
    let mut ids = numbers(&mut answers)?;
    ids.sort_unstable();
    Ok(ids)
}

/// Returns the time of the database, in ms since 1970.
pub fn clock_ms(session: &mut Guarded) -> Result<i64, StoreError> {
    let mut answers = session.read(&format!("SELECT {CLOCK_MS}"))?;
    let clock = next(&mut answers)?;
    let row = clock.first().ok_or_else(|| damaged("it has no clock"))?;
    number(row, 0)
}

/// Marks objects as deleted and returns them. The caller must delete them from the store. Concurrent calls by several
/// brokers return different objects.
pub fn unused(session: &mut Guarded, count: usize, for_ms: u64) -> Result<Vec<UnusedObject>, CommitError> {
    session.begin("").map_err(CommitError::Refused)?;
    // The subquery is wrapped in an array, because PostgreSQL might evaluate a plain subquery more than once.
    let picked = |state: i64, age: &str| {
        format!(
            "id = ANY(ARRAY(SELECT id FROM fullbore.diskless_objects
               WHERE state = {state} AND changed_at <= clock_timestamp() - {age}
               ORDER BY changed_at LIMIT {count} FOR UPDATE SKIP LOCKED)) RETURNING id"
        )
    };
    let take = format!("UPDATE fullbore.diskless_objects SET state = {DELETED}, changed_at = clock_timestamp() WHERE");
    // The query for objects that were deleted a day ago runs first. It therefore does not find objects that one of the
    // other three queries has just marked as deleted.
    let mut answers = session.end(&format!(
        "{take} {}; {take} {}; {take} {}; {take} {}",
        picked(DELETED, DELETED_FOR),
        picked(DELETE_FAILED, &format!("interval '{DELETE_AGAIN_MS} milliseconds'")),
        picked(UNUSED, &format!("interval '{for_ms} milliseconds'")),
        picked(REGISTERED, REGISTERED_FOR)
    ))?;
    let mut objects = Vec::new();
    for is_again in [true, false, false, false] {
        objects.extend(numbers(&mut answers)?.into_iter().map(|id| UnusedObject { id, is_again }));
    }
    Ok(objects)
}

/// Records that the DELETE of these objects failed.
pub fn delete_failed(session: &mut Guarded, ids: &[ObjectId]) -> Result<(), CommitError> {
    session.begin("").map_err(CommitError::Refused)?;
    let ids = array(ids.iter());
    let note = format!("UPDATE fullbore.diskless_objects SET state = {DELETE_FAILED}, changed_at = clock_timestamp()");
    session.end(&format!("{note} WHERE id = ANY({ids}::bigint[]) AND state = {DELETED}")).map(drop)
}

/// Removes objects from the index after they were deleted from the store.
pub fn forget(session: &mut Guarded, ids: &[ObjectId]) -> Result<(), CommitError> {
    session.begin("").map_err(CommitError::Refused)?;
    let ids = array(ids.iter());
    let forget = "DELETE FROM fullbore.diskless_objects WHERE id = ANY";
    session.end(&format!("{forget}({ids}::bigint[]) AND state = {DELETED}")).map(drop)
}

/// Returns the offsets of up to `count` producer rows of a partition, beginning at `offset`.
pub fn producers_from(
    session: &mut Guarded,
    id: DisklessPartitionId,
    offset: i64,
    count: usize,
) -> Result<Vec<ProducerRowPlace>, StoreError> {
    let mut answers = session.read(&format!(
        "SELECT base_offset, producer_id, encode(substring(batches FROM length(batches) - {LAST_BASE_OFFSET} + 1 FOR 8), 'hex')
         FROM fullbore.diskless_producers WHERE partition = {id} AND base_offset >= {offset} ORDER BY base_offset LIMIT {count}"
    ))?;
    each(&next(&mut answers)?, producer_place)
}

/// Removes producer rows. Locks no partition, so a concurrent transaction may still read these rows.
pub fn remove_producers(
    session: &mut Guarded,
    id: DisklessPartitionId,
    base_offsets: &[i64],
) -> Result<(), CommitError> {
    session.begin("").map_err(CommitError::Refused)?;
    let base_offsets = array(base_offsets.iter());
    let remove = "DELETE FROM fullbore.diskless_producers WHERE partition =";
    session.end(&format!("{remove} {id} AND base_offset = ANY({base_offsets}::bigint[])")).map(drop)
}

/// Removes up to `rows_max` producer rows of a partition, but never the newest row of a producer. Returns the number of
/// removed rows.
fn leave_newest(session: &mut Guarded, id: DisklessPartitionId, rows_max: usize) -> Result<usize, CommitError> {
    let answers = session.query(&format!(
        "WITH older AS (SELECT r.base_offset FROM fullbore.diskless_producers AS r
           JOIN (SELECT producer_id, max(base_offset) AS newest
             FROM fullbore.diskless_producers WHERE partition = {id} GROUP BY producer_id) AS of USING (producer_id)
           WHERE r.partition = {id} AND r.base_offset < of.newest LIMIT {rows_max}),
         removed AS (DELETE FROM fullbore.diskless_producers AS r USING older
           WHERE r.partition = {id} AND r.base_offset = older.base_offset RETURNING 1)
         SELECT count(*) FROM removed"
    ));
    let mut answers = answers.map_err(CommitError::Refused)?;
    Ok(usize::try_from(numbers(&mut answers)?.first().copied().unwrap_or(0)).unwrap_or(0))
}

/// Removes idle producers, those that have not written after `before_ms`, from one partition: the first one after
/// `after` that has producer rows. Returns this partition, and true if it may have more idle producers. Returns `None`
/// if no partition after `after` has producer rows.
pub fn expire_producers(
    session: &mut Guarded,
    after: DisklessPartitionId,
    before_ms: i64,
    producers_max: usize,
) -> Result<Option<(DisklessPartitionId, bool)>, CommitError> {
    let refused = CommitError::Refused;
    // The first query takes no lock, because most partitions have no idle producer.
    let partition = format!(
        "SELECT partition FROM fullbore.diskless_producers WHERE partition > {after} ORDER BY partition LIMIT 1"
    );
    let silent = |partition: &str| silent_producers(partition, before_ms, producers_max);
    let mut answers = session.read(&format!("{partition}; {}", silent(&partition))).map_err(refused)?;
    let Some(id) = numbers(&mut answers)?.first().copied() else { return Ok(None) };
    if numbers(&mut answers)?.is_empty() {
        return Ok(Some((id, false)));
    }
    // This lock prevents other brokers from committing to the partition until the transaction ends.
    let lock = format!("SELECT id FROM fullbore.diskless_partitions WHERE id = {id} FOR UPDATE");
    session.begin(&lock).map_err(refused)?;
    let silent = silent(&id.to_string());
    let found = session.query(&silent).map_err(refused).and_then(|mut answers| numbers(&mut answers));
    let ids = found.inspect_err(|_| session.abandon())?;
    let mut largest = ids.iter().max().copied().unwrap_or(-1);
    if ids.contains(&NO_PRODUCER_ID) {
        largest = largest.max(last_forgotten(session, id).inspect_err(|_| session.abandon())?);
    }
    session.end(&format!(
        "DELETE FROM fullbore.diskless_producers WHERE partition = {id} AND producer_id = ANY({}::bigint[]);
         UPDATE fullbore.diskless_partitions SET expired_to = greatest(expired_to, {largest}) WHERE id = {id};
         UPDATE fullbore.diskless_partitions AS p SET expired_to = greatest(expired_to, {largest})
           FROM fullbore.diskless_predecessors AS before WHERE before.partition = {id}
             AND p.topic = before.topic AND p.partition_index = before.partition_index;
         DELETE FROM fullbore.diskless_predecessors WHERE partition = {id}
           AND NOT EXISTS (SELECT 1 FROM fullbore.diskless_producers WHERE partition = {id})",
        array(ids.iter())
    ))?;
    Ok(Some((id, ids.len() >= producers_max)))
}

/// Returns a query for up to `producers_max` idle producers of a partition. An idle producer has not written after
/// `before_ms` and has no open transaction. In a deleted partition, no transaction counts as open. A row with a
/// negative offset was copied from a deleted partition, so its transaction does not count as open either.
fn silent_producers(partition: &str, before_ms: i64, producers_max: usize) -> String {
    format!(
        "SELECT producer_id FROM (SELECT partition, producer_id, max(base_offset) AS newest
           FROM fullbore.diskless_producers WHERE partition = ({partition})
           GROUP BY partition, producer_id HAVING max(written_ms) <= {before_ms}) AS silent
         WHERE NOT EXISTS (SELECT 1 FROM fullbore.diskless_producers AS r
           JOIN fullbore.diskless_partitions AS p ON p.id = r.partition AND p.first_unstable IS NOT NULL
           WHERE r.partition = silent.partition AND r.base_offset = newest AND newest >= 0
             AND get_byte(r.batches, length(r.batches) - {LAST_COUNT}) >= 128
             AND get_byte(r.batches, length(r.batches) - {LAST_SEQUENCE}) < 128)
         LIMIT {producers_max}"
    )
}

/// Returns the largest producer id that a deleted partition may have forgotten, or -1 if it is unknown.
fn last_forgotten(session: &mut Guarded, id: DisklessPartitionId) -> Result<i64, CommitError> {
    let row = format!(
        "SELECT encode(batches, 'hex') FROM fullbore.diskless_producers WHERE partition = {id} AND producer_id = {NO_PRODUCER_ID}"
    );
    let mut answers = session.query(&row).map_err(CommitError::Refused)?;
    let rows = next(&mut answers).and_then(|rows| each(&rows, |row| unhex(text(row, 0)?)));
    let rows = rows.map_err(CommitError::Refused)?;
    Ok(rows.iter().map(|batches| last_of_forgotten_row(batches)).max().unwrap_or(-1))
}

/// Removes up to `runs_max` extents of one partition that end at or before a certain offset. The first row of the table
/// `diskless_cleared` has the partition and this offset (`before`). Returns true if there may be more to remove.
pub fn clear(session: &mut Guarded, runs_max: usize) -> Result<bool, CommitError> {
    let done = clear_some(session, runs_max);
    if !matches!(done, Ok(true)) {
        session.abandon();
    }
    done
}

fn clear_some(session: &mut Guarded, runs_max: usize) -> Result<bool, CommitError> {
    let refused = CommitError::Refused;
    let cleared = "SELECT partition, before FROM fullbore.diskless_cleared ORDER BY partition LIMIT 1";
    if next(&mut session.read(cleared).map_err(refused)?).map_err(refused)?.is_empty() {
        return Ok(false);
    }
    let lock = format!("SELECT pg_try_advisory_xact_lock({CLEARING})");
    let mut answers = session.begin(&format!("{lock}; {cleared}")).map_err(refused)?;
    let Some((partition, before)) = next_cleared(&mut answers).map_err(refused)? else { return Ok(false) };
    // Only the broker with the advisory lock removes extents, and no commit adds extents before the log start. Nothing
    // can therefore change these extents before they are removed below.
    let mut answers = session
        .query(&format!(
            "SELECT id FROM fullbore.diskless_partitions WHERE id = {partition} FOR UPDATE;
             SELECT {RUN} FROM fullbore.diskless_runs WHERE partition = {partition} ORDER BY base_offset LIMIT {runs_max}"
        ))
        .map_err(refused)?;
    let is_there = !next(&mut answers).map_err(refused)?.is_empty();
    let mut runs = next(&mut answers).and_then(|rows| each(&rows, run)).map_err(refused)?;
    let found = runs.len();
    runs.retain(|run| run.end_offset() <= before);
    let mut is_last = runs.len() < found || found < runs_max;
    let objects = bytes_by_object(&runs);
    // The step that removes the last extents before the offset also removes aborted transactions.
    let rows_max = if is_last { runs_max.saturating_mul(ROWS_A_RUN) } else { 0 };
    let aborted = remove_aborted(partition, before, rows_max);
    let mut answers = session.query(&format!("{}; {aborted}", lock_objects(&objects))).map_err(refused)?;
    next(&mut answers).map_err(refused)?;
    is_last &= usize::try_from(numbers(&mut answers)?.first().copied().unwrap_or(0)).is_ok_and(|gone| gone < rows_max);
    let mut statements = vec![remove_runs(partition, &runs), release(&objects)];
    if is_last && !is_there {
        // The number of rows is limited: there may be very many producers, and a statement has a time limit.
        is_last = leave_newest(session, partition, rows_max)? < rows_max;
    }
    if is_last {
        let done = format!("DELETE FROM fullbore.diskless_cleared WHERE partition = {partition} AND before = {before}");
        statements.push(done);
    }
    if is_last && !is_there {
        statements.push(format!(
            "DELETE FROM fullbore.diskless_producers WHERE partition = {partition}
               AND NOT EXISTS (SELECT 1 FROM fullbore.diskless_predecessors AS before WHERE before.partition = {partition})"
        ));
    }
    if is_there {
        let bytes: i64 = objects.values().sum();
        // Leave `changed_by` as it is. The change feed of this broker skips rows whose `changed_by` is this broker. If
        // this update changed it, the feed would miss a commit that another broker has just made to this row.
        let update = "UPDATE fullbore.diskless_partitions SET bytes = bytes -";
        statements.push(format!("{update} {bytes} WHERE id = {partition}"));
    }
    session.end_counted(&statements.join("; ")).map(|_| true)
}

/// Reads the next partition whose extents must be deleted, and the offset before which they must be deleted. Returns
/// `None` if there is no such partition or another broker has the lock.
fn next_cleared(answers: &mut IndexAnswers) -> Result<Option<(DisklessPartitionId, i64)>, StoreError> {
    let is_locked = each(&next(answers)?, |row| flag(row, 0))? == [true];
    let rows = each(&next(answers)?, |row| Ok((number(row, 0)?, number(row, 1)?)))?;
    Ok(rows.first().copied().filter(|_| is_locked))
}

fn bytes_by_object(runs: &[BatchRun]) -> BTreeMap<ObjectId, i64> {
    let mut objects = BTreeMap::new();
    for run in runs {
        *objects.entry(run.object).or_default() += i64::from(run.bytes());
    }
    objects
}

fn lock_objects(objects: &BTreeMap<ObjectId, i64>) -> String {
    let ids = array(objects.keys());
    format!("SELECT id FROM fullbore.diskless_objects WHERE id = ANY({ids}::bigint[]) ORDER BY id FOR UPDATE")
}

fn remove_runs(partition: DisklessPartitionId, runs: &[BatchRun]) -> String {
    let base_offsets = array(runs.iter().map(|run| run.base_offset));
    format!(
        "DELETE FROM fullbore.diskless_runs WHERE partition = {partition} AND base_offset = ANY({base_offsets}::bigint[])"
    )
}

/// Returns a statement that removes up to `rows_max` aborted transactions whose markers are before the offset `before`.
/// The result of the statement is the number of removed transactions.
fn remove_aborted(partition: DisklessPartitionId, before: i64, rows_max: usize) -> String {
    format!(
        "WITH removed AS (DELETE FROM fullbore.diskless_aborted AS gone USING
             (SELECT last_offset FROM fullbore.diskless_aborted WHERE partition = {partition} AND last_offset < {before}
              ORDER BY last_offset LIMIT {rows_max}) AS old
           WHERE gone.partition = {partition} AND gone.last_offset = old.last_offset RETURNING 1)
         SELECT count(*) FROM removed"
    )
}

/// Returns a statement that subtracts the removed bytes from the live bytes of each object. An object without live
/// bytes becomes unused.
fn release(objects: &BTreeMap<ObjectId, i64>) -> String {
    format!(
        "UPDATE fullbore.diskless_objects AS o SET live_bytes = live_bytes - removed.bytes,
           state = CASE WHEN live_bytes <= removed.bytes THEN {UNUSED} ELSE state END,
           changed_at = CASE WHEN live_bytes <= removed.bytes THEN clock_timestamp() ELSE changed_at END
         FROM unnest({}::bigint[], {}::bigint[]) AS removed (id, bytes) WHERE o.id = removed.id",
        array(objects.keys()),
        array(objects.values())
    )
}

fn numbers(answers: &mut IndexAnswers) -> Result<Vec<i64>, CommitError> {
    next(answers).and_then(|rows| each(&rows, |row| number(row, 0))).map_err(CommitError::Refused)
}
