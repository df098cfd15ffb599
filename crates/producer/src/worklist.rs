//! A broker's list of work: what has something for it, until its task has seen it.
//!
//! Invariant: who gives it work wakes its task.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;

/// What a broker's task is to look after.
pub(crate) struct Worklist<T> {
    /// The broker's id.
    pub(crate) id: i32,
    /// Work that the task has not seen yet.
    pub(crate) incoming: Mutex<Vec<T>>,
    pub(crate) wake: Notify,
    /// When something that was its work became another broker's.
    left_at: Mutex<Option<Instant>>,
}

impl<T> Worklist<T> {
    pub(crate) fn new(id: i32) -> Arc<Self> {
        Arc::new(Worklist { id, incoming: Mutex::default(), wake: Notify::new(), left_at: Mutex::default() })
    }

    /// Gives the task something to look after.
    pub(crate) fn list(&self, work: T) {
        self.incoming.lock().push(work);
        self.wake.notify_one();
    }

    /// Something is another broker's work from now on.
    pub(crate) fn leave(&self) {
        *self.left_at.lock() = Some(Instant::now());
        self.wake();
    }

    /// Returns true if something has become another broker's work since.
    pub(crate) fn has_left_since(&self, since: Instant) -> bool {
        self.left_at.lock().is_some_and(|at| at > since)
    }

    pub(crate) fn wake(&self) {
        self.wake.notify_one();
    }
}
