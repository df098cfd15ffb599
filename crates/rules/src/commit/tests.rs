//! Tests of single commits and admissions.

use std::collections::HashMap;
use std::time::Duration;

use fullbore_wire::ErrorCode;

use super::admission::{Admission, BatchNumber, Freshness, PartitionAdmission};
use super::*;
use crate::sequence::Verdict as Sequence;
use crate::sequence::{Producers, SequenceRefusal, Stamp};

const WINDOW: usize = 128;
const AT: Duration = Duration::from_secs(1000);
const BEHIND: Admission = Admission::Refuse(SequenceRefusal::BehindRefused(ErrorCode::KAFKA_STORAGE_ERROR));
const STORAGE: ErrorCode = ErrorCode::KAFKA_STORAGE_ERROR;

pub(super) struct Case {
    pub partitions: HashMap<DisklessPartitionId, PartitionState>,
    pub deleted: HashMap<DisklessPartitionId, Producers>,
}

impl Case {
    pub fn new(partitions: i64) -> Case {
        let partitions = (0..partitions).map(|id| (id, PartitionState::new(WINDOW))).collect();
        Case { partitions, deleted: HashMap::new() }.expired_to(i64::MAX)
    }

    /// Sets the largest id of a producer whose state may have expired.
    fn expired_to(mut self, id: i64) -> Case {
        self.partitions.values_mut().for_each(|state| state.expired_to = id);
        self
    }

    pub fn commit(&mut self, objects: &[FinishedObject]) -> CommitDecision {
        let Case { partitions, deleted } = self;
        let mut commit_state = CommitState { partitions, deleted, now_ms: 0 };
        commit(&mut commit_state, objects)
    }

    /// Commits an object, and returns the verdicts on its batches.
    pub fn verdicts(&mut self, id: ObjectId, batches: &[ObjectBatch]) -> Vec<CommitVerdict> {
        self.commit(&[object(id, batches)]).verdicts.remove(0)
    }
}

/// Returns a registered object that contains these batches.
pub(super) fn object(id: ObjectId, batches: &[ObjectBatch]) -> FinishedObject {
    let mut position = 0;
    let place = |batch: &ObjectBatch| {
        let placed = ObjectBatch { position, ..*batch };
        position += batch.size;
        placed
    };
    FinishedObject { id, state: ObjectState::Registered, batches: batches.iter().map(place).collect() }
}

fn stamp(producer_id: i64, base_sequence: i32, record_count: i32) -> Stamp {
    Stamp { producer_id, producer_epoch: 0, base_sequence, record_count }
}

/// Returns a batch with ten bytes per record.
pub(super) fn batch(partition: DisklessPartitionId, stamp: Stamp) -> ObjectBatch {
    let size = u32::try_from(stamp.record_count * 10).expect("few");
    ObjectBatch {
        partition,
        position: 0,
        size,
        stamp,
        max_timestamp: i64::from(stamp.base_sequence),
        kind: BatchKind::Plain,
        confirmation: None,
    }
}

pub(super) fn appended(base_offset: i64) -> CommitVerdict {
    CommitVerdict::Appended { base_offset }
}

pub(super) const OUT_OF_ORDER: CommitVerdict =
    CommitVerdict::Refused(Refusal::Sequence(SequenceRefusal::OutOfOrderSequence));

#[test]
fn adjacent_batches_of_a_partition_are_one_run_and_offsets_are_dense() {
    let mut case = Case::new(2);
    let batches =
        [batch(0, stamp(7, 0, 3)), batch(0, stamp(8, 0, 2)), batch(1, stamp(7, 0, 4)), batch(1, stamp(-1, -1, 1))];
    let decided = case.commit(&[object(1, &batches), object(2, &[batch(0, stamp(7, 3, 5))])]);
    assert_eq!(decided.verdicts, [vec![appended(0), appended(3), appended(0), appended(4)], vec![appended(5)]]);
    let rows: Vec<_> = decided
        .runs
        .iter()
        .map(|run| (run.partition, run.object, run.base_offset, run.end_offset(), run.position))
        .collect();
    assert_eq!(rows, [(0, 1, 0, 5, 0), (1, 1, 0, 5, 50), (0, 2, 5, 10, 0)]);
    assert_eq!(decided.objects.iter().map(|object| object.live_bytes).collect::<Vec<_>>(), [100, 50]);
    // Each producer has one row per partition, however many objects it wrote to. Batches without idempotence have no
    // row.
    let of: Vec<_> = decided.producers.iter().map(|row| (row.partition, row.producer_id, row.batches.len())).collect();
    assert_eq!(of, [(0, 7, 2), (0, 8, 1), (1, 7, 1)]);
    assert_eq!((case.partitions[&0].next_offset, case.partitions[&0].bytes), (10, 100));
}

