//! The client of a connection, with the state that its requests share.

use super::fetch::replica::session::FollowerSession;
use crate::coordinator::Unwritten;
use crate::fetch_sessions::ConnectionSession;
use crate::telemetry::Requesting;
use fullbore_wire::{Text, Uuid};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The number of the next connection.
static CLIENTS: AtomicU64 = AtomicU64::new(0);

/// The client of a connection.
pub struct Client {
    /// Number of the connection, which no other connection of this process has.
    pub number: u64,
    /// Address of the client.
    pub peer: SocketAddr,
    /// The name of the client's software, from ApiVersions (KIP-511). Empty before that request.
    pub software_name: Text,
    /// The version of the client's software, from ApiVersions. Empty before that request.
    pub software_version: Text,
    /// Time at which ApiVersions was answered. `None` once the next request has arrived.
    pub(super) versions_sent_at: Option<Instant>,
    /// Time between the ApiVersions response and the client's next request. This is at least one round trip, because
    /// the client must first read the response.
    pub round_trip: Option<Duration>,
    /// Counts the requests of this connection other than Produce.
    pub(super) behind: Arc<LaterRequests>,
    /// The writes to groups that this client's requests have queued. The connection appends those that are still queued
    /// once it has no other work.
    pub unwritten: Arc<Unwritten>,
    /// The follower's session, if the client is a broker that replicates from this one.
    pub(super) followed_by: Option<Arc<FollowerSession>>,
    /// The fetch session that this connection opened, if it is a session that reads ahead. Dropping this ends the
    /// session.
    pub(super) reads_in: Option<ConnectionSession>,
}

impl Client {
    /// Creates the client of a new connection.
    pub fn new(peer: SocketAddr, unwritten: Arc<Unwritten>) -> Self {
        let (software_name, software_version) = (Text::default(), Text::default());
        Client {
            number: CLIENTS.fetch_add(1, Ordering::Relaxed),
            peer,
            software_name,
            software_version,
            versions_sent_at: None,
            round_trip: None,
            behind: Arc::default(),
            unwritten,
            followed_by: None,
            reads_in: None,
        }
    }

    /// Returns this client as the sender of a telemetry request.
    pub fn requesting<'a>(&'a self, instance: Uuid, client_id: &'a str) -> Requesting<'a> {
        let Client { peer, software_name, software_version, .. } = self;
        Requesting { instance, client_id, software_name, software_version, peer: *peer }
    }

    /// Notes that a request has arrived, and measures the round trip if it is the first one after ApiVersions.
    pub(super) fn note_request(&mut self) {
        if let Some(sent_at) = self.versions_sent_at.take() {
            self.round_trip = Some(sent_at.elapsed());
        }
    }
}

/// Counts the requests of a connection other than Produce. Responses leave in order, so the responses to these requests
/// wait for those to earlier Produce requests.
#[derive(Debug, Default)]
pub(super) struct LaterRequests {
    count: AtomicU64,
    came: Notify,
}

impl LaterRequests {
    /// Counts one more request.
    pub(super) fn note(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.came.notify_waiters();
    }

    /// Returns the present count.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until the count exceeds `count`.
    pub(super) async fn passes(&self, count: u64) {
        loop {
            let came = self.came.notified();
            if self.count() > count {
                return;
            }
            came.await;
        }
    }
}
