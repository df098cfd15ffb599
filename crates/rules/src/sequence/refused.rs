//! Batches of a partition that were refused for a temporary reason, and the errors for the batches after them.
//!
//! A producer has several batches in flight. If a batch is refused because of the disk, the leader or the replicas, its
//! client resends it with the same sequence. Later batches are already in flight, and may arrive when the reason no
//! longer holds. They must not get OUT_OF_ORDER_SEQUENCE_NUMBER, because clients would assume that a batch was lost.
//! librdkafka then begins a new epoch for all partitions (librdkafka#4953). So a batch after a refused one gets the
//! same error. It also does not count as the first batch of an unknown producer.
//!
//! A batch with the next sequence of a known producer is always appended.
//!
//! Invariant: at most one refused batch of each producer is remembered, for [`KEPT`]. It is the earliest one of the
//! producer's newest epoch. A partition has at most [`REFUSED_MAX`] of them.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use fullbore_wire::ErrorCode;

use super::{HALF_RANGE, SequenceRefusal, Stamp, Verdict, sequence_distance};

/// How long a refused batch is remembered. After this time, batches that its client sent after it are no longer in
/// flight, because the client's requests have timed out (librdkafka's `socket.timeout.ms`). If the same batch is
/// refused again, the time starts again.
pub const KEPT: Duration = Duration::from_secs(60);

/// Maximum number of producers of a partition whose refused batches are remembered. Above this limit, the smallest ids
/// are forgotten.
pub const REFUSED_MAX: usize = 1000;

/// The refused batches of a partition.
#[derive(Clone, Debug, Default)]
pub struct RefusedBatches {
    by_producer: BTreeMap<i64, RefusedBatch>,
}

#[derive(Clone, Copy, Debug)]
struct RefusedBatch {
    stamp: Stamp,
    /// The error that the client got.
    code: ErrorCode,
    until: Duration,
}

impl RefusedBatch {
    fn is_before(&self, stamp: &Stamp) -> bool {
        match stamp.producer_epoch.cmp(&self.stamp.producer_epoch) {
            Ordering::Less => false,
            Ordering::Equal => {
                (1..HALF_RANGE).contains(&sequence_distance(self.stamp.base_sequence, stamp.base_sequence))
            }
            // The first batch of a later epoch does not depend on this one. Later batches of that epoch count as coming
            // after this one, because the first may have been refused as well.
            Ordering::Greater => stamp.base_sequence != 0,
        }
    }

    /// Returns true if the refused batch comes after `stamp`.
    fn is_past(&self, stamp: &Stamp) -> bool {
        match stamp.producer_epoch.cmp(&self.stamp.producer_epoch) {
            Ordering::Less => true,
            Ordering::Equal => sequence_distance(self.stamp.base_sequence, stamp.base_sequence) >= HALF_RANGE,
            Ordering::Greater => false,
        }
    }
}

impl RefusedBatches {
    /// Notes that a batch is refused with `code` at the time `now`, unless an earlier batch of its producer is
    /// already recorded. `now` is the time since a fixed moment.
    pub fn note(&mut self, stamp: &Stamp, code: ErrorCode, now: Duration) {
        let earlier = self.by_producer.get(&stamp.producer_id).filter(|kept| kept.until > now);
        let has_earlier =
            earlier.is_some_and(|kept| kept.is_before(stamp) || stamp.producer_epoch < kept.stamp.producer_epoch);
        if !stamp.is_valid() || has_earlier {
            return;
        }
        let refused = RefusedBatch { stamp: *stamp, code, until: now.saturating_add(KEPT) };
        self.by_producer.insert(stamp.producer_id, refused);
        if self.by_producer.len() > REFUSED_MAX {
            self.forget_old(now);
        }
        if self.by_producer.len() > REFUSED_MAX {
            self.by_producer.pop_first();
        }
    }

    /// Notes that a producer has written `stamp`. Removes the producer's refused batch, unless that batch comes after
    /// `stamp`.
    pub fn written(&mut self, stamp: &Stamp) {
        if self.by_producer.get(&stamp.producer_id).is_some_and(|kept| !kept.is_past(stamp)) {
            self.by_producer.remove(&stamp.producer_id);
        }
    }

