//! Carries out the effects of a transaction's state machine: sends answers, writes records to the shard, and writes
//! markers to the partitions.
//!
//! The effects of one event are carried out in order. After a record or markers were written, the outcome is passed to
//! the state machine as a new event.

use super::Transactions;
use super::entry::{Entry, EntryState};
use super::records;
use crate::coordinator::Records;
use crate::partitions::AppendError;
use fullbore_host::fault_point::{self, FaultPoint};
use fullbore_host::task::{self, BoxFuture};
use fullbore_rules::transaction::{Effect, Transaction, TransactionMetadata, TransactionState, Turn};
use fullbore_wire::ErrorCode;
use futures_util::FutureExt;
use parking_lot::MutexGuard;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

impl Transactions {
    /// Passes an event to a transactional id and carries out the effects.
    pub(super) fn happen(self: &Arc<Self>, entry: &Arc<Entry>, event: impl FnOnce(&mut Transaction, &mut Turn<'_>)) {
        let mut state = entry.lock();
        let effects = self.turn(&mut state, event);
        self.follow(entry, state, effects);
    }

    /// Sends the answers at the beginning of `effects`, and spawns a task for the effects after them.
    pub(super) fn follow(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        state: MutexGuard<'_, EntryState>,
        effects: Vec<Effect>,
    ) {
        let effects = self.answer_first(entry, state, effects);
        if !effects.is_empty() {
            task::spawn(Arc::clone(self).carry_out(Arc::clone(entry), effects, false));
        }
    }

    /// Carries out effects on the caller's task until an answer was sent or an effect has to wait. This often answers a
    /// request without a task switch. Returns a future of the remaining effects, which the caller must run, or `None`
    /// if there are none.
    pub(super) fn follow_here(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        state: MutexGuard<'_, EntryState>,
        effects: Vec<Effect>,
    ) -> Option<BoxFuture<()>> {
        let effects = self.answer_first(entry, state, effects);
        if effects.is_empty() {
            return None;
        }
        let mut carrying = task::boxed(Arc::clone(self).carry_out(Arc::clone(entry), effects, true));
        match carrying.as_mut().now_or_never() {
            Some(()) => None,
            None => Some(carrying),
        }
    }

    /// Sends the answers at the beginning of `effects` and returns the effects after them. Removes the id if it is no
    /// longer needed.
    fn answer_first(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        mut state: MutexGuard<'_, EntryState>,
        effects: Vec<Effect>,
    ) -> VecDeque<Effect> {
        let mut effects = VecDeque::from(effects);
        while let Some(&Effect::Answer(ticket, answer)) = effects.front() {
            state.answer(ticket, answer);
            effects.pop_front();
        }
        self.arm(entry, &state);
        let known = &mut *state;
        self.tally.count(&entry.id, &mut known.counted, &known.transaction);
        let is_vacant = effects.is_empty() && state.transaction.is_vacant() && !state.is_gone;
        state.is_gone |= is_vacant;
        drop(state);
        if is_vacant {
            self.forget(entry);
            return VecDeque::new();
        }
        effects
    }

    /// Carries out effects, and then the effects of the events that these cause, until none is left. With `is_here`,
    /// returns pending once after the first answer, so that the caller's task can send the answer.
    async fn carry_out(self: Arc<Self>, entry: Arc<Entry>, mut effects: VecDeque<Effect>, mut is_here: bool) {
        while let Some(effect) = effects.pop_front() {
            let more = match effect {
                Effect::Answer(ticket, answer) => {
                    entry.lock().answer(ticket, answer);
                    if std::mem::take(&mut is_here) && !effects.is_empty() {
                        let mut is_sent = false;
                        poll_fn(|context| match std::mem::replace(&mut is_sent, true) {
                            true => Poll::Ready(()),
                            false => {
                                // The future may now run in a task of its own, which must be woken to continue.
                                context.waker().wake_by_ref();
                                Poll::Pending
                            }
                        })
                        .await;
                    }
                    continue;
                }
                Effect::Persist(next) => {
                    let kept = self.keep_measured(&entry, next.as_deref()).await;
                    self.event(&entry, |transaction, turn| transaction.persisted(kept, turn))
                }
                Effect::NeedProducerId => {
                    let id = self.control.init_producer_id().await.map_err(|refusal| refusal.code);
                    self.event(&entry, |transaction, turn| transaction.producer_id(id, turn))
                }
                Effect::WriteMarkers(markers) => {
                    entry.lock().marked_since = markers.is_commit.then(Instant::now);
                    let written = self.write_markers(&entry, &markers).await;
                    self.event(&entry, |transaction, turn| {
                        transaction.markers_written(markers.decision, &written, turn);
                    })
                }
            };
            effects.extend(more);
        }
        self.happen(&entry, |_, _| {});
    }

    fn event(&self, entry: &Entry, event: impl FnOnce(&mut Transaction, &mut Turn<'_>)) -> Vec<Effect> {
        let mut state = entry.lock();
        let effects = self.turn(&mut state, event);
        let known = &mut *state;
        self.tally.count(&entry.id, &mut known.counted, &known.transaction);
        effects
    }

    /// Stores a state. For a commit, also measures how long it takes to store the decision, and to write all markers.
    async fn keep_measured(&self, entry: &Entry, next: Option<&TransactionMetadata>) -> Result<(), ErrorCode> {
        let state = next.map(|next| next.state);
        if state.is_some_and(TransactionState::is_complete)
            && let Some(since) = entry.lock().marked_since.take()
        {
            self.metrics.commit_marked(since.elapsed());
        }
        let began = Instant::now();
        let kept = self.keep(entry, next).await;
        if kept.is_ok() && state == Some(TransactionState::PrepareCommit) {
            self.metrics.commit_decided(began.elapsed());
        }
        kept
    }

    /// Appends a state, or the tombstone of the id. Returns once all in-sync replicas have the record. If commits are
    /// flushed and later steps rely on this state, it is also on the disk by then.
    async fn keep(&self, entry: &Entry, next: Option<&TransactionMetadata>) -> Result<(), ErrorCode> {
        let version = self.settings().server_version;
        let record = records::encode(&entry.id, next, self.clock.ahead_ms(), version);
        let record = record.map_err(|_| ErrorCode::UNKNOWN_SERVER_ERROR)?;
        if let Some(next) = next {
            self.flush_before(next).await?;
        }
        let write = entry.shard.write(Records::Plain(vec![record]), std::convert::identity);
        if next.is_some_and(|next| next.state.is_prepared()) {
            fault_point::reached(FaultPoint::Deciding);
        }
        let kept = match write.kept_now() {
            Ok(kept) => kept,
            Err(write) => write.kept().await.and_then(|kept| kept),
        };
        if let (Ok(()), Some(next)) = (&kept, next) {
            fault_point::reached(step_of(next.state));
        }
        let kept = match (kept, next) {
            (Ok(()), Some(next)) => self.flush_after(next, entry.shard.partition()).await,
            (kept, _) => kept,
        };
        kept.map_err(|error| {
            if let Some(left_out) = self.unkept.due() {
                let id = &*entry.id;
                tracing::error!(id, %error, left_out, "cannot store the state of a transaction: the client retries");
            }
            match error {
                AppendError::Role(ErrorCode::FENCED_LEADER_EPOCH) => ErrorCode::NOT_LEADER_OR_FOLLOWER,
                error => error.code(),
            }
        })
    }
}

/// Returns the fault point that is reached once this state was recorded.
fn step_of(state: TransactionState) -> FaultPoint {
    match state {
        TransactionState::Ongoing => FaultPoint::Added,
        TransactionState::PrepareCommit | TransactionState::PrepareAbort => FaultPoint::Decided,
        TransactionState::CompleteCommit | TransactionState::CompleteAbort => FaultPoint::Completed,
        TransactionState::Empty | TransactionState::Dead | TransactionState::PrepareEpochFence => FaultPoint::Begun,
    }
}
