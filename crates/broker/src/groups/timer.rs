//! The timer of all groups: one heap of alarms, which a single task (`due`) reads.
//!
//! Every heartbeat postpones a deadline of its group, but does not change the heap. The old alarm fires, the group
//! finds that nothing is due, and sets its next alarm. Invariant: if a group has a deadline, the heap contains an alarm
//! for the group at that time or earlier.

use super::entry::Entry;
use parking_lot::Mutex;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// Alarms that earlier ones have replaced are removed only once the heap has at least this many alarms.
const OVERTAKEN_MIN: usize = 4096;
/// An alarm that wakes a group at its deadline.
pub(super) struct Alarm {
    /// The deadline in milliseconds, on the clock of the groups.
    pub deadline: i64,
    pub entry: Weak<Entry>,
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Self) -> bool {
        self.deadline == other.deadline
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Self) -> Ordering {
        self.deadline.cmp(&other.deadline)
    }
}

#[derive(Default)]
pub(super) struct Timer {
    alarms: Mutex<Alarms>,
    /// Notified when an alarm is set that is earlier than all others.
    sooner: Notify,
}

#[derive(Default)]
struct Alarms {
    heap: BinaryHeap<Reverse<Alarm>>,
    /// Length of the heap at which replaced alarms are removed.
    sweep_at: usize,
}

impl Timer {
    /// Sets an alarm. The caller holds the group's lock and has stored `deadline` in the group's `alarm`.
    pub fn set(&self, deadline: i64, entry: &Arc<Entry>) {
        let mut alarms = self.alarms.lock();
        let is_first = alarms.heap.peek().is_none_or(|Reverse(first)| deadline < first.deadline);
        alarms.heap.push(Reverse(Alarm { deadline, entry: Arc::downgrade(entry) }));
        if alarms.heap.len() >= alarms.sweep_at.max(OVERTAKEN_MIN) {
            alarms.heap.retain(|Reverse(alarm)| {
                alarm.entry.upgrade().is_some_and(|entry| entry.alarm.load(Relaxed) == alarm.deadline)
            });
            alarms.sweep_at = alarms.heap.len() * 2;
        }
        drop(alarms);
        if is_first {
            self.sooner.notify_one();
        }
    }

    /// Removes an alarm that is due and returns it. If none is due, returns the time of the next alarm, or `None` if
    /// there is none.
    pub fn due(&self, now: i64) -> Result<Alarm, Option<i64>> {
        let mut alarms = self.alarms.lock();
        match alarms.heap.peek() {
            None => Err(None),
            Some(Reverse(first)) if first.deadline > now => Err(Some(first.deadline)),
            Some(_) => Ok(alarms.heap.pop().expect("it was just there").0),
        }
    }

    /// Waits until an alarm is set that is earlier than all others.
    pub async fn sooner(&self) {
        self.sooner.notified().await;
    }
}
