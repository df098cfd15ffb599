//! For how long a connection has waited for its client, and not the client for the broker.
//!
//! The halves of a connection only set flags, which are looked at now and then: no clock is asked where bytes move, and
//! the time comes out up to an eighth too long. All of it is one task, so that no ordering is needed. Invariant: a
//! client is not idle while its request is being worked out, nor while bytes come or go; one that takes no more of its
//! answer is.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Looks in the time after which a connection is idle.
const LOOKS: u32 = 8;

/// State of the two halves.
#[derive(Default)]
pub struct Idleness {
    /// The reading half is with a request that it has read.
    is_admitting: AtomicBool,
    /// The oldest unanswered request is not decided yet.
    is_awaiting: AtomicBool,
    /// Bytes came or went, or a request was worked out, since the last look.
    has_moved: AtomicBool,
    /// True once the client sends nothing more. A client that is gone takes no answer.
    has_ended: AtomicBool,
    ended: Notify,
}

impl Idleness {
    /// Bytes came or went.
    pub fn moved(&self) {
        self.has_moved.store(true, Relaxed);
    }

    /// Ends the client's requests: from now on it is idle while its request is worked out, too.
    pub fn end(&self) {
        self.has_ended.store(true, Relaxed);
        self.ended.notify_one();
    }

    /// Waits for [`Idleness::end`].
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Until what this returns is dropped, the broker takes its time: for the admission of a request.
    pub fn admitting(&self) -> Working<'_> {
        self.during(&self.is_admitting)
    }

    /// Marks work as [`Idleness::admitting`] does, for the answer whose turn it is.
    pub fn awaiting(&self) -> Working<'_> {
        self.during(&self.is_awaiting)
    }

    fn during<'a>(&'a self, flag: &'a AtomicBool) -> Working<'a> {
        flag.store(true, Relaxed);
        Working { idleness: self, flag }
    }

    /// Returns once the client was idle for so long.
    pub async fn reaches(&self, max: Duration) {
        let mut in_vain = 0;
        while in_vain < LOOKS {
            sleep(max / LOOKS).await;
            in_vain = self.look(in_vain);
        }
    }

    /// Looks in a row that have found nothing, with this one.
    fn look(&self, in_vain: u32) -> u32 {
        let has_moved = self.has_moved.swap(false, Relaxed);
        let is_working = self.is_admitting.load(Relaxed) || self.is_awaiting.load(Relaxed);
        let is_waiting = is_working && !self.has_ended.load(Relaxed);
        if has_moved || is_waiting { 0 } else { in_vain + 1 }
    }
}

/// Ends with the work, also where that is given up.
pub struct Working<'a> {
    idleness: &'a Idleness,
    flag: &'a AtomicBool,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.flag.store(false, Relaxed);
        self.idleness.moved();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idleness_begins_with_the_last_byte_and_the_last_answer() {
        let idleness = Idleness::default();
        assert_eq!((idleness.look(0), idleness.look(6)), (1, 7));
        idleness.moved();
        assert_eq!((idleness.look(7), idleness.look(0)), (0, 1));
        for work in [Idleness::admitting, Idleness::awaiting] {
            let working = work(&idleness);
            assert_eq!((idleness.look(7), idleness.look(7)), (0, 0), "it is worked on");
            drop(working);
            assert_eq!((idleness.look(7), idleness.look(0)), (0, 1), "it was worked on just now");
        }
    }
}
