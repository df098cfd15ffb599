//! Admission of a producer's batches for one partition, before they are committed.
//!
//! The order is fixed here, and the coordinator confirms it: what a producer has sent to this broker is checked against
//! what is committed as far as this broker knows, and what was admitted since. Admission only accepts. Before it
//! refuses, and at a producer's first batch, the coordinator is to be asked, since the producer may have written by way
//! of another broker.
//!
//! Not here: bytes and waits.
//!
//! Invariants: the pending batches of a producer are one unbroken run of sequences of its epochs; once a batch has
//! failed, no batch that was admitted behind it is pending any more, and none behind it is taken for the first of a
//! producer that is not known ([`RefusedBatches`]).

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use fullbore_wire::ErrorCode;

use super::batch::Verified;
use super::state::PartitionState;
use crate::sequence::{
    HALF_RANGE, RefusedBatches, SequenceRefusal, Stamp, TransactionOfBatch, Verdict, sequence_add, sequence_distance,
};

/// A batch that is admitted, by a number of its broker's.
pub type TicketId = u64;

/// Verdict on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Take it, then call [`PartitionAdmission::admitted`].
    Admit,
    /// A copy is pending: the batch shares its answer.
    Shares(TicketId),
    /// Committed already: the caller repeats the first answer.
    Duplicate {
        /// The offset of its first record.
        base_offset: i64,
        /// The timestamp it was appended with, in ms.
        timestamp: i64,
    },
    /// Bring what is known of the partition up to date, and check it again.
    Ask,
    /// Answer the error.
    Refuse(SequenceRefusal),
}

/// Freshness of the state that a batch is checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Another broker may have committed since it was read.
    MayBeStale,
    /// Read after the batch had come.
    Current,
}

/// Relation of a transactional batch to the open transaction of its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The batch goes on with one that is open, or that a pending batch opens.
    Open {
        /// For [`ObjectBatch::verified`](super::ObjectBatch::verified).
        verified: Option<Verified>,
    },
    /// The batch opens one: the coordinator must confirm that first.
    Unverified,
}

#[derive(Clone, Copy, Debug)]
struct PendingBatch {
    stamp: Stamp,
    ticket: TicketId,
    /// As [`ObjectBatch::verified`](super::ObjectBatch::verified).
    verified: Option<Verified>,
}

/// Pending batches of one partition.
#[derive(Clone, Debug, Default)]
pub struct PartitionAdmission {
    by_producer: HashMap<i64, VecDeque<PendingBatch>>,
    /// Batches that their clients have to send again, and first.
    refused: RefusedBatches,
}

