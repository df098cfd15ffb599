//! What the index keeps of producers, on each of its back ends: past the end of a partition, trimmed, and until they
//! expire.

use fullbore_rules::commit::{AppendedBatch, CommitVerdict, DisklessPartitionId, ObjectBatch, PartitionState, Refusal};
use fullbore_rules::sequence::{PRODUCERS_MAX, Producers, SequenceRefusal, Stamp, Stops};
use fullbore_wire::Uuid;

use super::postgres::tests::PostgresBackEnd;
use super::store::ProducerRowPlace;
use super::tests::{BackEnd, NOW, Opened, SqliteBackEnd, appended, batch, by, on_each_back_end};
use super::{ClassicStops, Index, IndexStore, UploadedObject, trimming};

on_each_back_end! {
    producers_go_on_where_their_topic_is_made_again
    a_producer_that_was_idle_goes_on_where_its_topic_is_made_again_twice
    classic_topic_was_in_between_its_producers_go_on_where_they_stopped_there
    classic_topic_was_in_between_whose_producers_are_not_known_other_stops_stay_where_others_commit
    classic_topic_was_in_between_as_the_metadata_remembers_its_producers_may_begin_anywhere
    producer_is_idle_in_several_topics_of_a_name_its_stop_is_carried_over
    partition_leaves_more_producers_than_its_limit_only_its_own_are_left
    what_deleted_partitions_leave_is_removed_in_time
    producers_are_trimmed_to_what_is_retained
    the_rows_of_very_many_producers_are_trimmed_too
    partition_has_more_producers_than_its_limit_it_opens_by_rows_of_a_few_times_as_many
    what_another_has_written_since_is_not_trimmed
    runs_are_cleared_while_there_are_rows_to_be_trimmed
    silent_producers_are_forgotten_and_may_begin_anywhere
    producer_expires_while_its_topic_is_made_again_it_may_begin_anywhere
    silent_producers_are_removed_in_pieces
    silent_producers_with_very_many_rows_are_removed
    what_expires_while_others_are_removed_waits_for_the_next_round
    a_clock_that_was_set_back_puts_no_round_off
}

/// Deletes the topic, and makes it again; its first partition.
fn make_again<B: BackEnd>(opened: &mut Opened<B>, life: u8, is_deleted_first: bool) -> DisklessPartitionId {
    let (old, new) = (Uuid([life; 16]), Uuid([life + 1; 16]));
    opened.back_end.add_topic("topic", new);
    let mut other = opened.back_end.store();
    if is_deleted_first {
        opened.index.store.delete(old, &[]).expect("deleted");
    }
    let made = other.create(("topic", new), 2).expect("made");
    // Who has not heard of it yet.
    opened.index.store.delete(old, &[]).expect("deleted");
    assert_eq!(opened.index.store.create(("topic", new), 2).expect("made"), made);
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
        // Of those that nobody has written to, the one before counts.
        if life < 3 {
            continue;
        }
        for mut index in [opened.another(), opened.another()] {
            let looked = index.look_at(partition, 0).expect("known").expect("there");
            assert_eq!((looked.row.next_offset, looked.predecessor.len()), (0, 2));
        }
        for (producer_id, base_sequence) in [(7, 40), (8, 20), (9, 30)] {
            let object = opened.object();
            assert_eq!(opened.commit(object, &[by(producer_id, batch(partition, 0, base_sequence))]), gap);
        }
        opened.again();
        let object = opened.object();
        // The answer of its last batch was lost.
        assert_eq!(
            opened.commit(object, &[batch(partition, 0, 20), batch(partition, 100, 30)]),
            [appended(0), appended(10)]
        );
    }
    // A producer begins after others have written: at a broker that has read all of it, and at one that knows nothing
    // yet.
    let left = |index: &mut Index<B::Store>| index.look_at(partition, 0).expect("known").expect("there").predecessor;
    let mut other = opened.another();
    assert_eq!((left(&mut opened.index).len(), left(&mut other).len()), (1, 1));
    let object = UploadedObject { id: opened.object(), batches: vec![by(8, batch(partition, 0, 20))] };
    assert_eq!(opened.index.commit(&[object], NOW).expect("committed").verdicts, [gap], "it has overtaken its next");
    let object = UploadedObject { id: opened.object(), batches: vec![by(8, batch(partition, 0, 0))] };
    assert_eq!(other.commit(&[object], NOW).expect("committed").verdicts, [[appended(20)]]);
    assert_eq!((left(&mut opened.index).len(), left(&mut opened.another()).len()), (0, 0));
}

