//! The snapshot of a classic group: its generation, its members and their assignments.
//!
//! Waiting requests, pending ids and deadlines are not part of it. A snapshot is encoded only when the caller writes
//! it, so static members that return at the same time share one snapshot. A restored group is stable, or empty if it
//! has no members.
//!
//! Invariant: a snapshot shows a group that is stable or empty. If an event is about to end that state before the
//! write, the snapshot is encoded first.

use super::member::{ClassicGroupMember, Profile};
use super::{Classic, ClassicGroupSettings, GroupState};
use crate::group::snapshot::{CLASSIC, Packer, Unpacker, WHOLE};
use crate::group::{Change, Effect, Effects, MemberId, Snapshot, SnapshotError};
use bytes::Bytes;
use fullbore_wire::{DecodeError, Text};

/// The snapshot of a group that must still be written.
#[derive(Debug, Default)]
pub(super) enum Unsaved {
    /// Nothing has changed since the last snapshot was taken.
    #[default]
    Nothing,
    /// A snapshot must be written, but is not encoded yet. The group is still stable or empty.
    Newest,
    /// An encoded snapshot of a stable or empty state that the group has left.
    Former(Snapshot),
}

impl Classic {
    /// Adds the effect that writes the group before any later effect. The group must be stable or empty.
    pub(super) fn keep(&mut self, effects: &mut Effects) {
        self.was_kept = true;
        self.unsaved = Unsaved::Newest;
        effects.push(Effect::Keep(Change::default()));
    }

    /// Encodes the snapshot that must still be written, if there is one. Must be called before the group's state or
    /// members change.
    pub(super) fn retain_unsaved(&mut self) {
        if matches!(self.unsaved, Unsaved::Newest) {
            self.unsaved = Unsaved::Former(self.snapshot());
        }
    }

    /// Takes the snapshot that must be written; None if nothing has changed since the last one.
    pub(in crate::group) fn take_snapshot(&mut self) -> Option<Snapshot> {
        match std::mem::take(&mut self.unsaved) {
            Unsaved::Nothing => None,
            Unsaved::Newest => Some(self.snapshot()),
            Unsaved::Former(snapshot) => Some(snapshot),
        }
    }

    pub(in crate::group) fn snapshot(&self) -> Snapshot {
        let mut packer = Packer::new(CLASSIC);
        packer.put(&self.since);
        packer.put(&self.generation);
        packer.put(&self.protocol_type);
        packer.put(&self.protocol);
        packer.put(&self.leader);
        packer.put_count(self.members.len());
        for (id, member) in &self.members {
            packer.put(id);
            packer.put(&member.instance_id);
            packer.put(&member.client_id);
            packer.put(&member.client_host);
            packer.put(&member.profile.session_timeout_ms);
            packer.put(&member.profile.rebalance_timeout_ms);
            packer.put(&member.assignment);
            packer.put_count(member.profile.protocols.len());
            for (name, metadata) in &member.profile.protocols {
                packer.put(name);
                packer.put(metadata);
            }
        }
        packer.snapshot(WHOLE)
    }

    pub(in crate::group) fn restore(
        state: Bytes,
        settings: ClassicGroupSettings,
        now: i64,
    ) -> Result<Self, SnapshotError> {
        let mut unpacker = Unpacker::new(state);
        let since = unpacker.take()?;
        let mut group = Classic::new(settings, since);
        group.generation = unpacker.take()?;
        group.protocol_type = unpacker.take()?;
        group.protocol = unpacker.take()?;
        let leader = unpacker.take()?;
        for _ in 0..unpacker.count()? {
            let (id, member) = unpack_member(&mut unpacker, now)?;
            group.insert(id, member);
        }
        unpacker.finish()?;
        group.leader = leader;
        group.was_kept = true;
        if !group.members.is_empty() {
            group.state = GroupState::Stable;
        }
        group.note_topics();
        Ok(group)
    }
}

fn unpack_member(unpacker: &mut Unpacker, now: i64) -> Result<(MemberId, ClassicGroupMember), DecodeError> {
    let id = unpacker.take()?;
    let instance_id = unpacker.take()?;
    let client_id = unpacker.take()?;
    let client_host = unpacker.take()?;
    let session_timeout_ms = unpacker.take()?;
    let rebalance_timeout_ms = unpacker.take()?;
    let assignment = unpacker.take()?;
    let count = unpacker.count()?;
    let mut protocols: Vec<(Text, Bytes)> = Vec::with_capacity(count);
    for _ in 0..count {
        protocols.push((unpacker.take()?, unpacker.take()?));
    }
    let profile = Profile { session_timeout_ms, rebalance_timeout_ms, protocols };
    let mut member = ClassicGroupMember {
        instance_id,
        client_id,
        client_host,
        profile,
        assignment,
        joining: None,
        syncing: None,
        is_new: false,
        owes_sync: false,
        deadline: 0,
    };
    member.deadline = member.session_end(now);
    Ok((id, member))
}
