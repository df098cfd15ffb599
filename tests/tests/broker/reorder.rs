//! A producer sends its batches over several connections. A batch that arrives out of order waits for the earlier ones.
//!
//! Limits, and ends of topics and brokers, are tested in `reorder_bounds`.

use fullbore_tests::{Batch, Broker, Client, Random, topic_data, wait_until};
use fullbore_wire::apis::metadata::MetadataRequest;
use fullbore_wire::apis::produce::{PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceData};
use fullbore_wire::{ErrorCode, Uuid};
use std::collections::VecDeque;
use std::time::Duration;

/// The first version of Produce that has the field `reorder`.
pub const PRODUCE: i16 = 14;
const METADATA: i16 = 12;
pub const SOON: Duration = Duration::from_secs(30);
/// A wait that no test reaches.
pub const FOREVER: &str = "fullbore.reorder.wait.ms=3600000";

/// Returns a batch of one record. The record's text has the sequence.
pub fn one(producer_id: i64, sequence: i32) -> Batch {
    Batch::of(&[format!("record {sequence}")]).from_producer(producer_id, 0, sequence)
}

/// Returns a produce request with one batch for partition 0.
pub fn request(topic: Uuid, batch: &Batch, reorder: bool) -> ProduceRequest {
    let data = TopicProduceData { topic_id: topic, ..topic_data("", &[(0, batch.bytes())]) };
    ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![data], reorder, ..Default::default() }
}

/// Sends a batch and permits the broker to hold it until earlier batches have arrived.
pub fn send(client: &mut Client, topic: Uuid, batch: &Batch) {
    client.send(&request(topic, batch, true), PRODUCE);
}

/// Waits for the next response and returns its only partition.
pub fn receive(client: &mut Client) -> PartitionProduceResponse {
    only(client.receive::<ProduceRequest>(PRODUCE).1)
}

pub fn only(mut response: ProduceResponse) -> PartitionProduceResponse {
    response.responses.remove(0).partition_responses.remove(0)
}

pub fn receive_offset(client: &mut Client) -> i64 {
    let response = receive(client);
    assert_eq!(response.error_code, ErrorCode::NONE, "{:?}", response.error_message);
    response.base_offset
}

pub fn receive_error(client: &mut Client) -> ErrorCode {
    receive(client).error_code
}

/// A probe that detects when the broker has admitted the requests of a sender. The sender writes a record to another
/// topic with acks=0. Once this record is readable, all earlier requests of the sender are admitted.
pub struct Probe {
    client: Client,
    topic: Uuid,
    sent: i64,
}

impl Probe {
    pub fn new(broker: &Broker) -> Probe {
        let mut client = broker.client();
        let topic = client.create_topic("probe", 1, &[]);
        Probe { client, topic, sent: 0 }
    }

    /// Waits until the broker has admitted all requests that `sender` has sent.
    pub fn wait(&mut self, sender: &mut Client) {
        let probe = ProduceRequest { acks: 0, ..request(self.topic, &Batch::of(&["probe"]), false) };
        sender.send(&probe, PRODUCE);
        self.sent += 1;
        wait_until("what was sent is admitted", SOON, || self.client.latest("probe", 0) == self.sent);
    }
}

/// Checks that the partition has exactly the records with the sequences from 0 to before `count`, in order.
pub fn assert_in_order(client: &mut Client, topic: &str, count: usize) {
    let texts: Vec<String> = client.fetch_records(topic, 0).iter().map(|record| record.text()).collect();
    assert_eq!(texts, (0..count).map(|sequence| format!("record {sequence}")).collect::<Vec<_>>());
}

/// Starts a broker. Returns it with a client, the id of a topic and a producer id.
pub fn start(sets: &[&str], configs: &[(&str, &str)]) -> (Broker, Client, Uuid, i64) {
    let broker = Broker::start(sets);
    let mut client = broker.client();
    let topic = client.create_topic("striped", 1, configs);
    let id = client.init_producer_id();
    (broker, client, topic, id)
}

