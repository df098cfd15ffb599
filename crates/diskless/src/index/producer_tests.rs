//! Tests producers in the index on each back end: after the deletion of their partition, after the removal of their old
//! rows, and at their expiry.

use fullbore_rules::commit::{AppendedBatch, CommitVerdict, DisklessPartitionId, ObjectBatch, PartitionState, Refusal};
use fullbore_rules::sequence::{PRODUCERS_MAX, ProducerTails, Producers, SequenceRefusal, Stamp};
use fullbore_wire::Uuid;

use super::postgres::tests::PostgresBackEnd;
use super::store::ProducerRowPlace;
use super::tests::{BackEnd, NOW, Opened, SqliteBackEnd, appended, batch, by, on_each_back_end};
use super::{ClassicTails, Index, IndexStore, UploadedObject, trimming};

on_each_back_end! {
    producers_go_on_where_their_topic_is_made_again
    topic_is_made_again_twice_a_producer_that_was_idle_goes_on
    classic_topic_was_in_between_its_producers_go_on_where_they_stopped_there
    classic_topic_with_unknown_producers_was_in_between_earlier_state_stays_in_a_cluster
    classic_topic_was_in_between_as_the_metadata_remembers_its_producers_may_begin_anywhere
    producer_is_idle_in_several_topics_of_a_name_its_state_is_carried_over
    partition_leaves_more_producers_than_its_limit_only_its_own_are_left
    partitions_are_deleted_the_rows_that_they_leave_are_removed_in_time
    producers_have_old_rows_all_but_the_retained_are_removed
    very_many_producers_have_old_rows_they_are_removed
    partition_has_more_producers_than_its_limit_it_opens_by_rows_of_a_few_times_as_many
    another_broker_has_written_since_its_rows_are_not_removed
    rows_of_producers_are_due_runs_are_deleted_as_well
    producers_are_idle_they_are_forgotten_and_may_begin_anywhere
    producer_expires_while_its_topic_is_made_again_it_may_begin_anywhere
    many_producers_are_idle_they_are_removed_in_pieces
    idle_producers_have_very_many_rows_they_are_removed
    producer_becomes_idle_during_a_pass_it_waits_for_the_next_one
    clock_is_set_back_no_pass_is_delayed
}

/// Deletes the topic and creates it again. Returns its first partition.
fn make_again<B: BackEnd>(opened: &mut Opened<B>, life: u8, is_deleted_first: bool) -> DisklessPartitionId {
    let (old, new) = (Uuid([life; 16]), Uuid([life + 1; 16]));
    opened.back_end.add_topic("topic", new);
    let mut other = opened.back_end.store();
    if is_deleted_first {
        opened.index.store.delete(old, &[]).expect("deleted");
    }
    let made = other.create("topic", new, 2).expect("made");
    // Only now does the first broker learn of the deletion.
    opened.index.store.delete(old, &[]).expect("deleted");
    assert_eq!(opened.index.store.create("topic", new, 2).expect("made"), made);
    made[0].id
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

fn tails_left<B: BackEnd>(index: &mut Index<B::Store>, partition: DisklessPartitionId) -> usize {
    index.refresh_one(partition, 0).expect("known").expect("there").predecessor.len()
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

fn producers_have_old_rows_all_but_the_retained_are_removed<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    opened.index.retain_batches(&[partition], 200).expect("retained");
    let object = opened.object();
    opened.commit(object, &[by(8, batch(partition, 0, 0))]);
    const ROWS: i32 = 1_500;
    for number in 0..ROWS {
        // Each batch is committed separately, so that it gets its own row.
        let object = opened.object();
        opened.commit(object, &[batch(partition, 0, number * 10)]);
    }
    opened.tidy();
    let rows = opened.back_end.producer_rows(partition);
    assert!((200..1_000).contains(&rows), "{rows}");
    opened.again();
    opened.index.retain_batches(&[partition], 200).expect("retained");
    for (sequence, offset) in [((ROWS - 200) * 10, i64::from(ROWS - 199) * 10), ((ROWS - 1) * 10, i64::from(ROWS) * 10)]
    {
        let object = opened.object();
        let duplicate = [CommitVerdict::Duplicate { base_offset: offset, timestamp: NOW }];
        assert_eq!(opened.commit(object, &[batch(partition, 0, sequence)]), duplicate);
    }
    let object = opened.object();
    assert_eq!(opened.commit(object, &[by(8, batch(partition, 0, 10))]), [appended(i64::from(ROWS + 1) * 10)]);
}

/// The number of producers is so large that one step of the GC reads at most one row of each.
fn very_many_producers_have_old_rows_they_are_removed<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    opened.index = Index::new(opened.back_end.store(), 5);
    const PRODUCERS: i64 = 2_100;
    for round in 0..40 {
        let object = opened.object();
        let batches: Vec<_> = (0..PRODUCERS).map(|id| by(id, batch(partition, id as u32 * 100, round * 10))).collect();
        opened.commit(object, &batches);
        opened.tidy();
    }
    // While one pass of the GC reads all rows, commits add half as many rows.
    let rows = opened.back_end.producer_rows(partition);
    assert!((5 * PRODUCERS..16 * PRODUCERS).contains(&(rows as i64)), "{rows}");
    assert_eq!(
        opened.another().refresh_one(partition, 0).expect("known").expect("there").row.next_offset,
        40 * 10 * PRODUCERS
    );
}

