//! How transactions restrict a partition: which batch may be sent, and how the batches of an aborted transaction end.
//!
//! Invariant: batches are sent in the order of their transactions. The batches of a transaction are sent only while
//! [`TransactionLedger`](crate::ledger::TransactionLedger) permits it.

use super::{Partition, PartitionQueue, Round, Take};
use crate::batch::ProducerBatch;
use crate::error::ProduceError;
use crate::scope::Wish;
use std::sync::Arc;
use std::time::Instant;

/// The transactions to which a partition was added, or is to be added, by their numbers. 0 stands for none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Membership {
    /// The last transaction for which the producer has requested the coordinator to add the partition.
    requested: u64,
    /// The last transaction to which the coordinator has added the partition.
    added: u64,
}

impl Partition {
    /// Returns true if all batches up to transaction `number` have a result and none is in flight.
    pub(crate) fn is_done_with(&self, number: u64) -> bool {
        let state = self.state.lock();
        let oldest = state.unfinished.iter().find(|outcome| !outcome.is_finished());
        state.window.is_idle() && oldest.is_none_or(|outcome| outcome.transaction_number() > number)
    }

    /// Returns true if every batch that was sent in this epoch is in the log.
    pub(crate) fn is_clean(&self) -> bool {
        self.state.lock().window.is_clean()
    }

    /// Fails all records without a result in transactions up to `number`, because these transactions are aborted.
    pub(crate) fn abandon(self: &Arc<Self>, number: u64, now: Instant) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let is_older = |number_of: u64| number_of <= number;
        for outcome in state.unfinished.iter().filter(|outcome| is_older(outcome.transaction_number())) {
            let possibly_written = outcome.is_possibly_written();
            outcome.fail_rest(ProduceError::Aborted { possibly_written }, now);
        }
        self.purge(state);
        self.relist(state);
    }

    /// Notes that the coordinator has added the partition to transaction `number`.
    pub(crate) fn joined(self: &Arc<Self>, number: u64) {
        let mut state = self.state.lock();
        state.membership.added = number;
        self.relist(&mut state);
    }

    /// Returns the reason why no new batch may be sent now. Returns `None` if the transaction permits a new batch, or
    /// if all batches were sent and some still lack a result. Also lets the window adopt the epoch of the transaction.
    pub(super) fn held(&self, state: &mut PartitionQueue, round: &Round<'_>) -> Option<Take> {
        let Some(number) = state.next_transaction() else {
            if !state.window.is_idle() {
                return None;
            }
            state.listed = None;
            return Some(Take::Gone);
        };
        let Some(pass) = round.pass.filter(|pass| pass.number == number) else { return Some(Take::NotYet(None)) };
        if !state.window.begin_epoch(pass.identity, pass.adds_partitions) {
            return Some(Take::NotYet(None));
        }
        if pass.adds_partitions || state.membership.added == number {
            return None;
        }
        let is_requested = std::mem::replace(&mut state.membership.requested, number) == number;
        Some(if is_requested { Take::NotYet(None) } else { Take::Join })
    }
}

impl PartitionQueue {
    /// Returns the number of the transaction of the oldest batch without an attempt, or `None` if there is no such
    /// batch.
    fn next_transaction(&self) -> Option<u64> {
        let outcome = match self.queue.front() {
            Some(batch) => &batch.outcome,
            None => &self.open.as_ref()?.outcome,
        };
        outcome.transaction().map(|transaction| transaction.number)
    }

    /// Returns true if this is the last batch of a transaction that is being committed.
    pub(super) fn ends_transaction(&self, batch: &ProducerBatch) -> bool {
        let Some(transaction) = batch.outcome.transaction() else { return false };
        transaction.wish() == Some(Wish::Commit)
            && !self.window.has_retries()
            && self.next_transaction() != Some(transaction.number)
    }

    /// Closes the open batch if its records belong to another transaction than `number`.
    pub(super) fn close_older(&mut self, number: u64) {
        if self.open.as_ref().is_some_and(|open| open.outcome.transaction_number() != number) {
            self.close_open();
        }
    }
}
