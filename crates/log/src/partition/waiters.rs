//! The waiters of a partition. Long-polling fetches and acks=all wait for its high watermark. The sessions of followers
//! also wait for its log end.
//!
//! A notification only means that the partition may have changed, so the waiter must read the partition again. To miss
//! no change, a waiter must first register, then read, and then wait. `Notify` and [`DirtyPartitions`] keep a
//! notification that arrives in between.
//!
//! Invariant: a waiter is in the list until its [`Registration`] is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::dirty_partitions::{DirtyPartitions, Moved};

/// The receiver of a notification.
#[derive(Debug, Clone)]
enum Waiter {
    One(Arc<Notify>),
    /// The set of a follower's changed partitions, and this partition's slot in it.
    OfMany(Arc<DirtyPartitions>, u32),
}

impl Waiter {
    fn wake(&self, moved: Moved) {
        match self {
            Waiter::One(waiter) => waiter.notify_one(),
            Waiter::OfMany(marks, place) => marks.mark(*place, moved),
        }
    }

    fn is(&self, other: &Waiter) -> bool {
        match (self, other) {
            (Waiter::One(one), Waiter::One(other)) => Arc::ptr_eq(one, other),
            (Waiter::OfMany(marks, place), Waiter::OfMany(others, other)) => {
                Arc::ptr_eq(marks, others) && place == other
            }
            _ => false,
        }
    }
}

/// The waiters of one partition. Each pending fetch has at most one entry.
#[derive(Debug, Default)]
pub struct Waiters {
    /// The length of the list, so that an append takes no lock if there are no waiters.
    count: AtomicUsize,
    /// True once the partition is deleted. Nothing changes after that.
    is_over: AtomicBool,
    list: Mutex<Vec<Waiter>>,
}

impl Waiters {
    /// Wakes the waiters for the last time, because the partition is deleted.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Wakes the waiters after any change.
    pub fn wake(&self) {
        self.wake_for(Moved::Records);
    }

    /// Wakes the waiters after a change of the high watermark alone.
    pub fn wake_of_high_watermark(&self) {
        self.wake_for(Moved::HighWatermark);
    }

    fn wake_for(&self, moved: Moved) {
        if self.count.load(Ordering::SeqCst) > 0 {
            self.list.lock().iter().for_each(|waiter| waiter.wake(moved));
        }
    }
}

/// Keeps a waiter in the list. Dropping the registration removes the waiter.
#[derive(Debug)]
#[must_use = "a waiter is woken only while registered"]
pub struct Registration {
    waiters: Arc<Waiters>,
    waiter: Waiter,
}

impl Registration {
    pub fn new(waiters: &Arc<Waiters>, waiter: &Arc<Notify>) -> Self {
        Registration::of(waiters, Waiter::One(Arc::clone(waiter)))
    }

    pub fn marking(waiters: &Arc<Waiters>, marks: &Arc<DirtyPartitions>, place: u32) -> Self {
        Registration::of(waiters, Waiter::OfMany(Arc::clone(marks), place))
    }

    fn of(waiters: &Arc<Waiters>, waiter: Waiter) -> Self {
        let mut list = waiters.list.lock();
        list.push(waiter.clone());
        waiters.count.store(list.len(), Ordering::SeqCst);
        drop(list);
        Registration { waiters: waiters.clone(), waiter }
    }

    /// Returns true once the partition is deleted, even if a new partition has the same name.
    pub fn is_over(&self) -> bool {
        self.waiters.is_over.load(Ordering::SeqCst)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut list = self.waiters.list.lock();
        if let Some(at) = list.iter().position(|known| known.is(&self.waiter)) {
            list.swap_remove(at);
        }
        if list.is_empty() {
            list.shrink_to(4);
        }
        self.waiters.count.store(list.len(), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wake_up_between_registering_and_waiting_is_kept() {
        let waiters = Arc::new(Waiters::default());
        let waiter = Arc::new(Notify::new());
        let registration = Registration::new(&waiters, &waiter);
        waiters.wake();
        waiter.notified().await;
        drop(registration);
        assert_eq!(waiters.count.load(Ordering::SeqCst), 0);
        assert!(waiters.list.lock().is_empty());
    }
}
