//! Whether a command should end early: a signal came, or nobody reads what it prints.
//!
//! Invariant: the first signal only asks; the command ends by itself, prints what it has and cleans up. The second ends
//! the program, and so does the first where the command does not end: then it waits for somebody who does not answer.
//! Ctrl-C (SIGINT) is somebody at a terminal, who waits for half a second at most; SIGTERM leaves time for the last
//! records and commits.

use crate::failure::{Failure, INTERRUPTED};
use crate::output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How long a command may take to end after Ctrl-C, unless it has allowed itself more; counted in looks.
const INTERRUPTED_WITHIN: Duration = Duration::from_millis(400);

/// How long a command may take to look whether it should end after SIGTERM.
const HEARD_WITHIN: Duration = Duration::from_secs(3);

/// How long it may then take to finish: longer than any command gives to its last records, its commit and its goodbye.
const DONE_WITHIN: Duration = Duration::from_secs(40);

/// Between two looks at a command that was interrupted. Its time is counted in looks: a machine that is slow to run the
/// one that looks is slow to run the command, too.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Time within which a signal that comes again is the same one: `timeout` of coreutils sends its signal to the command,
/// and to the command's group.
const REPEATED_WITHIN: Duration = Duration::from_millis(250);

/// Shared by whoever asks and whoever is asked; clones are the same.
#[derive(Clone)]
pub struct Stop {
    asked: Arc<watch::Sender<bool>>,
    heard: Arc<AtomicBool>,
    /// Looks since Ctrl-C; 0 before it.
    looks: Arc<AtomicU32>,
    /// Milliseconds that the command may take after Ctrl-C.
    allowed: Arc<AtomicU64>,
}

impl Stop {
    /// Asked for by nobody.
    pub fn new() -> Self {
        Stop {
            asked: Arc::new(watch::Sender::new(false)),
            heard: Arc::default(),
            looks: Arc::default(),
            allowed: Arc::new(AtomicU64::new(to_ms(INTERRUPTED_WITHIN))),
        }
    }

    /// Asked for by SIGINT and SIGTERM. At a second one, or if nobody has heard the first, `last_words` runs and the
    /// program ends.
    pub fn at_signal(last_words: Box<dyn FnOnce() + Send>) -> Result<Self, Failure> {
        let stop = Stop::new();
        let asked = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Before this returns, so that no signal kills what has begun.
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

    /// Asks.
    pub fn ask(&self) {
        self.asked.send_replace(true);
    }

    /// Returns true if the command is to stop: a signal came, or standard output has no reader.
    pub fn is_asked(&self) -> bool {
        self.is_signalled() || output::is_lost()
    }

    /// Returns true if a signal came, for a command that works without a reader of its output, too.
    pub fn is_signalled(&self) -> bool {
        let is_asked = *self.asked.borrow();
        if is_asked {
            self.heard.store(true, Ordering::Relaxed);
        }
        is_asked
    }

    /// Lets the command take `time` after Ctrl-C, if that is more than it may already: for what must not stay half
    /// done.
    pub fn allow(&self, time: Duration) {
        self.allowed.fetch_max(to_ms(time), Ordering::Relaxed);
    }

    /// Returns how long a command that ends may still wait for others: `full`, or after Ctrl-C until `share` of the
    /// time since then is over.
    pub fn time_left(&self, full: Duration, share: Duration) -> Duration {
        match self.since_ctrl_c() {
            // A wait of no time at all means something else to those who wait.
            Some(time) => full.min(share.saturating_sub(time).max(Duration::from_millis(1))),
            None => full,
        }
    }

    /// Counts a look at the command that was interrupted.
    fn look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the time since Ctrl-C, counted in looks.
    fn since_ctrl_c(&self) -> Option<Duration> {
        let looks = self.looks.load(Ordering::Relaxed);
        looks.checked_sub(1).map(|looks| LOOK_EVERY * looks)
    }

    /// Resolves when nobody has heard for too long, or who has is not done; who has a receiver has heard.
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

    /// Turns true when somebody asks; lost output must be noticed and asked for.
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
    fn ctrl_c_comes_only_a_share_of_its_time_is_left() {
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
