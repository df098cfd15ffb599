//! A virtual clock and a queue of future events. All events are in one queue, so that the seed alone determines their
//! order.

use std::collections::BTreeMap;

/// The virtual time, and a queue of events by time. Events of the same time happen in the order of their scheduling.
#[derive(Debug)]
pub struct Timeline<E> {
    now: i64,
    queue: BTreeMap<(i64, u64), E>,
    scheduled: u64,
    digest: u64,
}

impl<E> Default for Timeline<E> {
    fn default() -> Timeline<E> {
        Timeline { now: 0, queue: BTreeMap::new(), scheduled: 0, digest: 0 }
    }
}

impl<E> Timeline<E> {
    /// Returns the virtual time.
    pub fn now(&self) -> i64 {
        self.now
    }

    /// Returns how many events were scheduled so far.
    pub fn scheduled(&self) -> u64 {
        self.scheduled
    }

    /// Returns a hash of the numbers and times of all past events. Two runs with the same events have the same hash.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Schedules an event at the time `at`.
    pub fn schedule(&mut self, at: i64, event: E) {
        self.scheduled += 1;
        self.queue.insert((at, self.scheduled), event);
    }

    /// Advances the time to the next event and returns it. If no event is due by `end`, advances to `end`.
    pub fn next_before(&mut self, end: i64) -> Option<E> {
        let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= end) else {
            self.now = end;
            return None;
        };
        let ((at, number), event) = entry.remove_entry();
        self.now = self.now.max(at);
        let mixed = self.digest ^ (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number;
        self.digest = mixed.wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
        Some(event)
    }
}
