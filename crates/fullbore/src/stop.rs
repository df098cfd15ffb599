//! Early end of a command: a signal came, or the reader of its output is gone.
//!
//! Invariant: the first signal only requests the end, and the command ends by itself, prints its results and cleans up.
//! A second signal ends the program. So does the first one if the command does not end, since it then waits for a
//! response. Ctrl-C (SIGINT) comes from a user at a terminal, who waits for half a second at most. SIGTERM leaves time
//! for the last records and commits.

use crate::failure::{Failure, INTERRUPTED};
use crate::output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Longest time of a command to end after Ctrl-C, unless it has allowed itself more; counted in polls.
const INTERRUPTED_WITHIN: Duration = Duration::from_millis(400);

/// Longest time of a command to notice SIGTERM.
const HEARD_WITHIN: Duration = Duration::from_secs(3);

/// Longest time of a command to end once it has noticed SIGTERM: longer than any command takes for its last records,
/// its commit and its leave.
const DONE_WITHIN: Duration = Duration::from_secs(40);

/// Time between two polls of an interrupted command. Its time is counted in polls: if the machine is slow to run the
/// polling thread, it is slow to run the command, too.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Time within which a second signal counts as the first one: `timeout` of coreutils sends its signal to the command
/// and to the command's group.
const REPEATED_WITHIN: Duration = Duration::from_millis(250);

/// Request to stop, and its state; clones share both.
#[derive(Clone)]
pub struct Stop {
    asked: Arc<watch::Sender<bool>>,
    heard: Arc<AtomicBool>,
    /// Number of polls since Ctrl-C; 0 before it.
    looks: Arc<AtomicU32>,
    /// Milliseconds that the command may take after Ctrl-C.
    allowed: Arc<AtomicU64>,
}

impl Stop {
    /// Makes a request that is not made yet.
    pub fn new() -> Self {
        Stop {
            asked: Arc::new(watch::Sender::new(false)),
            heard: Arc::default(),
            looks: Arc::default(),
            allowed: Arc::new(AtomicU64::new(to_ms(INTERRUPTED_WITHIN))),
        }
    }

    /// Makes a stop that SIGINT and SIGTERM request. At a second signal, or if the command does not notice the first,
    /// `last_words` runs and the program ends.
    pub fn at_signal(last_words: Box<dyn FnOnce() + Send>) -> Result<Self, Failure> {
        let stop = Stop::new();
        let asked = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Set before this returns, so that no signal kills work that has begun.
        let (mut interrupt, mut terminate) = {
            let _runtime = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        let watch = move || {
            let unheard = runtime.block_on(async {
                if either(&mut interrupt, &mut terminate).await {
                    asked.look();
                }
                asked.ask();
                let repeated_until = Instant::now() + REPEATED_WITHIN;
                let another = async {
                    loop {
                        either(&mut interrupt, &mut terminate).await;
                        if Instant::now() >= repeated_until {
                            return;
                        }
                    }
                };
                tokio::select! {
                    () = another => false,
                    () = asked.unheard() => true,
                }
            });
            last_words();
            if unheard {
                output::failure("interrupted while waiting for an answer");
            }
            std::process::exit(i32::from(INTERRUPTED));
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(watch)?;
        Ok(stop)
    }

    /// Requests the stop.
    pub fn ask(&self) {
        self.asked.send_replace(true);
    }

    /// Returns true if the command must stop: a signal came, or standard output has no reader.
    pub fn is_asked(&self) -> bool {
        self.is_signalled() || output::is_lost()
    }

    /// Returns true if a signal came, for a command that also works without a reader of its output.
    pub fn is_signalled(&self) -> bool {
        let is_asked = *self.asked.borrow();
        if is_asked {
            self.heard.store(true, Ordering::Relaxed);
        }
        is_asked
    }

    /// Lets the command take `time` after Ctrl-C, if that is more than it may already: for work that must not stay half
    /// done.
    pub fn allow(&self, time: Duration) {
        self.allowed.fetch_max(to_ms(time), Ordering::Relaxed);
    }

    /// Returns how long an ending command may still wait for others: `full`, or after Ctrl-C the rest of `share` since
    /// then.
    pub fn time_left(&self, full: Duration, share: Duration) -> Duration {
        match self.since_ctrl_c() {
            // At least 1 ms: callers take a zero for another meaning.
            Some(time) => full.min(share.saturating_sub(time).max(Duration::from_millis(1))),
            None => full,
        }
    }

    /// Counts a poll of the interrupted command.
    fn look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the time since Ctrl-C, counted in polls.
    fn since_ctrl_c(&self) -> Option<Duration> {
        let looks = self.looks.load(Ordering::Relaxed);
        looks.checked_sub(1).map(|looks| LOOK_EVERY * looks)
    }

    /// Resolves when the command has not noticed the signal in time, or has not ended in time after that. A command
    /// with a receiver has noticed it.
    async fn unheard(&self) {
        while let Some(time) = self.since_ctrl_c() {
            if time >= Duration::from_millis(self.allowed.load(Ordering::Relaxed)) {
                return;
            }
            tokio::time::sleep(LOOK_EVERY).await;
            self.look();
        }
        tokio::time::sleep(HEARD_WITHIN).await;
        if self.heard.load(Ordering::Relaxed) || self.asked.receiver_count() > 0 {
            tokio::time::sleep(DONE_WITHIN).await;
        }
    }

    /// Returns a receiver that turns true with the request. The caller must check for lost output itself.
    pub fn receiver(&self) -> watch::Receiver<bool> {
        self.asked.subscribe()
    }
}

/// Waits for either signal. Returns true if it is the first of them.
async fn either(one: &mut Signal, other: &mut Signal) -> bool {
    tokio::select! {
        _ = one.recv() => true,
        _ = other.recv() => false,
    }
}

fn to_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_c_leaves_only_a_share_of_the_time() {
        let (full, share) = (Duration::from_secs(10), Duration::from_millis(300));
        let stop = Stop::new();
        stop.ask();
        assert_eq!(stop.time_left(full, share), full, "SIGTERM leaves all of it");
        stop.look();
        assert_eq!(stop.time_left(full, share), share);
        stop.look();
        assert_eq!(stop.time_left(full, share), share - LOOK_EVERY);
        assert_eq!(stop.time_left(full, Duration::ZERO), Duration::from_millis(1));
    }
}
