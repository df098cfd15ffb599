//! Places and memory for work of requests of thousands of entries, each of which takes time and memory.
//!
//! Such work is a future that is driven: each poll of it has a place and room in memory. Not here: which requests those
//! are, and long work of others, see [`long_work`](crate::long_work).
//!
//! Freed memory stays with the thread that worked, since malloc keeps it for that one: the next request, on another
//! thread, would take as much again. So the allocator gives it back each time that polls have taken a quarter of the
//! room.
//!
//! Invariant: room is taken before a place, and nothing is awaited in a place.

use crate::long_work::{LongWork, is_in_place};
use crate::memory;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Bytes of memory of all polls at a time. A poll that takes more has all of it.
const BYTES_MAX: usize = 256 << 20;
/// Bytes that polls take before the allocator gives back what it kept of them.
const KEPT_MAX: usize = BYTES_MAX / 4;
/// Polls at a time, on a machine of few processors.
const PLACES_MIN: usize = 4;

/// Places and memory for the work of wide requests, of one broker.
pub struct WideWork {
    places: LongWork,
    bytes: Semaphore,
    /// The turn of a wide command.
    commands: Semaphore,
    /// Bytes that polls have taken since memory was given back.
    taken: AtomicUsize,
    /// Gives freed memory back to the system.
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
    /// Returns the polls so far.
    #[cfg(any(test, feature = "test-util"))]
    pub fn polls(&self) -> usize {
        self.polls.load(Ordering::SeqCst)
    }

    /// Takes all memory.
    #[cfg(any(test, feature = "test-util"))]
    pub async fn take_memory(&self) -> SemaphorePermit<'_> {
        self.bytes.acquire_many(BYTES_MAX as u32).await.expect("never closed")
    }

    /// Waits for a place and does the work, which takes no memory.
    pub async fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        self.places.run(work).await
    }

    /// Waits for the turn of a command, which holds memory while others carry it out.
    pub async fn command_turn(&self) -> SemaphorePermit<'_> {
        self.commands.acquire().await.expect("never closed")
    }

    /// Carries out a future: waits for room for `bytes` and for a place before each poll.
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

    /// Notes the memory of a poll that has ended, and gives freed memory back where it may be much. The room of the
    /// poll is held until then.
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
    async fn polls_have_taken_a_quarter_of_the_room_freed_memory_is_given_back_before_the_next_has_room() {
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
    async fn work_that_waits_holds_neither_room_nor_place() {
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
