//! Tests producers of a deleted topic: they go on in the next topic of its name, and their rows are removed in time.

use super::*;
use crate::index::ClassicTails;
use fullbore_rules::sequence::{ProducerTails, Producers};

on_each_back_end! {
    producers_go_on_where_their_topic_is_made_again
    topic_is_made_again_twice_a_producer_that_was_idle_goes_on
    classic_topic_was_in_between_its_producers_go_on_where_they_stopped_there
    classic_topic_with_unknown_producers_was_in_between_earlier_state_stays_in_a_cluster
    classic_topic_was_in_between_as_the_metadata_remembers_its_producers_may_begin_anywhere
    producer_is_idle_in_several_topics_of_a_name_its_state_is_carried_over
    partition_leaves_more_producers_than_its_limit_only_its_own_are_left
    partitions_are_deleted_the_rows_that_they_leave_are_removed_in_time
}

fn producers_go_on_where_their_topic_is_made_again<B: BackEnd>() {
    let gap = [CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence))];
    let mut opened = Opened::<B>::new(2);
    let mut partition = opened.partitions[0];
    let object = opened.object();
    opened.commit(object, &[batch(partition, 0, 0), by(8, batch(partition, 100, 0)), batch(partition, 200, 10)]);
    let object = opened.object();
    opened.commit(object, &[batch(partition, 0, 20)]);
    for (life, is_deleted_first) in [(1, true), (2, false), (3, true)] {
        partition = make_again(&mut opened, life, is_deleted_first);
        opened.tidy();
        // The first two of the new topics get no records. Therefore, when they are deleted, their partitions do not
        // become predecessors, and the original partition stays the predecessor.
        if life < 3 {
            continue;
        }
        for mut index in [opened.another(), opened.another()] {
            let refreshed = index.refresh_one(partition, 0).expect("known").expect("there");
            assert_eq!((refreshed.row.next_offset, refreshed.predecessor.len()), (0, 2));
        }
        for (producer_id, base_sequence) in [(7, 40), (8, 20), (9, 30)] {
            let object = opened.object();
            assert_eq!(opened.commit(object, &[by(producer_id, batch(partition, 0, base_sequence))]), gap);
        }
        opened.again();
        let object = opened.object();
        // The answer to the producer's last batch was lost, so the producer sends this batch again.
        assert_eq!(
            opened.commit(object, &[batch(partition, 0, 20), batch(partition, 100, 30)]),
            [appended(0), appended(10)]
        );
    }
    // Producer 7 has written to the newest topic, but producer 8 only to the first one. The last sequence of producer 8
    // must be known to both brokers: the first one has read all rows, the second one has just started.
    let left =
        |index: &mut Index<B::Store>| index.refresh_one(partition, 0).expect("known").expect("there").predecessor;
    let mut other = opened.another();
    assert_eq!((left(&mut opened.index).len(), left(&mut other).len()), (1, 1));
    let object = UploadedObject { id: opened.object(), batches: vec![by(8, batch(partition, 0, 20))] };
    assert_eq!(opened.index.commit(&[object], NOW).expect("committed").verdicts, [gap], "it has overtaken its next");
    let object = UploadedObject { id: opened.object(), batches: vec![by(8, batch(partition, 0, 0))] };
    assert_eq!(other.commit(&[object], NOW).expect("committed").verdicts, [[appended(20)]]);
    assert_eq!((left(&mut opened.index).len(), left(&mut opened.another()).len()), (0, 0));
}

