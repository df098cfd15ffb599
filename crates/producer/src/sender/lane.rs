//! A connection to a broker, with the estimate of how much it may have in flight, and the request that is being
//! written.
//!
//! The batches are chosen in `sender`, and the number of connections in `lanes`. Invariant: one request is written at a
//! time. The connection gets the next one only after the socket has accepted all bytes.

use crate::pipe::{Pipe, SharedPipe};
use fullbore_client::tokio::Connection;
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A future that is polled in the background.
pub(super) type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A connection to a broker.
pub(super) struct ProduceLane {
    pub(super) connection: Connection,
    /// The number of the connection. No other connection of this producer to the broker ever gets the same number.
    pub(super) path: u64,
    pub(super) pipe: SharedPipe,
    writing: Option<BoxFuture<()>>,
}

impl ProduceLane {
    pub(super) fn new(connection: Connection, path: u64, pipe: Pipe) -> Self {
        ProduceLane { connection, path, pipe: Arc::new(Mutex::new(pipe)), writing: None }
    }

    /// Returns true if the connection can take another request now.
    pub(super) fn has_room(&self) -> bool {
        self.writing.is_none() && self.pipe.lock().has_room()
    }

    /// Returns true if a missing batch may be sent over the connection, for which batches in flight may wait at the
    /// broker.
    pub(super) fn has_room_for_missing(&self) -> bool {
        self.writing.is_none() && self.pipe.lock().has_room_for_missing()
    }

    /// Returns true if no request is being written or in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.writing.is_none() && self.pipe.lock().requests() == 0
    }

    /// Begins to write a request. If the socket does not accept the whole request at once, [`ProduceLane::poll`] writes
    /// the rest.
    pub(super) async fn write(&mut self, request: BoxFuture<()>) {
        debug_assert!(self.writing.is_none());
        self.writing = Some(request);
        poll_fn(|cx| {
            let _later = self.poll(cx);
            Poll::Ready(())
        })
        .await;
    }

    /// Continues the write, if there is one. Returns ready when it has just ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(request) = &mut self.writing else { return Poll::Pending };
        let written = request.as_mut().poll(cx);
        if written.is_ready() {
            self.writing = None;
        }
        written
    }
}
