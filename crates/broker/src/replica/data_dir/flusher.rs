//! The threads that write records from memory to the disk. Two of them fsync the files of all partitions. A third one
//! drops written pages from the page cache if memory is expensive.
//!
//! [`fullbore_log::flush`] chooses the files that a flush covers. A partition is in the queue at most once, so the
//! queue is never longer than the number of partitions. If several requests for a flush arrive while the partition is
//! being flushed, one more flush serves all of them.
//!
//! Lock order: the state of a partition is locked before the queue.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::failures::Failures;
use crate::replica::Replica;
use fullbore_host::disk_space::DiskSpace;
use fullbore_log::page_cache::PageCache;

/// Number of threads that fsync. There are two, so that one slow fsync does not delay all other partitions.
const THREADS: usize = 2;

/// Flushes the partitions that are in its queue.
#[derive(Debug)]
pub struct Flusher {
    queue: Mutex<FlushQueue>,
    changed: Condvar,
    /// Counts the partitions whose logs are broken.
    pub failures: Failures,
    /// Counts the partitions whose files are damaged.
    pub refused: Failures,
    /// Decides how long written records stay in the page cache.
    pub page_cache: Arc<PageCache>,
    /// Tracks the free space of the disk and manages the disk reserve.
    pub space: Arc<DiskSpace>,
}

#[derive(Debug, Default)]
struct FlushQueue {
    ready: VecDeque<Arc<Replica>>,
    timed: BTreeMap<Due, (Arc<Replica>, Reason)>,
    numbers: u64,
    stopping: bool,
}

/// The time at which a timed flush is due, with a number that distinguishes flushes of the same time.
pub type Due = (Instant, u64);

/// The reason for a timed flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// `flush.ms` have passed since an append.
    FlushMs,
    /// An earlier flush could not open a file.
    Again,
}

impl FlushQueue {
    fn take_due(&mut self) -> Option<(Arc<Replica>, Reason)> {
        let entry = self.timed.first_entry()?;
        (entry.key().0 <= Instant::now()).then(|| entry.remove())
    }
}

impl Flusher {
    /// Creates a flusher with an empty queue.
    pub fn new(page_cache: PageCache, space: Arc<DiskSpace>) -> Flusher {
        Flusher {
            queue: Mutex::default(),
            changed: Condvar::new(),
            failures: Failures::default(),
            refused: Failures::default(),
            page_cache: Arc::new(page_cache),
            space,
        }
    }

    /// Starts the threads. They end after [`Flusher::stop`].
    pub fn start(self: &Arc<Self>) -> std::io::Result<Vec<JoinHandle<()>>> {
        let flushing = (0..THREADS).map(|number| {
            let flusher = self.clone();
            std::thread::Builder::new().name(format!("flush-{number}")).spawn(move || flusher.run())
        });
        flushing.chain([self.page_cache.start()]).collect()
    }

    /// Makes the threads end as soon as the queue is empty.
    pub fn stop(&self) {
        self.queue.lock().stopping = true;
        self.changed.notify_all();
        self.page_cache.stop();
    }

    /// Queues a flush of a partition. The partition must not be in the queue already.
    pub fn push(&self, partition: Arc<Replica>) {
        self.queue.lock().ready.push_back(partition);
        self.changed.notify_one();
    }

    /// Queues a flush that is due after `delay`, and returns the key to cancel it. Returns `None` if the clock cannot
    /// represent that time. A partition may have one such flush for each reason. The caller must cancel a flush that is
    /// no longer needed.
    pub fn push_after(&self, partition: Arc<Replica>, reason: Reason, delay: Duration) -> Option<Due> {
        let time = Instant::now().checked_add(delay)?;
        let mut queue = self.queue.lock();
        queue.numbers += 1;
        let due = (time, queue.numbers);
        queue.timed.insert(due, (partition, reason));
        self.changed.notify_one();
        Some(due)
    }

    /// Cancels a timed flush that has not begun.
    pub fn take_back(&self, due: Due) {
        let taken = self.queue.lock().timed.remove(&due);
        // Release the lock first, because `taken` may be the last reference to the partition.
        drop(taken);
    }

    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some((partition, reason)) = queue.take_due() {
                parking_lot::MutexGuard::unlocked(&mut queue, || partition.fall_due(reason));
            } else if let Some(partition) = queue.ready.pop_front() {
                parking_lot::MutexGuard::unlocked(&mut queue, || partition.flush());
            } else if queue.stopping {
                return;
            } else if let Some((&(due, _), _)) = queue.timed.first_key_value() {
                self.changed.wait_until(&mut queue, due);
            } else {
                self.changed.wait(&mut queue);
            }
        }
    }
}
