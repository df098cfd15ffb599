//! Ends a command early, after a signal or because the reader of its output is gone.
//!
//! Invariants: the first signal only sets a flag, which the command checks. The command then prints its results, cleans
//! up, and returns. A second Ctrl-C or SIGTERM ends the program at once. It also ends if the command does not return
//! within a time limit. After Ctrl-C (SIGINT) the limit is less than half a second, unless the command calls
//! [`Stop::allow`]. After SIGTERM, and after SIGHUP from a closed terminal, the limit is long enough for the last
//! records and commits.

use crate::failure::{Failure, INTERRUPTED};
use crate::output;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How long a command may continue after Ctrl-C, unless it calls [`Stop::allow`]. The time is counted in polls (see
/// [`LOOK_EVERY`]).
pub const INTERRUPTED_WITHIN: Duration = Duration::from_millis(400);

/// How long a command may take to notice SIGTERM or SIGHUP.
const HEARD_WITHIN: Duration = Duration::from_secs(3);

/// How long a command may take to end after it has noticed SIGTERM. This is enough for any command to write its last
/// records, to commit, and to leave its group.
const DONE_WITHIN: Duration = Duration::from_secs(40);

/// The interval of the polls after Ctrl-C. The command's time is counted in polls and not by the clock. A busy machine
/// delays the polling thread as much as the command, so the command then gets more time.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A further signal within this time is ignored as a repetition of the first one. For example, `timeout` of coreutils
/// signals the command and also the command's process group.
const REPEATED_WITHIN: Duration = Duration::from_millis(250);

/// The end of the panic message of a timer whose runtime has stopped (tokio's `RUNTIME_SHUTTING_DOWN_ERROR`).
const RUNTIME_STOPPED: &str = "context was found, but it is being shutdown";

/// The signals that stop a command.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    /// SIGHUP, which the process gets when its terminal is closed. `None` if the process ignores SIGHUP, as with
    /// `nohup`.
    hangup: Option<Signal>,
}

impl StopSignals {
    /// Sets the handlers, in a tokio runtime. From now on no signal kills the process.
    ///
    /// # Errors
    /// Returns the system's error if it refuses a handler.
    pub fn new() -> io::Result<Self> {
        let hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(StopSignals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup,
        })
    }

    /// Waits for Ctrl-C or SIGTERM, but not for SIGHUP. When its terminal is closed, a shell may send SIGHUP twice. The
    /// second SIGHUP must not end the program while the command is still cleaning up.
    async fn insistent(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits for a signal. Returns true if it was Ctrl-C.
    pub async fn next(&mut self) -> bool {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => true,
            _ = self.terminate.recv() => false,
            _ = hangup => false,
        }
    }
}

/// Returns true if the process ignores SIGHUP (signal 1).
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// A flag that requests a command to stop. All clones share it. After Ctrl-C the command may continue for a limited
/// time.
#[derive(Clone)]
pub struct Stop {
    requested: Arc<watch::Sender<bool>>,
    received: Arc<AtomicBool>,
    /// The number of polls since Ctrl-C plus 1, or 0 before Ctrl-C.
    looks: Arc<AtomicU32>,
    /// How long the command may continue after Ctrl-C, in milliseconds.
    allowed: Arc<AtomicU64>,
}

impl Stop {
    /// Creates a stop that is not requested yet.
    pub fn new() -> Self {
        Stop {
            requested: Arc::new(watch::Sender::new(false)),
            received: Arc::default(),
            looks: Arc::default(),
            allowed: Arc::new(AtomicU64::new(to_ms(INTERRUPTED_WITHIN))),
        }
    }

