//! The broker is killed under load again and again. Every acknowledged record must be there, once and in order.
//!
//! `FULLBORE_CRASH_ROUNDS` is the number of rounds (by default 10, in `make soak` 200). Damaged files are tested in
//! `damage`.

use fullbore_tests::{Batch, Broker, Client};
use fullbore_wire::ErrorCode;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TOPIC: &str = "crashed";
/// How many requests are in flight, which is the maximum of an idempotent client.
const IN_FLIGHT: usize = 5;
const RECORDS_PER_BATCH: i32 = 3;
const PRODUCERS: i32 = 3;
const SOON: Duration = Duration::from_secs(60);

fn rounds() -> usize {
    fullbore_tests::rounds("FULLBORE_CRASH_ROUNDS", 10, 200)
}

/// An idempotent producer that writes to its own partition, so that record n has offset n.
struct Producer {
    id: i64,
    partition: i32,
    /// The first sequences of the unacknowledged batches, oldest first.
    in_flight: VecDeque<i32>,
    /// The sequence of the next record.
    next: i32,
    /// How many records were acknowledged.
    acknowledged: i32,
}

impl Producer {
    fn new(id: i64, partition: i32) -> Producer {
        Producer { id, partition, in_flight: VecDeque::new(), next: 0, acknowledged: 0 }
    }

    fn value(&self, sequence: i32) -> Vec<u8> {
        let mut value = format!("{} {sequence} ", self.partition).into_bytes();
        // Sizes vary, so that a kill can hit any position in a page or segment.
        value.resize(value.len() + usize::try_from(sequence * 37 % 1500).expect("positive"), b'.');
        value
    }

    fn batch(&self, first: i32) -> Batch {
        let values: Vec<Vec<u8>> = (first..first + RECORDS_PER_BATCH).map(|sequence| self.value(sequence)).collect();
        Batch::of(&values).from_producer(self.id, 0, first)
    }

