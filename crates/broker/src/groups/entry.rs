//! A group, with the requests that wait for its answers.

use super::fresh_parts_id;
use super::outbox::Outbox;
use crate::coordinator::{self, Shard, Waiting};
use fullbore_rules::group::{Change, Group, GroupAnswer, PartKey, Protocol, RequestTicket};
use fullbore_wire::{ErrorCode, Text};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize};

/// How many tombstones of former members may wait until writes succeed again.
const UNWRITTEN_PARTS_MAX: usize = 10_000;

pub(super) struct Entry {
    pub id: Text,
    /// The shard that stores the group.
    pub shard: Arc<Shard>,
    inner: Mutex<EntryState>,
    /// The deadline of the group's earliest alarm in the timer, or `i64::MAX` if it has none. Written under the group's
    /// lock.
    pub alarm: AtomicI64,
    /// How many of the group's commits are in flight. Increased under the group's lock, and decreased once the offsets
    /// of the commit are visible.
    pub commits: AtomicUsize,
}

pub(super) struct EntryState {
    pub group: Group,
    pub waiting: Waiting<GroupAnswer>,
    /// The group's share of `Groups::bytes`, which was last updated after the group's last event.
    pub bytes: usize,
    /// Effects that have not been carried out yet. While there are any, a task is writing the group's records.
    pub outbox: Outbox,
    /// Records whose write has failed. The next write includes them.
    pub unwritten: Change,
    /// True while a task writes records.
    pub is_keeping: bool,
    /// True once the group was removed from the table.
    pub is_gone: bool,
}

impl Entry {
    pub fn new(id: Text, group: Group, shard: Arc<Shard>) -> Arc<Self> {
        let inner = EntryState {
            group,
            waiting: Waiting::default(),
            bytes: 0,
            outbox: Outbox::default(),
            unwritten: Change::default(),
            is_keeping: false,
            is_gone: false,
        };
        let (inner, alarm) = (Mutex::new(inner), AtomicI64::new(i64::MAX));
        Arc::new(Entry { id, shard, inner, alarm, commits: AtomicUsize::new(0) })
    }

    pub fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.inner.lock()
    }
}

impl EntryState {
    /// Creates a ticket for a request, and its pending answer.
    pub fn ticket(&mut self) -> (RequestTicket, PendingAnswer) {
        let (number, pending) = self.waiting.ticket();
        (RequestTicket(number), PendingAnswer(Ok(pending)))
    }

    /// Refuses every waiting request with COORDINATOR_NOT_AVAILABLE.
    pub fn refuse_all(&mut self) {
        self.waiting.answer_all(|| GroupAnswer::Refused(ErrorCode::COORDINATOR_NOT_AVAILABLE));
    }

    /// Takes the records to write: those whose write has failed before, those in the outbox, and the group's snapshot.
    pub fn take_change(&mut self) -> Change {
        let mut change = std::mem::take(&mut self.unwritten);
        change.merge(self.outbox.take_change());
        // If the group has a new snapshot, it replaces the older one of the outbox.
        change.group = self.group.take_snapshot().or(change.group);
        change
    }

    /// Takes back the records of a write that has failed. The next write includes them.
    ///
    /// Some may be tombstones of members that have left while writes failed. If there are too many, they are
    /// dropped. The *parts* of a group of the consumer protocol (its records of members and regular expressions) then
    /// get a new id, and all records of the group are written again.
    pub fn put_back(&mut self, change: Change) {
        self.unwritten = change;
        if self.unwritten.parts.len() <= self.group.parts_len() + UNWRITTEN_PARTS_MAX {
            return;
        }
        if self.group.protocol() == Protocol::Classic {
            // A classic group has no parts. If the group used the consumer protocol before, the log still contains its
            // parts of that time, which the next load of the shard deletes.
            return self.unwritten.parts.clear();
        }
        self.outbox.clear_change();
        self.group.renew_parts(fresh_parts_id());
        self.unwritten = self.group.records();
    }

    /// Returns the keys of the parts whose records are still to be written.
    pub fn unwritten_parts(&self) -> Vec<PartKey> {
        self.outbox
            .change()
            .into_iter()
            .chain([&self.unwritten])
            .flat_map(|change| change.parts.keys().copied())
            .collect()
    }

    /// Returns the size of the snapshots that are still to be written.
    #[cfg(test)]
    pub fn queued_bytes(&self) -> usize {
        let of = |change: &Change| change.group.as_ref().map_or(0, |group| group.state.len());
        self.outbox.change().map_or(0, of) + of(&self.unwritten)
    }

    pub fn answer(&mut self, ticket: RequestTicket, answer: GroupAnswer) {
        self.waiting.answer(ticket.0, answer);
    }
}

/// The future answer of a group, or the refusal of a request that has not reached any group.
pub struct PendingAnswer(Result<coordinator::PendingAnswer<GroupAnswer>, ErrorCode>);

impl PendingAnswer {
    pub(super) fn refused(code: ErrorCode) -> Self {
        PendingAnswer(Err(code))
    }

    /// Waits for the answer.
    pub async fn answer(self) -> GroupAnswer {
        let answered = match self.0 {
            Ok(pending) => pending.answer().await,
            Err(code) => Err(code),
        };
        answered.unwrap_or_else(GroupAnswer::Refused)
    }
}
