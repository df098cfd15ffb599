//! Whether a command should end early: a signal came, or nobody reads what it prints.
//!
//! Invariant: the first signal only asks; the command ends by itself, prints what it has and cleans up. The second ends
//! the program.

use crate::failure::{Failure, INTERRUPTED};
use crate::output;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Shared by whoever asks and whoever is asked; clones are the same.
#[derive(Clone)]
pub struct Stop(Arc<watch::Sender<bool>>);

impl Stop {
    /// Asked for by nobody.
    pub fn new() -> Self {
        Stop(Arc::new(watch::Sender::new(false)))
    }

    /// Asked for by SIGINT and SIGTERM; at a second one `last_words` runs and the program ends.
    pub fn at_signal(last_words: impl FnOnce() + Send + 'static) -> Result<Self, Failure> {
        let stop = Stop::new();
        let asked = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Before this returns, so that no signal kills what has begun.
        let (mut interrupt, mut terminate) = {
            let _runtime = runtime.enter();
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
        };
        let watch = move || {
            for second in [false, true] {
                runtime.block_on(async {
                    tokio::select! {
                        _ = interrupt.recv() => {}
                        _ = terminate.recv() => {}
                    }
                });
                if second {
                    break;
                }
                asked.ask();
            }
            last_words();
            std::process::exit(i32::from(INTERRUPTED));
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(watch)?;
        Ok(stop)
    }

    /// Asks.
    pub fn ask(&self) {
        self.0.send_replace(true);
    }

    /// Whether to stop.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow() || output::is_lost()
    }

    /// Turns true when somebody asks; lost output must be noticed and asked for.
    pub fn receiver(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}
