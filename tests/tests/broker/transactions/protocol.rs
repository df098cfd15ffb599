//! Both transaction protocols of clients. In the old one the client adds partitions. In the new one Produce adds them,
//! and each end of a transaction increases the epoch.

use super::{SOON, TOPIC, both, one, wait_for_state};
use fullbore_tests::{Batch, Broker, Protocol, Transactional, wait_until};
use fullbore_wire::apis::list_transactions::ListTransactionsRequest;
use fullbore_wire::{ErrorCode, Text};

#[test]
fn committed_and_aborted_transactions_of_both_protocols_are_read_by_their_end() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut producers = both(&mut client, "ends");
    let mut expected = Vec::new();
    for n in 0..10 {
        for producer in &mut producers {
            let value = format!("{n} of {:?}", producer.protocol);
            one(&mut client, producer, &value, n % 3 != 0);
            if n % 3 != 0 {
                expected.push(value);
            }
        }
    }
    assert_eq!(client.committed_texts(TOPIC, 0), expected);
    assert_eq!(client.latest(TOPIC, 0), 40, "a record and a marker each");
    assert_eq!(client.stable(TOPIC, 0), 40);
    let [old, new] = producers;
    assert_eq!((old.epoch, new.epoch), (0, 10), "the epoch stays, or each end bumps it");
}

/// In the new protocol, the marker has the next epoch.
#[test]
fn marker_has_the_epoch_of_its_protocol_and_the_decision() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    for (mut producer, bump) in both(&mut client, "marks").into_iter().zip([0, 1]) {
        for is_commit in [true, false] {
            let epoch = producer.epoch;
            let offset = one(&mut client, &mut producer, "marked", is_commit);
            let batches = client.fetch_batches(TOPIC, 0);
            let [data, marker] = &batches[batches.len() - 2..] else { panic!("two batches") };
            assert_eq!((data.base_offset, data.producer_epoch, data.marker), (offset, epoch, None));
            assert_eq!((marker.producer_id, marker.producer_epoch), (data.producer_id, epoch + bump));
            assert!(marker.is_transactional());
            assert_eq!(marker.marker.map(|marker| marker.is_commit), Some(is_commit));
        }
    }
}

#[test]
fn batch_to_an_unadded_partition_has_the_error_of_its_version() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, &[]);
    let mut producer = super::write_unadded(&mut client);
    producer.end(&mut client, true);
    assert_eq!(client.committed_texts(TOPIC, 0), ["unadded"]);
}

#[test]
fn disabled_verification_lets_the_old_protocol_write_to_any_partition() {
    let broker = Broker::start(&["transaction.partition.verification.enable=false"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut producer = Transactional::begin(&mut client, "unverified", Protocol::Old);
    let batch = producer.batch(TOPIC, 0, &["anywhere"]);
    assert_eq!(producer.send(&mut client, TOPIC, 0, &batch).error_code, ErrorCode::NONE);
    assert_eq!(client.stable(TOPIC, 0), 0);
}

/// The client got no response, so it resends its EndTxn.
#[test]
fn repeated_end_has_the_same_result_and_the_opposite_end_is_refused() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    for mut producer in both(&mut client, "repeated") {
        for is_commit in [true, false] {
            producer.write(&mut client, TOPIC, 0, &["once"]);
            let first = producer.try_end(&mut client, is_commit);
            assert_eq!(first.error_code, ErrorCode::NONE);
            wait_for_state(
                &mut client,
                &producer.transactional_id,
                if is_commit { "CompleteCommit" } else { "CompleteAbort" },
            );
            let end = client.latest(TOPIC, 0);
            for _ in 0..3 {
                assert_eq!(producer.try_end(&mut client, is_commit), first);
            }
            let other = producer.try_end(&mut client, !is_commit);
            assert_eq!(other.error_code, ErrorCode::INVALID_TXN_STATE);
            assert_eq!(client.latest(TOPIC, 0), end, "no second marker");
            producer.ended(&first);
        }
    }
}

#[test]
fn end_without_a_transaction_is_refused_except_an_abort_of_the_new_protocol() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let [mut old, mut new] = both(&mut client, "empty");
    for is_commit in [true, false] {
        assert_eq!(old.try_end(&mut client, is_commit).error_code, ErrorCode::INVALID_TXN_STATE);
    }
    assert_eq!(new.try_end(&mut client, true).error_code, ErrorCode::INVALID_TXN_STATE);
    new.end(&mut client, false);
    assert_eq!(new.epoch, 1);
    one(&mut client, &mut new, "goes on", true);
    one(&mut client, &mut old, "goes on, too", true);
    assert_eq!(client.committed_texts(TOPIC, 0), ["goes on", "goes on, too"]);
}

