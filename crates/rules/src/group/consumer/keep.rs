//! Saves and restores a group: its epochs and members, their partitions and targets, and the resolved expressions.
//!
//! Times are not part of a snapshot, so every session restarts. Invariant: a restored group responds to every member as
//! the original would, so no member's partition is assigned to another one.

use super::assignor::Assignor;
use super::classic_member::ClassicMember;
use super::member::{ConsumerGroupMember, HeldPartitions, MemberState, PartitionSet, TopicIdPartition};
use super::{ConsumerGroup, ConsumerGroupSettings, Matched};
use crate::group::snapshot::{CONSUMER, Packer, Unpacker};
use crate::group::{GroupState, Snapshot, SnapshotError};
use bytes::Bytes;
use fullbore_wire::{DecodeError, Text, Uuid};

impl ConsumerGroup {
    /// Takes a snapshot of the group.
    pub fn snapshot(&self) -> Snapshot {
        let mut packer = Packer::new(CONSUMER);
        packer.put(&self.group_epoch);
        packer.put(&self.assignment_epoch);
        packer.put(&self.empty_since.unwrap_or(-1));
        packer.put_count(self.topics.len());
        for (name, (id, partitions)) in &self.topics {
            packer.put(name);
            packer.put(id);
            packer.put(partitions);
        }
        packer.put_count(self.regexes.len());
        for (regex, matched) in &self.regexes {
            packer.put(regex);
            packer.put(&matched.topics.iter().cloned().collect::<Vec<Text>>());
        }
        packer.put_count(self.members.len());
        for member in self.members.values() {
            pack_member(&mut packer, member);
        }
        packer.finish()
    }

    /// Restores a group from a snapshot. All deadlines restart.
    ///
    /// # Errors
    /// Returns [`SnapshotError`] if the bytes are not a valid snapshot.
    pub fn restore(bytes: Bytes, settings: &ConsumerGroupSettings, now: i64) -> Result<ConsumerGroup, SnapshotError> {
        let mut unpacker = Unpacker::new(bytes);
        let group_epoch: i32 = unpacker.take()?;
        let mut group = ConsumerGroup { group_epoch, assignment_epoch: unpacker.take()?, ..ConsumerGroup::default() };
        let empty_since: i64 = unpacker.take()?;
        for _ in 0..unpacker.count()? {
            let (name, id, partitions) = (unpacker.take()?, unpacker.take()?, unpacker.take()?);
            group.topics.insert(name, (id, partitions));
        }
        for _ in 0..unpacker.count()? {
            let (regex, topics): (_, Vec<Text>) = (unpacker.take()?, unpacker.take()?);
            group.regexes.insert(regex, Matched { topics: topics.into_iter().collect(), version: None });
        }
        for _ in 0..unpacker.count()? {
            let member = unpack_member(&mut unpacker, settings, now)?;
            if member.holds().any(|(partition, _)| group.holders.contains_key(partition)) {
                return Err(SnapshotError::Contradiction);
            }
            group.put(member);
        }
        unpacker.finish()?;
        group.note_regexes();
        if group.members.is_empty() {
            group.empty_since = Some(if empty_since < 0 { now } else { empty_since });
        }
        if !matches!(group.state(), GroupState::Empty | GroupState::Stable) {
            // If a rebalance was running when the snapshot was taken, it continues.
            group.changed_ms = Some(now);
        }
        group.dirty = false;
        Ok(group)
    }
}

