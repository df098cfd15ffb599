//! Limits of a single client: ids, partitions of a transaction, waiting requests, and connections that end in the
//! middle.

use super::{SOON, TOPIC, one, wait_for_state};
use crate::assert_serves;
use fullbore_tests::{Broker, Client, Protocol, Transactional, init_request, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::end_txn::EndTxnRequest;
use fullbore_wire::apis::init_producer_id::InitProducerIdRequest;
use fullbore_wire::apis::produce::ProduceRequest;
use std::time::Duration;

fn init(id: &str) -> InitProducerIdRequest {
    init_request(id, 60_000, None)
}

/// The goal is that 100,000 ids take at most 100 MiB. The test creates a tenth of these ids, and its limit has a
/// margin.
#[test]
fn ten_thousand_ids_take_little_memory_and_survive_a_restart() {
    const IDS: usize = 10_000;
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    Transactional::begin(&mut client, "the first", Protocol::New);
    let before = broker.rss();
    for chunk in (0..IDS).collect::<Vec<_>>().chunks(50) {
        chunk.iter().for_each(|n| _ = client.send(&init(&format!("transactional-id-number-{n}")), 5));
        for _ in chunk {
            assert_eq!(client.receive::<InitProducerIdRequest>(5).1.error_code, ErrorCode::NONE);
        }
    }
    let grown = broker.rss().saturating_sub(before);
    assert!(grown < 24 << 20, "{grown} bytes more");
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    let again = Transactional::begin(&mut client, "transactional-id-number-9999", Protocol::New);
    assert_eq!(again.epoch, 1);
}

#[test]
fn one_id_too_many_is_refused_and_existing_ids_continue() {
    let broker = Broker::start(&["fullbore.transactional.ids.max=3"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut producers: Vec<_> =
        (0..3).map(|n| Transactional::begin(&mut client, &format!("id-{n}"), Protocol::New)).collect();
    let refused = client.call(&init("id-3"), 5);
    assert_eq!(refused.error_code, ErrorCode::COORDINATOR_NOT_AVAILABLE);
    producers.iter_mut().for_each(|producer| _ = one(&mut client, producer, "goes on", true));
    assert_eq!(client.committed_texts(TOPIC, 0).len(), 3);
    broker.wait_for_stderr("fullbore.transactional.ids.max");
}

#[test]
fn one_partition_too_many_is_refused_by_each_protocol_and_the_rest_commits() {
    let broker = Broker::start(&["fullbore.transaction.partitions.max=100"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 102, &[]);
    for protocol in Protocol::BOTH {
        let id = format!("wide-{protocol:?}");
        let mut producer = Transactional::begin(&mut client, &id, protocol);
        if protocol == Protocol::Old {
            producer.add(&mut client, TOPIC, &(0..100).collect::<Vec<_>>());
            let codes = client.add_partitions(&id, producer.producer(), TOPIC, &[99, 100], 3);
            assert_eq!(codes, [ErrorCode::POLICY_VIOLATION; 2]);
        }
        (0..100).for_each(|partition| _ = producer.write(&mut client, TOPIC, partition, &["x"]));
        let batch = producer.batch(TOPIC, 101, &["one too many"]);
        let refused = producer.send(&mut client, TOPIC, 101, &batch).error_code;
        assert_eq!(refused, ErrorCode::TRANSACTION_ABORTABLE);
        producer.end(&mut client, true);
        assert!((0..100).all(|partition| !client.committed_texts(TOPIC, partition).is_empty()));
        assert_eq!(client.latest(TOPIC, 101), 0);
    }
}

/// Many connections send requests for the same id. Each request gets a response, and the last producer is the valid
/// one.
#[test]
fn two_hundred_inits_of_one_id_at_once_are_all_answered() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut open = Transactional::begin(&mut client, "crowded", Protocol::New);
    open.write(&mut client, TOPIC, 0, &["open"]);
    let mut clients: Vec<Client> = (0..200).map(|_| broker.client()).collect();
    clients.iter_mut().for_each(|client| _ = client.send(&init("crowded"), 5));
    let answers: Vec<_> = clients.iter_mut().map(|client| client.receive::<InitProducerIdRequest>(5).1).collect();
    let (good, bad): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| !answer.error_code.is_err());
    assert!(bad.iter().all(|answer| answer.error_code == ErrorCode::CONCURRENT_TRANSACTIONS));
    let mut epochs: Vec<i16> = good.iter().map(|answer| answer.producer_epoch).collect();
    epochs.sort_unstable();
    epochs.dedup();
    assert_eq!(epochs.len(), good.len(), "no two have the same epoch");
    let mut last = Transactional::begin(&mut client, "crowded", Protocol::New);
    assert!(epochs.iter().all(|epoch| *epoch < last.epoch));
    one(&mut client, &mut last, "of the last", true);
    assert_eq!(client.committed_texts(TOPIC, 0), ["of the last"]);
    assert_serves(&broker);
}

#[test]
fn clients_gone_with_an_end_or_a_record_in_flight_leave_no_open_transaction() {
    let broker = Broker::start(&["transaction.abort.timed.out.transaction.cleanup.interval.ms=20"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut committed = 0;
    for n in 0..40 {
        let id = format!("leaves-{n}");
        // Half of the transactions are committed, with a timeout that no commit exceeds even on a slow machine. The
        // others are aborted by their short timeout.
        let (is_committed, timeout_ms) = if n % 4 < 2 { (true, 60_000) } else { (false, 3_000) };
        let mut producer = Transactional::with_timeout(&mut client, &id, Protocol::BOTH[n % 2], timeout_ms);
        let mut own = broker.client();
        producer.write(&mut own, TOPIC, 0, &[format!("{n}")]);
        if is_committed {
            own.send(&producer.end_request(true), producer.protocol.end_txn());
            own.finish();
            own.wait_for_close();
            committed += 1;
        } else {
            let batch = producer.batch(TOPIC, 0, &["cut"]).bytes();
            let request = fullbore_tests::transactional_request(&id, TOPIC, 0, batch);
            own.send(&request, producer.protocol.produce());
            own.reset();
        }
    }
    wait_until("every transaction has ended", SOON, || client.stable(TOPIC, 0) == client.latest(TOPIC, 0));
    assert_eq!(client.committed_texts(TOPIC, 0).len(), committed);
}

/// A client sends thousands of requests and reads no response. The transactions of another client must go on.
#[test]
fn client_that_reads_no_responses_does_not_delay_other_transactions() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut slow = broker.client();
    slow.set_write_timeout(Duration::from_millis(200));
    let producer = Transactional::begin(&mut client, "slow", Protocol::New);
    let end = producer.end_request(false);
    for _ in 0..20_000 {
        if slow.try_send(&end, 5).is_err() || slow.try_send(&init("slow"), 5).is_err() {
            break;
        }
    }
    let mut other = Transactional::begin(&mut client, "other", Protocol::New);
    for n in 0..20 {
        one(&mut client, &mut other, &n.to_string(), true);
    }
    assert_eq!(client.committed_texts(TOPIC, 0).len(), 20);
    drop(slow);
    wait_until("the id is free", SOON, || !client.call(&init("slow"), 5).error_code.is_err());
    wait_for_state(&mut client, "slow", "Empty");
}

/// A partition remembers 10,000 producers, and each of them may have an open transaction in it.
#[test]
fn ten_thousand_transactions_open_in_one_partition_end_and_one_more_waits() {
    const OPEN: usize = 10_000;
    let mut broker = Broker::start(&["transaction.state.log.num.partitions=5"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut producers: Vec<Transactional> = Vec::new();
    for chunk in (0..=OPEN).collect::<Vec<_>>().chunks(100) {
        chunk.iter().for_each(|n| _ = client.send(&init(&format!("open-{n}")), 5));
        for n in chunk {
            let answer = client.receive::<InitProducerIdRequest>(5).1;
            assert_eq!(answer.error_code, ErrorCode::NONE);
            producers.push(Transactional::resume(
                &format!("open-{n}"),
                Protocol::New,
                answer.producer_id,
                answer.producer_epoch,
            ));
        }
    }
    let mut late = producers.pop().expect("one more");
    for chunk in producers.chunks_mut(100) {
        for producer in &mut *chunk {
            let batch = producer.batch(TOPIC, 0, &["open"]);
            let request = fullbore_tests::transactional_request(&producer.transactional_id, TOPIC, 0, batch.bytes());
            client.send(&request, 12);
        }
        for _ in chunk {
            let response = client.receive::<ProduceRequest>(12).1;
            assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::NONE);
        }
    }
    let batch = late.batch(TOPIC, 0, &["late"]);
    assert_eq!(late.send(&mut client, TOPIC, 0, &batch).error_code, ErrorCode::CONCURRENT_TRANSACTIONS);
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    assert_eq!(client.stable(TOPIC, 0), 0);
    assert_eq!(client.describe_producers(TOPIC, 0).active_producers.len(), OPEN);
    for chunk in producers.chunks(100) {
        chunk.iter().for_each(|producer| _ = client.send(&producer.end_request(true), 5));
        for _ in chunk {
            assert_eq!(client.receive::<EndTxnRequest>(5).1.error_code, ErrorCode::NONE);
        }
    }
    assert_eq!(late.send(&mut client, TOPIC, 0, &batch).error_code, ErrorCode::NONE);
    late.end(&mut client, true);
    assert_eq!(client.committed_texts(TOPIC, 0).len(), OPEN + 1);
}
