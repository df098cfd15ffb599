//! The state of a request between the two halves of a connection: its response, and the resources that are held until
//! the response is sent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_host::unread_responses::{COUNTED_FROM, Connection, ResponseRoom, UnreadResponses};
use fullbore_wire::Frame;
use fullbore_wire::api::ApiKey;
use tokio::sync::OwnedSemaphorePermit;

use super::idleness::Idleness;
use super::input::InputError;
use super::stream::ClientStream;
use crate::api::{Completion, Fault};

/// The target of the protocol log. At level debug it has a line for every request and response, without their contents.
const PROTOCOL: &str = "fullbore::protocol";

/// A request that the reading half has admitted and the writing half has not answered yet.
pub(super) struct AdmittedRequest {
    pub completion: Completion,
    pub owed: Owed,
}

/// The resources that a request uses until its response is sent, and the facts for the log and the metrics.
pub(super) struct Owed {
    pub api: ApiKey,
    pub received: Instant,
    pub label: Label,
    pub _bytes: OwnedSemaphorePermit,
    /// The share of the budget for unread responses, if the response is large.
    pub room: Option<Arc<ResponseRoom>>,
}

/// Counts the unread responses of one connection.
pub(super) struct UnreadCounter<'a> {
    pub all: &'a Arc<UnreadResponses>,
    pub idleness: &'a Arc<Idleness>,
    pub stream: &'a Arc<ClientStream>,
}

impl UnreadCounter<'_> {
    /// Counts an encoded response as unread until the result is dropped. `room` is the memory that was reserved for the
    /// response. If the response is too short to count, this memory is freed and the result is `None`.
    ///
    /// Fetches do not count, because a slow consumer must not lose its connection. Their records are ranges of files,
    /// or have a budget of their own.
    pub fn count(&self, api: ApiKey, response: &Frame, room: Option<Arc<ResponseRoom>>) -> Option<Arc<ResponseRoom>> {
        let bytes = response.bytes_in_memory();
        if bytes <= COUNTED_FROM || api == ApiKey::Fetch {
            return None;
        }
        let room = room.unwrap_or_else(|| Arc::new(self.all.room()));
        let (idleness, stream) = (Arc::clone(self.idleness), Arc::clone(self.stream));
        room.hold(bytes, Box::new(Counted { idleness, stream }));
        Some(room)
    }
}

/// The connection of a counted response.
struct Counted {
    idleness: Arc<Idleness>,
    stream: Arc<ClientStream>,
}

impl Connection for Counted {
    fn bytes_taken(&self) -> Option<u64> {
        self.stream.bytes_acknowledged()
    }

    fn evict(&self) {
        self.idleness.evict();
    }
}

/// The fields that the protocol log shows of a request and its response.
#[derive(Clone, Copy)]
pub(super) struct Label {
    pub peer: SocketAddr,
    pub api: i16,
    pub version: i16,
    pub correlation_id: i32,
}

impl Label {
    fn name(&self) -> &'static str {
        ApiKey::from_code(self.api).map_or("unknown", ApiKey::name)
    }

    /// Logs a request of `bytes` bytes plus its length prefix.
    pub fn log_request(&self, bytes: usize) {
        if tracing::enabled!(target: PROTOCOL, tracing::Level::DEBUG) {
            let Label { peer, api: key, version, correlation_id } = self;
            let (api, bytes) = (self.name(), bytes + 4);
            tracing::debug!(target: PROTOCOL, %peer, api, key, version, correlation_id, bytes, "request");
        }
    }

    pub fn log_response(&self, bytes: usize, service: Duration) {
        if tracing::enabled!(target: PROTOCOL, tracing::Level::DEBUG) {
            let Label { peer, version, correlation_id, .. } = self;
            let (api, service_us) = (self.name(), u64::try_from(service.as_micros()).unwrap_or(u64::MAX));
            tracing::debug!(target: PROTOCOL, %peer, api, version, correlation_id, bytes, service_us, "response");
        }
    }
}

/// The reason why a connection ended, unless the client closed it between two requests.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("{0}")]
    Input(#[from] InputError),
    #[error("cannot write to the connection: {0}")]
    Output(std::io::Error),
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("no bytes were read or written for {0:?} (connections.max.idle.ms)")]
    Idle(Duration),
    #[error("of all clients, this one was the slowest to read a large response, and others wait for the memory")]
    Unread,
    #[error("the client closed its side, and accepted no response for {0:?}")]
    HungUp(Duration),
}
