//! The worklist of a broker, through which other tasks pass items to the broker's task.
//!
//! Invariant: a new item wakes the task.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;

/// The worklist of one broker.
pub(crate) struct Worklist<T> {
    /// The id of the broker.
    pub(crate) id: i32,
    /// Items that the broker's task has not taken over yet.
    pub(crate) incoming: Mutex<Vec<T>>,
    pub(crate) wake: Notify,
    /// The last time that an item moved to another broker, or `None` if none has.
    left_at: Mutex<Option<Instant>>,
}

impl<T> Worklist<T> {
    pub(crate) fn new(id: i32) -> Arc<Self> {
        Arc::new(Worklist { id, incoming: Mutex::default(), wake: Notify::new(), left_at: Mutex::default() })
    }

    /// Adds an item and wakes the task.
    pub(crate) fn list(&self, work: T) {
        self.incoming.lock().push(work);
        self.wake.notify_one();
    }

    /// Notes that an item has moved to another broker, and wakes the task.
    pub(crate) fn leave(&self) {
        *self.left_at.lock() = Some(Instant::now());
        self.wake();
    }

    /// Returns true if an item has moved to another broker since `since`.
    pub(crate) fn has_left_since(&self, since: Instant) -> bool {
        self.left_at.lock().is_some_and(|at| at > since)
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }
}