    /// Creates a stop that SIGINT, SIGTERM or SIGHUP requests. After a second SIGINT or SIGTERM, or if the command does
    /// not end in time, runs `last_words` and ends the program.
    pub fn at_signal(last_words: Box<dyn FnOnce() + Send>) -> Result<Self, Failure> {
        let stop = Stop::new();
        let requested = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // The handlers are set before this returns, so that no signal kills the program during its work.
        let mut signals = {
            let _runtime = runtime.enter();
            StopSignals::new()?
        };
        let watch = move || {
            let unnoticed = runtime.block_on(async {
                if signals.next().await {
                    requested.look();
                }
                requested.request();
                let repeated_until = Instant::now() + REPEATED_WITHIN;
                let another = async {
                    loop {
                        signals.insistent().await;
                        if Instant::now() >= repeated_until {
                            return;
                        }
                    }
                };
                tokio::select! {
                    () = another => false,
                    () = requested.unnoticed() => true,
                }
            });
            last_words();
            if unnoticed {
                output::failure("interrupted while waiting for an answer");
            }
            std::process::exit(i32::from(INTERRUPTED));
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(watch)?;
        Ok(stop)
    }

    /// Requests the command to stop.
    pub fn request(&self) {
        self.requested.send_replace(true);
    }

    /// Returns true if the command must stop, because a signal came or standard output has no reader.
    pub fn is_requested(&self) -> bool {
        self.is_signalled() || output::is_lost()
    }

    /// Returns true if a signal or [`Stop::request`] has requested the stop. Unlike [`Stop::is_requested`], ignores a
    /// lost reader of the output, so that a command such as `produce` continues without it.
    pub fn is_signalled(&self) -> bool {
        let is_requested = *self.requested.borrow();
        if is_requested {
            self.received.store(true, Ordering::Relaxed);
        }
        is_requested
    }

    /// Allows the command to continue for at least `time` after Ctrl-C, for work that it must complete.
    pub fn allow(&self, time: Duration) {
        self.allowed.fetch_max(to_ms(time), Ordering::Relaxed);
    }

    /// Limits the command to `time` from now on. Before Ctrl-C, limits it to `time` from Ctrl-C on. This replaces the
    /// limit of [`Stop::allow`], for a command whose work is complete.
    pub fn limit(&self, time: Duration) {
        let since = self.since_ctrl_c().unwrap_or_default();
        self.allowed.store(to_ms(since.saturating_add(time)), Ordering::Relaxed);
    }

    /// Returns true after Ctrl-C.
    pub fn is_interrupted(&self) -> bool {
        self.since_ctrl_c().is_some()
    }

    /// Returns how long a command that is stopping may still wait for brokers and for the reader of its output. Without
    /// Ctrl-C this is `full`. After Ctrl-C this is `share` minus the time since Ctrl-C, but at most `full`.
    pub fn time_left(&self, full: Duration, share: Duration) -> Duration {
        match self.since_ctrl_c() {
            // The result is at least 1 ms, because callers treat zero specially.
            Some(time) => full.min(share.saturating_sub(time).max(Duration::from_millis(1))),
            None => full,
        }
    }

    /// Counts a poll after Ctrl-C.
    fn look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the time since Ctrl-C, counted in polls, or `None` before Ctrl-C.
    fn since_ctrl_c(&self) -> Option<Duration> {
        let looks = self.looks.load(Ordering::Relaxed);
        looks.checked_sub(1).map(|looks| LOOK_EVERY * looks)
    }

    /// Returns once the command has taken too long to end. After Ctrl-C, the limit is the time that [`Stop::allow`]
    /// sets. After another signal, the command has [`HEARD_WITHIN`] to notice the signal, and then [`DONE_WITHIN`] to
    /// end. A command with a receiver from [`Stop::receiver`] counts as having noticed it.
    async fn unnoticed(&self) {
        while let Some(time) = self.since_ctrl_c() {
            if time >= Duration::from_millis(self.allowed.load(Ordering::Relaxed)) {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
            self.look();
        }
        tokio::time::sleep(HEARD_WITHIN).await;
        if self.received.load(Ordering::Relaxed) || self.requested.receiver_count() > 0 {
            tokio::time::sleep(DONE_WITHIN).await;
        }
    }

    /// Returns a receiver whose value becomes true when the stop is requested. A lost reader of the output does not
    /// change this value, so the caller must check for that itself.
    pub fn receiver(&self) -> watch::Receiver<bool> {
        self.requested.subscribe()
    }
}

/// Hides the panics of tasks that poll a timer of a stopped runtime. Tokio does not wait for a task in
/// [`block_in_place`](tokio::task::block_in_place), so a task that was writing when its runtime stopped continues
/// afterwards.
pub fn hide_panics_of_a_stopped_runtime() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_of_stopped = panic.payload_as_str().is_some_and(|message| message.contains(RUNTIME_STOPPED));
        if !is_of_stopped {
            report(panic);
        }
    }));
}

