//! A blocking connection to a broker.
//!
//! The protocol is in `protocol`, and TLS is in `socket`. Invariant: the connection ends if the response to the oldest
//! request is late, or if a received response belongs to any other request.

use super::socket::{READ_TIMEOUT, Socket};
use crate::error::ClientError;
use crate::protocol::{Due, Handshake, ProtocolError, Requesting, SSL_HINT, Versions, decode, frame};
use crate::security::Security;
use bytes::{Bytes, BytesMut};
use fullbore_wire::Part;
use fullbore_wire::api::{ApiKey, Request};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// Maximum size of a response in bytes, for all APIs except Fetch.
const RESPONSE_BYTES_MAX: usize = 256 << 20;
/// Maximum size of the response to a fetch, in bytes. A broker always sends the first batch whole, whatever the fetch's
/// limits are, and `max.message.bytes` may be the maximum size of a frame. The buffer grows only as bytes arrive.
const FETCH_BYTES_MAX: usize = i32::MAX as usize;
/// The initial size of the buffer for a response, in bytes. The buffer then grows to twice the bytes that have arrived.
const FIRST_BYTES: usize = 1 << 20;

/// A connection that has negotiated the API versions.
pub struct Connection {
    socket: Socket,
    address: String,
    versions: Versions,
    requesting: Requesting,
    due: Due<()>,
    /// The buffer of an earlier frame, reused for the next one.
    spare: BytesMut,
    /// When the first bytes of the last response arrived.
    answer_began: Instant,
}

/// A handle that lets another thread end a connection.
pub struct Stopper(TcpStream);

impl Stopper {
    /// Ends the connection. A read that blocks the connection's thread returns at once.
    pub fn stop(&self) {
        // An error means that the peer has already closed the connection.
        let _ = self.0.shutdown(Shutdown::Both);
    }

    /// Ends the reading side only. The connection's thread still reads the bytes that have arrived, and then the end of
    /// the stream. It can still send.
    pub fn stop_reading(&self) {
        let _ = self.0.shutdown(Shutdown::Read);
    }
}

impl Connection {
    /// Connects to `host:port` and requests the API versions.
    ///
    /// # Errors
    /// Returns [`ClientError::Connect`] if no host answers there, or another error, such as [`ClientError::Decode`], if
    /// the host is not a Kafka broker.
    pub fn connect(address: &str, client_id: &str, security: &Security) -> Result<Self, ClientError> {
        Self::connect_within(address, client_id, security, READ_TIMEOUT)
    }

    /// Connects to `host:port` and requests the API versions. `patience` is how long the broker may be silent, during
    /// this request and later ones.
    ///
    /// # Errors
    /// Returns [`ClientError`] if [`Connection::connect`] returns one.
    pub fn connect_within(
        address: &str,
        client_id: &str,
        security: &Security,
        patience: Duration,
    ) -> Result<Self, ClientError> {
        let socket = Socket::open(address, security, patience)?;
        let mut connection = Connection {
            socket,
            address: address.to_owned(),
            versions: Versions::default(),
            requesting: Requesting::new(client_id),
            due: Due::default(),
            spare: BytesMut::new(),
            answer_began: Instant::now(),
        };
        match connection.negotiate() {
            Err(ClientError::Io { address, source }) if source.kind() == ErrorKind::UnexpectedEof => {
                let hint = match security.is_tls() {
                    true => "",
                    false => SSL_HINT,
                };
                let reason = format!("the server closed the connection at the first request{hint}");
                Err(ClientError::Handshake { address, source: std::io::Error::new(source.kind(), reason) })
            }
            outcome => outcome.map(|()| connection),
        }
    }

    fn negotiate(&mut self) -> Result<(), ClientError> {
        let mut handshake = Handshake::default();
        loop {
            self.send(&Handshake::request(), handshake.version())?;
            let frame = self.receive_frame(RESPONSE_BYTES_MAX)?;
            if let Some(versions) = handshake.answered(frame).map_err(|error| self.misunderstood(error))? {
                self.versions = versions;
                return Ok(());
            }
        }
    }

