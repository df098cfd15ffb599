//! Slots for long work: a part of a request that may take longer than a millisecond, and would keep other connections
//! waiting.
//!
//! The work stays on the thread that handles the request, so that nothing is copied and requests stay in order. During
//! the work, the runtime moves the thread's other tasks to another thread. [`LongWork::poll_once`] does the same for a
//! future whose poll may take long. The recovery of logs must not use these slots, because it takes seconds.
//!
//! Invariant: the number of slots is fixed, so that the runtime always has threads left. Slots are given in the order
//! of the requests. Work that has a slot never waits for another slot. A connection waits with at most one request and
//! one response at a time, so the slots are shared fairly.

use crate::task;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use tokio::sync::Semaphore;

/// Number of slots for all connections together.
const SLOTS: usize = 16;

thread_local! {
    /// True while this thread has a slot.
    static IN_SLOT: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if the calling thread has a slot. Such a thread must not wait for another slot.
pub fn is_in_slot() -> bool {
    IN_SLOT.get()
}

/// Marks the thread as having a slot until this guard is dropped.
struct InSlot {
    before: bool,
}

impl InSlot {
    fn enter() -> InSlot {
        InSlot { before: IN_SLOT.replace(true) }
    }
}

impl Drop for InSlot {
    fn drop(&mut self) {
        IN_SLOT.set(self.before);
    }
}

/// The slots of one broker.
pub struct LongWork {
    slots: Semaphore,
}

impl Default for LongWork {
    fn default() -> Self {
        LongWork { slots: Semaphore::new(SLOTS) }
    }
}

impl LongWork {
    /// Creates the given number of slots.
    pub fn with_slots(slots: usize) -> LongWork {
        LongWork { slots: Semaphore::new(slots) }
    }

    /// Starts without slots. A test adds them with `add_slots`.
    #[cfg(any(test, feature = "test-util"))]
    pub fn without_slots() -> LongWork {
        LongWork { slots: Semaphore::new(0) }
    }

    /// Adds slots.
    #[cfg(any(test, feature = "test-util"))]
    pub fn add_slots(&self, count: usize) {
        self.slots.add_permits(count);
    }

    /// Waits for a slot and runs the work. If the calling thread already has a slot, the work runs in that slot at
    /// once.
    pub async fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        if is_in_slot() {
            return work();
        }
        let _slot = self.slots.acquire().await.expect("never closed");
        in_slot(work)
    }

    /// Waits for a slot and polls the future once. The slot is released afterwards, even if the future is not done.
    pub async fn poll_once<F: Future>(&self, mut future: Pin<&mut F>) -> Poll<F::Output> {
        let _slot = self.slots.acquire().await.expect("never closed");
        poll_fn(|context| Poll::Ready(in_slot(|| future.as_mut().poll(context)))).await
    }
}

fn in_slot<T>(work: impl FnOnce() -> T) -> T {
    task::in_place(|| {
        let _in_slot = InSlot::enter();
        work()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn long_work_on_the_only_worker_lets_other_tasks_run() {
        let long = Arc::new(LongWork::default());
        let (done, is_done) = mpsc::channel();
        let working = tokio::spawn(async move { long.run(move || is_done.recv().expect("the other has run")).await });
        let other = tokio::spawn(async move { done.send(()).expect("somebody waits for it") });
        other.await.expect("no panic");
        working.await.expect("no panic");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_long_poll_on_the_only_worker_lets_other_tasks_run() {
        let long = Arc::new(LongWork::default());
        let (done, is_done) = mpsc::channel();
        let working = tokio::spawn(async move {
            let work = std::pin::pin!(async move { is_done.recv().expect("the other has run") });
            long.poll_once(work).await
        });
        let other = tokio::spawn(async move { done.send(()).expect("the work waits for it") });
        other.await.expect("no panic");
        assert!(working.await.expect("no panic").is_ready());
    }

    #[tokio::test]
    async fn a_pending_future_holds_no_permit() {
        let long = LongWork::with_slots(1);
        let (wake, woken) = tokio::sync::oneshot::channel();
        // Work inside the poll uses the poll's slot.
        let mut waiting = std::pin::pin!(async { long.run(|| woken).await.await });
        assert!(long.poll_once(waiting.as_mut()).await.is_pending());
        assert!(!is_in_slot());
        wake.send(7).expect("it is waited for");
        assert_eq!(long.poll_once(waiting.as_mut()).await, Poll::Ready(Ok(7)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn work_that_panics_returns_its_permit() {
        let long = Arc::new(LongWork::default());
        for _ in 0..=SLOTS {
            let long = Arc::clone(&long);
            let panicking = tokio::spawn(async move { long.run(|| panic!("as a test wants it")).await });
            assert!(panicking.await.is_err_and(|error| error.is_panic()));
        }
        long.run(|| ()).await;
    }
}