/// When a broker first uses a partition, one statement with a time limit reads all its rows, so the GC must keep their
/// number small.
fn partition_has_more_producers_than_its_limit_it_opens_by_rows_of_a_few_times_as_many<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    const PER_COMMIT: i64 = 2_500;
    let commits = 8 * PRODUCERS_MAX as i64 / PER_COMMIT;
    for commit in 0..commits {
        let object = opened.object();
        let one = |at: i64| by(commit * PER_COMMIT + at, batch(partition, at as u32 * 100, 0));
        opened.commit(object, &(0..PER_COMMIT).map(one).collect::<Vec<_>>());
        opened.tidy();
    }
    opened.again();
    let read = opened.index.read(vec![(partition, 0)]).expect("read").producers.len();
    assert!((PRODUCERS_MAX..4 * PRODUCERS_MAX).contains(&read), "{read} rows of {}", commits * PER_COMMIT);
    let end = commits * PER_COMMIT * 10;
    assert_eq!(opened.index.refresh_one(partition, 0).expect("known").expect("there").row.next_offset, end);
    assert_eq!(opened.index.known[&partition].producers.len(), PRODUCERS_MAX);
    let newest = commits * PER_COMMIT - 1;
    let object = opened.object();
    let batches = [
        by(newest, batch(partition, 0, 0)),
        by(newest, batch(partition, 100, 10)),
        // Producer 0 was forgotten long ago, so it may begin with any sequence.
        by(0, batch(partition, 200, 10)),
    ];
    let duplicate = CommitVerdict::Duplicate { base_offset: end - 10, timestamp: NOW };
    assert_eq!(opened.commit(object, &batches), [duplicate, appended(end), appended(end + 10)]);
}

fn another_broker_has_written_since_its_rows_are_not_removed<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    for number in 0..1_100 {
        let object = opened.object();
        opened.commit(object, &[batch(partition, 0, number * 10)]);
    }
    let mut other = opened.another();
    let mut bases = Vec::new();
    for number in 0..5 {
        let object = UploadedObject { id: opened.object(), batches: vec![by(99, batch(partition, 0, number * 10))] };
        bases.push(other.commit(&[object], NOW).expect("committed").verdicts.remove(0).remove(0));
    }
    opened.tidy();
    let object = opened.object();
    let CommitVerdict::Appended { base_offset } = bases[0] else { panic!("{bases:?}") };
    let duplicate = CommitVerdict::Duplicate { base_offset, timestamp: NOW };
    assert_eq!(opened.commit(object, &[by(99, batch(partition, 0, 0))]), [duplicate]);
}

fn rows_of_producers_are_due_runs_are_deleted_as_well<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    let object = opened.object();
    let batches: Vec<_> = (0..9_000).map(|id| by(id, batch(partition, id as u32 * 100, 0))).collect();
    opened.commit(object, &batches);
    opened.index.store.move_log_start(partition, 90_000).expect("moved");
    assert!(opened.index.tidy(10, NOW).expect("tidied"));
    assert_eq!(opened.back_end.finder().runs_from(partition, 0, 1).expect("read"), []);
}

/// Commits one batch at `now_ms` and reads nothing else.
fn commit_at<B: BackEnd>(opened: &mut Opened<B>, batch: ObjectBatch, now_ms: i64) -> CommitVerdict {
    let object = UploadedObject { id: opened.object(), batches: vec![batch] };
    opened.index.commit(&[object], now_ms).expect("committed").verdicts[0][0]
}

fn tidy_at<B: BackEnd>(index: &mut Index<B::Store>, now_ms: i64) {
    while index.tidy(10, now_ms).expect("tidied") {}
}