#[test]
fn new_producer_of_an_id_fences_the_former_and_aborts_its_transaction() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, &[]);
    for protocol in Protocol::BOTH {
        let id = format!("fenced-{protocol:?}");
        let partition = i32::from(protocol == Protocol::New);
        let mut zombie = Transactional::begin(&mut client, &id, protocol);
        zombie.write(&mut client, TOPIC, partition, &["of the zombie"]);
        let mut producer = Transactional::begin(&mut client, &id, protocol);
        assert_eq!(producer.id, zombie.id);
        assert!(producer.epoch > zombie.epoch);
        assert_eq!(client.stable(TOPIC, partition), client.latest(TOPIC, partition), "it is aborted");
        let late = zombie.batch(TOPIC, partition, &["late"]);
        let refused = zombie.send(&mut client, TOPIC, partition, &late).error_code;
        assert_eq!(refused, ErrorCode::INVALID_PRODUCER_EPOCH);
        for is_commit in [true, false] {
            assert_eq!(zombie.try_end(&mut client, is_commit).error_code, ErrorCode::PRODUCER_FENCED);
        }
        let codes = client.add_partitions(&id, zombie.producer(), TOPIC, &[partition], 3);
        assert_eq!(codes, [ErrorCode::PRODUCER_FENCED]);
        producer.write(&mut client, TOPIC, partition, &["of the next"]);
        producer.end(&mut client, true);
        assert_eq!(client.committed_texts(TOPIC, partition), ["of the next"]);
    }
}

/// A client that got no response to InitProducerId repeats the request with its former epoch (KIP-360).
#[test]
fn repeated_init_with_the_former_epoch_gets_the_same_epoch() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let first = client.init_transactional("again", 60_000, None, 4);
    let current = Some((first.producer_id, first.producer_epoch));
    let bumped = client.init_transactional("again", 60_000, current, 4);
    assert_eq!((bumped.error_code, bumped.producer_epoch), (ErrorCode::NONE, first.producer_epoch + 1));
    for _ in 0..3 {
        let again = client.init_transactional("again", 60_000, current, 4);
        assert_eq!(
            (again.error_code, again.producer_id, again.producer_epoch),
            (ErrorCode::NONE, bumped.producer_id, bumped.producer_epoch)
        );
    }
    // Another client then uses the id, which fences the first client.
    let other = client.init_transactional("again", 60_000, None, 4);
    assert_eq!(other.producer_epoch, bumped.producer_epoch + 1);
    let fenced = client.init_transactional("again", 60_000, current, 4);
    assert_eq!(fenced.error_code, ErrorCode::PRODUCER_FENCED);
}

