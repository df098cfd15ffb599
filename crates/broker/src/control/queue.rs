//! The way of a command to the owner of the database: a bounded queue, and the thread that takes what waits out of it.
//!
//! Invariants: commands are taken out in the order in which they came. What is in the queue is served, also while the
//! broker stops.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc::{Permit, Receiver, Sender, channel};

use super::owner::{Asked, Owner};

/// Commands waiting; past it, callers wait to enter.
const WAITING_MAX: usize = 1024;
/// Commands gathered into one transaction.
const BATCH_MAX: usize = 256;

/// Where callers ask.
#[derive(Clone)]
pub(super) struct Queue(Sender<Asked>);

/// What the thread serves.
pub(super) struct Served {
    commands: Receiver<Asked>,
    owner: Arc<Mutex<Owner>>,
}

/// A queue, and what serves it.
pub(super) fn queue(owner: Arc<Mutex<Owner>>) -> (Queue, Served) {
    let (sender, commands) = channel(WAITING_MAX);
    (Queue(sender), Served { commands, owner })
}

impl Queue {
    /// Waits for a place; none when nobody serves the queue any more.
    pub async fn enter(&self) -> Option<Permit<'_, Asked>> {
        self.0.reserve().await.ok()
    }

    /// Whether nobody serves it any more.
    pub fn is_stopped(&self) -> bool {
        self.0.is_closed()
    }
}

impl Served {
    /// Until nobody can ask any more, and then what is left.
    pub fn run(mut self) {
        while let Some(first) = self.commands.blocking_recv() {
            let mut batch = vec![first];
            while batch.len() < BATCH_MAX
                && let Ok(next) = self.commands.try_recv()
            {
                batch.push(next);
            }
            self.owner.lock().serve(batch);
        }
    }
}
