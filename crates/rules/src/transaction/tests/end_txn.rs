//! Compares EndTxn with a table: in each state, for commit and abort, with each epoch, and with either protocol.
//!
//! The table comes from Kafka 4.3.1. The code is `TransactionCoordinator.endTransaction` (TV2) and
//! `endTransactionWithTV1`, in which each cell is a path. Kafka's own table, in a comment of that class, has the states
//! without a transaction. The other states follow from the code.
//!
//! A running coordinator rarely uses the Prepare rows. As soon as a decision is written, Kafka's next state
//! `CompleteCommit` or `CompleteAbort` is pending. While it is pending, Kafka responds CONCURRENT_TRANSACTIONS before
//! it checks the state.

use super::super::epochs::{Decision, end};
use super::super::metadata::LAST_CLIENT_EPOCH;
use super::*;
use super::{PRODUCER, in_state, partition};
use TransactionState::*;

/// The epoch of the state in every row.
const EPOCH: i16 = 7;
/// The former producer id, for the test of a retry with that id.
const OLD_ID: i64 = 90;
const NEW_ID: i64 = 300;

/// The expected outcome of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cell {
    /// PRODUCER_FENCED.
    Pf,
    /// INVALID_TXN_STATE.
    Its,
    /// CONCURRENT_TRANSACTIONS.
    Ct,
    /// Success, and nothing changes.
    None,
    /// The transaction is decided, and the epoch stays.
    Decided,
    /// The transaction is decided, and the epoch is raised.
    Bumped,
}
use Cell::{Bumped, Ct, Decided, Its, None as Same, Pf};

/// A row of the table: the state, true for a commit, and the expected outcomes for the current epoch, the previous one,
/// an older one and a newer one.
type Row = (TransactionState, bool, [Cell; 4]);

const EPOCHS: [i16; 4] = [EPOCH, EPOCH - 1, EPOCH - 2, EPOCH + 1];

const TV1: [Row; 12] = [
    (Empty, true, [Its, Pf, Pf, Pf]),
    (Empty, false, [Its, Pf, Pf, Pf]),
    (Ongoing, true, [Decided, Pf, Pf, Pf]),
    (Ongoing, false, [Decided, Pf, Pf, Pf]),
    (PrepareCommit, true, [Ct, Pf, Pf, Pf]),
    (PrepareCommit, false, [Its, Pf, Pf, Pf]),
    (PrepareAbort, true, [Its, Pf, Pf, Pf]),
    (PrepareAbort, false, [Ct, Pf, Pf, Pf]),
    (CompleteCommit, true, [Same, Pf, Pf, Pf]),
    (CompleteCommit, false, [Its, Pf, Pf, Pf]),
    (CompleteAbort, true, [Its, Pf, Pf, Pf]),
    (CompleteAbort, false, [Same, Pf, Pf, Pf]),
];

const TV2: [Row; 12] = [
    (Empty, true, [Its, Pf, Pf, Pf]),
    (Empty, false, [Bumped, Pf, Pf, Pf]),
    (Ongoing, true, [Bumped, Pf, Pf, Pf]),
    (Ongoing, false, [Bumped, Pf, Pf, Pf]),
    (PrepareCommit, true, [Pf, Ct, Pf, Pf]),
    (PrepareCommit, false, [Pf, Its, Pf, Pf]),
    (PrepareAbort, true, [Pf, Its, Pf, Pf]),
    (PrepareAbort, false, [Pf, Ct, Pf, Pf]),
    (CompleteCommit, true, [Its, Same, Pf, Pf]),
    (CompleteCommit, false, [Bumped, Its, Pf, Pf]),
    (CompleteAbort, true, [Its, Its, Pf, Pf]),
    (CompleteAbort, false, [Bumped, Same, Pf, Pf]),
];

fn request(producer: ProducerIdAndEpoch, is_commit: bool, version: TransactionVersion) -> EndTxn {
    EndTxn { producer, is_commit, version }
}

