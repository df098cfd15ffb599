//! Client of a connection, with the state that its requests share.

use super::fetch::replica::session::FollowerSession;
use crate::coordinator::Unwritten;
use crate::fetch_sessions::ConnectionSession;
use crate::telemetry::Asking;
use fullbore_wire::{Text, Uuid};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Client of a connection.
pub struct Client {
    /// Address of the client.
    pub peer: SocketAddr,
    /// Software name in ApiVersions (KIP-511); empty before that request.
    pub software_name: Text,
    /// Software version in ApiVersions; empty before that request.
    pub software_version: Text,
    /// Time at which ApiVersions was answered; `None` once the next request has come.
    pub(super) told_versions: Option<Instant>,
    /// Time from the ApiVersions response to the next request: at least a round trip, since a client needs the response
    /// first.
    pub round_trip: Option<Duration>,
    /// Count of the connection's requests other than Produce.
    pub(super) behind: Arc<LaterRequests>,
    /// Queued writes of this client to groups, which are appended once the connection is otherwise idle.
    pub unwritten: Arc<Unwritten>,
    /// Session of a follower, if the client is a broker that replicates.
    pub(super) followed_by: Option<Arc<FollowerSession>>,
    /// Session of a consumer that reads ahead, if there is one.
    pub(super) reads_in: Option<ConnectionSession>,
}

impl Client {
    /// Creates a client before its first request.
    pub fn new(peer: SocketAddr, unwritten: Arc<Unwritten>) -> Self {
        let (software_name, software_version) = (Text::default(), Text::default());
        Client {
            peer,
            software_name,
            software_version,
            told_versions: None,
            round_trip: None,
            behind: Arc::default(),
            unwritten,
            followed_by: None,
            reads_in: None,
        }
    }

    /// Returns the client as the sender of a telemetry request.
    pub fn asking<'a>(&'a self, instance: Uuid, client_id: &'a str) -> Asking<'a> {
        let Client { peer, software_name, software_version, .. } = self;
        Asking { instance, client_id, software_name, software_version, peer: *peer }
    }

    /// Records the arrival of a request.
    pub(super) fn note_request(&mut self) {
        if let Some(told) = self.told_versions.take() {
            self.round_trip = Some(told.elapsed());
        }
    }
}

/// Count of a connection's requests other than Produce. Their responses wait for the responses of earlier requests.
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