    /// Returns the newest version of `R` that both sides have in common.
    ///
    /// # Errors
    /// Returns [`ClientError::Version`] if there is none.
    pub fn version<R: Request>(&self) -> Result<i16, ClientError> {
        self.versions.newest::<R>().map_err(|error| self.misunderstood(error))
    }

    /// Sends a request in the newest common version and waits for its response.
    ///
    /// # Errors
    /// Returns [`ClientError`] if the connection breaks, the sides have no version in common, or the received frame is
    /// not the response.
    pub fn call<R: Request>(&mut self, request: &R) -> Result<R::Response, ClientError> {
        self.call_up_to(request, i16::MAX)
    }

    /// Sends a request in version `max` or an older one and waits for its response. Callers use this if they do not set
    /// the fields of newer versions.
    ///
    /// # Errors
    /// Returns [`ClientError`] under the conditions of [`Connection::call`].
    pub fn call_up_to<R: Request>(&mut self, request: &R, max: i16) -> Result<R::Response, ClientError> {
        let version = self.version::<R>()?.min(max);
        self.send(request, version)?;
        Ok(self.receive::<R>(version)?.1)
    }

    /// Sends two requests in one round trip and waits for both responses. `second` is a request with its maximum
    /// version. The broker carries it out after the first request. Its response is `None` if `second` is `None`, or if
    /// the broker does not serve its API.
    ///
    /// # Errors
    /// Returns [`ClientError`] if [`Connection::call`] would return one for either request. The caller must then drop
    /// the connection, because the second response may still arrive and would be taken for a later one.
    pub(crate) fn call_both<A: Request, B: Request>(
        &mut self,
        first: &A,
        second: Option<(&B, i16)>,
    ) -> Result<(A::Response, Option<B::Response>), ClientError> {
        let version = self.version::<A>()?;
        let second = second.and_then(|(request, max)| Some((request, self.version::<B>().ok()?.min(max))));
        self.send(first, version)?;
        if let Some((request, version)) = second {
            self.send(request, version)?;
        }
        let (_, answer) = self.receive::<A>(version)?;
        let other = second.map(|(_, version)| self.receive::<B>(version)).transpose()?;
        Ok((answer, other.map(|(_, answer)| answer)))
    }

    /// Sends a request without waiting for the response.
    ///
    /// # Errors
    /// Returns [`ClientError`] if the connection breaks, or the version cannot express the request.
    pub fn send<R: Request>(&mut self, request: &R, version: i16) -> Result<(), ClientError> {
        let encoded = self.requesting.encode(request, version, Instant::now());
        let (requested, frame) = encoded.map_err(|error| self.misunderstood(error))?;
        let bytes: Vec<u8> = frame.parts.iter().filter_map(memory).flatten().copied().collect();
        requested.log(&self.address, bytes.len());
        if self.due.push(requested, ()).is_err() {
            return Err(self.broken(std::io::Error::other("too many requests wait for an answer")));
        }
        self.socket.write_all(&bytes).map_err(|source| self.broken(source))?;
        Ok(())
    }

    /// Waits for the response to the oldest request. Returns the frame and the response. The byte slices of the
    /// response share the memory of the frame.
    ///
    /// # Errors
    /// Returns [`ClientError`] if the connection breaks, or the received frame is not that response.
    pub fn receive<R: Request>(&mut self, version: i16) -> Result<(Bytes, R::Response), ClientError> {
        let bytes_max = if R::KEY == ApiKey::Fetch { FETCH_BYTES_MAX } else { RESPONSE_BYTES_MAX };
        let frame = self.receive_frame(bytes_max)?;
        let response = decode::<R>(frame.clone(), version).map_err(|error| self.misunderstood(error))?;
        Ok((frame, response))
    }

