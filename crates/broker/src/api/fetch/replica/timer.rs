//! Waits with a precision below a millisecond, which tokio's timer does not have.
//!
//! Most answers need no such wait, so the timer's file descriptor is created at its first use.

use std::time::Duration;
#[cfg(target_os = "linux")]
use tokio::net::unix::pipe::Receiver;

/// The timer of one waiting task.
#[derive(Default)]
pub struct Timer {
    #[cfg(target_os = "linux")]
    timer: Option<Receiver>,
}

impl Timer {
    /// Sleeps for `wait`, or forever if `wait` is `None`.
    pub async fn after(&mut self, wait: Option<Duration>) {
        let Some(wait) = wait else { return std::future::pending().await };
        #[cfg(target_os = "linux")]
        if wait < Duration::from_millis(COARSE_MS) && self.set(wait).is_ok() {
            return self.expired().await;
        }
        tokio::time::sleep(wait).await;
    }
}

/// For waits of at least this long, tokio's timer is precise enough.
#[cfg(target_os = "linux")]
const COARSE_MS: u64 = 20;

#[cfg(target_os = "linux")]
impl Timer {
    fn set(&mut self, wait: Duration) -> std::io::Result<()> {
        use rustix::time::{
            Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
        };
        if self.timer.is_none() {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            // The file descriptor of a timer is polled and read like that of a pipe. Tokio's type for the reading end
            // of a pipe can therefore wait for it.
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            self.timer = Some(Receiver::from_owned_fd_unchecked(timer)?);
        }
        let Some(timer) = &self.timer else { return Ok(()) };
        let once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // At least 1 ns, because 0 would stop the timer.
        let nanos = i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX).max(1);
        let value = Timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
        timerfd_settime(timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: once, it_value: value })?;
        Ok(())
    }

    async fn expired(&mut self) {
        let Some(timer) = &self.timer else { return };
        // If there is nothing to read, tokio still had the readiness of an earlier wait. The read has cleared it, so
        // the loop waits again.
        while timer.readable().await.is_ok() {
            if timer.try_read(&mut [0; 8]).is_ok() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn timer_waits_for_each_given_duration() {
        let mut timer = Timer::default();
        for wait_us in [300, 1, 2_000, 25_000] {
            let (began, wait) = (Instant::now(), Duration::from_micros(wait_us));
            timer.after(Some(wait)).await;
            assert!(began.elapsed() >= wait, "{wait_us}");
        }
        let forever = tokio::time::timeout(Duration::from_millis(5), timer.after(None));
        assert!(forever.await.is_err());
    }
}