fn topic_is_made_again_twice_a_producer_that_was_idle_goes_on<B: BackEnd>() {
    let gap = [CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence))];
    let mut opened = Opened::<B>::new(2);
    let object = opened.object();
    opened.commit(object, &[batch(opened.partitions[0], 0, 0)]);
    for life in 1..4 {
        let partition = make_again(&mut opened, life, life != 2);
        opened.tidy();
        opened.again();
        // Only producer 8 writes to topics 1 to 3.
        let object = opened.object();
        let sequence = if life == 1 { 0 } else { 10 * i32::from(life) - 10 };
        assert_eq!(opened.commit(object, &[by(8, batch(partition, 0, sequence + 20))]), gap, "life {life}");
        let object = opened.object();
        assert_eq!(opened.commit(object, &[by(8, batch(partition, 0, sequence))]), [appended(0)], "life {life}");
    }
    let partition = make_again(&mut opened, 4, true);
    let object = opened.object();
    assert_eq!(opened.commit(object, &[batch(partition, 0, 10)]), [appended(0)]);
}

/// Makes a deleted classic topic the predecessor of a diskless topic and then creates the diskless topic, first at
/// another broker and then at this one. Returns the first partition.
fn make_behind_classic<B: BackEnd>(opened: &mut Opened<B>, topic: Uuid, before: &ProducerTails) -> DisklessPartitionId {
    let before = ClassicTails::of_topic(2, |index| if index == 0 { before.clone() } else { ProducerTails::default() });
    opened.back_end.add_topic("topic", topic);
    let mut made = Vec::new();
    for store in [&mut opened.back_end.store(), &mut opened.index.store] {
        store.succeed_classic("topic", topic, &before).expect("entered");
        made.push(store.create("topic", topic, 2).expect("made")[0].id);
    }
    assert_eq!(made[0], made[1]);
    made[0]
}

fn classic_topic_was_in_between_its_producers_go_on_where_they_stopped_there<B: BackEnd>() {
    let gap = [CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence))];
    let mut opened = Opened::<B>::new(2);
    let object = opened.object();
    let first = opened.partitions[0];
    opened.commit(object, &[batch(first, 0, 0), by(8, batch(first, 100, 0))]);
    opened.index.store.delete(Uuid([1; 16]), &[]).expect("deleted");
    // Producer 7 continues in the classic topic, and producer 9 begins there.
    let mut classic = Producers::default();
    let stamp = |producer_id, base_sequence| Stamp { producer_id, producer_epoch: 0, base_sequence, record_count: 10 };
    [stamp(7, 10), stamp(9, 0)].iter().zip([0, 10]).for_each(|(stamp, at)| classic.append(stamp, at, 0, 0, 5));
    let partition = make_behind_classic(&mut opened, Uuid([2; 16]), &classic.tails());
    opened.tidy();
    for is_new in [false, true] {
        if is_new {
            opened.again();
        }
        assert_eq!(tails_left::<B>(&mut opened.index, partition), 3);
        for (producer_id, base_sequence) in [(7, 30), (8, 20), (9, 20), (10, 10)] {
            let object = opened.object();
            assert_eq!(opened.commit(object, &[by(producer_id, batch(partition, 0, base_sequence))]), gap);
        }
    }
    for (producer_id, base_sequence) in [(7, 20), (8, 10), (9, 10), (10, 0)] {
        let object = opened.object();
        let verdicts = opened.commit(object, &[by(producer_id, batch(partition, 0, base_sequence))]);
        assert_eq!(verdicts, [appended(10 * (producer_id - 7))], "{producer_id}");
    }
    // Now that the topic exists, a classic topic can no longer become its predecessor.
    assert_eq!(make_behind_classic(&mut opened, Uuid([2; 16]), &ProducerTails::partial()), partition);
    opened.index.store.delete(Uuid([2; 16]), &[]).expect("deleted");
    opened.back_end.add_topic("topic", Uuid([3; 16]));
    let partition = opened.index.store.create("topic", Uuid([3; 16]), 2).expect("made")[0].id;
    assert_eq!(tails_left::<B>(&mut opened.index, partition), 4);
    let object = opened.object();
    assert_eq!(opened.commit(object, &[by(9, batch(partition, 0, 30))]), gap);
    let object = opened.object();
    assert_eq!(opened.commit(object, &[by(9, batch(partition, 0, 20))]), [appended(0)]);
}

