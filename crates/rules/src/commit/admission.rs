//! Decides which batches of a producer a broker may accept for a partition, before they are committed to the index.
//!
//! Admission fixes the order of the batches, and the commit to the index confirms it. A batch is checked against the
//! committed state that this broker knows, and against the pending batches. The known state may be stale, because the
//! producer may have written through another broker. A batch may be accepted on a stale state, but not refused. So the
//! caller reads the committed state again before a refusal, and before the first batch of a producer that the state
//! does not know.
//!
//! This module stores no bytes of batches, and no function here waits.
//!
//! Invariants: within each epoch, the pending batches of a producer have consecutive sequences. Once a batch fails, no
//! later batch of its producer stays pending. Such a later batch is not accepted as the first one of an unknown
//! producer either ([`RefusedBatches`]).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use fullbore_wire::ErrorCode;

use super::batch::Confirmation;
use super::state::PartitionState;
use crate::sequence::{
    HALF_RANGE, RefusedBatches, SequenceRefusal, Stamp, TransactionOfBatch, Verdict, sequence_add, sequence_distance,
};

/// The number of an admitted batch or marker, which its broker uses only once.
pub type BatchNumber = u64;

/// The decision about a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The batch is accepted. The caller puts it into an object, and then calls [`PartitionAdmission::admitted`].
    Admit,
    /// An earlier copy of the batch, with this number, is pending. The new copy gets the same outcome.
    Shares(BatchNumber),
    /// The batch is already committed. The caller repeats the first response.
    Duplicate {
        /// The offset of the first record in the committed copy.
        base_offset: i64,
        /// When the committed copy was appended, in ms.
        timestamp: i64,
    },
    /// The caller must read the partition's committed state again and repeat the check.
    Ask,
    /// The batch is refused. The caller responds with the error.
    Refuse(SequenceRefusal),
}

/// How fresh the state is that a batch is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Another broker may have committed batches since the state was read.
    MayBeStale,
    /// The state was read after the batch arrived.
    Current,
}

/// How a transactional batch relates to the open transaction of its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The batch continues a transaction. The transaction is open, or a pending batch opens it.
    Open {
        /// The coordinator's confirmation for the producer's newest pending batch
        /// ([`ObjectBatch::confirmation`](super::ObjectBatch::confirmation)). It holds for this batch as well. `None`
        /// if that batch has no confirmation, or if no batch of the same epoch is pending.
        confirmation: Option<Confirmation>,
    },
    /// The batch opens a transaction. Before that, the coordinator must confirm that the partition is in the
    /// transaction.
    Unverified,
}

/// An admitted batch that is not committed yet.
#[derive(Clone, Copy, Debug)]
struct UncommittedBatch {
    stamp: Stamp,
    batch_number: BatchNumber,
    /// The coordinator's confirmation, as in [`ObjectBatch::confirmation`](super::ObjectBatch::confirmation).
    confirmation: Option<Confirmation>,
}

/// The pending batches of a partition.
#[derive(Clone, Debug, Default)]
pub struct PartitionAdmission {
    by_producer: HashMap<i64, VecDeque<UncommittedBatch>>,
    /// Batches that were refused and that their clients must resend before any other.
    refused: RefusedBatches,
}

impl PartitionAdmission {
    /// Decides on a batch at the time `now`. `committed` is the committed state, as far as this broker knows it.
    pub fn check(&self, stamp: &Stamp, committed: &PartitionState, freshness: Freshness, now: Duration) -> Admission {
        if !stamp.is_idempotent() {
            return Admission::Admit;
        }
        let pending = self.by_producer.get(&stamp.producer_id);
        if let Some(same) = pending.and_then(|pending| same(pending, stamp)) {
            return Admission::Shares(same.batch_number);
        }
        let newest = self.newest(stamp.producer_id, committed);
        if let Some(newest) = newest {
            if follows(stamp, &newest) {
                return Admission::Admit;
            }
            if stamp.producer_epoch < newest.producer_epoch {
                return match freshness {
                    Freshness::MayBeStale => Admission::Ask,
                    Freshness::Current => Admission::Refuse(SequenceRefusal::InvalidProducerEpoch),
                };
            }
        }
        let is_known = committed.producers.knows(stamp.producer_id);
        let verdict = match committed.check(stamp) {
            // The batch would be the next one after the committed batches, but pending batches of its producer will be
            // committed before it.
            Verdict::Append if newest.is_some() => Verdict::Refuse(SequenceRefusal::OutOfOrderSequence),
            verdict => verdict,
        };
        match self.refused.judge(stamp, verdict, is_known, now) {
            Verdict::Duplicate { base_offset, timestamp } => Admission::Duplicate { base_offset, timestamp },
            Verdict::Append if is_known || freshness == Freshness::Current => Admission::Admit,
            Verdict::Refuse(why) if freshness == Freshness::Current => Admission::Refuse(why),
            Verdict::Append | Verdict::Refuse(_) => Admission::Ask,
        }
    }

