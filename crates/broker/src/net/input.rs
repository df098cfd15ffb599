//! Reads frames from a socket, without decoding their contents.
//!
//! A connection only has a buffer while it reads. Before it waits for bytes, it returns an empty buffer to the few
//! spare ones of its thread, unless a request still uses the memory. So a busy connection reads without allocating, and
//! an idle one uses no memory.
//!
//! The length of a frame is checked before any memory is reserved for it. For a large frame, 1 MiB is reserved first,
//! and then each step reserves at most as many bytes as were received. So a client cannot fill the memory with large
//! length prefixes.

use super::idleness::Idleness;
use super::stream::ClientStream;
use bytes::{Buf, Bytes, BytesMut};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tokio::time::timeout;

/// How many bytes are read from the socket while the length of the frame is unknown.
const CHUNK: usize = 16 * 1024;
/// Frames above this size are read alone, without the beginning of the next frame, which would have to be moved.
/// Buffers above this size are not reused.
const LARGE: usize = 64 * 1024;
/// How many bytes are first reserved for a large frame.
const STEP: usize = 1024 * 1024;
/// If a frame lacks at most this many bytes, the received part is acknowledged at once, because a client with Nagle's
/// algorithm may send the rest only then.
const TAIL: usize = 64 * 1024;
/// How long a connection without incoming bytes keeps a large buffer. It gives back smaller ones at once.
const BUFFER_IDLE: Duration = Duration::from_secs(1);

/// Maximum number of spare buffers of a thread. Each has at most [`LARGE`] bytes.
const SPARE_MAX: usize = 8;

thread_local! {
    static SPARE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// The reason why a connection cannot read on.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The socket has failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The client has ended its side in the middle of a frame.
    #[error("the client closed the connection inside a frame")]
    Cut,
    /// The length prefix is negative or above `socket.request.max.bytes`.
    #[error("a frame of {length} bytes is not between 0 and {max} (socket.request.max.bytes)")]
    Length {
        /// The value of the prefix.
        length: i32,
        /// The maximum length.
        max: usize,
    },
    /// The client has begun a TLS handshake.
    #[error("a TLS client on a plaintext listener")]
    Tls,
}

/// Reads the frames of one connection.
pub struct Input<'a> {
    stream: &'a ClientStream,
    buffer: BytesMut,
    /// True while the connection has given its buffer back.
    is_resting: bool,
    /// True if the buffer has grown beyond [`LARGE`].
    is_large: bool,
    frame_max: usize,
    idleness: &'a Idleness,
}

impl<'a> Input<'a> {
    /// Creates a reader of frames with up to `frame_max` bytes. Every read is noted in `idleness`.
    pub fn new(stream: &'a ClientStream, frame_max: usize, idleness: &'a Idleness) -> Self {
        Input { stream, buffer: BytesMut::new(), is_resting: true, is_large: false, frame_max, idleness }
    }

    /// Returns the next frame without its length prefix. `None` if the peer has closed the connection between two
    /// frames.
    ///
    /// # Errors
    /// Returns an [`InputError`], after which the connection can no longer be used.
    pub async fn frame(&mut self) -> Result<Option<Bytes>, InputError> {
        while self.buffer.len() < 4 {
            let missing = if self.buffer.is_empty() { 0 } else { 4 - self.buffer.len() };
            if self.fill(CHUNK, missing).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(InputError::Cut) };
            }
        }
        let length = i32::from_be_bytes([self.buffer[0], self.buffer[1], self.buffer[2], self.buffer[3]]);
        let len = usize::try_from(length).ok().filter(|len| *len <= self.frame_max);
        let len = len.ok_or_else(|| match self.buffer[..4] {
            // A TLS handshake begins with a record of type 22 and version 3.x. As a length, these bytes are 352 MiB,
            // which is above most limits. So a frame that is too long may be a handshake.
            [22, 3, ..] if matches!(self.stream, ClientStream::Plain(_)) => InputError::Tls,
            _ => InputError::Length { length, max: self.frame_max },
        })?;
        self.buffer.advance(4);
        while self.buffer.len() < len {
            let missing = len - self.buffer.len();
            let want = if len > LARGE { missing.min(self.buffer.len().max(STEP)) } else { missing.max(CHUNK) };
            if self.fill(want, missing).await? == 0 {
                return Err(InputError::Cut);
            }
        }
        Ok(Some(self.buffer.split_to(len).freeze()))
    }

    /// Reads up to `want` bytes. Returns 0 at the end of the stream. `missing` is the number of bytes that the current
    /// frame lacks, or 0 between two frames.
    async fn fill(&mut self, want: usize, missing: usize) -> io::Result<usize> {
        loop {
            if self.buffer.is_empty() {
                self.rest().await;
            }
            self.readable(missing).await?;
            if std::mem::replace(&mut self.is_resting, false) {
                self.buffer = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
            }
            match self.stream.try_read_buf(&mut self.buffer, want) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    self.idleness.moved();
                    self.is_large |= self.buffer.capacity() > LARGE;
                    return result;
                }
            }
        }
    }

    /// Gives the empty buffer back to the thread, unless bytes are available. Frees a large buffer instead, and only if
    /// no bytes arrive for [`BUFFER_IDLE`].
    async fn rest(&mut self) {
        let mut readable = pin!(self.stream.readable());
        if poll_fn(|context| Poll::Ready(readable.as_mut().poll(context).is_ready())).await {
            return;
        }
        let is_given_back = !self.is_large || timeout(BUFFER_IDLE, readable).await.is_err();
        if is_given_back && !self.is_resting {
            let buffer = std::mem::take(&mut self.buffer);
            if !std::mem::replace(&mut self.is_large, false) {
                spare(buffer);
            }
            self.is_resting = true;
        }
    }

    /// Waits until there is something to read. `missing` is the number of bytes that the current frame lacks. If these
    /// are at most [`TAIL`] bytes, first acknowledges the received part, since the client might send the rest only
    /// then.
    async fn readable(&self, missing: usize) -> io::Result<()> {
        let mut readable = pin!(self.stream.readable());
        match poll_fn(|context| Poll::Ready(readable.as_mut().poll(context))).await {
            Poll::Ready(result) => result,
            Poll::Pending => {
                if (1..=TAIL).contains(&missing) {
                    self.stream.acknowledge();
                }
                readable.await
            }
        }
    }
}

