//! The records of a group that have changed since they were last written.
//!
//! Only the keys of changed records are stored here. `keep.rs` packs the records when the caller takes the change.

use super::member::ConsumerGroupMember;
use super::topics::TopicsHash;
use crate::group::PartKind;
use fullbore_wire::{Text, Uuid};
use std::collections::BTreeMap;

/// The fields of the group's own record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Head {
    pub group_epoch: i32,
    pub assignment_epoch: i32,
    pub empty_since: Option<i64>,
    pub topics_hash: TopicsHash,
}

/// The changes that must be written, and the keys of the group's parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Unsaved {
    /// The id in the keys of the parts.
    pub parts_id: Uuid,
    /// The number of the next member or expression.
    pub next_number: i64,
    /// The group's own record when a change was last taken; `None` if the log has no record of this layout.
    pub head: Option<Head>,
    /// The parts that were changed or deleted, each with the member's id or with the expression.
    pub parts: BTreeMap<(PartKind, i64), Text>,
    /// True if there is a change that must be written.
    pub is_dirty: bool,
}

impl Unsaved {
    /// Returns the number of a new member or expression.
    pub fn number(&mut self) -> i64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Notes that a part of a member was changed or deleted.
    pub fn mark_member(&mut self, kind: PartKind, member: &ConsumerGroupMember) {
        if let Some(number) = member.number {
            self.mark(kind, number, &member.id);
        }
    }

    /// Notes that a part was changed or deleted.
    pub fn mark(&mut self, kind: PartKind, number: i64, name: &Text) {
        self.parts.insert((kind, number), name.clone());
        self.is_dirty = true;
    }
}
