//! The state of a producer's transactions that its threads share: the open transaction, those that are ending, and the
//! one whose batches may be sent.
//!
//! Requests to the coordinator are in `coordinator`. Invariant: at most two transactions have no outcome. The second
//! one gathers records while the first one ends, and only batches of the first one may be sent.

use crate::error::TransactionError;
use crate::partition::Partition;
use crate::scope::TransactionScope;
use crate::transaction_pass::TransactionPass;
use fullbore_wire::Text;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, oneshot};

/// Maximum number of transactions without an outcome.
const UNENDED_MAX: usize = 2;
/// Maximum number of queued calls that commit offsets. A further `send_offsets` waits, and a further `queue_offsets`
/// fails.
const OFFSETS_MAX: usize = 64;

/// The group whose offsets a transaction commits, with the identity of its member (KIP-447).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMetadata {
    /// The id of the group.
    pub group_id: String,
    /// The generation, or the member's epoch in the consumer protocol. -1 if the caller is not a member.
    pub generation_id: i32,
    /// The id of the member, or empty.
    pub member_id: String,
    /// The static id of the member (group.instance.id).
    pub group_instance_id: Option<String>,
    /// The address (host:port) of the coordinator that has accepted the member, if the caller knows it. The offsets go
    /// there. Otherwise the producer looks up the coordinator.
    pub coordinator: Option<String>,
}

impl GroupMetadata {
    /// Creates the metadata of a group without a member. The coordinator then accepts the commit in any generation.
    pub fn new(group_id: &str) -> Self {
        let (group_id, generation_id) = (group_id.to_owned(), -1);
        let (group_instance_id, coordinator) = (None, None);
        GroupMetadata { group_id, generation_id, member_id: String::new(), group_instance_id, coordinator }
    }
}

/// An offset that a transaction commits for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionOffset {
    /// The topic of the offset.
    pub topic: String,
    /// The partition of the offset.
    pub partition: i32,
    /// The offset of the next record to read.
    pub offset: i64,
    /// The leader epoch of the record before `offset`, or -1.
    pub leader_epoch: i32,
    /// Any text that the group should store with the offset.
    pub metadata: Option<String>,
}

/// Offsets that wait to be sent to the group's coordinator.
pub(crate) struct OffsetsRequest {
    /// The number of the transaction.
    pub(crate) number: u64,
    pub(crate) group: GroupMetadata,
    pub(crate) offsets: Vec<TransactionOffset>,
    pub(crate) answer: oneshot::Sender<Result<(), TransactionError>>,
}

/// The phase of a transactional producer.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// The producer has no producer id yet. The value is the error of the last attempt to get one.
    New(Option<TransactionError>),
    /// The producer has requested its producer id.
    Initialising,
    /// The producer has its producer id, and transactions may begin.
    Ready,
    /// A fatal error has ended the producer.
    Fatal(TransactionError),
}

struct LedgerState {
    phase: Phase,
    begun: u64,
    /// The transactions without an outcome, oldest first.
    unended: VecDeque<Arc<TransactionScope>>,
    /// The last transaction whose commit failed. New transactions fail until the application has seen its error.
    uncommitted: Option<Arc<TransactionScope>>,
    pass: Option<TransactionPass>,
    /// Partitions that wait until the coordinator has added them to the transaction.
    joining: Vec<Arc<Partition>>,
    /// Requests to commit offsets that wait for the coordinator, at most [`OFFSETS_MAX`].
    offsets: VecDeque<OffsetsRequest>,
    /// The last problem of requests to a coordinator, or empty.
    trouble: String,
}

/// The transactions of a producer.
pub(crate) struct TransactionLedger {
    /// transactional.id.
    pub(crate) id: Text,
    /// Wakes the task that sends requests to the coordinator.
    pub(crate) wake: Arc<Notify>,
    /// Wakes waiting calls of the application.
    changed: Notify,
    state: Mutex<LedgerState>,
}

impl TransactionLedger {
    pub(crate) fn new(id: &str) -> Arc<Self> {
        let state = LedgerState {
            phase: Phase::New(None),
            begun: 0,
            unended: VecDeque::new(),
            uncommitted: None,
            pass: None,
            joining: Vec::new(),
            offsets: VecDeque::new(),
            trouble: String::new(),
        };
        let id = Text::from(id);
        Arc::new(TransactionLedger { id, wake: Arc::default(), changed: Notify::new(), state: Mutex::new(state) })
    }

