//! Tests of single transactions: batches that open one, markers that end them, and commits that are repeated.

use std::time::Duration;

use super::admission::{Admission, Freshness, Opening, PartitionAdmission};
use super::tests::{Case, OUT_OF_ORDER, appended, batch, object};
use super::*;
use crate::sequence::{AbortedTransaction, Marker, NO_COORDINATOR, Producers, SequenceRefusal, Stamp};

const BEHIND: CommitVerdict = CommitVerdict::Refused(Refusal::Behind);
const UNVERIFIED: CommitVerdict = CommitVerdict::Refused(Refusal::Unverified);
const FENCED: CommitVerdict = refused(SequenceRefusal::InvalidProducerEpoch);

const fn refused(why: SequenceRefusal) -> CommitVerdict {
    CommitVerdict::Refused(Refusal::Sequence(why))
}

fn stamp(producer_id: i64, producer_epoch: i16, base_sequence: i32) -> Stamp {
    Stamp { producer_id, producer_epoch, base_sequence, record_count: 1 }
}

/// Returns a batch of one record without a confirmation, because its broker considers the transaction open.
fn ongoing(stamp: Stamp) -> ObjectBatch {
    ObjectBatch { kind: BatchKind::Transactional, ..batch(0, stamp) }
}

/// Returns a batch of one record with a confirmation by the coordinator. `next_offset` is the partition's next offset
/// that the broker knew before it requested the confirmation.
fn verified(stamp: Stamp, next_offset: i64) -> ObjectBatch {
    ObjectBatch { confirmation: Some(Confirmation { next_offset, is_added: false }), ..ongoing(stamp) }
}

fn added(stamp: Stamp, next_offset: i64) -> ObjectBatch {
    ObjectBatch { confirmation: Some(Confirmation { next_offset, is_added: true }), ..ongoing(stamp) }
}

/// Returns a marker with transaction version 1 or 2.
fn marker(of: (i64, i16), coordinator_epoch: i32, is_commit: bool, transaction_version: i8) -> ObjectBatch {
    let marker = Marker { producer_id: of.0, producer_epoch: of.1, coordinator_epoch, is_commit };
    let kind = BatchKind::marker(&marker, transaction_version);
    ObjectBatch { kind, ..batch(0, stamp(of.0, of.1, -1)) }
}

impl Case {
    fn state(&self) -> &PartitionState {
        &self.partitions[&0]
    }

    /// Returns the first offset of the producer's open transaction, if it has one.
    fn open_from(&self, producer_id: i64) -> Option<i64> {
        self.state().producers.iter().find(|of| of.producer_id == producer_id).and_then(|of| of.open_from)
    }

    fn verdict(&mut self, batch: ObjectBatch) -> CommitVerdict {
        self.verdicts(1, &[batch])[0]
    }
}

/// Returns the state of another broker that has read the rows of a commit.
fn by_rows(rows: &[AppendedBatches], mut state: PartitionState) -> PartitionState {
    let mut batches: Vec<_> = rows.iter().flat_map(|row| &row.batches).collect();
    batches.sort_by_key(|batch| batch.base_offset);
    batches.into_iter().for_each(|batch| state.take_over(batch, 0));
    state
}

