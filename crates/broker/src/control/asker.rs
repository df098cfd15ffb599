//! A connection as one who asks for changes of groups, and awaits each only when its answer's turn comes.
//!
//! Not the order in which commands are served, which is the queue's. Invariants: what was asked is served whatever stands
//! before its answer, even where nobody awaits it yet; at most [`OF_ONE_MAX`] commands of a connection wait in the queue.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::queue::{OF_ONE_MAX, Queue};
use super::{Place, Refusal};

/// One connection's share of the queue.
pub struct Asker {
    queue: Arc<Queue>,
    places: Arc<Semaphore>,
    /// Something was asked since [`Asker::carry_out`] has last seen to it.
    has_asked: AtomicBool,
}

impl Asker {
    pub(super) fn new(queue: Arc<Queue>) -> Self {
        Self { queue, places: Arc::new(Semaphore::new(OF_ONE_MAX)), has_asked: AtomicBool::new(false) }
    }

    /// Waits for a place of its own and then for one of the queue's.
    pub async fn enter(&self) -> Result<Place<'_>, Refusal> {
        let permit = Arc::clone(&self.places).acquire_owned().await.expect("never closed");
        Place::of(&self.queue, Some(Own { asker: self, permit })).await
    }

    /// Serves what was asked and not yet served, for ever. It wakes nobody: it is polled with the connection's task, after
    /// what asks and what awaits, so that it serves only what would else wait while the task sleeps.
    pub async fn carry_out(&self) -> Infallible {
        loop {
            poll_fn(|_| if self.has_unserved() { Poll::Ready(()) } else { Poll::Pending }).await;
            // Others that are ready now ask first, and share the transaction.
            tokio::task::yield_now().await;
            if self.has_unserved() {
                self.queue.serve_of_groups();
            }
            // From here on somebody is sure to serve it.
            self.has_asked.store(false, Relaxed);
        }
    }

    fn has_unserved(&self) -> bool {
        self.has_asked.load(Relaxed) && self.places.available_permits() < OF_ONE_MAX
    }
}

/// One of a connection's own places.
pub(super) struct Own<'a> {
    asker: &'a Asker,
    permit: OwnedSemaphorePermit,
}

impl Own<'_> {
    /// The command that takes it is about to be in the queue.
    pub fn taken(self) -> OwnedSemaphorePermit {
        self.asker.has_asked.store(true, Relaxed);
        self.permit
    }
}