fn a_producer_that_was_idle_goes_on_where_its_topic_is_made_again_twice<B: BackEnd>() {
    let gap = [CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence))];
    let mut opened = Opened::<B>::new(2);
    let object = opened.object();
    opened.commit(object, &[batch(opened.partitions[0], 0, 0)]);
    for life in 1..4 {
        let partition = make_again(&mut opened, life, life != 2);
        opened.tidy();
        opened.again();
        // Another producer writes to each of the topics in between.
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

/// Enters a deleted classic topic before a diskless one and makes that, at two brokers; its first partition.
fn make_behind_classic<B: BackEnd>(opened: &mut Opened<B>, topic: Uuid, before: &Stops) -> DisklessPartitionId {
    let before = ClassicStops::of_topic(2, |index| if index == 0 { before.clone() } else { Stops::default() });
    opened.back_end.add_topic("topic", topic);
    let mut made = Vec::new();
    for store in [&mut opened.back_end.store(), &mut opened.index.store] {
        store.succeed_classic(("topic", topic), &before).expect("entered");
        made.push(store.create(("topic", topic), 2).expect("made")[0].id);
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
    // 7 goes on in the classic one, and 9 begins.
    let mut classic = Producers::default();
    let stamp = |producer_id, base_sequence| Stamp { producer_id, producer_epoch: 0, base_sequence, record_count: 10 };
    [stamp(7, 10), stamp(9, 0)].iter().zip([0, 10]).for_each(|(stamp, at)| classic.append(stamp, at, 0, 0, 5));
    let partition = make_behind_classic(&mut opened, Uuid([2; 16]), &classic.stops());
    opened.tidy();
    for is_new in [false, true] {
        if is_new {
            opened.again();
        }
        assert_eq!(stops_left::<B>(&mut opened.index, partition), 3);
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
    // Once there is the topic, nothing of a classic one comes before it.
    assert_eq!(make_behind_classic(&mut opened, Uuid([2; 16]), &Stops::partial()), partition);
    opened.index.store.delete(Uuid([2; 16]), &[]).expect("deleted");
    opened.back_end.add_topic("topic", Uuid([3; 16]));
    let partition = opened.index.store.create(("topic", Uuid([3; 16])), 2).expect("made")[0].id;
    assert_eq!(stops_left::<B>(&mut opened.index, partition), 4);
    let object = opened.object();
    assert_eq!(opened.commit(object, &[by(9, batch(partition, 0, 30))]), gap);
    let object = opened.object();
    assert_eq!(opened.commit(object, &[by(9, batch(partition, 0, 20))]), [appended(0)]);
}

fn classic_topic_was_in_between_whose_producers_are_not_known_other_stops_stay_where_others_commit<B: BackEnd>() {
    let mut opened = Opened::<B>::new(2);
    let object = opened.object();
    opened.commit(object, &[batch(opened.partitions[0], 0, 0)]);
    opened.index.store.delete(Uuid([1; 16]), &[]).expect("deleted");
    let partition = make_behind_classic(&mut opened, Uuid([2; 16]), &Stops::partial());
    opened.tidy();
    opened.again();
    let others_commit = std::any::type_name::<B>() == std::any::type_name::<PostgresBackEnd>();
    assert_eq!(stops_left::<B>(&mut opened.index, partition), usize::from(others_commit));
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
        let partition = make_behind_classic(&mut opened, Uuid([2; 16]), &Stops::partial().of_ids_below(9));
        opened.tidy();
        if is_expired {
            while opened.index.store.expire_producers(0, i64::MAX - 1, 10).expect("expired").is_some() {}
        }
        opened.again();
        let looked = opened.index.look_at(partition, 0).expect("known").expect("there");
        assert_eq!((looked.predecessor.len(), looked.row.expired_to), (0, if is_expired { 8 } else { -1 }));
        assert_eq!(looked.predecessor.unknown_below(), if is_expired { 0 } else { 9 });
        for (producer_id, verdict) in [(9, gap), (7, [appended(0)]), (8, [appended(10)])] {
            let object = opened.object();
            let verdicts = opened.commit(object, &[by(producer_id, batch(partition, 0, 70))]);
            assert_eq!(verdicts, verdict, "{producer_id}");
        }
    }
}

fn stops_left<B: BackEnd>(index: &mut Index<B::Store>, partition: DisklessPartitionId) -> usize {
    index.look_at(partition, 0).expect("known").expect("there").predecessor.len()
}

/// In a cluster it waited for what it had sent long ago, and was refused for good.
fn producer_is_idle_in_several_topics_of_a_name_its_stop_is_carried_over<B: BackEnd>() {
    let gap = [CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence))];
    let mut opened = Opened::<B>::new(2);
    let object = opened.object();
    // Each of the others goes on in another life, and 7 in the last one.
    let all: Vec<_> = (7..11).map(|of| by(of, batch(opened.partitions[0], 100 * of as u32, 0))).collect();
    opened.commit(object, &all);
    for life in 1..4 {
        let partition = make_again(&mut opened, life, life != 2);
        opened.tidy();
        opened.again();
        assert_eq!(
            (stops_left::<B>(&mut opened.index, partition), stops_left::<B>(&mut opened.another(), partition)),
            (4, 4)
        );
        let object = opened.object();
        assert_eq!(opened.commit(object, &[by(7 + i64::from(life), batch(partition, 0, 10))]), [appended(0)]);
        assert_eq!(
            (stops_left::<B>(&mut opened.index, partition), stops_left::<B>(&mut opened.another(), partition)),
            (3, 3)
        );
    }
    // To one only what has no producer is written.
    let partition = make_again(&mut opened, 4, true);
    let object = opened.object();
    assert_eq!(opened.commit(object, &[by(-1, batch(partition, 0, -1))]), [appended(0)]);
    let partition = make_again(&mut opened, 5, false);
    opened.tidy();
    opened.again();
    assert_eq!(stops_left::<B>(&mut opened.index, partition), 4);
    for (producer_id, next) in [(7, 10), (8, 20), (9, 20), (10, 20)] {
        let object = opened.object();
        let overtaken = by(producer_id, batch(partition, 0, next + 10));
        assert_eq!(opened.commit(object, &[overtaken]), gap, "{producer_id} stopped before");
    }
    let object = opened.object();
    assert_eq!(opened.commit(object, &[batch(partition, 0, 10)]), [appended(0)]);
}

