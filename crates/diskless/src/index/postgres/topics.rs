//! Creates and deletes partitions and moves log starts, each in one transaction. Also records the id of the object
//! store. Several brokers may request the same change at the same time.
//!
//! When a partition is deleted, its producer rows stay for its successor, the next partition of the same name. A broker
//! may have to create the successor before it learns of the deletion. The creation therefore first deletes all other
//! partitions of this name.
//!
//! Invariant: no partition is created for a deleted topic. A slow broker could otherwise create partitions after the
//! deletion, and they would remain until a broker restarts (see [`delete_unknown`]).

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use fullbore_rules::commit::DisklessPartitionId;
use fullbore_rules::sequence::{NO_PRODUCER_ID, PRODUCERS_MAX};
use fullbore_wire::Uuid;

use super::super::packed::{CARRIED_FOR, FORGOTTEN_AT, forgotten_row};
use super::super::store::{ClassicTails, KnownStore, PartitionRow, ProducerRow, classic_before};
use super::guarded::Guarded;
use super::rows::{IndexAnswers, LIVE, PARTITION, UNUSED, array, each, hex, partition, producer};
use fullbore_db::postgres::literal as sql_literal;
use fullbore_db::postgres::rows::{flag, next, number, text};
use fullbore_db::{CommitError, StoreError};
use fullbore_host::files::now_ms;

/// Maximum number of partitions for which one statement copies the rows of their predecessors. The statement may read
/// tens of thousands of rows for each partition.
const CARRIED_AT_ONCE: usize = 4;

/// Creates the missing partitions of a topic, and deletes those of other topics with the same name. Returns no rows if
/// the topic is not in the metadata.
pub fn create(session: &mut Guarded, name: &str, topic_id: Uuid, count: i32) -> Result<Vec<PartitionRow>, CommitError> {
    let (name, topic) = (sql_literal(&name), sql_literal(&topic_id));
    let others = format!("p.topic = {name} AND p.topic_id <> {topic}");
    // This lock makes a concurrent deletion of the topic wait until this transaction ends. The deletion then finds the
    // new partitions.
    let lock = format!("SELECT id FROM fullbore.topics WHERE id = {topic} FOR SHARE; {}", lock_partitions(&others));
    let mut answers = session.begin(&lock).map_err(CommitError::Refused)?;
    let is_there = next(&mut answers).is_ok_and(|rows| !rows.is_empty());
    if !is_there {
        session.abandon();
        return Ok(Vec::new());
    }
    carry_over(session, &mut answers)?;
    let made = session.end(&format!(
        "{};
         INSERT INTO fullbore.diskless_partitions (topic_id, topic, partition_index, log_start, next_offset, bytes, max_timestamp,
             has_forgotten, batches_retained, expired_to)
           SELECT {topic}, {name}, number, 0, 0, 0, -1, false, 0, -1 FROM generate_series(0, {count} - 1) AS number
           WHERE NOT EXISTS (SELECT 1 FROM fullbore.diskless_partitions WHERE topic_id = {topic} AND partition_index = number)
           ORDER BY number ON CONFLICT DO NOTHING;
         SELECT {PARTITION} FROM fullbore.diskless_partitions AS p WHERE p.topic_id = {topic} AND p.partition_index < {count}
           ORDER BY p.partition_index",
        remove_partitions(&others)
    ))?;
    read(made)
}

/// Makes deleted classic partitions the predecessors of those partitions of a diskless topic that do not exist yet.
/// Skips a classic partition if neither its producers nor a bound of their ids is known. The rows of an earlier
/// predecessor then stay, because another broker may know more about the classic partition.
pub fn succeed_classic(
    session: &mut Guarded,
    name: &str,
    topic_id: Uuid,
    before: &[ClassicTails],
) -> Result<(), CommitError> {
    let of_use = before.iter().filter(|tails| !tails.are_unknown() || tails.unknown_below < i64::MAX);
    let (unknown, known): (Vec<_>, Vec<_>) = of_use.partition(|tails| tails.are_unknown());
    [unknown, known]
        .iter()
        .filter(|tails| !tails.is_empty())
        .try_for_each(|tails| enter_classic(session, name, topic_id, tails))
}