/// Sends `sequences` over eight connections, `window` of them at a time and in random order. The next batches follow
/// when all responses have arrived. Each response must have the offset that belongs to the sequence, counted from
/// `first_offset`.
pub fn stripe(
    broker: &Broker,
    topic: Uuid,
    id: i64,
    sequences: std::ops::Range<i32>,
    first_offset: i64,
    window: usize,
) {
    let mut random = Random::new(u64::from(sequences.end.unsigned_abs()) + window as u64);
    let mut lanes: Vec<(Client, VecDeque<i32>)> = (0..8).map(|_| (broker.client(), VecDeque::new())).collect();
    let all: Vec<i32> = sequences.clone().collect();
    for chunk in all.chunks(window) {
        let mut left = chunk.to_vec();
        while !left.is_empty() {
            let sequence = left.swap_remove(random.below(left.len()));
            let lane = random.below(lanes.len());
            send(&mut lanes[lane].0, topic, &one(id, sequence));
            lanes[lane].1.push_back(sequence);
        }
        for (client, sent) in &mut lanes {
            for sequence in sent.drain(..) {
                assert_eq!(receive_offset(client), first_offset + i64::from(sequence - sequences.start));
            }
        }
    }
}

#[test]
fn batches_in_any_order_over_eight_connections_are_appended_in_sequence_order() {
    for (window, count) in [(5, 200), (64, 640), (1024, 3072)] {
        let (broker, mut client, topic, id) = start(&[FOREVER], &[]);
        stripe(&broker, topic, id, 0..count, 0, window);
        assert_in_order(&mut client, "striped", usize::try_from(count).expect("positive"));
    }
}

/// Sends one window of batches after another over five connections. Some connections break while batches are in flight,
/// parked or acknowledged, and these batches are resent over others. The offset in each response must equal the
/// sequence. A batch is resent at most three times, because only a few copies of a batch may be parked.
#[test]
fn connections_lost_with_batches_in_flight_lose_neither_batch_nor_order() {
    const WINDOW: i32 = 64;
    let (broker, mut client, topic, id) = start(&[FOREVER, "max.idempotence.batches.to.retain=64"], &[]);
    let mut random = Random::new(7);
    let mut lanes: Vec<(Client, VecDeque<i32>)> = (0..5).map(|_| (broker.client(), VecDeque::new())).collect();
    let mut losses = vec![0; 20 * 64];
    for first in (0..20).map(|round| round * WINDOW) {
        let mut left: Vec<i32> = (first..first + WINDOW).collect();
        while !left.is_empty() {
            let sequence = left.swap_remove(random.below(left.len()));
            let lane = random.below(lanes.len());
            send(&mut lanes[lane].0, topic, &one(id, sequence));
            lanes[lane].1.push_back(sequence);
            let lost = random.below(lanes.len());
            let often = |sequence: &i32| losses[*sequence as usize] == 3;
            if random.below(16) == 0 && !lanes[lost].1.iter().any(often) {
                lanes[lost].0 = broker.client();
                let sent = std::mem::take(&mut lanes[lost].1);
                sent.iter().for_each(|sequence| losses[*sequence as usize] += 1);
                left.extend(sent);
            }
        }
        for (client, sent) in &mut lanes {
            sent.drain(..).for_each(|sequence| assert_eq!(receive_offset(client), i64::from(sequence)));
        }
    }
    assert!(losses.iter().filter(|losses| **losses > 0).count() > 100, "connections were lost");
    assert_in_order(&mut client, "striped", 20 * 64);
}

#[test]
fn every_response_of_version_14_has_the_limit_of_waiting_batches() {
    let (broker, mut client, topic, id) = start(&["fullbore.reorder.batches.max=77"], &[]);
    for (sequence, code) in [(0, ErrorCode::NONE), (5, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER)] {
        let response = client.call(&request(topic, &one(id, sequence), false), PRODUCE);
        assert_eq!(response.reorder_batches, 77);
        assert_eq!(only(response).error_code, code, "without reorder nothing waits");
    }
    crate::assert_serves(&broker);
}

