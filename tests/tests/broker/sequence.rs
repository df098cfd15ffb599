//! Idempotence bugs of other brokers, which are rows 1 to 9 of the list in `crates/rules/src/sequence/rows.rs`. The
//! name of each test has the number of its row.
//!
//! Sequences and counts at the ends of their ranges are tested in `sequence_bounds`.

use fullbore_tests::{Batch, Broker, Client, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use std::time::Duration;

/// How many of each producer's last batches a broker remembers in a partition.
const WINDOW: i32 = 5;
const SOON: Duration = Duration::from_secs(30);
/// The smallest segment size, so that closed segments are soon deleted.
const SMALL_SEGMENTS: (&str, &str) = ("segment.bytes", "1048576");

fn one(producer_id: i64, sequence: i32) -> Batch {
    Batch::of(&[format!("record {sequence}")]).from_producer(producer_id, 0, sequence)
}

/// Writes batches of one record with the given sequences. The offset of each must equal its sequence.
fn write(client: &mut Client, topic: &str, producer_id: i64, sequences: std::ops::Range<i32>) {
    for sequence in sequences {
        assert_eq!(client.produced(topic, 0, &one(producer_id, sequence)), i64::from(sequence));
    }
}

/// Resends the last window of batches. Each must get its original offset, and none may be appended again.
fn assert_window_is_remembered(client: &mut Client, topic: &str, producer_id: i64, next: i32) {
    for sequence in next - WINDOW..next {
        assert_eq!(client.produced(topic, 0, &one(producer_id, sequence)), i64::from(sequence), "a duplicate");
    }
    assert_eq!(client.latest(topic, 0), i64::from(next), "nothing was appended twice");
}

/// Waits until retention has deleted every record of a partition. Returns the log end offset.
fn wait_until_empty(client: &mut Client, topic: &str) -> i64 {
    let end = client.latest(topic, 0);
    wait_until("retention empties the partition", SOON, || client.earliest(topic, 0) == end);
    end
}

/// Settings with which a retention of 1 ms soon empties a topic.
const EAGER_RETENTION: &[&str] = &["log.retention.check.interval.ms=100"];
const FORGETFUL: &[(&str, &str)] = &[("retention.ms", "1")];
/// A timestamp so old that retention.ms=1 deletes the record at the next check.
const LONG_AGO: i64 = 1_500_000_000_000;

fn old(producer_id: i64, sequence: i32) -> Batch {
    Batch::at(LONG_AGO, &["old"]).from_producer(producer_id, 0, sequence)
}

#[test]
fn row_01_a_first_sequence_above_zero_is_refused_on_an_empty_partition() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("empty", 1, &[]);
    let id = client.init_producer_id();
    assert_eq!(client.produce("empty", 0, &one(id, 17)).error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(client.latest("empty", 0), 0, "the log stays empty");
    write(&mut client, "empty", id, 0..3);
}

#[test]
fn row_01_a_partition_emptied_by_retention_accepts_any_first_sequence() {
    let broker = Broker::start(EAGER_RETENTION);
    let mut client = broker.client();
    client.create_topic("emptied", 1, FORGETFUL);
    let (writer, stranger) = (client.init_producer_id(), client.init_producer_id());
    client.produced("emptied", 0, &old(writer, 0));
    let end = wait_until_empty(&mut client, "emptied");
    assert_eq!(client.produced("emptied", 0, &one(stranger, 17)), end);
}

/// The client sends the creation of a topic and five produces at once, two hundred times. No batch may be lost.
#[test]
fn row_01_nothing_is_lost_when_a_new_topic_gets_five_requests_at_once() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let id = client.init_producer_id();
    for round in 0..200 {
        let name = format!("new-{round}");
        let topic = CreatableTopic {
            name: name.as_str().into(),
            num_partitions: 1,
            replication_factor: 1,
            ..Default::default()
        };
        client.send(&CreateTopicsRequest { topics: vec![topic], ..Default::default() }, 7);
        (0..5).for_each(|sequence| {
            client.send_produce(&name, 0, &one(id, sequence));
        });
        let created = client.receive::<CreateTopicsRequest>(7).1.topics.remove(0);
        assert_eq!(created.error_code, ErrorCode::NONE);
        for offset in 0..5 {
            let response = client.receive_produced();
            assert_eq!((response.error_code, response.base_offset), (ErrorCode::NONE, offset), "{name}");
        }
        assert_eq!(client.latest(&name, 0), 5);
    }
}

