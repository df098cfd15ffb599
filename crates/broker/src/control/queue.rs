//! The way of a command to the owner of the database: a queue, and who serves it.
//!
//! Whoever asks for a change of groups serves the queue itself if nobody does at that moment, together with whatever
//! waits by then: the hop to a thread and back costs several times what such a change does. All other changes wait for
//! the disk, and so does the control thread, which also serves what nobody else did.
//!
//! Invariants: commands are taken out in the order in which they came, under the owner's lock. After each unlock of the
//! owner the queue is looked at again, so that a command whose asker found the lock taken is served by who had it. A place
//! is given back when its command is taken out, whoever awaits the outcome, and one connection never has all of them.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::error::is_full;
use super::owner::{Asked, Owner};

/// Commands waiting; past it, callers wait to enter.
const WAITING_MAX: usize = 1024;
/// Of these, how many may be one connection's: what one transaction takes.
pub(super) const OF_ONE_MAX: usize = BATCH_MAX;
/// Commands gathered into one transaction.
const BATCH_MAX: usize = 256;
/// Transactions that one who asks does for others; then the thread goes on.
const ROUNDS_MAX: usize = 4;

pub(super) struct Queue {
    /// Held while commands are served.
    owner: Mutex<Owner>,
    places: Semaphore,
    waiting: Mutex<Waiting>,
    /// The thread has something to do.
    wake: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// With the connection's own place.
    commands: VecDeque<(Asked, Option<OwnedSemaphorePermit>)>,
    is_awake: bool,
    /// No command comes any more.
    is_closed: bool,
    /// The thread is gone, and what it would serve is refused.
    is_stopped: bool,
}

/// What is taken out of the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Take {
    /// The first command and those after it, of groups.
    OfGroups,
    All,
}

impl Queue {
    pub fn new(owner: Owner) -> Self {
        Self {
            owner: Mutex::new(owner),
            places: Semaphore::new(WAITING_MAX),
            waiting: Mutex::default(),
            wake: Condvar::new(),
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.waiting.lock().is_stopped
    }

    /// Does something while no command is served.
    pub fn with_owner<T>(&self, work: impl FnOnce(&mut Owner) -> T) -> T {
        let done = work(&mut self.owner.lock());
        // Whoever found the lock taken has left.
        self.wake_thread();
        done
    }

    /// Waits for a place.
    pub async fn enter(&self) -> SemaphorePermit<'_> {
        self.places.acquire().await.expect("never closed")
    }

    /// Takes the place, and `own` of those of a connection.
    pub fn push(&self, place: SemaphorePermit<'_>, own: Option<OwnedSemaphorePermit>, asked: Asked) {
        place.forget();
        let of_groups = asked.command.is_of_groups();
        let mut waiting = self.waiting.lock();
        if waiting.is_stopped {
            // The caller learns it from the answer that is dropped.
            self.places.add_permits(1);
            return;
        }
        waiting.commands.push_back((asked, own));
        drop(waiting);
        if !of_groups {
            self.wake_thread();
        }
    }

    pub fn wake_thread(&self) {
        self.waiting.lock().is_awake = true;
        self.wake.notify_one();
    }

    /// Serves what waits, unless somebody does, who will then serve that, too.
    pub fn serve_of_groups(&self) {
        // The command is in the queue before the lock is looked at.
        fence(Ordering::SeqCst);
        for _ in 0..ROUNDS_MAX {
            let Some(mut owner) = self.owner.try_lock() else { return };
            let served = self.serve(&mut owner, Take::OfGroups);
            let checkpoint = owner.store.is_checkpoint_due();
            drop(owner);
            if checkpoint {
                self.wake_thread();
            }
            fence(Ordering::SeqCst);
            if !served && !self.waiting.lock().begins_with(Take::OfGroups) {
                return;
            }
        }
        self.wake_thread();
    }

    /// The control thread: until [`Queue::close`], and then what is left.
    pub fn run(&self) {
        let _stopped = Stopped(self);
        loop {
            let is_closed = {
                let mut waiting = self.waiting.lock();
                while !waiting.is_awake && !waiting.is_closed {
                    self.wake.wait(&mut waiting);
                }
                waiting.is_awake = false;
                waiting.is_closed
            };
            self.serve_all();
            if is_closed {
                return;
            }
            self.checkpoint();
        }
    }

    /// The thread ends once it has served what waits.
    pub fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.wake.notify_one();
    }

    /// Whatever waits, until nothing does.
    fn serve_all(&self) {
        loop {
            let served = self.serve(&mut self.owner.lock(), Take::All);
            fence(Ordering::SeqCst);
            if !served && !self.waiting.lock().begins_with(Take::All) {
                return;
            }
        }
    }

    /// Most of it while commands are served; the rest, which is what they wrote meanwhile, under the lock.
    fn checkpoint(&self) {
        let due = self.owner.lock().store.begin_checkpoint();
        // Whoever found the lock taken has left.
        self.serve_all();
        let Some(checkpoint) = due else { return };
        let most = checkpoint.run();
        let rest = self.owner.lock().store.end_checkpoint(checkpoint);
        self.serve_all();
        if let Err(error) = most.and(rest)
            && !is_full(&error)
        {
            tracing::warn!(%error, "control.db-wal could not be moved to control.db; it grows until that succeeds");
        }
    }

    /// Serves one batch; whether there was one.
    fn serve(&self, owner: &mut Owner, take: Take) -> bool {
        let mut batch = Vec::new();
        let mut waiting = self.waiting.lock();
        while batch.len() < BATCH_MAX && waiting.begins_with(take) {
            batch.extend(waiting.commands.pop_front().map(|(asked, _own)| asked));
        }
        drop(waiting);
        if batch.is_empty() {
            return false;
        }
        self.places.add_permits(batch.len());
        owner.serve(batch);
        true
    }
}

impl Waiting {
    fn begins_with(&self, take: Take) -> bool {
        self.commands.front().is_some_and(|(first, _)| take == Take::All || first.command.is_of_groups())
    }
}

/// However the thread ends, nobody waits for it afterwards.
struct Stopped<'a>(&'a Queue);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        waiting.is_stopped = true;
        self.0.places.add_permits(waiting.commands.len());
        waiting.commands.clear();
    }
}
