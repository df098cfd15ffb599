//! The values that a run shares with a fetcher's thread. The run passes new partitions to the fetcher and recalls
//! others. It also reads the time since which the fetcher has waited for its leader.

use super::cursor::Cursor;
use fullbore_wire::Text;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The orders of a run for a running fetcher.
pub(super) struct Inbox<S>(Mutex<Option<Waiting<S>>>);

struct Waiting<S> {
    /// New partitions.
    cursors: Vec<Cursor<S>>,
    /// Partitions that the fetcher must give back.
    recalled: Vec<(Text, i32)>,
}

impl<S> Inbox<S> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Inbox(Mutex::new(Some(Waiting { cursors: Vec::new(), recalled: Vec::new() }))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Waiting<S>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds partitions. If the inbox is closed, returns them as the error.
    pub(super) fn put(&self, cursors: Vec<Cursor<S>>) -> Result<(), Vec<Cursor<S>>> {
        match &mut *self.lock() {
            Some(waiting) => {
                let is_put = |(topic, partition): &(Text, i32)| {
                    cursors.iter().any(|cursor| cursor.partition == *partition && cursor.topic == *topic)
                };
                // An earlier recall does not apply to a partition that comes again.
                waiting.recalled.retain(|of| !is_put(of));
                waiting.cursors.extend(cursors);
                Ok(())
            }
            None => Err(cursors),
        }
    }

    pub(super) fn take(&self) -> Vec<Cursor<S>> {
        self.lock().as_mut().map(|waiting| std::mem::take(&mut waiting.cursors)).unwrap_or_default()
    }

    /// Orders the fetcher to give a partition back. Has no effect if the fetcher does not read the partition.
    pub(super) fn recall(&self, of: (Text, i32)) {
        if let Some(waiting) = self.lock().as_mut().filter(|waiting| !waiting.recalled.contains(&of)) {
            waiting.recalled.push(of);
        }
    }

    /// Removes and returns the partitions that the fetcher must give back.
    pub(super) fn take_recalled(&self) -> Vec<(Text, i32)> {
        self.lock().as_mut().map(|waiting| std::mem::take(&mut waiting.recalled)).unwrap_or_default()
    }

    pub(super) fn close(&self) -> Vec<Cursor<S>> {
        self.lock().take().map(|waiting| waiting.cursors).unwrap_or_default()
    }

    /// Closes the inbox if it has no partition, and returns true if it is closed now.
    pub(super) fn close_if_empty(&self) -> bool {
        let mut waiting = self.lock();
        if waiting.as_ref().is_some_and(|waiting| waiting.cursors.is_empty()) {
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
