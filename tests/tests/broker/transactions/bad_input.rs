//! Requests that no client should send. The broker must respond to them as Kafka 4.3 does, with the exceptions in
//! [`super::answers::DIFFERENCES`].
//!
//! With `FULLBORE_TEST_PEER`, the test sends the same requests to a Kafka and checks its responses instead.

use super::answers::{ANSWERS, DIFFERENCES};
use super::{TOPIC, wait_for_state};
use fullbore_tests::{Batch, Broker, Client, Protocol, Transactional, topic_data, transactional_request};
use fullbore_wire::apis::add_partitions_to_txn::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use fullbore_wire::apis::describe_producers::{DescribeProducersRequest, TopicRequest};
use fullbore_wire::apis::fetch::FetchRequest;
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::apis::init_producer_id::InitProducerIdRequest;
use fullbore_wire::apis::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use fullbore_wire::apis::produce::ProduceRequest;
use fullbore_wire::batch::EndTransactionMarker;
use fullbore_wire::{ErrorCode, Text};
use std::time::{SystemTime, UNIX_EPOCH};

/// The broker under test, and names that no other run uses.
struct Matrix {
    client: Client,
    run: u128,
    ids: usize,
    answers: Vec<(String, String)>,
}

impl Matrix {
    fn id(&mut self) -> String {
        self.ids += 1;
        format!("bad-{}-{}", self.run, self.ids)
    }

    /// Returns a new producer with its own transactional id.
    fn producer(&mut self, protocol: Protocol) -> Transactional {
        let id = self.id();
        Transactional::begin(&mut self.client, &id, protocol)
    }

    /// Returns a producer with an open transaction that contains partition 0.
    fn ongoing(&mut self, protocol: Protocol) -> Transactional {
        let mut producer = self.producer(protocol);
        producer.write(&mut self.client, TOPIC, 0, &["open"]);
        producer
    }

    fn note(&mut self, case: &str, answer: impl std::fmt::Debug) {
        self.answers.push((case.to_owned(), format!("{answer:?}")));
    }

    fn init(&mut self, case: &str, id: &str, timeout_ms: i32, current: Option<(i64, i16)>, version: i16) {
        let answer = self.client.init_transactional(id, timeout_ms, current, version).error_code;
        self.note(case, answer);
    }

    fn add(&mut self, case: &str, id: &str, producer: (i64, i16), topic: &str, partitions: &[i32], version: i16) {
        let answer = self.client.add_partitions(id, producer, topic, partitions, version);
        self.note(case, answer);
    }

    fn end(&mut self, case: &str, id: &str, producer: (i64, i16), is_commit: bool, version: i16) {
        let answer = self.client.end_txn(id, producer, is_commit, version);
        self.note(case, (answer.error_code, answer.producer_epoch));
    }

    fn produce(&mut self, case: &str, request: &ProduceRequest, version: i16) {
        let response = self.client.call(request, version);
        let partitions = response.responses.into_iter().flat_map(|topic| topic.partition_responses);
        let codes: Vec<ErrorCode> = partitions.map(|partition| partition.error_code).collect();
        self.note(case, codes);
    }
}

