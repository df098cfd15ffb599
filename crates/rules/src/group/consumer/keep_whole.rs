//! Restores a group from a snapshot of 0.1.0, which has all members in one record.
//!
//! The group's next change replaces the snapshot by a record of the current layout, and writes all parts.

#[cfg(test)]
use super::keep::{pack_assignment, pack_classic, pack_fields};
use super::keep::{start_deadlines, unpack_assignment, unpack_classic, unpack_fields};
use super::{ConsumerGroup, ConsumerGroupSettings, Matched};
use crate::group::SnapshotError;
use crate::group::snapshot::Unpacker;
#[cfg(test)]
use crate::group::snapshot::{CONSUMER, Packer, WHOLE};
use bytes::Bytes;
use fullbore_wire::{Text, Uuid};

impl ConsumerGroup {
    /// Restores a group from a snapshot of 0.1.0. All deadlines restart. The parts will get `parts_id`.
    ///
    /// # Errors
    /// Returns [`SnapshotError`] if the bytes are not a valid snapshot.
    pub fn restore_whole(
        bytes: Bytes,
        parts_id: Uuid,
        settings: &ConsumerGroupSettings,
        now: i64,
    ) -> Result<ConsumerGroup, SnapshotError> {
        let mut unpacker = Unpacker::new(bytes);
        let mut group = ConsumerGroup::new(0, parts_id, now);
        group.group_epoch = unpacker.take()?;
        group.assignment_epoch = unpacker.take()?;
        let empty_since: i64 = unpacker.take()?;
        for _ in 0..unpacker.count()? {
            let (name, id, partitions) = (unpacker.take()?, unpacker.take()?, unpacker.take()?);
            group.topics.set(name, Some((id, partitions)));
        }
        group.topics_hash = group.topics.hash();
        for _ in 0..unpacker.count()? {
            let (regex, topics): (_, Vec<Text>) = (unpacker.take()?, unpacker.take()?);
            let number = group.unsaved.number();
            group.put_regex(regex, Matched { topics: topics.into_iter().collect(), version: None, number });
        }
        for _ in 0..unpacker.count()? {
            let mut member = unpack_fields(&mut unpacker)?;
            unpack_assignment(&mut unpacker, &mut member)?;
            unpack_classic(&mut unpacker, &mut member)?;
            start_deadlines(&mut member, settings, now);
            group.admit(member)?;
        }
        unpacker.finish()?;
        group.finish_restore(empty_since, now);
        Ok(group)
    }
}

#[cfg(test)]
impl ConsumerGroup {
    /// Returns a snapshot in the layout of Fullbore 0.1.0.
    pub(in crate::group) fn snapshot_whole(&self) -> crate::group::Snapshot {
        let mut packer = Packer::new(CONSUMER);
        packer.put(&self.group_epoch);
        packer.put(&self.assignment_epoch);
        packer.put(&self.empty_since.unwrap_or(-1));
        packer.put_count(self.topics.iter().len());
        for (name, (id, partitions)) in self.topics.iter() {
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
            pack_fields(&mut packer, member);
            pack_assignment(&mut packer, member);
            pack_classic(&mut packer, member);
        }
        packer.snapshot(WHOLE)
    }
}
