//! Tests of transitions: decisions, markers, timeouts, expirations, loads and failures.

use super::*;
use TransactionAnswer::*;

const V0: TransactionVersion = TransactionVersion::V0;
const V2: TransactionVersion = TransactionVersion::V2;
const CONCURRENT: ErrorCode = ErrorCode::CONCURRENT_TRANSACTIONS;

#[test]
fn written_commit_markers_precede_the_response_and_complete_follows_the_last() {
    for (version, marker_epoch, next) in [(V2, 4, Some(producer(4))), (V0, 3, None)] {
        let mut bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
        bench.add(producer(3), &[1], version, None);
        bench.persisted(Ok(()));
        let ticket = bench.end(producer(3), true, version);
        assert_eq!(bench.effects.len(), 1);
        assert_eq!(bench.record().state, TransactionState::PrepareCommit);
        bench.persisted(Ok(()));
        let decision = DecisionId { coordinator_epoch: COORDINATOR_EPOCH, number: 1 };
        let markers = Markers {
            decision,
            producer_id: PRODUCER,
            producer_epoch: marker_epoch,
            is_commit: true,
            partitions: vec![partition(0), partition(1)],
            transaction_version: version,
        };
        assert_eq!(bench.effects, [Effect::WriteMarkers(markers), Effect::Answer(ticket, EndTxn(Ok(next)))]);
        bench.marked(decision, &[1]);
        assert_eq!(bench.effects, []);
        assert_eq!(bench.state().partitions.iter().collect::<Vec<_>>(), [&partition(0)]);
        bench.marked(decision, &[1, 0]);
        assert_eq!(bench.record().state, TransactionState::CompleteCommit);
        bench.persisted(Ok(()));
        assert_eq!((bench.state().producer_epoch, bench.state().partitions.len()), (marker_epoch, 0));
        let retry = bench.end(producer(3), true, version);
        bench.assert_answer(retry, EndTxn(Ok(next)));
    }
}

#[test]
fn reply_to_another_decision_has_no_effect() {
    let mut bench = Bench::loaded(in_state(TransactionState::PrepareAbort, 3));
    let decision = bench.markers().decision;
    let others = [
        DecisionId { number: 0, ..decision },
        DecisionId { number: 2, ..decision },
        DecisionId { coordinator_epoch: COORDINATOR_EPOCH - 1, ..decision },
    ];
    for other in others {
        bench.marked(other, &[0]);
        assert_eq!((bench.effects.len(), bench.state().partitions.len()), (0, 1));
    }
    bench.marked(decision, &[0]);
    assert_eq!(bench.record().state, TransactionState::CompleteAbort);
    bench.marked(decision, &[0]);
    assert_eq!(bench.effects, []);
}

#[test]
fn decision_that_cannot_be_written_is_undone_with_the_error_of_kafka() {
    let cases = [
        (ErrorCode::NOT_ENOUGH_REPLICAS, ErrorCode::COORDINATOR_NOT_AVAILABLE),
        (ErrorCode::KAFKA_STORAGE_ERROR, ErrorCode::NOT_COORDINATOR),
        (ErrorCode::MESSAGE_TOO_LARGE, ErrorCode::UNKNOWN_SERVER_ERROR),
        (ErrorCode::INVALID_REQUIRED_ACKS, ErrorCode::INVALID_REQUIRED_ACKS),
    ];
    let mut bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
    for (code, expected) in cases {
        let ticket = bench.end(producer(3), true, V2);
        bench.persisted(Err(code));
        bench.assert_answer(ticket, EndTxn(Err(expected)));
        assert_eq!(bench.state(), &in_state(TransactionState::Ongoing, 3));
    }
    let ticket = bench.end(producer(3), false, V2);
    bench.persisted(Ok(()));
    assert!(!bench.markers().is_commit);
    bench.assert_answer(ticket, EndTxn(Ok(Some(producer(4)))));
}

#[test]
fn completion_that_cannot_be_written_is_retried_while_requests_wait() {
    let mut bench = Bench::loaded(in_state(TransactionState::PrepareCommit, 3));
    let decision = bench.markers().decision;
    bench.marked(decision, &[0]);
    bench.persisted(Err(ErrorCode::NOT_ENOUGH_REPLICAS));
    assert_eq!((bench.effects.len(), bench.transaction.next_deadline()), (0, Some(1_100)));
    let ticket = bench.end(producer(3), true, V2);
    bench.assert_answer(ticket, EndTxn(Err(CONCURRENT)));
    bench.tick(99);
    assert_eq!(bench.effects, []);
    bench.tick(1);
    assert_eq!(bench.record().state, TransactionState::CompleteCommit);
    bench.persisted(Ok(()));
    assert_eq!((bench.state().state, bench.transaction.next_deadline()), (TransactionState::CompleteCommit, None));
}

