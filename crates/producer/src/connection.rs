//! The client's side of one TCP connection to a broker: requests out in order, responses in as they come.
//!
//! Not here: who leads what (see `metadata`), and retries, which are the caller's. Invariant: a response goes to
//! the oldest request without one, and its correlation id says so; if not, the connection closes. Every request
//! handed over is answered exactly once: with its response, or with why there is none.

mod reader;

use crate::config::ClientConfig;
use bytes::Bytes;
use fullbore_wire::api::{self, ApiKey, Request};
use fullbore_wire::apis::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
use fullbore_wire::{DecodeError, EncodeError, ErrorCode, Frame, Part, Text};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Notify, oneshot};

/// Requests one connection holds without a response, whatever the caller's own limit.
const PENDING_MAX: usize = 1 << 16;
/// Pieces of a frame handed to the kernel in one call (IOV_MAX is 1024).
const SLICES_MAX: usize = 64;

/// Why a request has no response.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectionError {
    /// No connection came about, so nothing was sent.
    #[error("cannot connect to {address}: {reason}")]
    Connect {
        /// host:port.
        address: String,
        /// The system's words.
        reason: String,
    },
    /// The connection had ended before the request was written.
    #[error("the connection to {0} is closed")]
    NotSent(String),
    /// The connection ended after the request, or part of it, was written.
    #[error("the connection to {address} ended before the response: {reason}")]
    Disconnected {
        /// host:port.
        address: String,
        /// The system's words, or what the broker did wrong.
        reason: String,
    },
    /// The broker serves no version of this API that we speak.
    #[error("the broker does not serve a version of {0} that this program speaks")]
    Unsupported(&'static str),
    /// A request that cannot be written.
    #[error("request: {0}")]
    Encode(#[from] EncodeError),
    /// A response that cannot be read.
    #[error("response: {0}")]
    Decode(#[from] DecodeError),
}

impl ConnectionError {
    /// Whether another attempt, perhaps elsewhere or later, may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::NotSent(_) | Self::Disconnected { .. })
    }

    /// Whether the broker may have acted on the request.
    pub fn may_have_been_received(&self) -> bool {
        matches!(self, Self::Disconnected { .. } | Self::Decode(_))
    }
}

/// What becomes of a request: its response frame without the length prefix, or why there is none.
type Outcome = Result<Bytes, ConnectionError>;
type Handler = Box<dyn FnOnce(Outcome) + Send>;

/// A request that waits for its response.
struct Pending {
    correlation_id: i32,
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
    closed: AtomicBool,
    close: Notify,
}

impl Shared {
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
    socket: OwnedWriteHalf,
    next_correlation_id: i32,
}

/// One connection; clones share it. It closes when the last clone is gone and nothing waits for a response.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    sending: tokio::sync::Mutex<Sending>,
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
        let attempt = tokio::time::timeout(config.connect_timeout, open_socket(address, config));
        let socket = match attempt.await {
            Ok(socket) => socket.map_err(|e| connect_error(e.to_string()))?,
            Err(_) => return Err(connect_error(format!("no answer in {:?}", config.connect_timeout))),
        };
        let (read, write) = socket.into_split();
        let shared = Arc::new(Shared {
            address: address.to_owned(),
            client_id: Text::from(config.client_id.as_str()),
            request_timeout: config.request_timeout,
            idle_max: config.connections_max_idle,
            response_bytes_max: config.response_bytes_max,
            pending: Mutex::new(VecDeque::new()),
            closed: AtomicBool::new(false),
            close: Notify::new(),
        });
        tokio::spawn(reader::run(read, shared.clone()));
        let sending = tokio::sync::Mutex::new(Sending { socket: write, next_correlation_id: 0 });
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
    pub(crate) async fn send<R: Request>(
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
    pub(crate) async fn send_unanswered<R: Request>(&self, request: &R, version: i16) -> Result<(), ConnectionError> {
        let mut sending = self.inner.sending.lock().await;
        let correlation_id = sending.take_correlation_id();
        let frame = api::encode_request(request, version, correlation_id, Some(&self.inner.shared.client_id))?;
        let written = write_frame(&mut sending.socket, &frame).await;
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

impl Inner {
    async fn send<R: Request>(&self, request: &R, version: i16, handler: impl FnOnce(Outcome) + Send + 'static) {
        let mut sending = self.sending.lock().await;
        let correlation_id = sending.take_correlation_id();
        let frame = match api::encode_request(request, version, correlation_id, Some(&self.shared.client_id)) {
            Ok(frame) => frame,
            Err(error) => return handler(Err(error.into())),
        };
        if let Err(handler) = self.enqueue(correlation_id, Box::new(handler)) {
            return handler(Err(ConnectionError::NotSent(self.shared.address.clone())));
        }
        if let Err(error) = write_frame(&mut sending.socket, &frame).await {
            self.shared.fail(&error.to_string());
        }
    }

    /// Registers a request before its first byte leaves, unless the connection has ended.
    fn enqueue(&self, correlation_id: i32, handler: Handler) -> Result<(), Handler> {
        let mut pending = self.shared.pending.lock();
        // Read under the lock: `fail` sets it before it empties the queue, so nothing is left behind there.
        if self.shared.closed.load(Ordering::Acquire) || pending.len() >= PENDING_MAX {
            return Err(handler);
        }
        pending.push_back(Pending { correlation_id, sent_at: Instant::now(), handler });
        Ok(())
    }

    async fn exchange<R: Request>(&self, request: &R, version: i16) -> Result<Bytes, ConnectionError> {
        let (tx, rx) = oneshot::channel();
        self.send(request, version, move |outcome| drop(tx.send(outcome))).await;
        rx.await.unwrap_or_else(|_| Err(ConnectionError::NotSent(self.shared.address.clone())))
    }
}

async fn open_socket(address: &str, config: &ClientConfig) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let address = config.detours.get(address).map_or(address, String::as_str);
    for target in tokio::net::lookup_host(address).await? {
        let socket = if target.is_ipv4() { tokio::net::TcpSocket::new_v4()? } else { tokio::net::TcpSocket::new_v6()? };
        // Setting a size turns the kernel's autotuning off, so nothing is set unless the user asks for it.
        if let Some(bytes) = config.send_buffer_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
        if let Some(bytes) = config.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        match socket.connect(target).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Writes a whole frame, gathering its pieces so that batch bytes are never copied in this process.
async fn write_frame(socket: &mut OwnedWriteHalf, frame: &Frame) -> io::Result<()> {
    let (mut part, mut offset) = (0, 0);
    while part < frame.parts.len() {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (i, piece) in frame.parts[part..].iter().take(SLICES_MAX).enumerate() {
            let Part::Bytes(bytes) = piece else {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "a client sends no files"));
            };
            slices[i] = IoSlice::new(&bytes[if i == 0 { offset } else { 0 }..]);
            count += 1;
        }
        let mut written = socket.write_vectored(&slices[..count]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while part < frame.parts.len() && written >= frame.parts[part].len() - offset {
            written -= frame.parts[part].len() - offset;
            (part, offset) = (part + 1, 0);
        }
        offset += written;
    }
    Ok(())
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
