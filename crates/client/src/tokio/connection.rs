//! The client's side of one connection to a broker: requests out in order, responses in as they come.
//!
//! Not here: whether it is TLS (see `socket`), who leads what (see `metadata`), and retries, which are the caller's. Invariant: a response goes to
//! the oldest request without one, and its correlation id says so; if not, the connection closes. Every request
//! handed over is answered exactly once: with its response, or with why there is none.

mod reader;
mod socket;

use crate::config::ClientConfig;
use crate::error::ConnectionError;
use bytes::Bytes;
use fullbore_wire::api::{self, ApiKey, Request};
use fullbore_wire::apis::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
use fullbore_wire::{ErrorCode, Frame, Text};
use parking_lot::Mutex;
use socket::Writing;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// Requests one connection holds without a response, whatever the caller's own limit.
const PENDING_MAX: usize = 1 << 16;
/// Where the events of the protocol log go: every request and response, at debug.
const PROTOCOL: &str = "fullbore::protocol";

/// What becomes of a request: its response frame without the length prefix, or why there is none.
type Outcome = Result<Bytes, ConnectionError>;
type Handler = Box<dyn FnOnce(Outcome) + Send>;

/// A request that waits for its response.
struct Pending {
    correlation_id: i32,
    api: ApiKey,
    version: i16,
    sent_at: Instant,
    handler: Handler,
}

/// What the writing side and the reader share.
struct Shared {
    address: String,
    client_id: Text,
    request_timeout: Duration,
    idle_max: Duration,
    response_bytes_max: usize,
    pending: Mutex<VecDeque<Pending>>,
    /// When a request that has no response was last written; of others the response tells.
    unanswered_at: Mutex<Option<Instant>>,
    closed: AtomicBool,
    close: Notify,
}

impl Shared {
    fn log_request<R: Request>(&self, version: i16, correlation_id: i32, frame: &Frame) {
        if tracing::enabled!(target: PROTOCOL, tracing::Level::DEBUG) {
            let (peer, api, bytes) = (&self.address, R::KEY.name(), frame.len());
            tracing::debug!(target: PROTOCOL, peer, api, version, correlation_id, bytes, "request");
        }
    }

    fn log_response(&self, answered: &Pending, frame: &Bytes) {
        let Pending { correlation_id, api, version, sent_at, .. } = answered;
        let (peer, api) = (&self.address, api.name());
        let (bytes, rtt_us) = (frame.len() + 4, u64::try_from(sent_at.elapsed().as_micros()).unwrap_or(u64::MAX));
        tracing::debug!(target: PROTOCOL, peer, api, version, correlation_id, bytes, rtt_us, "response");
    }

    /// Ends the connection and answers every request that waits, oldest first.
    fn fail(&self, reason: &str) {
        self.closed.store(true, Ordering::Release);
        self.close.notify_one();
        let waiting = std::mem::take(&mut *self.pending.lock());
        for pending in waiting {
            let (address, reason) = (self.address.clone(), reason.to_owned());
            (pending.handler)(Err(ConnectionError::Disconnected { address, reason }));
        }
    }
}

/// The writing side, one request at a time.
struct Sending {
    /// `None` once the connection has ended: its socket is closed then, though nobody may use it for long.
    socket: Option<Writing>,
    next_correlation_id: i32,
}

/// One connection; clones share it. It closes when the last clone is gone and nothing waits for a response.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    sending: Arc<tokio::sync::Mutex<Sending>>,
    versions: Vec<(ApiKey, i16)>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.close.notify_one();
    }
}

impl Connection {
    /// Connects to `host:port` and asks the broker which versions it serves. Needs a tokio runtime, on which the
    /// response reader then runs.
    ///
    /// # Errors
    /// [`ConnectionError::Connect`], or what went wrong during the handshake.
    pub async fn connect(address: &str, config: &ClientConfig) -> Result<Connection, ConnectionError> {
        let connect_error = |reason: String| ConnectionError::Connect { address: address.to_owned(), reason };
        let attempt = tokio::time::timeout(config.connect_timeout, socket::open(address, config));
        let (read, write) = match attempt.await {
            Ok(halves) => halves.map_err(|e| connect_error(e.to_string()))?,
            Err(_) => return Err(connect_error(format!("no answer in {:?}", config.connect_timeout))),
        };
        let shared = Arc::new(Shared {
            address: address.to_owned(),
            client_id: Text::from(config.client_id.as_str()),
            request_timeout: config.request_timeout,
            idle_max: config.connections_max_idle,
            response_bytes_max: config.response_bytes_max,
            pending: Mutex::new(VecDeque::new()),
            unanswered_at: Mutex::new(None),
            closed: AtomicBool::new(false),
            close: Notify::new(),
        });
        let sending = Arc::new(tokio::sync::Mutex::new(Sending { socket: Some(write), next_correlation_id: 0 }));
        tokio::spawn({
            let (shared, sending) = (shared.clone(), sending.clone());
            async move {
                reader::run(read, shared).await;
                sending.lock().await.socket = None;
            }
        });
        let mut inner = Inner { shared, sending, versions: Vec::new() };
        inner.versions = handshake(&inner).await?;
        Ok(Connection { inner: Arc::new(inner) })
    }