/// Does the work of [`succeed_classic`] for some of the classic partitions: either all of them have known producers, or
/// all have unknown ones. If the producers are unknown, any producer may have written to the partition, so the rows of
/// its own predecessor are not copied.
fn enter_classic(
    session: &mut Guarded,
    name: &str,
    topic_id: Uuid,
    before: &[&ClassicTails],
) -> Result<(), CommitError> {
    let (name, topic, classic) = (sql_literal(&name), sql_literal(&topic_id), sql_literal(&classic_before(topic_id)));
    // With this lock, only one broker at a time enters predecessors of the topic. If another transaction deletes the
    // topic, this statement waits for it and then finds no row.
    let lock = format!("SELECT id FROM fullbore.topics WHERE id = {topic} FOR UPDATE");
    let mut answers = session.begin(&lock).map_err(CommitError::Refused)?;
    if !next(&mut answers).is_ok_and(|rows| !rows.is_empty()) {
        session.abandon();
        return Ok(());
    }
    let partitions = before.iter().map(|tails| format!("({})", tails.index));
    let producers = before.iter().flat_map(|tails| tails.rows().map(move |row| (tails.index, row)));
    let producers = producers.map(|(index, (offset, producer_id, batches))| {
        format!("({index}, ({offset})::bigint, ({producer_id})::bigint, '{}')", hex(&batches))
    });
    let of_classic = format!("p.topic_id = {classic}");
    let enter = format!(
        "INSERT INTO fullbore.diskless_partitions (topic_id, topic, partition_index, log_start, next_offset, bytes, max_timestamp,
             has_forgotten, batches_retained, expired_to)
           SELECT {classic}, {name}, number, 0, 1, 0, -1, false, 0, -1 FROM (VALUES {}) AS before (number)
           WHERE NOT EXISTS (SELECT 1 FROM fullbore.diskless_partitions WHERE topic_id = {topic} AND partition_index = number)
           ORDER BY number;
         INSERT INTO fullbore.diskless_producers (partition, base_offset, producer_id, written_ms, batches)
           SELECT p.id, r.base_offset, r.producer_id, {}, decode(r.batches, 'hex') FROM fullbore.diskless_partitions AS p
           JOIN (VALUES {}) AS r (number, base_offset, producer_id, batches) ON p.partition_index = r.number
           WHERE p.topic_id = {classic};
         {}",
        list(partitions),
        now_ms(),
        list(producers),
        lock_partitions(&of_classic)
    );
    let mut answers = session.query(&enter).map_err(CommitError::Refused)?;
    if before.iter().all(|tails| !tails.are_unknown()) {
        carry_over(session, &mut answers)?;
    }
    session.end(&remove_partitions(&of_classic)).map(drop)
}

fn list(rows: impl Iterator<Item = String>) -> String {
    rows.collect::<Vec<_>>().join(", ")
}

/// Deletes a topic. The GC later removes the rows of its partitions.
pub fn delete(session: &mut Guarded, topic_id: Uuid) -> Result<(), CommitError> {
    let of_topic = format!("p.topic_id = {}", sql_literal(&topic_id));
    remove(session, &of_topic)
}

/// Deletes partitions whose topics are not in the metadata. There are such partitions if a topic was deleted while no
/// broker that serves diskless topics was running.
pub fn delete_unknown(session: &mut Guarded) -> Result<(), CommitError> {
    let unknown = "NOT EXISTS (SELECT 1 FROM fullbore.topics AS t WHERE t.id = p.topic_id)";
    remove(session, unknown)
}

fn remove(session: &mut Guarded, which: &str) -> Result<(), CommitError> {
    let mut answers = session.begin(&lock_partitions(which)).map_err(CommitError::Refused)?;
    carry_over(session, &mut answers)?;
    session.end(&remove_partitions(which)).map(drop)
}

/// Returns two statements. The first locks the partitions that match the condition `which`, the second finds those of
/// them that have records and a predecessor.
fn lock_partitions(which: &str) -> String {
    format!(
        "SELECT p.id FROM fullbore.diskless_partitions AS p WHERE {which} ORDER BY p.id FOR UPDATE;
         SELECT p.id FROM fullbore.diskless_partitions AS p JOIN fullbore.diskless_predecessors AS before USING (topic, partition_index)
           WHERE {which} AND p.next_offset > 0 ORDER BY p.id"
    )
}

/// Prepares the deletion of partitions. If a producer has written only to the predecessor of such a partition, its row
/// there is copied to the partition. After [`CARRIED_FOR`], begins no more copies. `answers` are the results of
/// [`lock_partitions`].
fn carry_over(session: &mut Guarded, answers: &mut IndexAnswers) -> Result<(), CommitError> {
    let replacing = next(answers).and_then(|_| each(&next(answers)?, |row| number(row, 0)));
    let replacing = replacing.inspect_err(|_| session.abandon()).map_err(CommitError::Refused)?;
    let began = Instant::now();
    // Several statements copy the rows. A single one might exceed the time limit of statements at each attempt, and the
    // deletion would never succeed.
    let pieces = replacing.chunks(CARRIED_AT_ONCE).take_while(|_| began.elapsed() < CARRIED_FOR);
    pieces.map(carry).try_for_each(|piece| session.query(&piece).map(drop)).map_err(CommitError::Refused)
}