    /// Resends the unacknowledged batches in order, then sends new ones until the broker ends.
    fn run(&mut self, client: &mut Client, acknowledged: &AtomicUsize) {
        let mut unsent: VecDeque<i32> = self.in_flight.clone();
        let mut sent = 0;
        loop {
            while sent < IN_FLIGHT {
                let first = unsent.pop_front().unwrap_or_else(|| self.begin());
                let request = fullbore_tests::produce_request(TOPIC, self.partition, self.batch(first).bytes());
                if client.try_send(&request, 9).is_err() {
                    return;
                }
                sent += 1;
            }
            let Some(response) = client.try_receive_produced() else { return };
            let first = self.in_flight.pop_front().expect("one was sent");
            assert_eq!(response.error_code, ErrorCode::NONE, "{:?}", response.error_message);
            assert_eq!(response.base_offset, i64::from(first), "the offset of partition {}", self.partition);
            self.acknowledged = first + RECORDS_PER_BATCH;
            sent -= 1;
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn begin(&mut self) -> i32 {
        let first = self.next;
        self.in_flight.push_back(first);
        self.next += RECORDS_PER_BATCH;
        first
    }

    /// Checks that every record is there once and in order, at least up to the last acknowledged one.
    fn check(&self, client: &mut Client) {
        let records = client.fetch_records(TOPIC, self.partition);
        let count = i32::try_from(records.len()).expect("few records");
        assert!(self.acknowledged <= count, "{count} records, {} were acknowledged", self.acknowledged);
        assert!(count <= self.next, "{count} records, {} were sent", self.next);
        for (sequence, record) in (0..).zip(&records) {
            assert_eq!(record.offset, i64::from(sequence));
            assert!(record.value == self.value(sequence), "record {sequence} of partition {}", self.partition);
        }
    }
}

/// Runs all producers until `batches` batches are acknowledged, then kills the broker.
fn run_and_kill(broker: &mut Broker, producers: Vec<Producer>, batches: usize) -> Vec<Producer> {
    run_and(broker, producers, batches, Broker::kill)
}

/// Runs all producers until `batches` batches are acknowledged, then calls `end`.
fn run_and(broker: &mut Broker, producers: Vec<Producer>, batches: usize, end: fn(&mut Broker)) -> Vec<Producer> {
    let acknowledged = Arc::new(AtomicUsize::new(0));
    let running: Vec<_> = producers
        .into_iter()
        .map(|mut producer| {
            let (mut client, acknowledged) = (broker.client(), Arc::clone(&acknowledged));
            std::thread::spawn(move || {
                producer.run(&mut client, &acknowledged);
                producer
            })
        })
        .collect();
    fullbore_tests::wait_until("batches are acknowledged", SOON, || {
        let failed = running.iter().any(std::thread::JoinHandle::is_finished);
        failed || acknowledged.load(Ordering::Relaxed) >= batches
    });
    end(broker);
    running.into_iter().map(|thread| thread.join().expect("a producer saw a wrong answer")).collect()
}

fn survives(configs: &[(&str, &str)], sets: &[&str]) {
    let mut broker = Broker::start(sets);
    let mut client = broker.client();
    client.create_topic(TOPIC, PRODUCERS, configs);
    let start = |partition| Producer::new(client.init_producer_id(), partition);
    let mut producers: Vec<Producer> = (0..PRODUCERS).map(start).collect();
    for round in 0..rounds() {
        producers = run_and_kill(&mut broker, producers, 20 + 97 * round % 600);
        broker.restart();
        let mut client = broker.client();
        producers.iter().for_each(|producer| producer.check(&mut client));
    }
    let total: i32 = producers.iter().map(|producer| producer.acknowledged).sum();
    assert!(total > 0, "nothing was acknowledged, so nothing was tested");
}

#[test]
fn every_acknowledged_record_is_there_once_and_in_order_after_each_kill_9() {
    survives(&[], &[]);
}

#[test]
fn every_acknowledged_record_is_there_after_each_kill_9_while_segments_roll() {
    survives(&[("segment.bytes", "1048576"), ("index.interval.bytes", "256")], &[]);
}

#[test]
fn every_acknowledged_record_is_there_after_each_kill_9_with_a_flush_per_batch() {
    survives(&[("flush.messages", "1")], &[]);
}

/// A diskless topic has no log. Its objects and its index are in a directory.
#[test]
fn every_acknowledged_record_of_a_diskless_topic_is_there_once_and_in_order_after_each_kill_9() {
    survives(&[("diskless.enable", "true")], &[]);
}

#[test]
fn every_acknowledged_record_is_there_after_each_kill_9_of_a_slow_store() {
    let slow = ["fullbore.diskless.put.delay.ms=30", "diskless.produce.commit.interval.ms=5"];
    survives(&[("diskless.enable", "true")], &slow);
}

/// Some rounds end with a clean stop. The next start trusts the files only after a clean stop, and not after a kill.
#[test]
fn clean_stops_between_kills_lose_nothing() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut producers = vec![Producer::new(client.init_producer_id(), 0)];
    for _ in 0..3 {
        producers = run_and_kill(&mut broker, producers, 50);
        broker.restart();
        broker.stop();
        broker.restart();
        producers[0].check(&mut broker.client());
        producers = run_and_kill(&mut broker, producers, 50);
        broker.restart();
        producers[0].check(&mut broker.client());
    }
}

/// The broker is stopped between requests. Admitted requests still get their responses, and the records in them must be
/// there after the restart.
#[test]
fn a_stop_under_load_ends_with_code_0_and_loses_nothing() {
    stops_under_load(&[]);
}

#[test]
fn a_stop_under_load_loses_nothing_of_a_diskless_topic() {
    stops_under_load(&[("diskless.enable", "true")]);
}

fn stops_under_load(configs: &[(&str, &str)]) {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, PRODUCERS, configs);
    let start = |partition| Producer::new(client.init_producer_id(), partition);
    let mut producers: Vec<Producer> = (0..PRODUCERS).map(start).collect();
    for _ in 0..5 {
        producers = run_and(&mut broker, producers, 100, Broker::stop);
        broker.restart();
        assert_eq!(broker.stderr(), "", "nothing was recovered or repaired");
        producers.iter().for_each(|producer| producer.check(&mut broker.client()));
    }
}

/// Returns a killed broker with the only producer that wrote to it.
fn killed() -> (Broker, Producer) {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let producer = Producer::new(client.init_producer_id(), 0);
    let producer = run_and_kill(&mut broker, vec![producer], 20).remove(0);
    (broker, producer)
}

#[test]
#[should_panic(expected = "were acknowledged")]
fn lost_acknowledged_records_fail_the_check() {
    let (mut broker, producer) = killed();
    let log = broker.partition_files(TOPIC, 0, "log").remove(0);
    let file = std::fs::OpenOptions::new().write(true).open(log).expect("ours");
    // At most five batches were unacknowledged, so the last six include an acknowledged one.
    let six_batches: usize =
        (producer.next - 18..producer.next).step_by(3).map(|n| producer.batch(n).bytes().len()).sum();
    let len = file.metadata().expect("ours").len();
    file.set_len(len - u64::try_from(six_batches).expect("small")).expect("shorter");
    broker.restart();
    producer.check(&mut broker.client());
}

#[test]
#[should_panic(expected = "of partition 0")]
fn duplicate_records_fail_the_check() {
    let (mut broker, mut producer) = killed();
    broker.restart();
    let mut client = broker.client();
    let again = producer.batch(0).from_producer(-1, -1, -1);
    client.produced(TOPIC, 0, &again);
    producer.next += RECORDS_PER_BATCH;
    producer.check(&mut client);
}