fn inits(on: &mut Matrix) {
    let id = on.id();
    on.init("init: empty id", "", 60_000, None, 4);
    for timeout_ms in [0, -1, 900_001, i32::MAX] {
        on.init(&format!("init: timeout {timeout_ms}"), &id, timeout_ms, None, 4);
    }
    on.init("init: epoch without id", &id, 60_000, Some((-1, 5)), 4);
    on.init("init: id without epoch", &id, 60_000, Some((5, -1)), 4);
    on.init("init: negative producer", &id, 60_000, Some((-5, -5)), 4);
    let plain = InitProducerIdRequest { producer_id: -1, producer_epoch: 5, ..Default::default() };
    let answer = on.client.call(&plain, 4).error_code;
    on.note("init: epoch without id, idempotent", answer);
    let plain =
        InitProducerIdRequest { producer_id: 5, producer_epoch: 5, transaction_timeout_ms: 0, ..Default::default() };
    let answer = on.client.call(&plain, 4);
    on.note("init: id and epoch, idempotent", (answer.error_code, answer.producer_epoch));
    on.init("init: unknown id with a producer", &id, 60_000, Some((123_456_789, 3)), 4);
    for (name, change) in [("next", 1), ("far", 7), ("stale", -1)] {
        let mut producer = on.producer(Protocol::Old);
        if change < 0 {
            producer = Transactional::begin(&mut on.client, &producer.transactional_id.clone(), Protocol::Old);
        }
        let (id, epoch) = producer.producer();
        on.init(&format!("init: {name} epoch"), &producer.transactional_id, 60_000, Some((id, epoch + change)), 4);
    }
    let producer = on.producer(Protocol::Old);
    on.init("init: foreign producer id", &producer.transactional_id, 60_000, Some((987_654_321, 0)), 4);
    on.init("init: foreign producer id, version 3", &producer.transactional_id, 60_000, Some((987_654_321, 0)), 3);
    for change in [1, 7] {
        let producer = on.ongoing(Protocol::Old);
        let current = Some((producer.id, producer.epoch + change));
        on.init(&format!("init: ongoing, epoch + {change}"), &producer.transactional_id, 60_000, current, 4);
    }
    let producer = on.ongoing(Protocol::Old);
    on.init("init: ongoing, bad timeout", &producer.transactional_id, -1, None, 4);
    for version in 0..=5 {
        let id = on.id();
        on.init(&format!("init: version {version}"), &id, 60_000, None, version);
    }
}

fn adds(on: &mut Matrix) {
    let producer = on.producer(Protocol::Old);
    let (id, epoch) = producer.producer();
    let name = producer.transactional_id.clone();
    let unknown = on.id();
    on.add("add: unknown id", &unknown, (id, epoch), TOPIC, &[0], 3);
    on.add("add: empty id", "", (id, epoch), TOPIC, &[0], 3);
    on.add("add: foreign producer id", &name, (987_654_321, epoch), TOPIC, &[0], 3);
    for version in [1, 3] {
        on.add(&format!("add: future epoch, version {version}"), &name, (id, epoch + 1), TOPIC, &[0], version);
        on.add(&format!("add: negative epoch, version {version}"), &name, (id, -1), TOPIC, &[0], version);
    }
    on.add("add: unknown topic", &name, (id, epoch), "no-such-topic", &[0], 3);
    on.add("add: bad topic name", &name, (id, epoch), "no such/topic", &[0], 3);
    on.add("add: negative partition", &name, (id, epoch), TOPIC, &[-1], 3);
    on.add("add: partition past the last", &name, (id, epoch), TOPIC, &[0, 99], 3);
    on.add("add: twice in one request", &name, (id, epoch), TOPIC, &[0, 0], 3);
    on.add("add: no partition", &name, (id, epoch), TOPIC, &[], 3);
    on.add("add: internal topic", &name, (id, epoch), "__transaction_state", &[0], 3);
    on.add("add: again", &name, (id, epoch), TOPIC, &[0, 1], 3);
    let newer = Transactional::begin(&mut on.client, &name, Protocol::Old);
    on.add("add: stale epoch", &name, (id, epoch), TOPIC, &[0], 3);
    on.add("add: stale epoch, version 1", &name, (id, epoch), TOPIC, &[0], 1);
    on.add("add: the newer epoch", &name, newer.producer(), TOPIC, &[0], 3);
    let none = AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: Text::from(name.as_str()),
        v3_and_below_producer_id: newer.id,
        v3_and_below_producer_epoch: newer.epoch,
        ..Default::default()
    };
    let answer = on.client.call(&none, 3).results_by_topic_v3_and_below;
    on.note("add: no topic", answer);
}