impl PartitionAdmission {
    /// Decides on a batch at `now`. `committed` is the committed state, as far as it is known.
    pub fn check(&self, stamp: &Stamp, committed: &PartitionState, freshness: Freshness, now: Duration) -> Admission {
        if !stamp.is_idempotent() {
            return Admission::Admit;
        }
        let pending = self.by_producer.get(&stamp.producer_id);
        if let Some(same) = pending.and_then(|pending| same(pending, stamp)) {
            return Admission::Shares(same.ticket);
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
            // It would follow what is committed, but others of its producer are pending, which it does not follow.
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

    /// How many sequences are missing before a batch, with what is pending: 0 is next, or not to be waited for. As
    /// [`Producers::ahead`](crate::sequence::Producers::ahead).
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

    /// Returns the newest pending batch of a producer, unless that or a later one is committed: then another broker was
    /// faster, and the producer goes on behind what is committed.
    fn newest(&self, producer_id: i64, committed: &PartitionState) -> Option<Stamp> {
        let newest = self.by_producer.get(&producer_id)?.back()?.stamp;
        (!committed.producers.has_passed(&newest)).then_some(newest)
    }

    /// Returns true if a batch that is ahead, and does not say
    /// `reorder`, waits for batches that other brokers may be committing; `committed` was read after it came.
    ///
    /// A batch for a partition made again waits where its producer has written to it, and where it would be the first
    /// of a producer whose state may be forgotten. Any other is refused at once, as on a classic partition. The missing
    /// batches were then sent to the deleted partition, and their client cannot send them again while those behind them
    /// fill its requests in flight.
    pub fn awaits_others(&self, stamp: &Stamp, committed: &PartitionState, now: Duration) -> bool {
        let producer_id = stamp.producer_id;
        let has_written = || self.has_pending(producer_id) || committed.producers.knows(producer_id);
        match self.check(stamp, committed, Freshness::Current, now) {
            Admission::Admit => !committed.producers.is_carried_on(stamp),
            Admission::Refuse(SequenceRefusal::OutOfOrderSequence) => {
                has_written() || !committed.producers.has_predecessor()
            }
            // The missing batch was refused here, and its client sends it again.
            Admission::Refuse(_) => false,
            Admission::Ask | Admission::Shares(_) | Admission::Duplicate { .. } => false,
        }
    }

    /// Returns how a transactional batch that [`PartitionAdmission::check`] lets in stands to the transactions that are
    /// open, as far as is known here. Another broker may have committed the marker of a transaction that seems open:
    /// with transaction version 1 the commit then refuses the batch as [`Unverified`](super::Refusal::Unverified), so
    /// that a broker may want to have it verified anyway.
    pub fn transaction_of(&self, stamp: &Stamp, committed: &PartitionState) -> Opening {
        let newest = self.by_producer.get(&stamp.producer_id).and_then(VecDeque::back);
        let pending = newest.filter(|newest| newest.stamp.producer_epoch == stamp.producer_epoch);
        if let Some(verified) = pending.and_then(|newest| newest.verified) {
            return Opening::Open { verified: Some(verified) };
        }
        match committed.producers.transaction_of(stamp, true) {
            Ok(TransactionOfBatch::Begins) => Opening::Unverified,
            // The commit refuses the batch.
            Ok(TransactionOfBatch::None | TransactionOfBatch::Ongoing) | Err(_) => Opening::Open { verified: None },
        }
    }

    /// The batch is in an object, and pending from now on. `verified` is that of the object's batch. Markers are not
    /// pending here.
    pub fn admitted(&mut self, stamp: &Stamp, ticket: TicketId, verified: Option<Verified>) {
        if stamp.is_idempotent() {
            let pending = self.by_producer.entry(stamp.producer_id).or_default();
            pending.push_back(PendingBatch { stamp: *stamp, ticket, verified });
            self.refused.written(stamp);
        }
    }

    /// The oldest pending batch of its producer is committed, or was found to be.
    pub fn committed(&mut self, stamp: &Stamp, ticket: TicketId) {
        if let Some(pending) = self.by_producer.get_mut(&stamp.producer_id) {
            if let Some(at) = place(pending, ticket) {
                pending.remove(at);
            }
            if pending.is_empty() {
                self.by_producer.remove(&stamp.producer_id);
            }
        }
    }

    /// A batch has failed at `now` with `code`: it is pending no more, nor is any that was admitted of its producer
    /// behind it. Those are dead: nothing of them may be committed, so that they can be sent again. Their tickets, in
    /// their order.
    #[must_use = "whoever waits for them is to be answered"]
    pub fn failed(&mut self, stamp: &Stamp, ticket: TicketId, code: ErrorCode, now: Duration) -> Vec<TicketId> {
        let Some(pending) = self.by_producer.get_mut(&stamp.producer_id) else { return Vec::new() };
        let Some(at) = place(pending, ticket) else { return Vec::new() };
        let dead = pending.drain(at..).skip(1).map(|of| of.ticket).collect();
        if pending.is_empty() {
            self.by_producer.remove(&stamp.producer_id);
        }
        self.refused.note(stamp, code, now);
        dead
    }

    /// Notes that a batch is refused at `now` with `code` before it was admitted.
    pub fn turned_away(&mut self, stamp: &Stamp, code: ErrorCode, now: Duration) {
        self.refused.note(stamp, code, now);
    }

    /// Returns the refusal of a batch that is known to come before its turn.
    pub fn of_early(&self, stamp: &Stamp, now: Duration) -> SequenceRefusal {
        self.refused.of_early(stamp, now)
    }

    /// Forgets the batches that were refused long ago.
    pub fn forget_old(&mut self, now: Duration) {
        self.refused.forget_old(now);
    }

    /// Forgets all batches that were refused.
    pub fn forget_refused(&mut self) {
        self.refused.clear();
    }

    /// Returns true if any batch of a producer is pending.
    pub fn has_pending(&self, producer_id: i64) -> bool {
        self.by_producer.contains_key(&producer_id)
    }

    /// Returns true if the newest pending batch of a batch's producer is of the same epoch.
    pub fn has_pending_of_epoch(&self, stamp: &Stamp) -> bool {
        let newest = self.by_producer.get(&stamp.producer_id).and_then(VecDeque::back);
        newest.is_some_and(|newest| newest.stamp.producer_epoch == stamp.producer_epoch)
    }

    /// Returns true if a batch is pending, and not dead.
    pub fn is_pending(&self, stamp: &Stamp, ticket: TicketId) -> bool {
        self.by_producer.get(&stamp.producer_id).is_some_and(|pending| place(pending, ticket).is_some())
    }

    /// Returns true if nothing is pending of an idempotent producer, and none has to send anything again.
    pub fn is_empty(&self) -> bool {
        self.by_producer.is_empty() && self.refused.is_empty()
    }
}

/// Returns the place of the batch with this ticket; tickets grow.
fn place(pending: &VecDeque<PendingBatch>, ticket: TicketId) -> Option<usize> {
    pending.binary_search_by_key(&ticket, |of| of.ticket).ok()
}

/// The very same batch, in a run of sequences without a gap in each epoch.
fn same<'a>(pending: &'a VecDeque<PendingBatch>, stamp: &Stamp) -> Option<&'a PendingBatch> {
    let from = pending.partition_point(|of| of.stamp.producer_epoch < stamp.producer_epoch);
    let first = pending.get(from)?.stamp.base_sequence;
    let ahead = |of: &Stamp| sequence_distance(first, of.base_sequence);
    let at = pending.partition_point(|of| {
        let epoch = of.stamp.producer_epoch;
        epoch < stamp.producer_epoch || epoch == stamp.producer_epoch && ahead(&of.stamp) < ahead(stamp)
    });
    pending.get(at).filter(|of| of.stamp == *stamp)
}