    /// Where it leads, as host:port.
    pub fn address(&self) -> &str {
        &self.inner.shared.address
    }

    /// Whether requests can no longer be sent.
    pub fn is_closed(&self) -> bool {
        self.inner.shared.closed.load(Ordering::Acquire)
    }

    /// The highest version of `R` that both sides speak.
    ///
    /// # Errors
    /// [`ConnectionError::Unsupported`].
    pub fn version<R: Request>(&self) -> Result<i16, ConnectionError> {
        let found = self.inner.versions.iter().find(|(key, _)| *key == R::KEY);
        found.map(|(_, version)| *version).ok_or(ConnectionError::Unsupported(R::KEY.name()))
    }

    /// Sends a request in the highest common version and waits for its response. Any number of calls may be
    /// under way; requests leave in the order of the calls.
    ///
    /// # Errors
    /// When there is no common version or no response.
    pub async fn call<R: Request>(&self, request: &R) -> Result<R::Response, ConnectionError> {
        let version = self.version::<R>()?;
        self.call_version(request, version).await
    }

    /// As [`Connection::call`], in the version given.
    ///
    /// # Errors
    /// When the request cannot be said in that version, or has no response.
    pub async fn call_version<R: Request>(&self, request: &R, version: i16) -> Result<R::Response, ConnectionError> {
        let (tx, rx) = oneshot::channel();
        self.inner.send(request, version, move |outcome| drop(tx.send(outcome))).await;
        let closed = || ConnectionError::NotSent(self.address().to_owned());
        let frame = rx.await.unwrap_or_else(|_| Err(closed()))?;
        Ok(api::decode_response::<R>(frame, version)?.1)
    }

    /// Writes a request and returns; `handler` gets the decoded response on the reader's task, in request order.
    pub async fn send<R: Request>(
        &self,
        request: &R,
        version: i16,
        handler: impl FnOnce(Result<R::Response, ConnectionError>) + Send + 'static,
    ) {
        let decode = move |outcome: Outcome| {
            handler(outcome.and_then(|frame| Ok(api::decode_response::<R>(frame, version)?.1)));
        };
        self.inner.send(request, version, decode).await;
    }

    /// Writes a request that has no response (Produce with acks=0).
    ///
    /// # Errors
    /// When it could not be written.
    pub async fn send_unanswered<R: Request>(&self, request: &R, version: i16) -> Result<(), ConnectionError> {
        let mut sending = self.inner.sending.lock().await;
        let correlation_id = sending.take_correlation_id();
        let frame = api::encode_request(request, version, correlation_id, Some(&self.inner.shared.client_id))?;
        let Some(socket) = &mut sending.socket else {
            return Err(ConnectionError::NotSent(self.address().to_owned()));
        };
        self.inner.shared.log_request::<R>(version, correlation_id, &frame);
        // No answer will be missed, so that this alone tells of a broker that takes nothing more.
        let patience = self.inner.shared.request_timeout;
        let written = tokio::time::timeout(patience, socket.write_frame(&frame)).await;
        let written =
            written.unwrap_or_else(|_| Err(io::Error::other(format!("it took nothing more in {patience:?}"))));
        *self.inner.shared.unanswered_at.lock() = Some(Instant::now());
        written.map_err(|e| {
            self.inner.shared.fail(&e.to_string());
            ConnectionError::Disconnected { address: self.address().to_owned(), reason: e.to_string() }
        })
    }

    /// Ends the connection now; requests that wait get [`ConnectionError::Disconnected`].
    pub fn close(&self) {
        self.inner.shared.fail("closed by this client");
    }
}

impl Sending {
    fn take_correlation_id(&mut self) -> i32 {
        let id = self.next_correlation_id;
        self.next_correlation_id = id.wrapping_add(1) & i32::MAX;
        id
    }
}

/// A request that waits for its turn to be written. One whose sender gives up before that is answered as well.
struct Unsent<'a> {
    shared: &'a Shared,
    handler: Option<Handler>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if let Some(handler) = self.handler.take() {
            handler(Err(ConnectionError::NotSent(self.shared.address.clone())));
        }
    }
}

impl Inner {
    async fn send<R: Request>(&self, request: &R, version: i16, handler: impl FnOnce(Outcome) + Send + 'static) {
        let mut unsent = Unsent { shared: &self.shared, handler: Some(Box::new(handler)) };
        let mut sending = self.sending.lock().await;
        let Some(handler) = unsent.handler.take() else { return };
        let correlation_id = sending.take_correlation_id();
        let frame = match api::encode_request(request, version, correlation_id, Some(&self.shared.client_id)) {
            Ok(frame) => frame,
            Err(error) => return handler(Err(error.into())),
        };
        let (api, sent_at) = (R::KEY, Instant::now());
        let pending = Pending { correlation_id, api, version, sent_at, handler };
        if let Err(handler) = self.enqueue(pending) {
            return handler(Err(ConnectionError::NotSent(self.shared.address.clone())));
        }
        self.shared.log_request::<R>(version, correlation_id, &frame);
        // Without a socket the request was answered with the connection's end.
        if let Some(socket) = &mut sending.socket
            && let Err(error) = socket.write_frame(&frame).await
        {
            self.shared.fail(&error.to_string());
        }
    }

