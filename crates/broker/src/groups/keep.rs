//! Doing what a group's machine said: answers at once, snapshots through its shard, one after another.
//!
//! Invariant: effects of one group are done in order. While its outbox has any, a task writes its snapshot.

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
    /// Puts an event to a group's machine, and does what follows. One that panics costs its group all members: what the
    /// machine is in then, nobody knows, and who did this, a request or the one task of the timer, goes on for all
    /// other groups.
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

    /// The group's members join anew, and what it committed stays.
    fn give_up(self: &Arc<Self>, entry: &Arc<Entry>, mut inner: MutexGuard<'_, EntryState>) {
        tracing::error!(group = %entry.id, "an event of this group has panicked; its members join anew");
        inner.group = inner.group.emptied(self.now_ms());
        inner.refuse_all();
        let mut effects = Effects::new();
        if !inner.group.is_blank() {
            effects.push(Effect::Keep(inner.group.snapshot()));
        }
        self.follow(entry, inner, effects);
    }

    /// Does the effects, and sees to the next deadline.
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
        // In this order: a commit that is not on its way any more has its offsets there.
        if is_blank && entry.commits.load(Ordering::Acquire) == 0 && !self.has_offsets(&entry.id) {
            self.remove(entry, &mut inner);
        }
        self.arm(entry, &inner);
    }

    /// Does effects up to the first snapshot; whether somebody sees to the rest, or there is none.
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
                Effect::Tell(event) => self.tell(&entry.id, &event),
            }
        }
        true
    }

    /// The task of a group with something to keep: until its outbox is empty. It asks under the group's lock, so that
    /// whatever else is asked under that lock comes before or after it.
    async fn drain(&self, entry: &Entry) {
        loop {
            let asked = {
                let mut inner = entry.lock();
                inner.is_keeping = false;
                if self.drain_now(entry, &mut inner) {
                    // Groups that are left stay for a while, and there may be many.
                    inner.outbox.shrink_to_fit();
                    return;
                }
                inner.is_keeping = true;
                let Some(snapshot) = newest_snapshot(&mut inner) else {
                    // Of a group that was deleted a tombstone is kept instead; of one that another broker has, nothing.
                    if entry.shard.status() != Status::Serving {
                        refuse_next(&mut inner);
                    }
                    continue;
                };
                let record = records::group(&entry.id, Some(&snapshot));
                entry.shard.write(Records::Known(vec![record]), std::convert::identity)
            };
            if let Err(error) = asked.kept().await.and_then(|kept| kept) {
                // Its members try again at once, and so do those of all other groups.
                if let Some(left_out) = self.unkept.due() {
                    tracing::error!(group = %entry.id, %error, left_out, "the group could not be kept; after a restart its members join anew");
                }
                refuse_next(&mut entry.lock());
            }
        }
    }

    /// Returns true if the group has committed offsets, and so stays although it has no members.
    pub(super) fn has_offsets(&self, group_id: &str) -> bool {
        self.offsets.has(group_id)
    }

    /// Sees to it that the timer looks at this group when something of it is due.
    pub(super) fn arm(&self, entry: &Arc<Entry>, inner: &MutexGuard<'_, EntryState>) {
        let next = if inner.is_gone { None } else { inner.group.next_deadline() };
        if let Some(next) = next
            && next < entry.alarm.load(Ordering::Relaxed)
        {
            entry.alarm.store(next, Ordering::Relaxed);
            self.timer.set(next, entry);
        }
    }

    /// The timer's time has come for this group.
    pub(super) fn fire(self: &Arc<Self>, alarm: &timer::Alarm) {
        let Some(entry) = alarm.entry.upgrade() else { return };
        let inner = entry.lock();
        if entry.alarm.load(Ordering::Relaxed) != alarm.deadline {
            // An earlier alarm was set since, and has seen to what comes after it.
            return;
        }
        entry.alarm.store(i64::MAX, Ordering::Relaxed);
        self.happen(&entry, inner, Group::tick);
    }

    fn tell(&self, group: &str, event: &Event) {
        match event {
            Event::RebalanceBegun { generation, reason } => {
                tracing::info!(group, generation, reason, "rebalance");
            }
            Event::RebalanceCompleted { generation, members } => {
                tracing::info!(group, generation, members, "generation");
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

/// The last of snapshots right behind one another: only that is worth writing.
fn newest_snapshot(inner: &mut EntryState) -> Option<Snapshot> {
    let mut newest = None;
    while let Some(Effect::Keep(_)) = inner.outbox.front()
        && let Some(Effect::Keep(snapshot)) = inner.outbox.pop_front()
    {
        newest = Some(snapshot);
    }
    // A group that was taken out of service has no row any more.
    newest.filter(|_| !inner.is_gone)
}

/// Answers COORDINATOR_NOT_AVAILABLE to requests that wait for the snapshot.
fn refuse_next(inner: &mut EntryState) {
    for effect in &mut inner.outbox {
        match effect {
            Effect::Keep(_) => return,
            Effect::Answer(_, answer) => *answer = GroupAnswer::Refused(ErrorCode::COORDINATOR_NOT_AVAILABLE),
            Effect::Tell(_) => {}
        }
    }
}
