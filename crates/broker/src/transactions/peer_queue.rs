//! A queue of items for another broker, with a connection of its own. Only one request is in flight at a time. The next
//! request contains items that were queued meanwhile, as many as its limits allow.
//!
//! The one task that sends takes the items out of the queue. An item that its sender no longer needs is dropped.

use fullbore_client::tokio::Connection;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// The items that wait for the next request.
pub(super) struct PeerQueue<T> {
    /// The connection to the other broker, which may have closed it meanwhile. `None` if the next request must connect
    /// first.
    pub connection: tokio::sync::Mutex<Option<Connection>>,
    queue: Mutex<Queue<T>>,
}

struct Queue<T> {
    waiting: VecDeque<T>,
    /// True while a task is sending the waiting items.
    is_sending: bool,
}

impl<T> Default for PeerQueue<T> {
    fn default() -> PeerQueue<T> {
        let queue = Queue { waiting: VecDeque::new(), is_sending: false };
        PeerQueue { connection: tokio::sync::Mutex::default(), queue: Mutex::new(queue) }
    }
}

impl<T> PeerQueue<T> {
    /// Queues an item. Returns true if no task is sending, so that the caller must spawn one.
    pub fn put(&self, item: T) -> bool {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(item);
        !std::mem::replace(&mut queue.is_sending, true)
    }

    /// Removes items from the front of the queue. Drops those for which `wanted` returns false, and returns the others.
    /// These are at most `count_max` items with a total size of at most `size_max`. The first item is returned even if
    /// it is larger.
    ///
    /// Returns `None` if the queue is empty. The task that sends must then end.
    pub fn take(
        &self,
        count_max: usize,
        size_max: usize,
        size: impl Fn(&T) -> usize,
        wanted: impl Fn(&T) -> bool,
    ) -> Option<Vec<T>> {
        let mut queue = self.queue.lock();
        let (mut taken, mut left) = (Vec::new(), size_max);
        while taken.len() < count_max
            && let Some(item) = queue.waiting.front()
        {
            if wanted(item) {
                let size = size(item);
                if size > left && !taken.is_empty() {
                    break;
                }
                left = left.saturating_sub(size);
                taken.extend(queue.waiting.pop_front());
            } else {
                queue.waiting.pop_front();
            }
        }
        if taken.is_empty() {
            (queue.is_sending, queue.waiting) = (false, VecDeque::new());
            return None;
        }
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_task_takes_items_up_to_the_limits_and_the_next_item_needs_another() {
        let queue = PeerQueue::default();
        assert!(queue.put(3));
        assert!([4, 9, 1, 1].map(|item| queue.put(item)).iter().all(|is_idle| !is_idle));
        let take = || queue.take(2, 8, |size| *size, |_| true);
        assert_eq!([take(), take(), take(), take()], [Some(vec![3, 4]), Some(vec![9]), Some(vec![1, 1]), None]);
        assert!(queue.put(1));
    }

    /// If the leader of a partition is replaced, the marker is sent to the next leader instead and is no longer wanted
    /// in this queue.
    #[test]
    fn unwanted_item_is_dropped_and_those_behind_it_are_taken() {
        let queue = PeerQueue::default();
        [1, 2, 3, 4].into_iter().for_each(|item| _ = queue.put(item));
        let take = |odd| queue.take(2, 8, |_| 1, move |item| item % 2 == odd);
        assert_eq!(take(1), Some(vec![1, 3]));
        assert_eq!(take(1), None, "the last one is not wanted");
        assert!(queue.put(1), "no task sends");
    }
}
