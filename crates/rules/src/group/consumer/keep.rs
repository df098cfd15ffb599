//! Packs the records of a group, and restores the group from them: its epochs, members, partitions, targets and
//! expressions.
//!
//! Deadlines are not stored, so every session restarts. Invariant: a restored group responds to every member as the
//! original would, so it never assigns a partition that another member holds.

use super::assignor::Assignor;
use super::classic_member::ClassicMember;
use super::member::{ConsumerGroupMember, HeldPartitions, MemberState, PartitionSet, TopicIdPartition};
use super::unsaved::{Head, Unsaved};
use super::{ConsumerGroup, ConsumerGroupSettings, Matched, Topics};
use crate::group::snapshot::{CONSUMER, Packer, Unpacker, WITH_PARTS};
use crate::group::{Change, GroupState, PartKey, PartKind, Parts, Snapshot, SnapshotError};
use bytes::Bytes;
use fullbore_wire::{DecodeError, Text, Uuid};
use std::collections::BTreeMap;

/// The first byte of each part: the version of its layout.
const PART_VERSION: u8 = 1;

impl ConsumerGroup {
    /// Returns the records that have changed since the last call; None if there are none. The records must be written
    /// before a response may show the change.
    pub fn take_change(&mut self) -> Option<Change> {
        if !std::mem::take(&mut self.unsaved.is_dirty) {
            return None;
        }
        let head = self.head();
        let is_changed = self.unsaved.head.replace(head) != Some(head);
        let parts = std::mem::take(&mut self.unsaved.parts).into_iter();
        let change = Change {
            group: is_changed.then(|| self.pack_head(head)),
            parts: parts
                .map(|((kind, number), name)| (self.key(kind, number), self.pack(kind, number, &name)))
                .collect(),
        };
        Some(change).filter(|change| !change.is_empty())
    }

    /// Returns all records of the group.
    pub fn records(&self) -> Change {
        let parts =
            self.all_parts().map(|(kind, number, name)| (self.key(kind, number), self.pack(kind, number, name)));
        Change { group: Some(self.pack_head(self.head())), parts: parts.collect() }
    }

    /// Returns the tombstones of all parts.
    pub(in crate::group) fn tombstones(&self) -> BTreeMap<PartKey, Option<Bytes>> {
        self.all_parts().map(|(kind, number, _)| (self.key(kind, number), None)).collect()
    }

    pub(in crate::group) fn parts_len(&self) -> usize {
        2 * self.members.len() + self.regexes.len()
    }

    pub(in crate::group) fn renew_parts(&mut self, parts_id: Uuid) {
        self.unsaved = Unsaved { parts_id, next_number: self.unsaved.next_number, ..Unsaved::default() };
    }

    fn all_parts(&self) -> impl Iterator<Item = (PartKind, i64, &Text)> {
        let of_members = self.members.iter().filter_map(|(id, member)| Some((member.number?, id)));
        let of_members =
            of_members.flat_map(|(number, id)| [PartKind::Member, PartKind::Assignment].map(|kind| (kind, number, id)));
        of_members.chain(self.regexes.iter().map(|(regex, matched)| (PartKind::Regex, matched.number, regex)))
    }

    fn key(&self, kind: PartKind, number: i64) -> PartKey {
        PartKey { parts_id: self.unsaved.parts_id, kind, number }
    }

    fn head(&self) -> Head {
        Head {
            group_epoch: self.group_epoch,
            assignment_epoch: self.assignment_epoch,
            empty_since: self.empty_since,
            topics_hash: self.topics_hash,
        }
    }

    fn pack_head(&self, head: Head) -> Snapshot {
        let mut packer = Packer::new(CONSUMER);
        packer.put(&self.unsaved.parts_id);
        packer.put(&head.group_epoch);
        packer.put(&head.assignment_epoch);
        packer.put(&head.empty_since.unwrap_or(-1));
        packer.put(&head.topics_hash);
        packer.snapshot(WITH_PARTS)
    }

    /// Packs a part; None if it was deleted.
    fn pack(&self, kind: PartKind, number: i64, name: &Text) -> Option<Bytes> {
        let mut packer = Packer::new(PART_VERSION);
        let member = || self.members.get(name).filter(|member| member.number == Some(number));
        match kind {
            PartKind::Member => {
                let member = member()?;
                pack_fields(&mut packer, member);
                pack_classic(&mut packer, member);
            }
            PartKind::Assignment => pack_assignment(&mut packer, member()?),
            PartKind::Regex => {
                let matched = self.regexes.get(name).filter(|matched| matched.number == number)?;
                packer.put(name);
                packer.put(&matched.topics.iter().cloned().collect::<Vec<Text>>());
            }
        }
        Some(packer.finish())
    }

