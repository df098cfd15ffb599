//! Transactions on diskless topics. Markers are control batches in later objects, and the index has the open and
//! aborted transactions.

use super::{DISKLESS, SOON, TOPIC, both, one, wait_for_state};
use fullbore_tests::s3::{S3, S3Fault};
use fullbore_tests::{Batch, Broker, Client, NO_RETENTION, Protocol, Transactional, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::describe_producers::ProducerState;
use std::time::{Duration, Instant};

const CLASSIC: &str = "classic";
/// A setting that makes each PUT as slow as one to S3.
const SLOW: &str = "fullbore.diskless.put.delay.ms=150";
/// Minimum delay of a request that waits for a marker in a diskless topic. The coordinator holds such a request back.
const DELAY_MIN: Duration = Duration::from_millis(900);

/// Starts a broker with a diskless topic of `partitions` partitions.
fn start(sets: &[&str], partitions: i32) -> (Broker, Client) {
    let broker = Broker::start(sets);
    let mut client = broker.client();
    client.create_topic(TOPIC, partitions, DISKLESS);
    (broker, client)
}

fn settled(client: &mut Client, partition: i32) -> Vec<String> {
    super::settled(client, TOPIC, partition)
}

/// Returns the first offsets of the aborted transactions that a fetch at `offset` lists. Waits until the fetch returns
/// records.
fn aborted(client: &mut Client, offset: i64) -> Vec<i64> {
    let mut found = Vec::new();
    wait_until("records come", SOON, || {
        let data = client.fetch_committed(TOPIC, 0, offset);
        assert_eq!(data.error_code, ErrorCode::NONE);
        let aborted = data.aborted_transactions.unwrap_or_default();
        found = aborted.iter().map(|entry| entry.first_offset).collect();
        data.records.is_some_and(|records| !records.is_empty()) || offset >= data.last_stable_offset
    });
    found.sort_unstable();
    found
}

fn state_of(client: &mut Client, producer_id: i64) -> ProducerState {
    let described = client.describe_producers(TOPIC, 0);
    assert_eq!(described.error_code, ErrorCode::NONE);
    let of = |state: &ProducerState| state.producer_id == producer_id;
    described.active_producers.into_iter().find(of).expect("the producer has written")
}

#[test]
fn ended_transactions_are_read_by_their_end_before_and_after_restarts() {
    let (mut broker, mut client) = start(&[], 1);
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
    let [old, new] = &producers;
    assert_eq!((old.epoch, new.epoch), (0, 10), "the epoch stays, or each end bumps it");
    for end in [None, Some(Broker::stop as fn(&mut Broker)), Some(Broker::kill)] {
        if let Some(end) = end {
            end(&mut broker);
            broker.restart();
            client = broker.client();
        }
        assert_eq!(settled(&mut client, 0), expected);
        assert_eq!(client.latest(TOPIC, 0), 40, "a record and a marker each");
        let firsts: Vec<i64> = aborted(&mut client, 0);
        assert_eq!(firsts.len(), 8, "{firsts:?}");
        assert!(firsts.iter().all(|first| aborted(&mut client, *first).contains(first)));
    }
    // The index has the producers' state, so the producers can continue.
    for producer in &mut producers {
        one(&mut client, producer, "after restarts", true);
        expected.push("after restarts".to_owned());
    }
    assert_eq!(settled(&mut client, 0), expected);
}

#[test]
fn open_transaction_holds_the_stable_offset() {
    let (_broker, mut client) = start(&[], 1);
    let [mut eldest, mut second] = super::two_open(&mut client);
    second.end(&mut client, true);
    wait_until("the marker is there", SOON, || client.latest(TOPIC, 0) == 5);
    assert_eq!(client.stable(TOPIC, 0), 1, "the eldest is open still");
    assert_eq!(client.committed_texts(TOPIC, 0), ["plain"]);
    let data = client.fetch_committed(TOPIC, 0, 0);
    assert_eq!((data.last_stable_offset, data.high_watermark), (1, 5));
    let uncommitted = client.fetch(TOPIC, 0, 0);
    assert_eq!((uncommitted.last_stable_offset, uncommitted.high_watermark), (1, 5));
    assert_eq!(uncommitted.aborted_transactions.unwrap_or_default(), []);
    eldest.end(&mut client, false);
    assert_eq!(settled(&mut client, 0), ["plain", "2", "plain, too"]);
    assert_eq!(aborted(&mut client, 0), [1]);
    assert_eq!(aborted(&mut client, 6), [0; 0]);
}

#[test]
fn described_producer_has_its_transaction_and_coordinator() {
    let (mut broker, mut client) = start(&[], 1);
    client.produced(TOPIC, 0, &Batch::of(&["plain"]));
    for mut producer in both(&mut client, "described") {
        let first = producer.write(&mut client, TOPIC, 0, &["open"]);
        let open = state_of(&mut client, producer.id);
        assert_eq!((open.current_txn_start_offset, open.coordinator_epoch), (first, -1));
        let id = producer.id;
        producer.end(&mut client, true);
        settled(&mut client, 0);
        let ended = state_of(&mut client, id);
        assert_eq!((ended.current_txn_start_offset, ended.coordinator_epoch), (-1, 0));
    }
    let mut producer = Transactional::begin(&mut client, "over a restart", Protocol::New);
    let first = producer.write(&mut client, TOPIC, 0, &["open"]);
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    assert_eq!(state_of(&mut client, producer.id).current_txn_start_offset, first);
}

#[test]
fn long_poll_at_read_committed_is_woken_by_the_marker() {
    let (broker, mut client) = start(&[], 1);
    let mut producer = Transactional::begin(&mut client, "wakes", Protocol::New);
    for is_commit in [true, false] {
        let mut consumer = broker.client();
        let at = client.latest(TOPIC, 0);
        consumer.send_committed_poll(TOPIC, 0, at, 1, 300_000);
        producer.write(&mut client, TOPIC, 0, &["waits for its marker"]);
        producer.end(&mut client, is_commit);
        let data = consumer.receive_long_poll();
        let batches = Batch::parse_all(data.records.as_ref().and_then(|records| records.memory()).expect("read"));
        assert_eq!(batches.len(), 2, "the record and its marker");
        let aborted = data.aborted_transactions.unwrap_or_default();
        let firsts: Vec<i64> = aborted.iter().map(|entry| entry.first_offset).collect();
        assert_eq!(firsts, if is_commit { vec![] } else { vec![at] });
        settled(&mut client, 0);
    }
}

#[test]
fn offsets_are_listed_up_to_the_stable_one() {
    let (_broker, mut client) = start(&[NO_RETENTION], 1);
    client.produced(TOPIC, 0, &Batch::at(1_000_000, &["plain"]));
    let mut producer = Transactional::begin(&mut client, "listed", Protocol::New);
    let batch =
        Batch { attributes: 0x10, ..Batch::at(2_000_000, &["open"]) }.from_producer(producer.id, producer.epoch, 0);
    assert_eq!(producer.send(&mut client, TOPIC, 0, &batch).error_code, ErrorCode::NONE);
    for (timestamp, offset) in [(-1, 1), (-2, 0), (-3, 0), (500_000, 0), (1_500_000, -1)] {
        let listed = client.list_stable(TOPIC, 0, timestamp);
        assert_eq!((listed.error_code, listed.offset), (ErrorCode::NONE, offset), "{timestamp}");
    }
    assert_eq!(client.list_offset(TOPIC, 0, 1_500_000).offset, 1, "read_uncommitted");
    producer.end(&mut client, true);
    wait_until("the marker is there", SOON, || client.stable(TOPIC, 0) == 3);
    assert_eq!(client.list_stable(TOPIC, 0, 1_500_000).offset, 1);
}

/// The PUT of the marker takes longer than a client of Kafka may wait for a response. The coordinator delays the next
/// transaction instead.
#[test]
fn slow_put_of_a_marker_delays_the_next_transaction_without_an_error() {
    let (_broker, mut client) = start(&[SLOW], 1);
    client.create_topic(CLASSIC, 1, &[]);
    let mut expected = Vec::new();
    for mut producer in both(&mut client, "next") {
        for n in 0..5 {
            let value = format!("{n} of {:?}", producer.protocol);
            producer.write(&mut client, TOPIC, 0, &[&value]);
            producer.write(&mut client, CLASSIC, 0, &[&value]);
            producer.end(&mut client, true);
            expected.push(value);
        }
        // A new process of the producer aborts the open transaction. Its InitProducerId waits for the abort marker.
        producer.write(&mut client, TOPIC, 0, &["left open"]);
        let version = producer.protocol.end_txn().min(4);
        let requested = Instant::now();
        let mut begun = client.init_transactional(&producer.transactional_id, 60_000, None, version);
        // On a slow machine, the marker may take longer than the coordinator's delay. The client then repeats the
        // request.
        while begun.error_code == ErrorCode::CONCURRENT_TRANSACTIONS && requested.elapsed() < SOON {
            assert!(requested.elapsed() >= DELAY_MIN, "refused at once");
            begun = client.init_transactional(&producer.transactional_id, 60_000, None, version);
        }
        assert_eq!(begun.error_code, ErrorCode::NONE);
        assert_eq!(client.stable(TOPIC, 0), client.latest(TOPIC, 0), "it is aborted");
    }
    assert_eq!(settled(&mut client, 0), expected);
    assert_eq!(client.committed_texts(CLASSIC, 0), expected);
}

#[test]
fn kill_between_decision_and_marker_writes_the_marker_and_fences_zombies() {
    for protocol in Protocol::BOTH {
        for is_commit in [true, false] {
            let (mut broker, mut client) = start(&["fullbore.diskless.put.delay.ms=0"], 1);
            let mut producer = Transactional::begin(&mut client, "killed", protocol);
            producer.write(&mut client, TOPIC, 0, &["decided"]);
            // With this delay of PUTs, no marker reaches the store before the next kill.
            broker.stop();
            broker.restart_with(&["fullbore.diskless.put.delay.ms=60000"]);
            client = broker.client();
            wait_for_state(&mut client, "killed", "Ongoing");
            let zombie = producer.clone();
            producer.end(&mut client, is_commit);
            assert_eq!((client.stable(TOPIC, 0), client.latest(TOPIC, 0)), (0, 1));
            broker.kill();
            broker.restart_with(&["fullbore.diskless.put.delay.ms=0"]);
            client = broker.client();
            let expected: &[&str] = if is_commit { &["decided"] } else { &[] };
            assert_eq!(settled(&mut client, 0), expected, "{protocol:?}");
            wait_for_state(&mut client, "killed", if is_commit { "CompleteCommit" } else { "CompleteAbort" });
            let mut next = Transactional::begin(&mut client, "killed", protocol);
            let late = Batch::of(&["late"]).from_producer(zombie.id, zombie.epoch, 1).transactional();
            let code = zombie.send(&mut client, TOPIC, 0, &late).error_code;
            let fenced = [ErrorCode::INVALID_PRODUCER_EPOCH, ErrorCode::INVALID_TXN_STATE];
            assert!(fenced.contains(&code) || code == ErrorCode::TRANSACTION_ABORTABLE, "{protocol:?}: {code}");
            next.write(&mut client, TOPIC, 0, &["next"]);
            next.end(&mut client, true);
            assert_eq!(settled(&mut client, 0), [expected, &["next"]].concat());
        }
    }
}

#[test]
fn batch_to_an_unadded_diskless_partition_has_the_error_of_its_version() {
    let (_broker, mut client) = start(&[], 2);
    let mut producer = super::write_unadded(&mut client);
    producer.end(&mut client, true);
    assert_eq!(settled(&mut client, 0), ["unadded"]);
}

#[test]
fn plain_batch_of_a_producer_with_an_open_transaction_is_refused() {
    let (_broker, mut client) = start(&[], 1);
    for mut producer in both(&mut client, "plain") {
        producer.write(&mut client, TOPIC, 0, &["open"]);
        let plain = Batch::of(&["plain"]).from_producer(producer.id, producer.epoch, 1);
        assert_eq!(client.produce(TOPIC, 0, &plain).error_code, ErrorCode::INVALID_TXN_STATE);
        producer.write(&mut client, TOPIC, 0, &["goes on"]);
        producer.end(&mut client, true);
        settled(&mut client, 0);
    }
    assert_eq!(settled(&mut client, 0), ["open", "goes on", "open", "goes on"]);
}

#[test]
fn records_deleted_over_an_open_diskless_transaction_leave_its_end_readable() {
    for protocol in Protocol::BOTH {
        let (mut broker, mut client) = start(&[], 1);
        let mut producer = Transactional::begin(&mut client, "inside", protocol);
        producer.write(&mut client, TOPIC, 0, &["gone"]);
        producer.write(&mut client, TOPIC, 0, &["second"]);
        client.produced(TOPIC, 0, &Batch::of(&["plain"]));
        client.delete_records(TOPIC, 0, 1);
        assert_eq!((client.stable(TOPIC, 0), client.latest(TOPIC, 0)), (1, 3));
        broker.kill();
        broker.restart();
        client = broker.client();
        assert_eq!((client.earliest(TOPIC, 0), client.stable(TOPIC, 0)), (1, 1));
        client.delete_records(TOPIC, 0, 3);
        assert_eq!(client.stable(TOPIC, 0), 3);
        producer.write(&mut client, TOPIC, 0, &["third"]);
        assert_eq!(client.stable(TOPIC, 0), 3);
        producer.end(&mut client, true);
        assert_eq!(settled(&mut client, 0), ["third"]);
        one(&mut client, &mut producer, "aborted", false);
        assert_eq!(settled(&mut client, 0), ["third"]);
    }
}

#[test]
fn transaction_ends_despite_the_deletion_of_a_topic() {
    for protocol in Protocol::BOTH {
        let (_broker, mut client) = start(&[SLOW], 2);
        client.create_topic(CLASSIC, 1, &[]);
        let mut producer = Transactional::begin(&mut client, "inside", protocol);
        producer.write(&mut client, TOPIC, 0, &["gone"]);
        producer.write(&mut client, TOPIC, 1, &["gone"]);
        producer.write(&mut client, CLASSIC, 0, &["stays"]);
        client.delete_topic(TOPIC);
        producer.end(&mut client, true);
        wait_for_state(&mut client, "inside", "CompleteCommit");
        client.create_topic(TOPIC, 2, DISKLESS);
        client.produced(TOPIC, 0, &Batch::of(&["of the new topic"]));
        assert_eq!((client.stable(TOPIC, 0), client.latest(TOPIC, 0)), (1, 1));
        // The topic is deleted while the marker is being written.
        producer.write(&mut client, CLASSIC, 0, &["second"]);
        one(&mut client, &mut producer, "gone again", true);
        client.delete_topic(TOPIC);
        wait_for_state(&mut client, "inside", "CompleteCommit");
        assert_eq!(client.committed_texts(CLASSIC, 0), ["stays", "second"]);
    }
}

#[test]
fn store_outage_at_a_commit_delays_the_marker_until_the_store_is_back() {
    for protocol in Protocol::BOTH {
        let s3 = S3::start();
        let sets: Vec<String> = s3.sets();
        let sets: Vec<&str> =
            sets.iter().map(String::as_str).chain(["diskless.produce.max.upload.attempts=1"]).collect();
        let (broker, mut client) = start(&sets, 1);
        client.create_topic(CLASSIC, 1, &[]);
        let mut producer = Transactional::begin(&mut client, "away", protocol);
        producer.write(&mut client, TOPIC, 0, &["of diskless"]);
        producer.write(&mut client, CLASSIC, 0, &["of classic"]);
        s3.every("PUT", S3Fault::Status(503, "SlowDown"));
        producer.end(&mut client, true);
        broker.wait_for_stderr("cannot write the marker of a transaction");
        assert_eq!(client.committed_texts(CLASSIC, 0), ["of classic"], "its marker waits for no store");
        assert_eq!(client.stable(TOPIC, 0), 0);
        assert_eq!(client.describe_transaction("away").transaction_state.as_str(), "PrepareCommit");
        s3.heal();
        assert_eq!(settled(&mut client, 0), ["of diskless"]);
        wait_for_state(&mut client, "away", "CompleteCommit");
        one(&mut client, &mut producer, "next", true);
        assert_eq!(settled(&mut client, 0), ["of diskless", "next"]);
    }
}

#[test]
fn markers_of_very_many_partitions_share_few_objects() {
    const PARTITIONS: i32 = 300;
    let s3 = S3::start();
    let sets: Vec<String> = s3.sets();
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let (_broker, mut client) = start(&sets, PARTITIONS);
    for mut producer in both(&mut client, "wide") {
        let partitions: Vec<i32> = (0..PARTITIONS).collect();
        if producer.protocol == Protocol::Old {
            producer.add(&mut client, TOPIC, &partitions);
        }
        let batches: Vec<_> = partitions.iter().map(|at| (*at, producer.batch(TOPIC, *at, &["one"]).bytes())).collect();
        let data = vec![fullbore_tests::topic_data(TOPIC, &batches)];
        let request = fullbore_wire::apis::produce::ProduceRequest {
            topic_data: data,
            ..fullbore_tests::transactional_request(&producer.transactional_id, TOPIC, 0, Default::default())
        };
        let response = client.call(&request, producer.protocol.produce());
        assert!(response.responses[0].partition_responses.iter().all(|of| of.error_code == ErrorCode::NONE));
        let puts = s3.requests("PUT");
        let id = producer.transactional_id.clone();
        producer.end(&mut client, true);
        wait_for_state(&mut client, &id, "CompleteCommit");
        let puts = s3.requests("PUT") - puts;
        assert!(puts < 10, "{puts} PUTs");
        assert!(partitions.iter().all(|at| client.stable(TOPIC, *at) == client.latest(TOPIC, *at)));
    }
}
