//! The client's side of one connection to a broker. Requests leave in order, and responses arrive in the same order.
//!
//! The protocol is in `protocol`, TLS in `socket`, and leaders are in `cluster`. The caller has to retry. Invariant:
//! every request gets exactly one outcome, its response or an error. A response that does not belong to the oldest
//! request ends the connection.

mod reader;
mod shared;
mod socket;

use crate::config::ClientConfig;
use crate::error::ConnectionError;
use crate::protocol::{Handshake, Requesting, SSL_HINT, Versions, decode};
use bytes::Bytes;
use fullbore_wire::Frame;
use fullbore_wire::api::Request;
use shared::{ConnectionState, Handler, RequestOutcome};
use socket::{Opened, SocketFailure, Writing};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The writing side of a connection, which one request uses at a time.
struct Sending {
    /// The writing half of the socket, or `None` once the connection has ended. The socket is thus closed at once, even
    /// if clones of the connection still exist.
    socket: Option<Writing>,
    requesting: Requesting,
}

/// A connection to one broker, which clones share. It closes once the last clone is dropped and no response is due.
#[derive(Clone)]
pub struct Connection {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<ConnectionState>,
    sending: Arc<tokio::sync::Mutex<Sending>>,
    versions: Versions,
    peer: SocketAddr,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.close.notify_one();
    }
}

impl Connection {
    /// Connects to `host:port` and requests the broker's API versions. Needs a tokio runtime, which also runs the task
    /// that reads responses.
    ///
    /// # Errors
    /// Returns [`ConnectionError::Connect`] if the host cannot be reached, or [`ConnectionError::Handshake`] if TLS or
    /// the negotiation of versions fails.
    pub async fn connect(address: &str, config: &ClientConfig) -> Result<Connection, ConnectionError> {
        let connect_error = |reason: String| ConnectionError::Connect { address: address.to_owned(), reason };
        let opened = socket::open(address, config).await;
        let Opened { reading, writing, peer } = opened.map_err(|error| match error {
            SocketFailure::Connect(source) => connect_error(source.to_string()),
            SocketFailure::Tls(source) => handshake_error(address, source.to_string()),
        })?;
        let shared = Arc::new(ConnectionState::new(address, config));
        let sending = Sending { socket: Some(writing), requesting: Requesting::new(&config.client_id) };
        let sending = Arc::new(tokio::sync::Mutex::new(sending));
        tokio::spawn({
            let (shared, sending) = (shared.clone(), sending.clone());
            async move {
                reader::run(reading, shared).await;
                sending.lock().await.socket = None;
            }
        });
        let mut inner = Inner { shared, sending, versions: Versions::default(), peer };
        inner.versions = inner.shake_hands().await.map_err(|error| match error {
            ConnectionError::Disconnected { reason, .. } if reason == reader::CLOSED => {
                let hint = if config.security.is_tls() { "" } else { SSL_HINT };
                handshake_error(address, format!("the server closed the connection at the first request{hint}"))
            }
            error => error,
        })?;
        Ok(Connection { inner: Arc::new(inner) })
    }

    /// Returns the connection of `known` whose peer a new connection to `address` would reach, or `None` if there is
    /// none. With TLS, `address` must equal the address of the known connection, because SNI may send two names of one
    /// IP address to different listeners.
    pub(super) async fn leading_to(known: Vec<Connection>, address: &str, config: &ClientConfig) -> Option<Connection> {
        if known.is_empty() || config.security.is_tls() {
            return known.into_iter().find(|known| known.address().eq_ignore_ascii_case(address));
        }
        let known = known.into_iter().map(|known| (known.inner.peer, known)).collect();
        led_to(known, socket::resolve(address, config), config.connect_timeout).await
    }

    /// Returns the broker's address as host:port.
    pub fn address(&self) -> &str {
        &self.inner.shared.address
    }

    /// Returns true if requests can no longer be sent.
    pub fn is_closed(&self) -> bool {
        self.inner.shared.closed.load(Ordering::Acquire)
    }

    /// Returns when the oldest request without a response was encoded, or `None` if no response is due.
    pub fn oldest_request(&self) -> Option<Instant> {
        self.inner.shared.due.lock().oldest()
    }

    /// Returns the newest common version of `R`.
    ///
    /// # Errors
    /// Returns [`ConnectionError::Protocol`] if there is none.
    pub fn version<R: Request>(&self) -> Result<i16, ConnectionError> {
        Ok(self.inner.versions.newest::<R>()?)
    }

    /// Returns the level of a feature that the cluster had finalized when the connection was made, or 0 if it had none.
    pub fn feature(&self, name: &str) -> i16 {
        self.inner.versions.feature(name)
    }

