//! Handles batches that wait for a confirmation by the transaction coordinator. The first batch of a transaction may be
//! admitted before the coordinator confirms it. The marker of the producer's previous transaction is still being
//! uploaded then.
//!
//! An object with such a batch waits at the head of the queue, and all later objects wait behind it. After a grace
//! period, the unconfirmed batches of this object are refused, so that their clients send them again.
//! `pipeline/commit.rs` waits for confirmations and for the end of the grace period.
//!
//! Invariant: a batch is never committed before its confirmation.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use fullbore_rules::commit::DisklessPartitionId;
use fullbore_rules::commit::admission::BatchNumber;
use fullbore_rules::sequence::Stamp;
use fullbore_wire::ErrorCode;

use super::{CommitQueue, CommitResult, QueuedObject, Upload};
use fullbore_log::partition::error::AppendError;

/// A pending batch that begins a transaction and is not confirmed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnconfirmedBatch {
    /// The internal id of the batch's partition.
    pub partition: DisklessPartitionId,
    /// The producer and sequence of the batch.
    pub stamp: Stamp,
    /// The number that the batch got when it was admitted.
    pub batch_number: BatchNumber,
}

/// The newest unconfirmed batch of each producer in each partition. A batch is removed when it is confirmed or refused.
#[derive(Debug, Default)]
pub(super) struct UnconfirmedBatches(HashMap<(DisklessPartitionId, i64), UnconfirmedBatch>);

impl UnconfirmedBatches {
    /// Forgets the batches of a deleted partition.
    pub fn forget(&mut self, partition: DisklessPartitionId) {
        self.0.retain(|(of, _), _| *of != partition);
    }
}

impl CommitQueue {
    /// Records that a batch was admitted before its confirmation.
    pub fn await_confirmation(&mut self, batch: UnconfirmedBatch) {
        self.unconfirmed.0.insert((batch.partition, batch.stamp.producer_id), batch);
    }

    /// Applies the coordinator's answer about a batch. If the coordinator refuses the batch, returns the batches that
    /// fail with it.
    pub fn confirmation_given(
        &mut self,
        batch: &UnconfirmedBatch,
        confirmation: Result<(), ErrorCode>,
        now: Duration,
    ) -> Vec<(BatchNumber, CommitResult)> {
        let key = (batch.partition, batch.stamp.producer_id);
        if self.unconfirmed.0.get(&key) == Some(batch) {
            self.unconfirmed.0.remove(&key);
        }
        match confirmation {
            Ok(()) => Vec::new(),
            Err(code) => self.fail_unconfirmed(batch, code, AppendError::Role(code), now),
        }
    }

    /// Returns true if the next object has a marker of this producer. The producer's next transaction must not begin in
    /// the same object.
    pub fn gathers_marker_of(&self, producer_id: i64) -> bool {
        self.gathering.has_marker_of(producer_id)
    }

    /// Returns the number of the first object if nothing but missing confirmations prevents its commit.
    pub fn held_object(&self) -> Option<u64> {
        let first = self.objects.front().filter(|_| self.in_commit == 0)?;
        (matches!(first.upload, Upload::Done(_)) && self.lacks_confirmation(0)).then_some(first.number)
    }

    /// Refuses the unconfirmed batches of object `number`, if it is still the first object and waits for confirmations.
    /// Returns the batches that fail.
    pub fn give_up_confirmations(&mut self, number: u64, now: Duration) -> Vec<(BatchNumber, CommitResult)> {
        if self.held_object() != Some(number) {
            return Vec::new();
        }
        let Some(first) = self.objects.front() else { return Vec::new() };
        let given_up: HashSet<_> = self.unconfirmed_in(first).map(|of| (of.partition, of.stamp.producer_id)).collect();
        let given_up: Vec<_> = given_up.iter().filter_map(|key| self.unconfirmed.0.remove(key)).collect();
        let fail = |batch| self.fail_unconfirmed(batch, ErrorCode::KAFKA_STORAGE_ERROR, AppendError::Again, now);
        given_up.iter().flat_map(fail).collect()
    }

