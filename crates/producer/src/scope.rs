//! The state of one transaction: its number, how the application wants to end it, its first failure and its outcome.
//!
//! Requests to the coordinator are in `coordinator`. Invariant: a later failure, wish or outcome does not replace the
//! first one.

use crate::error::{ProduceError, TransactionError};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// How the application wants a transaction to end.
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
    /// True once the application has got the outcome, or has dropped the [`Ending`](crate::Ending) without it.
    is_observed: bool,
}

/// A transaction.
#[derive(Debug)]
pub(crate) struct TransactionScope {
    /// The number of the transaction, counted from 1 over the life of the producer.
    pub(crate) number: u64,
    /// Wakes the task that sends requests to the coordinator.
    wake: Arc<Notify>,
    failed: AtomicBool,
    /// True once the coordinator may have begun the transaction, because a batch was sent, or a partition or a group
    /// was added.
    started: AtomicBool,
    /// True if the coordinator may have received a request to commit.
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

    /// Notes a failure. From now on the transaction can only be aborted.
    pub(crate) fn fail(&self, error: TransactionError) {
        self.state.lock().failure.get_or_insert(error);
        self.failed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Returns true if the transaction can only be aborted.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Returns the first failure, if there was one.
    pub(crate) fn failure(&self) -> Option<TransactionError> {
        self.state.lock().failure.clone()
    }

    /// Sets how the application wants the transaction to end.
    pub(crate) fn end(&self, wish: Wish) {
        self.state.lock().wish.get_or_insert(wish);
        self.wake.notify_one();
    }

    /// Returns how the application wants the transaction to end, or `None` while it is open.
    pub(crate) fn wish(&self) -> Option<Wish> {
        self.state.lock().wish
    }

    /// Notes that the coordinator may begin the transaction from now on.
    pub(crate) fn start(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Returns true if the coordinator may have begun the transaction.
    pub(crate) fn is_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// Sets whether the transaction may already be committed. The caller sets true before it sends a request to commit,
    /// and false if the coordinator has refused that request.
    pub(crate) fn set_possibly_committed(&self, possibly: bool) {
        self.possibly_committed.store(possibly, Ordering::Release);
    }

    /// Returns true if the transaction may already be committed.
    pub(crate) fn is_possibly_committed(&self) -> bool {
        self.possibly_committed.load(Ordering::Acquire)
    }

    /// Sets the outcome of the transaction, unless it already has one.
    pub(crate) fn finish(&self, outcome: Result<(), TransactionError>) {
        self.state.lock().outcome.get_or_insert(outcome);
    }

    /// Returns the outcome, or `None` while there is none. The application has then seen the outcome.
    pub(crate) fn outcome(&self) -> Option<Result<(), TransactionError>> {
        let mut state = self.state.lock();
        state.is_observed |= state.outcome.is_some();
        state.outcome.clone()
    }

    /// Notes that the application does not want the outcome.
    pub(crate) fn disregard(&self) {
        self.state.lock().is_observed = true;
    }

    /// Returns the error of the transaction, if the application wants the outcome and has not got it yet.
    pub(crate) fn unobserved_error(&self) -> Option<TransactionError> {
        let state = self.state.lock();
        let outcome = state.outcome.as_ref().filter(|_| !state.is_observed);
        outcome.and_then(|outcome| outcome.as_ref().err().cloned())
    }
}