#[test]
fn transaction_opens_and_is_aborted_the_rows_have_both() {
    let mut case = Case::new(1);
    let opens =
        case.commit(&[object(1, &[verified(stamp(7, 0, 0), 0), ongoing(stamp(7, 0, 1)), batch(0, stamp(8, 0, 0))])]);
    assert_eq!(opens.verdicts[0], [appended(0), appended(1), appended(2)]);
    assert_eq!((case.state().first_unstable(), case.state().last_stable_offset()), (Some(0), 0));
    let other = by_rows(&opens.producers, PartitionState::new(5));
    assert_eq!((other.next_offset, other.last_stable_offset()), (3, 0));
    let ends = case.commit(&[object(2, &[marker((7, 1), 4, false, 2), batch(0, stamp(8, 0, 1))])]);
    assert_eq!(ends.verdicts[0], [appended(3), appended(4)]);
    assert_eq!((ends.runs.len(), ends.runs[0].end_offset()), (1, 5), "a marker is in a run");
    let transaction = AbortedTransaction { producer_id: 7, first_offset: 0, last_offset: 3, last_stable_offset: 4 };
    assert_eq!(ends.aborted, [PartitionAborted { partition: 0, transaction }]);
    assert_eq!((case.state().first_unstable(), case.state().last_stable_offset()), (None, 5));
    let other = by_rows(&ends.producers, other);
    assert_eq!((other.next_offset, other.last_stable_offset()), (5, 5));
    let of = |state: &PartitionState| state.producers.iter().find(|of| of.producer_id == 7).expect("known");
    assert_eq!(of(&other), of(case.state()));
    assert_eq!((of(&other).producer_epoch, of(&other).coordinator_epoch, of(&other).last_sequence), (1, 4, -1));
    assert_eq!(case.verdict(marker((7, 1), 4, true, 2)), appended(5), "a marker may come twice");
    assert!(case.commit(&[object(3, &[marker((7, 1), 4, false, 2)])]).aborted.is_empty(), "and ends nothing then");
}

#[test]
fn transaction_is_committed_nothing_is_aborted_and_the_sequence_goes_on() {
    let mut case = Case::new(1);
    case.verdicts(1, &[verified(stamp(7, 0, 0), 0), verified(stamp(8, 0, 0), 0)]);
    let ends = case.commit(&[object(2, &[marker((7, 0), 4, true, 1)])]);
    assert!(ends.aborted.is_empty());
    assert_eq!(ends.producers[0].batches[0].stamp.base_sequence, 1, "the row says where the producer goes on");
    assert_eq!((case.open_from(7), case.open_from(8), case.state().last_stable_offset()), (None, Some(1), 1));
    assert_eq!(case.verdict(verified(stamp(7, 0, 1), 3)), appended(3));
    assert_eq!(case.open_from(7), Some(3));
}

#[test]
fn unverified_batch_that_would_open_a_transaction_is_refused() {
    let mut case = Case::new(1);
    assert_eq!(case.verdicts(1, &[ongoing(stamp(7, 0, 0)), ongoing(stamp(7, 0, 1))]), [UNVERIFIED, BEHIND]);
    assert_eq!(case.state().next_offset, 0);
    assert_eq!(case.verdict(verified(stamp(7, 0, 0), 0)), appended(0));
    // A batch with a later epoch begins a new transaction.
    assert_eq!(case.verdict(ongoing(stamp(7, 1, 0))), UNVERIFIED);
    assert_eq!(case.verdict(ongoing(stamp(7, 0, 0))), CommitVerdict::Duplicate { base_offset: 0, timestamp: 0 });
}

/// The race of KIP-890: with transaction version 1, a marker leaves the epoch unchanged. If a batch that arrives after
/// its marker were accepted, it would open a transaction that no marker ends.
#[test]
fn batch_confirmed_before_a_marker_of_its_epoch_is_refused() {
    let mut case = Case::new(1);
    case.verdicts(1, &[batch(0, stamp(8, 0, 0)), batch(0, stamp(8, 0, 1))]);
    // The transaction is aborted before its only batch is committed.
    assert_eq!(case.verdict(marker((7, 0), 4, false, 1)), appended(2));
    for known in 0..3 {
        assert_eq!(case.verdict(verified(stamp(7, 0, 0), known)), UNVERIFIED, "known to {known}");
    }
    assert_eq!(case.verdict(verified(stamp(7, 0, 0), 3)), appended(3), "of the next transaction");
    assert_eq!(case.verdict(marker((7, 0), 4, true, 1)), appended(4));
    assert_eq!(case.verdict(verified(stamp(7, 0, 1), 4)), UNVERIFIED);
    assert_eq!(case.verdict(ongoing(stamp(7, 0, 1))), UNVERIFIED, "the broker has not read the marker");
    assert_eq!(case.verdict(verified(stamp(7, 1, 0), 0)), appended(5), "a later epoch has no such marker");
}