#[test]
fn refused_batch_ends_a_run_and_takes_no_offset() {
    let mut case = Case::new(1);
    case.verdicts(1, &[batch(0, stamp(7, 0, 2))]);
    let again =
        [batch(0, stamp(8, 0, 1)), batch(0, stamp(7, 0, 2)), batch(0, stamp(8, 1, 1)), batch(0, stamp(7, 9, 1))];
    let decided = case.commit(&[object(2, &again)]);
    let duplicate = CommitVerdict::Duplicate { base_offset: 0, timestamp: 0 };
    assert_eq!(decided.verdicts[0], [appended(2), duplicate, appended(3), OUT_OF_ORDER]);
    let rows: Vec<_> = decided.runs.iter().map(|run| (run.base_offset, run.position, run.bytes())).collect();
    assert_eq!(rows, [(2, 0, 10), (3, 30, 10)]);
}

#[test]
fn object_without_appended_batches_has_no_live_bytes() {
    let mut case = Case::new(1);
    case.verdicts(1, &[batch(0, stamp(7, 0, 2))]);
    let decided = case.commit(&[object(2, &[batch(0, stamp(7, 0, 2)), batch(5, stamp(7, 0, 2))])]);
    assert_eq!(decided.verdicts[0][1], CommitVerdict::Refused(Refusal::PartitionGone));
    assert_eq!(decided.objects, [CommittedObject { id: 2, live_bytes: 0 }]);
    assert!(decided.runs.is_empty() && decided.producers.is_empty());
}

#[test]
fn repeated_commit_gives_the_same_verdicts_and_appends_nothing() {
    let mut case = Case::new(2).expired_to(8);
    case.verdicts(1, &[batch(0, stamp(7, 0, 2))]);
    // The first commit refuses the last batch. When the commit is repeated, the batch is in order, but must still be
    // refused.
    let batches =
        [batch(0, stamp(7, 0, 2)), batch(0, stamp(7, 2, 2)), batch(1, stamp(-1, -1, 3)), batch(1, stamp(9, 4, 1))];
    let first = case.commit(&[object(2, &batches)]);
    case.verdicts(3, &[batch(1, stamp(9, 0, 4)), batch(0, stamp(7, 4, 2))]);
    let before = case.partitions[&1].next_offset;
    let mut committed = object(2, &batches);
    committed.state = ObjectState::Live(first.runs.clone());
    let again = case.commit(&[committed]);
    assert_eq!(again.verdicts[0][..3], first.verdicts[0][..3]);
    assert_eq!((first.verdicts[0][3], again.verdicts[0][3]), (OUT_OF_ORDER, CommitVerdict::Refused(Refusal::Earlier)));
    assert!(again.runs.is_empty() && again.objects.is_empty() && again.producers.is_empty());
    assert_eq!(case.partitions[&1].next_offset, before);
}

/// The response to a commit is lost. Then the topic is deleted, and the commit is repeated. The repeated commit must
/// return the batches as duplicates with their offsets.
#[test]
fn deleted_partition_acknowledges_batches_committed_before() {
    let mut case = Case::new(2);
    let batches: Vec<_> = (0..3).map(|n| batch(1, stamp(7, 10 * n, 10))).collect();
    assert_eq!(case.verdicts(1, &batches), [appended(0), appended(10), appended(20)]);
    let mut gone = case.partitions.remove(&1).expect("there").producers;
    let made = |n: i64| CommitVerdict::Duplicate { base_offset: 10 * n, timestamp: 10 * n };
    let refused = |why| CommitVerdict::Refused(why);
    // Two cases of the repeated commit: the extents were deleted, or the batches are in another object.
    for state in [ObjectState::Live(Vec::new()), ObjectState::Registered] {
        let again = FinishedObject { state, ..object(1, &batches) };
        case.deleted.clear();
        assert_eq!(case.commit(std::slice::from_ref(&again)).verdicts[0], [refused(Refusal::PartitionGone); 3]);
        case.deleted.insert(1, gone.clone());
        assert_eq!(case.commit(&[again]).verdicts[0], [made(0), made(1), made(2)]);
    }
    let others = [
        batch(1, stamp(7, 30, 10)),
        batch(1, stamp(7, 15, 10)),
        batch(1, stamp(8, 0, 10)),
        batch(1, Stamp { producer_epoch: 1, ..stamp(7, 0, 10) }),
        batch(1, stamp(-1, -1, 10)),
    ];
    assert_eq!(case.verdicts(2, &others), [refused(Refusal::PartitionGone); 5], "they were never written");
    // The state of the deleted partition has only the newest commit of each producer, so older batches get no offsets.
    let mut newest = Producers::default();
    newest.append(&stamp(7, 20, 10), 20, 20, 0, WINDOW);
    case.deleted.insert(1, newest);
    let old = refused(Refusal::Sequence(SequenceRefusal::DuplicateSequence));
    assert_eq!(case.verdicts(4, &batches), [old, old, made(2)]);
    // The state has only the five newest batches of the producer. Older batches were written too, so they count as
    // duplicates.
    (3..300).for_each(|n| gone.append(&stamp(7, 10 * n, 10), i64::from(10 * n), 0, 0, 5));
    case.deleted.insert(1, gone);
    assert_eq!(case.verdicts(3, &batches[..1]), [old], "at an offset that is forgotten");
}