/// After 32,767 epochs the id gets a new producer id. This happens in InitProducerId, or at the end of a transaction of
/// the new protocol.
#[test]
fn exhausted_epochs_give_a_new_producer_id() {
    const LAST: i16 = i16::MAX - 1;
    let broker = Broker::start(&["transaction.state.log.num.partitions=1"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut producer = Transactional::begin(&mut client, "worn", Protocol::New);
    let first_id = producer.id;
    let mut bump = |to: i16| {
        let mut epoch = producer.epoch;
        while epoch < to {
            let response = client.init_transactional("worn", 60_000, None, 5);
            assert!([ErrorCode::NONE, ErrorCode::CONCURRENT_TRANSACTIONS].contains(&response.error_code));
            epoch = if response.error_code.is_err() { epoch } else { response.producer_epoch };
        }
    };
    bump(LAST - 1);
    producer.epoch = LAST - 1;
    one(&mut client, &mut producer, "before the last", true);
    assert_eq!(producer.producer(), (first_id, LAST));
    let last = producer.clone();
    producer.write(&mut client, TOPIC, 0, &["the last"]);
    let ended = producer.try_end(&mut client, true);
    assert_eq!((ended.error_code, ended.producer_epoch), (ErrorCode::NONE, 0));
    assert_ne!(ended.producer_id, first_id);
    producer.ended(&ended);
    wait_for_state(&mut client, "worn", "CompleteCommit");
    assert_eq!(last.try_end(&mut client, true), ended, "the answer was lost");
    one(&mut client, &mut producer, "of the next id", true);
    assert_eq!(client.committed_texts(TOPIC, 0), ["before the last", "the last", "of the next id"]);
}

#[test]
fn transaction_past_its_timeout_is_aborted_and_its_producer_fenced() {
    let broker = Broker::start(&["transaction.abort.timed.out.transaction.cleanup.interval.ms=20"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, &[]);
    for (protocol, partition) in Protocol::BOTH.into_iter().zip(0..) {
        let id = format!("slow-{protocol:?}");
        let mut producer = Transactional::with_timeout(&mut client, &id, protocol, 3_000);
        producer.write(&mut client, TOPIC, partition, &["too slow"]);
        assert_eq!(client.stable(TOPIC, partition), 0);
        wait_until("it is aborted", SOON, || client.stable(TOPIC, partition) == 2);
        wait_for_state(&mut client, &id, "CompleteAbort");
        assert_eq!(client.committed_texts(TOPIC, partition), [""; 0]);
        assert_eq!(
            producer.try_end(&mut client, true).error_code,
            match protocol {
                Protocol::Old => ErrorCode::PRODUCER_FENCED,
                // The producer's epoch is outdated, as if the response to its abort had been lost.
                Protocol::New => ErrorCode::INVALID_TXN_STATE,
            }
        );
        let late = producer.batch(TOPIC, partition, &["late"]);
        assert_eq!(producer.send(&mut client, TOPIC, partition, &late).error_code, ErrorCode::INVALID_PRODUCER_EPOCH);
    }
}

#[test]
fn idle_id_expires_and_restarts_with_another_producer_id() {
    let broker = Broker::start(&[
        "transactional.id.expiration.ms=3000",
        "transaction.remove.expired.transaction.cleanup.interval.ms=20",
    ]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut producer = Transactional::begin(&mut client, "idle", Protocol::New);
    producer.write(&mut client, TOPIC, 0, &["open"]);
    let gone = |client: &mut fullbore_tests::Client| {
        client.describe_transaction("idle").error_code == ErrorCode::TRANSACTIONAL_ID_NOT_FOUND
    };
    let mut ended = producer.clone();
    ended.end(&mut client, true);
    wait_until("the id has expired", SOON, || gone(&mut client));
    let code = producer.try_end(&mut client, true).error_code;
    assert_eq!(code, ErrorCode::INVALID_PRODUCER_ID_MAPPING);
    let next = Transactional::begin(&mut client, "idle", Protocol::New);
    assert_eq!(next.epoch, 0);
    assert_ne!(next.id, producer.id);
    assert_eq!(client.committed_texts(TOPIC, 0), ["open"]);
}

#[test]
fn transactions_are_described_and_listed_by_every_filter() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 3, &[]);
    let none = client.describe_transaction("unknown");
    assert_eq!(none.error_code, ErrorCode::TRANSACTIONAL_ID_NOT_FOUND);
    let mut open = Transactional::with_timeout(&mut client, "list-open", Protocol::New, 54_321);
    let idle = Transactional::begin(&mut client, "list-idle", Protocol::New);
    let mut done = Transactional::begin(&mut client, "done", Protocol::Old);
    done.write(&mut client, TOPIC, 0, &["done"]);
    done.end(&mut client, true);
    wait_for_state(&mut client, "done", "CompleteCommit");
    open.write(&mut client, TOPIC, 2, &["open"]);
    open.write(&mut client, TOPIC, 0, &["open"]);

    let described = client.describe_transaction("list-open");
    assert_eq!((described.error_code, described.transaction_state.as_str()), (ErrorCode::NONE, "Ongoing"));
    assert_eq!((described.producer_id, described.producer_epoch), open.producer());
    assert_eq!(described.transaction_timeout_ms, 54_321);
    assert!(described.transaction_start_time_ms > 1_700_000_000_000);
    let mut topics: Vec<_> =
        described.topics.iter().map(|topic| (topic.topic.to_string(), topic.partitions.clone())).collect();
    topics.iter_mut().for_each(|(_, partitions)| partitions.sort_unstable());
    assert_eq!(topics, [(TOPIC.to_owned(), vec![0, 2])]);
    let described = client.describe_transaction("list-idle");
    assert_eq!((described.transaction_state.as_str(), described.transaction_start_time_ms), ("Empty", -1));

    let mut listed = |request: ListTransactionsRequest, version| {
        let response = client.call(&request, version);
        assert_eq!(response.error_code, ErrorCode::NONE);
        let mut ids: Vec<String> =
            response.transaction_states.iter().map(|state| state.transactional_id.to_string()).collect();
        ids.sort();
        (ids, response.unknown_state_filters)
    };
    let all = ListTransactionsRequest { duration_filter: -1, ..Default::default() };
    let states = |states: &[&'static str]| ListTransactionsRequest {
        state_filters: states.iter().map(|state| Text::from_static(state)).collect(),
        ..all.clone()
    };
    assert_eq!(listed(all.clone(), 0).0, ["done", "list-idle", "list-open"]);
    assert_eq!(listed(states(&["Ongoing"]), 0).0, ["list-open"]);
    assert_eq!(listed(states(&["Ongoing", "Empty"]), 1).0, ["list-idle", "list-open"]);
    let (ids, unknown) = listed(states(&["CompleteCommit", "Absurd"]), 2);
    assert_eq!((ids, unknown), (vec!["done".to_owned()], vec![Text::from_static("Absurd")]));
    assert_eq!(listed(states(&["Absurd"]), 2).0, [""; 0]);
    let by_producer = ListTransactionsRequest { producer_id_filters: vec![idle.id, 9_999_999], ..all.clone() };
    assert_eq!(listed(by_producer, 0).0, ["list-idle"]);
    let pattern = |pattern: &'static str| ListTransactionsRequest {
        transactional_id_pattern: Some(Text::from_static(pattern)),
        ..all.clone()
    };
    assert_eq!(listed(pattern("list-.*"), 2).0, ["list-idle", "list-open"]);
    assert_eq!(listed(pattern("list"), 2).0, [""; 0], "the whole id has to match");
    let long = ListTransactionsRequest { duration_filter: 3_600_000, ..states(&["Ongoing"]) };
    assert_eq!(listed(long, 1).0, [""; 0]);
    let short = ListTransactionsRequest { duration_filter: 0, ..states(&["Ongoing"]) };
    wait_until("it has been open for a millisecond", SOON, || listed(short.clone(), 1).0 == ["list-open"]);
    let response = client.call(&pattern("(broken"), 2);
    assert_eq!(response.error_code, ErrorCode::INVALID_REGULAR_EXPRESSION);
}

#[test]
fn producers_are_described_with_their_open_transaction_and_its_coordinator() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    client.produced(TOPIC, 0, &Batch::of(&["plain"]));
    for mut producer in both(&mut client, "described") {
        let offset = producer.write(&mut client, TOPIC, 0, &["first"]);
        producer.write(&mut client, TOPIC, 0, &["second"]);
        let find = |client: &mut fullbore_tests::Client, id: i64| {
            let described = client.describe_producers(TOPIC, 0);
            assert_eq!(described.error_code, ErrorCode::NONE);
            described.active_producers.into_iter().find(|active| active.producer_id == id).expect("it has written")
        };
        let open = find(&mut client, producer.id);
        assert_eq!((open.current_txn_start_offset, open.coordinator_epoch, open.last_sequence), (offset, -1, 1));
        assert_eq!(open.producer_epoch, i32::from(producer.epoch));
        producer.end(&mut client, true);
        let ended = find(&mut client, producer.id);
        assert_eq!((ended.current_txn_start_offset, ended.coordinator_epoch >= 0), (-1, true));
        assert_eq!(ended.producer_epoch, i32::from(producer.epoch), "that of the marker");
    }
}

