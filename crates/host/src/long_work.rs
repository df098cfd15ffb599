//! Work of a request that may take longer than a millisecond: it is done where no other connection waits for it.
//!
//! The thread that does it is the one that has the request, so that nothing is copied and the order of admission stays;
//! what else that thread would have served goes to another one meanwhile. Not for recovery, which takes seconds: see
//! [`classic`](crate::partitions).
//!
//! Also for a future that works for long each time it is polled ([`LongWork::poll_once`]).
//!
//! Invariant: at most [`PLACES`] at a time, first come, first served, so that the runtime has threads left. Whoever has
//! one does not wait in it for another's: that is waited for before. A connection has one request at a time in the
//! queue, and at most one answer, so that places are shared among connections.

use crate::task;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use tokio::sync::Semaphore;

/// Long works at a time, of all connections.
const PLACES: usize = 16;

thread_local! {
    /// True while this thread works in a place.
    static IN_PLACE: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if the caller works in a place: it does not wait for another one.
pub fn is_in_place() -> bool {
    IN_PLACE.get()
}

/// Marks the thread as working in a place, until dropped.
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

/// The places for long work, of one broker.
pub struct LongWork {
    places: Semaphore,
}

impl Default for LongWork {
    fn default() -> Self {
        LongWork { places: Semaphore::new(PLACES) }
    }
}

impl LongWork {
    /// With `places` places.
    pub fn with_places(places: usize) -> LongWork {
        LongWork { places: Semaphore::new(places) }
    }

    /// With no place before one is added.
    #[cfg(any(test, feature = "test-util"))]
    pub fn without_places() -> LongWork {
        LongWork { places: Semaphore::new(0) }
    }

    /// Adds places.
    #[cfg(any(test, feature = "test-util"))]
    pub fn add_places(&self, count: usize) {
        self.places.add_permits(count);
    }

    /// Waits for a place and does the work, which goes on in the caller's place if it has one.
    pub async fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        if is_in_place() {
            return work();
        }
        let _place = self.places.acquire().await.expect("never closed");
        in_place(work)
    }

    /// Waits for a place and polls the future once in it. The place is given back whether the future is done or not.
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
    async fn others_are_served_while_the_only_worker_has_long_work() {
        let long = Arc::new(LongWork::default());
        let (done, is_done) = mpsc::channel();
        let working = tokio::spawn(async move { long.run(move || is_done.recv().expect("the other has run")).await });
        let other = tokio::spawn(async move { done.send(()).expect("somebody waits for it") });
        other.await.expect("no panic");
        working.await.expect("no panic");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn future_works_long_when_polled_others_are_served() {
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
    async fn future_that_waits_is_polled_its_place_is_free() {
        let long = LongWork::with_places(1);
        let (wake, woken) = tokio::sync::oneshot::channel();
        // Work inside goes on in the same place.
        let mut waiting = std::pin::pin!(async { long.run(|| woken).await.await });
        assert!(long.poll_once(waiting.as_mut()).await.is_pending());
        assert!(!is_in_place());
        wake.send(7).expect("it is waited for");
        assert_eq!(long.poll_once(waiting.as_mut()).await, Poll::Ready(Ok(7)));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn work_that_panics_gives_its_place_back() {
        let long = Arc::new(LongWork::default());
        for _ in 0..=PLACES {
            let long = Arc::clone(&long);
            let panicking = tokio::spawn(async move { long.run(|| panic!("as a test wants it")).await });
            assert!(panicking.await.is_err_and(|error| error.is_panic()));
        }
        long.run(|| ()).await;
    }
}