#[test]
fn aborted_transaction_without_partitions_is_complete_at_once() {
    let mut bench = Bench::loaded(in_state(TransactionState::Empty, 3));
    let ticket = bench.end(producer(3), false, V2);
    assert_eq!((bench.record().state, bench.record().start_ms), (TransactionState::PrepareAbort, 1_000));
    bench.persisted(Ok(()));
    assert_eq!(bench.record().state, TransactionState::CompleteAbort);
    bench.assert_answer(ticket, EndTxn(Ok(Some(producer(4)))));
    bench.persisted(Ok(()));
    assert_eq!(bench.state().producer_epoch, 4);
}

#[test]
fn new_client_aborts_an_ongoing_transaction_and_waits_for_a_new_epoch() {
    for (server_version, marker_epoch) in [(V2, 4), (V0, 4)] {
        let mut bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
        bench.settings.server_version = server_version;
        let ticket = bench.init(None, Some(20));
        let last = if server_version == V2 { 3 } else { -1 };
        assert_eq!((bench.record().state, bench.record().last_producer_epoch), (TransactionState::PrepareAbort, last));
        bench.persisted(Ok(()));
        assert_eq!((bench.answers(), bench.markers().producer_epoch), (vec![], marker_epoch));
        bench.marked(bench.markers().decision, &[0]);
        bench.persisted(Ok(()));
        bench.persisted(Ok(()));
        bench.assert_answer(ticket, InitProducerId(Ok(producer(5))));
    }
}

#[test]
fn new_client_that_may_not_wait_for_an_abort_must_retry() {
    let mut bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
    let ticket = bench.init(None, None);
    assert_eq!(bench.answers(), []);
    bench.persisted(Ok(()));
    bench.assert_answer(ticket, InitProducerId(Err(CONCURRENT)));
    assert_eq!(bench.state().state, TransactionState::PrepareAbort);
}

/// In this case Kafka aborts the transaction of the zombie's successor.
#[test]
fn zombie_requests_an_epoch_in_an_ongoing_transaction_it_is_fenced_without_an_abort() {
    let mut bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
    let ticket = bench.init(Some(producer(2)), Some(20));
    bench.assert_answer(ticket, InitProducerId(Err(ErrorCode::PRODUCER_FENCED)));
    assert_eq!(bench.state().state, TransactionState::Ongoing);
}

#[test]
fn transaction_open_for_longer_than_its_timeout_is_aborted_and_fenced() {
    let mut bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
    bench.now = 100 + i64::from(TIMEOUT_MS);
    bench.turn(|transaction, turn| transaction.time_out(turn));
    assert_eq!(bench.effects, []);
    bench.now += 1;
    bench.turn(|transaction, turn| transaction.time_out(turn));
    assert_eq!((bench.record().state, bench.record().producer_epoch), (TransactionState::PrepareAbort, 4));
    bench.turn(|transaction, turn| transaction.time_out(turn));
    assert_eq!(bench.effects, []);
    bench.persisted(Ok(()));
    bench.marked(bench.markers().decision, &[0]);
    bench.persisted(Ok(()));
    let commit = bench.end(producer(3), true, V2);
    bench.assert_answer(commit, EndTxn(Err(ErrorCode::INVALID_TXN_STATE)));
    let abort = bench.end(producer(3), false, V2);
    bench.assert_answer(abort, EndTxn(Ok(Some(producer(4)))));
}

#[test]
fn last_epoch_times_out_the_next_producer_has_a_new_id() {
    let mut bench = Bench::loaded(in_state(TransactionState::Ongoing, i16::MAX - 1));
    bench.now = i64::from(TIMEOUT_MS) * 2;
    bench.turn(|transaction, turn| transaction.time_out(turn));
    assert_eq!(bench.effects, [Effect::NeedProducerId]);
    bench.producer_id(Ok(300));
    bench.persisted(Ok(()));
    assert_eq!(bench.markers().producer_epoch, i16::MAX);
    bench.marked(bench.markers().decision, &[0]);
    bench.persisted(Ok(()));
    assert_eq!(bench.state().producer(), ProducerIdAndEpoch { id: 300, epoch: 0 });
    let abort = bench.end(producer(i16::MAX - 1), false, V2);
    bench.assert_answer(abort, EndTxn(Ok(Some(ProducerIdAndEpoch { id: 300, epoch: 0 }))));
}