/// As of a partition that is there, what is known beyond the limit is left out; any next batch of those producers is
/// taken.
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
        assert_eq!(stops_left::<B>(&mut opened.index, partition), expected);
        let object = opened.object();
        let next = [by(half, batch(partition, 0, 10)), by(0, batch(partition, 100, 10))];
        assert_eq!(opened.commit(object, &next), [appended(0), appended(10)]);
    }
}

fn what_deleted_partitions_leave_is_removed_in_time<B: BackEnd>() {
    let mut opened = Opened::<B>::new(2);
    let rows = |opened: &mut Opened<B>, id: DisklessPartitionId| {
        opened.tidy();
        opened.back_end.producer_rows(id)
    };
    let first = opened.partitions[0];
    // More than are removed at a time.
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
    // Without producers of its own it leaves that, and what the one before it has left.
    let object = opened.object();
    let anonymous = by(-1, batch(third, 0, -1));
    assert_eq!(opened.commit(object, &[anonymous]), [appended(0)]);
    let fourth = make_again(&mut opened, 3, true);
    assert_eq!((rows(&mut opened, second), rows(&mut opened, third)), (0, 2));
    assert_eq!(stops_left::<B>(&mut opened.another(), fourth), 1);
    let object = opened.object();
    opened.commit(object, &[batch(fourth, 0, 0)]);
    let fifth = make_again(&mut opened, 4, true);
    // The database's clock has gone on since the commit, and goes no further ahead.
    opened.index.expire_producers_after(0);
    tidy_at::<B>(&mut opened.index, fullbore_host::files::now_ms() + 2_000);
    assert_eq!(rows(&mut opened, fourth), 0, "it has expired");
    assert_eq!(stops_left::<B>(&mut opened.another(), fifth), 0);
}

