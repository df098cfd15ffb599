//! A raw connection to a broker, plain or over TLS. It sends requests encoded by `fullbore_wire`, or any other bytes.
//!
//! The client does not retry, fetch metadata or negotiate versions. The test decides which requests to send and checks
//! each response.

use crate::tls::{Tls, TlsStream};
use bytes::Bytes;
use fullbore_wire::api::{Request, decode_response, encode_request};
use fullbore_wire::{Frame, Part, Text};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

/// How long a test waits for a response before it fails.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// A connection to a broker.
pub struct Client {
    stream: Stream,
    next_correlation_id: i32,
    client_id: Text,
    /// True if a response that takes too long is treated as a closed connection instead of a failed test.
    gives_up: bool,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl Stream {
    fn socket(&self) -> &TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => &stream.sock,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(bytes),
            Stream::Tls(stream) => stream.read(bytes),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}

/// Returns the bytes of a frame. Panics if the frame refers to a file, as only a broker's responses do.
pub fn bytes_of(frame: &Frame) -> Vec<u8> {
    let bytes_of = |part: &Part| match part {
        Part::Bytes(bytes) => bytes.to_vec(),
        Part::File(_) => panic!("a client sends no files"),
    };
    frame.parts.iter().flat_map(bytes_of).collect()
}

fn open(addr: SocketAddr) -> TcpStream {
    try_open(addr).expect("the broker accepts connections")
}

fn try_open(addr: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.set_write_timeout(Some(ANSWER_MAX))?;
    Ok(stream)
}

impl Client {
    /// Connects to a broker.
    pub fn connect(addr: SocketAddr) -> Client {
        Client::over(Stream::Plain(open(addr)))
    }

    /// Connects to a broker. Every request will carry `client_id`.
    pub fn connect_as(addr: SocketAddr, client_id: &str) -> Client {
        Client { client_id: Text::from(client_id), ..Client::connect(addr) }
    }

    fn over(stream: Stream) -> Client {
        Client { stream, next_correlation_id: 0, client_id: Text::from_static("fullbore-tests"), gives_up: false }
    }

    /// Connects to a broker that may have ended. Returns the error if no process listens.
    pub fn try_connect(addr: SocketAddr) -> std::io::Result<Client> {
        Ok(Client::over(Stream::Plain(try_open(addr)?)))
    }

    /// Connects to an SSL listener. Returns once the client has completed its side of the handshake.
    pub fn try_connect_tls(addr: SocketAddr, tls: &Tls) -> std::io::Result<Client> {
        let stream = tls.handshake(open(addr), addr)?;
        Ok(Client::over(Stream::Tls(Box::new(stream))))
    }

    /// Connects to an SSL listener. Panics if the handshake fails.
    pub fn connect_tls(addr: SocketAddr, tls: &Tls) -> Client {
        Client::try_connect_tls(addr, tls).expect("the handshake succeeds")
    }

    /// Returns the broker's certificate in DER. Panics if the connection has no TLS.
    pub fn certificate(&self) -> Vec<u8> {
        match &self.stream {
            Stream::Plain(_) => panic!("no TLS"),
            Stream::Tls(stream) => stream.conn.peer_certificates().expect("it was shown")[0].to_vec(),
        }
    }

    /// Returns a second handle on the connection, so that one thread can write while another reads.
    pub fn split(&self) -> Client {
        let Stream::Plain(socket) = &self.stream else { panic!("a TLS session is not split") };
        let stream = Stream::Plain(socket.try_clone().expect("a descriptor is free"));
        Client {
            stream,
            next_correlation_id: self.next_correlation_id,
            client_id: self.client_id.clone(),
            gives_up: self.gives_up,
        }
    }

    /// Sends a request without waiting for the response. Returns the request's correlation id.
    pub fn send<R: Request>(&mut self, request: &R, version: i16) -> i32 {
        self.try_send(request, version).expect("the broker reads")
    }

    /// Sends a request to a broker that may have ended.
    pub fn try_send<R: Request>(&mut self, request: &R, version: i16) -> std::io::Result<i32> {
        let id = self.next_correlation_id;
        self.next_correlation_id += 1;
        let frame = encode_request(request, version, id, Some(&self.client_id)).expect("a request of this version");
        self.try_send_bytes(&bytes_of(&frame))?;
        Ok(id)
    }

    /// Sends raw bytes.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.try_send_bytes(bytes).expect("the broker reads");
    }

    /// Sends bytes to a broker that may be closing the connection.
    pub fn try_send_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// Waits for the next response and returns it with its correlation id. Panics if the broker closes the connection.
    pub fn receive<R: Request>(&mut self, version: i16) -> (i32, R::Response) {
        self.try_receive::<R>(version).expect("the broker answers instead of closing the connection")
    }