    /// Returns a future that resolves at the next change of the phase, of an outcome or of the queue of offsets.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Wakes every call that waits.
    pub(crate) fn notify(&self) {
        self.changed.notify_waiters();
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state.lock().phase.clone()
    }

    /// Requests a producer id, unless the producer has one or has already requested it.
    pub(crate) fn initialise(&self) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::New(_)) {
            state.phase = Phase::Initialising;
            self.wake.notify_one();
        }
    }

    /// Sets the phase of the producer.
    pub(crate) fn set_phase(&self, phase: Phase) {
        self.state.lock().phase = phase;
        self.notify();
    }

    /// Begins a transaction. Returns `None` while two transactions have no outcome.
    ///
    /// # Errors
    /// Returns [`TransactionError`] if the producer is not initialised or has ended, or if a transaction is open.
    pub(crate) fn begin(&self) -> Result<Option<Arc<TransactionScope>>, TransactionError> {
        let mut state = self.state.lock();
        match &state.phase {
            Phase::Fatal(error) => return Err(error.clone()),
            Phase::New(_) | Phase::Initialising => {
                return Err(TransactionError::State("init_transactions has to succeed before begin"));
            }
            Phase::Ready => {}
        }
        if state.unended.back().is_some_and(|newest| newest.wish().is_none()) {
            return Err(TransactionError::State("a transaction is open: commit or abort it before the next begin"));
        }
        if state.unended.len() >= UNENDED_MAX {
            return Ok(None);
        }
        state.begun += 1;
        let scope = TransactionScope::new(state.begun, self.wake.clone());
        match state.uncommitted.as_ref().and_then(|uncommitted| uncommitted.unobserved_error()) {
            Some(error) => scope.fail(TransactionError::Previous(error.to_string())),
            None => state.uncommitted = None,
        }
        state.unended.push_back(scope.clone());
        self.wake.notify_one();
        Ok(Some(scope))
    }

    /// Returns the oldest transaction without an outcome, or `None` if every transaction has one.
    pub(crate) fn oldest(&self) -> Option<Arc<TransactionScope>> {
        self.state.lock().unended.front().cloned()
    }

    /// Returns true if every transaction has its outcome.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.lock().unended.is_empty()
    }

    /// Sets the transaction whose batches may be sent. With `None`, no batch may be sent.
    pub(crate) fn set_pass(&self, pass: Option<TransactionPass>) {
        let mut state = self.state.lock();
        state.pass = pass;
        state.joining.clear();
    }

    pub(crate) fn pass(&self) -> Option<TransactionPass> {
        self.state.lock().pass
    }

    /// Sets the outcome of the oldest transaction. `takes_next` is true if the application wanted to commit it. If that
    /// commit failed, later transactions fail as well until the application has seen the error. Otherwise a later
    /// transaction would commit offsets past the records of the failed one.
    pub(crate) fn finish_oldest(&self, outcome: Result<(), TransactionError>, takes_next: bool) {
        let mut state = self.state.lock();
        state.pass = None;
        state.joining.clear();
        let Some(ended) = state.unended.pop_front() else { return };
        if let (Err(error), Some(next), true) = (&outcome, state.unended.front(), takes_next) {
            next.fail(TransactionError::Previous(error.to_string()));
        }
        let is_uncommitted = outcome.is_err() && takes_next;
        ended.finish(outcome);
        if is_uncommitted {
            state.uncommitted = Some(ended);
        }
        drop(state);
        self.notify();
    }

    /// Ends the producer and fails every transaction and call. The error is the result of `error`. Its argument is true
    /// for a transaction that may already be committed.
    pub(crate) fn end(&self, error: impl Fn(bool) -> TransactionError) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Fatal(_)) {
            return;
        }
        state.phase = Phase::Fatal(error(false));
        state.pass = None;
        state.joining.clear();
        for scope in std::mem::take(&mut state.unended) {
            let error = error(scope.is_possibly_committed());
            scope.fail(error.clone());
            scope.finish(Err(error));
        }
        for request in std::mem::take(&mut state.offsets) {
            drop(request.answer.send(Err(error(false))));
        }
        drop(state);
        self.notify();
    }

    /// Queues a partition that the coordinator must add to the transaction before its batches can be sent.
    pub(crate) fn join(&self, partition: Arc<Partition>) {
        self.state.lock().joining.push(partition);
        self.wake.notify_one();
    }

    /// Removes and returns the partitions that [`TransactionLedger::join`] queued.
    pub(crate) fn take_joining(&self) -> Vec<Arc<Partition>> {
        std::mem::take(&mut self.state.lock().joining)
    }

    /// Queues offsets of a transaction.
    ///
    /// # Errors
    /// Returns `request` itself if the queue is full.
    #[expect(clippy::result_large_err, reason = "the caller gets its own request back")]
    pub(crate) fn queue_offsets(&self, request: OffsetsRequest) -> Result<(), OffsetsRequest> {
        let mut state = self.state.lock();
        if state.offsets.len() >= OFFSETS_MAX {
            return Err(request);
        }
        state.offsets.push_back(request);
        self.wake.notify_one();
        Ok(())
    }

    /// Removes and returns the next queued offsets, if they belong to transaction `number`.
    pub(crate) fn take_offsets(&self, number: u64) -> Option<OffsetsRequest> {
        let request = self.state.lock().offsets.pop_front_if(|request| request.number == number)?;
        self.notify();
        Some(request)
    }

    /// Sets the last problem of requests to a coordinator. An empty text means that there is none.
    pub(crate) fn set_trouble(&self, trouble: String) {
        self.state.lock().trouble = trouble;
    }

    pub(crate) fn trouble(&self) -> String {
        self.state.lock().trouble.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::Wish;

    fn ready() -> Arc<TransactionLedger> {
        let ledger = TransactionLedger::new("id");
        ledger.set_phase(Phase::Ready);
        ledger
    }

    fn begun(ledger: &TransactionLedger) -> Arc<TransactionScope> {
        ledger.begin().expect("ready").expect("the one before has ended")
    }

    fn refused(ledger: &TransactionLedger, wish: Wish) -> Arc<TransactionScope> {
        let scope = begun(ledger);
        scope.end(wish);
        ledger.finish_oldest(Err(TransactionError::State("refused")), wish == Wish::Commit);
        scope
    }

    #[test]
    fn commit_failed_unobserved_the_next_transaction_fails_and_the_one_after_its_outcome_does_not() {
        let ledger = ready();
        let first = refused(&ledger, Wish::Commit);
        let second = begun(&ledger);
        assert!(matches!(second.failure(), Some(TransactionError::Previous(_))), "offsets would pass over records");
        second.end(Wish::Commit);
        ledger.finish_oldest(Err(TransactionError::State("failed with the first")), true);
        assert!(first.outcome().is_some_and(|outcome| outcome.is_err()));
        let third = begun(&ledger);
        assert!(third.has_failed(), "the outcome of the second is not observed");
        third.end(Wish::Abort);
        ledger.finish_oldest(Ok(()), false);
        assert!(second.outcome().is_some_and(|outcome| outcome.is_err()));
        assert!(!begun(&ledger).has_failed(), "the third was aborted on purpose");
    }

    #[test]
    fn failed_commit_is_observed_or_an_abort_the_next_transaction_goes_on() {
        let ledger = ready();
        assert!(refused(&ledger, Wish::Commit).outcome().is_some());
        let next = begun(&ledger);
        assert!(!next.has_failed());
        next.end(Wish::Abort);
        ledger.finish_oldest(Err(TransactionError::State("refused")), false);
        assert!(!begun(&ledger).has_failed(), "nothing of an abort is missed");
    }

    #[test]
    fn commit_failed_unobserved_each_transaction_fails_until_its_outcome_is_observed_or_disregarded() {
        let ledger = ready();
        for disregards in [false, true] {
            let first = begun(&ledger);
            first.end(Wish::Commit);
            let second = begun(&ledger);
            second.end(Wish::Abort);
            ledger.finish_oldest(Err(TransactionError::State("refused")), true);
            ledger.finish_oldest(Ok(()), false);
            for _ in 0..2 {
                let next = begun(&ledger);
                assert!(next.has_failed(), "the outcome of the first is not observed");
                next.end(Wish::Abort);
                ledger.finish_oldest(Ok(()), false);
            }
            match disregards {
                true => first.disregard(),
                false => drop(first.outcome()),
            }
            let last = begun(&ledger);
            assert!(!last.has_failed(), "{disregards}");
            last.end(Wish::Abort);
            ledger.finish_oldest(Ok(()), false);
        }
    }
}