/// The first batch of a producer is refused because the coordinator cannot confirm it. Later batches are already in
/// flight.
#[test]
fn batch_behind_an_unverified_one_is_not_taken_for_the_first() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    client.produced(TOPIC, 0, &Batch::of(&["plain"]));
    // On any new broker, the first transactional id gets the same producer id. This broker has no transactional id yet,
    // so this producer id is not in use.
    let next = first_transactional_id();
    let batch = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(next, 0, sequence).transactional();
    let mut send = |sequence: i32| {
        let request = fullbore_tests::transactional_request("behind", TOPIC, 0, batch(sequence).bytes());
        client.call(&request, 11).responses[0].partition_responses[0].error_code
    };
    assert_eq!(send(0), ErrorCode::NOT_ENOUGH_REPLICAS);
    let mut other = broker.client();
    let mut producer = Transactional::begin(&mut other, "behind", Protocol::Old);
    assert_eq!(producer.producer(), (next, 0));
    producer.add(&mut other, TOPIC, &[0]);
    assert_eq!(send(1), ErrorCode::NOT_ENOUGH_REPLICAS, "behind the refused one");
    assert_eq!([send(0), send(1)], [ErrorCode::NONE; 2]);
    producer.end(&mut other, true);
    assert_eq!(other.committed_texts(TOPIC, 0), ["plain", "0", "1"]);
}

/// Returns the producer id that every new broker assigns to its first transactional id.
fn first_transactional_id() -> i64 {
    let broker = Broker::start(&[]);
    Transactional::begin(&mut broker.client(), "first", Protocol::Old).id
}
