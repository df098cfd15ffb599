//! Keeps track of the responses for which a cluster waits, so that a tool can show which broker is slow.
//!
//! The connection enforces the time limits. Invariant: an entry is in the list exactly while its response is due.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The responses that are due. Clones share the list.
#[derive(Clone, Default)]
pub struct Awaited(Arc<Mutex<Waits>>);

#[derive(Default)]
struct Waits {
    next: u64,
    due: Vec<Wait>,
}

struct Wait {
    id: u64,
    whom: String,
    begun: Instant,
}

/// A guard for an entry of the list. Dropping the guard removes the entry.
pub(crate) struct DueAnswer {
    of: Awaited,
    id: u64,
}

impl Awaited {
    /// Adds an entry for a response that is due from `whom`. Dropping the returned guard removes the entry.
    pub(crate) fn begin(&self, whom: impl Into<String>) -> DueAnswer {
        let mut waits = self.0.lock();
        let id = waits.next;
        waits.next += 1;
        waits.due.push(Wait { id, whom: whom.into(), begun: Instant::now() });
        DueAnswer { of: self.clone(), id }
    }

    /// Returns the broker, or list of brokers, whose response has been due for at least `age`. If several entries are
    /// that old, returns the newest. A wait for one broker begins within a wait for a list of brokers, so the newest
    /// entry is the most specific.
    pub fn older_than(&self, age: Duration) -> Option<String> {
        let waits = self.0.lock();
        waits.due.iter().rev().find(|wait| wait.begun.elapsed() >= age).map(|wait| wait.whom.clone())
    }

    /// Returns true if every cluster that shares the list has been dropped, so that no wait can begin any more.
    pub fn is_over(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Drop for DueAnswer {
    fn drop(&mut self) {
        self.of.0.lock().due.retain(|wait| wait.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_nested_waits_that_are_old_enough_is_returned() {
        let awaited = Awaited::default();
        let reported = |age| awaited.older_than(age).unwrap_or_default();
        let outer = awaited.begin("the coordinator");
        let inner = awaited.begin("a:1");
        assert_eq!((reported(Duration::ZERO).as_str(), reported(Duration::from_secs(600)).as_str()), ("a:1", ""));
        drop(inner);
        assert_eq!(reported(Duration::ZERO), "the coordinator");
        assert!(!awaited.is_over());
        drop(outer);
        assert!(reported(Duration::ZERO).is_empty() && awaited.is_over());
    }
}
