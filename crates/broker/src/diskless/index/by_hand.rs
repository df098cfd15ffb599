//! The index without its thread: what is asked of it is carried out when a test wants, so that no time passes meanwhile
//! and a schedule is the same each time.
//!
//! Invariant: what is asked is carried out one after the other, in the order in which it was asked, as by the thread.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;

use super::owner::{Asked, IndexOwner, Progress, RETRY, RUNS_CLEARED, carry_out};
use super::{CommitAnswer, Index, IndexStore, UploadedObject};
use fullbore_db::{CommitError, StoreError};

thread_local! {
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if an index of this thread was made to be carried out by hand: then its finder waits for no other
/// thread, either.
pub fn is_here() -> bool {
    IS_HERE.get()
}

/// Who is told what became of a commit.
pub type CommitAnswerer = oneshot::Sender<Result<CommitAnswer, CommitError>>;

/// What is to be done next.
pub enum Turn {
    /// A commit, with who is told.
    Commit(Vec<UploadedObject>, CommitAnswerer),
    /// Something else.
    Other(OtherTurn),
    /// Nothing was asked for: time to tidy.
    Idle,
}

/// Anything but a commit.
pub struct OtherTurn(Asked);

impl OtherTurn {
    /// Partitions that a look is about.
    pub fn partitions(&self) -> usize {
        match &self.0 {
            Asked::Look(partitions, ..) => partitions.len(),
            _ => 0,
        }
    }

    /// Refuses a look, as a back end does that is away.
    pub fn refuse_look(self) {
        if let Asked::Look(_, answer, _) = self.0 {
            drop(answer.send(Err(StoreError::Away("by hand".into()))));
        }
    }
}

/// The index, and what is asked of it.
pub struct IndexByHand<S> {
    index: Index<S>,
    asks: Receiver<Asked>,
    rung: Arc<Notify>,
    stopping: AtomicBool,
    changes: Arc<watch::Sender<usize>>,
    is_tidy: bool,
}

impl<S: IndexStore> IndexByHand<S> {
    /// Who asks, and what is asked.
    pub fn new(index: Index<S>) -> (IndexOwner, IndexByHand<S>) {
        IS_HERE.set(true);
        let (asked, asks) = channel();
        let changes = Arc::new(watch::Sender::new(0));
        let owner = IndexOwner::asking(asked, Arc::clone(&changes));
        let rung = Arc::clone(&owner.rung);
        let stopping = AtomicBool::new(false);
        (owner, IndexByHand { index, asks, rung, stopping, changes, is_tidy: false })
    }

    /// Waits for what is asked next.
    pub async fn turn(&mut self) -> Turn {
        let wait = if self.is_tidy { RETRY } else { Duration::ZERO };
        loop {
            match self.asks.try_recv() {
                Ok(Asked::Commit(objects, answer)) => return Turn::Commit(objects, answer),
                Ok(other) => return Turn::Other(OtherTurn(other)),
                Err(_) if timeout(wait, self.rung.notified()).await.is_ok() => {}
                Err(_) => return Turn::Idle,
            }
        }
    }

    /// Commits; it is for the caller to tell.
    pub fn commit(&mut self, objects: &[UploadedObject], now_ms: i64) -> Result<CommitAnswer, CommitError> {
        self.is_tidy = false;
        self.index.commit(objects, now_ms)
    }

    /// Carries out anything else, and tells.
    pub fn carry_out(&mut self, OtherTurn(asked): OtherTurn, now_ms: i64) {
        self.is_tidy = false;
        carry_out(&mut self.index, asked, now_ms, &Progress { stopping: &self.stopping, changes: &self.changes });
    }

    /// Does something to the back end behind the index's back.
    pub fn with_store<T>(&mut self, work: impl FnOnce(&mut S) -> T) -> T {
        work(&mut self.index.store)
    }

    /// Of how many partitions something is kept in memory: states, windows, and counts of rows.
    pub fn kept(&self) -> [usize; 3] {
        [self.index.known.len(), self.index.windows.len(), self.index.trims.len()]
    }

    /// Tidies a piece.
    pub fn tidy(&mut self, now_ms: i64) {
        self.is_tidy = !self.index.tidy(RUNS_CLEARED, now_ms).unwrap_or(false);
    }
}