/// Returns a statement that copies producer rows to each of these partitions from its predecessor.
///
/// Only producers that have not written to the partition itself are copied, each with its newest row. The copies get
/// offsets before those of the partition's own rows. If the partition and its predecessor together have more than
/// [`PRODUCERS_MAX`] producers, the limit of a partition, nothing is copied.
fn carry(ids: &[DisklessPartitionId]) -> String {
    format!(
        "INSERT INTO fullbore.diskless_producers (partition, base_offset, producer_id, written_ms, batches)
           SELECT p.id, {FORGOTTEN_AT} - r.age, r.producer_id, r.written_ms, r.batches FROM fullbore.diskless_partitions AS p
           JOIN fullbore.diskless_predecessors AS before USING (topic, partition_index)
           CROSS JOIN LATERAL (SELECT newest.*, count(*) OVER () AS producers,
               row_number() OVER (PARTITION BY newest.partition ORDER BY newest.base_offset DESC) AS age
             FROM (SELECT DISTINCT ON (producer_id) * FROM fullbore.diskless_producers AS of
               WHERE of.partition IN (p.id, before.partition) AND of.producer_id <> {NO_PRODUCER_ID}
               ORDER BY of.producer_id, of.partition = p.id DESC, of.base_offset DESC) AS newest) AS r
           WHERE p.id = ANY({}::bigint[]) AND r.partition = before.partition AND r.producers <= {PRODUCERS_MAX}
           ON CONFLICT DO NOTHING",
        array(ids.iter())
    )
}

/// Returns the statements that delete these partitions. A deleted partition with records and producer rows becomes the
/// predecessor of the next partition of its name. The GC later removes the rows of its own predecessor. If the deleted
/// partition has forgotten some producers, a [`forgotten_row`] is stored for it.
fn remove_partitions(which: &str) -> String {
    let clear = |partitions: &str| {
        format!(
            "INSERT INTO fullbore.diskless_cleared (partition, before) {partitions}
               ON CONFLICT (partition) DO UPDATE SET before = excluded.before"
        )
    };
    let everything = i64::MAX;
    let they = format!("SELECT p.id, {everything} FROM fullbore.diskless_partitions AS p WHERE {which} ORDER BY p.id");
    let replaced = format!("SELECT partition, {everything} FROM replaced ORDER BY partition");
    format!(
        "{};
         WITH replaced AS (
           DELETE FROM fullbore.diskless_predecessors AS before USING fullbore.diskless_partitions AS p
             WHERE {which} AND p.next_offset > 0 AND before.topic = p.topic AND before.partition_index = p.partition_index
             RETURNING before.partition)
         {};
         INSERT INTO fullbore.diskless_producers (partition, base_offset, producer_id, written_ms, batches)
           SELECT p.id, {FORGOTTEN_AT}, {NO_PRODUCER_ID}, {}, decode('{}', 'hex') FROM fullbore.diskless_partitions AS p
           WHERE {which} AND next_offset > 0 AND topic IS NOT NULL AND (has_forgotten OR expired_to >= 0) ORDER BY p.id
           ON CONFLICT DO NOTHING;
         INSERT INTO fullbore.diskless_predecessors (topic, partition_index, partition)
           SELECT topic, partition_index, id FROM fullbore.diskless_partitions AS p
           WHERE {which} AND next_offset > 0 AND topic IS NOT NULL
             AND EXISTS (SELECT 1 FROM fullbore.diskless_producers AS r WHERE r.partition = p.id)
           ORDER BY topic, partition_index;
         DELETE FROM fullbore.diskless_partitions AS p WHERE {which}",
        clear(&they),
        clear(&replaced),
        now_ms(),
        hex(&forgotten_row(i64::MAX))
    )
}

/// Returns the newest row of each producer on the predecessors of these partitions. The rows are returned with the ids
/// of the partitions, not of the predecessors.
pub fn predecessors(session: &mut Guarded, ids: &[DisklessPartitionId]) -> Result<Vec<ProducerRow>, StoreError> {
    let ids_in_order = array(ids.iter());
    let statements = format!(
        "SELECT id FROM fullbore.diskless_partitions WHERE id = ANY({ids_in_order}::bigint[]);
         SELECT p.id, r.producer_id, r.written_ms, encode(r.batches, 'hex') FROM fullbore.diskless_partitions AS p
           JOIN fullbore.diskless_predecessors AS before ON before.topic = p.topic AND before.partition_index = p.partition_index
           CROSS JOIN LATERAL (SELECT DISTINCT ON (producer_id) * FROM fullbore.diskless_producers AS of
             WHERE of.partition = before.partition ORDER BY producer_id, base_offset DESC) AS r
           WHERE p.id = ANY({ids_in_order}::bigint[]) ORDER BY p.id, r.base_offset"
    );
    let mut answers = session.query_or_read(&statements)?;
    if next(&mut answers)?.len() < ids.len() {
        // Another transaction has just deleted one of the partitions. Without the partition's row, its predecessor
        // cannot be found, so the whole read fails.
        return Err(StoreError::Away("a partition was deleted meanwhile".into()));
    }
    each(&next(&mut answers)?, producer)
}

