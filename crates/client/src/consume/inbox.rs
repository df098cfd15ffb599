//! The values that a run shares with a fetcher's thread: new partitions for the fetcher, and the time since which the
//! fetcher has waited for its leader.

use super::cursor::Cursor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// New partitions for a running fetcher.
pub(super) struct Inbox<S>(Mutex<Option<Vec<Cursor<S>>>>);

impl<S> Inbox<S> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Inbox(Mutex::new(Some(Vec::new()))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Cursor<S>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds partitions. If the inbox is closed, returns them as the error.
    pub(super) fn put(&self, cursors: Vec<Cursor<S>>) -> Result<(), Vec<Cursor<S>>> {
        match &mut *self.lock() {
            Some(waiting) => {
                waiting.extend(cursors);
                Ok(())
            }
            None => Err(cursors),
        }
    }

    pub(super) fn take(&self) -> Vec<Cursor<S>> {
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn close(&self) -> Vec<Cursor<S>> {
        self.lock().take().unwrap_or_default()
    }

    /// Closes the inbox if it is empty, and returns true if it is closed now.
    pub(super) fn close_if_empty(&self) -> bool {
        let mut waiting = self.lock();
        if waiting.as_ref().is_some_and(Vec::is_empty) {
            *waiting = None;
        }
        waiting.is_none()
    }
}

/// The time since which a fetcher has waited for its leader: the end of the previous response, or the start of the
/// fetcher. `None` while the fetcher passes records to its sinks.
pub(super) struct AwaitedSince(Mutex<Option<Instant>>);

impl Default for AwaitedSince {
    fn default() -> Self {
        AwaitedSince(Mutex::new(Some(Instant::now())))
    }
}

impl AwaitedSince {
    pub(super) fn get(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}
