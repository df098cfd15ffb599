//! Carries out the effects of a group's state machine. Answers are sent at once, and changed records are written to the
//! group's shard, one change after another.
//!
//! The effects of one group are carried out in order. While the group's outbox contains effects, a task is writing the
//! group's records. A write contains the changes of all events so far, so a burst of requests costs few writes.
//! Invariant: the log always contains the records of one state of the group, present or past. A change contains only
//! what has changed since the previous one. So if a write fails, its records are written again together with the next
//! change.

use super::entry::{Entry, EntryState};
use super::outbox::Outgoing;
use super::{Groups, fresh_parts_id, records, timer};
use crate::coordinator::{Records, Status};
use fullbore_host::task;
use fullbore_rules::group::{Effect, Effects, Event, Group};
use parking_lot::MutexGuard;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// If the members of a group take more bytes than this, encoding and appending its records is long work.
const LARGE_BYTES: usize = 512 << 10;

impl Groups {
    /// Passes an event to a group's state machine and carries out the effects.
    ///
    /// If the event panics, the state of the group is unknown, so all members are removed. The panic does not end the
    /// caller, which may be the task that handles the deadlines of all groups.
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

    /// Removes all members from the group. They can join again, and committed offsets stay.
    fn give_up(self: &Arc<Self>, entry: &Arc<Entry>, mut inner: MutexGuard<'_, EntryState>) {
        tracing::error!(group = %entry.id, "the handling of a group's event has panicked: all members are removed and must join again");
        inner.group = inner.group.emptied(fresh_parts_id(), self.now_ms());
        inner.refuse_all();
        let mut effects = Effects::new();
        if !inner.group.is_blank() {
            effects.push(Effect::Keep(inner.group.records()));
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
        effects.into_iter().for_each(|effect| inner.outbox.push(effect));
        self.note_bytes(&mut inner);
        if !self.drain_now(entry, &mut inner) {
            inner.is_keeping = true;
            let (groups, entry) = (Arc::clone(self), Arc::clone(entry));
            task::spawn(async move { groups.drain(&entry).await });
        }
        let is_blank = inner.group.is_blank() && inner.waiting.is_empty() && inner.outbox.is_empty();
        // Checks `commits` before the offsets. A commit makes its offsets visible before it decreases `commits`, so one
        // of the two checks finds it.
        if is_blank && entry.commits.load(Ordering::Acquire) == 0 && !self.has_offsets(&entry.id) {
            self.remove(entry, &mut inner);
        }
        self.arm(entry, &inner);
    }

    /// Carries out effects up to the first one that needs a write. Returns true if nothing is left to do, or if a task
    /// is already writing. Returns false if the caller must spawn a task for the rest.
    pub(super) fn drain_now(&self, entry: &Entry, inner: &mut EntryState) -> bool {
        if inner.is_keeping {
            return true;
        }
        while let Some(outgoing) = inner.outbox.pop() {
            match outgoing {
                Outgoing::Answer(ticket, answer) => inner.answer(ticket, answer),
                Outgoing::Report(event) => self.report(&entry.id, &event),
            }
        }
        inner.outbox.is_empty()
    }

    /// Writes the group's records until the outbox is empty. This is the task that [`Groups::follow`] spawns. Each
    /// write is queued under the group's lock, which orders all writes of the group.
    async fn drain(self: &Arc<Self>, entry: &Arc<Entry>) {
        loop {
            // Lets the tasks of other connections run first, so that requests which have arrived at the same time share
            // the write.
            tokio::task::yield_now().await;
            let (requested, change, is_large) = {
                let mut inner = entry.lock();
                inner.is_keeping = false;
                if self.drain_now(entry, &mut inner) {
                    // Frees the memory of the outbox, because there may be many groups and most are idle.
                    inner.outbox.shrink();
                    return;
                }
                inner.is_keeping = true;
                let is_large = inner.bytes > LARGE_BYTES;
                let encoded = catch_unwind(AssertUnwindSafe(|| {
                    maybe_in_place(is_large, || {
                        let change = inner.take_change();
                        let records = records::change(&entry.id, &change);
                        (change, records)
                    })
                }));
                let Ok((change, records)) = encoded else {
                    inner.is_keeping = false;
                    return self.give_up(entry, inner);
                };
                if inner.is_gone {
                    // The group is out of service, so its records are not written. Either it was deleted, and its
                    // tombstones are written instead, or another broker serves it.
                    if entry.shard.status() != Status::Serving {
                        inner.outbox.refuse_ready();
                    }
                    continue;
                }
                (entry.shard.write(Records::Together(records), std::convert::identity), change, is_large)
            };
            if is_large {
                task::in_place(|| entry.shard.flush());
            }
            if let Err(error) = requested.kept().await.and_then(|kept| kept) {
                // After a failure, the members of all groups retry at once, so this line is rate-limited.
                if let Some(left_out) = self.unkept.due() {
                    tracing::error!(group = %entry.id, %error, left_out, "cannot write the records of a group's members: after a restart the members must join again");
                }
                let mut inner = entry.lock();
                inner.put_back(change);
                inner.outbox.refuse_ready();
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
            // The group has a newer and earlier alarm, which replaces this one.
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

/// Runs work on the calling thread. If the work is long, the runtime moves the thread's other tasks to another thread.
fn maybe_in_place<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    if is_long { task::in_place(work) } else { work() }
}