fn producers_are_trimmed_to_what_is_retained<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    opened.index.retain_batches(&[partition], 200).expect("retained");
    let object = opened.object();
    opened.commit(object, &[by(8, batch(partition, 0, 0))]);
    const ROWS: i32 = 1_500;
    for number in 0..ROWS {
        // Each in a commit of its own, so that each is a row.
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

/// Rows of one producer lie far apart then.
fn the_rows_of_very_many_producers_are_trimmed_too<B: BackEnd>() {
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
    // Until a pass is back at the beginning, as many rows come as half of those that it goes through.
    let rows = opened.back_end.producer_rows(partition);
    assert!((5 * PRODUCERS..16 * PRODUCERS).contains(&(rows as i64)), "{rows}");
    assert_eq!(
        opened.another().look_at(partition, 0).expect("known").expect("there").row.next_offset,
        40 * 10 * PRODUCERS
    );
}

/// An opening reads all rows of a partition in one statement, which has a time limit.
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
    assert_eq!(opened.index.look_at(partition, 0).expect("known").expect("there").row.next_offset, end);
    assert_eq!(opened.index.known[&partition].producers.len(), PRODUCERS_MAX);
    let newest = commits * PER_COMMIT - 1;
    let object = opened.object();
    let batches = [
        by(newest, batch(partition, 0, 0)),
        by(newest, batch(partition, 100, 10)),
        // Forgotten long ago, it may begin anywhere.
        by(0, batch(partition, 200, 10)),
    ];
    let duplicate = CommitVerdict::Duplicate { base_offset: end - 10, timestamp: NOW };
    assert_eq!(opened.commit(object, &batches), [duplicate, appended(end), appended(end + 10)]);
}

fn what_another_has_written_since_is_not_trimmed<B: BackEnd>() {
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

fn runs_are_cleared_while_there_are_rows_to_be_trimmed<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    let object = opened.object();
    let batches: Vec<_> = (0..9_000).map(|id| by(id, batch(partition, id as u32 * 100, 0))).collect();
    opened.commit(object, &batches);
    opened.index.store.move_log_start(partition, 90_000).expect("moved");
    assert!(opened.index.tidy(10, NOW).expect("tidied"));
    assert_eq!(opened.back_end.finder().runs_from(partition, 0, 1).expect("read"), []);
}

/// Commits one batch at this time, and looks at nothing else.
fn commit_at<B: BackEnd>(opened: &mut Opened<B>, batch: ObjectBatch, now_ms: i64) -> CommitVerdict {
    let object = UploadedObject { id: opened.object(), batches: vec![batch] };
    opened.index.commit(&[object], now_ms).expect("committed").verdicts[0][0]
}

fn tidy_at<B: BackEnd>(index: &mut Index<B::Store>, now_ms: i64) {
    while index.tidy(10, now_ms).expect("tidied") {}
}