/// While a batch is parked, its retry arrives over a new connection. One append must answer both requests.
#[test]
fn retry_of_a_waiting_batch_shares_its_append() {
    let (broker, mut client, topic, id) = start(&[FOREVER], &[]);
    let (mut first, mut second, mut probe) = (broker.client(), broker.client(), Probe::new(&broker));
    send(&mut first, topic, &one(id, 1));
    probe.wait(&mut first);
    send(&mut second, topic, &one(id, 1));
    probe.wait(&mut second);
    send(&mut client, topic, &one(id, 0));
    assert_eq!((receive_offset(&mut client), receive_offset(&mut first), receive_offset(&mut second)), (0, 1, 1));
    send(&mut second, topic, &one(id, 1));
    assert_eq!(receive_offset(&mut second), 1, "and a later one is found in the log");
    assert_in_order(&mut client, "striped", 2);
}

/// A parked batch is appended in order even if its connection is lost. The client may never resend it, and later
/// batches must not wait for that.
#[test]
fn waiting_batch_of_a_lost_connection_is_appended_in_order() {
    let (broker, mut client, topic, id) = start(&[FOREVER], &[]);
    let (mut lost, mut probe) = (broker.client(), Probe::new(&broker));
    send(&mut lost, topic, &one(id, 1));
    probe.wait(&mut lost);
    drop(lost);
    send(&mut client, topic, &one(id, 0));
    assert_eq!(receive_offset(&mut client), 0);
    assert_eq!(client.latest("striped", 0), 2, "under the same lock");
    send(&mut client, topic, &one(id, 1));
    assert_eq!(receive_offset(&mut client), 1);
    assert_in_order(&mut client, "striped", 2);
}

#[test]
fn missing_batch_without_reorder_completes_the_waiting_ones() {
    let (broker, mut client, topic, id) = start(&[FOREVER], &[]);
    let (mut early, mut probe) = (broker.client(), Probe::new(&broker));
    for sequence in [3, 1, 2] {
        send(&mut early, topic, &one(id, sequence));
    }
    probe.wait(&mut early);
    assert_eq!(client.produced("striped", 0, &one(id, 0)), 0);
    assert_eq!([3, 1, 2].map(|_| receive_offset(&mut early)), [3, 1, 2]);
}

/// A partition that has records accepts any first sequence of an unknown producer. If a later batch overtakes the
/// producer's first one, the broker must not take it for the first.
#[test]
fn first_batches_of_a_producer_may_race_on_a_written_partition() {
    let (broker, mut client, topic, id) = start(&[FOREVER], &[]);
    client.produced("striped", 0, &Batch::of(&["before"]));
    stripe(&broker, topic, id, 0..20, 1, 5);
    let records = client.fetch_records("striped", 0);
    let texts: Vec<String> = records.iter().skip(1).map(|record| record.text()).collect();
    assert_eq!(texts, (0..20).map(|sequence| format!("record {sequence}")).collect::<Vec<_>>());
}

#[test]
fn sequences_wrap_while_batches_wait() {
    let (broker, mut client, topic, id) = start(&[FOREVER], &[]);
    client.produced("striped", 0, &Batch::of(&["before"]));
    assert_eq!(client.produced("striped", 0, &one(id, i32::MAX - 1)), 1, "any first sequence, without reorder");
    let (mut early, mut probe) = (broker.client(), Probe::new(&broker));
    for sequence in [1, 0] {
        send(&mut early, topic, &one(id, sequence));
    }
    probe.wait(&mut early);
    send(&mut client, topic, &one(id, i32::MAX));
    assert_eq!((receive_offset(&mut client), receive_offset(&mut early), receive_offset(&mut early)), (2, 4, 3));
}

#[test]
fn new_epoch_refuses_waiting_batches_of_the_old_one() {
    let (broker, mut client, topic, id) = start(&[FOREVER], &[]);
    assert_eq!(client.produced("striped", 0, &one(id, 0)), 0);
    let (mut old, mut probe) = (broker.client(), Probe::new(&broker));
    send(&mut old, topic, &one(id, 2));
    probe.wait(&mut old);
    let of_new = |sequence| one(id, sequence).from_producer(id, 1, sequence);
    let mut new = broker.client();
    send(&mut new, topic, &of_new(1));
    assert_eq!(receive_error(&mut old), ErrorCode::INVALID_PRODUCER_EPOCH, "a new one that waits is enough");
    send(&mut old, topic, &one(id, 3));
    assert_eq!(receive_error(&mut old), ErrorCode::INVALID_PRODUCER_EPOCH);
    send(&mut client, topic, &of_new(0));
    assert_eq!((receive_offset(&mut client), receive_offset(&mut new)), (1, 2));
    assert_eq!(client.latest("striped", 0), 3);
}