/// AddPartitionsToTxn of version 4 and later, which only brokers send. Two kinds of requests are left out because Kafka
/// never responds to them: those without a transaction, and those with the same transaction twice.
fn batched_adds(on: &mut Matrix) {
    let open = on.ongoing(Protocol::Old);
    let idle = on.producer(Protocol::Old);
    let unknown = on.id();
    let (open_id, idle_id) = (open.transactional_id.clone(), idle.transactional_id.clone());
    let cases = [
        ("in it and not in it", &open_id, open.producer(), true, [0, 1]),
        ("not in it", &idle_id, idle.producer(), true, [0, 1]),
        ("future epoch", &idle_id, (idle.id, idle.epoch + 1), true, [0, 1]),
        ("foreign producer id", &idle_id, (987_654_321, 0), true, [0, 1]),
        ("unknown id", &unknown, (1, 0), true, [0, 1]),
        ("unknown id, to add", &unknown, (1, 0), false, [0, 1]),
        ("empty id", &String::new(), (1, 0), true, [0, 1]),
        ("partition past the last", &open_id, open.producer(), true, [0, 99]),
        ("to add", &idle_id, idle.producer(), false, [0, 1]),
    ];
    for version in [4, 5] {
        for (name, id, (producer_id, producer_epoch), verify_only, partitions) in &cases {
            let topic =
                AddPartitionsToTxnTopic { name: TOPIC.into(), partitions: partitions.to_vec(), ..Default::default() };
            let transaction = AddPartitionsToTxnTransaction {
                transactional_id: id.as_str().into(),
                producer_id: *producer_id,
                producer_epoch: *producer_epoch,
                verify_only: *verify_only,
                topics: vec![topic],
                ..Default::default()
            };
            let request = AddPartitionsToTxnRequest { transactions: vec![transaction], ..Default::default() };
            let answer = on.client.call(&request, version);
            let topics = answer.results_by_transaction.iter().flat_map(|result| &result.topic_results);
            let partitions = topics.flat_map(|topic| &topic.results_by_partition);
            let mut codes: Vec<_> =
                partitions.map(|partition| (partition.partition_index, partition.partition_error_code)).collect();
            codes.sort_by_key(|(index, _)| *index);
            let codes: Vec<ErrorCode> = codes.into_iter().map(|(_, code)| code).collect();
            on.note(&format!("batched: {name}, version {version}"), (answer.error_code, codes));
        }
    }
}

fn ends(on: &mut Matrix) {
    for version in [1, 4, 5] {
        let protocol = if version == 5 { Protocol::New } else { Protocol::Old };
        let unknown = on.id();
        let idle = on.producer(protocol);
        on.end(&format!("end: unknown id, version {version}"), &unknown, idle.producer(), true, version);
        on.end(&format!("end: empty id, version {version}"), "", idle.producer(), true, version);
        let id = &idle.transactional_id;
        on.end(&format!("end: nothing to commit, version {version}"), id, idle.producer(), true, version);
        on.end(&format!("end: nothing to abort, version {version}"), id, idle.producer(), false, version);
        let open = on.ongoing(protocol);
        let id = &open.transactional_id;
        on.end(&format!("end: foreign producer id, version {version}"), id, (987_654_321, open.epoch), true, version);
        for change in [-1, 1, 2] {
            let case = format!("end: epoch {change:+}, version {version}");
            on.end(&case, id, (open.id, open.epoch + change), true, version);
        }
        on.end(&format!("end: good, version {version}"), id, open.producer(), true, version);
        wait_for_state(&mut on.client, id, "CompleteCommit");
        on.end(&format!("end: repeated, version {version}"), id, open.producer(), true, version);
        on.end(&format!("end: abort after commit, version {version}"), id, open.producer(), false, version);
        on.end(&format!("end: two epochs on, version {version}"), id, (open.id, open.epoch + 2), true, version);
    }
    let open = on.ongoing(Protocol::Old);
    on.end("end: version 5 of a client that began with 4", &open.transactional_id, open.producer(), true, 5);
    wait_for_state(&mut on.client, &open.transactional_id, "CompleteCommit");
    let open = on.ongoing(Protocol::New);
    on.end("end: version 4 of a client that began with 5", &open.transactional_id, open.producer(), true, 4);
    wait_for_state(&mut on.client, &open.transactional_id, "CompleteCommit");
    on.end("end: and with 5 again, committed", &open.transactional_id, open.producer(), true, 5);
    on.end("end: and with 5 again, aborted", &open.transactional_id, open.producer(), false, 5);
}