/// With transaction version 2, a broker that does not know the last marker needs no refresh, because the epoch shows
/// that a batch is late.
#[test]
fn marker_with_the_next_epoch_never_outdates_a_confirmation_of_that_epoch() {
    let mut case = Case::new(1);
    case.verdicts(1, &[added(stamp(7, 0, 0), 0), marker((7, 1), 4, false, 2)]);
    assert_eq!(case.verdict(added(stamp(7, 0, 1), 1)), FENCED);
    assert_eq!(case.verdict(added(stamp(7, 1, 0), 0)), appended(2));
    // The producer is unknown, so its first batch may still be in flight to another broker.
    assert_eq!(case.verdict(added(stamp(9, 3, 1), 3)), OUT_OF_ORDER);
    assert_eq!(case.verdict(verified(stamp(9, 3, 1), 3)), appended(3), "its state may have expired");
}

/// The producer's batch is in an object that is uploaded slowly. Meanwhile its transaction is aborted, and many other
/// writers cause the producer to be evicted. If the batch opened a transaction, no marker would end it.
#[test]
fn producer_is_evicted_with_its_marker_a_batch_verified_before_is_refused() {
    for (version, late) in [(1, verified(stamp(7, 0, 0), 0)), (2, added(stamp(7, 0, 0), 0))] {
        let mut case = Case::new(1);
        case.partitions.get_mut(&0).expect("there").producers = Producers::bounded(3);
        let marker = marker((7, i16::from(version == 2)), 4, false, version);
        assert_eq!(case.verdict(marker), appended(0));
        (10..13).for_each(|producer_id| _ = case.verdict(batch(0, stamp(producer_id, 0, 0))));
        assert!(!case.state().producers.knows(7) && case.state().has_forgotten);
        assert_eq!(case.verdict(late), UNVERIFIED, "version {version}");
        let verified_since = |next_offset| ObjectBatch {
            confirmation: late.confirmation.map(|confirmation| Confirmation { next_offset, ..confirmation }),
            ..late
        };
        // The rows lack the marker. So the state that is read from them must assume a forgotten marker.
        let mut read = PartitionState::new(5);
        (read.next_offset, read.has_forgotten) = (4, true);
        read.note_read();
        let mut other = Case::new(1);
        other.partitions.insert(0, read);
        assert_eq!(other.verdicts(1, &[verified_since(3)]), [UNVERIFIED]);
        assert_eq!(other.verdicts(2, &[verified_since(4)]), [appended(4)]);
        assert_eq!(case.verdict(verified_since(1)), appended(4), "of the next transaction");
    }
}

/// A broker hangs with a marker in its object, so the coordinator sends the marker to another broker. With transaction
/// version 1, the late copy looks like the marker of the next transaction, but must not end it.
#[test]
fn late_copy_of_a_marker_leaves_the_next_transaction_open() {
    let queued = |marker: ObjectBatch, next_offset| ObjectBatch {
        confirmation: Some(Confirmation { next_offset, is_added: false }),
        ..marker
    };
    let mut case = Case::new(1);
    case.verdicts(1, &[verified(stamp(7, 0, 0), 0)]);
    let late = queued(marker((7, 0), 4, true, 1), 1);
    assert_eq!(case.verdict(queued(marker((7, 0), 4, true, 1), 1)), appended(1));
    assert_eq!(case.verdict(verified(stamp(7, 0, 1), 2)), appended(2));
    let first = case.commit(&[object(2, &[late, batch(0, stamp(8, 0, 0))])]);
    assert_eq!(first.verdicts[0], [UNVERIFIED, appended(3)]);
    assert_eq!(case.open_from(7), Some(2));
    let again = object(2, &[late, batch(0, stamp(8, 0, 0))]);
    let again = FinishedObject { state: ObjectState::Live(first.runs), ..again };
    assert_eq!(case.commit(&[again]).verdicts[0], [UNVERIFIED, appended(3)], "the answer was lost");
    // This marker was queued later, so it belongs to the next transaction and ends it.
    assert_eq!(case.verdict(queued(marker((7, 0), 4, false, 1), 2)), appended(4));
    assert_eq!(case.open_from(7), None);
}

