//! Measures what many transactional ids cost: the broker's memory, and the time from a start until all ids are served.
//!
//! Run it with `cargo run --release -p fullbore-bench --example transactional_ids -- [IDS] [OPEN]`, with
//! `FULLBORE_BIN=target/release/fullbore` in the environment. It creates IDS (100,000) transactional ids by
//! InitProducerId, and opens a transaction of OPEN (1,000) of them. Then it restarts the broker twice, first after an
//! orderly stop and then after a kill, and prints how long each restart takes.

use fullbore_tests::{Broker, Client, Protocol, Transactional, transactional_request};
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::apis::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use fullbore_wire::{ErrorCode, Text};
use std::time::{Duration, Instant};

const TOPIC: &str = "t";
const PARTITIONS: i32 = 4;
/// How many requests are in flight at a time.
const WINDOW: usize = 500;
const VERSION: i16 = 5;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let (ids, open) = (numbers.next().unwrap_or(100_000), numbers.next().unwrap_or(1_000));
    let mut broker = Broker::start(&["fullbore.connection.requests.max=1000", "fullbore.admin.listener=127.0.0.1:0"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, PARTITIONS, &[]);
    wait_for_answers(&mut client);
    let before = broker.rss();
    let began = Instant::now();
    let producers = begin_all(&mut client, ids);
    println!("{ids} ids made in {:.2} s", began.elapsed().as_secs_f64());
    open_some(&mut client, &producers[..open]);
    println!("memory: {} KiB before, {} KiB more", before / 1024, broker.rss().saturating_sub(before) / 1024);
    let pages = (0..5).map(|_| {
        let began = Instant::now();
        broker.admin_page("/metrics");
        began.elapsed().as_micros()
    });
    println!("metrics page: {} us at best", pages.min().unwrap_or(0));
    for (how, end) in [("stop", Broker::stop as fn(&mut Broker)), ("kill -9", Broker::kill)] {
        end(&mut broker);
        let began = Instant::now();
        broker.restart();
        let started = began.elapsed();
        wait_for_answers(&mut broker.client());
        println!(
            "after {how}: started in {:.0} ms, all ids served {:.0} ms after that; {} KiB",
            started.as_secs_f64() * 1e3,
            (began.elapsed() - started).as_secs_f64() * 1e3,
            broker.rss() / 1024
        );
    }
}

fn init(id: &str) -> InitProducerIdRequest {
    InitProducerIdRequest {
        transactional_id: Some(Text::from(id)),
        transaction_timeout_ms: 900_000,
        producer_id: -1,
        producer_epoch: -1,
        ..Default::default()
    }
}

fn name(n: usize) -> String {
    format!("an-application-with-a-name-{n:06}")
}

/// Creates ids, with [`WINDOW`] requests in flight.
fn begin_all(client: &mut Client, ids: usize) -> Vec<(i64, i16)> {
    let mut producers = Vec::with_capacity(ids);
    for n in 0..ids + WINDOW {
        if n < ids {
            client.send(&init(&name(n)), VERSION);
        }
        if n >= WINDOW.min(ids) && producers.len() < ids {
            let (_, response): (_, InitProducerIdResponse) = client.receive::<InitProducerIdRequest>(VERSION);
            assert_eq!(response.error_code, ErrorCode::NONE);
            producers.push((response.producer_id, response.producer_epoch));
        }
    }
    producers
}

/// Writes a record in a transaction of each of these producers, and leaves the transactions open.
fn open_some(client: &mut Client, producers: &[(i64, i16)]) {
    for (n, &(id, epoch)) in producers.iter().enumerate() {
        let mut producer = Transactional::resume(&name(n), Protocol::New, id, epoch);
        let partition = i32::try_from(n).expect("small") % PARTITIONS;
        let batch = producer.batch(TOPIC, partition, &["v"]);
        let request = transactional_request(&name(n), TOPIC, partition, batch.bytes());
        let response = client.call(&request, Protocol::New.produce());
        assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::NONE);
    }
}

/// Waits until an id of every partition of `__transaction_state` is served.
fn wait_for_answers(client: &mut Client) {
    for n in 0..300 {
        let id = format!("probe-{n}");
        let began = Instant::now();
        loop {
            let coordinator_keys = vec![Text::from(id.as_str())];
            client.call(&FindCoordinatorRequest { key_type: 1, coordinator_keys, ..Default::default() }, 4);
            if client.call(&init(&id), VERSION).error_code == ErrorCode::NONE {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{id} is not served");
        }
    }
}
