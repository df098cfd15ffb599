//! Tests of requests that get a response at once, wait, or are refused.

use super::*;
use TransactionAnswer::*;

const V0: TransactionVersion = TransactionVersion::V0;
const V2: TransactionVersion = TransactionVersion::V2;
const CONCURRENT: ErrorCode = ErrorCode::CONCURRENT_TRANSACTIONS;
const FENCED: ErrorCode = ErrorCode::PRODUCER_FENCED;
const MAPPING: ErrorCode = ErrorCode::INVALID_PRODUCER_ID_MAPPING;

#[test]
fn unknown_id_is_initialized_with_a_new_producer_id_and_epoch_0() {
    for current in [None, Some(producer(9))] {
        let mut bench = Bench::new();
        let ticket = bench.init(current, None);
        assert_eq!(bench.effects, [Effect::NeedProducerId]);
        bench.producer_id(Ok(PRODUCER));
        let expected =
            TransactionMetadata { last_update_ms: 1_000, client_version: V0, ..in_state(TransactionState::Empty, 0) };
        assert_eq!(bench.record(), &expected);
        assert!(bench.transaction.describe().is_err());
        bench.persisted(Ok(()));
        bench.assert_answer(ticket, InitProducerId(Ok(producer(0))));
        assert_eq!(bench.state(), &expected);
    }
}

#[test]
fn unknown_id_in_a_request_is_an_invalid_mapping() {
    let mut bench = Bench::new();
    let ticket = bench.add(producer(0), &[0], V2, Some(20));
    bench.assert_answer(ticket, AddPartitions(Err(MAPPING)));
    let ticket = bench.end(producer(0), true, V0);
    bench.assert_answer(ticket, EndTxn(Err(MAPPING)));
    assert_eq!(bench.transaction.verify_partitions(producer(0), []), Err(MAPPING));
    assert_eq!(bench.transaction.describe(), Err(ErrorCode::TRANSACTIONAL_ID_NOT_FOUND));
    assert!(bench.transaction.is_vacant());
}

#[test]
fn timeout_out_of_bounds_is_refused_even_in_a_transition() {
    let mut bench = Bench::loaded(in_state(TransactionState::PrepareCommit, 3));
    for timeout_ms in [0, -1, 900_001, i32::MAX] {
        let ticket = bench.ticket();
        let request = super::InitProducerId { current: None, timeout_ms, wait_until: Some(2_000) };
        bench.turn(|transaction, turn| transaction.init_producer_id(request, ticket, turn));
        bench.assert_answer(ticket, InitProducerId(Err(ErrorCode::INVALID_TRANSACTION_TIMEOUT)));
    }
}

#[test]
fn known_id_is_initialized_epoch_is_bumped_by_each_new_client_and_once_by_retries() {
    let mut bench = Bench::loaded(in_state(TransactionState::CompleteAbort, 3));
    let cases = [(Some(producer(3)), 4, 3), (Some(producer(3)), 4, 3), (Some(producer(4)), 5, 4), (None, 6, -1)];
    for (current, epoch, last) in cases {
        let ticket = bench.init(current, None);
        assert_eq!((bench.record().producer_epoch, bench.record().last_producer_epoch), (epoch, last));
        bench.persisted(Ok(()));
        bench.assert_answer(ticket, InitProducerId(Ok(producer(epoch))));
    }
    for current in [producer(5), producer(4), producer(7), producer(-1), ProducerIdAndEpoch { id: 1, epoch: 6 }] {
        let ticket = bench.init(Some(current), None);
        bench.assert_answer(ticket, InitProducerId(Err(FENCED)));
    }
}

#[test]
fn epochs_exhausted_the_next_client_gets_a_new_id_and_retries_find_it() {
    let last = i16::MAX - 1;
    let mut bench = Bench::loaded(in_state(TransactionState::Empty, last));
    let new = ProducerIdAndEpoch { id: 300, epoch: 0 };
    for is_retry in [false, true, true] {
        let ticket = bench.init(Some(producer(last)), None);
        if !is_retry {
            assert_eq!(bench.effects, [Effect::NeedProducerId]);
            bench.producer_id(Ok(300));
        }
        assert_eq!((bench.record().previous_producer_id, bench.record().last_producer_epoch), (PRODUCER, last));
        bench.persisted(Ok(()));
        bench.assert_answer(ticket, InitProducerId(Ok(new)));
    }
    let ticket = bench.init(Some(producer(last - 1)), None);
    bench.assert_answer(ticket, InitProducerId(Err(FENCED)));
}

