//! Tests that the rows of idle producers expire.

use super::*;
use fullbore_rules::commit::ObjectBatch;

on_each_back_end! {
    producers_are_idle_they_are_forgotten_and_may_begin_anywhere
    producer_expires_while_its_topic_is_made_again_it_may_begin_anywhere
    many_producers_are_idle_they_are_removed_in_pieces
    idle_producers_have_very_many_rows_they_are_removed
    producer_becomes_idle_during_a_pass_it_waits_for_the_next_one
    clock_is_set_back_no_pass_is_delayed
}

/// Commits one batch at `now_ms` and reads nothing else.
fn commit_at<B: BackEnd>(opened: &mut Opened<B>, batch: ObjectBatch, now_ms: i64) -> CommitVerdict {
    let object = UploadedObject { id: opened.object(), batches: vec![batch] };
    opened.index.commit(&[object], now_ms).expect("committed").verdicts[0][0]
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
