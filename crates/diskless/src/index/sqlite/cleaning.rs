//! Deletes rows: extents before the log start, deleted partitions, and idle producers. The caller must have opened a
//! transaction.

use std::time::Instant;

use fullbore_rules::commit::{BatchRun, DisklessPartitionId};
use fullbore_rules::sequence::{NO_PRODUCER_ID, PRODUCERS_MAX};
use fullbore_wire::Uuid;
use rusqlite::{Connection, OptionalExtension, Params, params};

use super::super::packed::{
    CARRIED_FOR, FORGOTTEN_AT, LAST_COUNT, LAST_SEQUENCE, forgotten_row, last_of_forgotten_row,
};
use super::super::store::{ClassicTails, classic_before};
use super::rows::UNUSED;
use fullbore_host::files::now_ms;

/// Maximum number of aborted transactions that one transaction of the database removes.
const ABORTED_AT_ONCE: usize = 4096;

/// Removes the extents `runs` of a partition, and subtracts their bytes from the partition and from the objects.
///
/// `is_last` is true if no other extent is before the offset `before`. In that case, up to [`ABORTED_AT_ONCE`] aborted
/// transactions before this offset are removed too. When none are left and the partition is deleted, its producer rows
/// are removed as well, except those that a later partition of its name needs.
pub fn clear_runs(
    connection: &Connection,
    partition: DisklessPartitionId,
    before: i64,
    runs: &[BatchRun],
    is_last: bool,
    now_ms: i64,
) -> rusqlite::Result<()> {
    let mut remove = connection.prepare_cached("DELETE FROM runs WHERE partition = ?1 AND base_offset = ?2")?;
    let mut object = connection.prepare_cached(
        "UPDATE objects SET live_bytes = live_bytes - ?2,
         state = iif(live_bytes <= ?2, ?3, state), changed_ms = iif(live_bytes <= ?2, ?4, changed_ms) WHERE id = ?1",
    )?;
    for run in runs {
        remove.execute(params![partition, run.base_offset])?;
        object.execute(params![run.object, run.bytes(), UNUSED, now_ms])?;
    }
    let bytes: i64 = runs.iter().map(|run| i64::from(run.bytes())).sum();
    connection
        .prepare_cached("UPDATE partitions SET bytes = bytes - ?2 WHERE id = ?1")?
        .execute(params![partition, bytes])?;
    if is_last && clear_aborted(connection, partition, before, ABORTED_AT_ONCE)? < ABORTED_AT_ONCE {
        let mut done = connection.prepare_cached("DELETE FROM cleared WHERE partition = ?1 AND before = ?2")?;
        done.execute(params![partition, before])?;
        let is_there = connection.prepare_cached("SELECT 1 FROM partitions WHERE id = ?1")?.exists([partition])?;
        if !is_there {
            leave_newest(connection, partition)?;
            let left = "DELETE FROM producers WHERE partition = ?1
                 AND NOT EXISTS (SELECT 1 FROM predecessors AS before WHERE before.partition = ?1)";
            connection.prepare_cached(left)?.execute([partition])?;
        }
    }
    Ok(())
}

/// Deletes the partitions that `query` finds. A deleted partition with records and producer rows becomes the
/// predecessor of the next partition of its name.
///
/// Before a partition is deleted, it gets copies of its own predecessor's rows, for producers that have not written to
/// the partition itself. After [`CARRIED_FOR`], a call begins no more copies. The GC later removes the other rows of
/// that predecessor. If the deleted partition has forgotten some producers, a [`forgotten_row`] is stored for it.
pub fn remove_partitions(connection: &Connection, query: &str, params: impl Params) -> rusqlite::Result<()> {
    let found =
        connection.prepare_cached(query)?.query_map(params, |row| row.get(0))?.collect::<Result<Vec<_>, _>>()?;
    let ids: Vec<DisklessPartitionId> = found;
    let began = Instant::now();
    for id in ids {
        if began.elapsed() < CARRIED_FOR {
            carry_over(connection, id)?;
        }
        remove(connection, id)?;
    }
    Ok(())
}