/// Stores an empty buffer for the next reader on this thread. Drops the buffer if a request still uses its memory.
fn spare(mut buffer: BytesMut) {
    if buffer.try_reclaim(CHUNK) {
        SPARE.with_borrow_mut(|spare| {
            if spare.len() < SPARE_MAX {
                spare.push(buffer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::ioctl_fionread;
    use rustix::net::sockopt::{set_tcp_quickack, tcp_quickack};
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    fn plain(stream: &ClientStream) -> &TcpStream {
        match stream {
            ClientStream::Plain(socket) => socket,
            ClientStream::Tls(_) => unreachable!("it is plain"),
        }
    }

    #[tokio::test]
    async fn idle_connection_returns_its_buffer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        let stream = ClientStream::Plain(listener.accept().await.expect("accepted").0);
        let idleness = Idleness::default();
        let mut input = Input::new(&stream, 1 << 20, &idleness);
        let spares = || SPARE.with_borrow(|spare| spare.iter().map(BytesMut::capacity).collect::<Vec<_>>());
        for held in [false, true, false] {
            client.write_all(&[0, 0, 0, 3, 1, 2, 3]).await.expect("sent");
            let frame = input.frame().await.expect("a frame").expect("one");
            assert_eq!((&frame[..], spares()), (&[1, 2, 3][..], vec![]));
            assert!(input.buffer.capacity() > 0);
            let frame = held.then_some(frame);
            assert!(timeout(Duration::from_millis(1), input.frame()).await.is_err(), "nothing comes");
            let expected = if held { vec![] } else { vec![CHUNK] };
            assert_eq!((input.buffer.capacity(), spares()), (0, expected), "one that is held is not spare");
            drop(frame);
        }
    }

    #[tokio::test]
    async fn large_buffer_is_kept_for_a_moment_and_not_reused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        let stream = ClientStream::Plain(listener.accept().await.expect("accepted").0);
        let idleness = Idleness::default();
        let mut input = Input::new(&stream, 1 << 20, &idleness);
        let len = LARGE as u32 * 2;
        let writing = async { client.write_all(&[&len.to_be_bytes()[..], &vec![7; len as usize]].concat()).await };
        let (frame, written) = tokio::join!(input.frame(), writing);
        written.expect("sent");
        assert_eq!(frame.expect("a frame").expect("one").len(), len as usize);
        assert!(timeout(BUFFER_IDLE / 2, input.frame()).await.is_err(), "nothing comes");
        assert!(input.buffer.try_reclaim(len as usize), "it is there still");
        assert!(timeout(BUFFER_IDLE * 2, input.frame()).await.is_err(), "nothing comes");
        assert_eq!((input.buffer.capacity(), SPARE.with_borrow(Vec::len)), (0, 0));
    }

    #[tokio::test]
    async fn part_of_a_plain_frame_is_acknowledged_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
        let (socket, _) = listener.accept().await.expect("accepted");
        // From now on the kernel delays acknowledgements, as it does after a response.
        set_tcp_quickack(&socket, false).expect("set");
        let stream = ClientStream::Plain(socket);
        let idleness = Idleness::default();
        let mut input = Input::new(&stream, 1000, &idleness);
        let mut frame = std::pin::pin!(input.frame());
        client.write_all(&[0, 0, 0, 4, 1, 2]).await.expect("written");
        while ioctl_fionread(plain(&stream)).expect("counted") < 6 {
            tokio::task::yield_now().await;
        }
        // The flag must be checked right after the read, because the kernel sets it by itself a little later.
        while ioctl_fionread(plain(&stream)).expect("counted") > 0 {
            tokio::select! {
                biased;
                _ = &mut frame => panic!("half of it has not come"),
                () = tokio::task::yield_now() => {}
            }
        }
        assert!(tcp_quickack(plain(&stream)).expect("got"), "it waits for something to send along");
        client.write_all(&[3, 4]).await.expect("written");
        assert_eq!(frame.await.expect("read").expect("a frame")[..], [1, 2, 3, 4]);
    }
}
