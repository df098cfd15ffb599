//! Index without its thread: the test carries out the requests. A request therefore takes no virtual time, and a
//! schedule runs the same each time.
//!
//! Invariant: requests are carried out one after the other, in their order, as by the thread.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;

use super::owner::{IndexOwner, IndexRequest, Progress, RETRY, RUNS_CLEARED, carry_out};
use super::{CommitAnswer, Index, IndexStore, UploadedObject};
use fullbore_db::{CommitError, StoreError};

thread_local! {
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if this thread has created a [`ManualIndex`]. The finder of that index uses no other thread either.
pub fn is_here() -> bool {
    IS_HERE.get()
}

/// Sender of the outcome of a commit.
pub type CommitAnswerer = oneshot::Sender<Result<CommitAnswer, CommitError>>;

/// Next work of the index.
pub enum Turn {
    /// Commit, with the sender of its outcome.
    Commit(Vec<UploadedObject>, CommitAnswerer),
    /// Any other request.
    Other(OtherTurn),
    /// No request: time for the GC.
    Idle,
}

/// Request that is no commit.
pub struct OtherTurn(IndexRequest);

impl OtherTurn {
    /// Returns the number of partitions that a read covers; 0 for any other request.
    pub fn partitions(&self) -> usize {
        match &self.0 {
            IndexRequest::Refresh(partitions, ..) => partitions.len(),
            _ => 0,
        }
    }

    /// Refuses a read, as a back end that is down does.
    pub fn refuse_refresh(self) {
        if let IndexRequest::Refresh(_, answer, _) = self.0 {
            drop(answer.send(Err(StoreError::Away("by hand".into()))));
        }
    }
}

/// Index, with the requests to it.
pub struct ManualIndex<S> {
    index: Index<S>,
    received: Receiver<IndexRequest>,
    rung: Arc<Notify>,
    stopping: AtomicBool,
    changes: Arc<watch::Sender<usize>>,
    is_tidy: bool,
}

impl<S: IndexStore> ManualIndex<S> {
    /// Creates the index, and the handle that sends requests to it.
    pub fn new(index: Index<S>) -> (IndexOwner, ManualIndex<S>) {
        IS_HERE.set(true);
        let (requests, received) = channel();
        let changes = Arc::new(watch::Sender::new(0));
        let owner = IndexOwner::asking(requests, Arc::clone(&changes));
        let rung = Arc::clone(&owner.rung);
        let stopping = AtomicBool::new(false);
        (owner, ManualIndex { index, received, rung, stopping, changes, is_tidy: false })
    }

    /// Waits for the next request.
    pub async fn turn(&mut self) -> Turn {
        let wait = if self.is_tidy { RETRY } else { Duration::ZERO };
        loop {
            match self.received.try_recv() {
                Ok(IndexRequest::Commit(objects, answer)) => return Turn::Commit(objects, answer),
                Ok(other) => return Turn::Other(OtherTurn(other)),
                Err(_) if timeout(wait, self.rung.notified()).await.is_ok() => {}
                Err(_) => return Turn::Idle,
            }
        }
    }

    /// Commits. The caller sends the outcome.
    pub fn commit(&mut self, objects: &[UploadedObject], now_ms: i64) -> Result<CommitAnswer, CommitError> {
        self.is_tidy = false;
        self.index.commit(objects, now_ms)
    }

    /// Carries out another request, and answers it.
    pub fn carry_out(&mut self, OtherTurn(request): OtherTurn, now_ms: i64) {
        self.is_tidy = false;
        carry_out(&mut self.index, request, now_ms, &Progress { stopping: &self.stopping, changes: &self.changes });
    }

    /// Calls `work` on the back end directly, past the index.
    pub fn with_store<T>(&mut self, work: impl FnOnce(&mut S) -> T) -> T {
        work(&mut self.index.store)
    }

    /// Returns three numbers of partitions: those with state in memory, those with a window of their own, and those
    /// whose producer rows the GC counts.
    pub fn kept(&self) -> [usize; 3] {
        [self.index.known.len(), self.index.windows.len(), self.index.trims.len()]
    }

    /// Runs a piece of the GC.
    pub fn tidy(&mut self, now_ms: i64) {
        self.is_tidy = !self.index.tidy(RUNS_CLEARED, now_ms).unwrap_or(false);
    }
}