#[test]
fn row_02_every_batch_of_the_window_is_answered_with_its_first_offset() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("window", 1, &[]);
    let id = client.init_producer_id();
    let batches: Vec<Batch> = [(0, 2), (2, 3), (5, 1), (6, 4), (10, 2), (12, 3)]
        .map(|(sequence, count)| Batch::of(&vec!["x"; count]).from_producer(id, 0, sequence))
        .into();
    let offsets: Vec<i64> = batches.iter().map(|batch| client.produced("window", 0, batch)).collect();
    assert_eq!(offsets, [0, 2, 5, 6, 10, 12]);
    for (batch, offset) in batches.iter().zip(offsets).skip(1).rev() {
        assert_eq!(client.produced("window", 0, batch), offset);
    }
    assert_eq!(client.latest("window", 0), 15);
}

#[test]
fn row_02_a_batch_older_than_the_window_is_a_duplicate_and_not_an_endless_retry() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("older", 1, &[]);
    let id = client.init_producer_id();
    write(&mut client, "older", id, 0..WINDOW + 3);
    for sequence in 0..3 {
        let response = client.produce("older", 0, &one(id, sequence));
        assert_eq!(response.error_code, ErrorCode::DUPLICATE_SEQUENCE_NUMBER);
    }
    let beyond = client.produce("older", 0, &one(id, WINDOW + 4));
    assert_eq!(beyond.error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(client.latest("older", 0), i64::from(WINDOW) + 3);
}

#[test]
fn row_02_the_first_of_five_is_resent_after_its_response_was_lost() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("lost", 1, &[]);
    let id = client.init_producer_id();
    let mut lost = broker.client();
    lost.send_produce("lost", 0, &one(id, 0));
    wait_until("the first batch is in the log", SOON, || client.latest("lost", 0) == 1);
    drop(lost);
    write(&mut client, "lost", id, 1..WINDOW);
    assert_eq!(client.produced("lost", 0, &one(id, 0)), 0);
    write(&mut client, "lost", id, WINDOW..WINDOW + 1);
}

/// Produces the batches, which must succeed. Returns the base offset and append time of each.
fn placed(client: &mut Client, topic: &str, batches: &[Batch]) -> Vec<(i64, i64)> {
    let place = |batch| {
        let response = client.produce(topic, 0, batch);
        assert_eq!(response.error_code, ErrorCode::NONE, "{:?}", response.error_message);
        (response.base_offset, response.log_append_time_ms)
    };
    batches.iter().map(place).collect()
}

#[test]
fn row_03_a_duplicate_keeps_offset_and_time_through_roll_restart_and_retention() {
    let mut broker = Broker::start(&["log.retention.check.interval.ms=100", "log.segment.delete.delay.ms=0"]);
    let mut client = broker.client();
    let configs = [SMALL_SEGMENTS, ("message.timestamp.type", "LogAppendTime"), ("retention.bytes", "1")];
    client.create_topic("rolled", 1, &configs);
    let id = client.init_producer_id();
    let large = vec![b'x'; 400_000];
    let batches: Vec<Batch> = (0..6).map(|n| Batch::of(&[&large]).from_producer(id, 0, n)).collect();
    let first = placed(&mut client, "rolled", &batches);
    assert!(first.iter().all(|(_, time)| *time > LONG_AGO), "the broker's clock: {first:?}");
    let same = |client: &mut Client, when: &str| {
        assert_eq!(placed(client, "rolled", &batches[1..]), first[1..], "{when}");
    };
    same(&mut client, "after the segments rolled");
    wait_until("retention deletes the closed segments", SOON, || client.earliest("rolled", 0) >= 4);
    same(&mut client, "after retention");
    broker.stop();
    broker.restart();
    same(&mut broker.client(), "after a clean restart");
    broker.kill();
    broker.restart();
    same(&mut broker.client(), "after kill -9");
}

/// The client never reads the response. A retry of a batch that was in flight at the kill must not be appended twice.
#[test]
fn row_04_a_retry_after_kill_between_append_and_answer_is_no_duplicate() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("retried", 1, &[]);
    let id = client.init_producer_id();
    for round in 0..10 {
        let mut unanswered = broker.client();
        (0..WINDOW).for_each(|n| {
            unanswered.send_produce("retried", 0, &one(id, round * WINDOW + n));
        });
        // Each round kills the broker at another moment, after it has appended between none and all of the five
        // batches.
        wait_until("some are in the log", SOON, || {
            client.latest("retried", 0) >= i64::from(round * WINDOW + round % (WINDOW + 1))
        });
        broker.kill();
        broker.restart();
        client = broker.client();
        write(&mut client, "retried", id, round * WINDOW..(round + 1) * WINDOW);
    }
    let texts: Vec<String> = client.fetch_records("retried", 0).iter().map(|record| record.text()).collect();
    let expected: Vec<String> = (0..10 * WINDOW).map(|sequence| format!("record {sequence}")).collect();
    assert_eq!(texts, expected);
}

