//! The rows of partitions: who has each, and who leads it.

use std::collections::HashMap;
use std::sync::Arc;

use fullbore_rules::replica::PartitionRegistration;
use imbl::Vector;
use rusqlite::{Connection, Row, Transaction, params};

use super::super::image::Topic;

type Partitions = Vector<Arc<PartitionRegistration>>;

/// All of them, by the id of the topic.
pub(super) fn load(transaction: &Transaction<'_>) -> rusqlite::Result<HashMap<[u8; 16], Partitions>> {
    let mut query = transaction.prepare(
        "SELECT topic_id, replicas, isr, elr, leader, leader_epoch, partition_epoch FROM partitions
         ORDER BY topic_id, partition",
    )?;
    let mut rows = query.query([])?;
    let mut topics: HashMap<[u8; 16], Partitions> = HashMap::new();
    let mut last = Arc::new(PartitionRegistration::default());
    let (mut topic, mut partitions) = ([0; 16], Partitions::new());
    while let Some(row) = rows.next()? {
        let registration = registration(row)?;
        if registration != *last {
            last = Arc::new(registration);
        }
        let of = row.get(0)?;
        if of != topic {
            topics.insert(topic, std::mem::take(&mut partitions));
            topic = of;
        }
        partitions.push_back(Arc::clone(&last));
    }
    topics.insert(topic, partitions);
    Ok(topics)
}

fn registration(row: &Row<'_>) -> rusqlite::Result<PartitionRegistration> {
    Ok(PartitionRegistration {
        replicas: ids(row, 1)?,
        isr: ids(row, 2)?,
        elr: ids(row, 3)?,
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

/// Writes those of a topic from the number `first` on, which are new.
pub(super) fn insert(connection: &Connection, topic: &Topic, first: usize) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached("INSERT INTO partitions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
    let (mut last, mut texts): (Option<&Arc<PartitionRegistration>>, _) = (None, Default::default());
    for (partition, registered) in topic.partitions.iter().enumerate().skip(first) {
        if !last.is_some_and(|last| Arc::ptr_eq(last, registered)) {
            texts = [&registered.replicas, &registered.isr, &registered.elr].map(|ids| list(ids));
            last = Some(registered);
        }
        let [replicas, isr, elr] = &texts;
        let epochs = (registered.leader_epoch, registered.partition_epoch);
        insert.execute(params![topic.id.0, partition, replicas, isr, elr, registered.leader, epochs.0, epochs.1])?;
    }
    Ok(())
}

fn list(ids: &[i32]) -> String {
    ids.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
}
