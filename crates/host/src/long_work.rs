//! Work of a request that may take longer than a millisecond: it is done where no other connection waits for it.
//!
//! The thread that does it is the one that has the request, so that nothing is copied and the order of admission stays;
//! what else that thread would have served goes to another one meanwhile. Not for recovery, which takes seconds: see
//! [`classic`](crate::partitions).
//!
//! Invariant: at most [`PLACES`] at a time, first come, first served, so that the runtime has threads left. Whoever has one does not
//! wait in it for another's: that is waited for before. A connection has one request at a time in the queue, and at most one
//! answer, so that places are shared among connections.

use crate::task;
use tokio::sync::Semaphore;

/// Long works at a time, of all connections.
const PLACES: usize = 16;

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
    /// With no place before one is added.
    #[cfg(any(test, feature = "test-util"))]
    pub fn without_places() -> LongWork {
        LongWork { places: Semaphore::new(0) }
    }

    /// So many places more.
    #[cfg(any(test, feature = "test-util"))]
    pub fn add_places(&self, count: usize) {
        self.places.add_permits(count);
    }

    /// Waits for a place and does the work.
    pub async fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _place = self.places.acquire().await.expect("never closed");
        task::in_place(work)
    }
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