fn producers_are_idle_they_are_forgotten_and_may_begin_anywhere<B: BackEnd>() {
    let mut opened = Opened::<B>::new(2);
    let [partition, other] = opened.partitions[..] else { panic!("two") };
    opened.index.expire_producers_after(1_000_000);
    let mut reader = opened.another();
    for (producer_id, of, at) in
        [(5, partition, NOW), (8, partition, NOW), (5, other, NOW), (7, partition, NOW + 900_000)]
    {
        assert!(matches!(commit_at(&mut opened, by(producer_id, batch(of, 0, 0)), at), CommitVerdict::Appended { .. }));
    }
    assert_eq!(commit_at(&mut opened, by(5, batch(partition, 0, 10)), NOW + 800_000), appended(30));
    tidy_at::<B>(&mut opened.index, NOW + 999_999);
    let known = |index: &mut Index<B::Store>, partition: DisklessPartitionId| {
        index.refresh_one(partition, i64::MAX).expect("known").expect("there");
        let state = &index.known[&partition];
        let mut ids: Vec<i64> = state.producers.iter().map(|producer| producer.producer_id).collect();
        ids.sort_unstable();
        (ids, state.expired_to)
    };
    assert_eq!(known(&mut opened.index, partition), (vec![5, 7, 8], -1));
    // The time at which the next pass of producer expiry is due.
    let then = NOW + 1_600_000;
    tidy_at::<B>(&mut opened.index, then);
    let forgotten = (vec![5, 7], 8);
    assert_eq!(known(&mut opened.index, partition), forgotten, "in memory");
    assert_eq!(known(&mut opened.another(), partition), forgotten, "and in the rows");
    assert_eq!(known(&mut reader, partition), forgotten, "and for who has read none before");
    assert_eq!(known(&mut opened.index, other), (vec![], 5));
    // Unknown producers with larger ids than every expired one have never written. Other unknown producers may have
    // written.
    let gap = CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence));
    assert_eq!(commit_at(&mut opened, by(9, batch(partition, 0, 10)), then), gap);
    assert_eq!(commit_at(&mut opened, by(8, batch(partition, 0, 70)), then), appended(40));
    assert_eq!(commit_at(&mut opened, by(6, batch(other, 0, 10)), then), gap);
    assert_eq!(commit_at(&mut opened, by(5, batch(other, 0, 10)), then), appended(10));
    assert_eq!(commit_at(&mut opened, by(9, batch(partition, 0, 0)), then), appended(50));
    let object = UploadedObject { id: opened.object(), batches: vec![by(5, batch(partition, 0, 10))] };
    let again = opened.another().commit(&[object], then).expect("committed").verdicts;
    assert_eq!(
        again,
        [[CommitVerdict::Duplicate { base_offset: 30, timestamp: NOW }]],
        "who wrote since has all its batches"
    );
}

/// The producer's only row is in the deleted partition. When this row expires, the new partition must record that a
/// producer was forgotten.
fn producer_expires_while_its_topic_is_made_again_it_may_begin_anywhere<B: BackEnd>() {
    let mut opened = Opened::<B>::new(2);
    opened.index.expire_producers_after(1_000_000);
    let [first, others] = opened.partitions[..] else { panic!("two") };
    for partition in [first, others] {
        assert_eq!(commit_at(&mut opened, batch(partition, 0, 0), NOW), appended(0));
    }
    let second = make_again(&mut opened, 1, true);
    let then = NOW + 1_600_000;
    tidy_at::<B>(&mut opened.index, then);
    assert_eq!(tails_left::<B>(&mut opened.another(), second), 0, "it has expired");
    opened.again();
    let gap = CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence));
    assert_eq!(commit_at(&mut opened, by(8, batch(second, 0, 10)), then), gap, "it has never written");
    // The first write is at another broker. It must read the partition's rows, although the partition has no record
    // yet.
    let object = UploadedObject { id: opened.object(), batches: vec![batch(second + 1, 0, 10)] };
    assert_eq!(opened.another().commit(&[object], then).expect("committed").verdicts, [[appended(0)]]);
    assert_eq!(commit_at(&mut opened, by(8, batch(second, 0, 0)), then), appended(0));
    opened.again();
    assert_eq!(commit_at(&mut opened, by(9, batch(second, 0, 10)), then), gap);
    assert_eq!(commit_at(&mut opened, by(6, batch(second, 0, 10)), then), appended(10), "one with a smaller id");
    // The next partition of the name also knows that producers were forgotten.
    let third = make_again(&mut opened, 2, true);
    opened.again();
    assert_eq!(commit_at(&mut opened, batch(third, 0, 10), then), appended(0));
}