    /// Waits for the next response and returns it with its correlation id. `None` if the broker closed the connection.
    pub fn try_receive<R: Request>(&mut self, version: i16) -> Option<(i32, R::Response)> {
        let frame = self.receive_frame()?;
        Some(decode_response::<R>(frame, version).expect("a response of this version"))
    }

    /// Sends a request to a broker that may have ended, and waits for the response. `None` if the connection is closed.
    pub fn try_call<R: Request>(&mut self, request: &R, version: i16) -> Option<R::Response> {
        self.try_send(request, version).ok()?;
        Some(self.try_receive::<R>(version)?.1)
    }

    /// Sends a request and waits for the response.
    pub fn call<R: Request>(&mut self, request: &R, version: i16) -> R::Response {
        let sent = self.send(request, version);
        let (id, response) = self.receive::<R>(version);
        assert_eq!(id, sent, "the response is to another request");
        response
    }

    /// Waits for the next frame and returns it without its length field. `None` if the broker closed the connection.
    pub fn receive_frame(&mut self) -> Option<Bytes> {
        let mut prefix = [0; 4];
        self.read_exact(&mut prefix)?;
        let mut frame = vec![0; usize::try_from(i32::from_be_bytes(prefix)).expect("a length")];
        self.read_exact(&mut frame)?;
        Some(Bytes::from(frame))
    }

    /// Waits until a response begins to arrive, without reading any of it.
    pub fn wait_for_answer(&mut self) {
        let begun = loop {
            match self.stream.socket().peek(&mut [0]) {
                // The read was interrupted because this process was suspended for a moment. The loop repeats the read.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                begun => break begun.expect("the broker answers"),
            }
        };
        assert_eq!(begun, 1, "the broker answers instead of closing the connection");
    }

    /// Fills `buffer`. `None` if the connection is closed or reset.
    fn read_exact(&mut self, buffer: &mut [u8]) -> Option<()> {
        match self.stream.read_exact(buffer) {
            Ok(()) => Some(()),
            Err(error) if !self.gives_up && matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("neither an answer nor a close within the read timeout")
            }
            Err(_) => None,
        }
    }

    /// Waits until the broker closes the connection. Returns how many responses it sent before that.
    pub fn wait_for_close(&mut self) -> usize {
        std::iter::from_fn(|| self.receive_frame()).count()
    }

    /// Returns all bytes that arrive until the broker closes the connection or the read timeout passes.
    pub fn take_what_comes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // If the read fails, the buffer still contains the bytes read before.
        let _ = self.stream.read_to_end(&mut bytes);
        bytes
    }

    /// Reads exactly `bytes` bytes. `None` if the broker closes the connection before that.
    pub fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let mut taken = vec![0; bytes];
        self.read_exact(&mut taken)?;
        Some(taken)
    }

    /// Returns true if the broker still has its end of the connection open. Does not read from the connection.
    pub fn is_open_at_broker(&self) -> bool {
        let socket = self.stream.socket();
        // The socket has no peer any more, so the connection was reset.
        let (Ok(ours), Ok(theirs)) = (socket.local_addr(), socket.peer_addr()) else { return false };
        let sockets = std::fs::read_to_string("/proc/net/tcp").expect("Linux tells it");
        let is_it = |line: &str| {
            let mut fields = line.split_whitespace().skip(1);
            let mut port = || fields.next().and_then(|addr| u16::from_str_radix(addr.rsplit(':').next()?, 16).ok());
            // State 1 is ESTABLISHED. A socket that the broker has closed can stay in other states for a while.
            (port(), port()) == (Some(theirs.port()), Some(ours.port())) && fields.next() == Some("01")
        };
        sockets.lines().any(is_it)
    }

    /// Closes the sending half of the connection, so that the broker reads the end of the stream.
    pub fn finish(&mut self) {
        if let Stream::Tls(stream) = &mut self.stream {
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
        // The broker may have closed the connection already.
        let _ = self.stream.socket().shutdown(Shutdown::Write);
    }

    /// Closes the receiving half, which the broker does not notice.
    pub fn stop_reading(&mut self) {
        self.stream.socket().shutdown(Shutdown::Read).expect("a connected socket");
    }

    /// Closes the connection with a reset, as the kernel does for a killed process with unread responses. The broker's
    /// next write fails.
    pub fn reset(self) {
        let now = Some(Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(self.stream.socket(), now).expect("a connected socket");
    }

    /// Sets how long a write may block before it fails.
    pub fn set_write_timeout(&mut self, timeout: Duration) {
        self.stream.socket().set_write_timeout(Some(timeout)).expect("a connected socket");
    }

    /// Treats the connection as closed if a response takes longer than `timeout`.
    pub fn give_up_after(&mut self, timeout: Duration) {
        self.gives_up = true;
        self.set_read_timeout(timeout);
    }

    /// Sets how long the test waits for a response before it fails.
    pub fn set_read_timeout(&mut self, timeout: Duration) {
        self.stream.socket().set_read_timeout(Some(timeout)).expect("a connected socket");
    }
}
