//! Numbers that the broker first writes to its data directory, and then sends to the database with its heartbeats. They
//! show whether a directory is an older copy (see `identity`).
//!
//! The heartbeat thread requests the next number, and another thread writes it to the file `cluster` in the directory.
//! Invariants: a number is sent only after it was written to the directory. A hanging disk delays only one heartbeat,
//! by at most [`NOTE_MAX`].

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// Maximum time that a heartbeat waits for the write of its number. A write to the page cache normally lasts a few
/// microseconds.
const NOTE_MAX: Duration = Duration::from_millis(20);

/// The end of the channel with which the heartbeat thread requests numbers.
pub struct Notes {
    wanted: watch::Sender<u64>,
    written: watch::Receiver<u64>,
}

/// The end of the channel with which the writing thread receives the requests and reports the written numbers.
pub struct NotesToWrite {
    wanted: watch::Receiver<u64>,
    written: watch::Sender<u64>,
}

/// Creates both ends of the channel, for a directory whose file contains the number `noted`.
pub fn notes(noted: u64) -> (Notes, NotesToWrite) {
    let ((wanted, to_write), (write, written)) = (watch::channel(noted), watch::channel(noted));
    (Notes { wanted, written }, NotesToWrite { wanted: to_write, written: write })
}

impl Notes {
    /// Requests the next number, and waits for at most [`NOTE_MAX`] until it is written. Returns the newest number in
    /// the directory. If an earlier write has failed or hangs, requests its number again and returns at once.
    pub async fn next(&mut self) -> u64 {
        let (wanted, written) = (*self.wanted.borrow(), *self.written.borrow());
        if written < wanted {
            // Wake the writing thread again, in case its last write failed.
            self.wanted.send_modify(|_| {});
            return written;
        }
        self.wanted.send_replace(written + 1);
        let _ = timeout(NOTE_MAX, self.written.wait_for(|newest| *newest > written)).await;
        *self.written.borrow()
    }
}

impl NotesToWrite {
    /// Waits until a number is requested. Never returns once the heartbeat thread has ended.
    pub async fn requested(&mut self) {
        if self.wanted.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns the requested number.
    pub fn wanted(&mut self) -> u64 {
        *self.wanted.borrow_and_update()
    }

    /// Reports that `number` has been written to the directory.
    pub fn wrote(&self, number: u64) {
        self.written.send_replace(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn hanging_write_delays_one_heartbeat_and_counts_once_it_is_done() {
        let (mut notes, mut to_write) = notes(7);
        let began = Instant::now();
        assert_eq!(notes.next().await, 7, "nothing was written");
        assert_eq!(began.elapsed(), NOTE_MAX);
        assert_eq!((notes.next().await, notes.next().await), (7, 7));
        assert_eq!(began.elapsed(), NOTE_MAX, "the second and third beat wait for nothing");
        to_write.requested().await;
        let wanted = to_write.wanted();
        assert_eq!(wanted, 8, "one number is asked for however many beats there were");
        to_write.wrote(wanted);
        let writing = tokio::spawn(async move {
            to_write.requested().await;
            let wanted = to_write.wanted();
            to_write.wrote(wanted);
            to_write
        });
        assert_eq!(notes.next().await, 9, "it is written before it is told");
        let to_write = writing.await.expect("no panic");
        drop(to_write);
        assert_eq!(notes.next().await, 9, "nobody writes any more");
        assert_eq!(began.elapsed(), NOTE_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_write_is_requested_again_by_the_next_heartbeat() {
        let (mut notes, mut to_write) = notes(0);
        assert_eq!(notes.next().await, 0);
        to_write.requested().await;
        assert_eq!(to_write.wanted(), 1);
        // The write fails: `wrote` is not called.
        assert_eq!(notes.next().await, 0);
        to_write.requested().await;
        let wanted = to_write.wanted();
        to_write.wrote(wanted);
        assert_eq!(notes.next().await, 1, "a moment passes, and the next one is not written");
    }
}