    /// Returns how many sequences are missing between the producer's last committed or pending batch and this one; 0 if
    /// the batch is not ahead. See [`Producers::ahead`](crate::sequence::Producers::ahead).
    pub fn ahead(&self, stamp: &Stamp, committed: &PartitionState) -> i32 {
        match self.newest(stamp.producer_id, committed) {
            Some(newest) if stamp.producer_epoch < newest.producer_epoch => 0,
            Some(newest) if stamp.producer_epoch == newest.producer_epoch => {
                let ahead = sequence_distance(sequence_add(newest.last_sequence(), 1), stamp.base_sequence);
                if ahead < HALF_RANGE { ahead } else { 0 }
            }
            Some(_) => stamp.base_sequence,
            None => committed.producers.ahead(stamp),
        }
    }

    /// Returns the newest pending batch of a producer. Returns None if no batch is pending. Also returns None if
    /// another broker has committed that batch or a later one, because the producer then continues after the committed
    /// batches.
    fn newest(&self, producer_id: i64, committed: &PartitionState) -> Option<Stamp> {
        let newest = self.by_producer.get(&producer_id)?.back()?.stamp;
        (!committed.producers.has_passed(&newest)).then_some(newest)
    }

    /// Returns true if the batch must wait for batches that other brokers may be committing. The caller must have found
    /// that earlier batches of the producer are missing, and must have read `committed` after the batch arrived. The
    /// client must have sent the batch without `reorder`.
    ///
    /// A recreated partition is an exception. If the producer has not written to it yet, an out-of-order batch is
    /// refused at once, as on a partition that is not diskless. The client sent the missing batches to the deleted
    /// partition. It cannot resend them while later batches take up all its requests in flight. If the state of a
    /// producer may be forgotten, its first batch waits, unless the batch continues from the deleted partition.
    pub fn awaits_others(&self, stamp: &Stamp, committed: &PartitionState, now: Duration) -> bool {
        let producer_id = stamp.producer_id;
        let has_written = || self.has_pending(producer_id) || committed.producers.knows(producer_id);
        match self.check(stamp, committed, Freshness::Current, now) {
            Admission::Admit => !committed.producers.is_carried_on(stamp),
            Admission::Refuse(SequenceRefusal::OutOfOrderSequence) => {
                has_written() || !committed.producers.has_predecessor()
            }
            // An earlier batch was refused here, and the client resends that batch before this one.
            Admission::Refuse(_) => false,
            Admission::Ask | Admission::Shares(_) | Admission::Duplicate { .. } => false,
        }
    }

    /// Returns how a transactional batch relates to the open transactions that this broker knows. The caller must have
    /// had the batch admitted by [`PartitionAdmission::check`]. A transaction that seems open here has ended if another
    /// broker has committed its marker. With transaction version 1, the commit then refuses the batch as
    /// [`Unverified`](super::Refusal::Unverified). The client resends it, and the coordinator must verify it.
    pub fn transaction_of(&self, stamp: &Stamp, committed: &PartitionState) -> Opening {
        let newest = self.by_producer.get(&stamp.producer_id).and_then(VecDeque::back);
        let pending = newest.filter(|newest| newest.stamp.producer_epoch == stamp.producer_epoch);
        if let Some(confirmation) = pending.and_then(|newest| newest.confirmation) {
            return Opening::Open { confirmation: Some(confirmation) };
        }
        match committed.producers.transaction_of(stamp, true) {
            Ok(TransactionOfBatch::Begins) => Opening::Unverified,
            // On an error, the batch is still put into an object, because the commit checks it again and can refuse it.
            Ok(TransactionOfBatch::None | TransactionOfBatch::Ongoing) | Err(_) => Opening::Open { confirmation: None },
        }
    }