fn classic_topic_with_unknown_producers_was_in_between_earlier_state_stays_in_a_cluster<B: BackEnd>() {
    let mut opened = Opened::<B>::new(2);
    let object = opened.object();
    opened.commit(object, &[batch(opened.partitions[0], 0, 0)]);
    opened.index.store.delete(Uuid([1; 16]), &[]).expect("deleted");
    let partition = make_behind_classic(&mut opened, Uuid([2; 16]), &ProducerTails::partial());
    opened.tidy();
    opened.again();
    let others_commit = std::any::type_name::<B>() == std::any::type_name::<PostgresBackEnd>();
    assert_eq!(tails_left::<B>(&mut opened.index, partition), usize::from(others_commit));
    let object = opened.object();
    let verdicts = opened.commit(object, &[batch(partition, 0, 70)]);
    assert_eq!(verdicts == [appended(0)], !others_commit, "it may have written anything to the classic one");
}

fn classic_topic_was_in_between_as_the_metadata_remembers_its_producers_may_begin_anywhere<B: BackEnd>() {
    let gap = [CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence))];
    for is_expired in [false, true] {
        let mut opened = Opened::<B>::new(2);
        let object = opened.object();
        opened.commit(object, &[batch(opened.partitions[0], 0, 0)]);
        opened.index.store.delete(Uuid([1; 16]), &[]).expect("deleted");
        let partition = make_behind_classic(&mut opened, Uuid([2; 16]), &ProducerTails::partial().of_ids_below(9));
        opened.tidy();
        if is_expired {
            while opened.index.store.expire_producers(0, i64::MAX - 1, 10).expect("expired").is_some() {}
        }
        opened.again();
        let refreshed = opened.index.refresh_one(partition, 0).expect("known").expect("there");
        assert_eq!((refreshed.predecessor.len(), refreshed.row.expired_to), (0, if is_expired { 8 } else { -1 }));
        assert_eq!(refreshed.predecessor.unknown_below(), if is_expired { 0 } else { 9 });
        for (producer_id, verdict) in [(9, gap), (7, [appended(0)]), (8, [appended(10)])] {
            let object = opened.object();
            let verdicts = opened.commit(object, &[by(producer_id, batch(partition, 0, 70))]);
            assert_eq!(verdicts, verdict, "{producer_id}");
        }
    }
}

/// Regression test: a batch was treated as out of order, because a topic that was deleted long ago had the batch before
/// it. In a cluster the batch waited, and was finally refused.
fn producer_is_idle_in_several_topics_of_a_name_its_state_is_carried_over<B: BackEnd>() {
    let gap = [CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence))];
    let mut opened = Opened::<B>::new(2);
    let object = opened.object();
    // Producers 7 to 10 write to the first topic. Producers 8, 9 and 10 then write one batch each, to the second, third
    // and fourth topic of the name. Producer 7 writes again only to the last topic.
    let all: Vec<_> = (7..11).map(|of| by(of, batch(opened.partitions[0], 100 * of as u32, 0))).collect();
    opened.commit(object, &all);
    for life in 1..4 {
        let partition = make_again(&mut opened, life, life != 2);
        opened.tidy();
        opened.again();
        assert_eq!(
            (tails_left::<B>(&mut opened.index, partition), tails_left::<B>(&mut opened.another(), partition)),
            (4, 4)
        );
        let object = opened.object();
        assert_eq!(opened.commit(object, &[by(7 + i64::from(life), batch(partition, 0, 10))]), [appended(0)]);
        assert_eq!(
            (tails_left::<B>(&mut opened.index, partition), tails_left::<B>(&mut opened.another(), partition)),
            (3, 3)
        );
    }
    // Only records without a producer id are written to this topic.
    let partition = make_again(&mut opened, 4, true);
    let object = opened.object();
    assert_eq!(opened.commit(object, &[by(-1, batch(partition, 0, -1))]), [appended(0)]);
    let partition = make_again(&mut opened, 5, false);
    opened.tidy();
    opened.again();
    assert_eq!(tails_left::<B>(&mut opened.index, partition), 4);
    for (producer_id, next) in [(7, 10), (8, 20), (9, 20), (10, 20)] {
        let object = opened.object();
        let overtaken = by(producer_id, batch(partition, 0, next + 10));
        assert_eq!(opened.commit(object, &[overtaken]), gap, "{producer_id} stopped before");
    }
    let object = opened.object();
    assert_eq!(opened.commit(object, &[batch(partition, 0, 10)]), [appended(0)]);
}

