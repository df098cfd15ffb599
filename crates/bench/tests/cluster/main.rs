//! Tests the bench crate against a real broker in this process. The tests count the sent records, read them back, and
//! check that a stall of the broker shows in the latencies.

#[path = "../../../client/tests/cluster/broker.rs"]
mod broker;

use broker::TestBroker;
use fullbore_bench::measure::Summary;
use fullbore_bench::produce::{Workload, produce};
use fullbore_bench::workload::Payload;
use fullbore_client::admin::create_topic;
use fullbore_client::blocking::{Cluster, LATEST};
use fullbore_client::consume::{
    BatchView, ConsumeError, ConsumeOutcome, ConsumePlan, Cursor, FetchSettings, Record, Sink, consume,
};
use fullbore_producer::{Producer, ProducerConfig};
use fullbore_tests::{Proxy, wait_until};
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::sync::watch;

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

fn numbers(records: u64, throughput: f64) -> Workload {
    Workload {
        topic: "t".to_owned(),
        records,
        duration: None,
        warmup_records: records / 4,
        throughput,
        payload: Payload::monotonic(),
        reporting_interval: Duration::from_secs(5),
        transaction_duration: fullbore_bench::produce::TRANSACTION_DURATION,
    }
}

/// Sends 0, 1, 2, ... to one partition. Returns the summaries of the whole run and of its steady state.
fn send_numbers(address: &str, workload: Workload, properties: &[(&str, &str)]) -> Vec<Summary> {
    let all = [("bootstrap.servers", address)].into_iter().chain(properties.iter().copied());
    let producer = Producer::new(ProducerConfig::from_properties(all).expect("valid")).expect("started");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let outcome = runtime.block_on(produce(&producer, workload, watch::channel(false).1, |_| {})).expect("sent");
    assert_eq!(outcome.failed.records, 0, "{:?}", outcome.failed.first);
    runtime.block_on(producer.close(Duration::from_secs(5)));
    outcome.produced.summaries(outcome.ended).collect()
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
    let broker = TestBroker::start(None);
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    create_topic(&mut cluster, "t", Some(partitions), None, &[]).expect("created");
    broker
}

#[test]
fn sent_records_are_counted_and_read_back_in_order() {
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let broker = with_topic(1);
        let summaries = send_numbers(&broker.address, numbers(20_000, -1.0), &[("compression.type", codec)]);
        let counts: Vec<(u64, bool)> = summaries.iter().map(|summary| (summary.records, summary.steady)).collect();
        assert_eq!(counts, [(20_000, false), (15_000, true)], "{codec}");
        assert_eq!(summaries[0].latencies.count(), 20_000);
        let outcome = read_all(&broker.address, InOrder::default, &plan(20_000)).expect(codec);
        assert!(outcome.finished.is_some());
        assert_eq!((outcome.progress.records(), outcome.progress.bytes()), (20_000, summaries[0].bytes));
    }
}

#[test]
fn a_stopped_run_keeps_the_acknowledged_records() {
    let broker = with_topic(1);
    let producer = Producer::new(ProducerConfig::new(&broker.address)).expect("started");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for throughput in [-1.0, 2_000.0] {
        let (stop, stopping) = watch::channel(false);
        let reporting_interval = Duration::from_millis(50);
        let workload = Workload { reporting_interval, ..numbers(u64::MAX, throughput) };
        let on_window = move |_: &_| {
            stop.send_replace(true);
        };
        let outcome = runtime.block_on(produce(&producer, workload, stopping, on_window)).expect("sent");
        assert!(outcome.stopped);
        let summary = outcome.produced.summaries(outcome.ended).next().expect("a summary");
        assert!(summary.records > 0 && outcome.failed.records == 0);
    }
}

#[test]
fn records_that_fail_beside_others_of_their_batch_are_counted_as_failed_and_the_others_as_sent() {
    let broker = TestBroker::start(None);
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    let limit = [("max.message.bytes".to_owned(), "2000".to_owned())];
    create_topic(&mut cluster, "t", Some(1), None, &limit).expect("created");
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!("{}\n{}\n", "small", "x".repeat(5_000))).expect("written");
    let payload = Payload::from_file(file.path(), "\n").expect("two payloads");
    let workload = Workload { payload, warmup_records: 0, ..numbers(100, -1.0) };
    let producer = Producer::new(ProducerConfig::new(&broker.address)).expect("started");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let outcome = runtime.block_on(produce(&producer, workload, watch::channel(false).1, |_| {})).expect("sent");
    let sent = outcome.produced.summaries(outcome.ended).next().expect("a summary");
    let written = cluster.any().expect("it answers").offsets(&[("t".into(), 0)], LATEST).expect("the end")[0];
    assert!(written > 0 && written < 100, "both kinds were sent: {written}");
    assert_eq!(
        (sent.records, sent.bytes, outcome.failed.records),
        (written as u64, 5 * written as u64, 100 - written as u64)
    );
    runtime.block_on(producer.close(Duration::from_secs(5)));
}

#[test]
fn a_stall_shows_in_every_record_that_it_delays() {
    const STALL: Duration = Duration::from_millis(1_500);
    let proxy = Proxy::start();
    let broker = TestBroker::start(Some(&proxy));
    let mut cluster = Cluster::new(&broker.address, "test").expect("valid");
    create_topic(&mut cluster, "t", Some(1), None, &[]).expect("created");
    // The buffer of 64 KiB is full long before the stall ends, so most of the delayed records are not even sent.
    let small = [("buffer.memory", "65536"), ("max.request.size", "65536"), ("batch.size", "1000")];
    let workload = Workload { payload: Payload::random(1000, false), ..numbers(2_000, 400.0) };
    let summaries = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut written =
                || cluster.any().expect("it answers").offsets(&[("t".into(), 0)], LATEST).expect("the end")[0];
            wait_until("a fifth is written", Duration::from_secs(30), || written() >= 400);
            proxy.stall(STALL);
        });
        send_numbers(&broker.address, workload, &small)
    });
    // The intended send times of 600 of the 2,000 records are during the stall. Half of them, 15 % of all records, wait
    // at least half of the stall.
    let p90_us = summaries[0].latencies.quantile_us(0.9);
    assert!(p90_us > STALL.as_micros() as u64 / 2, "p90 is {p90_us} us");
    assert!(summaries[0].latencies.quantile_us(0.3) < p90_us, "the others did not wait");
}