/// Deletes a partition. The caller has copied the rows of its predecessor, unless [`CARRIED_FOR`] was over.
fn remove(connection: &Connection, id: DisklessPartitionId) -> rusqlite::Result<()> {
    let forgotten = "INSERT OR REPLACE INTO producers (partition, base_offset, producer_id, written_ms, batches)
         SELECT id, ?2, ?3, ?4, ?5 FROM partitions
           WHERE id = ?1 AND next_offset > 0 AND topic IS NOT NULL AND (has_forgotten OR expired_to >= 0)";
    let statements = [
        "INSERT OR REPLACE INTO cleared VALUES (?1, 0x7fffffffffffffff)",
        "INSERT OR REPLACE INTO cleared SELECT before.partition, 0x7fffffffffffffff FROM predecessors AS before
           JOIN partitions AS p USING (topic, partition_index) WHERE p.id = ?1 AND p.next_offset > 0",
        "DELETE FROM predecessors WHERE (topic, partition_index) =
           (SELECT p.topic, p.partition_index FROM partitions AS p WHERE p.id = ?1 AND p.next_offset > 0)",
        "INSERT INTO predecessors SELECT topic, partition_index, id FROM partitions
           WHERE id = ?1 AND next_offset > 0 AND topic IS NOT NULL AND EXISTS (SELECT 1 FROM producers WHERE partition = ?1)",
        "DELETE FROM partitions WHERE id = ?1",
    ];
    let row = params![id, FORGOTTEN_AT, NO_PRODUCER_ID, now_ms(), forgotten_row(i64::MAX)];
    connection.prepare_cached(forgotten)?.execute(row)?;
    statements.iter().try_for_each(|statement| connection.prepare_cached(statement)?.execute([id]).map(drop))
}

/// Makes a deleted classic partition the predecessor of a diskless partition that does not exist yet. If no producer of
/// the classic partition is known, any producer may have written to it, so the rows of its own predecessor are not
/// copied.
pub fn succeed_classic(
    connection: &Connection,
    name: &str,
    topic_id: Uuid,
    tails: &ClassicTails,
) -> rusqlite::Result<()> {
    let made = "SELECT 1 FROM partitions WHERE topic_id = ?1 AND partition_index = ?2";
    if connection.prepare_cached(made)?.exists(params![topic_id.0, tails.index])? {
        return Ok(());
    }
    let insert =
        "INSERT INTO partitions (topic_id, partition_index, log_start, next_offset, bytes, max_timestamp, has_forgotten, expired_to, topic)
         VALUES (?1, ?2, 0, 1, 0, -1, 0, -1, ?3)";
    let row = params![classic_before(topic_id).0, tails.index, name];
    let id = connection.prepare_cached(insert)?.insert(row)?;
    let mut producer = connection.prepare_cached("INSERT INTO producers VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for (offset, producer_id, batches) in tails.rows() {
        producer.execute(params![id, offset, producer_id, now_ms(), batches])?;
    }
    if !tails.are_unknown() {
        carry_over(connection, id)?;
    }
    remove(connection, id)
}

/// Copies rows from a partition's predecessor to the partition, at offsets before the partition's own rows.
///
/// Only producers that have not written to the partition itself are copied, each with its newest row. If the two
/// partitions together have more than [`PRODUCERS_MAX`] producers, the limit of a partition, nothing is copied.
fn carry_over(connection: &Connection, id: DisklessPartitionId) -> rusqlite::Result<()> {
    let before =
        "SELECT before.partition FROM predecessors AS before JOIN partitions AS p USING (topic, partition_index)
         WHERE p.id = ?1 AND p.next_offset > 0";
    let before = connection.prepare_cached(before)?.query_row([id], |row| row.get(0)).optional()?;
    let Some(before): Option<DisklessPartitionId> = before else { return Ok(()) };
    let carry = "WITH newest AS (SELECT * FROM
           (SELECT *, row_number() OVER (PARTITION BY producer_id ORDER BY partition = ?1 DESC, base_offset DESC) AS age
             FROM producers WHERE partition IN (?1, ?2) AND producer_id <> ?4) WHERE age = 1)
         INSERT OR IGNORE INTO producers (partition, base_offset, producer_id, written_ms, batches)
           SELECT ?1, ?3 - row_number() OVER (ORDER BY base_offset DESC), producer_id, written_ms, batches FROM newest
           WHERE partition = ?2 AND (SELECT count(*) FROM newest) <= ?5";
    connection
        .prepare_cached(carry)?
        .execute(params![id, before, FORGOTTEN_AT, NO_PRODUCER_ID, PRODUCERS_MAX as i64])
        .map(drop)
}

