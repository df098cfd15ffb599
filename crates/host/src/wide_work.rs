//! Slots and memory for wide requests, which have thousands of entries.
//!
//! The work on such a request is a future. Each time it is polled, it needs a slot and a part of the memory budget.
//! Other long work is in [`long_work`](crate::long_work).
//!
//! malloc keeps freed memory for the thread that used it. If the next request runs on another thread, that thread takes
//! as much memory again. Once polls have used a quarter of the budget, the freed memory is therefore returned to the
//! system, but at most once every [`TRIM_INTERVAL`]. Under load each return costs milliseconds, since the next polls
//! need the memory again. Memory that later polls free is returned by [`memory::Trimmer`].
//!
//! Invariant: a poll gets its memory before its slot, and does not wait for anything while it has the slot.

use crate::long_work::{LongWork, is_in_slot};
use crate::memory;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
#[cfg(any(test, feature = "test-util"))]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Maximum memory of all concurrent polls together, in bytes. A poll that needs more gets the whole budget.
const BYTES_MAX: usize = 256 << 20;
/// How many bytes polls may use between two returns of freed memory to the system.
const KEPT_MAX: usize = BYTES_MAX / 4;
/// Minimum time between two returns of freed memory to the system. In this time, a thread can allocate about 256 MiB of
/// new memory.
const TRIM_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum number of slots, for machines with few processors.
const SLOTS_MIN: usize = 4;

/// The largest amount of memory that a poll of this process would have needed. It may exceed the budget.
#[cfg(any(test, feature = "test-util"))]
pub static LARGEST_POLL: AtomicUsize = AtomicUsize::new(0);

/// The slots and the memory for wide requests of one broker.
pub struct WideWork {
    slots: LongWork,
    bytes: Semaphore,
    /// The slot for wide commands, of which only one may run at a time.
    commands: Semaphore,
    /// The slots for long listings. Of each kind, only one may run at a time.
    listings: [Arc<Semaphore>; 2],
    taken: Mutex<TakenMemory>,
    /// Returns freed memory to the system. Tests can replace it.
    give_back: fn(),
    #[cfg(any(test, feature = "test-util"))]
    polls: AtomicUsize,
}

/// A kind of listing that may be long.
#[derive(Clone, Copy)]
pub enum Listing {
    /// A list of transactional ids.
    Transactions,
    /// A list of the partitions in a data directory. It may wait for a disk that hangs.
    LogDirs,
}

/// The memory that polls have used since freed memory was last returned to the system.
#[derive(Default)]
struct TakenMemory {
    bytes: usize,
    /// When freed memory was last returned; `None` if it never was.
    returned: Option<Instant>,
}

impl TakenMemory {
    /// Adds `bytes`, the memory that a poll has used. Returns true if freed memory must now be returned to the system.
    fn is_return_due(&mut self, bytes: usize, now: Instant) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        let is_early = self.returned.is_some_and(|returned| now < returned + TRIM_INTERVAL);
        if self.bytes < KEPT_MAX || is_early {
            return false;
        }
        *self = TakenMemory { bytes: 0, returned: Some(now) };
        true
    }
}

impl Default for WideWork {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        WideWork {
            slots: LongWork::with_slots(processors.max(SLOTS_MIN)),
            bytes: Semaphore::new(BYTES_MAX),
            commands: Semaphore::new(1),
            listings: [(); 2].map(|()| Arc::new(Semaphore::new(1))),
            taken: Mutex::default(),
            give_back: memory::give_back,
            #[cfg(any(test, feature = "test-util"))]
            polls: AtomicUsize::new(0),
        }
    }
}

impl WideWork {
    /// Returns the number of polls so far.
    #[cfg(any(test, feature = "test-util"))]
    pub fn polls(&self) -> usize {
        self.polls.load(Ordering::SeqCst)
    }