    fn receive_frame(&mut self, bytes_max: usize) -> Result<Bytes, ClientError> {
        let mut prefix = [0; frame::PREFIX];
        self.read_exact(&mut prefix)?;
        self.answer_began = Instant::now();
        let len = frame::length(prefix, bytes_max).map_err(|error| self.misunderstood(error))?;
        let mut buffer = std::mem::take(&mut self.spare);
        buffer.truncate(len);
        // The buffer grows only as bytes arrive, so that a large announced length alone reserves little memory.
        let mut filled = 0;
        while filled < len {
            let end = len.min(buffer.len().max(2 * filled).max(FIRST_BYTES));
            buffer.resize(end, 0);
            self.read_exact(&mut buffer[filled..])?;
            filled = end;
        }
        let frame = buffer.freeze();
        self.answered(&frame)?;
        Ok(frame)
    }

    fn read_exact(&mut self, buffer: &mut [u8]) -> Result<(), ClientError> {
        self.socket.read_exact(buffer).map_err(|source| match source.kind() {
            ErrorKind::UnexpectedEof => {
                self.broken(std::io::Error::new(source.kind(), "the broker closed the connection"))
            }
            // A timeout gets an error text of its own, because the system's text is "resource temporarily unavailable".
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                // The connection ends. Otherwise the late response would be taken for the response to the next request.
                let _ = self.socket.tcp().shutdown(Shutdown::Both);
                let patience = self.socket.tcp().read_timeout().ok().flatten().unwrap_or_default();
                ClientError::Silent { address: self.address.clone(), patience }
            }
            _ => self.broken(source),
        })
    }

    /// Removes the oldest request if `frame` is its response. Otherwise ends the connection, which is then unusable.
    fn answered(&mut self, frame: &Bytes) -> Result<(), ClientError> {
        let (requested, ()) = self.due.answered(frame).map_err(|error| {
            // An error means that the peer has already closed the connection.
            let _ = self.socket.tcp().shutdown(Shutdown::Both);
            self.misunderstood(error)
        })?;
        requested.log_answer(&self.address, frame.len(), Instant::now());
        Ok(())
    }

    /// Keeps a frame's buffer for the next frame, unless a slice of the frame is still in use or the buffer is very
    /// large.
    pub fn recycle(&mut self, frame: Bytes) {
        if let Ok(buffer) = frame.try_into_mut()
            && buffer.capacity() <= RESPONSE_BYTES_MAX
        {
            self.spare = buffer;
        }
    }

    /// Sets how long the broker may be silent while a response is due.
    ///
    /// # Errors
    /// Returns the system's error if it refuses the value.
    pub fn set_patience(&self, patience: Duration) -> Result<(), ClientError> {
        self.socket.tcp().set_read_timeout(Some(patience)).map_err(|source| self.broken(source))
    }

    /// Returns a handle that lets another thread end this connection.
    ///
    /// # Errors
    /// Returns the system's error if it has no descriptor left.
    pub fn stopper(&self) -> Result<Stopper, ClientError> {
        self.socket.tcp().try_clone().map(Stopper).map_err(|source| self.broken(source))
    }

    /// Returns when the first bytes of the last response were read.
    pub fn answer_began(&self) -> Instant {
        self.answer_began
    }

    /// Returns the address of the broker as `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns true if a new connection to `address` would lead to the same broker. May have to resolve a name.
    pub(crate) fn leads_to(&self, address: &str) -> bool {
        self.socket.leads_to(address, &self.address)
    }

    fn misunderstood(&self, error: ProtocolError) -> ClientError {
        ClientError::of_protocol(error, &self.address)
    }

    fn broken(&self, source: std::io::Error) -> ClientError {
        ClientError::Io { address: self.address.clone(), source }
    }
}

