//! Since when a connection waits for its client, and not the client for the broker.
//!
//! Both halves of a connection are one task, so that no ordering is needed between them. Invariant: a client whose
//! answer is still being worked out is not idle; one that does not take its answer is.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Written by the writing half, asked by the reading half.
pub struct Idleness {
    opened: Instant,
    is_awaiting: AtomicBool,
    /// Nanoseconds from `opened` to the last answer worked out or written.
    last_answer: AtomicU64,
}

impl Idleness {
    /// Of a connection opened at this time.
    pub fn new(opened: Instant) -> Self {
        Idleness { opened, is_awaiting: AtomicBool::new(false), last_answer: AtomicU64::new(0) }
    }

    /// The oldest unanswered request is not decided yet.
    pub fn awaiting(&self) {
        self.is_awaiting.store(true, Relaxed);
    }

    /// Its answer was worked out, or written.
    pub fn answered(&self, at: Instant) {
        let nanos = at.saturating_duration_since(self.opened).as_nanos();
        self.last_answer.store(u64::try_from(nanos).unwrap_or(u64::MAX), Relaxed);
        self.is_awaiting.store(false, Relaxed);
    }

    /// When the last answer was there, or the connection opened; `None` while one is being worked out.
    pub fn since(&self) -> Option<Instant> {
        let last = Duration::from_nanos(self.last_answer.load(Relaxed));
        (!self.is_awaiting.load(Relaxed)).then(|| self.opened + last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idleness_begins_with_the_last_answer() {
        let opened = Instant::now();
        let idleness = Idleness::new(opened);
        assert_eq!(idleness.since(), Some(opened));
        idleness.awaiting();
        assert_eq!(idleness.since(), None);
        idleness.answered(opened + Duration::from_secs(2));
        assert_eq!(idleness.since(), Some(opened + Duration::from_secs(2)));
    }
}