    /// Returns true if the closed object at `at` must wait for a confirmation. It must wait if it has an unconfirmed
    /// batch, or a later batch of the same producer and epoch.
    pub(super) fn lacks_confirmation(&self, at: usize) -> bool {
        #[cfg(test)]
        if self.faults.commits_unconfirmed {
            return false;
        }
        let Some(object) = self.objects.get(at).filter(|_| !self.unconfirmed.0.is_empty()) else { return false };
        self.unconfirmed_in(object).next().is_some()
    }

    fn unconfirmed_in<'a>(&'a self, object: &'a QueuedObject) -> impl Iterator<Item = &'a UnconfirmedBatch> {
        object.batches.iter().filter_map(|(batch_number, batch)| {
            let of = self.unconfirmed.0.get(&(batch.partition, batch.stamp.producer_id))?;
            let is_of = of.stamp.producer_epoch == batch.stamp.producer_epoch && of.batch_number <= *batch_number;
            (is_of && batch.is_sequenced()).then_some(of)
        })
    }

    /// Fails an unconfirmed batch and the later batches of its producer. Does nothing if the batch is no longer
    /// pending.
    fn fail_unconfirmed(
        &mut self,
        batch: &UnconfirmedBatch,
        code: ErrorCode,
        error: AppendError,
        now: Duration,
    ) -> Vec<(BatchNumber, CommitResult)> {
        let UnconfirmedBatch { partition, stamp, batch_number } = batch;
        let Some(admission) = self.admission.get_mut(partition) else { return Vec::new() };
        if !admission.is_pending(stamp, *batch_number) {
            return Vec::new();
        }
        let dead = admission.failed(stamp, *batch_number, code, now);
        let mut outcomes = vec![(*batch_number, Err(error))];
        self.bytes -= self.gathering.drop_dead(&HashSet::from([*batch_number]));
        self.drop_dead(&dead, &mut outcomes);
        self.admission.retain(|_, admission| !admission.is_empty());
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fullbore_rules::commit::rotation::RotationSettings;
    use fullbore_rules::commit::{BatchKind, CommitVerdict, Confirmation};
    use fullbore_rules::sequence::Marker;

    use super::super::NewBatch;
    use super::*;

    const AT: Duration = Duration::from_secs(1);
    const NO_RESULT: [(BatchNumber, CommitResult); 0] = [];

    fn queue() -> CommitQueue {
        let interval = Duration::from_millis(250);
        CommitQueue::new(RotationSettings { bytes_max: 1_000_000, interval, slots: 8, early_puts_per_second: 0 })
    }

    fn stamp(producer_id: i64, base_sequence: i32) -> Stamp {
        Stamp { producer_id, producer_epoch: 1, base_sequence, record_count: 1 }
    }

    fn batch(kind: BatchKind, stamp: Stamp) -> NewBatch {
        NewBatch {
            partition: 1,
            bytes: Bytes::from_static(&[1; 10]),
            stamp,
            max_timestamp: 0,
            kind,
            confirmation: Some(Confirmation { next_offset: 0, is_added: true }),
            ends_transaction: kind.is_marker(),
            room: None,
        }
    }

    /// Admits a batch before it is confirmed.
    fn ahead(queue: &mut CommitQueue, producer_id: i64) -> UnconfirmedBatch {
        let stamp = stamp(producer_id, 0);
        let batch_number = queue.admit(batch(BatchKind::Transactional, stamp), AT);
        let unconfirmed = UnconfirmedBatch { partition: 1, stamp, batch_number };
        queue.await_confirmation(unconfirmed);
        unconfirmed
    }

    fn behind(queue: &mut CommitQueue, producer_id: i64, base_sequence: i32) -> BatchNumber {
        queue.admit(batch(BatchKind::Transactional, stamp(producer_id, base_sequence)), AT)
    }

    /// Closes the next object and marks it as uploaded.
    fn uploaded(queue: &mut CommitQueue) -> u64 {
        let number = queue.close(AT).number;
        queue.uploaded(number, Ok(100 + number as i64));
        number
    }

    fn appended(queue: &mut CommitQueue) -> usize {
        let (objects, _) = queue.next_commit(AT);
        let appended = |batches: usize| vec![CommitVerdict::Appended { base_offset: 0 }; batches];
        let verdicts: Vec<_> = objects.iter().map(|object| appended(object.batches.len())).collect();
        queue.committed(&verdicts, AT).len()
    }

    #[test]
    fn confirmation_is_missing_its_object_and_those_behind_it_are_not_committed() {
        let mut queue = queue();
        behind(&mut queue, 8, 0);
        uploaded(&mut queue);
        let first = ahead(&mut queue, 7);
        let second = uploaded(&mut queue);
        behind(&mut queue, 7, 1);
        uploaded(&mut queue);
        behind(&mut queue, 8, 1);
        uploaded(&mut queue);
        assert_eq!((appended(&mut queue), queue.held_object()), (1, Some(second)));
        assert_eq!(appended(&mut queue), 0);
        assert_eq!(queue.confirmation_given(&first, Ok(()), AT), NO_RESULT);
        assert_eq!((queue.held_object(), appended(&mut queue), queue.bytes()), (None, 3, 0));
    }

    #[test]
    fn coordinator_refuses_a_batch_it_and_those_behind_it_are_not_committed() {
        for is_closed in [false, true] {
            let mut queue = queue();
            let first = ahead(&mut queue, 7);
            let second = behind(&mut queue, 7, 1);
            behind(&mut queue, 8, 0);
            if is_closed {
                uploaded(&mut queue);
            }
            let code = ErrorCode::INVALID_PRODUCER_EPOCH;
            let failed = [(first.batch_number, Err(AppendError::Role(code))), (second, Err(AppendError::Again))];
            assert_eq!(queue.confirmation_given(&first, Err(code), AT), failed);
            if !is_closed {
                uploaded(&mut queue);
            }
            assert_eq!((queue.held_object(), appended(&mut queue), queue.bytes()), (None, 1, 0));
        }
    }

    #[test]
    fn confirmation_does_not_come_its_batches_are_refused_and_a_late_one_changes_nothing() {
        let mut queue = queue();
        let (first, other) = (ahead(&mut queue, 7), ahead(&mut queue, 9));
        behind(&mut queue, 8, 0);
        let number = uploaded(&mut queue);
        assert_eq!(queue.give_up_confirmations(number + 1, AT), NO_RESULT);
        let mut failed = queue.give_up_confirmations(number, AT);
        failed.sort_unstable_by_key(|(batch_number, _)| *batch_number);
        assert_eq!(failed, [first, other].map(|of| (of.batch_number, Err(AppendError::Again))));
        assert_eq!((queue.give_up_confirmations(number, AT), appended(&mut queue)), (vec![], 1));
        // The client sends the batch again, and the queue again admits it before it is confirmed.
        let again = ahead(&mut queue, 7);
        uploaded(&mut queue);
        assert_eq!(queue.confirmation_given(&first, Err(ErrorCode::NETWORK_EXCEPTION), AT), NO_RESULT);
        assert_eq!(appended(&mut queue), 0, "its own confirmation has not come");
        assert_eq!((queue.confirmation_given(&again, Ok(()), AT), appended(&mut queue)), (vec![], 1));
    }

    #[test]
    fn marker_of_the_producer_is_gathered_its_next_transaction_is_not_to_be_in_that_object() {
        let mut queue = queue();
        let of = Marker { producer_id: 7, producer_epoch: 1, coordinator_epoch: 0, is_commit: true };
        queue.admit(batch(BatchKind::marker(&of, 2), stamp(7, -1)), AT);
        assert!(queue.gathers_marker_of(7) && !queue.gathers_marker_of(8));
        uploaded(&mut queue);
        assert!(!queue.gathers_marker_of(7));
    }

    #[test]
    fn partition_is_deleted_its_unconfirmed_batches_hold_up_nothing() {
        let mut queue = queue();
        ahead(&mut queue, 7);
        uploaded(&mut queue);
        queue.forget(1);
        assert_eq!((queue.held_object(), appended(&mut queue)), (None, 1));
    }
}