#[test]
fn deleted_object_commits_nothing() {
    let mut case = Case::new(1);
    let mut late = object(1, &[batch(0, stamp(7, 0, 2))]);
    late.state = ObjectState::Gone;
    assert_eq!(case.commit(&[late]).verdicts[0], [CommitVerdict::Refused(Refusal::ObjectGone)]);
    assert_eq!(case.partitions[&0].next_offset, 0);
}

#[test]
fn new_producer_must_begin_at_zero_in_a_written_partition() {
    let mut case = Case::new(1);
    case.verdicts(1, &[batch(0, stamp(7, 0, 2))]);
    case = case.expired_to(9);
    assert_eq!(case.verdicts(2, &[batch(0, stamp(10, 5, 1))]), [OUT_OF_ORDER]);
    assert_eq!(case.verdicts(3, &[batch(0, stamp(9, 5, 1))]), [appended(2)], "its state may have expired");
    assert_eq!(case.verdicts(4, &[batch(0, stamp(10, 0, 1))]), [appended(3)]);
    case.partitions.get_mut(&0).expect("there").has_forgotten = true;
    assert_eq!(case.verdicts(5, &[batch(0, stamp(11, 5, 1))]), [appended(4)], "it may have been forgotten");
}

#[test]
fn largest_timestamp_so_far_never_falls() {
    let mut case = Case::new(1);
    let at = |sequence, max_timestamp| ObjectBatch { max_timestamp, ..batch(0, stamp(7, sequence, 1)) };
    let decided = case.commit(&[object(1, &[at(0, 50), at(1, 20)]), object(2, &[at(2, 30)]), object(3, &[at(3, 60)])]);
    let largest: Vec<i64> = decided.runs.iter().map(|run| run.max_timestamp_so_far).collect();
    assert_eq!(largest, [50, 50, 60]);
}

/// Returns the state of a partition with these committed batches, and the admission of a broker that knows the state.
fn admitting(committed: &[ObjectBatch]) -> (PartitionState, PartitionAdmission) {
    let mut case = Case::new(1);
    case.verdicts(1, committed);
    (case.partitions.remove(&0).expect("there"), PartitionAdmission::default())
}

#[test]
fn batches_that_follow_pending_ones_are_admitted_at_once() {
    let (state, mut admission) = admitting(&[batch(0, stamp(7, 0, 2))]);
    for (batch_number, sequence) in [(1, 2), (2, 4), (3, 6)] {
        let next = stamp(7, sequence, 2);
        assert_eq!(admission.check(&next, &state, Freshness::MayBeStale, AT), Admission::Admit);
        admission.admitted(&next, batch_number, None);
    }
    assert_eq!(admission.check(&stamp(7, 4, 2), &state, Freshness::MayBeStale, AT), Admission::Shares(2));
    let duplicate = Admission::Duplicate { base_offset: 0, timestamp: 0 };
    assert_eq!(admission.check(&stamp(7, 0, 2), &state, Freshness::MayBeStale, AT), duplicate);
}