fn produces(on: &mut Matrix) {
    for protocol in Protocol::BOTH {
        let version = protocol.produce();
        let case = |name: &str| format!("produce: {name}, version {version}");
        let mut open = on.ongoing(protocol);
        let id = open.transactional_id.clone();
        let batch = open.batch(TOPIC, 0, &["next"]);
        let with = |id: Option<&str>, batch: &Batch| ProduceRequest {
            transactional_id: id.map(Text::from),
            ..transactional_request("", TOPIC, 0, batch.bytes())
        };
        let other = on.id();
        on.produce(&case("unknown id inside a transaction"), &with(Some(&other), &batch), version);
        let batch = open.batch(TOPIC, 0, &["and next"]);
        let plain = Batch { attributes: 0, ..batch.clone() };
        on.produce(&case("plain batch inside a transaction"), &with(Some(&id), &plain), version);
        on.produce(&case("plain batch without an id inside a transaction"), &with(None, &plain), version);
        let wrong = batch.clone().from_producer(open.id, open.epoch + 1, 0);
        on.produce(&case("future epoch inside a transaction"), &with(Some(&id), &wrong), version);
        let wrong = batch.clone().from_producer(open.id, open.epoch, 7);
        on.produce(&case("gap in the sequence"), &with(Some(&id), &wrong), version);
        let marker = EndTransactionMarker {
            producer_id: open.id,
            producer_epoch: open.epoch,
            is_commit: true,
            coordinator_epoch: 0,
        };
        let request = transactional_request(&id, TOPIC, 0, marker.batch(1_000).freeze());
        on.produce(&case("control batch"), &request, version);
        let two: Vec<u8> = [batch.bytes(), open.batch(TOPIC, 0, &["after"]).bytes()].concat();
        on.produce(&case("two batches in one"), &transactional_request(&id, TOPIC, 0, two.into()), version);

        let mut idle = on.producer(protocol);
        let id = idle.transactional_id.clone();
        if protocol == Protocol::Old {
            idle.add(&mut on.client, TOPIC, &[1]);
        }
        let first = idle.batch(TOPIC, 1, &["first"]);
        let at_1 = |id: Option<&str>, batch: &Batch| ProduceRequest {
            topic_data: vec![topic_data(TOPIC, &[(1, batch.bytes())])],
            ..with(id, batch)
        };
        on.produce(&case("without an id"), &at_1(None, &first), version);
        on.produce(&case("empty id"), &at_1(Some(""), &first), version);
        on.produce(&case("unknown id"), &at_1(Some(&other), &first), version);
        on.produce(&case("foreign id"), &at_1(Some(&open.transactional_id), &first), version);
        let wrong = first.clone().from_producer(idle.id, idle.epoch + 1, 0);
        on.produce(&case("future epoch"), &at_1(Some(&id), &wrong), version);
        let wrong = first.clone().from_producer(-1, -1, -1);
        on.produce(&case("no producer id"), &at_1(Some(&id), &wrong), version);
        let mut fresh = on.producer(protocol);
        if protocol == Protocol::Old {
            fresh.add(&mut on.client, TOPIC, &[1]);
        }
        let wrong = fresh.batch(TOPIC, 1, &["fifth"]).from_producer(fresh.id, fresh.epoch, 5);
        on.produce(&case("first sequence 5"), &at_1(Some(&fresh.transactional_id), &wrong), version);
        let plain = Batch::of(&["plain"]);
        on.produce(&case("plain batch beside the transaction"), &at_1(Some(&id), &plain), version);
        let internal = ProduceRequest {
            topic_data: vec![topic_data("__transaction_state", &[(0, first.bytes())])],
            ..with(Some(&id), &first)
        };
        on.produce(&case("internal topic"), &internal, version);
        let mut third = on.producer(protocol);
        if protocol == Protocol::Old {
            third.add(&mut on.client, TOPIC, &[2]);
        }
        let partitions = [(1, first.bytes()), (2, third.batch(TOPIC, 2, &["of another"]).bytes())];
        let two = ProduceRequest { topic_data: vec![topic_data(TOPIC, &partitions)], ..with(Some(&id), &first) };
        on.produce(&case("two producers"), &two, version);
        let single = ProduceRequest { acks: 1, ..at_1(Some(&id), &first) };
        on.produce(&case("acks=1"), &single, version);
        for (name, producer) in [("the first", open), ("the second", idle)] {
            let answer = producer.try_end(&mut on.client, true).error_code;
            on.note(&case(&format!("the end of {name} after all that")), answer);
        }
        let newer = Transactional::begin(&mut on.client, &id, protocol);
        on.produce(&case("stale epoch"), &at_1(Some(&newer.transactional_id), &first), version);
    }
}

