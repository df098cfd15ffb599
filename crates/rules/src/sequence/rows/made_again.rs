//! Row 1 of the test plan on a recreated topic: the batches with which a producer may begin in the new partition.

use super::*;

/// Returns a recreated partition. Producer 7 wrote ten batches of three records to the deleted one.
fn made_again() -> Partition {
    let mut before = Partition::new(5);
    before.fill(10);
    let mut after = Partition::new(5);
    after.producers.succeed(before.producers.tails());
    after
}

#[test]
fn row_1_recreated_topic_producer_continues_exactly_after_its_last_batch() {
    let refused = Refuse(OutOfOrderSequence);
    let mut partition = made_again();
    // Each of these batches is refused. The first one comes after the next batch, which was refused while the topic did
    // not exist. The others have another epoch, another sequence, or another producer.
    for other in [third(11), stamp(7, 1, 30, 3), stamp(7, 0, 31, 3), stamp(8, 0, 30, 3)] {
        assert_eq!(partition.produce(other), refused, "{other:?}");
    }
    assert_eq!(partition.produce(third(10)), Append);
    assert_eq!(partition.produce(third(11)), Append);
    assert_eq!(partition.produce(third(10)), Duplicate { base_offset: 0, timestamp: 0 });
    assert_eq!(partition.produce(third(9)), refused, "which is not here");
}

#[test]
fn row_1_recreated_topic_producer_may_begin_at_zero() {
    assert_eq!(made_again().produce(third(0)), Append);
    assert_eq!(made_again().produce(stamp(7, 1, 0, 3)), Append);
    assert_eq!(made_again().produce(stamp(8, 0, 0, 3)), Append);
}

#[test]
fn row_1_recreated_topic_batches_without_a_response_are_written_again() {
    for first in 0..=10 {
        let mut partition = made_again();
        for n in first..=10 {
            assert_eq!(partition.produce(third(n)), Append, "batch {n} of those from {first} on");
        }
        for n in first.max(6)..=10 {
            assert_eq!(partition.produce(third(n)), original(n - first), "batch {n} once more");
        }
        assert_eq!(partition.produce(third(12)), Refuse(OutOfOrderSequence));
        if first > 0 {
            assert_eq!(partition.produce(third(first - 1)), Refuse(OutOfOrderSequence), "which is not here");
        }
    }
}

/// A producer with several connections sets `reorder` in each batch, unless no other batch is in flight. A batch with
/// `reorder` may have overtaken earlier ones. On the recreated topic, the broker counts the missing sequences from 0.
#[test]
fn row_1_recreated_topic_batch_that_may_race_others_waits_for_earlier_ones() {
    let mut partition = made_again();
    for n in 1..=11 {
        assert_eq!(partition.producers.ahead(&third(n)), 3 * n, "batch {n}");
    }
    assert_eq!(partition.produce(third(8)), Append, "alone, it has none before it");
    assert_eq!([8, 9, 10, 11].map(|n| partition.producers.ahead(&third(n))), [0, 0, 3, 6]);
}

#[test]
fn row_1_recreated_topic_each_producer_continues_after_writes_of_others() {
    let mut before = Partition::new(5);
    before.fill(10);
    for sequence in [0, 3] {
        assert_eq!(before.produce(stamp(8, 0, sequence, 3)), Append);
    }
    let mut after = Partition::new(5);
    after.producers.succeed(before.producers.tails());
    assert_eq!(after.produce(stamp(NO_PRODUCER_ID, -1, -1, 4)), Append);
    assert_eq!(after.produce(stamp(8, 0, 3, 3)), Append);
    assert!(after.producers.is_carried_on(&third(9)) && after.producers.is_carried_on(&third(10)));
    assert!(!after.producers.is_carried_on(&third(11)) && !after.producers.is_carried_on(&stamp(8, 0, 6, 3)));
    assert_eq!(after.produce(third(11)), Refuse(OutOfOrderSequence), "it has overtaken the next one");
    assert_eq!(after.produce(third(9)), Append);
    assert!(after.producers.predecessor().is_empty(), "each has written");
}

