//! An index without a thread, for tests that answer its requests themselves. A request then takes no virtual time, and
//! a schedule runs the same way every time.
//!
//! Invariant: requests are carried out one at a time and in order, as by the index thread.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;

use super::owner::{IndexOwner, IndexRequest, Progress, RETRY, RUNS_CLEARED, carry_out};
use super::{CommitAnswer, Index, IndexStore, UploadedObject};
use crate::append_clock::AppendClock;
use fullbore_db::{CommitError, StoreError};

thread_local! {
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if the current thread has created a [`ManualIndex`]. The searches in its index then run on the current
/// thread too, instead of a separate one.
pub fn is_here() -> bool {
    IS_HERE.get()
}

/// Sends the outcome of a commit to the pipeline.
pub type CommitAnswerer = oneshot::Sender<Result<CommitAnswer, CommitError>>;

/// The next work of the index.
pub enum Turn {
    /// A commit, with the sender for its outcome.
    Commit(Vec<UploadedObject>, CommitAnswerer),
    /// A request that is not a commit.
    Other(OtherTurn),
    /// No request is waiting, so the GC may run.
    Idle,
}

/// A request that is not a commit.
pub struct OtherTurn(IndexRequest);

impl OtherTurn {
    /// Returns the number of partitions to refresh, or 0 if the request is not a refresh.
    pub fn partitions(&self) -> usize {
        match &self.0 {
            IndexRequest::Refresh(partitions, ..) => partitions.len(),
            _ => 0,
        }
    }

    /// Answers a refresh with an error, as if the database were down.
    pub fn refuse_refresh(self) {
        if let IndexRequest::Refresh(_, answer, _) = self.0 {
            drop(answer.send(Err(StoreError::Away("by hand".into()))));
        }
    }
}

/// The index together with the queue of requests to it.
pub struct ManualIndex<S> {
    index: Index<S>,
    received: Receiver<IndexRequest>,
    rung: Arc<Notify>,
    stopping: AtomicBool,
    changes: Arc<watch::Sender<usize>>,
    clock: Arc<AppendClock>,
    is_tidy: bool,
}

impl<S: IndexStore> ManualIndex<S> {
    /// Creates the index, and the handle through which the broker sends requests to it.
    pub fn new(index: Index<S>) -> (IndexOwner, ManualIndex<S>) {
        IS_HERE.set(true);
        let (requests, received) = channel();
        let changes = Arc::new(watch::Sender::new(0));
        let clock = index.store.append_clock();
        let owner = IndexOwner::requesting(requests, Arc::clone(&changes), watch::channel(false).1, Arc::clone(&clock));
        let rung = Arc::clone(&owner.rung);
        let stopping = AtomicBool::new(false);
        (owner, ManualIndex { index, received, rung, stopping, changes, clock, is_tidy: false })
    }

    /// Waits for the next request. Returns [`Turn::Idle`] if none arrives for a while.
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

    /// Commits the objects. The caller must send the outcome to the pipeline.
    pub fn commit(&mut self, objects: &[UploadedObject], now_ms: i64) -> Result<CommitAnswer, CommitError> {
        self.is_tidy = false;
        self.index.commit(objects, now_ms)
    }

    /// Carries out a request and answers it.
    pub fn carry_out(&mut self, OtherTurn(request): OtherTurn, now_ms: i64) {
        self.is_tidy = false;
        let progress = Progress { stopping: &self.stopping, changes: &self.changes, clock: &self.clock };
        carry_out(&mut self.index, request, now_ms, &progress);
    }

    /// Calls `work` with the storage back end, without going through the index.
    pub fn with_store<T>(&mut self, work: impl FnOnce(&mut S) -> T) -> T {
        work(&mut self.index.store)
    }

    /// Returns the sizes of three maps, in partitions: states in memory, windows, and progress of the trimming of
    /// producer rows.
    pub fn kept(&self) -> [usize; 3] {
        [self.index.known.len(), self.index.windows.len(), self.index.trims.len()]
    }

    /// Runs one step of the GC.
    pub fn tidy(&mut self, now_ms: i64) {
        self.is_tidy = !self.index.tidy(RUNS_CLEARED, now_ms).unwrap_or(false);
    }
}
