//! A direction of one connection. It reads bytes from one socket, and writes them to the other in order once they are
//! due. If the first socket ends or is reset, the other socket also learns of that after the delay.
//!
//! Invariants: no byte is written sooner than half a round trip after it was read. The bytes in transit exceed
//! [`RelaySettings::in_flight_max`](super::RelaySettings) by at most one read, since at this limit nothing more is
//! read.

use super::alarm::{Alarm, RelayClock};
use super::{LossStall, RelaySettings};
use crate::link::line::{Bottleneck, Chance, DelayLine};
use bytes::{BufMut, Bytes, BytesMut};
use rustix::net::{Shutdown, shutdown};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Maximum number of bytes of one read.
const READ_BYTES_MAX: usize = 128 * 1024;
/// The limit of one read at the smallest bandwidths, in bytes: about one packet.
const READ_BYTES_MIN: usize = 1_460;
/// How long one read may occupy a link with a limited bandwidth. This limits the size of a read, so that the
/// connections share the link fairly.
const TURN: Duration = Duration::from_millis(1);
/// The bytes that are added to the size of each piece, so that the limit of bytes in transit also limits small pieces.
const PIECE_BYTES: usize = 64;
/// Maximum number of pieces written with one system call.
const SLICES_MAX: usize = 32;
/// The size in bytes of the packets that a simulated loss affects.
const PACKET_BYTES: usize = 1_460;

/// The state that all connections share in one direction.
pub struct Direction {
    bottleneck: Mutex<Bottleneck>,
    buffer_bytes: u64,
    delay_ns: u64,
    jitter: Duration,
    loss_stall: Option<LossStall>,
    in_flight_max: usize,
    read_bytes: usize,
    clock: RelayClock,
    /// How many bytes were read.
    pub bytes: AtomicU64,
    /// How many losses were simulated.
    pub stalls: AtomicU64,
    /// Notified when the first bytes of a connection look like a Kafka client's.
    pub kafka: Notify,
}

impl Direction {
    /// Creates a direction without any bytes in transit.
    pub fn new(settings: &RelaySettings, clock: RelayClock) -> Self {
        let in_a_turn = settings.shape.bandwidth.map(|rate| (rate as f64 * TURN.as_secs_f64()) as usize);
        Direction {
            bottleneck: Mutex::new(Bottleneck::new(settings.shape.bandwidth)),
            buffer_bytes: settings.shape.buffer_bytes(),
            delay_ns: settings.shape.one_way().as_nanos() as u64,
            jitter: settings.shape.jitter,
            loss_stall: settings.loss_stall,
            in_flight_max: settings.in_flight_max,
            read_bytes: in_a_turn.unwrap_or(READ_BYTES_MAX).clamp(READ_BYTES_MIN, READ_BYTES_MAX),
            clock,
            bytes: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            kafka: Notify::new(),
        }
    }

    /// Returns the time at which an event that happens now must reach the other side.
    pub fn arrival_ns(&self) -> u64 {
        self.clock.now_ns() + self.delay_ns
    }