    /// Sends a request in the newest common version and waits for its response. Any number of calls may run at a time.
    /// Requests leave in the order of the calls.
    ///
    /// # Errors
    /// Returns [`ConnectionError`] if the API has no common version, or if the request gets no response.
    pub async fn call<R: Request>(&self, request: &R) -> Result<R::Response, ConnectionError> {
        let version = self.version::<R>()?;
        self.call_version(request, version).await
    }

    /// Sends a request in the given version and waits for its response.
    ///
    /// # Errors
    /// Returns [`ConnectionError`] if the version cannot express the request, or if the request gets no response.
    pub async fn call_version<R: Request>(&self, request: &R, version: i16) -> Result<R::Response, ConnectionError> {
        Ok(decode::<R>(self.inner.exchange(request, version).await?, version)?)
    }

    /// Writes a request and returns without waiting for its response. The reader's task later passes the decoded
    /// response, or the error, to `handler`. Handlers are called in the order of requests.
    pub async fn send<R: Request>(
        &self,
        request: &R,
        version: i16,
        handler: impl FnOnce(Result<R::Response, ConnectionError>) + Send + 'static,
    ) {
        let decode = move |outcome: RequestOutcome| {
            handler(outcome.and_then(|frame| Ok(decode::<R>(frame, version)?)));
        };
        self.inner.send(request, version, decode).await;
    }

    /// Writes a request that has no response (Produce with acks=0).
    ///
    /// # Errors
    /// Returns [`ConnectionError`] if the request could not be written.
    pub async fn send_unanswered<R: Request>(&self, request: &R, version: i16) -> Result<(), ConnectionError> {
        let mut sending = self.inner.sending.lock().await;
        let (requested, frame) = sending.requesting.encode(request, version, Instant::now())?;
        let Some(socket) = &mut sending.socket else {
            return Err(ConnectionError::NotSent(self.address().to_owned()));
        };
        requested.log(self.address(), frame.len());
        // Without responses, only this timeout of the write detects a broker that no longer reads.
        let written = write_in_time(socket, &frame, &self.inner.shared).await;
        *self.inner.shared.unanswered_at.lock() = Some(Instant::now());
        written.map_err(|e| {
            self.inner.shared.fail(&e.to_string());
            ConnectionError::Disconnected { address: self.address().to_owned(), reason: e.to_string() }
        })
    }

    /// Ends the connection now. Requests without a response get [`ConnectionError::Disconnected`].
    pub fn close(&self) {
        self.inner.shared.fail("closed by this client");
    }
}

fn handshake_error(address: &str, reason: String) -> ConnectionError {
    ConnectionError::Handshake { address: address.to_owned(), reason }
}

/// Writes a frame within request.timeout.ms. After an error the caller must end the connection, because a part of the
/// frame may have been sent. If the caller is cancelled, the drop of `Unfinished` ends the connection.
async fn write_in_time(socket: &mut Writing, frame: &Frame, shared: &ConnectionState) -> io::Result<()> {
    let unfinished = Unfinished(shared);
    let patience = shared.request_timeout;
    let written = tokio::time::timeout(patience, socket.write_frame(frame)).await;
    std::mem::forget(unfinished);
    written.unwrap_or_else(|_| Err(io::Error::other(format!("the broker accepted no bytes for {patience:?}"))))
}

/// A request that waits to be written. If its sender is cancelled before the write, the drop of this value calls the
/// handler with an error.
struct Unsent<'a> {
    shared: &'a ConnectionState,
    handler: Option<Handler>,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if let Some(handler) = self.handler.take() {
            handler(Err(ConnectionError::NotSent(self.shared.address.clone())));
        }
    }
}

/// A request that is being written. If its sender is cancelled, the drop of this value ends the connection. Otherwise
/// the next request would follow an incomplete frame, and the broker would read it as the rest of that frame.
struct Unfinished<'a>(&'a ConnectionState);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.fail("a request was given up while it was being written");
    }
}

impl Inner {
    async fn send<R: Request>(&self, request: &R, version: i16, handler: impl FnOnce(RequestOutcome) + Send + 'static) {
        let mut unsent = Unsent { shared: &self.shared, handler: Some(Box::new(handler)) };
        let mut sending = self.sending.lock().await;
        let Some(handler) = unsent.handler.take() else { return };
        let (requested, frame) = match sending.requesting.encode(request, version, Instant::now()) {
            Ok(encoded) => encoded,
            Err(error) => return handler(Err(error.into())),
        };
        if let Err(handler) = self.shared.await_answer(requested, handler) {
            return handler(Err(ConnectionError::NotSent(self.shared.address.clone())));
        }
        requested.log(&self.shared.address, frame.len());
        // Without a socket, the request has already got the error that ended the connection. The write needs its own
        // timeout for a broker that no longer reads, because the reader's timeout does not end a write.
        if let Some(socket) = &mut sending.socket
            && let Err(error) = write_in_time(socket, &frame, &self.shared).await
        {
            self.shared.fail(&error.to_string());
        }
    }

