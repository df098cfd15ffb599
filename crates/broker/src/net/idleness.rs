//! Measures how long a connection waits for its client. A client that waits for the broker is not idle.
//!
//! The halves of a connection only set flags, which a timer polls eight times within the idle limit. So no clock is
//! read when bytes move, and a connection may stay open an eighth longer than the limit. All of them run in one task,
//! so the flags need no memory ordering.
//!
//! A client is not idle while its request is in progress or while bytes move. It is idle if it has stopped reading its
//! response.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Number of polls within the time limit of idle connections.
const POLLS: u32 = 8;

/// The activity of both halves of a connection.
#[derive(Default)]
pub struct Idleness {
    /// True while the reading half is admitting a request.
    is_admitting: AtomicBool,
    /// True while the oldest unanswered request is in progress.
    is_awaiting: AtomicBool,
    /// True if bytes have moved or a request was in progress since the last poll.
    has_moved: AtomicBool,
    /// True once the client has ended its side. Most such clients are gone and will not read a response.
    has_ended: AtomicBool,
    /// True once the broker has decided to end the connection, because its unread response takes too much memory.
    is_evicted: AtomicBool,
    ended: Notify,
}

impl Idleness {
    /// Notes that bytes have moved.
    pub fn moved(&self) {
        self.has_moved.store(true, Relaxed);
    }

    /// Notes that the client will send no more requests. From now on, a request in progress no longer keeps the client
    /// from counting as idle.
    pub fn end(&self) {
        self.has_ended.store(true, Relaxed);
        self.ended.notify_one();
    }

    /// Ends the connection, because its response was not read in time. The tasks of other connections may call this.
    pub fn evict(&self) {
        self.is_evicted.store(true, Relaxed);
        self.ended.notify_one();
    }

    pub fn is_evicted(&self) -> bool {
        self.is_evicted.load(Relaxed)
    }

    /// Waits until [`Idleness::end`] or [`Idleness::evict`] is called.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    /// Marks a request as being admitted until the result is dropped.
    pub fn admitting(&self) -> Working<'_> {
        self.during(&self.is_admitting)
    }

    /// Marks the next response as in progress until the result is dropped.
    pub fn awaiting(&self) -> Working<'_> {
        self.during(&self.is_awaiting)
    }

    fn during<'a>(&'a self, flag: &'a AtomicBool) -> Working<'a> {
        flag.store(true, Relaxed);
        Working { idleness: self, flag }
    }

    /// Waits until the client has been idle for `max`.
    pub async fn reaches(&self, max: Duration) {
        let mut in_vain = 0;
        while in_vain < POLLS {
            sleep(max / POLLS).await;
            in_vain = self.poll(in_vain);
        }
    }

    /// Returns how many polls in a row have found no activity, including this one. `in_vain` is their number so far.
    fn poll(&self, in_vain: u32) -> u32 {
        let has_moved = self.has_moved.swap(false, Relaxed);
        let is_working = self.is_admitting.load(Relaxed) || self.is_awaiting.load(Relaxed);
        let is_waiting = is_working && !self.has_ended.load(Relaxed);
        if has_moved || is_waiting { 0 } else { in_vain + 1 }
    }
}

/// Work in progress on a connection, which ends when this value is dropped.
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
        assert_eq!((idleness.poll(0), idleness.poll(6)), (1, 7));
        idleness.moved();
        assert_eq!((idleness.poll(7), idleness.poll(0)), (0, 1));
        for work in [Idleness::admitting, Idleness::awaiting] {
            let working = work(&idleness);
            assert_eq!((idleness.poll(7), idleness.poll(7)), (0, 0), "it is worked on");
            drop(working);
            assert_eq!((idleness.poll(7), idleness.poll(0)), (0, 1), "it was worked on just now");
        }
    }
}
