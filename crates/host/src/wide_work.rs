//! Permits and memory for wide requests, whose thousands of entries take time and memory.
//!
//! The work on such a request is a future; each of its polls holds a permit and a part of the memory budget. Not here:
//! the decision which requests are wide, and other long work (see [`long_work`](crate::long_work)).
//!
//! malloc keeps freed memory for the thread that used it; the next request, on another thread, would take as much
//! again. Freed memory is therefore returned to the system each time that polls have taken a quarter of the budget.
//!
//! Invariant: a poll takes its memory before its permit, and awaits nothing while it holds the permit.

use crate::long_work::{LongWork, is_in_place};
use crate::memory;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Most memory of all concurrent polls together, in bytes. A poll that needs more takes the whole budget.
const BYTES_MAX: usize = 256 << 20;
/// Most bytes that polls take before freed memory is returned to the system.
const KEPT_MAX: usize = BYTES_MAX / 4;
/// Fewest permits for concurrent polls, on a machine with few processors.
const PLACES_MIN: usize = 4;

/// Permits and memory for wide requests of one broker.
pub struct WideWork {
    places: LongWork,
    bytes: Semaphore,
    /// Permit of the one wide command that may run.
    commands: Semaphore,
    /// Number of bytes that polls have taken since memory was last returned.
    taken: AtomicUsize,
    /// Function that returns freed memory to the system.
    give_back: fn(),
    #[cfg(any(test, feature = "test-util"))]
    polls: AtomicUsize,
}

impl Default for WideWork {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        WideWork {
            places: LongWork::with_places(processors.max(PLACES_MIN)),
            bytes: Semaphore::new(BYTES_MAX),
            commands: Semaphore::new(1),
            taken: AtomicUsize::new(0),
            give_back: memory::give_back,
            #[cfg(any(test, feature = "test-util"))]
            polls: AtomicUsize::new(0),
        }
    }
}

impl WideWork {
    /// Returns the number of polls until now.
    #[cfg(any(test, feature = "test-util"))]
    pub fn polls(&self) -> usize {
        self.polls.load(Ordering::SeqCst)
    }

    /// Takes the whole memory budget.
    #[cfg(any(test, feature = "test-util"))]
    pub async fn take_memory(&self) -> SemaphorePermit<'_> {
        self.bytes.acquire_many(BYTES_MAX as u32).await.expect("never closed")
    }

    /// Waits for a permit, and does the work with it. The work takes nothing from the memory budget.
    pub async fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        self.places.run(work).await
    }

    /// Waits for the only permit of wide commands. A wide command uses memory while other threads carry it out.
    pub async fn command_turn(&self) -> SemaphorePermit<'_> {
        self.commands.acquire().await.expect("never closed")
    }

    /// Drives a future: waits for `bytes` of memory and for a permit before each poll.
    pub async fn drive<F: Future>(&self, bytes: usize, future: F) -> F::Output {
        if is_in_place() {
            return future.await;
        }
        let mut future = pin!(future);
        loop {
            let permits = bytes.min(BYTES_MAX) as u32;
            let room = self.bytes.acquire_many(permits).await.expect("never closed");
            #[cfg(any(test, feature = "test-util"))]
            self.polls.fetch_add(1, Ordering::SeqCst);
            let polled = self.places.poll_once(future.as_mut()).await;
            self.note_taken(permits as usize).await;
            drop(room);
            if let Poll::Ready(output) = polled {
                return output;
            }
            woken().await;
        }
    }

    /// Records the memory of a finished poll. Returns freed memory to the system if polls have taken [`KEPT_MAX`]
    /// bytes. The caller still holds the poll's share of the budget.
    async fn note_taken(&self, bytes: usize) {
        let taken = self.taken.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if taken >= KEPT_MAX {
            self.taken.store(0, Ordering::Relaxed);
            self.places.run(self.give_back).await;
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
    use std::sync::Arc;

    static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);

    #[tokio::test]
    async fn polls_of_a_quarter_of_the_budget_return_freed_memory_before_the_next() {
        let given_back = || GIVEN_BACK.load(Ordering::Relaxed);
        let give_back = || {
            GIVEN_BACK.fetch_add(1, Ordering::Relaxed);
        };
        let wide = WideWork { give_back, ..WideWork::default() };
        let mut seen = Vec::new();
        for bytes in [KEPT_MAX / 2, KEPT_MAX / 4, KEPT_MAX / 4, KEPT_MAX / 4, usize::MAX, 1] {
            seen.push(wide.drive(bytes, async { given_back() }).await);
        }
        assert_eq!((seen, given_back()), (vec![0, 0, 0, 1, 1, 2], 2));
    }

    #[tokio::test]
    async fn a_pending_future_holds_neither_memory_nor_permit() {
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