    /// Reserves the whole memory budget, so that polls must wait.
    #[cfg(any(test, feature = "test-util"))]
    pub async fn take_memory(&self) -> SemaphorePermit<'_> {
        self.bytes.acquire_many(BYTES_MAX as u32).await.expect("never closed")
    }

    /// Waits for a slot and runs the work. The work uses none of the memory budget.
    pub async fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        self.slots.run(work).await
    }

    /// Waits for the slot for wide commands. A wide command uses memory while other threads carry it out, so only one
    /// may run at a time.
    pub async fn command_turn(&self) -> SemaphorePermit<'_> {
        self.commands.acquire().await.expect("never closed")
    }

    /// Waits for the slot for long listings of this kind. Another thread makes the list, which takes memory until it
    /// is encoded. That thread should own the slot while it works, since the request may be given up.
    pub async fn listing_turn(&self, listing: Listing) -> OwnedSemaphorePermit {
        Arc::clone(&self.listings[listing as usize]).acquire_owned().await.expect("never closed")
    }

    /// Runs a future. Before each poll, waits for `bytes` of memory and for a slot.
    pub async fn drive<F: Future>(&self, bytes: usize, future: F) -> F::Output {
        if is_in_slot() {
            return future.await;
        }
        let mut future = pin!(future);
        loop {
            let permits = bytes.min(BYTES_MAX) as u32;
            let room = self.bytes.acquire_many(permits).await.expect("never closed");
            #[cfg(any(test, feature = "test-util"))]
            {
                self.polls.fetch_add(1, Ordering::SeqCst);
                LARGEST_POLL.fetch_max(bytes, Ordering::SeqCst);
            }
            if let Poll::Ready(output) = self.slots.poll_once(future.as_mut()).await {
                self.note_taken(permits as usize).await;
                drop(room);
                return output;
            }
            // Await nothing else before `woken`. The future may already have woken the task, and another wait would
            // consume this wakeup.
            self.taken.lock().bytes += permits as usize;
            drop(room);
            woken().await;
        }
    }

    /// Records the memory that a poll has used. Returns freed memory to the system if [`TakenMemory`] finds that this
    /// is due. The caller still holds the poll's part of the budget.
    async fn note_taken(&self, bytes: usize) {
        let is_due = self.taken.lock().is_return_due(bytes, Instant::now());
        if is_due {
            self.slots.run(self.give_back).await;
        }
    }
}

/// Waits until the task is woken.
async fn woken() {
    let mut is_polled = false;
    poll_fn(|_| match std::mem::replace(&mut is_polled, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn polls_of_a_quarter_of_the_budget_return_freed_memory_once_per_interval() {
        let began = Instant::now();
        let mut taken = TakenMemory::default();
        let mut due = |bytes, ms| taken.is_return_due(bytes, began + Duration::from_millis(ms));
        assert_eq!([due(KEPT_MAX / 2, 0), due(KEPT_MAX / 2, 1)], [false, true]);
        let loaded: Vec<bool> = (2..=251).map(|ms| due(KEPT_MAX, ms)).collect();
        assert_eq!(loaded.iter().position(|is_due| *is_due), Some(249), "one return in 250 ms of load");
        assert_eq!([due(KEPT_MAX - 1, 10_000), due(1, 10_001)], [false, true], "little memory was used since");
    }

    #[tokio::test]
    async fn polls_of_a_quarter_of_the_budget_return_freed_memory_before_the_next() {
        let given_back = || GIVEN_BACK.load(Ordering::Relaxed);
        let give_back = || {
            GIVEN_BACK.fetch_add(1, Ordering::Relaxed);
        };
        let wide = WideWork { give_back, ..WideWork::default() };
        let mut seen = Vec::new();
        for bytes in [KEPT_MAX / 2, KEPT_MAX / 4, KEPT_MAX / 4, 1] {
            seen.push(wide.drive(bytes, async { given_back() }).await);
        }
        assert_eq!(seen, [0, 0, 0, 1]);
    }

    #[tokio::test]
    async fn a_pending_future_holds_neither_memory_nor_slot() {
        let wide = Arc::new(WideWork { give_back: || (), ..WideWork::default() });
        let (wake, woken) = tokio::sync::oneshot::channel();
        let waiting = tokio::spawn({
            let wide = Arc::clone(&wide);
            async move { wide.drive(usize::MAX, woken).await }
        });
        while wide.polls() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(wide.drive(usize::MAX, async { 7 }).await, 7);
        wake.send(8).expect("it is waited for");
        assert_eq!(waiting.await.expect("no panic"), Ok(8));
    }
}
