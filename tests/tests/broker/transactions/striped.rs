//! Many batches of one transaction are in flight, on one connection or over several.

use super::{DISKLESS, SOON, TOPIC, settled};
use crate::reorder::{FOREVER, PRODUCE, receive, receive_error};
use fullbore_tests::{
    Batch, Broker, Client, Protocol, Random, Transactional, topic_data, transactional_request, wait_until,
};
use fullbore_wire::apis::produce::{ProduceRequest, TopicProduceData};
use fullbore_wire::{ErrorCode, Uuid};
use std::collections::VecDeque;

/// Returns a batch of one record. The record's text has the sequence.
fn one(producer: &Transactional, sequence: i32) -> Batch {
    Batch::of(&[format!("record {sequence}")]).from_producer(producer.id, producer.epoch, sequence).transactional()
}

/// Returns a produce request that may be sent over any of several connections.
fn striped(producer: &Transactional, topic: Uuid, partition: i32, sequence: i32) -> ProduceRequest {
    let data = topic_data("", &[(partition, one(producer, sequence).bytes())]);
    ProduceRequest {
        topic_data: vec![TopicProduceData { topic_id: topic, ..data }],
        reorder: true,
        ..transactional_request(&producer.transactional_id, "", partition, Default::default())
    }
}

/// Sends the sequences from 0 on to both partitions over eight connections. Within a window, the order is random.
fn stripe(broker: &Broker, producer: &Transactional, topic: Uuid, count: i32, window: usize) {
    let mut random = Random::new(window as u64);
    let mut lanes: Vec<(Client, usize)> = (0..8).map(|_| (broker.client(), 0)).collect();
    let all: Vec<(i32, i32)> = (0..count).flat_map(|sequence| [(0, sequence), (1, sequence)]).collect();
    for chunk in all.chunks(2 * window) {
        let mut left = chunk.to_vec();
        while !left.is_empty() {
            let (partition, sequence) = left.swap_remove(random.below(left.len()));
            let (client, sent) = random.pick_mut(&mut lanes);
            client.send(&striped(producer, topic, partition, sequence), PRODUCE);
            *sent += 1;
        }
        for (client, sent) in &mut lanes {
            for _ in 0..std::mem::take(sent) {
                let response = receive(client);
                assert_eq!(response.error_code, ErrorCode::NONE, "{:?}", response.error_message);
            }
        }
    }
}

trait Pick {
    fn pick_mut<'a, T>(&mut self, of: &'a mut [T]) -> &'a mut T;
}

impl Pick for Random {
    fn pick_mut<'a, T>(&mut self, of: &'a mut [T]) -> &'a mut T {
        let index = self.below(of.len());
        &mut of[index]
    }
}

fn expected(count: i32) -> Vec<String> {
    (0..count).map(|sequence| format!("record {sequence}")).collect()
}

#[test]
fn batches_of_a_transaction_in_any_order_over_eight_connections_are_committed_in_order() {
    are_committed_in_order(&[]);
}

#[test]
fn batches_of_a_transaction_in_any_order_on_a_diskless_topic_are_committed_in_order() {
    are_committed_in_order(DISKLESS);
}

fn are_committed_in_order(configs: &[(&str, &str)]) {
    for (window, count) in [(5, 50), (64, 320)] {
        for protocol in Protocol::BOTH {
            let broker = Broker::start(&[FOREVER]);
            let mut client = broker.client();
            let topic = client.create_topic(TOPIC, 2, configs);
            let mut texts = Vec::new();
            for is_commit in [false, true, true] {
                let mut producer = Transactional::begin(&mut client, "striped", protocol);
                if protocol == Protocol::Old {
                    producer.add(&mut client, TOPIC, &[0, 1]);
                }
                stripe(&broker, &producer, topic, count, window);
                producer.end(&mut client, is_commit);
                if is_commit {
                    texts.extend(expected(count));
                }
                for partition in [0, 1] {
                    assert!(settled(&mut client, TOPIC, partition) == texts, "window {window}, {protocol:?}");
                }
            }
        }
    }
}

