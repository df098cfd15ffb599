//! Whether a command should end early: a signal came, or nobody reads what it prints.
//!
//! Invariant: the first signal only asks; the command ends by itself, prints what it has and cleans up. The second ends
//! the program, and so does the first where nobody hears it or the end does not come: then the command waits for somebody who
//! does not answer.

use crate::failure::{Failure, INTERRUPTED};
use crate::output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How long a command may take to look whether it should end.
const HEARD_WITHIN: Duration = Duration::from_secs(3);

/// How long it may then take to finish: longer than any command gives to its last records, its commit and its goodbye.
const DONE_WITHIN: Duration = Duration::from_secs(40);

/// Shared by whoever asks and whoever is asked; clones are the same.
#[derive(Clone)]
pub struct Stop {
    asked: Arc<watch::Sender<bool>>,
    heard: Arc<AtomicBool>,
}

impl Stop {
    /// Asked for by nobody.
    pub fn new() -> Self {
        Stop { asked: Arc::new(watch::Sender::new(false)), heard: Arc::default() }
    }

    /// Asked for by SIGINT and SIGTERM. At a second one, or if nobody has heard the first, `last_words` runs and the program
    /// ends.
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
                either(&mut interrupt, &mut terminate).await;
                asked.ask();
                let second = either(&mut interrupt, &mut terminate);
                tokio::select! {
                    () = second => false,
                    () = asked.unheard() => true,
                }
            });
            last_words();
            if unheard {
                output::tell(output::failure("interrupted while waiting for an answer"));
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

    /// Whether to stop: a signal came, or nobody reads what is printed.
    pub fn is_asked(&self) -> bool {
        self.is_signalled() || output::is_lost()
    }

    /// Whether a signal came, for a command that has work to do also when nobody reads what it prints.
    pub fn is_signalled(&self) -> bool {
        let is_asked = *self.asked.borrow();
        if is_asked {
            self.heard.store(true, Ordering::Relaxed);
        }
        is_asked
    }

    /// Resolves when nobody has heard for too long, or who has is not done; who has a receiver has heard.
    async fn unheard(&self) {
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

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