#[test]
fn stale_state_neither_refuses_nor_admits_a_new_producer() {
    let (mut state, mut admission) = admitting(&[batch(0, stamp(7, 0, 2))]);
    let (next, ahead, stranger) = (stamp(7, 2, 2), stamp(7, 4, 2), stamp(8, 0, 2));
    for unsure in [ahead, stranger] {
        assert_eq!(admission.check(&unsure, &state, Freshness::MayBeStale, AT), Admission::Ask, "{unsure:?}");
    }
    let refused = Admission::Refuse(SequenceRefusal::OutOfOrderSequence);
    assert_eq!(admission.check(&ahead, &state, Freshness::Current, AT), refused);
    assert_eq!(admission.check(&stranger, &state, Freshness::Current, AT), Admission::Admit);
    // Another broker commits the missing batch.
    state.take_over(&AppendedBatch::plain(next, 2, 0), 0);
    assert_eq!(admission.check(&ahead, &state, Freshness::MayBeStale, AT), Admission::Admit);
    admission.admitted(&ahead, 1, None);
    // This batch has the next sequence after the committed batches, but not after the pending one.
    assert_eq!(admission.check(&stamp(7, 4, 1), &state, Freshness::Current, AT), refused);
}

#[test]
fn batches_admitted_behind_a_failed_one_are_dead() {
    let (state, mut admission) = admitting(&[]);
    let of = |n: i32| stamp(7, n * 2, 2);
    for n in 0..4 {
        admission.admitted(&of(n), n as BatchNumber, None);
    }
    admission.admitted(&stamp(8, 0, 1), 9, None);
    admission.committed(&of(0), 0);
    assert_eq!(admission.failed(&of(1), 1, STORAGE, AT), [2, 3]);
    assert!(admission.failed(&of(2), 2, STORAGE, AT).is_empty(), "once");
    assert_eq!(
        admission.check(&stamp(8, 0, 1), &state, Freshness::MayBeStale, AT),
        Admission::Shares(9),
        "others are not concerned"
    );
    let mut state = state;
    state.take_over(&AppendedBatch::plain(of(0), 0, 0), 0);
    assert_eq!(admission.check(&of(1), &state, Freshness::MayBeStale, AT), Admission::Admit, "it is sent again");
    admission.committed(&stamp(8, 0, 1), 9);
    assert!(!admission.is_empty(), "it is known which is sent again");
    admission.admitted(&of(1), 10, None);
    admission.committed(&of(1), 10);
    assert!(admission.is_empty());
}

#[test]
fn batch_behind_a_failed_one_is_not_taken_for_the_first_of_its_producer() {
    // Another producer has written to the partition, so its next offset is above 0 and an unknown producer may have
    // written before.
    let (committed, mut pending) = admitting(&[batch(0, stamp(1, 0, 10))]);
    let check = |pending: &PartitionAdmission, stamp: &Stamp| pending.check(stamp, &committed, Freshness::Current, AT);
    let (first, second) = (stamp(7, 20, 10), stamp(7, 30, 10));
    pending.admitted(&first, 1, None);
    assert_eq!(pending.failed(&first, 1, STORAGE, AT), Vec::<BatchNumber>::new());
    // The second batch was already in flight when the first one failed.
    assert_eq!(check(&pending, &second), BEHIND);
    let of_next_epoch = |base_sequence| Stamp { producer_epoch: 1, ..stamp(7, base_sequence, 10) };
    assert_eq!(check(&pending, &of_next_epoch(0)), Admission::Admit);
    assert_ne!(check(&pending, &of_next_epoch(10)), Admission::Admit);
    assert_eq!(check(&pending, &first), Admission::Admit);
    pending.admitted(&first, 2, None);
    assert_eq!(check(&pending, &second), Admission::Admit);
    pending.committed(&first, 2);
    assert!(pending.is_empty());
    // A batch that is refused before its admission also makes later batches fail.
    pending.turned_away(&first, STORAGE, AT);
    assert_eq!(check(&pending, &second), BEHIND);
    assert_eq!(check(&pending, &first), Admission::Admit);
    // The number of remembered refusals is limited. Above the limit, the smallest producer ids are forgotten.
    for producer_id in 100..2000 {
        pending.admitted(&stamp(producer_id, 5, 1), 3, None);
        let _ = pending.failed(&stamp(producer_id, 5, 1), 3, STORAGE, AT);
    }
    assert_eq!(check(&pending, &stamp(100, 6, 1)), Admission::Admit);
    assert_ne!(check(&pending, &stamp(1999, 6, 1)), Admission::Admit);
    pending.forget_refused();
    assert!(pending.is_empty());
}