/// Returns the cell that a decision belongs to, and checks the whole next state.
fn cell(decision: Decision, before: &TransactionMetadata, end: EndTxn, now: i64) -> Cell {
    let next = match decision {
        Decision::Refuse(ErrorCode::PRODUCER_FENCED) => return Pf,
        Decision::Refuse(ErrorCode::INVALID_TXN_STATE) => return Its,
        Decision::Refuse(ErrorCode::CONCURRENT_TRANSACTIONS) => return Ct,
        Decision::Done => return Same,
        Decision::Persist(next) => *next,
        other => panic!("{other:?}"),
    };
    let is_bumped = next.producer_epoch != before.producer_epoch;
    let expected = TransactionMetadata {
        state: if end.is_commit { PrepareCommit } else { PrepareAbort },
        previous_producer_id: before.producer_id,
        producer_epoch: before.producer_epoch + i16::from(is_bumped),
        last_producer_epoch: if is_bumped { before.producer_epoch } else { before.last_producer_epoch },
        start_ms: if before.state == Ongoing { before.start_ms } else { now },
        last_update_ms: now,
        client_version: end.version,
        ..before.clone()
    };
    assert_eq!(next, expected);
    if is_bumped { Bumped } else { Decided }
}

#[test]
fn end_txn_of_each_state_outcome_and_epoch_is_as_in_the_table() {
    let versions = [(TransactionVersion::V0, TV1), (TransactionVersion::V2, TV2)];
    for (version, table) in versions {
        for (state, is_commit, cells) in table {
            for (epoch, expected) in EPOCHS.into_iter().zip(cells) {
                let before = in_state(state, EPOCH);
                let end_txn = request(ProducerIdAndEpoch { id: PRODUCER, epoch }, is_commit, version);
                let decision = end(Some(&before), &end_txn, false, Option::None, 500);
                let found = cell(decision, &before, end_txn, 500);
                assert_eq!(found, expected, "{version:?} {state} commit {is_commit} epoch {epoch}");
            }
        }
    }
}

