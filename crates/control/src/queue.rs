//! The way of a command to the owner: a bounded queue, and the thread that takes what waits out of it.
//!
//! Invariants: commands are taken out in the order in which they came. What is in the queue is served, whether or not
//! who asked is still there, also while the broker stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as blocking;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, WeakSender, channel};

use super::store::Store;
use super::writer::{Asked, MetadataWriter, Publisher};

/// Commands waiting; past it, callers wait to enter.
pub const WAITING_MAX: usize = 1024;
/// Commands gathered into one transaction.
pub const BATCH_MAX: usize = 256;
/// How often who cannot wait otherwise looks for a place.
const PLACE_EVERY: Duration = Duration::from_millis(1);

/// Sending end, for callers.
#[derive(Clone)]
pub struct Queue {
    sender: Sender<Waiting>,
    wanted: WantedVersion,
}

/// A queue that others keep open.
pub struct WeakQueue {
    sender: WeakSender<Waiting>,
    wanted: WantedVersion,
}

/// The newest version that others are known to have committed, until the writer looks for it: `u64::MAX` for any, 0 for
/// none.
type WantedVersion = Arc<AtomicU64>;

/// Entry of the queue.
enum Waiting {
    Command(Box<Asked>),
    /// Something to be done between two batches.
    Act(Act),
    /// Others may have committed something.
    CatchUp,
}

type Act = Box<dyn FnOnce(&mut Publisher) + Send>;

/// Receiving end, for the writer's thread.
pub struct CommandReceiver {
    waiting: Receiver<Waiting>,
    wanted: WantedVersion,
}

/// A queue, and what serves it.
pub fn queue() -> (Queue, CommandReceiver) {
    let (sender, waiting) = channel(WAITING_MAX);
    let wanted = WantedVersion::default();
    (Queue { sender, wanted: Arc::clone(&wanted) }, CommandReceiver { waiting, wanted })
}

impl Queue {
    /// Waits for a place. Gives the command back where nobody serves the queue any more.
    pub async fn enter(&self, asked: Asked) -> Result<(), Asked> {
        match self.sender.reserve().await {
            Ok(place) => {
                place.send(Waiting::Command(Box::new(asked)));
                Ok(())
            }
            Err(_) => Err(asked),
        }
    }

    /// Runs `act` on the writer's thread between two batches. Blocks until it returns, or the thread has ended.
    pub fn act(&self, act: impl FnOnce(&mut Publisher) + Send + 'static) {
        let (done, is_done) = blocking::sync_channel(1);
        let act = move |publisher: &mut Publisher| {
            act(publisher);
            let _ = done.send(());
        };
        let mut waiting = Waiting::Act(Box::new(act));
        while let Err(TrySendError::Full(back)) = self.sender.try_send(waiting) {
            waiting = back;
            std::thread::sleep(PLACE_EVERY);
        }
        let _ = is_done.recv();
    }

    /// Requests a read of commits of other brokers, without waiting. In a full queue the waiting commands have the same
    /// effect.
    pub fn catch_up(&self) {
        catch_up_to(&self.sender, &self.wanted, u64::MAX);
    }

    /// Returns a handle that does not keep the queue open.
    pub fn downgrade(&self) -> WeakQueue {
        WeakQueue { sender: self.sender.downgrade(), wanted: Arc::clone(&self.wanted) }
    }

    /// How many more commands may wait.
    #[cfg(test)]
    pub fn places(&self) -> usize {
        self.sender.capacity()
    }

    /// Returns true once the writer's thread has ended.
    pub fn is_stopped(&self) -> bool {
        self.sender.is_closed()
    }
}

impl WeakQueue {
    /// Requests a read of commits of other brokers, unless the writer has this version by then. Does not wait.
    pub fn catch_up_to(&self, version: u64) {
        if let Some(sender) = self.sender.upgrade() {
            catch_up_to(&sender, &self.wanted, version);
        }
    }
}

/// Requests one read for all callers that come before it.
fn catch_up_to(sender: &Sender<Waiting>, wanted: &WantedVersion, version: u64) {
    let before = wanted.fetch_max(version, Ordering::AcqRel);
    if before == 0 && sender.try_send(Waiting::CatchUp).is_err() {
        wanted.store(0, Ordering::Release);
    }
}

impl CommandReceiver {
    /// Until nobody can ask any more, and then what is left.
    pub fn run(mut self, mut owner: MetadataWriter<impl Store>) {
        loop {
            let mut next = match owner.is_unfinished() {
                true => self.waiting.try_recv().ok(),
                false => match self.waiting.blocking_recv() {
                    None => return,
                    first => first,
                },
            };
            let mut batch = Vec::new();
            let mut other = None;
            while let Some(waiting) = next {
                match waiting {
                    Waiting::Command(asked) => batch.push(*asked),
                    waiting => {
                        other = Some(waiting);
                        break;
                    }
                }
                next = if batch.len() < BATCH_MAX { self.waiting.try_recv().ok() } else { None };
            }
            owner.serve(batch);
            match other {
                Some(Waiting::Act(act)) => act(owner.publisher()),
                Some(Waiting::CatchUp) => owner.catch_up_to(self.wanted.swap(0, Ordering::AcqRel)),
                Some(Waiting::Command(_)) | None => {}
            }
        }
    }
}
