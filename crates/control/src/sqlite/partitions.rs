//! Reads and writes the replicas, ISRs and leaders of partitions. Consecutive partitions with equal registrations share
//! one row.

use std::collections::HashMap;
use std::sync::Arc;

use fullbore_rules::cluster::LogEndReport;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_rules::replica::epochs::Position;
use fullbore_wire::Uuid;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::super::change::{Change, Partitions};

/// Returns the partitions of all topics, by topic id.
pub fn load(connection: &Connection) -> rusqlite::Result<HashMap<[u8; 16], Partitions>> {
    let mut query = connection.prepare(
        "SELECT topic_id, replicas, isr, elr, leader, leader_epoch, partition_epoch, count, lost FROM partitions
         ORDER BY topic_id, first",
    )?;
    let mut rows = query.query([])?;
    let mut topics: HashMap<[u8; 16], Partitions> = HashMap::new();
    let mut last = Arc::new(PartitionRegistration::default());
    while let Some(row) = rows.next()? {
        let registration = registration(row)?;
        if registration != *last {
            last = Arc::new(registration);
        }
        let partitions = topics.entry(row.get(0)?).or_default();
        (0..row.get::<_, u32>(7)?).for_each(|_| partitions.push_back(Arc::clone(&last)));
    }
    Ok(topics)
}

fn registration(row: &Row<'_>) -> rusqlite::Result<PartitionRegistration> {
    Ok(PartitionRegistration {
        replicas: ids(row, 1)?,
        isr: ids(row, 2)?,
        elr: ids(row, 3)?,
        lost: ids(row, 8)?,
        leader: row.get(4)?,
        leader_epoch: row.get(5)?,
        partition_epoch: row.get(6)?,
    })
}

fn ids(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<i32>> {
    let text = row.get_ref(column)?.as_str()?;
    let parse = |id: &str| {
        let damaged = |error| rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, error);
        id.parse().map_err(|error: std::num::ParseIntError| damaged(Box::new(error)))
    };
    text.split(',').filter(|id| !id.is_empty()).map(parse).collect()
}

/// Replaces the registrations of consecutive partitions by `partitions`. The first of them has the number `first`.
pub fn replace(connection: &Connection, topic: Uuid, first: usize, partitions: &Partitions) -> rusqlite::Result<()> {
    let end = first + partitions.len();
    cut(connection, topic, first)?;
    cut(connection, topic, end)?;
    let delete = "DELETE FROM partitions WHERE topic_id = ?1 AND first >= ?2 AND first < ?3";
    connection.prepare_cached(delete)?.execute(params![topic.0, first, end])?;
    let forget = "DELETE FROM log_ends WHERE topic_id = ?1 AND partition = ?2";
    for (number, _) in (first..).zip(partitions).filter(|(_, partition)| partition.leader.is_some()) {
        connection.prepare_cached(forget)?.execute(params![topic.0, number])?;
    }
    insert(connection, topic, first, partitions)
}

/// Makes partition `at` the first one of its row, if necessary by splitting that row.
fn cut(connection: &Connection, topic: Uuid, at: usize) -> rusqlite::Result<()> {
    let before = "SELECT first, count FROM partitions WHERE topic_id = ?1 AND first < ?2 ORDER BY first DESC LIMIT 1";
    let read = |row: &Row<'_>| Ok((row.get::<_, usize>(0)?, row.get::<_, usize>(1)?));
    let before = connection.prepare_cached(before)?.query_row(params![topic.0, at], read).optional()?;
    let Some((first, count)) = before.filter(|(first, count)| first + count > at) else { return Ok(()) };
    let behind = "INSERT INTO partitions
                  SELECT topic_id, ?3, ?4, replicas, isr, elr, leader, leader_epoch, partition_epoch, lost
                  FROM partitions WHERE topic_id = ?1 AND first = ?2";
    connection.prepare_cached(behind)?.execute(params![topic.0, first, at, first + count - at])?;
    let shorter = "UPDATE partitions SET count = ?3 WHERE topic_id = ?1 AND first = ?2";
    connection.prepare_cached(shorter)?.execute(params![topic.0, first, at - first]).map(drop)
}

/// Inserts rows for partitions that have none yet. The first of them has the number `first`.
pub fn insert(connection: &Connection, topic: Uuid, first: usize, partitions: &Partitions) -> rusqlite::Result<()> {
    let mut insert =
        connection.prepare_cached("INSERT INTO partitions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)")?;
    let mut write = |first: usize, count: usize, of: &PartitionRegistration| {
        let [replicas, isr, elr, lost] = [&of.replicas, &of.isr, &of.elr, &of.lost].map(|ids| list(ids));
        let epochs = (of.leader_epoch, of.partition_epoch);
        let row = params![topic.0, first, count, replicas, isr, elr, of.leader, epochs.0, epochs.1, lost];
        insert.execute(row).map(drop)
    };
    let mut alike: Option<(usize, &Arc<PartitionRegistration>)> = None;
    for (number, registered) in (first..).zip(partitions) {
        match alike {
            Some((_, before)) if before == registered => {}
            Some((from, before)) => {
                write(from, number - from, before)?;
                alike = Some((number, registered));
            }
            None => alike = Some((number, registered)),
        }
    }
    alike.map_or(Ok(()), |(from, before)| write(from, first + partitions.len() - from, before))
}

fn list(ids: &[i32]) -> String {
    ids.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
}

/// Reads all reported log ends, and adds a change for each of them to `changes`.
pub fn load_ends(connection: &Connection, changes: &mut Vec<Change>) -> rusqlite::Result<()> {
    let mut query = connection
        .prepare("SELECT topic_id, partition, broker_id, broker_epoch, last_epoch, end_offset FROM log_ends")?;
    let mut rows = query.query([])?;
    while let Some(row) = rows.next()? {
        let position = Position { last_epoch: row.get(4)?, offset: row.get(5)? };
        let end = LogEndReport { broker_id: row.get(2)?, broker_epoch: row.get(3)?, position };
        changes.push(Change::LogEndReported { topic: Uuid(row.get(0)?), partition: row.get(1)?, end });
    }
    Ok(())
}

/// Stores the end of a broker's log of this partition, and replaces the broker's earlier report.
pub fn put_end(connection: &Connection, topic: Uuid, partition: i32, end: &LogEndReport) -> rusqlite::Result<()> {
    let put = "INSERT OR REPLACE INTO log_ends VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let position = end.position;
    let row = params![topic.0, partition, end.broker_id, end.broker_epoch, position.last_epoch, position.offset];
    connection.prepare_cached(put)?.execute(row).map(drop)
}
