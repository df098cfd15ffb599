//! A timer that is exact to some tens of microseconds. Tokio's timer counts whole milliseconds, which is too coarse for
//! a short distance.
//!
//! Invariant: an alarm never fires early.

use rustix::fd::OwnedFd;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};
use std::io;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;

/// A clock of nanoseconds since a start, which all connections of a relay share.
#[derive(Debug, Clone, Copy)]
pub struct RelayClock(Instant);

impl RelayClock {
    /// Starts the clock.
    pub fn start() -> Self {
        RelayClock(Instant::now())
    }

    /// Returns the nanoseconds since the start.
    pub fn now_ns(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// The timer of one task, based on a timerfd.
pub struct Alarm {
    fd: AsyncFd<OwnedFd>,
    clock: RelayClock,
    set_for_ns: Option<u64>,
}

impl Alarm {
    /// Creates an alarm that is not set.
    pub fn new(clock: RelayClock) -> io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        // SAFETY: an OwnedFd keeps its descriptor until it is dropped, and nothing replaces the one inside the AsyncFd.
        let fd = unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)?;
        Ok(Alarm { fd, clock, set_for_ns: None })
    }

    /// Waits until `at_ns`. If a wait was dropped and is resumed for the same time, this costs no system call.
    pub async fn until(&mut self, at_ns: u64) -> io::Result<()> {
        let left_ns = at_ns.saturating_sub(self.clock.now_ns());
        if left_ns == 0 {
            return Ok(());
        }
        if self.set_for_ns != Some(at_ns) {
            self.set(Duration::from_nanos(left_ns))?;
            self.set_for_ns = Some(at_ns);
        }
        loop {
            let mut ready = self.fd.readable().await?;
            let mut expirations = [0; 8];
            match ready.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut expirations)?)) {
                Ok(rung) => {
                    rung?;
                    self.set_for_ns = None;
                    return Ok(());
                }
                // The timer fired for an earlier setting, so the wait continues.
                Err(_would_block) => {}
            }
        }
    }

    fn set(&self, after: Duration) -> io::Result<()> {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: after.as_secs() as i64, tv_nsec: i64::from(after.subsec_nanos()) };
        let once = Itimerspec { it_interval: none, it_value: value };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}