#[test]
fn plain_batch_within_a_transaction_is_refused() {
    let mut case = Case::new(1);
    case.verdicts(1, &[verified(stamp(7, 0, 0), 0)]);
    assert_eq!(case.verdict(batch(0, stamp(7, 0, 1))), refused(SequenceRefusal::InvalidTxnState));
    assert_eq!(case.verdicts(2, &[marker((7, 0), 4, true, 1), batch(0, stamp(7, 0, 1))]), [appended(1), appended(2)]);
    assert_eq!(case.verdict(batch(0, stamp(-1, -1, -1))), appended(3), "no producer, no transaction");
}

#[test]
fn all_remembered_producers_have_open_transactions_no_other_opens() {
    let mut case = Case::new(1);
    case.partitions.get_mut(&0).expect("there").producers = Producers::bounded(3);
    for producer_id in 0..3 {
        case.verdict(verified(stamp(producer_id, 0, 0), 0));
    }
    let next = verified(stamp(3, 0, 0), 0);
    assert_eq!(case.verdict(next), refused(SequenceRefusal::TooManyTransactions));
    (10..20).for_each(|producer_id| _ = case.verdict(batch(0, stamp(producer_id, 0, 0))));
    case.partitions.get_mut(&0).expect("there").expire(i64::MAX, 0);
    assert_eq!((0..3).map(|id| case.open_from(id)).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    case.verdict(marker((1, 0), 4, true, 1));
    assert!(matches!(case.verdict(next), CommitVerdict::Appended { .. }));
}

/// Regression test: such a marker was refused each time the coordinator sent it, so the log never became stable.
#[test]
fn marker_behind_refused_batches_of_its_producer_is_decided_on() {
    let mut case = Case::new(1);
    case.verdicts(1, &[added(stamp(7, 0, 0), 0)]);
    let batches =
        [ongoing(stamp(7, 0, 5)), marker((7, 1), 4, false, 2), added(stamp(7, 1, 0), 1), ongoing(stamp(7, 1, 1))];
    assert_eq!(case.verdicts(2, &batches), [OUT_OF_ORDER, appended(1), appended(2), appended(3)]);
    // With transaction version 1, the client may resend the refused batch as part of its next transaction, before the
    // other batches.
    let batches = [ongoing(stamp(7, 1, 7)), marker((7, 1), 4, false, 1), verified(stamp(7, 1, 2), 5)];
    assert_eq!(case.verdicts(3, &batches), [OUT_OF_ORDER, appended(4), BEHIND]);
    assert_eq!(case.open_from(7), None);
    // This marker is refused, so its epoch does not become the producer's epoch.
    let batches = [ongoing(stamp(7, 1, 9)), marker((7, 2), 3, false, 2), added(stamp(7, 2, 0), 5)];
    let fenced = refused(SequenceRefusal::CoordinatorFenced);
    assert_eq!(case.verdicts(4, &batches), [OUT_OF_ORDER, fenced, BEHIND]);
}

#[test]
fn object_comes_too_late_a_marker_behind_it_is_decided_on() {
    let mut case = Case::new(1);
    let late = FinishedObject { state: ObjectState::Gone, ..object(2, &[added(stamp(7, 0, 0), 0)]) };
    let decided = case.commit(&[late, object(3, &[marker((7, 1), 4, false, 2), added(stamp(7, 1, 0), 0)])]);
    assert_eq!(decided.verdicts[0], [CommitVerdict::Refused(Refusal::ObjectGone)]);
    assert_eq!(decided.verdicts[1], [appended(0), appended(1)]);
}

#[test]
fn repeated_commit_gives_markers_the_same_verdicts() {
    let mut case = Case::new(1);
    let fenced = refused(SequenceRefusal::CoordinatorFenced);
    case.verdicts(1, &[added(stamp(7, 0, 0), 0), marker((8, 0), 9, true, 1)]);
    let batches = [ongoing(stamp(7, 0, 1)), marker((7, 1), 4, false, 2), marker((8, 0), 8, true, 1)];
    let first = case.commit(&[object(2, &batches)]);
    assert_eq!(first.verdicts[0], [appended(2), appended(3), fenced]);
    // Before the commit is repeated, the next transaction begins.
    case.verdicts(3, &[added(stamp(7, 1, 0), 4)]);
    let again = FinishedObject { state: ObjectState::Live(first.runs.clone()), ..object(2, &batches) };
    let repeated = case.commit(&[again]);
    assert_eq!(repeated.verdicts, first.verdicts);
    assert!(repeated.runs.is_empty() && repeated.producers.is_empty() && repeated.aborted.is_empty());
    assert_eq!(case.open_from(7), Some(4));
    case.verdicts(4, &[marker((7, 1), 5, true, 1)]);
    // Now the object's extents are deleted. The producer's state still shows that the marker was appended, so no
    // transaction is ended twice.
    let cleared = FinishedObject { state: ObjectState::Live(Vec::new()), ..object(2, &batches) };
    let verdicts = case.commit(&[cleared]).verdicts.remove(0);
    assert_eq!(verdicts[2], fenced);
    assert_eq!(verdicts[1], refused(SequenceRefusal::CoordinatorFenced), "a later coordinator has ended a later one");
    let last = FinishedObject { state: ObjectState::Live(Vec::new()), ..object(4, &[marker((7, 1), 5, true, 1)]) };
    let success = CommitVerdict::Duplicate { base_offset: -1, timestamp: -1 };
    assert_eq!(case.commit(&[last]).verdicts, [[success]]);
    assert_eq!(case.state().next_offset, 6);
}

#[test]
fn marker_of_an_old_coordinator_or_epoch_is_refused() {
    let mut case = Case::new(1);
    case.verdicts(1, &[added(stamp(7, 3, 0), 0), marker((7, 4), 9, true, 2), added(stamp(7, 4, 0), 0)]);
    let verdicts = [
        (marker((7, 5), 8, true, 2), refused(SequenceRefusal::CoordinatorFenced)),
        (marker((7, 4), 9, true, 2), FENCED),
        (marker((7, 3), 9, true, 1), FENCED),
        (marker((-1, 0), 9, true, 1), refused(SequenceRefusal::InvalidRecord)),
        (marker((7, -1), 9, true, 1), refused(SequenceRefusal::InvalidRecord)),
        // The producer has a transaction, but wrote nothing to this partition.
        (marker((8, 0), 1, true, 1), appended(3)),
        (ObjectBatch { partition: 5, ..marker((7, 5), 9, true, 2) }, CommitVerdict::Refused(Refusal::PartitionGone)),
        (marker((7, 5), 9, true, 2), appended(4)),
    ];
    for (marker, verdict) in verdicts {
        assert_eq!(case.verdict(marker), verdict, "{marker:?}");
    }
    let known = case.state().producers.iter().find(|of| of.producer_id == 8).expect("known");
    assert_eq!((known.coordinator_epoch, known.last_sequence), (1, -1));
}

#[test]
fn partition_deleted_with_an_open_transaction_acknowledges_batches_and_refuses_the_marker() {
    let mut case = Case::new(1);
    let opens = verified(stamp(7, 0, 0), 0);
    case.verdicts(1, &[opens]);
    let deleted = case.partitions.remove(&0).expect("there");
    case.deleted.insert(0, deleted.producers.clone());
    let verdicts = case.verdicts(2, &[opens, marker((7, 0), 4, false, 1)]);
    let duplicate = CommitVerdict::Duplicate { base_offset: 0, timestamp: 0 };
    assert_eq!(verdicts, [duplicate, CommitVerdict::Refused(Refusal::PartitionGone)]);
    // In the recreated partition, the producer continues without an open transaction.
    let mut next = PartitionState::new(5);
    next.succeed(deleted.producers.tails(), false);
    case.partitions.insert(0, next);
    assert_eq!((case.state().first_unstable(), case.state().last_stable_offset()), (None, 0));
    assert_eq!(case.verdict(ongoing(stamp(7, 0, 1))), UNVERIFIED);
    assert_eq!(case.verdict(verified(stamp(7, 0, 1), 0)), appended(0));
}

#[test]
fn log_start_passes_an_open_transaction_it_ends_with_its_marker() {
    let mut case = Case::new(1);
    case.verdicts(1, &[verified(stamp(7, 0, 0), 0), batch(0, stamp(8, 0, 0)), batch(0, stamp(8, 0, 1))]);
    case.partitions.get_mut(&0).expect("there").log_start = 2;
    assert_eq!((case.state().first_unstable(), case.state().last_stable_offset()), (Some(0), 2));
    assert_eq!(case.verdict(ongoing(stamp(7, 0, 1))), appended(3));
    assert_eq!(case.state().last_stable_offset(), 2);
    let ends = case.commit(&[object(2, &[marker((7, 1), 4, false, 2)])]);
    let aborted = ends.aborted[0].transaction;
    assert_eq!((aborted.first_offset, aborted.last_offset, aborted.last_stable_offset), (0, 4, 5));
    assert_eq!(case.state().last_stable_offset(), 5);
}

#[test]
fn rows_read_twice_give_the_state_of_once() {
    let mut case = Case::new(1);
    let batches = [
        verified(stamp(7, 0, 0), 0),
        marker((7, 0), 4, false, 1),
        verified(stamp(7, 0, 1), 2),
        added(stamp(8, 0, 0), 0),
        marker((8, 1), 4, false, 2),
        added(stamp(8, 1, 0), 0),
    ];
    let decided = case.commit(&[object(1, &batches)]);
    let shown = |state: &PartitionState| {
        let mut all: Vec<_> = state.producers.iter().collect();
        all.sort_by_key(|of| of.producer_id);
        (all, state.first_unstable(), state.next_offset)
    };
    let once = by_rows(&decided.producers, PartitionState::new(128));
    assert_eq!(shown(&once), shown(case.state()));
    assert_eq!(shown(&by_rows(&decided.producers, once.clone())), shown(&once));
    assert_eq!(once.producers.iter().map(|of| of.coordinator_epoch).max(), Some(4));
    assert!(once.producers.iter().all(|of| of.coordinator_epoch > NO_COORDINATOR));
    // A broker that has read the state from rows also refuses a batch whose confirmation is older than the marker.
    let mut other = Case::new(1);
    other.partitions.insert(0, once);
    assert_eq!(
        other.verdicts(2, &[marker((7, 0), 4, true, 1), verified(stamp(7, 0, 2), 6)]),
        [appended(6), UNVERIFIED]
    );
}

#[test]
fn batch_that_opens_a_transaction_needs_verification() {
    const NOW: Duration = Duration::from_secs(1);
    let mut case = Case::new(1);
    let mut admission = PartitionAdmission::default();
    let first = stamp(7, 0, 0);
    assert_eq!(admission.check(&first, case.state(), Freshness::Current, NOW), Admission::Admit);
    assert_eq!(admission.transaction_of(&first, case.state()), Opening::Unverified);
    let confirmation = Some(Confirmation { next_offset: 0, is_added: true });
    admission.admitted(&first, 1, confirmation);
    assert_eq!(admission.transaction_of(&stamp(7, 0, 1), case.state()), Opening::Open { confirmation });
    assert_eq!(admission.transaction_of(&stamp(7, 1, 0), case.state()), Opening::Unverified, "a later transaction");
    assert_eq!(admission.transaction_of(&stamp(8, 0, 0), case.state()), Opening::Unverified);
    case.verdicts(1, &[added(first, 0)]);
    admission.committed(&first, 1);
    assert_eq!(admission.transaction_of(&stamp(7, 0, 1), case.state()), Opening::Open { confirmation: None });
    case.verdicts(2, &[marker((7, 1), 4, true, 2)]);
    assert_eq!(admission.transaction_of(&stamp(7, 1, 0), case.state()), Opening::Unverified);
    assert_eq!(admission.check(&stamp(7, 1, 0), case.state(), Freshness::MayBeStale, NOW), Admission::Admit);
}