/// Removes all producer rows of a partition, except the newest one of each producer.
pub fn leave_newest(connection: &Connection, id: DisklessPartitionId) -> rusqlite::Result<()> {
    let older = "DELETE FROM producers WHERE partition = ?1 AND base_offset NOT IN
         (SELECT max(base_offset) FROM producers WHERE partition = ?1 GROUP BY producer_id)";
    connection.prepare_cached(older)?.execute([id]).map(drop)
}

/// Returns a query with three parameters. It finds up to ?3 idle producers of partition ?1, which have not written
/// after ?2 and have no open transaction. In a deleted partition, no transaction counts as open. A row with a negative
/// offset was copied from a deleted partition, so its transaction does not count as open either.
pub fn silent_producers() -> String {
    format!(
        "SELECT producer_id FROM (SELECT producer_id, max(base_offset) AS newest FROM producers WHERE partition = ?1
           GROUP BY producer_id HAVING max(written_ms) <= ?2) AS silent
         WHERE NOT EXISTS (SELECT 1 FROM producers AS r JOIN partitions AS p ON p.id = r.partition
           WHERE r.partition = ?1 AND r.base_offset = newest AND newest >= 0
             AND substr(r.batches, -{LAST_COUNT}, 1) >= x'80' AND substr(r.batches, -{LAST_SEQUENCE}, 1) < x'80')
         ORDER BY producer_id LIMIT ?3"
    )
}

/// Removes up to `rows_max` aborted transactions whose markers are before the offset `before`. Returns the number of
/// removed transactions.
fn clear_aborted(
    connection: &Connection,
    partition: DisklessPartitionId,
    before: i64,
    rows_max: usize,
) -> rusqlite::Result<usize> {
    let remove = "DELETE FROM aborted WHERE partition = ?1 AND last_offset IN
         (SELECT last_offset FROM aborted WHERE partition = ?1 AND last_offset < ?2 ORDER BY last_offset LIMIT ?3)";
    let limit = i64::try_from(rows_max).unwrap_or(i64::MAX);
    connection.prepare_cached(remove)?.execute(params![partition, before, limit])
}

/// Returns the largest producer id that a deleted partition may have forgotten. Returns -1 if it is unknown, or if the
/// partition's [`forgotten_row`] was written after `before_ms`.
pub fn last_forgotten(connection: &Connection, id: DisklessPartitionId, before_ms: i64) -> rusqlite::Result<i64> {
    let row = "SELECT batches FROM producers WHERE partition = ?1 AND producer_id = ?2 AND written_ms <= ?3";
    let mut row = connection.prepare_cached(row)?;
    let batches: Option<Vec<u8>> =
        row.query_row(params![id, NO_PRODUCER_ID, before_ms], |row| row.get(0)).optional()?;
    Ok(batches.map_or(-1, |batches| last_of_forgotten_row(&batches)))
}

/// Records that producers of a partition have expired; `largest` is the largest of their ids. If the partition is
/// deleted, its successor, the existing partition of its name, records this. A deleted partition without producer rows
/// then stops being a predecessor.
pub fn note_expired(connection: &Connection, id: DisklessPartitionId, largest: i64) -> rusqlite::Result<()> {
    let own = "UPDATE partitions SET expired_to = max(expired_to, ?2) WHERE id = ?1";
    let next = "UPDATE partitions SET expired_to = max(expired_to, ?2)
         WHERE (topic, partition_index) = (SELECT topic, partition_index FROM predecessors WHERE partition = ?1)";
    connection.prepare_cached(own)?.execute(params![id, largest])?;
    connection.prepare_cached(next)?.execute(params![id, largest])?;
    let empty =
        "DELETE FROM predecessors WHERE partition = ?1 AND NOT EXISTS (SELECT 1 FROM producers WHERE partition = ?1)";
    connection.prepare_cached(empty)?.execute([id]).map(drop)
}
