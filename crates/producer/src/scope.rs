//! Transaction as its records see it: its number, the wish of the application, the first failure, the outcome.
//!
//! Requests to the coordinator are not here (see `coordinator`). Invariant: the first failure, the first wish and the
//! first outcome stay.

use crate::error::{ProduceError, TransactionError};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// End of a transaction, as the application wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Commit,
    Abort,
}

#[derive(Debug, Default)]
struct ScopeState {
    failure: Option<TransactionError>,
    wish: Option<Wish>,
    outcome: Option<Result<(), TransactionError>>,
    /// True once the application has the outcome, or does not want one.
    is_observed: bool,
}

/// A transaction.
#[derive(Debug)]
pub(crate) struct TransactionScope {
    /// Number of the transaction, counted from 1 over the life of the producer.
    pub(crate) number: u64,
    /// Wakes the task that sends requests to the coordinator.
    wake: Arc<Notify>,
    failed: AtomicBool,
    /// True once the coordinator may know of the transaction: a batch has left, or a partition or a group was added.
    started: AtomicBool,
    /// True once a request to commit may have been received.
    possibly_committed: AtomicBool,
    state: Mutex<ScopeState>,
}

impl TransactionScope {
    pub(crate) fn new(number: u64, wake: Arc<Notify>) -> Arc<Self> {
        Arc::new(TransactionScope {
            number,
            wake,
            failed: AtomicBool::new(false),
            started: AtomicBool::new(false),
            possibly_committed: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    /// Notes that a record failed.
    pub(crate) fn record_failed(&self, error: &ProduceError) {
        if !self.has_failed() {
            self.fail(TransactionError::Record(error.clone()));
        }
    }

    /// Notes a failure; the transaction can only be aborted from now on.
    pub(crate) fn fail(&self, error: TransactionError) {
        self.state.lock().failure.get_or_insert(error);
        self.failed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Returns true if the transaction can only be aborted.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Returns the first failure; `None` without a failure.
    pub(crate) fn failure(&self) -> Option<TransactionError> {
        self.state.lock().failure.clone()
    }

    /// Sets the wish of the application.
    pub(crate) fn end(&self, wish: Wish) {
        self.state.lock().wish.get_or_insert(wish);
        self.wake.notify_one();
    }

    /// Returns the wish of the application; `None` while the transaction is open.
    pub(crate) fn wish(&self) -> Option<Wish> {
        self.state.lock().wish
    }

    /// Notes that the coordinator may know of the transaction.
    pub(crate) fn start(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Returns true if the coordinator may know of the transaction.
    pub(crate) fn is_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// Sets whether the transaction may be committed: a request to commit may have been received, or the coordinator
    /// has refused it.
    pub(crate) fn set_possibly_committed(&self, possibly: bool) {
        self.possibly_committed.store(possibly, Ordering::Release);
    }

    /// Returns true if the transaction may be committed.
    pub(crate) fn is_possibly_committed(&self) -> bool {
        self.possibly_committed.load(Ordering::Acquire)
    }

    /// Gives the transaction its outcome.
    pub(crate) fn finish(&self, outcome: Result<(), TransactionError>) {
        self.state.lock().outcome.get_or_insert(outcome);
    }

    /// Returns the outcome for the application; `None` before there is one.
    pub(crate) fn outcome(&self) -> Option<Result<(), TransactionError>> {
        let mut state = self.state.lock();
        state.is_observed |= state.outcome.is_some();
        state.outcome.clone()
    }

    /// Notes that the application does not want an outcome.
    pub(crate) fn disregard(&self) {
        self.state.lock().is_observed = true;
    }

    /// Returns the error of an outcome that the application wants and does not have yet; `None` if there is no such
    /// error.
    pub(crate) fn unobserved_error(&self) -> Option<TransactionError> {
        let state = self.state.lock();
        let outcome = state.outcome.as_ref().filter(|_| !state.is_observed);
        outcome.and_then(|outcome| outcome.as_ref().err().cloned())
    }
}
