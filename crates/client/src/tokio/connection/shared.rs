//! The state that the writing side of a connection and its reader share: the requests whose responses are due, and the
//! end of the connection.
//!
//! Invariant: the side that ends the connection passes the error to the handler of every request without a response.

use crate::config::ClientConfig;
use crate::error::ConnectionError;
use crate::protocol::{Due, SentRequest};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The outcome of a request: the frame of its response without the length prefix, or an error.
pub(super) type RequestOutcome = Result<Bytes, ConnectionError>;
pub(super) type Handler = Box<dyn FnOnce(RequestOutcome) + Send>;

/// The shared state of a connection.
pub(super) struct ConnectionState {
    pub(super) address: String,
    pub(super) request_timeout: Duration,
    idle_max: Duration,
    pub(super) response_bytes_max: usize,
    pub(super) due: Mutex<Due<Handler>>,
    /// The time at which the last request without a response (Produce with acks=0) was written. The idle timeout counts
    /// this write as traffic. Other requests count as traffic when their response arrives.
    pub(super) unanswered_at: Mutex<Option<Instant>>,
    pub(super) closed: AtomicBool,
    pub(super) close: Notify,
}

impl ConnectionState {
    pub(super) fn new(address: &str, config: &ClientConfig) -> Self {
        ConnectionState {
            address: address.to_owned(),
            request_timeout: config.request_timeout,
            idle_max: config.connections_max_idle,
            response_bytes_max: config.response_bytes_max,
            due: Mutex::default(),
            unanswered_at: Mutex::default(),
            closed: AtomicBool::new(false),
            close: Notify::new(),
        }
    }

    /// Adds a request, before its first byte leaves. Returns the handler as the error if the connection has ended, or
    /// if too many requests wait.
    pub(super) fn await_answer(&self, requested: SentRequest, handler: Handler) -> Result<(), Handler> {
        let mut due = self.due.lock();
        // `closed` is read under the lock of the queue, and `fail` sets it before it empties the queue. A request is
        // therefore either refused here, or gets the error from `fail`.
        if self.closed.load(Ordering::Acquire) {
            return Err(handler);
        }
        due.push(requested, handler)
    }

    /// Ends the connection and passes the error to every waiting request, oldest first.
    pub(super) fn fail(&self, reason: &str) {
        self.closed.store(true, Ordering::Release);
        self.close.notify_one();
        let waiting = self.due.lock().take();
        for handler in waiting {
            let (address, reason) = (self.address.clone(), reason.to_owned());
            handler(Err(ConnectionError::Disconnected { address, reason }));
        }
    }

    /// Returns the reason why the connection must end, if there is one: a request is overdue, or the connection was
    /// idle too long. `read_at` is when bytes were last received.
    pub(super) fn overdue(&self, read_at: Instant) -> Option<String> {
        let active_at = self.unanswered_at.lock().map_or(read_at, |written| written.max(read_at));
        match self.due.lock().oldest() {
            Some(sent_at) if sent_at.elapsed() >= self.request_timeout => {
                Some(format!("no response in {:?}", self.request_timeout))
            }
            None if active_at.elapsed() >= self.idle_max => Some("idle for connections.max.idle.ms".to_owned()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_a_response_counts_as_traffic() {
        let config = ClientConfig { connections_max_idle: Duration::from_secs(30), ..Default::default() };
        let shared = ConnectionState::new("h:1", &config);
        let read_at = Instant::now().checked_sub(Duration::from_secs(31)).expect("the machine runs for longer");
        assert!(shared.overdue(read_at).is_some_and(|why| why.contains("idle")));
        *shared.unanswered_at.lock() = Some(Instant::now());
        assert_eq!(shared.overdue(read_at), None);
    }
}