fn looks(on: &mut Matrix) {
    for id in ["", "no-such-id"] {
        let described = on.client.describe_transaction(id);
        let shown = (
            described.error_code,
            described.transaction_state.to_string(),
            described.producer_id,
            described.transaction_start_time_ms,
        );
        on.note(&format!("describe: {id:?}"), shown);
    }
    for (topic, partition) in [("no-such-topic", 0), (TOPIC, 99), (TOPIC, -1)] {
        let topics =
            vec![TopicRequest { name: topic.into(), partition_indexes: vec![partition], ..Default::default() }];
        let answer = on.client.call(&DescribeProducersRequest { topics, ..Default::default() }, 0);
        let code = answer.topics[0].partitions[0].error_code;
        on.note(&format!("producers: {topic} {partition}"), code);
    }
    let from = [fullbore_tests::FetchFrom { topic: TOPIC, partition: 0, offset: 0 }];
    let request = FetchRequest { isolation_level: 2, ..fullbore_tests::fetch_request(&from, 0, 0) };
    let answer = on.client.call(&request, 12).error_code;
    on.note("fetch: isolation level 2", answer);
    let requested = ListOffsetsPartition { timestamp: -1, ..Default::default() };
    let topics = vec![ListOffsetsTopic { name: TOPIC.into(), partitions: vec![requested], ..Default::default() }];
    let request = ListOffsetsRequest { isolation_level: 2, topics, ..Default::default() };
    let answer = on.client.call(&request, 9).topics[0].partitions[0].error_code;
    on.note("list offsets: isolation level 2", answer);
    for (name, key, key_type) in [("empty key", "", 1), ("unknown type", "id", 7)] {
        let request =
            FindCoordinatorRequest { key_type, coordinator_keys: vec![Text::from(key)], ..Default::default() };
        let answer = on.client.call(&request, 4);
        on.note(&format!("find: {name}"), answer.coordinators.iter().map(|found| found.error_code).collect::<Vec<_>>());
    }
}

#[test]
fn bad_input_is_answered_as_kafka_answers_it() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 3, &[]);
    let run = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is after 1970").as_micros();
    let mut on = Matrix { client, run, ids: 0, answers: Vec::new() };
    // The first request of this producer creates the internal topic.
    on.producer(Protocol::Old);
    inits(&mut on);
    adds(&mut on);
    batched_adds(&mut on);
    ends(&mut on);
    produces(&mut on);
    looks(&mut on);
    let is_peer = std::env::var_os("FULLBORE_TEST_PEER").is_some();
    let of_kafka =
        |case: &str| DIFFERENCES.iter().find(|(differs, ..)| is_peer && *differs == case).map(|(_, answer, _)| *answer);
    let expected = |case: &str| {
        of_kafka(case).or_else(|| ANSWERS.iter().find(|(known, _)| *known == case).map(|(_, answer)| *answer))
    };
    let wrong = on.answers.iter().filter(|(case, answer)| expected(case) != Some(answer.as_str()));
    let wrong: Vec<String> = wrong.map(|(case, answer)| format!("    ({case:?}, {answer:?}),")).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert_eq!(on.answers.len(), ANSWERS.len(), "each case has its answer");
}