/// Returns true if a batch is the very next one after another of its producer, or the first of a later epoch.
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
    use crate::sequence::Stops;

    const AT: Duration = Duration::from_secs(1);

    fn stamp(producer_id: i64, base_sequence: i32) -> Stamp {
        Stamp { producer_id, producer_epoch: 0, base_sequence, record_count: 1 }
    }

    /// Returns the stops of a deleted partition: producer 7 wrote ten batches, and producer 8 one.
    fn stops() -> Stops {
        let mut deleted = PartitionState::new(5);
        (0..10)
            .for_each(|sequence| deleted.take_over(&AppendedBatch::plain(stamp(7, sequence), sequence.into(), 0), 0));
        deleted.take_over(&AppendedBatch::plain(stamp(8, 0), 10, 0), 0);
        deleted.producers.stops()
    }

    /// The batches before it were refused while there was no topic. Five such batches are all that a client has in
    /// flight.
    #[test]
    fn topic_is_made_again_a_batch_that_has_overtaken_others_is_refused_at_once() {
        let mut committed = PartitionState::new(5);
        committed.succeed(stops(), false);
        let admission = PartitionAdmission::default();
        let refused = Admission::Refuse(SequenceRefusal::OutOfOrderSequence);
        // Producer 9 is new: its first batch was sent to the deleted topic.
        for early in [stamp(7, 11), stamp(7, 15), stamp(9, 1)] {
            assert!(admission.ahead(&early, &committed) > 0);
            assert_eq!(admission.check(&early, &committed, Freshness::Current, AT), refused, "{early:?}");
            assert!(!admission.awaits_others(&early, &committed, AT), "{early:?}");
        }
        committed.take_over(&AppendedBatch::plain(stamp(8, 1), 0, 0), 0);
        assert!(!admission.awaits_others(&stamp(7, 11), &committed, AT), "another producer has written meanwhile");
        assert!(!admission.awaits_others(&stamp(7, 10), &committed, AT), "the next one is taken");
    }

    /// The producer has begun the epoch at another broker, while a batch of the older one waits here for a slow store.
    #[test]
    fn later_epoch_is_committed_older_batches_that_are_pending_do_not_count() {
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

    /// The producer has sent them to another broker again, and goes on here.
    #[test]
    fn pending_batches_are_committed_elsewhere_the_next_one_follows_what_is_committed() {
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
    fn producer_has_written_its_batch_ahead_waits_for_those_before_it() {
        let mut committed = PartitionState::new(5);
        committed.succeed(stops(), false);
        let mut admission = PartitionAdmission::default();
        admission.admitted(&stamp(7, 10), 1, None);
        assert!(admission.awaits_others(&stamp(7, 12), &committed, AT), "one is pending here");
        committed.take_over(&AppendedBatch::plain(stamp(7, 10), 0, 0), 0);
        admission.committed(&stamp(7, 10), 1);
        assert!(admission.awaits_others(&stamp(7, 12), &committed, AT), "another broker may be committing 11");
        assert_eq!(admission.ahead(&stamp(7, 11), &committed), 0);
    }

    #[test]
    fn batch_is_refused_those_behind_it_are_not_kept_waiting() {
        let (committed, mut admission) = (PartitionState::new(5), PartitionAdmission::default());
        admission.turned_away(&stamp(9, 0), ErrorCode::REQUEST_TIMED_OUT, AT);
        let behind = Admission::Refuse(SequenceRefusal::BehindRefused(ErrorCode::REQUEST_TIMED_OUT));
        assert_eq!(admission.check(&stamp(9, 1), &committed, Freshness::Current, AT), behind);
        assert!(!admission.awaits_others(&stamp(9, 1), &committed, AT));
        assert!(admission.awaits_others(&stamp(8, 1), &committed, AT), "another producer");
    }

    #[test]
    fn topic_is_new_a_batch_ahead_of_a_new_producer_waits_for_those_at_another_broker() {
        let committed = PartitionState::new(5);
        assert!(PartitionAdmission::default().awaits_others(&stamp(9, 1), &committed, AT));
    }

    #[test]
    fn producer_may_be_forgotten_its_batch_ahead_waits_for_those_before_it() {
        let mut committed = PartitionState::new(5);
        committed.succeed(Stops::partial(), false);
        let admission = PartitionAdmission::default();
        assert!(admission.awaits_others(&stamp(7, 10), &committed, AT));
    }

    /// UNKNOWN_PRODUCER_ID, which a batch gets that has waited, ends librdkafka's producer.
    #[test]
    fn producer_may_have_written_to_the_deleted_partition_its_batch_ahead_is_taken_at_once() {
        let mut committed = PartitionState::new(5);
        committed.succeed(Stops::partial().of_ids_below(8), false);
        let admission = PartitionAdmission::default();
        assert_eq!(admission.check(&stamp(7, 10), &committed, Freshness::Current, AT), Admission::Admit);
        assert!(!admission.awaits_others(&stamp(7, 10), &committed, AT));
        committed.take_over(&AppendedBatch::plain(stamp(7, 10), 0, 0), 0);
        assert!(admission.awaits_others(&stamp(8, 1), &committed, AT), "its first one may be at another broker");
        assert!(admission.awaits_others(&stamp(7, 12), &committed, AT), "so may the one before it");
    }
}
