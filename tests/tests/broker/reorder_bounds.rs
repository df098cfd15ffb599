//! Tests of parked out-of-order batches: their limits (count, bytes and time), hostile clients, deleted topics, stopped
//! and killed brokers, and full disks.

use crate::disk_full::{SmallDisk, ballast};
use crate::reorder::{
    FOREVER, PRODUCE, Probe, SOON, assert_in_order, one, receive_error, receive_offset, request, send, start, stripe,
};
use fullbore_tests::{Batch, Broker, Client, FetchFrom, fetch_request, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::fetch::FetchRequest;
use fullbore_wire::apis::produce::ProduceRequest;
use std::time::Instant;

const MIB: u64 = 1 << 20;
const OUT_OF_ORDER: ErrorCode = ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER;

/// Returns a batch of one record with a value of `bytes` bytes that begins with the sequence.
fn large(id: i64, sequence: i32, bytes: usize) -> Batch {
    let mut value = format!("{sequence} ").into_bytes();
    value.resize(bytes, b'.');
    Batch::of(&[value]).from_producer(id, 0, sequence)
}

/// Checks that there are `count` records and that their values begin with 0, 1, 2 and so on.
fn assert_large_in_order(client: &mut Client, topic: &str, count: usize) {
    let records = client.fetch_records(topic, 0);
    assert_eq!(records.len(), count);
    for (sequence, record) in records.iter().enumerate() {
        assert!(record.text().starts_with(&format!("{sequence} ")));
    }
}

#[test]
fn expired_batch_is_refused_as_out_of_order_and_can_be_sent_again() {
    let (broker, mut client, topic, id) = start(&["fullbore.reorder.wait.ms=300"], &[]);
    let mut early = broker.client();
    let sent = Instant::now();
    send(&mut early, topic, &one(id, 1));
    assert_eq!(receive_error(&mut early), OUT_OF_ORDER);
    assert!(sent.elapsed().as_millis() >= 300, "refused before its time");
    for sequence in [0, 1] {
        send(&mut client, topic, &one(id, sequence));
        assert_eq!(receive_offset(&mut client), i64::from(sequence));
    }
    assert_in_order(&mut client, "striped", 2);
}

/// The batch must expire although an earlier request on its connection still waits for its response.
#[test]
fn batch_behind_a_long_poll_expires() {
    let (broker, mut client, topic, id) = start(&["fullbore.reorder.wait.ms=200"], &[]);
    client.create_topic("polled", 1, &[]);
    let (mut early, mut later, mut probe) = (broker.client(), broker.client(), Probe::new(&broker));
    let poll = fetch_request(&[FetchFrom { topic: "polled", partition: 0, offset: 0 }], 1, 60_000);
    early.send(&poll, 12);
    send(&mut early, topic, &one(id, 1));
    probe.wait(&mut early);
    // This batch is parked after the other one, so the other one has expired when it expires.
    send(&mut later, topic, &one(id, 5));
    assert_eq!(receive_error(&mut later), OUT_OF_ORDER);
    client.produced("striped", 0, &one(id, 0));
    assert_eq!(client.latest("striped", 0), 1, "the batch behind the poll is gone");
    client.produced("polled", 0, &Batch::of(&["wakes"]));
    early.receive::<FetchRequest>(12);
    assert_eq!(receive_error(&mut early), OUT_OF_ORDER);
}

#[test]
fn batch_farthest_ahead_is_refused_at_once_past_the_limit_of_a_producer() {
    let (broker, mut client, topic, id) = start(&[FOREVER, "fullbore.reorder.batches.max=3"], &[]);
    let (mut early, mut probe) = (broker.client(), Probe::new(&broker));
    let (other, mut another) = (client.init_producer_id(), broker.client());
    for sequence in [4, 2, 1] {
        send(&mut early, topic, &one(id, sequence));
    }
    probe.wait(&mut early);
    send(&mut client, topic, &one(id, 5));
    assert_eq!(receive_error(&mut client), OUT_OF_ORDER);
    send(&mut client, topic, &one(id, 3));
    assert_eq!(receive_error(&mut early), OUT_OF_ORDER, "4 makes room for it");
    send(&mut another, topic, &one(other, 1));
    probe.wait(&mut another);
    send(&mut client, topic, &one(id, 0));
    assert_eq!([3, 0].map(|_| receive_offset(&mut client)), [3, 0]);
    send(&mut client, topic, &one(id, 4));
    assert_eq!(receive_offset(&mut client), 4);
    assert_eq!([2, 1].map(|_| receive_offset(&mut early)), [2, 1]);
    assert_in_order(&mut client, "striped", 5);
    send(&mut client, topic, &one(other, 0));
    assert_eq!((receive_offset(&mut client), receive_offset(&mut another)), (5, 6), "another producer has its own");
}

#[test]
fn limit_of_zero_refuses_early_batches_and_advertises_zero() {
    let (_broker, mut client, topic, id) = start(&[FOREVER, "fullbore.reorder.batches.max=0"], &[]);
    for (sequence, code) in [(1, OUT_OF_ORDER), (0, ErrorCode::NONE), (1, ErrorCode::NONE), (3, OUT_OF_ORDER)] {
        let response = client.call(&request(topic, &one(id, sequence), true), PRODUCE);
        assert_eq!(response.reorder_batches, 0);
        assert_eq!(crate::reorder::only(response).error_code, code);
    }
}

#[test]
fn early_batch_past_the_bytes_of_its_producer_is_refused_and_others_wait() {
    let (broker, mut client, topic, id) = start(&[FOREVER, "fullbore.reorder.bytes.max=1000000"], &[]);
    let (mut early, mut probe) = (broker.client(), Probe::new(&broker));
    for sequence in 1..=4 {
        send(&mut early, topic, &large(id, sequence, 100_000));
    }
    probe.wait(&mut early);
    send(&mut client, topic, &large(id, 5, 100_000));
    assert_eq!(receive_error(&mut client), OUT_OF_ORDER, "half of a megabyte is full");
    let other = client.init_producer_id();
    let mut another = broker.client();
    send(&mut another, topic, &large(other, 1, 100_000));
    probe.wait(&mut another);
    send(&mut client, topic, &large(id, 0, 100_000));
    assert_eq!(receive_offset(&mut client), 0);
    (1..=4).for_each(|offset| assert_eq!(receive_offset(&mut early), offset));
    send(&mut client, topic, &large(other, 0, 100));
    assert_eq!((receive_offset(&mut client), receive_offset(&mut another)), (5, 6));
    // The appended batches no longer count towards the limit, so other batches can be parked.
    for sequence in 6..=9 {
        send(&mut early, topic, &large(id, sequence, 100_000));
    }
    probe.wait(&mut early);
    send(&mut client, topic, &large(id, 5, 100_000));
    assert_eq!(receive_offset(&mut client), 7);
    (8..=11).for_each(|offset| assert_eq!(receive_offset(&mut early), offset));
}

/// Three clients send only out-of-order batches, large and small, and never the missing one. The broker's memory must
/// stay limited, and other clients must be served.
#[test]
fn clients_of_early_batches_only_take_bounded_memory_and_delay_no_other() {
    let (broker, mut client, topic, id) = start(&[FOREVER, "fullbore.reorder.bytes.max=16777216"], &[]);
    crate::assert_serves(&broker);
    let before = broker.rss();
    let mut hostile: Vec<_> = (0..3).map(|_| (broker.client(), client.init_producer_id())).collect();
    let mut probe = Probe::new(&broker);
    for (connection, hostile_id) in &mut hostile {
        for sequence in 1..=500 {
            let bytes = if sequence % 2 == 0 { 100_000 } else { 10 };
            send(connection, topic, &large(*hostile_id, sequence, bytes));
        }
        probe.wait(connection);
    }
    let grown = broker.rss().saturating_sub(before);
    assert!(grown < 64 * MIB, "{} MiB for 75 MB of early batches", grown / MIB);
    stripe(&broker, topic, id, 0..500, 0, 100);
    assert_in_order(&mut client, "striped", 500);
    crate::assert_serves(&broker);
}

/// The same out-of-order batch is sent repeatedly and parked once. Only a limited number of responses may wait for it.
#[test]
fn one_early_batch_sent_a_thousand_times_is_parked_once() {
    let (broker, mut client, topic, id) = start(&[FOREVER], &[]);
    let mut hostile: Vec<Client> = (0..10).map(|_| broker.client()).collect();
    let mut probe = Probe::new(&broker);
    for connection in &mut hostile {
        (0..100).for_each(|_| send(connection, topic, &large(id, 1, 1000)));
        probe.wait(connection);
    }
    send(&mut client, topic, &large(id, 0, 10));
    assert_eq!(receive_offset(&mut client), 0);
    let mut answered = 0;
    for connection in &mut hostile {
        for _ in 0..100 {
            match crate::reorder::receive(connection) {
                answer if answer.error_code == OUT_OF_ORDER => {}
                answer => {
                    assert_eq!((answer.error_code, answer.base_offset), (ErrorCode::NONE, 1));
                    answered += 1;
                }
            }
        }
    }
    assert_eq!(answered, 4, "copies that may wait for one answer");
    assert_large_in_order(&mut client, "striped", 2);
}

/// Parked batches do not count towards their connection's limit. The broker reads on from a connection whose limit is
/// smaller than one batch. The missing batch can thus arrive over this connection or another one.
#[test]
fn a_connection_full_of_early_batches_still_reads_the_missing_one() {
    let (broker, mut client, topic, id) = start(&[FOREVER, "fullbore.connection.bytes.max=65536"], &[]);
    for (round, own) in [(0, true), (1, false)] {
        let mut early = broker.client();
        let first = round * 20;
        for sequence in (first + 1..first + 20).rev() {
            send(&mut early, topic, &large(id, sequence, 100_000));
        }
        let mut other = broker.client();
        let missing = if own { &mut early } else { &mut other };
        send(missing, topic, &large(id, first, 100_000));
        let mut offsets: Vec<i64> = (0..19).map(|_| receive_offset(&mut early)).collect();
        offsets.push(receive_offset(if own { &mut early } else { &mut other }));
        let expected: Vec<i64> = (first + 1..first + 20).rev().chain([first]).map(i64::from).collect();
        assert_eq!(offsets, expected);
    }
    assert_large_in_order(&mut client, "striped", 40);
}

/// The connection has its maximum number of requests, so the broker does not read the missing batch. It continues to
/// read after the parked batches have expired.
#[test]
fn connection_full_of_early_requests_goes_on_as_they_expire() {
    let sets = ["fullbore.connection.requests.max=4", "fullbore.reorder.wait.ms=1000"];
    let (broker, mut client, topic, id) = start(&sets, &[]);
    let mut early = broker.client();
    (0..20).rev().for_each(|sequence| send(&mut early, topic, &one(id, sequence)));
    let codes: Vec<ErrorCode> = (0..20).map(|_| receive_error(&mut early)).collect();
    assert_eq!((codes[0], codes[19]), (OUT_OF_ORDER, ErrorCode::NONE), "{codes:?}");
    let next = i32::try_from(client.latest("striped", 0)).expect("small");
    for sequence in next..20 {
        assert_eq!(client.produced("striped", 0, &one(id, sequence)), i64::from(sequence));
    }
    assert_in_order(&mut client, "striped", 20);
}

#[test]
fn acks_zero_never_waits() {
    let (broker, mut client, topic, id) = start(&[FOREVER], &[]);
    let unnoticed = |sequence| ProduceRequest { acks: 0, ..request(topic, &one(id, sequence), true) };
    let mut early = broker.client();
    early.send(&unnoticed(1), PRODUCE);
    assert_eq!(early.wait_for_close(), 0, "closing is the only way to tell");
    client.send(&unnoticed(0), PRODUCE);
    assert_eq!(client.latest("striped", 0), 1, "in its turn it is taken");
}

#[test]
fn batch_waiting_on_a_deleted_topic_is_refused() {
    let (broker, mut client, topic, id) = start(&[FOREVER], &[]);
    let (mut early, mut probe) = (broker.client(), Probe::new(&broker));
    send(&mut early, topic, &one(id, 1));
    probe.wait(&mut early);
    client.delete_topic("striped");
    assert_eq!(receive_error(&mut early), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let again = client.create_topic("striped", 1, &[]);
    send(&mut early, again, &one(id, 0));
    assert_eq!(receive_offset(&mut early), 0);
    assert_eq!(client.latest("striped", 0), 1, "nothing of the old topic comes after it");
}

#[test]
fn stop_answers_waiting_batches_with_a_retriable_error() {
    let (mut broker, _, topic, id) = start(&[FOREVER], &[]);
    let (mut early, mut probe) = (broker.client(), Probe::new(&broker));
    send(&mut early, topic, &one(id, 1));
    probe.wait(&mut early);
    broker.terminate();
    assert_eq!(receive_error(&mut early), ErrorCode::NOT_LEADER_OR_FOLLOWER);
    assert_eq!(broker.wait_for_end().code(), Some(0));
    broker.restart();
    let mut client = broker.client();
    assert_eq!(client.latest("striped", 0), 0);
    stripe(&broker, topic, id, 0..10, 0, 5);
    assert_in_order(&mut client, "striped", 10);
}

#[test]
fn kill_drops_waiting_batches_unacknowledged() {
    let (mut broker, mut client, topic, id) = start(&[FOREVER], &[]);
    assert_eq!(client.produced("striped", 0, &one(id, 0)), 0);
    let (mut early, mut probe) = (broker.client(), Probe::new(&broker));
    [2, 3, 5].iter().for_each(|sequence| send(&mut early, topic, &one(id, *sequence)));
    probe.wait(&mut early);
    broker.kill();
    assert!(early.try_receive::<ProduceRequest>(PRODUCE).is_none(), "nothing was said");
    broker.restart();
    let mut client = broker.client();
    assert_in_order(&mut client, "striped", 1);
    stripe(&broker, topic, id, 1..6, 1, 5);
    assert_in_order(&mut client, "striped", 6);
}

/// The disk becomes full while the parked batches are appended. After the first failure all later batches fail, and
/// none of them is written.
#[test]
fn full_disk_fails_all_batches_behind_the_first_failed_one() {
    let Some(disk) = SmallDisk::mount(8 << 20) else { return };
    let broker = Broker::start_in(&disk.path().join("data"), &[FOREVER]);
    let mut client = broker.client();
    let topic = client.create_topic("striped", 1, &[]);
    let id = client.init_producer_id();
    let (mut early, mut probe) = (broker.client(), Probe::new(&broker));
    (1..=20).for_each(|sequence| send(&mut early, topic, &large(id, sequence, 400_000)));
    probe.wait(&mut early);
    let ballast = ballast(&disk, 3 << 20);
    send(&mut client, topic, &large(id, 0, 400_000));
    assert_eq!(receive_offset(&mut client), 0);
    let codes: Vec<ErrorCode> = (1..=20).map(|_| receive_error(&mut early)).collect();
    let taken = codes.iter().take_while(|code| !code.is_err()).count();
    assert!((1..20).contains(&taken), "8 MiB less ballast hold some: {codes:?}");
    assert!(codes[taken..].iter().all(|code| *code == ErrorCode::KAFKA_STORAGE_ERROR), "{codes:?}");
    assert_large_in_order(&mut client, "striped", taken + 1);
    std::fs::remove_file(ballast).expect("ours");
    let first = i32::try_from(taken).expect("few") + 1;
    let mut next = first;
    wait_until("what failed is sent again and taken", SOON, || {
        send(&mut client, topic, &large(id, next, 100_000));
        assert_eq!(receive_offset(&mut client), i64::from(next));
        next += 1;
        next == first + 3
    });
    assert_large_in_order(&mut client, "striped", taken + 4);
}