    /// Registers a request before its first byte leaves, unless the connection has ended.
    fn enqueue(&self, request: Pending) -> Result<(), Handler> {
        let mut pending = self.shared.pending.lock();
        // Read under the lock: `fail` sets it before it empties the queue, so nothing is left behind there.
        if self.shared.closed.load(Ordering::Acquire) || pending.len() >= PENDING_MAX {
            return Err(request.handler);
        }
        pending.push_back(request);
        Ok(())
    }

    async fn exchange<R: Request>(&self, request: &R, version: i16) -> Result<Bytes, ConnectionError> {
        let (tx, rx) = oneshot::channel();
        self.send(request, version, move |outcome| drop(tx.send(outcome))).await;
        rx.await.unwrap_or_else(|_| Err(ConnectionError::NotSent(self.shared.address.clone())))
    }
}

/// Asks for the broker's versions: first in our highest, then in the one a broker names that does not know it.
async fn handshake(inner: &Inner) -> Result<Vec<(ApiKey, i16)>, ConnectionError> {
    let request = ApiVersionsRequest {
        client_software_name: Text::from_static("fullbore"),
        client_software_version: Text::from_static(env!("CARGO_PKG_VERSION")),
        ..Default::default()
    };
    let newest = *ApiKey::ApiVersions.versions().end();
    let frame = inner.exchange(&request, newest).await?;
    let mut response = decode_versions(frame, newest)?;
    if response.error_code == ErrorCode::UNSUPPORTED_VERSION {
        let version = common(&response, ApiKey::ApiVersions).unwrap_or(0).min(newest);
        response = decode_versions(inner.exchange(&request, version).await?, version)?;
    }
    if response.error_code.is_err() {
        return Err(ConnectionError::Unsupported("ApiVersions"));
    }
    Ok(ApiKey::ALL.iter().filter_map(|key| Some((*key, common(&response, *key)?))).collect())
}

/// A broker that does not know the version answers in version 0 (KIP-511), so that is tried second.
fn decode_versions(frame: Bytes, version: i16) -> Result<ApiVersionsResponse, ConnectionError> {
    let refused = frame.get(4..6) == Some(&ErrorCode::UNSUPPORTED_VERSION.0.to_be_bytes());
    let version = if refused { 0 } else { version };
    Ok(api::decode_response::<ApiVersionsRequest>(frame, version)?.1)
}

fn common(response: &ApiVersionsResponse, key: ApiKey) -> Option<i16> {
    let theirs = response.api_keys.iter().find(|range| range.api_key == key.code())?;
    let version = theirs.max_version.min(*key.versions().end());
    (version >= theirs.min_version.max(*key.versions().start())).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpStream};

    fn shared(address: &str) -> Arc<Shared> {
        Arc::new(Shared {
            address: address.to_owned(),
            client_id: Text::from_static("test"),
            request_timeout: Duration::from_secs(30),
            idle_max: Duration::from_secs(30),
            response_bytes_max: 1 << 20,
            pending: Mutex::default(),
            unanswered_at: Mutex::default(),
            closed: AtomicBool::new(false),
            close: Notify::new(),
        })
    }

    #[test]
    fn what_is_written_without_an_answer_is_traffic_too() {
        let shared = shared("h:1");
        let read_at = Instant::now().checked_sub(Duration::from_secs(31)).expect("the machine runs for longer");
        assert!(reader::overdue(&shared, read_at).is_some_and(|why| why.contains("idle")));
        *shared.unanswered_at.lock() = Some(Instant::now());
        assert_eq!(reader::overdue(&shared, read_at), None);
    }

    #[tokio::test]
    async fn a_request_given_up_before_its_turn_to_be_written_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (_read, write) = TcpStream::connect(address).await.expect("connected").into_split();
        let shared = shared(&address.to_string());
        let sending = Sending { socket: Some(Writing::Plain(write)), next_correlation_id: 0 };
        let sending = Arc::new(tokio::sync::Mutex::new(sending));
        let inner = Inner { shared, sending, versions: Vec::new() };
        let turn_of_another = inner.sending.lock().await;
        let (tx, mut rx) = oneshot::channel();
        let request = ApiVersionsRequest::default();
        let sending = inner.send(&request, 3, move |outcome| drop(tx.send(outcome)));
        assert!(tokio::time::timeout(Duration::ZERO, sending).await.is_err(), "it waits, and is dropped");
        drop(turn_of_another);
        assert!(matches!(rx.try_recv(), Ok(Err(ConnectionError::NotSent(_)))));
    }
}