    async fn exchange<R: Request>(&self, request: &R, version: i16) -> Result<Bytes, ConnectionError> {
        let (tx, rx) = oneshot::channel();
        self.send(request, version, move |outcome| drop(tx.send(outcome))).await;
        rx.await.unwrap_or_else(|_| Err(ConnectionError::NotSent(self.shared.address.clone())))
    }

    async fn shake_hands(&self) -> Result<Versions, ConnectionError> {
        let mut handshake = Handshake::default();
        loop {
            let frame = self.exchange(&Handshake::request(), handshake.version()).await?;
            if let Some(versions) = handshake.answered(frame)? {
                return Ok(versions);
            }
        }
    }
}

/// Returns the entry of `known` whose peer a new connection would reach. `resolved` is the resolution of the new
/// connection's host name. Returns `None` if no entry has this peer, or if the resolution fails or takes longer than
/// `within`.
async fn led_to<T>(
    known: Vec<(SocketAddr, T)>,
    resolved: impl Future<Output = io::Result<Vec<SocketAddr>>>,
    within: Duration,
) -> Option<T> {
    // A new connection would use the first address. If the name does not resolve, the caller opens a new connection,
    // which reports the error.
    let target = *tokio::time::timeout(within, resolved).await.ok()?.ok()?.first()?;
    known.into_iter().find_map(|(peer, known)| (peer == target).then_some(known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::Text;
    use fullbore_wire::api::ApiKey;
    use fullbore_wire::apis::api_versions::ApiVersionsRequest;
    use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    #[tokio::test]
    async fn a_request_given_up_before_it_is_written_gets_an_outcome() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (_read, write) = TcpStream::connect(address).await.expect("connected").into_split();
        let shared = Arc::new(ConnectionState::new(&address.to_string(), &ClientConfig::default()));
        let sending = Sending { socket: Some(Writing::Plain(write)), requesting: Requesting::new("test") };
        let sending = Arc::new(tokio::sync::Mutex::new(sending));
        let inner = Inner { shared, sending, versions: Versions::default(), peer: address };
        let turn_of_another = inner.sending.lock().await;
        let (tx, mut rx) = oneshot::channel();
        let request = Handshake::request();
        let sending = inner.send(&request, 3, move |outcome| drop(tx.send(outcome)));
        assert!(tokio::time::timeout(Duration::ZERO, sending).await.is_err(), "it waits, and is dropped");
        drop(turn_of_another);
        assert!(matches!(rx.try_recv(), Ok(Err(ConnectionError::NotSent(_)))));
    }

    #[tokio::test]
    async fn a_silent_broker_ends_the_attempt_to_connect() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let mut config = ClientConfig { connect_timeout: Duration::from_secs(1), ..Default::default() };
        config.set("security.protocol", "SSL").expect("valid");
        let error = Connection::connect(&address, &config).await.err().expect("nobody answered").to_string();
        assert!(error.contains("no TLS handshake in 1s"), "{error}");
    }

    #[tokio::test]
    async fn a_broker_that_reads_nothing_more_ends_the_write() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (_read, write) = TcpStream::connect(address).await.expect("connected").into_split();
        let (_frozen, _) = listener.accept().await.expect("a client");
        let config = ClientConfig { request_timeout: Duration::from_millis(100), ..Default::default() };
        let shared = Arc::new(ConnectionState::new(&address.to_string(), &config));
        let sending = Sending { socket: Some(Writing::Plain(write)), requesting: Requesting::new("test") };
        let sending = Arc::new(tokio::sync::Mutex::new(sending));
        let inner = Inner { shared, sending, versions: Versions::default(), peer: address };
        let name = Some(Text::from("t".repeat(30_000).as_str()));
        let topic = MetadataRequestTopic { name, ..Default::default() };
        let request = MetadataRequest { topics: Some(vec![topic; 300]), ..Default::default() };
        let until_it_ends = async {
            while !inner.shared.closed.load(Ordering::Acquire) {
                inner.send(&request, 12, drop).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), until_it_ends).await.expect("who writes is not held for ever");
    }

    #[tokio::test]
    async fn request_given_up_during_its_write_ends_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (_read, write) = TcpStream::connect(address).await.expect("connected").into_split();
        let (_frozen, _) = listener.accept().await.expect("a client");
        let shared = Arc::new(ConnectionState::new(&address.to_string(), &ClientConfig::default()));
        let sending = Sending { socket: Some(Writing::Plain(write)), requesting: Requesting::new("test") };
        let sending = Arc::new(tokio::sync::Mutex::new(sending));
        let inner = Inner { shared, sending, versions: Versions::default(), peer: address };
        let name = Some(Text::from("t".repeat(30_000).as_str()));
        let topic = MetadataRequestTopic { name, ..Default::default() };
        let request = MetadataRequest { topics: Some(vec![topic; 2_000]), ..Default::default() };
        let (tx, mut rx) = oneshot::channel();
        let sent = inner.send(&request, 12, move |outcome| drop(tx.send(outcome)));
        assert!(tokio::time::timeout(Duration::from_millis(100), sent).await.is_err(), "the broker reads nothing");
        assert!(inner.shared.closed.load(Ordering::Acquire), "the next request would follow a part of this one");
        assert!(matches!(rx.try_recv(), Ok(Err(ConnectionError::Disconnected { .. }))));
    }

    /// Starts a broker that sends these bytes, one entry for each request, and then closes the connection. The task
    /// returns the versions of the requests.
    async fn broker_that_answers(answers: &[&[u8]]) -> (String, tokio::task::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let answers: Vec<Vec<u8>> = answers.iter().map(|answer| answer.to_vec()).collect();
        let serving = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.expect("a client");
            let mut versions = Vec::new();
            for answer in answers {
                let len = socket.read_u32().await.expect("a request");
                let mut request = vec![0; len as usize];
                socket.read_exact(&mut request).await.expect("a request");
                versions.push(request[3]);
                socket
                    .write_all(&[&(answer.len() as u32).to_be_bytes(), &answer[..]].concat())
                    .await
                    .expect("it reads");
            }
            versions
        });
        (address, serving)
    }

    /// Returns the ApiVersions response in version 0, with this correlation id and error. It offers ApiVersions 0 to 2.
    fn versions(id: u8, error: u8) -> [u8; 16] {
        [0, 0, 0, id, 0, error, 0, 0, 0, 1, 0, 18, 0, 0, 0, 2]
    }

    #[tokio::test]
    async fn an_old_broker_gets_a_second_request_in_its_version() {
        let in_2 = [&versions(1, 0)[..], &[0; 4]].concat();
        let (address, serving) = broker_that_answers(&[&versions(0, 35), &in_2]).await;
        let connection = Connection::connect(&address, &ClientConfig::default()).await.expect("it answers");
        assert!(matches!(connection.version::<ApiVersionsRequest>(), Ok(2)));
        assert!(matches!(connection.version::<MetadataRequest>(), Err(ConnectionError::Protocol(_))));
        let newest = *ApiKey::ApiVersions.versions().end() as u8;
        assert_eq!(serving.await.expect("no panic"), [newest, 2]);
    }

    #[tokio::test]
    async fn an_answer_that_is_not_the_one_due_or_too_long_ends_the_connection() {
        let config = ClientConfig { response_bytes_max: 100, ..Default::default() };
        for (answer, why) in [
            (&versions(1, 0)[..], "the response 1 does not belong to the oldest request"),
            (&[0, 0], "the response without a correlation id does not belong to the oldest request"),
            (&[0; 101], "a response of 101 bytes exceeds the limit of 100"),
        ] {
            let (address, _serving) = broker_that_answers(&[answer]).await;
            let error = Connection::connect(&address, &config).await.err().expect("out of order");
            assert!(matches!(error, ConnectionError::Disconnected { .. }) && error.may_have_been_received(), "{error}");
            assert!(error.to_string().ends_with(why), "{error}");
        }
    }

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, last], 9092))
    }

    #[tokio::test]
    async fn a_name_of_two_addresses_leads_only_to_the_connection_to_its_first() {
        let within = Duration::from_secs(10);
        let leads = async |known: &[u8], resolved: &[u8]| {
            let known = known.iter().map(|last| (address(*last), *last)).collect();
            let resolved = resolved.iter().map(|last| address(*last)).collect();
            led_to(known, std::future::ready(Ok(resolved)), within).await
        };
        assert_eq!(leads(&[2, 1], &[1, 2]).await, Some(1));
        assert_eq!(leads(&[2], &[1, 2]).await, None, "a new connection would go to the first");
        assert_eq!(leads(&[2], &[]).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_look_up_is_awaited_once_for_all_connections() {
        let began = tokio::time::Instant::now();
        let known = (1..=5).map(|last| (address(last), last)).collect();
        assert_eq!(led_to(known, std::future::pending(), Duration::from_secs(10)).await, None);
        assert_eq!(began.elapsed(), Duration::from_secs(10));
    }
}
