//! The records of a group, and those that an event has changed.
//!
//! Each group has one record under its own id. In a classic group, this record contains the whole group. In a group of
//! the consumer protocol, this record contains the epochs. Each member, assignment and regular expression then has a
//! record of its own, a *part*. So an event writes only the parts that it has changed.
//!
//! Replay: the last record of each key counts. All parts of a group have the same random id in their keys, and the
//! group's record contains this id. Parts with an id that no group's record contains are garbage.
//!
//! Invariant: the records of a change are written in one batch, so a replay finds either all or none of them.

use super::Snapshot;
use bytes::Bytes;
use fullbore_wire::Uuid;
use std::collections::BTreeMap;

/// The kinds of parts. The key of a part contains the number of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartKind {
    /// The fields that a member sends about itself, such as its subscription.
    Member = 1,
    /// The epochs and partitions of a member.
    Assignment = 2,
    /// A regular expression and the topics that it matches.
    Regex = 3,
}

impl PartKind {
    /// Returns the kind with this number; None if there is none.
    pub fn from_number(number: u8) -> Option<PartKind> {
        [PartKind::Member, PartKind::Assignment, PartKind::Regex].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// The key of a part. It does not contain the ids of the group and the member, which may be long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartKey {
    /// The random id that all parts of a group share. A group that is deleted and created again has another id.
    pub parts_id: Uuid,
    pub kind: PartKind,
    /// The number of the member or of the expression in its group.
    pub number: i64,
}

/// The stored parts of a group.
pub type Parts = BTreeMap<PartKey, Bytes>;

/// The records of a group that must be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The group's own record; `None` if it has not changed.
    pub group: Option<Snapshot>,
    /// The parts that have changed. A part without a value was deleted.
    pub parts: BTreeMap<PartKey, Option<Bytes>>,
}

impl Change {
    /// Returns the change of a group that has no parts.
    pub(super) fn whole(snapshot: Snapshot) -> Change {
        Change { group: Some(snapshot), parts: BTreeMap::new() }
    }

    /// Returns true if there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.group.is_none() && self.parts.is_empty()
    }

    /// Adds the records of a later change, which replace earlier ones with the same keys.
    pub fn merge(&mut self, later: Change) {
        if later.group.is_some() {
            self.group = later.group;
        }
        if self.parts.is_empty() {
            self.parts = later.parts;
        } else {
            self.parts.extend(later.parts);
        }
    }

    /// Returns the approximate size of the records, in bytes.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        const KEY_BYTES: usize = 27;
        let parts = self.parts.values().map(|value| KEY_BYTES + value.as_ref().map_or(0, Bytes::len));
        self.group.as_ref().map_or(0, |group| group.state.len()) + parts.sum::<usize>()
    }
}
