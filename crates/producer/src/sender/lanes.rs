//! Opens, counts and closes the connections to one broker.
//!
//! Invariant: a connection listed here was open at the last check. The home connection of a partition depends only on
//! the number of connections, so that every caller computes the same one.

use super::lane::{BoxFuture, ProduceLane};
use crate::backoff::backoff;
use crate::config::ProducerConfig;
use crate::pipe::Pipe;
use fullbore_client::MetadataError;
use fullbore_client::tokio::Connection;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The connections to one broker.
pub(super) struct Lanes {
    pub(super) open: Vec<ProduceLane>,
    /// Connections that will be closed once their requests have responses.
    leaving: Vec<ProduceLane>,
    opening: Option<BoxFuture<Result<Connection, MetadataError>>>,
    /// How many connections are wanted.
    pub(super) wanted: usize,
    pub(super) failures: u32,
    /// When the next attempt to open a connection may begin.
    retry_at: Option<Instant>,
    next_path: u64,
    /// A counter that changes whenever a connection is added or removed.
    pub(super) changes: u64,
}

impl Lanes {
    pub(super) fn new(wanted: usize) -> Self {
        Lanes {
            open: Vec::new(),
            leaving: Vec::new(),
            opening: None,
            wanted,
            failures: 0,
            retry_at: None,
            next_path: 0,
            changes: 0,
        }
    }

    /// Adds a connection.
    pub(super) fn add(&mut self, connection: Connection, config: &ProducerConfig) {
        let pipe = Pipe::new(config.max_in_flight, config.buffer_memory, Instant::now());
        self.open.push(ProduceLane::new(connection, self.next_path, pipe));
        self.next_path += 1;
        self.changes += 1;
        (self.failures, self.retry_at) = (0, None);
    }

    /// Removes connections that have ended. The handlers of their requests return the batches in flight to the
    /// partitions.
    pub(super) fn prune(&mut self) {
        let before = self.open.len();
        self.open.retain(|lane| !lane.connection.is_closed());
        self.changes += u64::from(self.open.len() < before);
        self.leaving.retain(|lane| !lane.connection.is_closed() && !lane.is_idle());
        if self.open.is_empty() {
            self.opening = None;
        }
    }

    /// Stops sending over connections that are no longer wanted. They are closed when their requests in flight are
    /// complete, and only then do their partitions use other connections.
    pub(super) fn shrink(&mut self) {
        if self.open.len() > self.wanted {
            self.leaving.extend(self.open.drain(self.wanted..));
            self.changes += 1;
        }
        if self.open.len() >= self.wanted {
            self.opening = None;
        }
    }

    /// Returns how many requests are in flight on all connections.
    pub(super) fn requests(&self) -> usize {
        self.open.iter().chain(&self.leaving).map(|lane| lane.pipe.lock().requests()).sum()
    }

    /// Returns when the oldest request in flight on any connection was sent, or `None` if none is in flight.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.open.iter().chain(&self.leaving).filter_map(|lane| lane.connection.oldest_request()).min()
    }

    /// Closes all connections. When this function returns, the batches in flight have returned to their partitions.
    pub(super) fn close(&mut self) {
        self.open.iter().chain(&self.leaving).for_each(|lane| lane.connection.close());
        self.prune();
    }

    /// Returns how many bytes were acknowledged on the open connections.
    pub(super) fn delivered(&self) -> u64 {
        self.open.iter().map(|lane| lane.pipe.lock().delivered()).sum()
    }

    /// Returns the shortest round trip of a request on any connection, or `None` before the first response.
    pub(super) fn least(&self) -> Option<Duration> {
        self.open.iter().filter_map(|lane| lane.pipe.lock().min_rtt()).min()
    }

    /// Returns the connection with the least in flight that can take another request, or `None` if none can. Ignores
    /// the connections in the bit set `tried`.
    pub(super) fn freest(&self, tried: u32) -> Option<usize> {
        let free = (0..self.open.len()).filter(|at| tried & 1 << at == 0 && self.open[*at].has_room());
        free.min_by_key(|at| self.open[*at].pipe.lock().bytes())
    }

    /// Begins to open another connection with `connect`, if one is wanted. Returns the time of the next attempt after a
    /// failed one, or `None` if there is nothing to wait for.
    pub(super) fn grow(
        &mut self,
        now: Instant,
        connect: impl FnOnce() -> BoxFuture<Result<Connection, MetadataError>>,
    ) -> Option<Instant> {
        if self.open.len() >= self.wanted || self.opening.is_some() || self.open.is_empty() {
            return None;
        }
        if self.retry_at.is_some_and(|at| at > now) {
            return self.retry_at;
        }
        self.opening = Some(connect());
        None
    }

    /// Returns ready when a write or an attempt to open a connection has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, config: &ProducerConfig) -> Poll<()> {
        let mut news = Poll::Pending;
        for lane in self.open.iter_mut().chain(&mut self.leaving) {
            if lane.poll(cx).is_ready() {
                news = Poll::Ready(());
            }
        }
        if let Some(opening) = &mut self.opening
            && let Poll::Ready(opened) = opening.as_mut().poll(cx)
        {
            self.opening = None;
            match opened {
                Ok(connection) => self.add(connection, config),
                Err(error) => {
                    tracing::debug!(%error, "cannot open another connection");
                    let client = &config.client;
                    let pause = backoff(client.reconnect_backoff, client.reconnect_backoff_max, self.failures);
                    self.failures = self.failures.saturating_add(1);
                    self.retry_at = Some(Instant::now() + pause);
                }
            }
            news = Poll::Ready(());
        }
        news
    }
}