    /// Restores a group from the group's own record and its parts. All deadlines restart.
    ///
    /// # Errors
    /// Returns [`SnapshotError`] if a record is not valid or missing.
    pub fn restore(
        head: Bytes,
        parts: &Parts,
        topics: &(impl Topics + ?Sized),
        settings: &ConsumerGroupSettings,
        now: i64,
    ) -> Result<ConsumerGroup, SnapshotError> {
        let mut unpacker = Unpacker::new(head);
        let mut group = ConsumerGroup::new(0, unpacker.take()?, now);
        group.group_epoch = unpacker.take()?;
        group.assignment_epoch = unpacker.take()?;
        let empty_since = unpacker.take()?;
        group.topics_hash = unpacker.take()?;
        unpacker.finish()?;
        for (key, value) in parts {
            let mut unpacker = part(value)?;
            match key.kind {
                PartKind::Member => {
                    let assignment = parts.get(&PartKey { kind: PartKind::Assignment, ..*key });
                    let mut member = unpack_fields(&mut unpacker)?;
                    unpack_classic(&mut unpacker, &mut member)?;
                    let mut assignment = part(assignment.ok_or(SnapshotError::Incomplete)?)?;
                    unpack_assignment(&mut assignment, &mut member)?;
                    assignment.finish()?;
                    start_deadlines(&mut member, settings, now);
                    group.admit(ConsumerGroupMember { number: Some(key.number), ..member })?;
                }
                PartKind::Assignment if parts.contains_key(&PartKey { kind: PartKind::Member, ..*key }) => continue,
                PartKind::Assignment => return Err(SnapshotError::Incomplete),
                PartKind::Regex => {
                    let (regex, topics): (Text, Vec<Text>) = (unpacker.take()?, unpacker.take()?);
                    if group.regexes.contains_key(&regex) {
                        return Err(SnapshotError::Contradiction);
                    }
                    let topics = topics.into_iter().collect();
                    group.put_regex(regex, Matched { topics, version: None, number: key.number });
                }
            }
            unpacker.finish()?;
        }
        let last = parts.keys().map(|key| key.number).max().unwrap_or(-1);
        group.look_up_topics(topics);
        group.finish_restore(empty_since, now);
        let head = Some(group.head());
        let parts_id = group.unsaved.parts_id;
        group.unsaved = Unsaved { parts_id, next_number: last.saturating_add(1), head, ..Unsaved::default() };
        Ok(group)
    }

    /// Adds a stored member.
    pub(super) fn admit(&mut self, member: ConsumerGroupMember) -> Result<(), SnapshotError> {
        let is_held = member.holds().any(|(partition, _)| self.holders.contains_key(partition));
        if is_held || self.members.contains_key(&member.id) {
            return Err(SnapshotError::Contradiction);
        }
        self.put(member);
        Ok(())
    }

    /// Finishes the restoration of a group whose members were all added: sets the time since which it is empty, and the
    /// time of its last change.
    pub(super) fn finish_restore(&mut self, empty_since: i64, now: i64) {
        self.empty_since = match empty_since {
            _ if !self.members.is_empty() => None,
            ..0 => Some(now),
            since => Some(since),
        };
        if !matches!(self.state(), GroupState::Empty | GroupState::Stable) {
            // The records were written during a rebalance, which continues with the short interval of a change.
            self.changed_ms = Some(now);
        }
        self.subscriptions.touched.clear();
        self.unsaved.is_dirty = false;
    }
}

/// Begins to read a part.
fn part(value: &Bytes) -> Result<Unpacker, SnapshotError> {
    match value.first() {
        Some(&PART_VERSION) => Ok(Unpacker::new(value.slice(1..))),
        version => Err(SnapshotError::Version(version.map_or(0, |version| i64::from(*version)))),
    }
}

/// Sets the deadlines of a restored member for its next heartbeat and for the revocation of partitions.
pub(super) fn start_deadlines(member: &mut ConsumerGroupMember, settings: &ConsumerGroupSettings, now: i64) {
    let session = member.classic.as_ref().map_or(settings.session_timeout_ms, |classic| classic.session_timeout_ms);
    member.session_by = now + i64::from(session);
    if member.classic.is_none() && member.state == MemberState::UnrevokedPartitions {
        member.revoke_by = Some(now + i64::from(member.rebalance_timeout_ms));
    }
}

pub(super) fn pack_fields(packer: &mut Packer, member: &ConsumerGroupMember) {
    packer.put(&member.id);
    packer.put(&member.instance_id);
    packer.put(&member.rack_id);
    packer.put(&member.client_id);
    packer.put(&member.client_host);
    packer.put(&member.rebalance_timeout_ms);
    packer.put(&member.topics.iter().cloned().collect::<Vec<Text>>());
    packer.put(&member.regex);
    packer.put(&Text::from(member.assignor.map_or("", Assignor::name)));
}

pub(super) fn unpack_fields(unpacker: &mut Unpacker) -> Result<ConsumerGroupMember, DecodeError> {
    let mut member = ConsumerGroupMember::new(unpacker.take()?);
    member.instance_id = unpacker.take()?;
    member.rack_id = unpacker.take()?;
    member.client_id = unpacker.take()?;
    member.client_host = unpacker.take()?;
    member.rebalance_timeout_ms = unpacker.take()?;
    member.topics = unpacker.take::<Vec<Text>>()?.into_iter().collect();
    member.regex = unpacker.take()?;
    member.assignor = Assignor::from_name(&unpacker.take::<Text>()?);
    Ok(member)
}

pub(super) fn pack_assignment(packer: &mut Packer, member: &ConsumerGroupMember) {
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
}

pub(super) fn unpack_assignment(unpacker: &mut Unpacker, member: &mut ConsumerGroupMember) -> Result<(), DecodeError> {
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
    Ok(())
}

pub(super) fn pack_classic(packer: &mut Packer, member: &ConsumerGroupMember) {
    packer.put(&member.classic.as_ref().map_or(-1, |classic| classic.session_timeout_ms));
    let protocols = member.classic.as_ref().map_or(&[][..], |classic| &classic.protocols);
    packer.put_count(protocols.len());
    for (name, metadata) in protocols {
        packer.put(name);
        packer.put(metadata);
    }
}

pub(super) fn unpack_classic(unpacker: &mut Unpacker, member: &mut ConsumerGroupMember) -> Result<(), DecodeError> {
    let session_timeout_ms: i32 = unpacker.take()?;
    let protocols = (0..unpacker.count()?)
        .map(|_| Ok((unpacker.take()?, unpacker.take()?)))
        .collect::<Result<Vec<_>, DecodeError>>()?;
    if session_timeout_ms >= 0 {
        member.classic = Some(ClassicMember { session_timeout_ms, protocols, join_by: None, sync_by: None });
    }
    Ok(())
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