fn memory(part: &Part) -> Option<&Bytes> {
    match part {
        Part::Bytes(bytes) => Some(bytes),
        Part::File(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::apis::metadata::MetadataRequest;
    use std::net::TcpListener;

    /// Starts a broker that answers ApiVersions and one more request. The second answer has the correlation id `id`.
    /// With `None` there is no second answer. The thread returns true if the client then closes the connection.
    fn broker_that_answers(id: Option<i32>) -> (String, std::thread::JoinHandle<bool>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let address = listener.local_addr().expect("bound").to_string();
        let serving = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a client");
            socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a connected socket");
            let mut request = |answer: Option<&[u8]>| {
                let mut prefix = [0; 4];
                socket.read_exact(&mut prefix).expect("a request");
                let mut body = vec![0; u32::from_be_bytes(prefix) as usize];
                socket.read_exact(&mut body).expect("a request");
                let frame = answer.map(|answer| [&(answer.len() as u32).to_be_bytes(), answer].concat());
                socket.write_all(&frame.unwrap_or_default()).expect("the client reads");
            };
            // The response in version 3: correlation id, no error, one API (Metadata 0 to 13), no throttling, no tags.
            request(Some(&[0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 0, 0, 13, 0, 0, 0, 0, 0, 0]));
            request(id.map(|id| [&id.to_be_bytes()[..], &[0; 20]].concat()).as_deref());
            // This read returns the end of the stream if the client closes the connection. It times out if the client
            // merely stops using the connection.
            socket.read(&mut [0]).is_ok_and(|read| read == 0)
        });
        (address, serving)
    }

    #[test]
    fn a_response_that_is_not_due_closes_the_connection() {
        for id in [0, 2, -1] {
            let (address, serving) = broker_that_answers(Some(id));
            let mut connection = Connection::connect(&address, "test", &Security::default()).expect("it answers");
            let error = connection.call(&MetadataRequest::default()).expect_err("out of order").to_string();
            assert!(error.contains(&format!("the response {id} does not belong to the oldest request")), "{error}");
            assert!(serving.join().expect("no panic"), "closed, while the client still has it");
        }
    }

    #[test]
    fn a_response_that_is_late_closes_the_connection() {
        let (address, serving) = broker_that_answers(None);
        let mut connection = Connection::connect(&address, "test", &Security::default()).expect("it answers");
        connection.set_patience(Duration::from_millis(20)).expect("a connected socket");
        let error = connection.call(&MetadataRequest::default()).expect_err("silence").to_string();
        assert!(error.contains("no answer in 20ms"), "{error}");
        assert!(serving.join().expect("no panic"), "closed, while the client still has it");
        assert!(connection.call(&MetadataRequest::default()).expect_err("it is over").is_closed());
    }

    #[test]
    fn an_announced_length_costs_no_memory_until_bytes_arrive() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let address = listener.local_addr().expect("bound").to_string();
        let serving = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a client");
            let _ = socket.read(&mut [0; 1000]);
            socket.write_all(&(FETCH_BYTES_MAX as u32).to_be_bytes()).expect("the client reads");
        });
        let socket = Socket::open(&address, &Security::default(), READ_TIMEOUT).expect("it listens");
        let mut connection = Connection {
            socket,
            address,
            versions: Versions::default(),
            requesting: Requesting::new("test"),
            due: Due::default(),
            spare: BytesMut::new(),
            answer_began: Instant::now(),
        };
        connection.socket.write_all(&[0]).expect("it reads");
        let before = peak_kilobytes();
        connection.receive_frame(FETCH_BYTES_MAX).expect_err("nothing more comes");
        serving.join().expect("no panic");
        assert!(peak_kilobytes() - before < FETCH_BYTES_MAX as u64 / 1024 / 16);
    }

    /// Returns the peak memory of this process, in kilobytes.
    fn peak_kilobytes() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux has it");
        line.split_whitespace().nth(1).and_then(|kilobytes| kilobytes.parse().ok()).expect("a number")
    }

    #[test]
    fn a_broker_that_closes_at_the_first_request_gets_the_advice_to_use_tls() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let address = listener.local_addr().expect("bound").to_string();
        let closing = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a client");
            let _ = socket.read(&mut [0; 1000]);
        });
        let error = Connection::connect(&address, "test", &Security::default()).err().expect("closed").to_string();
        assert!(error.contains("set security.protocol=SSL"), "{error}");
        closing.join().expect("no panic");
    }
}