    /// Records a batch as pending after the caller has put it into an object. `confirmation` is the coordinator's, as
    /// in [`ObjectBatch`](super::ObjectBatch). Markers are not recorded here.
    pub fn admitted(&mut self, stamp: &Stamp, batch_number: BatchNumber, confirmation: Option<Confirmation>) {
        if stamp.is_idempotent() {
            let pending = self.by_producer.entry(stamp.producer_id).or_default();
            pending.push_back(UncommittedBatch { stamp: *stamp, batch_number, confirmation });
            self.refused.written(stamp);
        }
    }

    /// Removes a pending batch that has been committed by this broker or another one.
    pub fn committed(&mut self, stamp: &Stamp, batch_number: BatchNumber) {
        if let Some(pending) = self.by_producer.get_mut(&stamp.producer_id) {
            if let Some(at) = place(pending, batch_number) {
                pending.remove(at);
            }
            if pending.is_empty() {
                self.by_producer.remove(&stamp.producer_id);
            }
        }
    }

    /// Removes a batch that failed with `code` at the time `now`, and all batches of its producer that were admitted
    /// after it. Returns the numbers of those later batches, in order. The later batches must not be committed, because
    /// the client sends all of them again.
    #[must_use = "the waiting requests need a response"]
    pub fn failed(
        &mut self,
        stamp: &Stamp,
        batch_number: BatchNumber,
        code: ErrorCode,
        now: Duration,
    ) -> Vec<BatchNumber> {
        let Some(pending) = self.by_producer.get_mut(&stamp.producer_id) else { return Vec::new() };
        let Some(at) = place(pending, batch_number) else { return Vec::new() };
        let dead = pending.drain(at..).skip(1).map(|of| of.batch_number).collect();
        if pending.is_empty() {
            self.by_producer.remove(&stamp.producer_id);
        }
        self.refused.note(stamp, code, now);
        dead
    }

    /// Notes that a batch was refused with `code` at the time `now`, before it was admitted.
    pub fn turned_away(&mut self, stamp: &Stamp, code: ErrorCode, now: Duration) {
        self.refused.note(stamp, code, now);
    }

    /// Returns the error for a batch that is out of order. If an earlier batch of its producer was refused with a
    /// retriable error, this is the same error. Otherwise it is OUT_OF_ORDER_SEQUENCE_NUMBER.
    pub fn of_early(&self, stamp: &Stamp, now: Duration) -> SequenceRefusal {
        self.refused.of_early(stamp, now)
    }

    /// Removes refused batches whose clients must have timed out since the refusal (see
    /// [`RefusedBatches::forget_old`]).
    pub fn forget_old(&mut self, now: Duration) {
        self.refused.forget_old(now);
    }

    /// Removes all refused batches.
    pub fn forget_refused(&mut self) {
        self.refused.clear();
    }

    /// Returns true if a batch of this producer is pending.
    pub fn has_pending(&self, producer_id: i64) -> bool {
        self.by_producer.contains_key(&producer_id)
    }

    /// Returns true if the producer's newest pending batch has the same epoch as this batch.
    pub fn has_pending_of_epoch(&self, stamp: &Stamp) -> bool {
        let newest = self.by_producer.get(&stamp.producer_id).and_then(VecDeque::back);
        newest.is_some_and(|newest| newest.stamp.producer_epoch == stamp.producer_epoch)
    }

    /// Returns true if the batch is still pending, so its object may commit it.
    pub fn is_pending(&self, stamp: &Stamp, batch_number: BatchNumber) -> bool {
        self.by_producer.get(&stamp.producer_id).is_some_and(|pending| place(pending, batch_number).is_some())
    }

    /// Returns true if no batch of an idempotent producer is pending, and no refused batch is remembered.
    pub fn is_empty(&self) -> bool {
        self.by_producer.is_empty() && self.refused.is_empty()
    }
}

/// Returns the index of the pending batch with this number. The numbers are in ascending order.
fn place(pending: &VecDeque<UncommittedBatch>, batch_number: BatchNumber) -> Option<usize> {
    pending.binary_search_by_key(&batch_number, |of| of.batch_number).ok()
}