fn to_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Poll;

    /// The task blocks, as a write does, until its runtime has stopped. Then it polls a timer of the stopped runtime.
    #[test]
    fn task_of_a_stopped_runtime_panics_without_a_report() {
        static REPORTS: AtomicU32 = AtomicU32::new(0);
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| match panic.payload_as_str() {
            Some(message) if message.contains(RUNTIME_STOPPED) => {
                REPORTS.fetch_add(1, Ordering::Relaxed);
            }
            _ => others(panic),
        }));
        let polled_after_a_stop = || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.expect("a runtime");
            let (begun, has_begun) = std::sync::mpsc::channel();
            let (end, has_ended) = std::sync::mpsc::channel();
            let (left, is_left) = std::sync::mpsc::channel::<()>();
            runtime.spawn(async move {
                let _left = left;
                tokio::task::block_in_place(|| {
                    begun.send(()).expect("it is waited for");
                    has_ended.recv().expect("it is sent");
                });
                let mut timer = std::pin::pin!(tokio::task::unconstrained(tokio::time::sleep(DONE_WITHIN)));
                while poll_fn(|cx| Poll::Ready(timer.as_mut().poll(cx).is_pending())).await {
                    std::thread::yield_now();
                }
            });
            has_begun.recv().expect("the task runs");
            let handle = runtime.handle().clone();
            runtime.shutdown_background();
            // A stopping runtime cancels new tasks before anything else, so a cancelled task shows that the stop has
            // begun.
            while !handle.spawn(std::future::pending::<()>()).is_finished() {
                std::thread::yield_now();
            }
            end.send(()).expect("it is waited for");
            is_left.recv().expect_err("the task drops it");
        };
        polled_after_a_stop();
        assert_eq!(REPORTS.load(Ordering::Relaxed), 1, "tokio panics");
        hide_panics_of_a_stopped_runtime();
        polled_after_a_stop();
        assert_eq!(REPORTS.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn completed_work_ends_the_time_that_was_allowed_for_it() {
        let (work, rest) = (Duration::from_secs(10), Duration::from_millis(400));
        let stop = Stop::new();
        let allowed = || Duration::from_millis(stop.allowed.load(Ordering::Relaxed));
        stop.allow(work);
        assert_eq!((allowed(), stop.is_interrupted()), (work, false));
        stop.limit(rest);
        assert_eq!(allowed(), rest);
        stop.allow(work);
        (0..101).for_each(|_| stop.look());
        stop.limit(rest);
        assert_eq!((allowed(), stop.is_interrupted()), (100 * LOOK_EVERY + rest, true));
    }

    #[test]
    fn ctrl_c_leaves_only_a_share_of_the_time() {
        let (full, share) = (Duration::from_secs(10), Duration::from_millis(300));
        let stop = Stop::new();
        stop.request();
        assert_eq!(stop.time_left(full, share), full, "SIGTERM leaves all of it");
        stop.look();
        assert_eq!(stop.time_left(full, share), share);
        stop.look();
        assert_eq!(stop.time_left(full, share), share - LOOK_EVERY);
        assert_eq!(stop.time_left(full, Duration::ZERO), Duration::from_millis(1));
    }
}
