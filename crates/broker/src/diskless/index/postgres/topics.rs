//! Partitions made, deleted and cut off, and the store in which all of them are, each in one transaction; any broker may ask for the same at the
//! same time.
//!
//! Invariant: there are no partitions of a topic that was deleted before they were made. A broker may be slow, and carry out the creation when all
//! others have carried out the deletion: nobody would delete what it makes.

use fullbore_rules::commit::DisklessPartitionId;
use fullbore_wire::Uuid;

use super::super::store::{KnownStore, PartitionRow};
use super::guarded::Guarded;
use super::rows::{LIVE, PARTITION, UNUSED, array, each, partition};
use crate::control::database_rows::{flag, next, text};
use crate::control::{CommitError, StoreError, sql_literal};

/// None where the topic is not in the metadata.
pub fn create(session: &mut Guarded, topic_id: Uuid, count: i32) -> Result<Vec<PartitionRow>, CommitError> {
    let topic = sql_literal(&topic_id);
    // Who deletes the topic waits for this transaction, and then finds what it made.
    let lock = format!("SELECT id FROM fullbore.topics WHERE id = {topic} FOR SHARE");
    let mut answers = session.begin(&lock).map_err(CommitError::Refused)?;
    let is_there = next(&mut answers).is_ok_and(|rows| !rows.is_empty());
    if !is_there {
        session.abandon();
        return Ok(Vec::new());
    }
    let made = session.end(&format!(
        "INSERT INTO fullbore.diskless_partitions (topic_id, partition_index, log_start, next_offset, bytes, max_timestamp,
             has_forgotten, batches_retained, expired_to)
           SELECT {topic}, number, 0, 0, 0, -1, false, 0, -1 FROM generate_series(0, {count} - 1) AS number
           WHERE NOT EXISTS (SELECT 1 FROM fullbore.diskless_partitions WHERE topic_id = {topic} AND partition_index = number)
           ORDER BY number ON CONFLICT DO NOTHING;
         SELECT {PARTITION} FROM fullbore.diskless_partitions AS p WHERE p.topic_id = {topic} AND p.partition_index < {count}
           ORDER BY p.partition_index"
    ))?;
    read(made)
}

/// What the partitions have is left to be cleared.
pub fn delete(session: &mut Guarded, topic_id: Uuid) -> Result<(), CommitError> {
    let topic = sql_literal(&topic_id);
    let lock = format!("SELECT id FROM fullbore.diskless_partitions WHERE topic_id = {topic} ORDER BY id FOR UPDATE");
    session.begin(&lock).map_err(CommitError::Refused)?;
    let everything = i64::MAX;
    session
        .end(&format!(
            "INSERT INTO fullbore.diskless_cleared (partition, before)
               SELECT id, {everything} FROM fullbore.diskless_partitions WHERE topic_id = {topic} ORDER BY id
               ON CONFLICT (partition) DO UPDATE SET before = excluded.before;
             DELETE FROM fullbore.diskless_partitions WHERE topic_id = {topic}"
        ))
        .map(drop)
}

/// Once there is a number other brokers may be using that store.
pub fn known_store(session: &mut Guarded) -> Result<KnownStore, StoreError> {
    let mut answers = session.look(&format!(
        "SELECT store_id FROM fullbore.diskless_store;
         SELECT EXISTS (SELECT 1 FROM fullbore.diskless_objects WHERE state IN ({LIVE}, {UNUSED}))"
    ))?;
    let store_id = each(&next(&mut answers)?, |row| text(row, 0).map(str::to_owned))?.pop();
    let has_objects = each(&next(&mut answers)?, |row| flag(row, 0))? == [true];
    Ok(KnownStore { is_in_use: has_objects || store_id.is_some(), store_id })
}

/// The first number stays.
pub fn adopt_store(session: &mut Guarded, store_id: &str) -> Result<String, CommitError> {
    session.begin("").map_err(CommitError::Refused)?;
    let store_id = sql_literal(&store_id);
    let mut answers = session.end(&format!(
        "INSERT INTO fullbore.diskless_store VALUES (1, {store_id}) ON CONFLICT DO NOTHING;
         SELECT store_id FROM fullbore.diskless_store"
    ))?;
    let found = next(&mut answers).and_then(|rows| each(&rows, |row| text(row, 0).map(str::to_owned)));
    let found = found.map_err(CommitError::Refused)?;
    found.into_iter().next().ok_or_else(|| CommitError::Unknown("the database does not say which store it is".into()))
}

/// Its row then, if it is there.
pub fn move_log_start(
    session: &mut Guarded,
    id: DisklessPartitionId,
    offset: i64,
) -> Result<Option<PartitionRow>, CommitError> {
    let lock = format!("SELECT {PARTITION} FROM fullbore.diskless_partitions AS p WHERE p.id = {id} FOR UPDATE");
    let found = read(session.begin(&lock).map_err(CommitError::Refused)?).inspect_err(|_| session.abandon())?;
    let Some(row) = found.into_iter().next() else {
        session.abandon();
        return Ok(None);
    };
    let log_start = offset.min(row.next_offset);
    if log_start <= row.log_start {
        session.abandon();
        return Ok(Some(row));
    }
    let moved = format!(
        "UPDATE fullbore.diskless_partitions SET log_start = ({log_start}), {} WHERE id = {id};
         INSERT INTO fullbore.diskless_cleared AS cleared (partition, before) VALUES ({id}, {log_start})
           ON CONFLICT (partition) DO UPDATE SET before = greatest(cleared.before, excluded.before)",
        session.changed_by()
    );
    session.end_counted(&moved)?;
    Ok(Some(PartitionRow { log_start, ..row }))
}

/// At least so many from now on.
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

fn read(answers: super::rows::IndexAnswers) -> Result<Vec<PartitionRow>, CommitError> {
    let mut answers = answers;
    next(&mut answers).and_then(|rows| each(&rows, partition)).map_err(CommitError::Refused)
}
