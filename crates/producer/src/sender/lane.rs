//! One connection to a broker, how much is in flight on it, and the request being written to it.
//!
//! Not here: which batches it carries (see `sender`), and how many lanes there are (see `lanes`). Invariant: one
//! request is written at a time, and while the socket does not take it the lane takes no other.

use crate::pipe::{Pipe, SharedPipe};
use fullbore_client::tokio::Connection;
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// What may be under way without being waited for.
pub(super) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// See the module.
pub(super) struct ProduceLane {
    pub(super) connection: Connection,
    /// Tells it from every other connection this producer ever had to the broker.
    pub(super) path: u64,
    pub(super) pipe: SharedPipe,
    writing: Option<BoxFuture<()>>,
}

impl ProduceLane {
    pub(super) fn new(connection: Connection, path: u64, pipe: Pipe) -> Self {
        ProduceLane { connection, path, pipe: Arc::new(Mutex::new(pipe)), writing: None }
    }

    /// Returns true if it takes another request now.
    pub(super) fn has_room(&self) -> bool {
        self.writing.is_none() && self.pipe.lock().has_room()
    }

    /// Returns true if it takes what those in flight on it may be waiting for.
    pub(super) fn has_room_for_missing(&self) -> bool {
        self.writing.is_none() && self.pipe.lock().has_room_for_missing()
    }

    /// Returns true if nothing is under way on it.
    pub(super) fn is_idle(&self) -> bool {
        self.writing.is_none() && self.pipe.lock().requests() == 0
    }

    /// Begins to write; what the socket does not take at once goes on with [`ProduceLane::poll`].
    pub(super) async fn write(&mut self, request: BoxFuture<()>) {
        debug_assert!(self.writing.is_none());
        self.writing = Some(request);
        poll_fn(|cx| {
            let _later = self.poll(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Ready when a write has just ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(request) = &mut self.writing else { return Poll::Pending };
        let written = request.as_mut().poll(cx);
        if written.is_ready() {
            self.writing = None;
        }
        written
    }
}