    fn bottleneck<T>(&self, look: impl FnOnce(&mut Bottleneck) -> T) -> T {
        look(&mut self.bottleneck.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns true if the bytes look like the first request of a Kafka client, which is Metadata or ApiVersions.
fn is_first_request(bytes: &[u8]) -> bool {
    matches!(bytes, [0, 0, _, _, 0, 3 | 18, 0, version, ..] if *version < 64)
}

enum StreamEvent {
    Bytes(Bytes),
    /// The source has sent all its bytes.
    End,
    /// The source has reset the connection.
    Reset,
}

/// A direction of one connection.
pub struct RelayLane<'a> {
    direction: &'a Direction,
    line: DelayLine<StreamEvent>,
    /// The bytes that are due but not written yet.
    due: VecDeque<Bytes>,
    due_bytes: usize,
    source_open: bool,
    /// True until the first bytes are read.
    is_new: bool,
    /// True once the end of the source's bytes is due at the target.
    ended: bool,
    space: BytesMut,
    chance: Chance,
    alarm: Alarm,
}

impl<'a> RelayLane<'a> {
    /// Creates one direction of a connection, which has no bytes yet.
    pub fn new(direction: &'a Direction, seed: u64) -> io::Result<Self> {
        Ok(RelayLane {
            direction,
            line: DelayLine::default(),
            due: VecDeque::new(),
            due_bytes: 0,
            source_open: true,
            is_new: true,
            ended: false,
            space: BytesMut::new(),
            chance: Chance::new(seed),
            alarm: Alarm::new(direction.clock)?,
        })
    }

    /// Carries bytes until the end of the source's bytes has been passed on.
    ///
    /// # Errors
    /// Returns an error if either side resets the connection. The caller must then reset the other side.
    pub async fn carry(mut self, source: &TcpStream, target: &TcpStream) -> io::Result<()> {
        loop {
            self.turn(source, Some(target)).await?;
            if self.ended && self.due.is_empty() {
                // The shutdown fails if the target has closed its side already, so the error is ignored.
                let _ = shutdown(target, Shutdown::Write);
                return Ok(());
            }
        }
    }

    /// Does one step: reads, writes, or waits for bytes in transit. Without a target, nothing is written.
    pub async fn turn(&mut self, source: &TcpStream, target: Option<&TcpStream>) -> io::Result<()> {
        let now_ns = self.direction.clock.now_ns();
        self.take_due(now_ns)?;
        if target.is_some() && self.ended && self.due.is_empty() {
            return Ok(());
        }
        let read_at_ns = self.read_at_ns();
        let may_read = read_at_ns.is_some_and(|at| at <= now_ns);
        let wake_at_ns = self.line.next_due_ns().into_iter().chain(read_at_ns.filter(|_| !may_read)).min();
        tokio::select! {
            ready = source.readable(), if may_read => {
                ready?;
                self.read(source);
            }
            ready = writable(target), if target.is_some() && !self.due.is_empty() => {
                let target = ready?;
                if let Err(error) = self.write(target) {
                    // Over a real distance the source would learn of the target's failure half a round trip later, so
                    // this waits that long.
                    let news_ns = self.direction.arrival_ns();
                    self.alarm.until(news_ns).await?;
                    return Err(error);
                }
            }
            rung = self.alarm.until(wake_at_ns.unwrap_or(0)), if wake_at_ns.is_some() => rung?,
            // The direction is full and has no target. The caller waits for the target at the same time and then calls
            // again.
            else => std::future::pending::<()>().await,
        }
        Ok(())
    }

    /// Returns the time of the next read. Returns `None` if too many bytes are in transit, or if the source has sent
    /// everything.
    fn read_at_ns(&self) -> Option<u64> {
        let full = self.line.bytes() + self.due_bytes >= self.direction.in_flight_max;
        if !self.source_open || full {
            return None;
        }
        Some(self.direction.bottleneck(|bottleneck| bottleneck.room_at_ns(self.direction.buffer_bytes)))
    }

    fn take_due(&mut self, now_ns: u64) -> io::Result<()> {
        while let Some(piece) = self.line.pop(now_ns) {
            match piece {
                StreamEvent::Bytes(bytes) => {
                    self.due_bytes += bytes.len() + PIECE_BYTES;
                    self.due.push_back(bytes);
                }
                StreamEvent::End => self.ended = true,
                // Bytes that are due but not written yet are dropped, since a TCP reset also discards undelivered
                // bytes.
                StreamEvent::Reset => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
        Ok(())
    }

    fn read(&mut self, source: &TcpStream) {
        if self.space.capacity() < READ_BYTES_MIN {
            self.space = BytesMut::with_capacity(READ_BYTES_MAX);
        }
        let piece = match source.try_read_buf(&mut (&mut self.space).limit(self.direction.read_bytes)) {
            Ok(0) => StreamEvent::End,
            Ok(_) => {
                let bytes = self.space.split().freeze();
                if std::mem::take(&mut self.is_new) && is_first_request(&bytes) {
                    self.direction.kafka.notify_one();
                }
                StreamEvent::Bytes(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => StreamEvent::Reset,
        };
        let direction = self.direction;
        let now_ns = direction.clock.now_ns();
        let len = match &piece {
            StreamEvent::Bytes(bytes) => bytes.len(),
            StreamEvent::End | StreamEvent::Reset => {
                self.source_open = false;
                0
            }
        };
        direction.bytes.fetch_add(len as u64, Ordering::Relaxed);
        let left_ns = direction.bottleneck(|bottleneck| bottleneck.send(now_ns, len));
        let extra_ns = self.chance.up_to(direction.jitter) + self.stall_ns(len);
        self.line.push(left_ns + direction.delay_ns + extra_ns, len + PIECE_BYTES, piece);
    }

    /// Decides at random whether one of the packets with these `bytes` bytes is lost, and returns the additional delay,
    /// or 0. Later bytes wait as well, because the delay line keeps the order.
    fn stall_ns(&mut self, bytes: usize) -> u64 {
        let Some(LossStall { probability, stall }) = self.direction.loss_stall else { return 0 };
        let none_lost = (1.0 - probability).powi(bytes.div_ceil(PACKET_BYTES) as i32);
        if !self.chance.happens(1.0 - none_lost) {
            return 0;
        }
        self.direction.stalls.fetch_add(1, Ordering::Relaxed);
        stall.as_nanos() as u64
    }

    fn write(&mut self, target: &TcpStream) -> io::Result<()> {
        let slices: Vec<IoSlice<'_>> = self.due.iter().take(SLICES_MAX).map(|bytes| IoSlice::new(bytes)).collect();
        let mut written = match target.try_write_vectored(&slices) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        while let Some(first) = self.due.front_mut() {
            if written < first.len() {
                bytes::Buf::advance(first, written);
                self.due_bytes -= written;
                break;
            }
            written -= first.len();
            self.due_bytes -= first.len() + PIECE_BYTES;
            self.due.pop_front();
        }
        Ok(())
    }
}

async fn writable(target: Option<&TcpStream>) -> io::Result<&TcpStream> {
    match target {
        Some(target) => target.writable().await.map(|()| target),
        None => std::future::pending().await,
    }
}
