//! What brokers kept of groups in the database until schema 3: read once, to be moved to `__consumer_offsets`.

use std::sync::Arc;

use bytes::Bytes;
use fullbore_wire::Uuid;
use rusqlite::{Connection, Transaction};

/// What version 5 of the schema takes away.
const WITHOUT_GROUPS: &str = include_str!("schema_5.sql");

/// What there is of groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptInDatabase {
    /// In the order of their ids.
    pub groups: Vec<StoredGroup>,
    /// The offsets, those of one group one after another.
    pub offsets: Vec<KeptOffset>,
}

/// A group's snapshot, as rules/group writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredGroup {
    /// The group's id.
    pub group: Arc<str>,
    /// The version of the layout of `state`.
    pub version: i64,
    /// The rest of it.
    pub state: Bytes,
}

/// An offset that a group committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptOffset {
    /// The group.
    pub group: Arc<str>,
    /// The topic's id.
    pub topic_id: Uuid,
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition.
    pub partition: i32,
    /// The offset of the record to be read next.
    pub offset: i64,
    /// The leader epoch of the record before it; -1 when the client did not say.
    pub leader_epoch: i32,
    /// What the client wanted to be kept beside it.
    pub metadata: Box<str>,
    /// Since 1970.
    pub committed_ms: i64,
    /// Since 1970, where the client said so.
    pub expires_ms: Option<i64>,
}

/// What there still is of groups; tables without any go at once.
pub fn take(transaction: &Transaction<'_>) -> rusqlite::Result<Option<KeptInDatabase>> {
    let is_there = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'groups')";
    if !transaction.query_row(is_there, [], |row| row.get::<_, bool>(0))? {
        return Ok(None);
    }
    let kept = load(transaction)?;
    if kept.groups.is_empty() && kept.offsets.is_empty() {
        forget(transaction)?;
        return Ok(None);
    }
    Ok(Some(kept))
}

fn load(transaction: &Transaction<'_>) -> rusqlite::Result<KeptInDatabase> {
    let mut query = transaction.prepare("SELECT group_id, version, state FROM groups ORDER BY group_id")?;
    let groups = query.query_map([], |row| {
        let group = row.get::<_, Arc<str>>(0)?;
        Ok(StoredGroup { group, version: row.get(1)?, state: Bytes::from(row.get::<_, Vec<u8>>(2)?) })
    })?;
    let mut query_offsets = transaction.prepare(
        "SELECT group_id, topic_id, topics.name, partition, offset, leader_epoch, metadata, committed_ms, expires_ms
         FROM group_offsets JOIN topics ON topics.id = topic_id ORDER BY group_id, topic_id, partition",
    )?;
    let offsets = query_offsets.query_map([], |row| {
        Ok(KeptOffset {
            group: row.get(0)?,
            topic_id: Uuid(row.get(1)?),
            topic: row.get(2)?,
            partition: row.get(3)?,
            offset: row.get(4)?,
            leader_epoch: row.get(5)?,
            metadata: row.get(6)?,
            committed_ms: row.get(7)?,
            expires_ms: row.get(8)?,
        })
    })?;
    Ok(KeptInDatabase {
        groups: groups.collect::<rusqlite::Result<_>>()?,
        offsets: offsets.collect::<rusqlite::Result<_>>()?,
    })
}

/// The tables go.
pub fn forget(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(WITHOUT_GROUPS)
}