#[test]
fn row_1_recreated_topic_carried_state_of_a_silent_producer_expires() {
    let mut partition = made_again();
    assert_eq!(partition.produce(stamp(8, 0, 0, 3)), Append);
    for now_ms in [0, DAY_MS - 1] {
        partition.producers.expire(now_ms, DAY_MS);
        assert_eq!(partition.produce(third(11)), Refuse(OutOfOrderSequence), "{now_ms}");
        assert_eq!(partition.produce(stamp(8, 0, 3 + (now_ms > 0) as i32 * 3, 3)), Append);
    }
    partition.producers.expire(DAY_MS, DAY_MS);
    assert_eq!(partition.producers.predecessor().len(), 0);
    assert_eq!(partition.produce(third(11)), Append, "it may be anybody's next");
}

#[test]
fn row_1_topic_recreated_for_ever_remembers_producers_up_to_the_limit() {
    let mut producers = Producers::bounded(3);
    for producer_id in 0..20 {
        producers.append(&stamp(producer_id, 0, 0, 1), 0, 0, 0, 5);
        let mut next = Producers::bounded(3);
        next.succeed(producers.tails());
        producers = next;
        assert!(producers.predecessor().len() <= 3);
        assert_eq!(producers.check(&stamp(producer_id, 0, 2, 1), 0), Refuse(OutOfOrderSequence));
        assert_eq!(producers.check(&stamp(0, 0, 1, 1), 0), Append, "{producer_id}");
    }
}

#[test]
fn row_1_recreated_topic_from_another_broker_accepts_any_first_sequence() {
    let mut partition = Partition::new(5);
    partition.producers.succeed(ProducerTails::partial());
    assert_eq!(partition.produce(third(10)), Append);
    assert_eq!(partition.produce(third(12)), Refuse(OutOfOrderSequence));
    assert!(partition.producers.tails().len() == 1, "written, it is like any other");
    assert_eq!(partition.produce(stamp(8, 0, 17, 3)), Append);
}

#[test]
fn row_1_topic_recreated_twice_remembers_the_last_writes() {
    let mut partition = made_again();
    let mut unwritten = Partition::new(5);
    unwritten.producers.succeed(partition.producers.tails());
    assert_eq!(unwritten.produce(third(10)), Append, "nothing was written in between");
    assert_eq!(partition.produce(third(10)), Append);
    let mut next = Partition::new(5);
    next.producers.succeed(partition.producers.tails());
    assert_eq!(next.produce(third(12)), Refuse(OutOfOrderSequence));
    assert_eq!(next.produce(third(11)), Append);
    assert_eq!(next.producers.tails().len(), 1, "and nobody else");
}

#[test]
fn row_1_topic_recreated_twice_remembers_producers_of_the_first() {
    let mut partition = made_again();
    assert_eq!(partition.produce(stamp(8, 0, 0, 3)), Append);
    let mut next = Partition::new(5);
    next.producers.succeed(partition.producers.tails());
    assert_eq!(next.produce(stamp(8, 0, 6, 3)), Refuse(OutOfOrderSequence), "where 8 stopped is known");
    assert_eq!(next.produce(third(11)), Refuse(OutOfOrderSequence), "and where 7 stopped");
    assert_eq!(next.produce(third(10)), Append, "7 was idle while there was another topic");
    assert_eq!(next.produce(third(12)), Refuse(OutOfOrderSequence));
}

#[test]
fn row_1_recreated_topic_forgotten_producer_continues_with_any_sequence() {
    for is_evicted in [false, true] {
        let mut before = Partition { producers: Producers::bounded(1), ..Partition::new(5) };
        before.fill(10);
        match is_evicted {
            true => assert_eq!(before.produce(stamp(8, 0, 0, 3)), Append),
            false => assert_eq!(before.producers.expire(DAY_MS, DAY_MS), 1),
        }
        let mut after = Partition::new(5);
        after.producers.succeed(before.producers.tails());
        assert_eq!(after.produce(third(10)), Append);
    }
}