fn pack_member(packer: &mut Packer, member: &ConsumerGroupMember) {
    packer.put(&member.id);
    packer.put(&member.instance_id);
    packer.put(&member.rack_id);
    packer.put(&member.client_id);
    packer.put(&member.client_host);
    packer.put(&member.rebalance_timeout_ms);
    packer.put(&member.topics.iter().cloned().collect::<Vec<Text>>());
    packer.put(&member.regex);
    packer.put(&Text::from(member.assignor.map_or("", Assignor::name)));
    packer.put(&member.epoch);
    packer.put(&member.previous_epoch);
    packer.put(&match member.state {
        MemberState::Stable => 0i8,
        MemberState::UnrevokedPartitions => 1,
        MemberState::UnreleasedPartitions => 2,
    });
    pack_partitions(packer, member.assigned.iter().map(|(&p, &epoch)| (p, epoch)));
    pack_partitions(packer, member.revoking.iter().map(|(&p, &epoch)| (p, epoch)));
    pack_partitions(packer, member.target.iter().map(|&p| (p, 0)));
    packer.put(&member.classic.as_ref().map_or(-1, |classic| classic.session_timeout_ms));
    let protocols = member.classic.as_ref().map_or(&[][..], |classic| &classic.protocols);
    packer.put_count(protocols.len());
    for (name, metadata) in protocols {
        packer.put(name);
        packer.put(metadata);
    }
}

fn unpack_member(
    unpacker: &mut Unpacker,
    settings: &ConsumerGroupSettings,
    now: i64,
) -> Result<ConsumerGroupMember, DecodeError> {
    let mut member = ConsumerGroupMember::new(unpacker.take()?);
    member.instance_id = unpacker.take()?;
    member.rack_id = unpacker.take()?;
    member.client_id = unpacker.take()?;
    member.client_host = unpacker.take()?;
    member.rebalance_timeout_ms = unpacker.take()?;
    member.topics = unpacker.take::<Vec<Text>>()?.into_iter().collect();
    member.regex = unpacker.take()?;
    member.assignor = Assignor::from_name(&unpacker.take::<Text>()?);
    member.epoch = unpacker.take()?;
    member.previous_epoch = unpacker.take()?;
    member.state = match unpacker.take::<i8>()? {
        1 => MemberState::UnrevokedPartitions,
        2 => MemberState::UnreleasedPartitions,
        _ => MemberState::Stable,
    };
    member.assigned = unpack_partitions(unpacker)?;
    member.revoking = unpack_partitions(unpacker)?;
    member.revoking.retain(|partition, _| !member.assigned.contains_key(partition));
    member.target = unpack_partitions(unpacker)?.into_keys().collect::<PartitionSet>();
    let session_timeout_ms: i32 = unpacker.take()?;
    let protocols = (0..unpacker.count()?)
        .map(|_| Ok((unpacker.take()?, unpacker.take()?)))
        .collect::<Result<Vec<_>, DecodeError>>()?;
    let mut session = settings.session_timeout_ms;
    if session_timeout_ms >= 0 {
        session = session_timeout_ms;
        member.classic = Some(ClassicMember { session_timeout_ms, protocols, join_by: None, sync_by: None });
    } else if member.state == MemberState::UnrevokedPartitions {
        member.revoke_by = Some(now + i64::from(member.rebalance_timeout_ms));
    }
    member.session_by = now + i64::from(session);
    Ok(member)
}

/// Packs partitions by topic: the topic's id, the indexes, and the epochs.
fn pack_partitions(packer: &mut Packer, partitions: impl Iterator<Item = (TopicIdPartition, i32)>) {
    let mut topics: Vec<(Uuid, Vec<i32>, Vec<i32>)> = Vec::new();
    for (partition, epoch) in partitions {
        if topics.last().is_none_or(|(id, ..)| *id != partition.topic) {
            topics.push((partition.topic, Vec::new(), Vec::new()));
        }
        if let Some((_, indexes, epochs)) = topics.last_mut() {
            indexes.push(partition.index);
            epochs.push(epoch);
        }
    }
    packer.put_count(topics.len());
    for (id, indexes, epochs) in topics {
        packer.put(&id);
        packer.put(&indexes);
        packer.put(&epochs);
    }
}

fn unpack_partitions(unpacker: &mut Unpacker) -> Result<HeldPartitions, DecodeError> {
    let mut held = HeldPartitions::new();
    for _ in 0..unpacker.count()? {
        let topic: Uuid = unpacker.take()?;
        let (indexes, epochs): (Vec<i32>, Vec<i32>) = (unpacker.take()?, unpacker.take()?);
        held.extend(indexes.into_iter().zip(epochs).map(|(index, epoch)| (TopicIdPartition { topic, index }, epoch)));
    }
    Ok(held)
}
