//! The tables of groups: snapshots and committed offsets.
//!
//! No decisions, as in the rest of the store. What a deletion means by `committed_ms` is the same here and in
//! `control/offsets.rs`, or memory and disk would part.

use std::sync::Arc;

use bytes::Bytes;
use fullbore_wire::Uuid;
use rusqlite::{Connection, Transaction, params};

use super::{CommitOffsets, DeleteGroup, DeleteOffsets, Offsets, StoredGroup};
use crate::control::command::CommitOffset;
use crate::control::offsets::Committed;

pub(super) fn commit_offsets(transaction: &Connection, commit: &CommitOffsets) -> rusqlite::Result<()> {
    let mut put = transaction.prepare_cached(
        "INSERT INTO group_offsets
         (group_id, topic_id, partition, offset, leader_epoch, metadata, committed_ms, expires_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT DO UPDATE SET offset = ?4, leader_epoch = ?5, metadata = ?6, committed_ms = ?7, expires_ms = ?8",
    )?;
    for CommitOffset { topic, partition, committed } in &commit.offsets {
        let Committed { offset, leader_epoch, metadata, committed_ms, expires_ms } = committed;
        put.execute(params![
            commit.group,
            topic.0,
            partition,
            offset,
            leader_epoch,
            metadata,
            committed_ms,
            expires_ms
        ])?;
    }
    Ok(())
}

pub(super) fn delete_offsets(transaction: &Connection, delete: &DeleteOffsets) -> rusqlite::Result<()> {
    let mut remove = transaction.prepare_cached(
        "DELETE FROM group_offsets WHERE group_id = ?1 AND topic_id = ?2 AND partition = ?3
         AND (?4 IS NULL OR committed_ms = ?4)",
    )?;
    for one in &delete.offsets {
        remove.execute(params![delete.group, one.topic.0, one.partition, one.committed_ms])?;
    }
    Ok(())
}

pub(super) fn keep(transaction: &Connection, group: &StoredGroup) -> rusqlite::Result<()> {
    let put = "INSERT OR REPLACE INTO groups (group_id, version, state) VALUES (?1, ?2, ?3)";
    transaction.prepare_cached(put)?.execute(params![group.group, group.version, &group.state[..]])?;
    Ok(())
}

pub(super) fn delete(transaction: &Connection, delete: &DeleteGroup) -> rusqlite::Result<()> {
    let row = "DELETE FROM groups WHERE group_id = ?1";
    transaction.prepare_cached(row)?.execute(params![delete.group])?;
    if delete.offsets {
        let offsets = "DELETE FROM group_offsets WHERE group_id = ?1";
        transaction.prepare_cached(offsets)?.execute(params![delete.group])?;
    }
    Ok(())
}

/// In the order of their ids.
pub(super) fn load(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<StoredGroup>> {
    let mut query = transaction.prepare("SELECT group_id, version, state FROM groups ORDER BY group_id")?;
    let rows = query.query_map([], |row| {
        let group = row.get::<_, Arc<str>>(0)?;
        Ok(StoredGroup { group, version: row.get(1)?, state: Bytes::from(row.get::<_, Vec<u8>>(2)?) })
    })?;
    rows.collect()
}

pub(super) fn load_offsets(transaction: &Transaction<'_>) -> rusqlite::Result<Offsets> {
    let mut query = transaction.prepare(
        "SELECT group_id, topic_id, partition, offset, leader_epoch, metadata, committed_ms, expires_ms
         FROM group_offsets ORDER BY group_id",
    )?;
    let mut rows = query.query([])?;
    let offsets = Offsets::default();
    let mut gathered = CommitOffsets { group: Arc::from(""), offsets: Vec::new() };
    while let Some(row) = rows.next()? {
        let group = row.get_ref(0)?.as_str()?;
        if *gathered.group != *group {
            let next = CommitOffsets { group: Arc::from(group), offsets: Vec::new() };
            offsets.commit(std::mem::replace(&mut gathered, next));
        }
        let committed = Committed {
            offset: row.get(3)?,
            leader_epoch: row.get(4)?,
            metadata: row.get(5)?,
            committed_ms: row.get(6)?,
            expires_ms: row.get(7)?,
        };
        gathered.offsets.push(CommitOffset { topic: Uuid(row.get(1)?), partition: row.get(2)?, committed });
    }
    offsets.commit(gathered);
    Ok(offsets)
}
