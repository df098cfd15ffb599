//! Permits for long work: parts of a request that may take longer than a millisecond, and would keep other connections
//! waiting.
//!
//! The work stays on the thread that handles the request, so that nothing is copied and requests stay in order. While
//! it runs, the runtime moves the thread's other tasks to another thread. [`LongWork::poll_once`] does the same for a
//! future that takes long to poll. Recovery of logs takes seconds and must not use this.
//!
//! Invariant: there are [`PLACES`] permits, given in the order of the requests, so that the runtime always has threads
//! left. Work that has a permit never waits for another one. A connection waits with at most one request and one
//! response at a time, so the permits are shared fairly.

use crate::task;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use tokio::sync::Semaphore;

/// Number of permits for all connections together.
const PLACES: usize = 16;

thread_local! {
    /// True while this thread has a permit.
    static IN_PLACE: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if the calling thread has a permit. Such a thread must not wait for another permit.
pub fn is_in_place() -> bool {
    IN_PLACE.get()
}

/// Marks the thread as having a permit until this guard is dropped.
struct InPlace {
    before: bool,
}

impl InPlace {
    fn enter() -> InPlace {
        InPlace { before: IN_PLACE.replace(true) }
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        IN_PLACE.set(self.before);
    }
}

/// The permits of one broker.
pub struct LongWork {
    places: Semaphore,
}

impl Default for LongWork {
    fn default() -> Self {
        LongWork { places: Semaphore::new(PLACES) }
    }
}

impl LongWork {
    /// Creates the given number of permits.
    pub fn with_places(places: usize) -> LongWork {
        LongWork { places: Semaphore::new(places) }
    }

    /// Starts without permits. A test adds them with `add_places`.
    #[cfg(any(test, feature = "test-util"))]
    pub fn without_places() -> LongWork {
        LongWork { places: Semaphore::new(0) }
    }

    /// Adds permits.
    #[cfg(any(test, feature = "test-util"))]
    pub fn add_places(&self, count: usize) {
        self.places.add_permits(count);
    }

    /// Waits for a permit and runs the work. If the calling thread already has a permit, that one is used.
    pub async fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        if is_in_place() {
            return work();
        }
        let _place = self.places.acquire().await.expect("never closed");
        in_place(work)
    }

    /// Waits for a permit and polls the future once. The permit is released afterwards, even if the future is not done.
    pub async fn poll_once<F: Future>(&self, mut future: Pin<&mut F>) -> Poll<F::Output> {
        let _place = self.places.acquire().await.expect("never closed");
        poll_fn(|context| Poll::Ready(in_place(|| future.as_mut().poll(context)))).await
    }
}

fn in_place<T>(work: impl FnOnce() -> T) -> T {
    task::in_place(|| {
        let _in_place = InPlace::enter();
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
        let long = LongWork::with_places(1);
        let (wake, woken) = tokio::sync::oneshot::channel();
        // Work inside the poll uses the poll's permit.
        let mut waiting = std::pin::pin!(async { long.run(|| woken).await.await });
        assert!(long.poll_once(waiting.as_mut()).await.is_pending());
        assert!(!is_in_place());
        wake.send(7).expect("it is waited for");
        assert_eq!(long.poll_once(waiting.as_mut()).await, Poll::Ready(Ok(7)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn work_that_panics_returns_its_permit() {
        let long = Arc::new(LongWork::default());
        for _ in 0..=PLACES {
            let long = Arc::clone(&long);
            let panicking = tokio::spawn(async move { long.run(|| panic!("as a test wants it")).await });
            assert!(panicking.await.is_err_and(|error| error.is_panic()));
        }
        long.run(|| ()).await;
    }
}
