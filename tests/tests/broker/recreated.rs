//! Topics that are deleted and recreated while requests still work on the former topic, and while clients do not wait
//! for responses. `FULLBORE_RECREATED_ROUNDS` is the number of rounds (by default 3, in `make soak` 40).

use fullbore_tests::{Batch, Broker, FetchFrom, fetch_request, topic_data, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::delete_topics::DeleteTopicsRequest;
use fullbore_wire::apis::describe_log_dirs::DescribeLogDirsRequest;
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};
use fullbore_wire::apis::produce::ProduceRequest;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
/// The name sorts after those of all other topics, so that a walk over all topics reaches this one last.
const VICTIM: &str = "zz-victim";
const PRODUCE: i16 = 9;

fn rounds() -> usize {
    fullbore_tests::rounds("FULLBORE_RECREATED_ROUNDS", 3, 40)
}

/// Deletes and recreates the topic, and writes one record to the new topic.
fn made_again(broker: &Broker, value: &str) {
    let mut client = broker.client();
    client.delete_topic(VICTIM);
    client.create_topic(VICTIM, 1, &[]);
    assert_eq!(client.produced(VICTIM, 0, &Batch::of(&[value])), 0);
}

fn assert_has_only(broker: &Broker, value: &str) {
    let records = broker.client().fetch_records(VICTIM, 0);
    let values: Vec<String> = records.iter().map(|record| record.text()).collect();
    assert_eq!(values, [value]);
}

#[test]
fn describe_log_dirs_begun_before_a_recreation_leaves_the_new_topic_alone() {
    let broker = Broker::start(&["log.segment.delete.delay.ms=0"]);
    let mut client = broker.client();
    for first in (0..20).step_by(5) {
        let topic = |n| CreatableTopic {
            name: format!("many-{n}").into(),
            num_partitions: 1000,
            replication_factor: 1,
            ..Default::default()
        };
        let topics = (first..first + 5).map(topic).collect();
        let created = client.call(&CreateTopicsRequest { topics, ..Default::default() }, 7);
        assert!(created.topics.iter().all(|topic| !topic.error_code.is_err()));
    }
    client.create_topic(VICTIM, 1, &[]);
    for round in 0..rounds() {
        let mut describing = broker.client();
        describing.send(&DescribeLogDirsRequest::default(), 1);
        let value = round.to_string();
        made_again(&broker, &value);
        describing.receive::<DescribeLogDirsRequest>(1);
        assert_has_only(&broker, &value);
    }
}

#[test]
fn produce_begun_before_a_recreation_neither_harms_the_new_topic_nor_restores_the_old() {
    let broker = Broker::start(&["log.segment.delete.delay.ms=0"]);
    let mut client = broker.client();
    const PARTITIONS: i32 = 64;
    client.create_topic("many", PARTITIONS, &[]);
    client.create_topic(VICTIM, 1, &[]);
    let large = Batch::of(&[vec![b'v'; 1_000_000]]).bytes();
    let many: Vec<_> = (0..PARTITIONS).map(|index| (index, large.clone())).collect();
    for round in 0..rounds() {
        let last = topic_data(VICTIM, &[(0, Batch::of(&["late"]).bytes())]);
        let request = ProduceRequest {
            acks: -1,
            timeout_ms: 30_000,
            topic_data: vec![topic_data("many", &many), last],
            ..Default::default()
        };
        let producing = broker.client();
        let mut sending = producing.split();
        let sent = std::thread::spawn(move || sending.send(&request, PRODUCE));
        let mut client = broker.client();
        client.delete_topic(VICTIM);
        client.create_topic(VICTIM, 1, &[]);
        let value = round.to_string();
        let offset = client.produced(VICTIM, 0, &Batch::of(&[&value]));
        sent.join().expect("sent");
        let mut producing = producing;
        let answer = producing.receive::<ProduceRequest>(PRODUCE).1;
        let late = &answer.responses[1].partition_responses[0];
        let values: Vec<String> = broker.client().fetch_records(VICTIM, 0).iter().map(|record| record.text()).collect();
        // The late record was appended either to the former topic, which is deleted, or to the new topic.
        assert_eq!(values[usize::try_from(offset).expect("an offset")], value, "{late:?}");
        assert!(values.len() <= 2, "{values:?}");
    }
}

