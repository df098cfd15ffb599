//! Tests that records keep their order and are neither lost nor duplicated, under faults of the network and the
//! cluster. Batches get random fates, connections end, leaders move, and a broker forgets all but one batch. The fates
//! can be repeated by their seed.

use crate::fake::{Announced, Fake, Fate};
use fullbore_producer::{Producer, ProducerRecord};
use fullbore_schedules::Random;
use fullbore_wire::ErrorCode;
use std::collections::HashMap;
use std::time::Duration;

const RECORDS: u32 = 400;
const PARTITIONS: i32 = 3;

fn fate(random: &mut Random) -> Fate {
    match random.below(24) {
        0 => Fate::Dropped,
        1 => Fate::ResponseLost,
        2 => Fate::Refused(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        3 => Fate::Refused(ErrorCode::NOT_ENOUGH_REPLICAS),
        4 => Fate::WrittenBut(ErrorCode::REQUEST_TIMED_OUT),
        5 => Fate::WrittenBut(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        6 => Fate::Refused(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
        _ => Fate::Normal,
    }
}

async fn disturb(fake: Fake, mut random: Random) {
    loop {
        tokio::time::sleep(Duration::from_millis(random.next() % 20)).await;
        match random.below(6) {
            0 => fake.cut(),
            1 | 2 => {
                let mut state = fake.lock();
                let partition = random.below(PARTITIONS as usize);
                state.leaders[partition] = 1 - state.leaders[partition];
                state.leader_epoch += 1;
            }
            3 => fake.lock().forget_all_but_the_newest(),
            _ => {}
        }
    }
}

async fn run(seed: u64, settings: &[(&str, &str)]) {
    run_against(seed, settings, [Announced::default(); 2]).await;
}

async fn run_against(seed: u64, settings: &[(&str, &str)], announced: [Announced; 2]) {
    let fake = Fake::start(2, PARTITIONS as usize).await;
    fake.lock().announced = announced.to_vec();
    let mut random = Random::new(seed);
    fake.script(move |_| fate(&mut random));
    let bootstrap = fake.bootstrap();
    let base = [
        ("bootstrap.servers", bootstrap.as_str()),
        ("linger.ms", "0"),
        ("retry.backoff.ms", "1"),
        ("retry.backoff.max.ms", "5"),
        ("reconnect.backoff.ms", "1"),
        ("reconnect.backoff.max.ms", "5"),
    ];
    let producer = Producer::from_properties(base.into_iter().chain(settings.iter().copied())).unwrap();
    let trouble = tokio::spawn(disturb(fake.clone(), Random::new(!seed)));
    let mut deliveries = Vec::new();
    for i in 0..RECORDS {
        let value = i.to_string();
        let record =
            ProducerRecord::new("t", value.as_bytes()).key(&[b'k'; 100]).partition((i % PARTITIONS as u32) as i32);
        deliveries.push(producer.send(record).await.unwrap());
        if i % 7 == 0 {
            // Waits until another batch has arrived, so that the records are spread over many batches.
            let arrived = fake.lock().seen.len();
            fake.until("something arrives", |state| state.seen.len() > arrived).await;
        }
    }
    for (i, delivery) in deliveries.into_iter().enumerate() {
        let settled = tokio::time::timeout(Duration::from_secs(60), delivery).await;
        let written = settled.unwrap_or_else(|_| panic!("seed {seed}: record {i} has no result")).unwrap();
        let log = fake.values(written.partition);
        let at = usize::try_from(written.offset).ok();
        assert!(at.is_none_or(|at| log[at] == i.to_string()), "seed {seed}: record {i} is not at {at:?}");
    }
    trouble.abort();
    if fake.seen(0)[0].stamp.is_idempotent() {
        check(&fake, seed);
    }
}

fn check(fake: &Fake, seed: u64) {
    let mut arrived: Vec<Vec<u8>> = fake.lock().seen.iter().map(|seen| seen.bytes.clone()).collect();
    let attempts = arrived.len();
    arrived.sort_unstable();
    arrived.dedup();
    assert!(arrived.len() < attempts, "seed {seed} tests nothing: no batch went again");
    for partition in 0..PARTITIONS {
        let expected: Vec<String> =
            (0..RECORDS).filter(|i| (i % PARTITIONS as u32) as i32 == partition).map(|i| i.to_string()).collect();
        assert_eq!(fake.values(partition), expected, "seed {seed} partition {partition}");
        // Batches with the same stamp must have the same bytes.
        let mut first = HashMap::new();
        for seen in fake.seen(partition) {
            let stamp = (seen.stamp.producer_id, seen.stamp.producer_epoch, seen.stamp.base_sequence);
            assert_eq!(first.entry(stamp).or_insert_with(|| seen.bytes.clone()), &seen.bytes, "seed {seed} {stamp:?}");
        }
    }
}

#[tokio::test]
async fn batches_of_many_records_arrive_once_and_in_order() {
    for seed in 0..12 {
        run(seed, &[]).await;
    }
}

#[tokio::test]
async fn batches_of_few_records_arrive_once_and_in_order() {
    for seed in 100..112 {
        let settings =
            [("batch.size", "64"), ("max.request.size", "1024"), ("max.in.flight.requests.per.connection", "12")];
        run(seed, &settings).await;
    }
}

#[tokio::test]
async fn compressed_batches_arrive_once_and_in_order() {
    for seed in 200..206 {
        run(seed, &[("compression.type", "zstd")]).await;
    }
}

#[tokio::test]
async fn batches_over_four_connections_arrive_once_and_in_order() {
    let settings = [("batch.size", "64"), ("max.request.size", "1024"), ("connections.per.broker", "4")];
    for seed in 400..408 {
        run(seed, &settings).await;
    }
}

#[tokio::test]
async fn striped_batches_arrive_once_and_in_order() {
    let settings = [("batch.size", "64"), ("max.request.size", "1024"), ("connections.per.broker", "4")];
    let striped = Announced { retain: 64, reorder: 32, ..Announced::default() };
    for seed in 500..508 {
        run_against(seed, &settings, [striped; 2]).await;
    }
    // The leader moves between a broker that parks out-of-order batches and one that refuses them.
    for seed in 510..516 {
        run_against(seed, &settings, [striped, Announced::default()]).await;
    }
}

#[tokio::test]
async fn without_idempotence_every_acknowledged_record_is_there_at_least_once() {
    for seed in 300..308 {
        run(seed, &[("acks", "1")]).await;
    }
}