#[test]
fn windows_of_batches_in_flight_on_one_connection_are_committed_in_order() {
    for (window, protocol, configs) in [
        (5, Protocol::Old, &[][..]),
        (64, Protocol::New, &[]),
        (5, Protocol::Old, DISKLESS),
        (64, Protocol::New, DISKLESS),
    ] {
        let broker = Broker::start(&["max.idempotence.batches.to.retain=64"]);
        let mut client = broker.client();
        client.create_topic(TOPIC, 1, configs);
        let mut producer = Transactional::begin(&mut client, "window", protocol);
        if protocol == Protocol::Old {
            producer.add(&mut client, TOPIC, &[0]);
        }
        let mut sent = VecDeque::new();
        for sequence in 0..300 {
            let request = transactional_request("window", TOPIC, 0, one(&producer, sequence).bytes());
            client.send(&request, protocol.produce());
            sent.push_back(sequence);
            while sent.len() >= window || sequence == 299 && !sent.is_empty() {
                let mut response = client.receive::<ProduceRequest>(protocol.produce()).1;
                let response = response.responses.remove(0).partition_responses.remove(0);
                assert_eq!((response.error_code, response.base_offset), (ErrorCode::NONE, i64::from(sent[0])));
                sent.pop_front();
            }
        }
        producer.end(&mut client, true);
        assert_eq!(settled(&mut client, TOPIC, 0), expected(300));
    }
}

/// A batch is parked because an earlier one never arrives. Then the transaction ends.
#[test]
fn marker_refuses_waiting_out_of_order_batches_of_its_transaction() {
    [&[], DISKLESS].into_iter().for_each(marker_refuses_what_waits);
}

fn marker_refuses_what_waits(configs: &[(&str, &str)]) {
    let broker = Broker::start(&[FOREVER]);
    let mut client = broker.client();
    let topic = client.create_topic(TOPIC, 2, configs);
    let mut producer = Transactional::begin(&mut client, "parked", Protocol::New);
    client.send(&striped(&producer, topic, 0, 0), PRODUCE);
    assert_eq!(receive_error(&mut client), ErrorCode::NONE);
    let mut waiting = broker.client();
    waiting.send(&striped(&producer, topic, 0, 2), PRODUCE);
    let mut probe = broker.client();
    wait_until("the batch is parked", SOON, || {
        // Resends the first batch, which is acknowledged as a duplicate. By the time of this response, the broker has
        // most likely read the batch on the other connection.
        probe.send(&striped(&producer, topic, 0, 0), PRODUCE);
        receive_error(&mut probe) == ErrorCode::NONE
    });
    producer.end(&mut client, false);
    assert_ne!(receive_error(&mut waiting), ErrorCode::NONE);
    for sequence in [0, 1] {
        client.send(&striped(&producer, topic, 0, sequence), PRODUCE);
        assert_eq!(receive_error(&mut client), ErrorCode::NONE);
    }
    producer.end(&mut client, true);
    assert_eq!(settled(&mut client, TOPIC, 0), expected(2));
}

/// The first batches for the partitions arrive at once, each over its own connection. The coordinator must add all
/// partitions to the transaction.
#[test]
fn first_batches_to_many_partitions_at_once_are_all_added_to_the_transaction() {
    [&[], DISKLESS].into_iter().for_each(first_batches_are_all_added);
}

fn first_batches_are_all_added(configs: &[(&str, &str)]) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let topic = client.create_topic(TOPIC, 48, configs);
    let mut producer = Transactional::begin(&mut client, "wide", Protocol::New);
    for round in 1..=5 {
        let mut lanes: Vec<Client> = (0..48).map(|_| broker.client()).collect();
        for (partition, lane) in (0..).zip(&mut lanes) {
            lane.send(&striped(&producer, topic, partition, 0), PRODUCE);
        }
        assert!(lanes.iter_mut().all(|lane| receive_error(lane) == ErrorCode::NONE));
        let topics = client.describe_transaction("wide").topics;
        assert_eq!(topics.iter().map(|topic| topic.partitions.len()).sum::<usize>(), 48);
        producer.end(&mut client, true);
        assert!((0..48).all(|partition| settled(&mut client, TOPIC, partition).len() == round));
    }
}