#[test]
fn accepted_deletion_completes_after_its_client_is_gone() {
    let mut broker = Broker::start(&["log.segment.delete.delay.ms=0"]);
    const TOPICS: usize = 60;
    let name = |n: usize| format!("left-{n}");
    let mut client = broker.client();
    client.create_topic(VICTIM, 1, &[]);
    for n in 0..TOPICS {
        client.create_topic(&name(n), 4, &[]);
        (0..4).for_each(|index| _ = client.produced(&name(n), index, &Batch::of(&["v"])));
    }
    for n in 0..TOPICS {
        // The client leaves during the deletion. In some of these rounds, its connection closes while the broker sends
        // the response to its fetch.
        let mut leaving = broker.client();
        let from = [FetchFrom { topic: VICTIM, partition: 0, offset: 0 }];
        leaving.send(&fetch_request(&from, 1, i32::try_from(n % 10).expect("small")), 12);
        let topic_names = vec![name(n).into()];
        leaving.send(&DeleteTopicsRequest { topic_names, timeout_ms: 30_000, ..Default::default() }, 3);
        leaving.reset();
    }
    // The broker may not have read a deletion before its connection was reset, so the test deletes the remaining topics
    // again.
    wait_until("the topics are gone", SOON, || {
        let all = client.call(&MetadataRequest { topics: None, ..Default::default() }, 9);
        let names: Vec<String> = all.topics.iter().flat_map(|topic| topic.name.as_deref().map(str::to_owned)).collect();
        let topic_names = names.iter().filter(|name| *name != VICTIM).map(|name| name.as_str().into()).collect();
        client.call(&DeleteTopicsRequest { topic_names, timeout_ms: 30_000, ..Default::default() }, 3);
        names.len() == 1
    });
    let directories = |broker: &Broker| {
        let entries = std::fs::read_dir(broker.data_dir()).expect("listed").map(|entry| entry.expect("listed"));
        entries.filter(|entry| entry.path().is_dir() && entry.file_name() != "diskless").count()
    };
    wait_until("and their directories", SOON, || directories(&broker) == 0);
    broker.stop();
    broker.restart();
    assert!(!broker.stderr().contains("does not know"), "{}", broker.stderr());
}

/// librdkafka fails permanently if the sequence of its next batch is refused.
#[test]
fn recreated_topic_takes_the_next_batch_of_its_producer() {
    goes_on(&[]);
}

#[test]
fn recreated_diskless_topic_takes_the_next_batch_of_its_producer() {
    goes_on(&[("diskless.enable", "true")]);
}