#[test]
fn transaction_without_a_timeout_stays_open() {
    let record = TransactionMetadata { timeout_ms: NO_TIMEOUT_MS, ..in_state(TransactionState::Ongoing, 3) };
    let mut bench = Bench::loaded(record);
    bench.now = i64::MAX;
    bench.turn(|transaction, turn| transaction.time_out(turn));
    assert_eq!(bench.effects, []);
}

#[test]
fn idle_id_expires_by_a_tombstone_and_others_do_not() {
    for state in TransactionState::ALL.into_iter().filter(|state| !state.is_expiration_allowed()) {
        let mut bench = Bench::loaded(in_state(state, 3));
        bench.now = 1_000_000;
        bench.turn(|transaction, turn| transaction.expire(1_000, turn));
        assert_eq!(bench.effects, [], "{state}");
    }
    let mut bench = Bench::loaded(in_state(TransactionState::CompleteAbort, 3));
    bench.now = 1_199;
    bench.turn(|transaction, turn| transaction.expire(1_000, turn));
    assert_eq!(bench.effects, []);
    for result in [Err(ErrorCode::NOT_ENOUGH_REPLICAS), Ok(())] {
        bench.now = 1_200;
        bench.turn(|transaction, turn| transaction.expire(1_000, turn));
        assert_eq!((&bench.effects[..], bench.transaction.is_vacant()), (&[Effect::Persist(None)][..], false));
        bench.persisted(result);
        assert_eq!(bench.transaction.is_vacant(), result.is_ok());
    }
}

#[test]
fn client_that_comes_while_its_id_expires_gets_a_new_producer_id() {
    let mut bench = Bench::loaded(in_state(TransactionState::Empty, 3));
    bench.now = 10_000;
    bench.turn(|transaction, turn| transaction.expire(1_000, turn));
    let ticket = bench.init(Some(producer(3)), Some(20));
    bench.persisted(Ok(()));
    assert_eq!((&bench.effects[..], bench.transaction.is_vacant()), (&[Effect::NeedProducerId][..], false));
    bench.producer_id(Ok(300));
    bench.persisted(Ok(()));
    bench.assert_answer(ticket, InitProducerId(Ok(ProducerIdAndEpoch { id: 300, epoch: 0 })));
}

#[test]
fn loaded_decision_writes_markers_in_the_new_coordinator_epoch() {
    for (state, is_commit) in [(TransactionState::PrepareCommit, true), (TransactionState::PrepareAbort, false)] {
        let bench = Bench::loaded(in_state(state, 3));
        let markers = bench.markers();
        assert_eq!((markers.is_commit, markers.producer_epoch), (is_commit, 3));
        assert_eq!(markers.decision.coordinator_epoch, COORDINATOR_EPOCH);
        let record = TransactionMetadata { partitions: Default::default(), ..in_state(state, 3) };
        let bench = Bench::loaded(record);
        assert!(bench.record().state.is_complete());
    }
    for state in [TransactionState::Empty, TransactionState::Ongoing, TransactionState::CompleteAbort] {
        assert_eq!(Bench::loaded(in_state(state, 3)).effects, []);
    }
    assert!(Bench::loaded(in_state(TransactionState::Dead, 3)).transaction.is_vacant());
}

#[test]
fn shard_moves_away_every_request_is_refused_and_late_events_have_no_effect() {
    let moved = ErrorCode::NOT_COORDINATOR;
    let mut bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
    let end = bench.end(producer(3), true, V2);
    let init = bench.init(None, Some(20));
    bench.turn(|transaction, turn| transaction.kill(moved, turn));
    assert_eq!(bench.answers(), [(end, EndTxn(Err(moved))), (init, InitProducerId(Err(moved)))]);
    bench.persisted(Ok(()));
    assert_eq!(bench.effects, []);
    bench.producer_id(Ok(7));
    bench.tick(1_000);
    assert_eq!(bench.effects, []);
    let late = bench.add(producer(3), &[1], V2, Some(20));
    bench.assert_answer(late, AddPartitions(Err(moved)));
    let late = bench.end(producer(3), true, V0);
    bench.assert_answer(late, EndTxn(Err(moved)));
    assert_eq!(bench.transaction.describe(), Err(moved));
    assert_eq!(bench.transaction.verify_partitions(producer(3), []), Err(moved));
    let mut bench = Bench::new();
    let init = bench.init(None, None);
    bench.turn(|transaction, turn| transaction.kill(moved, turn));
    bench.assert_answer(init, InitProducerId(Err(moved)));
}

