//! Numbers that go to the data folder before the beats that tell them to the database.
//!
//! The thread that beats requests the next number; the thread `seen` (`identity`) writes it. Invariants: a number is
//! told only once it is in the folder; a disk that hangs delays one beat, by [`NOTE_MAX`].

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// Wait of a beat for its number. A write to the page cache takes a few microseconds.
const NOTE_MAX: Duration = Duration::from_millis(20);

/// The end of the thread that beats.
pub struct Notes {
    wanted: watch::Sender<u64>,
    written: watch::Receiver<u64>,
}

/// The end of the thread that writes.
pub struct NotesToWrite {
    wanted: watch::Receiver<u64>,
    written: watch::Sender<u64>,
}

/// Returns both ends, over a folder that has the number `noted`.
pub fn notes(noted: u64) -> (Notes, NotesToWrite) {
    let ((wanted, to_write), (write, written)) = (watch::channel(noted), watch::channel(noted));
    (Notes { wanted, written }, NotesToWrite { wanted: to_write, written: write })
}

impl Notes {
    /// Requests that the next number be written, waits for that, and returns the newest number in the folder. Waits for
    /// no write that has failed or hangs since an earlier beat.
    pub async fn next(&mut self) -> u64 {
        let (wanted, written) = (*self.wanted.borrow(), *self.written.borrow());
        if written < wanted {
            // The write may have failed: it is tried again.
            self.wanted.send_modify(|_| {});
            return written;
        }
        self.wanted.send_replace(written + 1);
        let _ = timeout(NOTE_MAX, self.written.wait_for(|newest| *newest > written)).await;
        *self.written.borrow()
    }
}

impl NotesToWrite {
    /// Waits for a request. Waits for ever once nobody beats any more.
    pub async fn requested(&mut self) {
        if self.wanted.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns the number that the folder is to have.
    pub fn wanted(&mut self) -> u64 {
        *self.wanted.borrow_and_update()
    }

    /// Reports that the folder has this number.
    pub fn wrote(&self, number: u64) {
        self.written.send_replace(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn write_that_hangs_delays_one_beat_and_is_told_once_it_is_done() {
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
    async fn write_that_failed_is_requested_again_by_the_next_beat() {
        let (mut notes, mut to_write) = notes(0);
        assert_eq!(notes.next().await, 0);
        to_write.requested().await;
        assert_eq!(to_write.wanted(), 1);
        // It fails, and nothing is reported.
        assert_eq!(notes.next().await, 0);
        to_write.requested().await;
        let wanted = to_write.wanted();
        to_write.wrote(wanted);
        assert_eq!(notes.next().await, 1, "a moment passes, and the next one is not written");
    }
}