#[test]
fn other_producer_id_is_an_invalid_mapping_in_each_state() {
    for (state, is_commit, _) in TV2 {
        for version in [TransactionVersion::V0, TransactionVersion::V2] {
            let end_txn = request(ProducerIdAndEpoch { id: PRODUCER + 1, epoch: EPOCH }, is_commit, version);
            let decision = end(Some(&in_state(state, EPOCH)), &end_txn, false, Option::None, 500);
            assert_eq!(decision, Decision::Refuse(ErrorCode::INVALID_PRODUCER_ID_MAPPING), "{version:?} {state}");
        }
    }
    let end_txn = request(ProducerIdAndEpoch { id: PRODUCER, epoch: 0 }, true, TransactionVersion::V2);
    let unknown = Decision::Refuse(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    assert_eq!(end(Option::None, &end_txn, false, Option::None, 500), unknown);
}

/// Kafka's `endTransaction` checks first if a transition is pending. `endTransactionWithTV1` checks the producer id and
/// the epoch before.
#[test]
fn pending_transition_is_checked_first_by_tv2_and_third_by_tv1() {
    let cases = [
        (TransactionVersion::V2, PRODUCER + 1, EPOCH, ErrorCode::CONCURRENT_TRANSACTIONS),
        (TransactionVersion::V2, PRODUCER, EPOCH - 3, ErrorCode::CONCURRENT_TRANSACTIONS),
        (TransactionVersion::V0, PRODUCER + 1, EPOCH, ErrorCode::INVALID_PRODUCER_ID_MAPPING),
        (TransactionVersion::V0, PRODUCER, EPOCH - 1, ErrorCode::PRODUCER_FENCED),
        (TransactionVersion::V0, PRODUCER, EPOCH, ErrorCode::CONCURRENT_TRANSACTIONS),
    ];
    for (version, id, epoch, expected) in cases {
        for state in [Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort] {
            let end_txn = request(ProducerIdAndEpoch { id, epoch }, true, version);
            let decision = end(Some(&in_state(state, EPOCH)), &end_txn, true, Option::None, 500);
            assert_eq!(decision, Decision::Refuse(expected), "{version:?} {state}");
        }
    }
}

/// The retry of an EndTxn that led to a new producer id (`retryOnOverflow`). The expected outcomes are those for the
/// previous epoch. States that a new id cannot have are left out.
#[test]
fn retry_with_the_old_id_and_its_last_epoch_is_a_retry() {
    let rows = [
        (Empty, true, Pf),
        (Empty, false, Pf),
        (Ongoing, true, Pf),
        (CompleteCommit, true, Same),
        (CompleteCommit, false, Its),
        (CompleteAbort, true, Its),
        (CompleteAbort, false, Same),
    ];
    for (state, is_commit, expected) in rows {
        let before = TransactionMetadata { previous_producer_id: OLD_ID, ..in_state(state, 0) };
        let end_txn = |id, epoch| request(ProducerIdAndEpoch { id, epoch }, is_commit, TransactionVersion::V2);
        let retry = end_txn(OLD_ID, LAST_CLIENT_EPOCH);
        assert_eq!(
            cell(end(Some(&before), &retry, false, Option::None, 500), &before, retry, 500),
            expected,
            "{state}"
        );
        let mapping = Decision::Refuse(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
        let stranger = end_txn(OLD_ID, LAST_CLIENT_EPOCH - 1);
        assert_eq!(end(Some(&before), &stranger, false, Option::None, 500), mapping, "{state}");
        let later = TransactionMetadata { producer_epoch: 1, ..before };
        assert_eq!(end(Some(&later), &retry, false, Option::None, 500), mapping, "{state}");
    }
}

#[test]
fn record_without_a_former_id_a_client_without_an_id_is_no_retry() {
    let before = TransactionMetadata { previous_producer_id: -1, ..in_state(CompleteCommit, 0) };
    let stranger = ProducerIdAndEpoch { id: -1, epoch: LAST_CLIENT_EPOCH };
    let end_txn = request(stranger, true, TransactionVersion::V2);
    let mapping = Decision::Refuse(ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    assert_eq!(end(Some(&before), &end_txn, false, Option::None, 500), mapping);
}

/// The epochs are used up (`generateTxnTransitMetadataForTxnCompletion`, `prepareAbortOrCommit` and `prepareComplete`),
/// so the next transaction gets another producer id.
#[test]
fn transaction_ends_with_the_last_epoch_the_next_has_a_new_id() {
    for (state, is_commit) in [(Ongoing, true), (Ongoing, false), (Empty, false), (CompleteAbort, false)] {
        let before = in_state(state, LAST_CLIENT_EPOCH);
        let producer = ProducerIdAndEpoch { id: PRODUCER, epoch: LAST_CLIENT_EPOCH };
        let end_txn = request(producer, is_commit, TransactionVersion::V2);
        assert_eq!(end(Some(&before), &end_txn, false, Option::None, 500), Decision::NeedProducerId);
        let Decision::Persist(prepared) = end(Some(&before), &end_txn, false, Some(NEW_ID), 500) else {
            panic!("not decided");
        };
        assert_eq!((prepared.producer_id, prepared.producer_epoch), (PRODUCER, i16::MAX));
        assert_eq!((prepared.next_producer_id, prepared.last_producer_epoch), (NEW_ID, LAST_CLIENT_EPOCH));
        let complete = prepared.completed(600);
        assert_eq!((complete.producer_id, complete.producer_epoch), (NEW_ID, 0));
        assert_eq!((complete.previous_producer_id, complete.next_producer_id), (PRODUCER, -1));
        assert_eq!(complete.last_producer_epoch, LAST_CLIENT_EPOCH);
        assert_eq!((complete.partitions.len(), complete.last_update_ms), (0, 600));
    }
    let largest = TransactionMetadata { producer_epoch: i16::MAX, ..in_state(CompleteAbort, 0) };
    let producer = ProducerIdAndEpoch { id: PRODUCER, epoch: i16::MAX };
    let abort = request(producer, false, TransactionVersion::V2);
    let Decision::Persist(prepared) = end(Some(&largest), &abort, false, Some(NEW_ID), 500) else {
        panic!("not decided");
    };
    assert_eq!(
        (prepared.producer_epoch, prepared.completed(600).producer()),
        (i16::MAX, ProducerIdAndEpoch { id: NEW_ID, epoch: 0 })
    );
}

/// With TV1, the end of a transaction does not raise the epoch.
#[test]
fn tv1_transaction_ends_with_the_last_epoch_the_producer_stays() {
    let before = in_state(Ongoing, LAST_CLIENT_EPOCH);
    let end_txn = request(before.producer(), true, TransactionVersion::V0);
    let Decision::Persist(prepared) = end(Some(&before), &end_txn, false, Option::None, 500) else {
        panic!("not decided");
    };
    assert_eq!(prepared.producer(), before.producer());
    assert_eq!(prepared.completed(600).producer(), before.producer());
    assert!(prepared.partitions.contains(&partition(0)));
}
