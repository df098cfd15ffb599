//! The groups and offsets that are collected while the log of a shard is replayed, with the pending offsets of open
//! transactions.
//!
//! The offsets may include some of deleted topics, which the caller does not install.

use super::offsets::OffsetAndMetadata;
use super::records::GroupRecord;
use bytes::Bytes;
use fullbore_rules::group::{PartKey, Parts, PendingOffsets, Snapshot};
use fullbore_rules::sequence::Marker;
use fullbore_wire::{Text, Uuid};
use std::collections::{HashMap, HashSet};

/// The offsets of a group by topic name and partition, each with the id of its topic.
pub(super) type FoundOffsets = HashMap<(Text, i32), (Uuid, OffsetAndMetadata)>;

/// The pending offsets of a group, with the same keys as [`FoundOffsets`].
pub(super) type FoundPending = PendingOffsets<(Text, i32), (Uuid, OffsetAndMetadata)>;

/// The state that the log of a shard contains.
#[derive(Default)]
pub(super) struct ReplayedShard {
    /// The groups' own records.
    pub snapshots: HashMap<Text, Snapshot>,
    /// The parts of groups, by the id through which a group's own record refers to them.
    pub parts: HashMap<Uuid, Parts>,
    /// The committed offsets by group. The group's id may be long, so it is stored only once.
    pub offsets: HashMap<Text, FoundOffsets>,
    /// Pending offsets by group.
    pub pending: HashMap<Text, FoundPending>,
    /// For each producer with an open transaction, the groups in which it has pending offsets.
    open: HashMap<i64, HashSet<Text>>,
}

impl ReplayedShard {
    /// Applies a record. `transaction` is the producer's id if the record was written in a transaction.
    pub fn note(&mut self, kept: GroupRecord, transaction: Option<i64>) {
        match kept {
            GroupRecord::Offset { group, topic, partition, committed: Some(committed) } => {
                let key = (topic, partition);
                if let Some(producer_id) = transaction {
                    self.open.entry(producer_id).or_default().insert(group.clone());
                    self.pending.entry(group).or_default().put(producer_id, key, committed);
                    return;
                }
                if let Some(pending) = self.pending.get_mut(&group) {
                    pending.supersede(&key);
                }
                self.offsets.entry(group).or_default().insert(key, committed);
            }
            GroupRecord::Offset { group, topic, partition, committed: None } => {
                self.forget(&group, &(topic, partition))
            }
            GroupRecord::Group { group, snapshot: Some(snapshot) } => drop(self.snapshots.insert(group, snapshot)),
            GroupRecord::Group { group, snapshot: None } => drop(self.snapshots.remove(&group)),
            GroupRecord::Part { key, value } => self.put_part(key, value),
            GroupRecord::Other => {}
        }
    }

    fn put_part(&mut self, key: PartKey, value: Option<Bytes>) {
        if let Some(value) = value {
            self.parts.entry(key.parts_id).or_default().insert(key, value);
            return;
        }
        let Some(parts) = self.parts.get_mut(&key.parts_id) else { return };
        parts.remove(&key);
        if parts.is_empty() {
            self.parts.remove(&key.parts_id);
        }
    }

    /// Removes and returns the parts to which the group's own record `snapshot` refers.
    pub fn take_parts(&mut self, snapshot: &Snapshot) -> Parts {
        snapshot.parts_id().and_then(|parts_id| self.parts.remove(&parts_id)).unwrap_or_default()
    }

    fn forget(&mut self, group: &Text, key: &(Text, i32)) {
        if let Some(pending) = self.pending.get_mut(group) {
            pending.remove(key);
            if pending.is_empty() {
                self.pending.remove(group);
            }
        }
        let Some(of_group) = self.offsets.get_mut(group) else { return };
        of_group.remove(key);
        if of_group.is_empty() {
            self.offsets.remove(group);
        }
    }

    /// Applies the end of a transaction.
    pub fn end_transaction(&mut self, marker: &Marker) {
        for group in self.open.remove(&marker.producer_id).into_iter().flatten() {
            let Some(pending) = self.pending.get_mut(&group) else { continue };
            let ended = pending.end(marker.producer_id, marker.is_commit);
            if pending.is_empty() {
                self.pending.remove(&group);
            }
            if !ended.applied.is_empty() {
                self.offsets.entry(group).or_default().extend(ended.applied);
            }
        }
    }
}
