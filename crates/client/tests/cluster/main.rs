//! Tests the client against a real broker in this process. It must read every record of the log in order, whatever
//! happens to the connection, and describe topics correctly.

mod ahead;
mod broker;
mod groups;
mod grown;
mod leaders;
mod several;
mod transactions;
mod truncated;

use broker::TestBroker;
use fullbore_client::ClientError;
use fullbore_client::admin::{PARTITIONS_PER_ANSWER, create_topic, delete_topics, describe_topics};
use fullbore_client::blocking::Cluster;
use fullbore_client::consume::{
    BatchView, ConsumeError, ConsumeOutcome, ConsumePlan, Cursor, FetchSettings, Record, Sink, StartOffset, consume,
};
use fullbore_tests::{Batch, Proxy, produce_request};
use std::ops::ControlFlow;
use std::time::Duration;

/// The last version of Produce that names topics. Later versions use ids.
const NAMED_VERSION_MAX: i16 = 12;

/// A sink that accepts only the decimal numbers 0, 1, 2, ... at the offsets 0, 1, 2, ...
#[derive(Default)]
struct InOrder(i64);

impl Sink for InOrder {
    fn record(&mut self, batch: &BatchView<'_>, record: &Record<'_>) -> Result<ControlFlow<()>, String> {
        let offset = record.offset(batch);
        let expected = self.0.to_string();
        if offset != self.0 || record.value != Some(expected.as_bytes()) {
            return Err(format!("expected {expected}, read {:?} at {offset}", record.value));
        }
        self.0 += 1;
        Ok(ControlFlow::Continue(()))
    }
}

/// Writes the numbers from 0 to `records` in batches of `in_batch`, to `partitions` partitions in turn.
fn write_numbers(address: &str, partitions: i32, records: u64, in_batch: u64) {
    let mut connection = Cluster::new(address, "test").expect("valid").connect(address).expect("it answers");
    for (turn, first) in (0..).zip((0..records).step_by(in_batch as usize)) {
        let values: Vec<String> = (first..records.min(first + in_batch)).map(|number| number.to_string()).collect();
        let request = produce_request("t", turn % partitions, Batch::of(&values).bytes());
        let written = connection.call_up_to(&request, NAMED_VERSION_MAX).expect("an answer");
        assert!(!written.responses[0].partition_responses[0].error_code.is_err(), "{written:?}");
    }
}

fn cursors<S: Sink>(cluster: &mut Cluster, sink: impl Fn() -> S) -> Vec<Cursor<S>> {
    let places = cluster.partitions(&"t".into()).expect("the topic exists");
    places.into_iter().map(|place| Cursor::new(place, sink())).collect()
}

fn plan(records: u64) -> ConsumePlan {
    ConsumePlan { records, ..ConsumePlan::new(FetchSettings::default(), Duration::from_secs(20)) }
}

fn read_all<S: Sink>(
    address: &str,
    sink: impl Fn() -> S,
    plan: &ConsumePlan,
) -> Result<ConsumeOutcome<S>, ConsumeError> {
    let mut cluster = Cluster::new(address, "test").expect("valid");
    let cursors = cursors(&mut cluster, sink);
    consume(&cluster, cursors, plan, |_| true)
}

fn with_topic(partitions: i32) -> TestBroker {
    with_topic_at(&[], partitions)
}

/// Starts a broker with these settings and creates the topic.
fn with_topic_at(settings: &[(&str, &str)], partitions: i32) -> TestBroker {
    let broker = TestBroker::start_with(None, settings);
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    create_topic(&mut cluster, "t", Some(partitions), None, &[]).expect("created");
    broker
}

#[test]
fn fetches_smaller_than_a_batch_still_read_it() {
    let broker = with_topic(1);
    write_numbers(&broker.address, 1, 5_000, 200);
    let fetch = FetchSettings { partition_max_bytes: 1, max_bytes: 1, ..Default::default() };
    let outcome = read_all(&broker.address, InOrder::default, &ConsumePlan { fetch, ..plan(5_000) }).expect("read");
    assert_eq!(outcome.progress.records(), 5_000);
}

#[test]
fn every_partition_of_a_topic_is_read() {
    let broker = with_topic(7);
    write_numbers(&broker.address, 7, 50_000, 100);
    let outcome = read_all(&broker.address, || (), &plan(50_000)).expect("read");
    assert_eq!(outcome.progress.records(), 50_000);
    assert!(outcome.cursors.iter().all(|cursor| cursor.offset > Some(0)));
    let read: i64 = outcome.cursors.iter().filter_map(|cursor| cursor.offset).sum();
    assert_eq!(read, 50_000);
}

#[test]
fn a_run_from_the_end_reads_no_old_record_and_ends_by_its_timeout() {
    let broker = with_topic(1);
    write_numbers(&broker.address, 1, 100, 100);
    let from_end = ConsumePlan { start: StartOffset::Latest, timeout: Duration::from_millis(200), ..plan(1) };
    let outcome = read_all(&broker.address, || (), &from_end).expect("read");
    assert_eq!((outcome.progress.records(), outcome.finished), (0, None));
}

