//! Tests that the GC removes old rows of producers, and keeps those of the retained batches.

use super::*;
use crate::index::store::ProducerRowPlace;
use crate::index::trimming;
use fullbore_rules::commit::{AppendedBatch, PartitionState};

on_each_back_end! {
    producers_have_old_rows_all_but_the_retained_are_removed
    very_many_producers_have_old_rows_they_are_removed
    partition_has_more_producers_than_its_limit_it_opens_by_rows_of_a_few_times_as_many
    another_broker_has_written_since_its_rows_are_not_removed
    rows_of_producers_are_due_runs_are_deleted_as_well
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
