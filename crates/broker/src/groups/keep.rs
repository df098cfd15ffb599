//! Carries out the effects of a group's state machine. Answers are sent at once, and snapshots are written to the
//! group's shard, one after another.
//!
//! The effects of one group are carried out in order. As long as the group's outbox contains any, a task is writing its
//! snapshot.

use super::entry::{Entry, EntryState};
use super::{Groups, records, timer};
use crate::coordinator::{Records, Status};
use fullbore_host::task;
use fullbore_rules::group::{Effect, Effects, Event, Group, GroupAnswer, Snapshot};
use fullbore_wire::ErrorCode;
use parking_lot::MutexGuard;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Groups {
    /// Passes an event to a group's state machine and carries out the effects.
    ///
    /// If the event panics, the state is unknown, so the group loses all members. The caller, which is a request or the
    /// timer's task, can still serve other groups.
    pub(super) fn happen(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        mut inner: MutexGuard<'_, EntryState>,
        event: impl FnOnce(&mut Group, i64, &mut Effects),
    ) {
        let mut effects = Effects::new();
        inner.group.set_clock_ahead(self.clock.ahead_ms());
        let now = self.now_ms();
        let group = &mut inner.group;
        match catch_unwind(AssertUnwindSafe(|| event(group, now, &mut effects))) {
            Ok(()) => self.follow(entry, inner, effects),
            Err(_) => self.give_up(entry, inner),
        }
    }

    /// Removes all members from the group. They will join again, and committed offsets stay.
    fn give_up(self: &Arc<Self>, entry: &Arc<Entry>, mut inner: MutexGuard<'_, EntryState>) {
        tracing::error!(group = %entry.id, "the handling of a group's event has panicked: all members are removed and must join again");
        inner.group = inner.group.emptied(self.now_ms());
        inner.refuse_all();
        let mut effects = Effects::new();
        if !inner.group.is_blank() {
            effects.push(Effect::Keep(inner.group.snapshot()));
        }
        self.follow(entry, inner, effects);
    }

    /// Carries out the effects and sets the timer for the group's next deadline.
    pub(super) fn follow(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        mut inner: MutexGuard<'_, EntryState>,
        effects: Effects,
    ) {
        inner.outbox.extend(effects);
        self.note_bytes(&mut inner);
        if !self.drain_now(entry, &mut inner) {
            inner.is_keeping = true;
            let (groups, entry) = (Arc::clone(self), Arc::clone(entry));
            task::spawn(async move { groups.drain(&entry).await });
        }
        let is_blank = inner.group.is_blank() && inner.waiting.is_empty() && inner.outbox.is_empty();
        // The order of these checks matters. A commit makes its offsets visible before it decreases `commits`.
        if is_blank && entry.commits.load(Ordering::Acquire) == 0 && !self.has_offsets(&entry.id) {
            self.remove(entry, &mut inner);
        }
        self.arm(entry, &inner);
    }

    /// Carries out effects up to the first snapshot. Returns true if none is left, or if a task is already writing.
    /// Returns false if the caller must spawn a task for the rest.
    pub(super) fn drain_now(&self, entry: &Entry, inner: &mut EntryState) -> bool {
        if inner.is_keeping {
            return true;
        }
        while let Some(effect) = inner.outbox.pop_front() {
            match effect {
                Effect::Keep(snapshot) => {
                    inner.outbox.push_front(Effect::Keep(snapshot));
                    return false;
                }
                Effect::Answer(ticket, answer) => inner.answer(ticket, answer),
                Effect::Report(event) => self.report(&entry.id, &event),
            }
        }
        true
    }

    /// Writes the group's snapshots until the outbox is empty. This is the body of the group's task. Each write is
    /// queued under the group's lock, which orders all writes of the group.
    async fn drain(&self, entry: &Entry) {
        loop {
            let asked = {
                let mut inner = entry.lock();
                inner.is_keeping = false;
                if self.drain_now(entry, &mut inner) {
                    // Many groups may have no members for a while, so the memory of the outbox is given back.
                    inner.outbox.shrink_to_fit();
                    return;
                }
                inner.is_keeping = true;
                let Some(snapshot) = newest_snapshot(&mut inner) else {
                    // A group that is out of service gets no snapshot. Either it was deleted and gets a tombstone, or
                    // another broker serves it.
                    if entry.shard.status() != Status::Serving {
                        refuse_next(&mut inner);
                    }
                    continue;
                };
                let record = records::group(&entry.id, Some(&snapshot));
                entry.shard.write(Records::Plain(vec![record]), std::convert::identity)
            };
            if let Err(error) = asked.kept().await.and_then(|kept| kept) {
                // If writes fail, the members of all groups retry at once, so this line is rate-limited.
                if let Some(left_out) = self.unkept.due() {
                    tracing::error!(group = %entry.id, %error, left_out, "cannot write a group's snapshot: after a restart its members join again");
                }
                refuse_next(&mut entry.lock());
            }
        }
    }

    /// Returns true if the group has committed or pending offsets. Such a group stays even without members.
    pub(super) fn has_offsets(&self, group_id: &str) -> bool {
        self.offsets.has(group_id)
    }

    /// Sets the timer for the group's next deadline.
    pub(super) fn arm(&self, entry: &Arc<Entry>, inner: &MutexGuard<'_, EntryState>) {
        let next = if inner.is_gone { None } else { inner.group.next_deadline() };
        if let Some(next) = next
            && next < entry.alarm.load(Ordering::Relaxed)
        {
            entry.alarm.store(next, Ordering::Relaxed);
            self.timer.set(next, entry);
        }
    }

    /// Handles a deadline that has passed.
    pub(super) fn fire(self: &Arc<Self>, alarm: &timer::Alarm) {
        let Some(entry) = alarm.entry.upgrade() else { return };
        let inner = entry.lock();
        if entry.alarm.load(Ordering::Relaxed) != alarm.deadline {
            // The group has an earlier alarm by now, which replaces this one.
            return;
        }
        entry.alarm.store(i64::MAX, Ordering::Relaxed);
        self.happen(&entry, inner, Group::tick);
    }

    fn report(&self, group: &str, event: &Event) {
        match event {
            Event::RebalanceBegun { generation, reason } => {
                tracing::info!(group, generation, reason, "rebalance");
            }
            Event::RebalanceCompleted { generation, members } => {
                tracing::info!(group, generation, members, "rebalance completed");
            }
            Event::Assigned { generation } => {
                self.metrics.group_stable();
                tracing::debug!(group, generation, "stable");
            }
            Event::Expired { member_id, waited_for } => {
                self.metrics.group_member_expired();
                tracing::info!(group, member = %member_id, waited_for, "member removed");
            }
            Event::Left { member_id, reason } => {
                tracing::info!(group, member = %member_id, reason, "member left");
            }
            Event::Replaced { instance_id, old, new } => {
                tracing::info!(group, instance = %instance_id, old = %old, new = %new, "static member replaced");
            }
        }
    }
}

/// Removes the snapshots at the front of the outbox and returns the last of them. Only that one is worth writing.
/// Returns `None` if the group is out of service.
fn newest_snapshot(inner: &mut EntryState) -> Option<Snapshot> {
    let mut newest = None;
    while let Some(Effect::Keep(_)) = inner.outbox.front()
        && let Some(Effect::Keep(snapshot)) = inner.outbox.pop_front()
    {
        newest = Some(snapshot);
    }
    // If the group is out of service, no more is written for it.
    newest.filter(|_| !inner.is_gone)
}

/// Replaces the answers before the next snapshot by COORDINATOR_NOT_AVAILABLE, because the snapshot that they waited
/// for could not be written.
fn refuse_next(inner: &mut EntryState) {
    for effect in &mut inner.outbox {
        match effect {
            Effect::Keep(_) => return,
            Effect::Answer(_, answer) => *answer = GroupAnswer::Refused(ErrorCode::COORDINATOR_NOT_AVAILABLE),
            Effect::Report(_) => {}
        }
    }
}
