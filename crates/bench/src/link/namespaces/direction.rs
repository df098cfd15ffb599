//! A direction of the link. A thread reads packets from one device and writes each to the other when it is due.
//!
//! Invariants: packets keep their order. A frame is dropped, as on any full link, if [`PACKETS_MAX`] frames or
//! [`IN_FLIGHT_BYTES_MAX`] bytes are already in transit.

use super::frame::{DEVICE_HEADER, FRAME_BYTES_MAX, Segments, runs};
use crate::link::Shape;
use crate::link::line::{Bottleneck, Chance, DelayLine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of frames in transit. A frame may have 64 KB, which a real network would carry as 45 packets of 1,500
/// bytes.
pub const PACKETS_MAX: usize = 1 << 17;
/// Maximum number of bytes in transit.
pub const IN_FLIGHT_BYTES_MAX: usize = 256 << 20;
/// Maximum number of frames that are read before due frames are written.
const READS_PER_LOOK: usize = 32;
/// How often an idle direction checks if it must stop.
const STOP_LOOK: Duration = Duration::from_millis(100);
/// How long one frame may occupy a link with a limited bandwidth. Frames that would take longer are cut into shorter
/// ones.
const TURN: Duration = Duration::from_millis(1);
/// The nice value of the thread. Like a network device, the link must not wait until the programs that use it give up a
/// processor.
const NICENESS: i32 = -15;

/// The counts of one direction. A frame counts as one packet for each of its segments.
#[derive(Debug, Default)]
pub struct Counts {
    /// How many packets were accepted.
    pub packets: AtomicU64,
    /// The size of the accepted packets, in bytes.
    pub bytes: AtomicU64,
    /// How many packets were lost at random, as configured.
    pub lost: AtomicU64,
    /// How many packets were dropped because the buffer or the delay line was full, or because the receiving device
    /// refused them.
    pub dropped: AtomicU64,
}

/// The state of one direction, which its thread owns.
pub struct Direction<'a> {
    from: &'a OwnedFd,
    to: &'a OwnedFd,
    counts: &'a Counts,
    delay_ns: u64,
    jitter: Duration,
    loss: f64,
    buffer_bytes: u64,
    turn_bytes: Option<usize>,
    bottleneck: Bottleneck,
    line: DelayLine<Vec<u8>>,
    chance: Chance,
    start: Instant,
}

impl<'a> Direction<'a> {
    /// Creates the direction from one device to the other.
    pub fn new(from: &'a OwnedFd, to: &'a OwnedFd, shape: &Shape, loss: f64, seed: u64, counts: &'a Counts) -> Self {
        Direction {
            from,
            to,
            counts,
            delay_ns: shape.one_way().as_nanos() as u64,
            jitter: shape.jitter,
            loss,
            buffer_bytes: shape.buffer_bytes(),
            turn_bytes: shape.bandwidth.map(|rate| (rate as f64 * TURN.as_secs_f64()) as usize),
            bottleneck: Bottleneck::new(shape.bandwidth),
            line: DelayLine::default(),
            chance: Chance::new(seed),
            start: Instant::now(),
        }
    }

    /// Carries packets until `stop` returns true.
    ///
    /// # Errors
    /// Returns [`Errno`] if a device fails, for example because it was removed.
    pub fn run(mut self, stop: impl Fn() -> bool) -> Result<(), Errno> {
        // If the system refuses the timer slack or the priority, delays become less exact, but the link works.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS);
        let mut space = vec![0; FRAME_BYTES_MAX];
        while !stop() {
            self.write_due();
            if !self.read_some(&mut space)? {
                self.wait()?;
            }
        }
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn write_due(&mut self) {
        let now_ns = self.now_ns();
        while let Some(frame) = self.line.pop(now_ns) {
            if rustix::io::write(self.to, &frame) != Ok(frame.len()) {
                let packets = Segments::of(&frame).map_or(1, |segments| segments.count);
                self.counts.dropped.fetch_add(packets as u64, Ordering::Relaxed);
            }
        }
    }

    /// Reads up to [`READS_PER_LOOK`] frames that wait. Returns false if there were none.
    fn read_some(&mut self, space: &mut [u8]) -> Result<bool, Errno> {
        for number in 0..READS_PER_LOOK {
            match rustix::io::read(self.from, &mut *space) {
                Ok(len) => self.take(&space[..len]),
                // EIO means that the device is down.
                Err(Errno::AGAIN | Errno::INTR | Errno::IO) => return Ok(number > 0),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Waits until a packet comes, the next packet is due, or `stop` must be checked again.
    fn wait(&self) -> Result<(), Errno> {
        let due = self.line.next_due_ns().map(|due| Duration::from_nanos(due.saturating_sub(self.now_ns())));
        let longest = due.map_or(STOP_LOOK, |due| due.min(STOP_LOOK));
        let timeout = Timespec { tv_sec: longest.as_secs() as i64, tv_nsec: i64::from(longest.subsec_nanos()) };
        match poll(&mut [PollFd::new(self.from, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Adds a frame to the delay line. Cuts the frame first if one of its segments is to be lost, or if the frame would
    /// occupy a slow link for longer than [`TURN`].
    fn take(&mut self, frame: &[u8]) {
        if frame.len() <= DEVICE_HEADER {
            return;
        }
        let Some(segments) = Segments::of(frame) else {
            return if self.is_lost() {
                self.lost(1)
            } else {
                self.send(1, frame.len() - DEVICE_HEADER, frame.to_vec())
            };
        };
        let all = 0..segments.count;
        if self.loss == 0.0 && self.turn_bytes.is_none() {
            return self.send(segments.count, segments.wire_bytes(frame, &all), frame.to_vec());
        }
        let run_max = self.turn_bytes.map_or(usize::MAX, |turn| turn / segments.wire_bytes(frame, &(0..1)));
        let runs = runs(segments.count, run_max.max(1), || self.is_lost());
        self.lost(segments.count - runs.iter().map(Range::len).sum::<usize>());
        for run in runs {
            self.send(run.len(), segments.wire_bytes(frame, &run), segments.part(frame, &run));
        }
    }

    fn is_lost(&mut self) -> bool {
        self.chance.happens(self.loss)
    }

    fn lost(&self, packets: usize) {
        self.counts.lost.fetch_add(packets as u64, Ordering::Relaxed);
    }

    fn send(&mut self, packets: usize, wire_bytes: usize, frame: Vec<u8>) {
        let now_ns = self.now_ns();
        let line_full = self.line.len() >= PACKETS_MAX || self.line.bytes() >= IN_FLIGHT_BYTES_MAX;
        if line_full || self.bottleneck.queued_bytes(now_ns) > self.buffer_bytes {
            self.counts.dropped.fetch_add(packets as u64, Ordering::Relaxed);
            return;
        }
        self.counts.packets.fetch_add(packets as u64, Ordering::Relaxed);
        self.counts.bytes.fetch_add(wire_bytes as u64, Ordering::Relaxed);
        let left_ns = self.bottleneck.send(now_ns, wire_bytes);
        self.line.push(left_ns + self.delay_ns + self.chance.up_to(self.jitter), wire_bytes, frame);
    }
}