fn many_producers_are_idle_they_are_removed_in_pieces<B: BackEnd>() {
    let mut opened = Opened::<B>::new(3);
    let partitions = opened.partitions.clone();
    let object = opened.object();
    let batches: Vec<ObjectBatch> =
        (0..30).map(|at| by(i64::from(at % 10), batch(partitions[at as usize / 10], at * 100, 0))).collect();
    opened.commit(object, &batches);
    let (mut at, mut pieces) = (0, Vec::new());
    while let Some((partition, has_more)) = opened.index.store.expire_producers(at, NOW, 4).expect("removed") {
        pieces.push(partition);
        at = if has_more { at } else { partition };
    }
    assert_eq!(pieces.len(), 9, "three pieces of each partition");
    assert_eq!(opened.index.store.expire_producers(0, NOW, 4).expect("removed"), None);
    assert_eq!(opened.back_end.finder().partitions(&[partitions[2]]).expect("read")[0].expired_to, 9);
}

fn idle_producers_have_very_many_rows_they_are_removed<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    const PRODUCERS: i64 = 5_000;
    for round in 0..10 {
        let object = opened.object();
        let batches: Vec<_> = (0..PRODUCERS).map(|id| by(id, batch(partition, id as u32 * 100, round * 10))).collect();
        opened.commit(object, &batches);
    }
    let (mut at, mut pieces) = (0, 0);
    while let Some((partition, has_more)) = opened.index.store.expire_producers(at, NOW, 1_024).expect("removed") {
        at = if has_more { at } else { partition };
        pieces += 1;
    }
    assert_eq!((opened.back_end.producer_rows(partition), pieces), (0, 5));
}

/// A producer becomes idle while a pass is under way. If this pass removed the producer's rows, every broker would
/// forget that this producer has written.
fn producer_becomes_idle_during_a_pass_it_waits_for_the_next_one<B: BackEnd>() {
    let mut opened = Opened::<B>::new(2);
    let [first, second] = opened.partitions[..] else { panic!("two") };
    opened.index.expire_producers_after(1_000);
    assert_eq!(commit_at(&mut opened, batch(first, 0, 0), NOW), appended(0));
    assert_eq!(commit_at(&mut opened, batch(second, 0, 0), NOW), appended(0));
    assert!(opened.index.tidy(10, NOW + 999).expect("tidied"), "the first partition has none that is silent");
    tidy_at::<B>(&mut opened.index, NOW + 1_000);
    let others: Vec<_> = (0..1_100).map(|at| by(100 + i64::from(at), batch(first, at * 100, 0))).collect();
    let object = opened.object();
    opened.index.commit(&[UploadedObject { id: object, batches: others }], NOW + 1_000).expect("committed");
    tidy_at::<B>(&mut opened.index, NOW + 1_000);
    opened.again();
    assert_eq!(commit_at(&mut opened, batch(first, 0, 10), NOW + 1_001), appended(11_010));
}

fn clock_is_set_back_no_pass_is_delayed<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    opened.index.expire_producers_after(1_000);
    tidy_at::<B>(&mut opened.index, NOW + 1_000_000_000_000);
    assert_eq!(commit_at(&mut opened, batch(partition, 0, 0), NOW), appended(0));
    tidy_at::<B>(&mut opened.index, NOW + 1_000);
    assert_eq!(opened.back_end.producer_rows(partition), 0);
}

#[test]
fn all_batches_of_a_row_are_before_the_retained_ones_the_row_is_removed() {
    let mut state = PartitionState::new(5);
    // Producers 7 and 8 commit in turn. Each of them makes seven commits of two batches.
    let rows: Vec<(i64, i64)> = (0..14).map(|at| (at * 20, 7 + at % 2)).collect();
    for (base_offset, producer_id) in &rows {
        for at in [0, 10] {
            let base_sequence = i32::try_from(base_offset / 40 * 20 + at).expect("small");
            let stamp = Stamp { producer_id: *producer_id, producer_epoch: 0, base_sequence, record_count: 10 };
            state.take_over(&AppendedBatch::plain(stamp, base_offset + at, NOW), NOW);
        }
    }
    // The five retained batches of producer 7 begin with the second batch of the row at offset 160.
    let needs = |offset| state.producers.needs(7, offset..=offset);
    assert!(needs(170) && !needs(169));
    let places = |rows: &[(i64, i64)]| -> Vec<ProducerRowPlace> {
        let place = |(base_offset, producer_id): &(i64, i64)| ProducerRowPlace {
            base_offset: *base_offset,
            last_base_offset: base_offset + 10,
            producer_id: *producer_id,
        };
        rows.iter().map(place).collect()
    };
    assert_eq!(trimming::removable(&places(&rows), &state), [0, 20, 40, 60, 80, 100, 120, 140]);
    let unknown = [(0, 99), (state.next_offset, 99)];
    assert_eq!(trimming::removable(&places(&unknown), &state), Vec::<i64>::new(), "it cannot be");
    state.has_forgotten = true;
    assert_eq!(trimming::removable(&places(&unknown), &state), [0], "what another has written since may be anybody's");
}