/// Returns the pending copy of a batch, if there is one. This is a binary search, which works because the sequences of
/// each epoch have no gap.
fn same<'a>(pending: &'a VecDeque<UncommittedBatch>, stamp: &Stamp) -> Option<&'a UncommittedBatch> {
    let from = pending.partition_point(|of| of.stamp.producer_epoch < stamp.producer_epoch);
    let first = pending.get(from)?.stamp.base_sequence;
    let ahead = |of: &Stamp| sequence_distance(first, of.base_sequence);
    let at = pending.partition_point(|of| {
        let epoch = of.stamp.producer_epoch;
        epoch < stamp.producer_epoch || epoch == stamp.producer_epoch && ahead(&of.stamp) < ahead(stamp)
    });
    pending.get(at).filter(|of| of.stamp == *stamp)
}

/// Returns true if a batch is the next one after the producer's `newest`, or the first one of a later epoch.
fn follows(stamp: &Stamp, newest: &Stamp) -> bool {
    if stamp.producer_epoch == newest.producer_epoch {
        stamp.base_sequence == sequence_add(newest.last_sequence(), 1)
    } else {
        stamp.producer_epoch > newest.producer_epoch && stamp.base_sequence == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::AppendedBatch;
    use crate::sequence::ProducerTails;

    const AT: Duration = Duration::from_secs(1);

    fn stamp(producer_id: i64, base_sequence: i32) -> Stamp {
        Stamp { producer_id, producer_epoch: 0, base_sequence, record_count: 1 }
    }

    /// Returns the producer state of a deleted partition to which producer 7 wrote ten batches and producer 8 one.
    fn tails() -> ProducerTails {
        let mut deleted = PartitionState::new(5);
        (0..10)
            .for_each(|sequence| deleted.take_over(&AppendedBatch::plain(stamp(7, sequence), sequence.into(), 0), 0));
        deleted.take_over(&AppendedBatch::plain(stamp(8, 0), 10, 0), 0);
        deleted.producers.tails()
    }

    /// The missing batches were refused while the topic did not exist. A later batch must not wait for them, because a
    /// waiting batch counts as one of the client's five requests in flight.
    #[test]
    fn recreated_topic_refuses_an_out_of_order_batch_at_once() {
        let mut committed = PartitionState::new(5);
        committed.succeed(tails(), false);
        let admission = PartitionAdmission::default();
        let refused = Admission::Refuse(SequenceRefusal::OutOfOrderSequence);
        // Producer 9 is unknown: its batch with sequence 0 was refused while the topic did not exist.
        for early in [stamp(7, 11), stamp(7, 15), stamp(9, 1)] {
            assert!(admission.ahead(&early, &committed) > 0);
            assert_eq!(admission.check(&early, &committed, Freshness::Current, AT), refused, "{early:?}");
            assert!(!admission.awaits_others(&early, &committed, AT), "{early:?}");
        }
        committed.take_over(&AppendedBatch::plain(stamp(8, 1), 0, 0), 0);
        assert!(!admission.awaits_others(&stamp(7, 11), &committed, AT), "another producer has written meanwhile");
        assert!(!admission.awaits_others(&stamp(7, 10), &committed, AT), "the next one is taken");
    }

    /// The producer begins a new epoch at another broker, while a batch of the older epoch still waits here for a slow
    /// store. Further batches are checked against the newer epoch.
    #[test]
    fn later_epoch_is_committed_older_pending_batches_do_not_count() {
        let of_epoch = |producer_epoch, base_sequence| Stamp { producer_epoch, ..stamp(7, base_sequence) };
        let (mut committed, mut admission) = (PartitionState::new(5), PartitionAdmission::default());
        committed.take_over(&AppendedBatch::plain(of_epoch(0, 0), 0, 0), 0);
        admission.admitted(&of_epoch(0, 1), 1, None);
        let check = |stamp, committed: &_| admission.check(&stamp, committed, Freshness::Current, AT);
        assert_eq!(check(of_epoch(1, 0), &committed), Admission::Admit);
        assert_eq!(admission.ahead(&of_epoch(1, 1), &committed), 1);
        committed.take_over(&AppendedBatch::plain(of_epoch(1, 0), 1, 0), 0);
        assert_eq!(check(of_epoch(1, 0), &committed), Admission::Duplicate { base_offset: 1, timestamp: 0 });
        assert_eq!(check(of_epoch(1, 1), &committed), Admission::Admit);
        assert_eq!((1..4).map(|base| admission.ahead(&of_epoch(1, base), &committed)).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(check(of_epoch(1, 2), &committed), Admission::Refuse(SequenceRefusal::OutOfOrderSequence));
        assert_eq!(check(of_epoch(0, 1), &committed), Admission::Shares(1));
        assert_eq!(check(of_epoch(0, 2), &committed), Admission::Refuse(SequenceRefusal::InvalidProducerEpoch));
    }

    /// The producer resends its pending batches to another broker, which commits them. When the producer sends its next
    /// batches here, they must count as the next ones.
    #[test]
    fn pending_batches_are_committed_elsewhere_the_next_follows_the_committed_ones() {
        let (mut committed, mut admission) = (PartitionState::new(5), PartitionAdmission::default());
        committed.take_over(&AppendedBatch::plain(stamp(7, 0), 0, 0), 0);
        admission.admitted(&stamp(7, 1), 1, None);
        let ahead = |base, committed: &_| admission.ahead(&stamp(7, base), committed);
        assert_eq!((ahead(2, &committed), ahead(3, &committed)), (0, 1));
        (1..3).for_each(|base| committed.take_over(&AppendedBatch::plain(stamp(7, base), base.into(), 0), 0));
        assert_eq!((ahead(3, &committed), ahead(4, &committed)), (0, 1));
        let check = |base| admission.check(&stamp(7, base), &committed, Freshness::MayBeStale, AT);
        assert_eq!(check(3), Admission::Admit);
        assert_eq!(check(2), Admission::Duplicate { base_offset: 2, timestamp: 0 });
        assert_eq!(check(1), Admission::Shares(1));
        assert_eq!(check(4), Admission::Ask);
    }

    #[test]
    fn producer_has_written_its_out_of_order_batch_waits() {
        let mut committed = PartitionState::new(5);
        committed.succeed(tails(), false);
        let mut admission = PartitionAdmission::default();
        admission.admitted(&stamp(7, 10), 1, None);
        assert!(admission.awaits_others(&stamp(7, 12), &committed, AT), "one is pending here");
        committed.take_over(&AppendedBatch::plain(stamp(7, 10), 0, 0), 0);
        admission.committed(&stamp(7, 10), 1);
        assert!(admission.awaits_others(&stamp(7, 12), &committed, AT), "another broker may be committing 11");
        assert_eq!(admission.ahead(&stamp(7, 11), &committed), 0);
    }

    #[test]
    fn batch_is_refused_later_ones_do_not_wait() {
        let (committed, mut admission) = (PartitionState::new(5), PartitionAdmission::default());
        admission.turned_away(&stamp(9, 0), ErrorCode::REQUEST_TIMED_OUT, AT);
        let behind = Admission::Refuse(SequenceRefusal::BehindRefused(ErrorCode::REQUEST_TIMED_OUT));
        assert_eq!(admission.check(&stamp(9, 1), &committed, Freshness::Current, AT), behind);
        assert!(!admission.awaits_others(&stamp(9, 1), &committed, AT));
        assert!(admission.awaits_others(&stamp(8, 1), &committed, AT), "another producer");
    }

    #[test]
    fn new_topic_and_producer_an_out_of_order_batch_waits_for_other_brokers() {
        let committed = PartitionState::new(5);
        assert!(PartitionAdmission::default().awaits_others(&stamp(9, 1), &committed, AT));
    }

    #[test]
    fn producer_may_be_forgotten_its_out_of_order_batch_waits() {
        let mut committed = PartitionState::new(5);
        committed.succeed(ProducerTails::partial(), false);
        let admission = PartitionAdmission::default();
        assert!(admission.awaits_others(&stamp(7, 10), &committed, AT));
    }

    /// If the batch waited until its deadline, it would get UNKNOWN_PRODUCER_ID, which is fatal for librdkafka's
    /// producer.
    #[test]
    fn producer_may_have_written_to_the_deleted_partition_its_batch_is_taken_at_once() {
        let mut committed = PartitionState::new(5);
        committed.succeed(ProducerTails::partial().of_ids_below(8), false);
        let admission = PartitionAdmission::default();
        assert_eq!(admission.check(&stamp(7, 10), &committed, Freshness::Current, AT), Admission::Admit);
        assert!(!admission.awaits_others(&stamp(7, 10), &committed, AT));
        committed.take_over(&AppendedBatch::plain(stamp(7, 10), 0, 0), 0);
        assert!(admission.awaits_others(&stamp(8, 1), &committed, AT), "its first one may be at another broker");
        assert!(admission.awaits_others(&stamp(7, 12), &committed, AT), "so may the one before it");
    }
}