#[test]
fn listed_ids_are_filtered() {
    let bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
    let all = TransactionFilter { states: &[], producer_ids: &[], duration_ms: -1 };
    let lists = |filter| bench.transaction.list(&filter, 1_100).is_some();
    assert_eq!(bench.transaction.list(&all, 1_100), Some((PRODUCER, TransactionState::Ongoing)));
    assert!(lists(TransactionFilter { states: &[TransactionState::Ongoing], ..all }));
    assert!(!lists(TransactionFilter { states: &[TransactionState::Empty], ..all }));
    assert!(lists(TransactionFilter { producer_ids: &[1, PRODUCER], ..all }));
    assert!(!lists(TransactionFilter { producer_ids: &[1], ..all }));
    assert!(lists(TransactionFilter { duration_ms: 999, ..all }));
    assert!(!lists(TransactionFilter { duration_ms: 1_000, ..all }));
    assert_eq!(Bench::new().transaction.list(&all, 1_100), None);
}

/// The ids, names and `VALID_PREVIOUS_STATES` of Kafka's `TransactionState`.
#[test]
fn states_have_the_ids_names_and_predecessors_of_kafka() {
    let names: Vec<_> = TransactionState::ALL.iter().map(|state| state.name()).collect();
    let expected = "Empty Ongoing PrepareCommit PrepareAbort CompleteCommit CompleteAbort Dead PrepareEpochFence";
    assert_eq!(names.join(" "), expected);
    let previous: [&[i8]; 8] = [&[0, 4, 5], &[0, 1, 4, 5], &[1], &[0, 1, 4, 5, 7], &[2], &[3], &[0, 4, 5], &[1]];
    for (id, state) in (0i8..).zip(TransactionState::ALL) {
        assert_eq!(TransactionState::from_id(id), Some(state));
        assert_eq!(TransactionState::from_name(state.name()), Some(state));
        let before = TransactionState::ALL.into_iter().filter(|before| state.follows(*before));
        assert_eq!(before.map(TransactionState::id).collect::<Vec<_>>(), previous[id as usize], "{state}");
    }
    assert_eq!((TransactionState::from_id(8), TransactionState::from_id(-1)), (None, None));
    let levels = [(0, Some(V0)), (1, Some(TransactionVersion::V1)), (2, Some(V2)), (3, None), (-1, None)];
    levels.into_iter().for_each(|(level, version)| assert_eq!(TransactionVersion::from_level(level), version));
    assert_eq!([3, 4].map(TransactionVersion::of_add_partitions), [V0, V2]);
    assert_eq!([4, 5].map(TransactionVersion::of_end_txn), [V0, V2]);
}

/// The clock of the coordinator that wrote the record was ahead of this one's by two minutes.
#[test]
fn loaded_transaction_that_begins_in_the_future_times_out_after_its_timeout() {
    let ahead =
        TransactionMetadata { start_ms: 121_000, last_update_ms: 121_500, ..in_state(TransactionState::Ongoing, 3) };
    let mut bench = Bench::loaded(ahead);
    bench.now += i64::from(TIMEOUT_MS);
    bench.turn(|transaction, turn| transaction.time_out(turn));
    assert_eq!(bench.effects, [], "it began when it was loaded");
    bench.now += 1;
    bench.turn(|transaction, turn| transaction.time_out(turn));
    assert_eq!(bench.record().state, TransactionState::PrepareAbort);
}

#[test]
fn loaded_id_last_updated_in_the_future_expires_after_the_expiration() {
    let ahead = TransactionMetadata { last_update_ms: 3_600_000, ..in_state(TransactionState::CompleteCommit, 3) };
    let mut bench = Bench::loaded(ahead);
    bench.now += 9_999;
    bench.turn(|transaction, turn| transaction.expire(10_000, turn));
    assert_eq!(bench.effects, [], "it was last updated when it was loaded");
    bench.now += 1;
    bench.turn(|transaction, turn| transaction.expire(10_000, turn));
    assert_eq!(bench.effects, [Effect::Persist(None)]);
}

#[test]
fn shifted_state_has_moved_times_and_stays_without_a_begin() {
    let open = in_state(TransactionState::Ongoing, 3).shifted(-50);
    assert_eq!((open.start_ms, open.last_update_ms), (50, 150));
    let empty = in_state(TransactionState::Empty, 3).shifted(50);
    assert_eq!((empty.start_ms, empty.last_update_ms), (-1, 250));
}