#[test]
fn row_1_recreated_topic_restart_keeps_the_carried_state() {
    let refused = Refuse(OutOfOrderSequence);
    let mut partition = made_again();
    partition.restart();
    assert_eq!(partition.produce(third(11)), refused, "before any record");
    assert_eq!(partition.produce(stamp(8, 0, 0, 3)), Append);
    partition.restart();
    assert_eq!(partition.produce(third(11)), refused, "after another producer's");
    assert_eq!(partition.produce(third(10)), Append);
    assert_eq!(partition.produce(third(11)), Append);
    partition.restart();
    assert_eq!(partition.produce(third(10)), Duplicate { base_offset: 3, timestamp: 30 });
    assert!(partition.producers.predecessor().is_empty(), "a producer that has written has no tail");
}

#[test]
fn row_1_recreated_topic_restart_does_not_postpone_the_expiry() {
    let mut before = Partition::new(5);
    before.fill(10);
    let mut partition = Partition::new(5);
    partition.producers.succeed(before.producers.tails().since(0));
    partition.restart();
    partition.producers.expire(DAY_MS - 1, DAY_MS);
    assert_eq!(partition.producers.predecessor().len(), 1);
    partition.producers.expire(DAY_MS, DAY_MS);
    assert_eq!(partition.producers.predecessor().len(), 0);
    partition.restart();
    assert_eq!(partition.produce(third(20)), Append, "any batch may be its next one");
}

#[test]
fn row_1_recreated_topic_from_another_broker_newer_producer_begins_at_zero() {
    let refused = Refuse(OutOfOrderSequence);
    let mut partition = Partition::new(5);
    partition.producers.succeed(ProducerTails::partial().of_ids_below(8));
    partition.restart();
    assert_eq!([17, 0].map(|sequence| partition.produce(stamp(8, 0, sequence, 1))), [refused, Append]);
    assert_eq!(partition.produce(third(10)), Append, "7 may have written to the deleted one");
    let mut next = Partition::new(5);
    next.producers.succeed(partition.producers.tails().of_ids_below(20));
    assert_eq!(next.produce(stamp(9, 0, 17, 1)), refused, "9 wrote to neither");
    assert_eq!(next.produce(stamp(6, 0, 17, 1)), Append, "6 may have written to the first");
}

#[test]
fn row_1_recreated_topic_forgotten_producer_leaves_larger_ids_certain() {
    let mut before = Partition { producers: Producers::bounded(1), ..Partition::new(5) };
    before.fill(10);
    assert_eq!(before.produce(stamp(8, 0, 0, 3)), Append, "7 is evicted");
    before.restart();
    let mut after = Partition::new(5);
    after.producers.succeed(before.producers.tails());
    assert_eq!(after.produce(stamp(9, 0, 17, 3)), Refuse(OutOfOrderSequence));
    assert_eq!(after.produce(third(12)), Append, "where 7 stopped is forgotten");
}

/// Converts the carried state to stamps and back, as the index of diskless partitions does to store the state in rows.
#[test]
fn row_1_recreated_topic_carried_state_follows_from_the_last_records() {
    let mut before = made_again();
    assert_eq!(before.produce(stamp(8, 1, 0, 3)), Append);
    let tails = before.producers.tails();
    let mut kept = Producers::default();
    tails.last_records().zip(0..).for_each(|(last, offset)| kept.append(&last, offset, -1, 0, 1));
    assert_eq!((kept.tails(), tails.unknown_below()), (tails, 0));
    assert!(
        ProducerTails::partial().unknown_below() == i64::MAX
            && ProducerTails::partial().last_records().next().is_none()
    );
}

#[test]
fn row_1_recreated_topic_truncated_log_keeps_the_state_of_silent_producers() {
    let mut before = made_again();
    assert_eq!(before.produce(stamp(8, 0, 0, 3)), Append);
    let mut cut = Partition::new(5);
    cut.producers.succeed_again(&before.producers);
    assert_eq!(cut.produce(third(11)), Refuse(OutOfOrderSequence));
    assert_eq!(cut.produce(third(10)), Append);
    assert_eq!(cut.produce(stamp(8, 0, 6, 3)), Append, "its tail was given up for records that are gone");
}