/// Returns the object store whose id is in the index. If there is an id, the store counts as in use, because other
/// brokers may be using it.
pub fn known_store(session: &mut Guarded) -> Result<KnownStore, StoreError> {
    let mut answers = session.read(&format!(
        "SELECT store_id FROM fullbore.diskless_store;
         SELECT EXISTS (SELECT 1 FROM fullbore.diskless_objects WHERE state IN ({LIVE}, {UNUSED}))"
    ))?;
    let store_id = each(&next(&mut answers)?, |row| text(row, 0).map(str::to_owned))?.pop();
    let has_objects = each(&next(&mut answers)?, |row| flag(row, 0))? == [true];
    Ok(KnownStore { is_in_use: has_objects || store_id.is_some(), store_id })
}

/// Records the id of the store if no id is recorded yet. Returns the recorded id.
pub fn adopt_store(session: &mut Guarded, store_id: &str) -> Result<String, CommitError> {
    session.begin("").map_err(CommitError::Refused)?;
    let store_id = sql_literal(&store_id);
    let mut answers = session.end(&format!(
        "INSERT INTO fullbore.diskless_store VALUES (1, {store_id}) ON CONFLICT DO NOTHING;
         SELECT store_id FROM fullbore.diskless_store"
    ))?;
    let found = next(&mut answers).and_then(|rows| each(&rows, |row| text(row, 0).map(str::to_owned)));
    let found = found.map_err(CommitError::Refused)?;
    found
        .into_iter()
        .next()
        .ok_or_else(|| CommitError::Unknown("the database does not return the id of the store".into()))
}

/// Moves log starts in one transaction. Returns the rows after the moves, with `None` for each deleted partition.
pub fn move_log_starts(
    session: &mut Guarded,
    moves: &[(DisklessPartitionId, i64)],
) -> Result<Vec<Option<PartitionRow>>, CommitError> {
    let ids = array(moves.iter().map(|(id, _)| id));
    let partitions = "fullbore.diskless_partitions AS p";
    let lock =
        format!("SELECT {PARTITION} FROM {partitions} WHERE p.id = ANY({ids}::bigint[]) ORDER BY p.id FOR UPDATE");
    let found = read(session.begin(&lock).map_err(CommitError::Refused)?).inspect_err(|_| session.abandon())?;
    let mut rows: HashMap<DisklessPartitionId, PartitionRow> = found.into_iter().map(|row| (row.id, row)).collect();
    let mut moved = BTreeMap::new();
    for (id, offset) in moves {
        if let Some(row) = rows.get_mut(id).filter(|row| row.log_start < (*offset).min(row.next_offset)) {
            row.log_start = (*offset).min(row.next_offset);
            moved.insert(*id, row.log_start);
        }
    }
    if moved.is_empty() {
        session.abandon();
    } else {
        let log_starts = format!("unnest({}::bigint[], {}::bigint[])", array(moved.keys()), array(moved.values()));
        session.end_counted(&format!(
            "UPDATE {partitions} SET log_start = moved.log_start, {} FROM {log_starts} AS moved (id, log_start) WHERE p.id = moved.id;
             INSERT INTO fullbore.diskless_cleared AS cleared (partition, before) SELECT * FROM {log_starts} AS moved
               ON CONFLICT (partition) DO UPDATE SET before = greatest(cleared.before, excluded.before)",
            session.changed_by()
        ))?;
    }
    Ok(moves.iter().map(|(id, _)| rows.get(id).cloned()).collect())
}

/// Sets the number of batches that these partitions retain of each producer to `window`. A larger number stays in
/// force.
pub fn retain_batches(
    session: &mut Guarded,
    partitions: &[DisklessPartitionId],
    window: usize,
) -> Result<(), CommitError> {
    let window = i32::try_from(window).unwrap_or(i32::MAX);
    let fewer = format!("id = ANY({}::bigint[]) AND batches_retained < {window}", array(partitions.iter()));
    let lock = format!("SELECT id FROM fullbore.diskless_partitions WHERE {fewer} ORDER BY id FOR UPDATE");
    session.begin(&lock).map_err(CommitError::Refused)?;
    let set = format!("UPDATE fullbore.diskless_partitions SET batches_retained = {window} WHERE {fewer}");
    session.end(&set).map(drop)
}

fn read(answers: IndexAnswers) -> Result<Vec<PartitionRow>, CommitError> {
    let mut answers = answers;
    next(&mut answers).and_then(|rows| each(&rows, partition)).map_err(CommitError::Refused)
}
