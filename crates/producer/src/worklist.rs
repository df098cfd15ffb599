//! The worklist of a broker, with the items that its task has not seen yet.
//!
//! Invariant: a new item wakes the task.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;

/// The items that a broker's task has to serve.
pub(crate) struct Worklist<T> {
    /// The id of the broker.
    pub(crate) id: i32,
    /// Items that the task has not seen yet.
    pub(crate) incoming: Mutex<Vec<T>>,
    pub(crate) wake: Notify,
    /// When another broker last took over an item, or `None` before the first time.
    left_at: Mutex<Option<Instant>>,
}

impl<T> Worklist<T> {
    pub(crate) fn new(id: i32) -> Arc<Self> {
        Arc::new(Worklist { id, incoming: Mutex::default(), wake: Notify::new(), left_at: Mutex::default() })
    }

    /// Gives the task an item to serve.
    pub(crate) fn list(&self, work: T) {
        self.incoming.lock().push(work);
        self.wake.notify_one();
    }

    /// Notes that another broker now serves an item.
    pub(crate) fn leave(&self) {
        *self.left_at.lock() = Some(Instant::now());
        self.wake();
    }

    /// Returns true if another broker has taken over an item after `since`.
    pub(crate) fn has_left_since(&self, since: Instant) -> bool {
        self.left_at.lock().is_some_and(|at| at > since)
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }
}
