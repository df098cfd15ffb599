//! The bounded queue of commands, and the loop in which the writer thread serves them.
//!
//! Invariants: commands are served in the order of their arrival. A queued command is served even if its caller no
//! longer waits, and even while the broker stops.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc as blocking;
use std::time::Duration;

use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, WeakSender, channel};

use super::store::Store;
use super::writer::{MetadataWriter, Publisher, QueuedCommand};

/// Maximum number of commands in the queue. Callers wait while the queue is full.
pub const WAITING_MAX: usize = 1024;
/// Maximum number of commands in one transaction.
pub const BATCH_MAX: usize = 256;
/// How often [`Queue::act`] retries while the queue is full.
const PLACE_EVERY: Duration = Duration::from_millis(1);

/// The sending end of the queue, which callers use.
#[derive(Clone)]
pub struct Queue {
    sender: Sender<Waiting>,
    wanted: WantedVersion,
}

/// A sending end that does not keep the queue open.
pub struct WeakQueue {
    sender: WeakSender<Waiting>,
    wanted: WantedVersion,
}

/// The version up to which callers have requested that the writer reads other brokers' commits. `u64::MAX` means all
/// commits, and 0 means no request. The writer sets the value to 0 when it begins to read.
type WantedVersion = Arc<AtomicU64>;

/// An entry of the queue.
enum Waiting {
    Command(Box<QueuedCommand>),
    /// A closure that the writer thread runs between two batches of commands.
    Act(Act),
    /// A request to read other brokers' commits.
    CatchUp,
}

type Act = Box<dyn FnOnce(&mut Publisher) + Send>;

/// The receiving end of the queue, which the writer thread owns.
pub struct CommandReceiver {
    waiting: Receiver<Waiting>,
    wanted: WantedVersion,
}

/// Creates the queue and returns both ends.
pub fn queue() -> (Queue, CommandReceiver) {
    let (sender, waiting) = channel(WAITING_MAX);
    let wanted = WantedVersion::default();
    (Queue { sender, wanted: Arc::clone(&wanted) }, CommandReceiver { waiting, wanted })
}

impl Queue {
    /// Adds a command to the queue, and waits while the queue is full. Returns the command to the caller if the writer
    /// thread has ended.
    pub async fn enter(&self, queued: QueuedCommand) -> Result<(), QueuedCommand> {
        match self.sender.reserve().await {
            Ok(place) => {
                place.send(Waiting::Command(Box::new(queued)));
                Ok(())
            }
            Err(_) => Err(queued),
        }
    }

    /// Runs `act` on the writer thread between two batches of commands, and blocks until `act` has returned. Also
    /// returns if the writer thread has ended.
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

    /// Requests a read of other brokers' commits, and returns at once.
    pub fn catch_up(&self) {
        catch_up_to(&self.sender, &self.wanted, u64::MAX);
    }

    /// Returns a sending end that does not keep the queue open.
    pub fn downgrade(&self) -> WeakQueue {
        WeakQueue { sender: self.sender.downgrade(), wanted: Arc::clone(&self.wanted) }
    }

    /// Returns the number of free slots in the queue.
    #[cfg(test)]
    pub fn places(&self) -> usize {
        self.sender.capacity()
    }

    /// Returns true once the writer thread has ended.
    pub fn is_stopped(&self) -> bool {
        self.sender.is_closed()
    }
}

impl WeakQueue {
    /// Requests a read of other brokers' commits up to `version`, and returns at once. The writer skips the read if it
    /// already has that version.
    pub fn catch_up_to(&self, version: u64) {
        if let Some(sender) = self.sender.upgrade() {
            catch_up_to(&sender, &self.wanted, version);
        }
    }
}

/// Requests a read of other brokers' commits up to `version`. Requests that arrive before the read begins are combined
/// into one.
fn catch_up_to(sender: &Sender<Waiting>, wanted: &WantedVersion, version: u64) {
    let before = wanted.fetch_max(version, Ordering::AcqRel);
    // This request can be dropped if the queue is full, because the writer reads all newer commits anyway before it
    // decides the queued commands.
    if before == 0 && sender.try_send(Waiting::CatchUp).is_err() {
        wanted.store(0, Ordering::Release);
    }
}

impl CommandReceiver {
    /// Serves commands until all senders are dropped and the queue is empty. If the writer panics, refuses the current
    /// and all later commands, because the writer's image may differ from the store.
    pub fn run(self, owner: MetadataWriter<impl Store>) {
        if catch_unwind(AssertUnwindSafe(|| self.serve(owner))).is_err() {
            tracing::error!(
                "cannot change the metadata, since the control thread has panicked: this broker refuses all changes; \
                 restart the broker, and report the log lines before this one"
            );
        }
    }

    fn serve(mut self, mut owner: MetadataWriter<impl Store>) {
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
                    Waiting::Command(queued) => batch.push(*queued),
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