#[test]
fn row_05_the_same_batch_on_two_connections_at_once_is_appended_once() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("twice", 1, &[]);
    let id = client.init_producer_id();
    let (mut left, mut right) = (broker.client(), broker.client());
    for sequence in 0..1000 {
        let batch = one(id, sequence);
        left.send_produce("twice", 0, &batch);
        right.send_produce("twice", 0, &batch);
        for answer in [left.receive_produced(), right.receive_produced()] {
            assert_eq!((answer.error_code, answer.base_offset), (ErrorCode::NONE, i64::from(sequence)));
        }
    }
    assert_eq!(client.latest("twice", 0), 1000);
}

#[test]
fn row_05_two_connections_that_race_in_threads_agree_on_every_offset() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("race", 1, &[]);
    let id = client.init_producer_id();
    let addr = broker.addr();
    let racer = move || {
        let mut client = Client::connect(addr);
        (0..500).map(|sequence| client.produce("race", 0, &one(id, sequence))).collect::<Vec<_>>()
    };
    let racers: Vec<_> = (0..2).map(|_| std::thread::spawn(racer)).collect();
    for racer in racers {
        for (sequence, answer) in (0..).zip(racer.join().expect("no racer panics")) {
            // A batch that a thread sends late gets a duplicate error if more than a window of later batches is
            // appended.
            match answer.error_code {
                ErrorCode::NONE => assert_eq!(answer.base_offset, sequence),
                code => assert_eq!(code, ErrorCode::DUPLICATE_SEQUENCE_NUMBER),
            }
        }
    }
    assert_eq!(client.latest("race", 0), 500);
}

#[test]
fn row_07_the_whole_window_survives_a_clean_restart() {
    let mut broker = Broker::start(&[]);
    window_survives(&mut broker, Broker::stop);
}

#[test]
fn row_07_the_whole_window_survives_kill_9() {
    let mut broker = Broker::start(&[]);
    window_survives(&mut broker, Broker::kill);
}

fn window_survives(broker: &mut Broker, end: fn(&mut Broker)) {
    let mut client = broker.client();
    client.create_topic("survives", 1, &[]);
    let id = client.init_producer_id();
    let mut next = 0;
    for _ in 0..3 {
        write(&mut client, "survives", id, next..next + 8);
        next += 8;
        end(broker);
        broker.restart();
        client = broker.client();
        assert_window_is_remembered(&mut client, "survives", id, next);
    }
    let gap = client.produce("survives", 0, &one(id, next + 1));
    assert_eq!(gap.error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    write(&mut client, "survives", id, next..next + 1);
}

/// The test waits until a resent batch of the second producer is appended again, because the producer's state has
/// expired. The first producer wrote earlier, so its state has expired as well.
#[test]
fn row_08_an_expired_producer_continues_with_any_sequence() {
    let broker = Broker::start(&["producer.id.expiration.ms=1000", "producer.id.expiration.check.interval.ms=100"]);
    let mut client = broker.client();
    client.create_topic("expired", 1, &[]);
    let (sleeper, probe) = (client.init_producer_id(), client.init_producer_id());
    write(&mut client, "expired", sleeper, 0..4);
    assert_eq!(client.produced("expired", 0, &one(probe, 0)), 4);
    wait_until("the producers expire", SOON, || client.produced("expired", 0, &one(probe, 0)) > 4);
    assert_eq!(client.produced("expired", 0, &one(sleeper, 4)), 6);
    assert_eq!(client.produced("expired", 0, &one(sleeper, 5)), 7);
}

#[test]
fn row_09_a_producer_continues_after_retention_deleted_all_its_records() {
    let mut broker = Broker::start(EAGER_RETENTION);
    let mut client = broker.client();
    client.create_topic("taken", 1, FORGETFUL);
    let id = client.init_producer_id();
    for sequence in 0..4 {
        client.produced("taken", 0, &old(id, sequence));
    }
    assert_eq!(wait_until_empty(&mut client, "taken"), 4);
    assert_eq!(client.produced("taken", 0, &old(id, 3)), 3, "a retry is still known");
    let gap = client.produce("taken", 0, &old(id, 5));
    assert_eq!(gap.error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, "and so is what comes next");
    assert_eq!(client.produced("taken", 0, &old(id, 4)), 4);
    assert_eq!(wait_until_empty(&mut client, "taken"), 5);
    broker.stop();
    broker.restart();
    let mut client = broker.client();
    assert_eq!(client.produced("taken", 0, &old(id, 4)), 4, "after a restart too");
    assert_eq!(client.produced("taken", 0, &old(id, 5)), 5);
}