    /// Returns the decision about a batch. `verdict` is the decision by the producer's state alone, and `is_known` is
    /// true if the producer is known.
    pub fn judge(&self, stamp: &Stamp, verdict: Verdict, is_known: bool, now: Duration) -> Verdict {
        let is_certain = match verdict {
            // For an unknown producer any first sequence may be appended, so the batch may follow the refused one.
            Verdict::Append => is_known,
            Verdict::Refuse(SequenceRefusal::OutOfOrderSequence) => false,
            Verdict::Duplicate { .. } | Verdict::Refuse(_) => true,
        };
        match self.before(stamp, now) {
            Some(code) if !is_certain => Verdict::Refuse(SequenceRefusal::behind(code)),
            _ => verdict,
        }
    }

    /// Returns the error for a batch that is out of order. If a batch before it was refused with a retriable error,
    /// this is the same error. Otherwise it is OUT_OF_ORDER_SEQUENCE_NUMBER.
    pub fn of_early(&self, stamp: &Stamp, now: Duration) -> SequenceRefusal {
        self.before(stamp, now).map_or(SequenceRefusal::OutOfOrderSequence, SequenceRefusal::behind)
    }

    /// Returns the error of the refused batch before `stamp`, if there is one.
    fn before(&self, stamp: &Stamp, now: Duration) -> Option<ErrorCode> {
        let kept = self.by_producer.get(&stamp.producer_id)?;
        (kept.until > now && kept.is_before(stamp)).then_some(kept.code)
    }

    /// Removes the batches that were refused [`KEPT`] ago or earlier.
    pub fn forget_old(&mut self, now: Duration) {
        self.by_producer.retain(|_, kept| kept.until > now);
    }

    /// Removes all refused batches.
    pub fn clear(&mut self) {
        self.by_producer.clear();
    }