#[test]
fn batch_behind_one_refused_beside_pending_ones_gets_its_error() {
    let (committed, mut admission) = admitting(&[batch(0, stamp(7, 0, 10))]);
    let of = |n: i32| stamp(7, n * 10, 10);
    let (first, refused, behind) = (of(1), of(2), of(3));
    admission.admitted(&first, 1, None);
    admission.turned_away(&refused, STORAGE, AT);
    for known in [Freshness::MayBeStale, Freshness::Current] {
        let expected = if known == Freshness::Current { BEHIND } else { Admission::Ask };
        assert_eq!(admission.check(&behind, &committed, known, AT), expected, "the coordinator is asked first");
    }
    // The batch before the refused one fails as well, and the client resends that earlier batch first.
    assert_eq!(admission.failed(&first, 1, STORAGE, AT), Vec::<BatchNumber>::new());
    assert_eq!(admission.check(&refused, &committed, Freshness::Current, AT), BEHIND);
    for (n, batch_number) in [(1, 2), (2, 3), (3, 4)] {
        assert_eq!(admission.check(&of(n), &committed, Freshness::Current, AT), Admission::Admit);
        admission.admitted(&of(n), batch_number, None);
    }
    let gap = Admission::Refuse(SequenceRefusal::OutOfOrderSequence);
    assert_eq!(admission.check(&of(5), &committed, Freshness::Current, AT), gap);
}

#[test]
fn partition_decides_by_the_rules_of_sequences() {
    let state = PartitionState::new(WINDOW);
    assert_eq!(state.check(&stamp(7, 0, 2)), Sequence::Append);
    assert_eq!(state.check(&stamp(7, 2, 2)), Sequence::Refuse(SequenceRefusal::OutOfOrderSequence));
}

#[test]
fn batch_behind_a_refused_one_of_the_same_commit_is_not_taken_for_the_first() {
    let mut case = Case::new(2);
    // Both partitions are written first. In a partition with records, an expired producer may begin with any sequence.
    assert_eq!(case.verdicts(1, &[batch(0, stamp(1, 0, 5)), batch(1, stamp(1, 0, 5))]), [appended(0), appended(0)]);
    let late = FinishedObject { state: ObjectState::Gone, ..object(2, &[batch(0, stamp(7, 0, 5))]) };
    let behind = object(3, &[batch(0, stamp(7, 5, 5)), batch(0, stamp(8, 3, 1)), batch(1, stamp(7, 5, 5))]);
    let decided = case.commit(&[late, behind]);
    let refused = CommitVerdict::Refused(Refusal::Behind);
    assert_eq!(decided.verdicts[1], [refused, appended(5), appended(5)]);
    let verdicts = case.verdicts(4, &[batch(0, stamp(8, 9, 1)), batch(0, stamp(8, 4, 1))]);
    assert_eq!(verdicts, [OUT_OF_ORDER, refused]);
}

#[test]
fn batch_of_an_older_epoch_than_pending_ones_is_fenced() {
    let (committed, mut admission) = admitting(&[batch(0, stamp(7, 0, 10))]);
    let later = Stamp { producer_epoch: 1, ..stamp(7, 0, 10) };
    admission.admitted(&later, 1, None);
    let check = |known| admission.check(&stamp(7, 10, 10), &committed, known, AT);
    assert_eq!(check(Freshness::MayBeStale), Admission::Ask);
    assert_eq!(check(Freshness::Current), Admission::Refuse(SequenceRefusal::InvalidProducerEpoch));
}

#[test]
fn retry_finds_its_pending_batch_across_sequence_wrap_and_epochs() {
    let (committed, mut admission) = admitting(&[]);
    let first = i32::MAX - 25;
    let mut pending: Vec<_> = (0..5).map(|at| stamp(7, crate::sequence::sequence_add(first, 10 * at), 10)).collect();
    pending.extend((0..3).map(|at| Stamp { producer_epoch: 1, ..stamp(7, 10 * at, 10) }));
    let batch_numbers = 100..;
    batch_numbers.clone().zip(&pending).for_each(|(batch_number, stamp)| admission.admitted(stamp, batch_number, None));
    for (batch_number, stamp) in batch_numbers.zip(&pending) {
        let check = admission.check(stamp, &committed, Freshness::MayBeStale, AT);
        assert_eq!(check, Admission::Shares(batch_number), "{stamp:?}");
        assert!(admission.is_pending(stamp, batch_number) && !admission.is_pending(stamp, batch_number + 100));
        let overlaps = Stamp { record_count: 9, ..*stamp };
        assert!(!matches!(admission.check(&overlaps, &committed, Freshness::Current, AT), Admission::Shares(_)));
    }
    assert_eq!(admission.failed(&pending[2], 102, STORAGE, AT), [103, 104, 105, 106, 107]);
    admission.committed(&pending[0], 100);
    assert!(!admission.is_pending(&pending[0], 100) && admission.is_pending(&pending[1], 101));
}
