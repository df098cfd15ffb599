//! Requests to another broker, one after the other, over a connection of its own: items that come meanwhile go with the next
//! one.
//!
//! Invariant: each item that is put in is taken out, and at most one task sends.

use fullbore_client::tokio::Connection;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Items that wait for their request.
pub(super) struct Lane<T> {
    /// Connection of the last request; `None` before the first.
    pub connection: tokio::sync::Mutex<Option<Connection>>,
    queue: Mutex<Queue<T>>,
}

struct Queue<T> {
    waiting: VecDeque<T>,
    /// True while a task sends what waits.
    is_sending: bool,
}

impl<T> Default for Lane<T> {
    fn default() -> Lane<T> {
        let queue = Queue { waiting: VecDeque::new(), is_sending: false };
        Lane { connection: tokio::sync::Mutex::default(), queue: Mutex::new(queue) }
    }
}

impl<T> Lane<T> {
    /// Queues an item, and returns true if no task sends: the caller then has to start one.
    pub fn put(&self, item: T) -> bool {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(item);
        !std::mem::replace(&mut queue.is_sending, true)
    }

    /// Takes the first items, at least one, at most `count_max` and as many as have `size_max` together. `None` if none
    /// wait: the task that sends has to end.
    pub fn take(&self, count_max: usize, size_max: usize, size: impl Fn(&T) -> usize) -> Option<Vec<T>> {
        let mut queue = self.queue.lock();
        let mut left = size_max;
        let fits = |item: &&T| {
            let size = size(item);
            let fits = size <= left;
            left = left.saturating_sub(size);
            fits
        };
        let count = queue.waiting.iter().take(count_max).take_while(fits).count().max(1).min(queue.waiting.len());
        if count == 0 {
            (queue.is_sending, queue.waiting) = (false, VecDeque::new());
            return None;
        }
        Some(queue.waiting.drain(..count).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_wait_for_one_task_which_takes_what_fits_and_the_next_item_starts_another() {
        let lane = Lane::default();
        assert!(lane.put(3));
        assert!([4, 9, 1, 1].map(|item| lane.put(item)).iter().all(|is_idle| !is_idle));
        let take = || lane.take(2, 8, |size| *size);
        assert_eq!([take(), take(), take(), take()], [Some(vec![3, 4]), Some(vec![9]), Some(vec![1, 1]), None]);
        assert!(lane.put(1));
    }
}
