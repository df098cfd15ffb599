//! Client of a connection.

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
    /// Its address.
    pub peer: SocketAddr,
    /// Software name in ApiVersions (KIP-511); empty until then.
    pub software_name: Text,
    /// And its version.
    pub software_version: Text,
    /// When it was told the APIs' versions, until its next request.
    pub(super) told_versions: Option<Instant>,
    /// From that to its next request: a round trip or longer, since a client needs the answer for what it sends next.
    pub round_trip: Option<Duration>,
    /// Its requests that stand behind others.
    pub(super) behind: Arc<LaterRequests>,
    /// Writes to groups that the client does not await yet.
    pub unwritten: Arc<Unwritten>,
    /// The session in which it follows partitions, if it is a broker that does.
    pub(super) followed_by: Option<Arc<FollowerSession>>,
    /// The session in which it reads ahead, if it is a consumer that does.
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

    /// The client as one that asks for its metrics' subscriptions, or pushes them.
    pub fn asking<'a>(&'a self, instance: Uuid, client_id: &'a str) -> Asking<'a> {
        let Client { peer, software_name, software_version, .. } = self;
        Asking { instance, client_id, software_name, software_version, peer: *peer }
    }

    /// A request of it has come.
    pub(super) fn note_request(&mut self) {
        if let Some(told) = self.told_versions.take() {
            self.round_trip = Some(told.elapsed());
        }
    }
}

/// Requests of a connection other than Produce whose answers are known, or to come: each stands behind those before it.
#[derive(Debug, Default)]
pub(super) struct LaterRequests {
    count: AtomicU64,
    came: Notify,
}

impl LaterRequests {
    /// Notes one more request.
    pub(super) fn note(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.came.notify_waiters();
    }

    /// Returns their number so far.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until there are more than `count` of them.
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
