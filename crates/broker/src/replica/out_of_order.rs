//! Handles the batches of an idempotent producer that arrive out of order, because the producer sends them over several
//! connections. They are parked until the missing batches arrive, and are then appended in sequence.
//!
//! The rule in [`fullbore_rules::sequence::parking`] decides which batch may wait and which one is next.
//! [`fullbore_log::partition::reorder_buffer`] stores the waiting batches. Each append also appends the parked batches
//! that come next, under the same lock, so that no other append comes in between.

use fullbore_host::task;
use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::Replica;
use super::state::{LogState, ReplicaState};
use fullbore_log::Verification;
use fullbore_log::partition::error::AppendError;
use fullbore_log::partition::outcome::AppendTicket;
use fullbore_log::partition::reorder_buffer::{OUT_OF_ORDER, ReorderBuffer};
use fullbore_log::partition::terms::AppendTerms;
use fullbore_log::validation::ValidBatch;
use fullbore_rules::sequence::Stamp;

impl Replica {
    /// Parks a batch whose predecessors have not arrived yet.
    ///
    /// # Errors
    /// Fails with an out-of-order error if the batch may not wait, and with `Storage` if the log is broken. Fails with
    /// `Gone` if the log is not open, or if the broker stops.
    pub(super) fn park_early(
        self: &Arc<Self>,
        state: &mut ReplicaState,
        batch: &ValidBatch<'_>,
        terms: AppendTerms<'_>,
    ) -> Result<AppendTicket, AppendError> {
        let LogState::Open(log) = &mut state.log else { return Err(AppendError::Gone) };
        log.note_use();
        if log.is_broken() {
            // The log is broken, so the missing batches cannot be appended. Do not let this batch wait for them.
            return Err(AppendError::Storage);
        }
        let stamp = batch.stamp();
        let Some(reordering) = terms.early.wait_in else { return Err(self.out_of_turn(&stamp)) };
        if reordering.is_closed() {
            return Err(AppendError::Gone);
        }
        let mut parked = state.parked.take().unwrap_or_default();
        let answer = match parked.take_late(&stamp, reordering) {
            true => Err(OUT_OF_ORDER),
            false => parked.park(batch, &terms, reordering, None),
        };
        if parked.wants_watch() {
            task::spawn(expire(Arc::downgrade(self), reordering.clone()));
        }
        // Keep an empty buffer while its expiry task runs. Otherwise the next batch would spawn another task.
        state.parked = Some(parked).filter(|parked| parked.is_watched());
        match answer {
            Err(OUT_OF_ORDER) => Err(self.out_of_turn(&stamp)),
            answer => answer.map(AppendTicket::out_of_order),
        }
    }

    /// Appends the parked batches that follow the batch with `stamp`. Refuses the parked batches of the producer's
    /// older epochs. `failed` is the error if the batch with `stamp` could not be appended. After a disk error, refuses
    /// all parked batches of the producer, because an append of the batch that they wait for would probably fail again.
    pub(crate) fn release_parked(
        self: &Arc<Self>,
        state: &mut ReplicaState,
        mut stamp: Stamp,
        failed: Option<AppendError>,
        now_ms: i64,
    ) {
        let Some(mut parked) = state.parked.take() else { return };
        let mut failed = failed;
        while failed.is_none() {
            let Some(early) = parked.next_after(&stamp) else { break };
            stamp = early.batch().stamp();
            // Check again that the role allows the append: a replica may have left the ISR while the batch was parked.
            let written = state.check_append(early.acks());
            // The batch before this one has opened the transaction, so no verification is needed.
            let unknown = Verification::Unknown;
            match written.and_then(|()| self.write_batch(state, early.batch(), unknown, early.acks(), now_ms)) {
                Ok((written, _)) => early.written(&written),
                Err(error) => {
                    failed = Some(error);
                    self.turned_away(&stamp, error.code());
                    early.refuse(error);
                }
            }
        }
        if let Some(error @ (AppendError::Storage | AppendError::Full)) = failed {
            parked.give_up(stamp.producer_id, error);
        }
        state.parked = Some(parked);
    }

    /// Refuses the batches that have waited too long. Returns the time at which the next one expires, or `None` if none
    /// remains.
    fn expire_parked(&self, reordering: &Arc<ReorderBuffer>) -> Option<Instant> {
        let mut state = self.lock();
        let parked = state.parked.as_mut()?;
        let (expired, due) = parked.expire(reordering);
        if due.is_none() {
            state.parked = None;
        }
        drop(state);
        expired.refuse(|stamp| self.out_of_turn(stamp));
        due
    }

    /// Refuses all parked batches with `error`.
    pub(crate) fn dismiss_parked(&self, error: AppendError) {
        let parked = self.lock().parked.take();
        if let Some(parked) = parked {
            parked.refuse(error);
        }
    }
}

/// Waits for the expiry of each parked batch, until none remains in the partition.
async fn expire(partition: Weak<Replica>, reordering: Arc<ReorderBuffer>) {
    while let Some(due) = partition.upgrade().and_then(|partition| partition.expire_parked(&reordering)) {
        tokio::time::sleep_until(due).await;
    }
}