/// A metadata request recreates the topic (auto.create.topics.enable), as a classic one. The broker must accept the
/// producer's next batch. After OUT_OF_ORDER_SEQUENCE_NUMBER, Java's producer would repeat the batch until
/// delivery.timeout.ms.
#[test]
fn diskless_topic_recreated_as_classic_takes_the_next_batch_of_its_producer() {
    let mut broker = Broker::start(&["auto.create.topics.enable=true"]);
    for is_restarted in [false, true] {
        let mut client = broker.client();
        let id = client.init_producer_id();
        let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
        client.create_topic(VICTIM, 1, &[("diskless.enable", "true")]);
        for sequence in 0..3 {
            assert_eq!(client.produced(VICTIM, 0, &one(sequence)), i64::from(sequence));
        }
        if is_restarted {
            broker.stop();
            broker.restart();
            client = broker.client();
        }
        client.delete_topic(VICTIM);
        assert_eq!(client.produce(VICTIM, 0, &one(3)).error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        let metadata = MetadataRequest {
            topics: Some(vec![MetadataRequestTopic { name: Some(VICTIM.into()), ..Default::default() }]),
            allow_auto_topic_creation: true,
            ..Default::default()
        };
        wait_until("it is made anew", SOON, || !client.call(&metadata, 9).topics[0].error_code.is_err());
        if !is_restarted {
            let overtook = client.produce(VICTIM, 0, &one(4)).error_code;
            assert_eq!(overtook, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, "to take it would lose the one before");
        }
        assert_eq!(client.produced(VICTIM, 0, &one(3)), 0);
        client.delete_topic(VICTIM);
    }
}

/// Between two diskless topics of one name, a metadata request creates a classic topic.
#[test]
fn classic_topic_recreated_as_diskless_takes_the_next_batches_of_its_producers() {
    let mut broker = Broker::start(&[]);
    let diskless = [("diskless.enable", "true")];
    for is_restarted in [false, true] {
        let mut client = broker.client();
        let [id, idle] = [client.init_producer_id(), client.init_producer_id()];
        let one = |id, sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
        client.create_topic(VICTIM, 1, &diskless);
        assert_eq!(client.produced(VICTIM, 0, &one(id, 0)), 0);
        assert_eq!(client.produced(VICTIM, 0, &one(idle, 0)), 1);
        client.delete_topic(VICTIM);
        client.create_topic(VICTIM, 1, &[]);
        assert_eq!(client.produced(VICTIM, 0, &one(id, 1)), 0);
        assert_eq!(client.produced(VICTIM, 0, &one(id, 2)), 1);
        client.delete_topic(VICTIM);
        if is_restarted {
            broker.kill();
            broker.restart();
            client = broker.client();
        }
        client.create_topic(VICTIM, 1, &diskless);
        if !is_restarted {
            let overtook = [one(id, 4), one(idle, 2)].map(|batch| client.produce(VICTIM, 0, &batch).error_code);
            assert_eq!(overtook, [ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER; 2], "to take it would lose the one before");
        }
        assert_eq!(client.produced(VICTIM, 0, &one(id, 3)), 0);
        broker.stop();
        broker.restart();
        client = broker.client();
        assert_eq!(client.produced(VICTIM, 0, &one(idle, 1)), 1);
        assert_eq!(client.produced(VICTIM, 0, &one(id, 4)), 2);
        client.delete_topic(VICTIM);
    }
}

fn goes_on(configs: &[(&str, &str)]) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let id = client.init_producer_id();
    let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    client.create_topic(VICTIM, 1, configs);
    let mut next = 0;
    for round in 0..rounds() {
        for offset in 0..3 {
            assert_eq!(client.produced(VICTIM, 0, &one(next)), offset, "round {round}");
            next += 1;
        }
        if round % 2 == 0 {
            client.delete_topic(VICTIM);
        } else {
            // The topic is recreated while the former directory still exists. Then it is recreated again before any
            // record is written.
            for _ in 0..2 {
                let topic_names = vec![VICTIM.into()];
                client.call(&DeleteTopicsRequest { topic_names, timeout_ms: 0, ..Default::default() }, 3);
                client.create_topic(VICTIM, 1, configs);
            }
            client.delete_topic(VICTIM);
        }
        assert_eq!(client.produce(VICTIM, 0, &one(next)).error_code, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        client.create_topic(VICTIM, 1, configs);
        // Until the refused batch is resent, the broker must refuse the batch after it as well.
        let overtook = client.produce(VICTIM, 0, &one(next + 1)).error_code;
        assert_eq!(overtook, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
        assert_eq!(client.latest(VICTIM, 0), 0);
    }
    assert_eq!(client.produced(VICTIM, 0, &one(next)), 0);
    assert_eq!(client.produced(VICTIM, 0, &one(next)), 0, "a retry is the same batch");
    assert_eq!(client.latest(VICTIM, 0), 1);
}

/// The client gets no responses to some batches, and the topic is recreated. If the new topic refused the resent
/// batches but accepted the next one, the resent records would be missing from the log.
#[test]
fn recreated_topic_takes_resent_batches_with_lost_responses() {
    writes_again(&[]);
}

#[test]
fn recreated_diskless_topic_takes_resent_batches_with_lost_responses() {
    writes_again(&[("diskless.enable", "true")]);
}

fn writes_again(configs: &[(&str, &str)]) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let (id, other) = (client.init_producer_id(), client.init_producer_id());
    let one = |id, sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    client.create_topic(VICTIM, 1, configs);
    for sequence in 0..12 {
        assert_eq!(client.produced(VICTIM, 0, &one(id, sequence)), i64::from(sequence));
    }
    assert_eq!(client.produced(VICTIM, 0, &one(other, 0)), 12);
    for first in [9, 10] {
        client.delete_topic(VICTIM);
        client.create_topic(VICTIM, 1, configs);
        if first == 10 {
            assert_eq!(client.produced(VICTIM, 0, &one(other, 1)), 0, "which is nothing to the other");
        }
        let begins_at = client.latest(VICTIM, 0);
        for sequence in first..14 {
            assert_eq!(client.produced(VICTIM, 0, &one(id, sequence)), begins_at + i64::from(sequence - first));
        }
        assert_eq!(client.produced(VICTIM, 0, &one(id, 13)), begins_at + 13 - i64::from(first), "it is known");
        let gap = client.produce(VICTIM, 0, &one(id, 15)).error_code;
        assert_eq!(gap, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    }
}

/// Regression: a recreated topic takes over producer state from its predecessor, which was only in memory. After a
/// restart, the broker refused each batch of these producers permanently.
#[test]
fn recreated_topic_takes_next_batches_after_an_end_of_the_broker() {
    let mut broker = Broker::start(&[]);
    for is_killed in [false, true] {
        let mut client = broker.client();
        let (id, other) = (client.init_producer_id(), client.init_producer_id());
        let one = |id, sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
        client.create_topic(VICTIM, 1, &[]);
        for sequence in 0..5 {
            assert_eq!(client.produced(VICTIM, 0, &one(id, sequence)), i64::from(sequence));
        }
        assert_eq!(client.produced(VICTIM, 0, &one(other, 0)), 5);
        client.delete_topic(VICTIM);
        client.create_topic(VICTIM, 1, &[]);
        let snapshot = broker.partition_dir(VICTIM, 0).join("00000000000000000000.snapshot");
        wait_until("the stops are on the disk", SOON, || snapshot.exists());
        let mut restarted = || {
            match is_killed {
                true => broker.kill(),
                false => broker.stop(),
            }
            broker.restart();
            broker.client()
        };
        let mut client = restarted();
        let overtook = client.produce(VICTIM, 0, &one(id, 6)).error_code;
        assert_eq!(overtook, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, "to take it would lose the one before");
        // The responses to batches 3 and 4 were lost, so the client resends batches from 3 on.
        for sequence in 3..7 {
            assert_eq!(client.produced(VICTIM, 0, &one(id, sequence)), i64::from(sequence) - 3);
        }
        // The same must hold after another restart, and for a second producer that has not written to the new topic.
        let mut client = restarted();
        assert_eq!(client.produced(VICTIM, 0, &one(id, 6)), 3, "a retry is the same batch");
        assert_eq!(client.produce(VICTIM, 0, &one(other, 2)).error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
        assert_eq!(client.produced(VICTIM, 0, &one(other, 1)), 4);
        client.delete_topic(VICTIM);
    }
}

/// After a restart the broker no longer knows the producers of the deleted topic, so the new topic of this name must
/// accept any first batch.
#[test]
fn kill_between_deletion_and_recreation_lets_producers_continue_with_any_batch() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    let id = client.init_producer_id();
    let one = |id, sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    client.create_topic(VICTIM, 1, &[]);
    (0..5).for_each(|sequence| assert_eq!(client.produced(VICTIM, 0, &one(id, sequence)), i64::from(sequence)));
    client.delete_topic(VICTIM);
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    client.create_topic(VICTIM, 1, &[]);
    assert_eq!(client.produced(VICTIM, 0, &one(id, 5)), 0);
    let late = client.init_producer_id();
    assert_eq!(client.produce(VICTIM, 0, &one(late, 17)).error_code, ErrorCode::NONE, "as any on a log with records");
    client.create_topic("new", 1, &[]);
    assert_eq!(client.produce("new", 0, &one(id, 5)).error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
}

const CLASSIC: &[(&str, &str)] = &[];
const DISKLESS: &[(&str, &str)] = &[("diskless.enable", "true")];

/// The moment at which the broker restarts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Restart {
    /// The broker restarts while no topic has the name.
    BetweenLives,
    /// The broker restarts while a topic has the name. The topic is deleted after that.
    DuringLives,
}

/// Creates the topics `lives` one after another, and deletes each before the next. The producer writes three batches to
/// partition 5 of the first topic. The last topic must accept its next batch.
fn goes_on_through(lives: &[(i32, &[(&str, &str)])], restart: Restart) {
    let mut broker = Broker::start(&["log.segment.delete.delay.ms=0"]);
    let mut client = broker.client();
    let id = client.init_producer_id();
    let one = |id, sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    for (at, (partitions, configs)) in lives.iter().enumerate() {
        client.create_topic(VICTIM, *partitions, configs);
        if at == 0 {
            (0..3).for_each(|n| assert_eq!(client.produced(VICTIM, 5, &one(id, n)), i64::from(n)));
        }
        if restart == Restart::DuringLives && at + 1 < lives.len() {
            broker.stop();
            broker.restart();
            client = broker.client();
        }
        if at + 1 < lives.len() {
            client.delete_topic(VICTIM);
            wait_until("the directories are gone", SOON, || directories_of(&broker, VICTIM) == 0);
        }
        if restart == Restart::BetweenLives && at + 1 < lives.len() {
            broker.stop();
            broker.restart();
            client = broker.client();
        }
    }
    let refused = ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER;
    client.create_topic("new", 8, lives[lives.len() - 1].1);
    assert_eq!(client.produce("new", 5, &one(id, 3)).error_code, refused, "no topic had this name");
    assert_eq!([3, 4, 4].map(|sequence| client.produced(VICTIM, 5, &one(id, sequence))), [0, 1, 1]);
    assert_eq!(client.produce(VICTIM, 5, &one(id, 6)).error_code, refused);
    broker.stop();
    broker.restart();
    let mut client = broker.client();
    assert_eq!(client.produced(VICTIM, 5, &one(id, 5)), 2);
    assert_eq!(client.produced(VICTIM, 4, &one(id, 7)), 0, "it may have been written to as well");
    let late = client.init_producer_id();
    assert_eq!(client.produce(VICTIM, 3, &one(late, 7)).error_code, refused, "it began after the deletions");
    assert_eq!(client.produced(VICTIM, 3, &one(late, 0)), 0);
}

fn directories_of(broker: &Broker, topic: &str) -> usize {
    let names = std::fs::read_dir(broker.data_dir()).expect("listed").map(|entry| entry.expect("listed").file_name());
    names.filter(|name| name.to_string_lossy().starts_with(topic)).count()
}

#[test]
fn restart_after_removal_of_the_directory_lets_producers_continue_in_the_next_topic() {
    goes_on_through(&[(8, CLASSIC), (8, CLASSIC)], Restart::BetweenLives);
}

/// The second topic has only two partitions, so it keeps no state of the producer that wrote to partition 5.
#[test]
fn topic_recreated_smaller_and_larger_over_a_restart_lets_producers_continue() {
    goes_on_through(&[(8, CLASSIC), (2, CLASSIC), (8, CLASSIC)], Restart::DuringLives);
    goes_on_through(&[(8, CLASSIC), (2, CLASSIC), (4, CLASSIC), (8, CLASSIC)], Restart::BetweenLives);
}

/// No client writes to the second topic, so its partitions may not know the producers of the first topic. From the
/// second topic, the last one must learn that such producers may exist, and accept their next batches.
#[test]
fn unwritten_topic_in_between_lets_producers_of_the_first_continue_in_the_last() {
    for restart in [Restart::BetweenLives, Restart::DuringLives] {
        goes_on_through(&[(8, CLASSIC), (8, CLASSIC), (8, CLASSIC)], restart);
    }
    let mut broker = Broker::start(&["log.segment.delete.delay.ms=0"]);
    let mut client = broker.client();
    let id = client.init_producer_id();
    let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    client.create_topic(VICTIM, 1, &[]);
    (0..3).for_each(|n| assert_eq!(client.produced(VICTIM, 0, &one(n)), i64::from(n)));
    client.delete_topic(VICTIM);
    wait_until("the directory is gone", SOON, || directories_of(&broker, VICTIM) == 0);
    broker.stop();
    broker.restart();
    let mut client = broker.client();
    for _ in 0..3 {
        client.create_topic(VICTIM, 1, &[]);
        client.delete_topic(VICTIM);
    }
    client.create_topic(VICTIM, 1, &[]);
    assert_eq!(client.produced(VICTIM, 0, &one(3)), 0);
}

#[test]
fn restart_between_a_classic_and_a_diskless_topic_lets_producers_continue() {
    goes_on_through(&[(8, CLASSIC), (8, DISKLESS)], Restart::BetweenLives);
    goes_on_through(&[(8, CLASSIC), (2, DISKLESS), (8, DISKLESS)], Restart::DuringLives);
    goes_on_through(&[(8, CLASSIC), (2, CLASSIC), (8, DISKLESS)], Restart::DuringLives);
}

#[test]
fn restart_between_a_diskless_and_a_classic_topic_lets_producers_continue() {
    goes_on_through(&[(8, DISKLESS), (8, CLASSIC)], Restart::BetweenLives);
    goes_on_through(&[(8, DISKLESS), (2, CLASSIC), (8, CLASSIC)], Restart::DuringLives);
    goes_on_through(&[(8, DISKLESS), (8, DISKLESS), (8, CLASSIC)], Restart::BetweenLives);
}

/// The index has producer state of the last diskless topic. This state is outdated, because the classic topic was
/// written to later.
#[test]
fn classic_topic_between_two_diskless_ones_lets_producers_continue_after_a_restart() {
    let mut broker = Broker::start(&["log.segment.delete.delay.ms=0"]);
    let mut client = broker.client();
    let id = client.init_producer_id();
    let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    for (configs, first) in [(DISKLESS, 0), (CLASSIC, 3)] {
        client.create_topic(VICTIM, 1, configs);
        (0..3).for_each(|n| assert_eq!(client.produced(VICTIM, 0, &one(first + n)), i64::from(n)));
        client.delete_topic(VICTIM);
    }
    wait_until("the directory is gone", SOON, || directories_of(&broker, VICTIM) == 0);
    broker.stop();
    broker.restart();
    let mut client = broker.client();
    client.create_topic(VICTIM, 1, DISKLESS);
    assert_eq!(client.produced(VICTIM, 0, &one(6)), 0);
}

/// After a restart the broker does not know the producers of the first topic. It must still carry the producers of the
/// diskless topic over to the next one.
#[test]
fn diskless_topic_after_a_restart_carries_its_producers_to_a_classic_one() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(VICTIM, 1, CLASSIC);
    client.delete_topic(VICTIM);
    broker.stop();
    broker.restart();
    let mut client = broker.client();
    client.create_topic(VICTIM, 1, DISKLESS);
    let id = client.init_producer_id();
    let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    (0..3).for_each(|n| assert_eq!(client.produced(VICTIM, 0, &one(n)), i64::from(n)));
    client.delete_topic(VICTIM);
    client.create_topic(VICTIM, 1, CLASSIC);
    assert_eq!(client.produce(VICTIM, 0, &one(5)).error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!([3, 4].map(|sequence| client.produced(VICTIM, 0, &one(sequence))), [0, 1]);
}

#[test]
fn idle_producer_continues_after_two_recreations() {
    idle_goes_on(&[]);
}

#[test]
fn idle_producer_continues_after_two_recreations_of_a_diskless_topic() {
    idle_goes_on(&[("diskless.enable", "true")]);
}

fn idle_goes_on(configs: &[(&str, &str)]) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let (idle, other) = (client.init_producer_id(), client.init_producer_id());
    let one = |id, sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    client.create_topic(VICTIM, 1, configs);
    assert_eq!(client.produced(VICTIM, 0, &one(idle, 0)), 0);
    for sequence in 0..3 {
        client.delete_topic(VICTIM);
        client.create_topic(VICTIM, 1, configs);
        assert_eq!(client.produced(VICTIM, 0, &one(other, sequence)), 0);
    }
    client.delete_topic(VICTIM);
    client.create_topic(VICTIM, 1, configs);
    assert_eq!(client.produce(VICTIM, 0, &one(other, 4)).error_code, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(client.produced(VICTIM, 0, &one(idle, 1)), 0);
}

#[test]
fn new_setting_applies_to_connections_opened_before_it() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    client.produced("t", 0, &Batch::of(&["v"]));
    for max in ["100", "1000000", "100", "1000000"] {
        client.set_config(2, "t", "max.message.bytes", max);
        let large = broker.client().produce("t", 0, &Batch::of(&[vec![b'v'; 1000]]));
        assert_eq!(large.error_code.is_err(), max == "100", "{max}");
    }
}

#[test]
fn deletions_without_a_waiting_client_take_bounded_memory() {
    let broker = Broker::start(&["log.segment.delete.delay.ms=0"]);
    let mut client = broker.client();
    let delete = DeleteTopicsRequest { topic_names: vec![VICTIM.into()], timeout_ms: 0, ..Default::default() };
    for _ in 0..15 {
        client.create_topic(VICTIM, 100_000, &[]);
        assert!(!client.call(&delete, 3).responses[0].error_code.is_err());
    }
    assert!(broker.rss() < 400 << 20, "{} MiB", broker.rss() >> 20);
}