/// Kafka's `prepareIncrementProducerEpoch` throws in this case.
#[test]
fn retry_that_led_to_the_last_epoch_returns_it() {
    let last = i16::MAX - 1;
    let record = TransactionMetadata { last_producer_epoch: last - 1, ..in_state(TransactionState::Empty, last) };
    let mut bench = Bench::loaded(record);
    let ticket = bench.init(Some(producer(last - 1)), None);
    bench.persisted(Ok(()));
    bench.assert_answer(ticket, InitProducerId(Ok(producer(last))));
}

#[test]
fn producer_id_is_unavailable_the_request_fails_and_the_next_continues() {
    let mut bench = Bench::new();
    let first = bench.init(None, None);
    let second = bench.init(None, Some(20));
    bench.producer_id(Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
    bench.assert_answer(first, InitProducerId(Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS)));
    assert_eq!(bench.effects.last(), Some(&Effect::NeedProducerId));
    bench.producer_id(Ok(PRODUCER));
    bench.persisted(Ok(()));
    bench.assert_answer(second, InitProducerId(Ok(producer(0))));
}

#[test]
fn added_partitions_begin_ongoing_once_and_known_ones_succeed_at_once() {
    let mut bench = Bench::loaded(in_state(TransactionState::CompleteCommit, 3));
    let ticket = bench.add(producer(3), &[0, 1], V2, None);
    let record = bench.record();
    assert_eq!((record.state, record.start_ms, record.partitions.len()), (TransactionState::Ongoing, 1_000, 2));
    bench.persisted(Ok(()));
    bench.assert_answer(ticket, AddPartitions(Ok(())));
    bench.now += 5;
    let ticket = bench.add(producer(3), &[1], V2, None);
    bench.assert_answer(ticket, AddPartitions(Ok(())));
    assert_eq!(bench.effects.len(), 1);
    bench.add(producer(3), &[2], V2, None);
    assert_eq!((bench.record().start_ms, bench.record().last_update_ms), (1_000, 1_005));
    for (who, code) in [(producer(2), FENCED), (producer(4), FENCED), (ProducerIdAndEpoch { id: 1, epoch: 3 }, MAPPING)]
    {
        bench.persisted(Ok(()));
        let ticket = bench.add(who, &[3], V2, Some(20));
        bench.assert_answer(ticket, AddPartitions(Err(code)));
    }
}