fn silent_producers_are_forgotten_and_may_begin_anywhere<B: BackEnd>() {
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
        index.look_at(partition, i64::MAX).expect("known").expect("there");
        let state = &index.known[&partition];
        let mut ids: Vec<i64> = state.producers.iter().map(|producer| producer.producer_id).collect();
        ids.sort_unstable();
        (ids, state.expired_to)
    };
    assert_eq!(known(&mut opened.index, partition), (vec![5, 7, 8], -1));
    // The next round.
    let then = NOW + 1_600_000;
    tidy_at::<B>(&mut opened.index, then);
    let forgotten = (vec![5, 7], 8);
    assert_eq!(known(&mut opened.index, partition), forgotten, "in memory");
    assert_eq!(known(&mut opened.another(), partition), forgotten, "and in the rows");
    assert_eq!(known(&mut reader, partition), forgotten, "and for who has read none before");
    assert_eq!(known(&mut opened.index, other), (vec![], 5));
    // What is not known and has a larger id has never written; any other may have.
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

/// Its row was that of the deleted partition, of which no partition keeps what has expired.
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
    assert_eq!(stops_left::<B>(&mut opened.another(), second), 0, "it has expired");
    opened.again();
    let gap = CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence));
    assert_eq!(commit_at(&mut opened, by(8, batch(second, 0, 10)), then), gap, "it has never written");
    // Before anything is written, at a broker that reads the rows; and afterwards.
    let object = UploadedObject { id: opened.object(), batches: vec![batch(second + 1, 0, 10)] };
    assert_eq!(opened.another().commit(&[object], then).expect("committed").verdicts, [[appended(0)]]);
    assert_eq!(commit_at(&mut opened, by(8, batch(second, 0, 0)), then), appended(0));
    opened.again();
    assert_eq!(commit_at(&mut opened, by(9, batch(second, 0, 10)), then), gap);
    assert_eq!(commit_at(&mut opened, by(6, batch(second, 0, 10)), then), appended(10), "one with a smaller id");
    // The next one of the name knows that some were forgotten.
    let third = make_again(&mut opened, 2, true);
    opened.again();
    assert_eq!(commit_at(&mut opened, batch(third, 0, 10), then), appended(0));
}

fn silent_producers_are_removed_in_pieces<B: BackEnd>() {
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

fn silent_producers_with_very_many_rows_are_removed<B: BackEnd>() {
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

/// Or its rows might be trimmed, and nobody would know any more that it has written.
fn what_expires_while_others_are_removed_waits_for_the_next_round<B: BackEnd>() {
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

fn a_clock_that_was_set_back_puts_no_round_off<B: BackEnd>() {
    let mut opened = Opened::<B>::new(1);
    let partition = opened.partitions[0];
    opened.index.expire_producers_after(1_000);
    tidy_at::<B>(&mut opened.index, NOW + 1_000_000_000_000);
    assert_eq!(commit_at(&mut opened, batch(partition, 0, 0), NOW), appended(0));
    tidy_at::<B>(&mut opened.index, NOW + 1_000);
    assert_eq!(opened.back_end.producer_rows(partition), 0);
}

#[test]
fn a_row_goes_once_all_its_batches_are_before_what_is_retained() {
    let mut state = PartitionState::new(5);
    // Seven commits of two batches each of one producer, and between them one each of another.
    let rows: Vec<(i64, i64)> = (0..14).map(|at| (at * 20, 7 + at % 2)).collect();
    for (base_offset, producer_id) in &rows {
        for at in [0, 10] {
            let base_sequence = i32::try_from(base_offset / 40 * 20 + at).expect("small");
            let stamp = Stamp { producer_id: *producer_id, producer_epoch: 0, base_sequence, record_count: 10 };
            state.take_over(&AppendedBatch::plain(stamp, base_offset + at, NOW), NOW);
        }
    }
    // The last five batches of 7 begin in the second half of the row at 160.
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
