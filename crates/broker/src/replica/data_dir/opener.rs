//! The threads that open logs. After a crash, a log may need seconds to open, and the threads that serve connections
//! must not block for that time.
//!
//! [`crate::replica::opening`] and [`fullbore_log::recovery`] open the log itself. The threads first open the
//! partitions that a caller waits for, in the order of the requests. Then they open those that a crash may have damaged
//! and those where retention is due.
//!
//! Invariant: a partition is in each queue at most once, so the queues are never longer than the number of partitions.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::replica::Replica;
use fullbore_host::files::CHANGES;
use fullbore_host::files::give_way;

/// Flags that show which of the opener's queues contain a replica. `by_somebody` is for the queue of openings that a
/// caller waits for, and `in_time` for the queue of all others.
#[derive(Debug, Default)]
pub struct OpeningMarks {
    by_somebody: AtomicBool,
    in_time: AtomicBool,
}

impl OpeningMarks {
    /// Returns true if a caller waits for the opening and no thread has started it yet.
    pub fn is_by_somebody(&self) -> bool {
        self.by_somebody.load(Acquire)
    }
}

/// Opens the partitions that are in its queues.
#[derive(Debug)]
pub struct Opener {
    queue: Mutex<OpeningQueue>,
    changed: Condvar,
    stopping: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct OpeningQueue {
    requested: VecDeque<Arc<Replica>>,
    /// Partitions whose opening no caller waits for. They may be deleted while they are in the queue.
    rest: VecDeque<Weak<Replica>>,
    recovery: Recovery,
    is_stopping: bool,
}

/// The progress of the recovery after a crash, for the log.
#[derive(Debug, Default)]
struct Recovery {
    /// The number of partitions to recover. `left` of them are not recovered yet.
    partitions: usize,
    left: usize,
    /// The number of partitions that could not be opened.
    failed: usize,
    /// The time at which the last partition that a crash may have damaged was queued. `None` before that.
    began: Option<Instant>,
}

impl OpeningQueue {
    /// Updates the progress of the recovery after a partition was taken from `rest`. `is_of_use` is false if that
    /// partition could not be opened. The partitions that a crash may have damaged come first in `rest`. Once all of
    /// them are counted, further calls do nothing.
    fn note_opened(&mut self, is_of_use: bool) {
        if self.recovery.left > 0 {
            self.recovery.left -= 1;
            self.recovery.failed += usize::from(!is_of_use);
            self.recovery.log_if_done();
        }
    }
}

impl Recovery {
    fn log_if_done(&self) {
        if let Some(began) = self.began
            && self.partitions > 0
            && self.left == 0
        {
            let took_ms = began.elapsed().as_millis();
            let (partitions, failed) = (self.partitions - self.failed, self.failed);
            tracing::info!(target: CHANGES, partitions, failed, took_ms, "recovered");
        }
    }
}

impl Default for Opener {
    fn default() -> Self {
        Opener { queue: Mutex::default(), changed: Condvar::new(), stopping: watch::Sender::new(false) }
    }
}

impl Opener {
    /// Starts `threads` threads, which end after [`Opener::stop`]. With 0 threads, callers open the logs themselves and
    /// block.
    pub fn start(self: &Arc<Self>, threads: usize) -> impl Iterator<Item = io::Result<JoinHandle<()>>> {
        (0..threads).map(|number| {
            let opener = self.clone();
            std::thread::Builder::new().name(format!("opener-{number}")).spawn(move || opener.run())
        })
    }

    /// Stops the opener: ends its threads, empties its queues, and ends all waits for openings.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
        {
            let mut queue = self.queue.lock();
            queue.is_stopping = true;
            queue.requested.clear();
            queue.rest.clear();
        }
        self.changed.notify_all();
    }

    /// Returns true after [`Opener::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Returns a receiver that becomes true when the opener stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Queues an opening that a caller waits for.
    pub fn request(&self, partition: &Arc<Replica>) {
        if partition.requested.by_somebody.swap(true, AcqRel) {
            return;
        }
        let mut queue = self.queue.lock();
        if !queue.is_stopping {
            queue.requested.push_back(partition.clone());
            self.changed.notify_one();
        }
    }

    /// Queues an opening that no caller waits for. Openings that callers wait for have priority.
    pub fn request_in_time(&self, partition: &Arc<Replica>) {
        if partition.requested.in_time.swap(true, AcqRel) {
            return;
        }
        let mut queue = self.queue.lock();
        if !queue.is_stopping {
            if queue.recovery.began.is_none() {
                queue.recovery.partitions += 1;
                queue.recovery.left += 1;
            }
            queue.rest.push_back(Arc::downgrade(partition));
            self.changed.notify_one();
        }
    }

    /// Records that all partitions that a crash may have damaged are queued, and logs their number.
    pub fn note_all_queued(&self) {
        let mut queue = self.queue.lock();
        queue.recovery.began = Some(Instant::now());
        if queue.recovery.partitions > 0 {
            let partitions = queue.recovery.partitions;
            tracing::info!(target: CHANGES, partitions, "recovering partitions after an unclean shutdown");
        }
        queue.recovery.log_if_done();
    }

    fn run(&self) {
        give_way();
        while let Some((partition, is_requested_for)) = self.next() {
            // Clear the flag first, so that a request during the opening queues the partition again.
            let requested =
                if is_requested_for { &partition.requested.by_somebody } else { &partition.requested.in_time };
            requested.store(false, Release);
            if is_requested_for {
                partition.open_now();
            } else {
                let is_of_use = partition.recover_now();
                self.queue.lock().note_opened(is_of_use);
            }
        }
    }

    /// Returns the next partition, and true if a caller waits for its opening. Returns `None` when the opener stops.
    fn next(&self) -> Option<(Arc<Replica>, bool)> {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_stopping {
                return None;
            }
            if let Some(partition) = queue.requested.pop_front() {
                return Some((partition, true));
            }
            match queue.rest.pop_front().map(|partition| partition.upgrade()) {
                Some(Some(partition)) => return Some((partition, false)),
                Some(None) => queue.note_opened(true),
                None => self.changed.wait(&mut queue),
            }
        }
    }
}