#[test]
fn old_client_adds_a_known_partition_and_waits_for_another_record() {
    let mut bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
    let ticket = bench.add(producer(3), &[0], V0, None);
    bench.persisted(Ok(()));
    bench.assert_answer(ticket, AddPartitions(Ok(())));
    let ticket = bench.add(producer(3), &[0], V0, None);
    assert_eq!(bench.effects.len(), 1, "{:?}", bench.effects);
    // A coordinator that was replaced cannot write. The failed append shows that it was replaced, and only then it
    // responds.
    bench.persisted(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
    bench.assert_answer(ticket, AddPartitions(Err(ErrorCode::NOT_COORDINATOR)));
}

#[test]
fn added_offsets_are_a_partition_of_consumer_offsets() {
    let mut bench = Bench::loaded(in_state(TransactionState::Empty, 3));
    let ticket = bench.ticket();
    let request = super::AddPartitions::offsets(producer(3), 17, None);
    bench.turn(|transaction, turn| transaction.add_partitions(request, ticket, turn));
    let expected = TopicPartition { topic: Text::from_static("__consumer_offsets"), partition: 17 };
    assert!(bench.record().partitions.contains(&expected));
    assert_eq!(bench.record().client_version, V0);
}

#[test]
fn more_partitions_than_a_transaction_may_have_are_refused() {
    let mut bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
    let cases = [(V2, ErrorCode::TRANSACTION_ABORTABLE), (V0, ErrorCode::POLICY_VIOLATION)];
    for (version, code) in cases {
        let ticket = bench.add(producer(3), &[1, 2, 3, 4], version, None);
        bench.assert_answer(ticket, AddPartitions(Err(code)));
    }
    bench.add(producer(3), &[0, 1, 2, 3], V2, None);
    assert_eq!(bench.record().partitions.len(), 4);
}

#[test]
fn verified_partitions_each_have_their_result() {
    let bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
    let (known, other) = (partition(0), partition(1));
    let verified = bench.transaction.verify_partitions(producer(3), [&known, &other]);
    let expected = vec![(&known, ErrorCode::NONE), (&other, ErrorCode::TRANSACTION_ABORTABLE)];
    assert_eq!(verified, Ok(expected));
    assert_eq!(bench.transaction.verify_partitions(producer(2), [&known]), Err(FENCED));
    let stranger = ProducerIdAndEpoch { id: 1, epoch: 3 };
    assert_eq!(bench.transaction.verify_partitions(stranger, [&known]), Err(MAPPING));
    let bench = Bench::loaded(in_state(TransactionState::PrepareAbort, 3));
    assert_eq!(bench.transaction.verify_partitions(producer(3), [&known]), Err(CONCURRENT));
}

#[test]
fn pending_transition_requests_wait_up_to_the_limit_until_their_deadline() {
    let mut bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
    bench.end(producer(3), true, V2);
    let at_once = bench.add(producer(4), &[0], V2, None);
    bench.assert_answer(at_once, AddPartitions(Err(CONCURRENT)));
    let waiting: Vec<_> = (0..3).map(|_| bench.add(producer(4), &[0], V2, Some(20))).collect();
    assert_eq!((bench.effects.len(), bench.transaction.next_deadline()), (0, Some(1_020)));
    let beyond = bench.init(None, Some(20));
    bench.assert_answer(beyond, InitProducerId(Err(CONCURRENT)));
    let end = bench.end(producer(3), true, V2);
    bench.assert_answer(end, EndTxn(Err(CONCURRENT)));
    bench.tick(19);
    assert_eq!(bench.effects, []);
    bench.tick(1);
    let expected: Vec<_> = waiting.into_iter().map(|ticket| (ticket, AddPartitions(Err(CONCURRENT)))).collect();
    assert_eq!((bench.answers(), bench.transaction.next_deadline()), (expected, None));
}

#[test]
fn partitions_that_waited_for_the_last_marker_are_added_by_one_record() {
    let mut bench = Bench::loaded(in_state(TransactionState::PrepareCommit, 3));
    let decision = bench.markers().decision;
    let first = bench.add(producer(3), &[0], V2, Some(20));
    let second = bench.add(producer(3), &[1, 2], V2, Some(20));
    let zombie = bench.add(producer(2), &[3], V2, Some(20));
    bench.marked(decision, &[0]);
    bench.persisted(Ok(()));
    assert_eq!(bench.record().partitions.len(), 3);
    assert_eq!(bench.answers(), []);
    bench.persisted(Ok(()));
    let expected = [first, second].map(|ticket| (ticket, AddPartitions(Ok(()))));
    assert_eq!(bench.answers(), [&expected[..], &[(zombie, AddPartitions(Err(FENCED)))]].concat());
}

#[test]
fn waiting_partitions_too_many_for_one_record_are_decided_after_it() {
    let mut bench = Bench::loaded(in_state(TransactionState::PrepareCommit, 3));
    let decision = bench.markers().decision;
    bench.add(producer(3), &[0, 1, 2], V2, Some(20));
    let too_many = bench.add(producer(3), &[3, 4], V2, Some(20));
    bench.marked(decision, &[0]);
    bench.persisted(Ok(()));
    assert_eq!(bench.record().partitions.len(), 3);
    bench.persisted(Ok(()));
    let refused = (too_many, AddPartitions(Err(ErrorCode::TRANSACTION_ABORTABLE)));
    assert_eq!(bench.answers().last(), Some(&refused));
}

#[test]
fn request_whose_deadline_passed_in_a_transition_is_not_carried_out() {
    let mut bench = Bench::loaded(in_state(TransactionState::Ongoing, 3));
    bench.add(producer(3), &[1], V2, None);
    let late = bench.init(None, Some(20));
    bench.now += 20;
    bench.persisted(Ok(()));
    assert_eq!(bench.answers().last(), Some(&(late, InitProducerId(Err(CONCURRENT)))));
    assert_eq!(bench.state().state, TransactionState::Ongoing);
}

#[test]
fn names_of_a_request_are_copied_with_one_copy_per_topic() {
    let topic = Text::from("topic".to_owned());
    let partitions = (0..3).map(|partition| TopicPartition { topic: topic.clone(), partition }).collect();
    let request = super::AddPartitions { producer: producer(0), partitions, version: V2, wait_until: None };
    let owned = request.owned();
    assert_eq!(owned, request.partitions);
    assert_ne!(owned[0].topic.as_ptr(), topic.as_ptr());
    assert!(owned.iter().all(|partition| partition.topic.as_ptr() == owned[0].topic.as_ptr()));
}