#[test]
fn partitions_of_one_request_wait_independently() {
    let broker = Broker::start(&[FOREVER]);
    let mut client = broker.client();
    let topic = client.create_topic("striped", 3, &[]);
    let id = client.init_producer_id();
    let of = |partition, sequence| (partition, one(id, sequence).bytes());
    let with = |partitions: &[(i32, bytes::Bytes)]| ProduceRequest {
        topic_data: vec![TopicProduceData { topic_id: topic, ..topic_data("", partitions) }],
        ..request(topic, &one(id, 0), true)
    };
    let (mut early, mut probe) = (broker.client(), Probe::new(&broker));
    early.send(&with(&[of(0, 1), of(1, 0), of(2, 1)]), PRODUCE);
    probe.wait(&mut early);
    assert_eq!(client.latest("striped", 1), 1, "what is in its turn does not wait");
    client.call(&with(&[of(2, 0), of(0, 0)]), PRODUCE);
    let (_, response) = early.receive::<ProduceRequest>(PRODUCE);
    let answers = response.responses[0].partition_responses.iter();
    let answers: Vec<_> = answers.map(|answer| (answer.index, answer.error_code.0, answer.base_offset)).collect();
    assert_eq!(answers, [(0, 0, 1), (1, 0, 0), (2, 0, 1)]);
}

#[test]
fn waiting_batches_are_flushed_in_topics_that_flush_every_record() {
    let (broker, mut client, topic, id) = start(&[FOREVER], &[("flush.messages", "1")]);
    stripe(&broker, topic, id, 0..60, 0, 20);
    assert_in_order(&mut client, "striped", 60);
}

#[test]
fn the_brokers_clock_stamps_a_batch_when_it_is_appended() {
    let (broker, mut client, topic, id) = start(&[FOREVER], &[("message.timestamp.type", "LogAppendTime")]);
    let (mut early, mut probe) = (broker.client(), Probe::new(&broker));
    send(&mut early, topic, &one(id, 1));
    probe.wait(&mut early);
    let first = client.produce("striped", 0, &one(id, 0)).log_append_time_ms;
    let second = receive(&mut early).log_append_time_ms;
    assert_eq!(first, second, "they are appended together");
    let batches = client.fetch_batches("striped", 0);
    assert_eq!(batches.iter().map(|batch| batch.max_timestamp).collect::<Vec<_>>(), [Some(first); 2]);
}

/// The broker sends responses in the order of requests, so the response to a metadata request waits for these parked
/// batches. The broker must therefore time out their requests soon, and not only after `fullbore.reorder.wait.ms`.
#[test]
fn metadata_behind_an_out_of_order_batch_times_the_batch_out_soon() {
    for configs in [&[][..], &[("diskless.enable", "true")]] {
        let (broker, mut client, topic, id) = start(&[FOREVER], configs);
        let mut lane = broker.client();
        send(&mut lane, topic, &one(id, 1));
        send(&mut lane, topic, &one(id, 2));
        lane.send(&MetadataRequest::default(), METADATA);
        let late = [receive_error(&mut lane), receive_error(&mut lane)];
        assert_eq!(late, [ErrorCode::REQUEST_TIMED_OUT; 2], "{configs:?}");
        assert!(!lane.receive::<MetadataRequest>(METADATA).1.brokers.is_empty());
        // The requests have timed out, but their batches are still parked. A resent batch is therefore not parked a
        // second time.
        send(&mut lane, topic, &one(id, 1));
        send(&mut client, topic, &one(id, 0));
        assert_eq!((receive_offset(&mut client), receive_offset(&mut lane)), (0, 1), "{configs:?}");
        wait_until("the other one has had its turn", SOON, || client.latest("striped", 0) == 3);
        assert_in_order(&mut client, "striped", 3);
    }
}