/// If two deleted partitions together have more producers than the limit, the rows of the first one are not copied. The
/// index then accepts any sequence in the next batch of those producers.
fn partition_leaves_more_producers_than_its_limit_only_its_own_are_left<B: BackEnd>() {
    let half = PRODUCERS_MAX as i64 / 2;
    for (second, expected) in [(half, PRODUCERS_MAX), (half + 1, half as usize + 1)] {
        let mut opened = Opened::<B>::new(2);
        let mut partition = opened.partitions[0];
        for (life, ids) in [(1, 0..half), (2, half..half + second)] {
            let object = opened.object();
            let batches: Vec<_> = ids.map(|id| by(id, batch(partition, id as u32 * 100, 0))).collect();
            opened.commit(object, &batches);
            partition = make_again(&mut opened, life, true);
        }
        opened.tidy();
        opened.again();
        assert_eq!(tails_left::<B>(&mut opened.index, partition), expected);
        let object = opened.object();
        let next = [by(half, batch(partition, 0, 10)), by(0, batch(partition, 100, 10))];
        assert_eq!(opened.commit(object, &next), [appended(0), appended(10)]);
    }
}

fn partitions_are_deleted_the_rows_that_they_leave_are_removed_in_time<B: BackEnd>() {
    let mut opened = Opened::<B>::new(2);
    let rows = |opened: &mut Opened<B>, id: DisklessPartitionId| {
        opened.tidy();
        opened.back_end.producer_rows(id)
    };
    let first = opened.partitions[0];
    // Write more rows than one step removes.
    for sequence in 0..300 {
        let object = opened.object();
        opened.commit(object, &[batch(first, 0, sequence * 10)]);
    }
    assert_eq!(opened.back_end.producer_rows(first), 300);
    let second = make_again(&mut opened, 1, true);
    assert_eq!(rows(&mut opened, first), 1, "the newest of its only producer");
    let object = opened.object();
    opened.commit(object, &[batch(second, 0, 3_000)]);
    let third = make_again(&mut opened, 2, false);
    let rows_left = (rows(&mut opened, first), rows(&mut opened, second));
    assert_eq!(rows_left, (0, 2), "what the next one left counts, and that there was one before it");
    // The third partition receives only a batch without a producer id. When it is deleted, two rows remain: the row of
    // its predecessor, and the row for forgotten producers.
    let object = opened.object();
    let anonymous = by(-1, batch(third, 0, -1));
    assert_eq!(opened.commit(object, &[anonymous]), [appended(0)]);
    let fourth = make_again(&mut opened, 3, true);
    assert_eq!((rows(&mut opened, second), rows(&mut opened, third)), (0, 2));
    assert_eq!(tails_left::<B>(&mut opened.another(), fourth), 1);
    let object = opened.object();
    opened.commit(object, &[batch(fourth, 0, 0)]);
    let fifth = make_again(&mut opened, 4, true);
    // PostgreSQL computes idle times by its own clock. Its time is earlier than the one passed here, but later than the
    // commit.
    opened.index.expire_producers_after(0);
    tidy_at::<B>(&mut opened.index, fullbore_host::files::now_ms() + 2_000);
    assert_eq!(rows(&mut opened, fourth), 0, "it has expired");
    assert_eq!(tails_left::<B>(&mut opened.another(), fifth), 0);
}