    /// Returns true if no refused batch is recorded.
    pub fn is_empty(&self) -> bool {
        self.by_producer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Producers;
    use super::*;
    use proptest::prelude::*;

    const AT: Duration = Duration::from_secs(1000);
    const STORAGE: ErrorCode = ErrorCode::KAFKA_STORAGE_ERROR;
    const OUT_OF_ORDER: Verdict = Verdict::Refuse(SequenceRefusal::OutOfOrderSequence);
    const BEHIND: Verdict = Verdict::Refuse(SequenceRefusal::BehindRefused(STORAGE));

    fn stamp(producer_epoch: i16, base_sequence: i32) -> Stamp {
        Stamp { producer_id: 7, producer_epoch, base_sequence, record_count: 1 }
    }

    fn refused(stamp: &Stamp) -> RefusedBatches {
        let mut refused = RefusedBatches::default();
        refused.note(stamp, STORAGE, AT);
        refused
    }

    /// A partition that has records, and the batches that it has refused.
    #[derive(Default)]
    struct Partition {
        producers: Producers,
        refused: RefusedBatches,
        log_end: i64,
    }

    impl Partition {
        fn judge(&self, stamp: &Stamp, now: Duration) -> Verdict {
            let verdict = self.producers.check(stamp, self.log_end);
            self.refused.judge(stamp, verdict, self.producers.knows(stamp.producer_id), now)
        }

        fn append(&mut self, stamp: &Stamp) {
            self.producers.append(stamp, self.log_end, 0, 0, 5);
            self.refused.written(stamp);
            self.log_end += 1;
        }
    }

    #[test]
    fn batch_behind_a_refused_one_gets_its_error_until_that_is_written() {
        for epoch_of_last in [None, Some(3), Some(2)] {
            let mut partition = Partition { log_end: 10, ..Partition::default() };
            if let Some(epoch) = epoch_of_last {
                (0..3).for_each(|sequence| partition.append(&stamp(epoch, sequence)));
            }
            let next = if epoch_of_last == Some(3) { 3 } else { 0 };
            for code in [STORAGE, ErrorCode::NOT_ENOUGH_REPLICAS] {
                partition.refused.note(&stamp(3, next), code, AT);
                for behind in next + 1..next + 5 {
                    let verdict = Verdict::Refuse(SequenceRefusal::BehindRefused(code));
                    assert_eq!(partition.judge(&stamp(3, behind), AT), verdict, "{epoch_of_last:?} {behind}");
                    // This batch is refused as well, but does not replace the first one.
                    partition.refused.note(&stamp(3, behind), code, AT);
                }
            }
            for sequence in next..next + 5 {
                assert_eq!(partition.judge(&stamp(3, sequence), AT), Verdict::Append, "{epoch_of_last:?}");
                partition.append(&stamp(3, sequence));
            }
            assert_eq!(partition.judge(&stamp(3, next + 6), AT), OUT_OF_ORDER, "a gap is one");
            assert!(partition.refused.is_empty());
        }
    }

    #[test]
    fn refused_batch_leaves_written_and_earlier_ones_and_other_producers_alone() {
        let duplicate = Verdict::Duplicate { base_offset: 5, timestamp: 0 };
        let refused = refused(&stamp(3, 8));
        for verdict in [duplicate, Verdict::Refuse(SequenceRefusal::DuplicateSequence)] {
            assert_eq!(refused.judge(&stamp(3, 9), verdict, true, AT), verdict);
        }
        assert_eq!(refused.judge(&stamp(3, 9), Verdict::Append, true, AT), Verdict::Append, "it was written meanwhile");
        for (other, verdict) in
            [(stamp(3, 8), Verdict::Append), (stamp(3, 7), OUT_OF_ORDER), (stamp(2, 9), OUT_OF_ORDER)]
        {
            assert_eq!(refused.judge(&other, verdict, false, AT), verdict, "{other:?}");
        }
        let stranger = Stamp { producer_id: 8, ..stamp(3, 9) };
        assert_eq!(refused.judge(&stranger, OUT_OF_ORDER, true, AT), OUT_OF_ORDER);
    }

    #[test]
    fn new_epoch_begins_only_at_zero() {
        let mut refused = refused(&stamp(3, 8));
        assert_eq!(refused.judge(&stamp(4, 0), Verdict::Append, false, AT), Verdict::Append);
        assert_eq!(refused.judge(&stamp(4, 2), Verdict::Append, false, AT), BEHIND);
        refused.note(&stamp(2, 1), STORAGE, AT);
        assert_eq!(refused.judge(&stamp(3, 9), OUT_OF_ORDER, true, AT), BEHIND, "an older epoch does not matter");
        refused.note(&stamp(4, 0), STORAGE, AT);
        assert_eq!(refused.judge(&stamp(4, 1), OUT_OF_ORDER, true, AT), BEHIND);
        assert_eq!(refused.judge(&stamp(3, 9), OUT_OF_ORDER, true, AT), OUT_OF_ORDER, "given up");
        refused.written(&stamp(4, 0));
        assert!(refused.is_empty());
    }

    #[test]
    fn earlier_batch_written_keeps_the_refused_one_and_earlier_refused_replaces_it() {
        let mut refused = refused(&stamp(3, 8));
        refused.written(&stamp(3, 7));
        refused.written(&stamp(2, 9));
        assert_eq!(refused.judge(&stamp(3, 9), OUT_OF_ORDER, true, AT), BEHIND);
        refused.note(&stamp(3, 6), STORAGE, AT);
        assert_eq!(refused.judge(&stamp(3, 7), OUT_OF_ORDER, true, AT), BEHIND);
        refused.written(&stamp(3, 8));
        assert!(refused.is_empty());
    }

    #[test]
    fn client_that_never_resends_the_refused_batch_is_finally_out_of_order() {
        let mut refused = refused(&stamp(3, 8));
        let soon = AT + KEPT / 2;
        refused.note(&stamp(3, 9), STORAGE, soon);
        assert_eq!(
            refused.judge(&stamp(3, 9), OUT_OF_ORDER, true, AT + KEPT),
            OUT_OF_ORDER,
            "no refusal behind it counts"
        );
        refused.note(&stamp(3, 8), STORAGE, soon);
        assert_eq!(refused.judge(&stamp(3, 9), OUT_OF_ORDER, true, AT + KEPT), BEHIND, "each try of it does");
        refused.forget_old(soon + KEPT);
        assert!(refused.is_empty());
        // After `KEPT`, the refused batch no longer counts, so a later batch may be recorded instead.
        refused.note(&stamp(3, 8), STORAGE, AT);
        refused.note(&stamp(3, 9), STORAGE, AT + KEPT);
        assert_eq!(refused.judge(&stamp(3, 10), OUT_OF_ORDER, true, AT + KEPT), BEHIND);
        refused.written(&stamp(3, 8));
        assert!(!refused.is_empty());
    }

    #[test]
    fn error_that_is_not_retriable_leaves_later_batches_out_of_order() {
        let mut refused = RefusedBatches::default();
        refused.note(&stamp(3, 8), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, AT);
        for verdict in [Verdict::Append, OUT_OF_ORDER] {
            assert_eq!(refused.judge(&stamp(3, 9), verdict, false, AT), OUT_OF_ORDER);
        }
    }

    #[test]
    fn producers_above_the_limit_are_forgotten_the_oldest_first() {
        let mut refused = RefusedBatches::default();
        let of = |producer_id, base_sequence| Stamp { producer_id, ..stamp(0, base_sequence) };
        refused.note(&of(-1, 3), STORAGE, AT);
        assert!(refused.is_empty(), "it has no sequence");
        refused.note(&of(5000, 3), STORAGE, AT);
        (0..REFUSED_MAX as i64).for_each(|id| refused.note(&of(id, 3), STORAGE, AT + KEPT));
        assert_eq!(refused.judge(&of(0, 4), OUT_OF_ORDER, true, AT + KEPT), BEHIND);
        (1000..1500).for_each(|id| refused.note(&of(id, 3), STORAGE, AT + KEPT));
        assert_eq!(refused.by_producer.len(), REFUSED_MAX);
        assert_eq!(refused.judge(&of(0, 4), OUT_OF_ORDER, true, AT + KEPT), OUT_OF_ORDER);
        assert_eq!(refused.judge(&of(1499, 4), OUT_OF_ORDER, true, AT + KEPT), BEHIND);
        refused.clear();
        assert!(refused.is_empty());
    }

    proptest! {
        /// A client has a window of batches in flight over a connection, and for a while some of them are refused. No
        /// batch may get an out-of-order error. All must be written once and in order, even with a window of more than
        /// five batches and with sequences that wrap around.
        #[test]
        fn client_that_resends_refused_batches_in_order_keeps_its_sequence(
            first in prop_oneof![Just(0), Just(i32::MAX - 20)],
            window in 1..40usize,
            known in any::<bool>(),
            bad in proptest::collection::vec(0..4u8, 400),
        ) {
            let first = if known { first } else { 0 };
            let mut partition = Partition { log_end: 1, ..Partition::default() };
            if known {
                partition.append(&stamp(3, super::super::sequence_add(first, -1)));
            }
            let begin = partition.log_end;
            let sequence = |at: usize| super::super::sequence_add(first, at as i32);
            let mut bad = bad.into_iter();
            // The batches to send, beginning with the oldest unwritten one.
            let (mut written, mut sent) = (0, 0);
            let mut in_flight = std::collections::VecDeque::new();
            let mut now = AT;
            while written < 60 {
                while in_flight.len() < window && sent < 60 {
                    in_flight.push_back(sent);
                    sent += 1;
                }
                now += Duration::from_millis(10);
                let at = in_flight.pop_front().expect("some are not written");
                let stamp = stamp(3, sequence(at));
                if bad.next() == Some(0) {
                    partition.refused.note(&stamp, STORAGE, now);
                } else {
                    match partition.judge(&stamp, now) {
                        Verdict::Append => {
                            prop_assert_eq!(at, written);
                            partition.append(&stamp);
                            written += 1;
                            continue;
                        }
                        verdict => prop_assert_eq!(verdict, BEHIND),
                    }
                }
                // When the client gets the error, it sends again from the oldest unwritten batch. The batches in flight
                // still arrive.
                sent = sent.min(at);
                let behind: Vec<_> = in_flight.drain(..).collect();
                for at in behind {
                    let stamp = self::stamp(3, sequence(at));
                    let verdict = partition.judge(&stamp, now);
                    prop_assert_eq!(verdict, BEHIND);
                    partition.refused.note(&stamp, STORAGE, now);
                }
            }
            prop_assert_eq!(partition.log_end - begin, 60);
        }
    }
}