#[test]
fn a_broker_that_died_is_named_when_the_timeout_passes() {
    // Only this test uses this IP address. Otherwise the broker of another test could get the port of the broker that
    // died.
    let broker = with_topic_at(&[("listeners", "PLAINTEXT://127.0.0.77:0")], 1);
    write_numbers(&broker.address, 1, 100, 100);
    let address = broker.address.clone();
    let mut cluster = Cluster::new(&address, "test").expect("valid");
    let cursors = cursors(&mut cluster, || ());
    let plan = ConsumePlan { timeout: Duration::from_secs(8), ..plan(1_000) };
    let mut broker = Some(broker);
    let outcome = consume(&cluster, cursors, &plan, |counts| {
        if counts.records() == 100 {
            broker = None;
        }
        true
    });
    let error = outcome.err().expect("nobody is there").to_string();
    let start = format!("no record came in 8000 ms: cannot connect to {address}: ");
    assert!(error.starts_with(&start), "{error}");
}

#[test]
fn a_broker_that_falls_silent_is_named_when_the_timeout_passes() {
    let proxy = Proxy::start();
    let broker = TestBroker::start(Some(&proxy));
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    create_topic(&mut cluster, "t", Some(1), None, &[]).expect("created");
    write_numbers(&broker.address, 1, 100, 100);
    let cursors = cursors(&mut cluster, || ());
    let plan = ConsumePlan { timeout: Duration::from_secs(8), ..plan(1_000) };
    let mut stalled = false;
    let outcome = consume(&cluster, cursors, &plan, |counts| {
        if counts.records() == 100 && !stalled {
            proxy.stall(Duration::from_secs(60));
            stalled = true;
        }
        true
    });
    let error = outcome.err().expect("nobody answers").to_string();
    let start = format!("no record came in 8000 ms: the connection to {} broke: no answer for ", broker.address);
    assert!(error.starts_with(&start), "{error}");
}

#[test]
fn a_sink_that_refuses_ends_the_run_with_its_reason() {
    struct Refuse;
    impl Sink for Refuse {
        fn record(&mut self, batch: &BatchView<'_>, record: &Record<'_>) -> Result<ControlFlow<()>, String> {
            if record.offset(batch) == 7 { Err("not this one".to_owned()) } else { Ok(ControlFlow::Continue(())) }
        }
    }
    let broker = with_topic(1);
    write_numbers(&broker.address, 1, 100, 100);
    let error = read_all(&broker.address, || Refuse, &plan(100)).err().expect("refused");
    assert_eq!(error.to_string(), "partition 0 of topic 't', offset 7: not this one");
}

#[test]
#[should_panic(expected = "in the sink")]
fn a_sink_that_panics_does_not_hang_the_run() {
    struct Panic;
    impl Sink for Panic {
        fn record(&mut self, _: &BatchView<'_>, _: &Record<'_>) -> Result<ControlFlow<()>, String> {
            panic!("in the sink")
        }
    }
    let broker = with_topic(1);
    write_numbers(&broker.address, 1, 100, 100);
    let _ = read_all(&broker.address, || Panic, &plan(100));
}

#[test]
fn a_reader_with_a_broken_connection_goes_on_at_its_position() {
    let proxy = Proxy::start();
    let broker = TestBroker::start(Some(&proxy));
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    create_topic(&mut cluster, "t", Some(1), None, &[]).expect("created");
    write_numbers(&broker.address, 1, 200_000, 100);
    let cursors = cursors(&mut cluster, InOrder::default);
    let fetch = FetchSettings { partition_max_bytes: 20_000, ..Default::default() };
    let mut cuts = 0;
    let outcome = consume(&cluster, cursors, &ConsumePlan { fetch, ..plan(200_000) }, |counts| {
        if cuts < 3 && counts.records() > cuts * 20_000 {
            proxy.cut();
            cuts += 1;
        }
        true
    });
    assert_eq!(outcome.expect("read").progress.records(), 200_000);
    assert!(cuts > 0, "the test cut something");
}

#[test]
fn a_topic_larger_than_a_page_is_described_whole() {
    let broker = with_topic(2_001);
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    let described = describe_topics(&mut cluster, &["t".into()], PARTITIONS_PER_ANSWER).expect("described");
    let partitions: Vec<i32> = described[0].partitions.iter().map(|partition| partition.partition).collect();
    assert_eq!(partitions, (0..2_001).collect::<Vec<_>>());
}

#[test]
fn a_missing_topic_is_named() {
    let broker = with_topic(2);
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    let described = describe_topics(&mut cluster, &["t".into()], PARTITIONS_PER_ANSWER).expect("described");
    assert_eq!((described[0].partitions.len(), described[0].partitions[1].replicas.len()), (2, 1));
    let missing = |outcome: Result<(), ClientError>| match outcome {
        Err(ClientError::NoTopic(name)) => assert_eq!(name, "nope"),
        other => panic!("{other:?}"),
    };
    missing(cluster.partitions(&"nope".into()).map(drop));
    missing(describe_topics(&mut cluster, &["nope".into()], PARTITIONS_PER_ANSWER).map(drop));
    let mut failed = delete_topics(&mut cluster, &["nope".into(), "t".into()]).expect("answered");
    let (name, error) = failed.remove(0);
    missing(Err(error));
    assert_eq!((&*name, failed.len()), ("nope", 0), "the other is deleted");
    assert!(matches!(cluster.partitions(&"t".into()), Err(ClientError::NoTopic(_))));
}
