//! Tests brokers that hang completely or for some APIs, and unreachable partitions. Reachable partitions must continue,
//! and every record must get its result in time.

use crate::fake::Fake;
use fullbore_producer::{Delivery, Producer, ProducerRecord, SendError};
use fullbore_wire::api::ApiKey;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// A time limit whose only purpose is to end a test that hangs.
const LONG: Duration = Duration::from_secs(60);

fn producer(bootstrap: &str, more: &[(&str, &str)]) -> Producer {
    let base = [("bootstrap.servers", bootstrap), ("linger.ms", "0"), ("retry.backoff.ms", "5")];
    Producer::from_properties(base.into_iter().chain(more.iter().copied())).unwrap()
}

/// Returns addresses that accept connections and never respond.
async fn silent(count: usize) -> Vec<String> {
    let mut addresses = Vec::new();
    for _ in 0..count {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        addresses.push(listener.local_addr().unwrap().to_string());
        tokio::spawn(async move {
            let mut accepted = Vec::new();
            while let Ok(socket) = listener.accept().await {
                accepted.push(socket);
            }
        });
    }
    addresses
}

async fn send(producer: &Producer, partition: i32, value: &[u8]) -> Delivery {
    producer.send(ProducerRecord::new("t", value).partition(partition)).await.unwrap()
}

async fn in_time<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, event).await.unwrap_or_else(|_| panic!("{what} takes more than {LONG:?}"))
}

#[tokio::test]
async fn bootstrap_servers_hang_one_that_works_is_reached() {
    let fake = Fake::start(1, 1).await;
    let mut servers = silent(3).await;
    servers.push(fake.bootstrap());
    let producer = producer(&servers.join(","), &[]);
    let delivery = in_time("the topic", send(&producer, 0, b"v")).await;
    in_time("the record", delivery).await.unwrap();
}

#[tokio::test]
async fn brokers_without_response_to_metadata_hang_another_is_reached() {
    let fake = Fake::start(5, 1).await;
    let producer = producer(&fake.bootstrap(), &[("request.timeout.ms", "2000"), ("delivery.timeout.ms", "60000")]);
    in_time("the first", send(&producer, 0, b"0").await).await.unwrap();
    // The leader hangs. The other brokers, except the last one, hang when they get a metadata request.
    fake.silence(|broker, api| broker == 0 || (broker < 4 && api == ApiKey::Metadata));
    (fake.lock().leaders[0], fake.lock().leader_epoch) = (4, 1);
    in_time("the second", send(&producer, 0, b"1").await).await.unwrap();
    assert_eq!(fake.values(0), ["0", "1"]);
}

#[tokio::test]
async fn every_broker_hangs_delivery_timeout_is_kept() {
    let fake = Fake::start(1, 1).await;
    let mut servers = vec![fake.bootstrap()];
    servers.extend(silent(12).await);
    let timeouts = [("request.timeout.ms", "4000"), ("delivery.timeout.ms", "4500")];
    let producer = producer(&servers.join(","), &timeouts);
    in_time("the first", send(&producer, 0, b"0").await).await.unwrap();
    fake.silence(|_, _| true);
    let started = Instant::now();
    in_time("the second", send(&producer, 0, b"1").await).await.unwrap_err();
    // This later record was not sent at all.
    in_time("the third", send(&producer, 0, b"2").await).await.unwrap_err();
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_broker_that_takes_nothing_more_without_acks_is_left_after_the_request_timeout() {
    let fake = Fake::start(1, 1).await;
    let settings = [("acks", "0"), ("request.timeout.ms", "1000"), ("delivery.timeout.ms", "60000")];
    let producer = producer(&fake.bootstrap(), &settings);
    in_time("the first", send(&producer, 0, b"0").await).await.unwrap();
    // From now on the broker does not read from the connection. The first requests still fit into the system's buffers
    // and count as written.
    fake.until("a connection", |state| state.connections[0] > 0).await;
    let used = 0..fake.lock().connections[0];
    fake.lock().stalled.extend(used);
    let value = vec![b'v'; 1_000_000];
    let mut deliveries = Vec::new();
    for _ in 0..28 {
        deliveries.push(in_time("memory", send(&producer, 0, &value)).await);
    }
    for delivery in deliveries {
        in_time("a result", delivery).await.unwrap();
    }
}

#[tokio::test]
async fn unreachable_partition_leaves_memory_to_the_others() {
    let fake = Fake::start(2, 2).await;
    fake.lock().leaders = vec![0, 1];
    let limits = [("batch.size", "1024"), ("max.request.size", "4096"), ("buffer.memory", "262144")];
    let producer = producer(&fake.bootstrap(), &limits);
    for partition in [0, 1] {
        in_time("the first", send(&producer, partition, b"0").await).await.unwrap();
    }
    fake.silence(|broker, _| broker == 1);
    let value = [b'v'; 900];
    let mut stuck = Vec::new();
    loop {
        match producer.try_send(ProducerRecord::new("t", &value).partition(1)) {
            Ok(delivery) => stuck.push(delivery),
            Err(error) => break assert_eq!(error, SendError::Full),
        }
    }
    assert!(stuck.len() > 140, "it may have more than half of the memory: {}", stuck.len());
    for i in 0..200 {
        in_time(&format!("record {i}"), send(&producer, 0, &value).await).await.unwrap();
    }
    // Records without a fixed partition go to one that has memory.
    for i in 0..200 {
        let record = ProducerRecord::new("t", &value);
        let delivery = in_time(&format!("room for record {i}"), producer.send(record)).await.unwrap();
        assert_eq!(delivery.partition(), 0);
    }
}

#[test]
fn runtime_of_callers_ends_during_sends_other_callers_continue() {
    let (staying, leaving) = (Runtime::new().unwrap(), Runtime::new().unwrap());
    let fake = staying.block_on(Fake::start(1, 1));
    let limits = [("batch.size", "1024"), ("max.request.size", "4096"), ("buffer.memory", "65536")];
    let producer = Arc::new(producer(&fake.bootstrap(), &limits));
    staying.block_on(async {
        in_time("the first", send(&producer, 0, b"0").await).await.unwrap();
    });
    fake.hold(true);
    let value = [b'v'; 900];
    let mut taken = Vec::new();
    loop {
        match producer.try_send(ProducerRecord::new("t", &value).partition(0)) {
            Ok(delivery) => taken.push(delivery),
            Err(error) => break assert_eq!(error, SendError::Full),
        }
    }
    // Some callers wait for memory, others for metadata, for results or for a flush. Each task increments `ended` when
    // its call returns.
    let ended = Arc::new(AtomicUsize::new(0));
    let sends = |runtime: &Runtime| {
        let (producer, ended) = (producer.clone(), ended.clone());
        runtime.spawn(async move {
            send(&producer, 0, &[b'v'; 900]).await.await.unwrap();
            ended.fetch_add(1, Ordering::SeqCst);
        })
    };
    let mut kept = Vec::new();
    for _ in 0..20 {
        sends(&leaving);
        kept.push(sends(&staying));
    }
    let requesting = producer.clone();
    leaving.spawn(async move { requesting.partitions("nowhere").await });
    for delivery in taken.split_off(taken.len() / 2) {
        leaving.spawn(delivery);
    }
    let flushing = producer.clone();
    leaving.spawn(async move { flushing.flush().await });
    leaving.block_on(tokio::task::yield_now());
    leaving.shutdown_timeout(LONG);
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    fake.hold(false);
    staying.block_on(async {
        for task in kept {
            in_time("a send from the other runtime", task).await.unwrap();
        }
        for delivery in taken {
            in_time("a result", delivery).await.unwrap();
        }
        in_time("the last", send(&producer, 0, b"1").await).await.unwrap();
        in_time("flushing", producer.flush()).await;
        let producer = Arc::into_inner(producer).expect("nobody else has it");
        in_time("closing", producer.close(Duration::MAX)).await;
    });
}

#[tokio::test]
async fn close_without_a_limit_waits_for_the_records() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake.bootstrap(), &[]);
    let delivery = send(&producer, 0, b"v").await;
    in_time("closing", producer.close(Duration::MAX)).await;
    delivery.await.unwrap();
}

#[tokio::test]
async fn flushing_and_closing_end_while_a_partition_is_unreachable() {
    let fake = Fake::start(2, 2).await;
    fake.lock().leaders = vec![0, 1];
    let timeouts = [("request.timeout.ms", "1000"), ("delivery.timeout.ms", "3000")];
    let producer = producer(&fake.bootstrap(), &timeouts);
    for partition in [0, 1] {
        in_time("the first", send(&producer, partition, b"0").await).await.unwrap();
    }
    fake.silence(|broker, _| broker == 1);
    let (reached, unreached) = (send(&producer, 0, b"1").await, send(&producer, 1, b"1").await);
    in_time("flushing", producer.flush()).await;
    assert!(reached.try_result().unwrap().is_ok());
    assert!(unreached.try_result().unwrap().is_err());
    let last = send(&producer, 1, b"2").await;
    in_time("closing", producer.close(Duration::from_millis(100))).await;
    assert!(last.try_result().unwrap().is_err());
}

#[tokio::test]
async fn leader_hangs_batches_move_once_another_broker_leads() {
    let fake = Fake::start(3, 2).await;
    let settings = [("request.timeout.ms", "600000"), ("delivery.timeout.ms", "1200000")];
    let producer = producer(&fake.bootstrap(), &settings);
    fake.lock().leaders = vec![0, 0];
    for partition in 0..2 {
        in_time("the first", send(&producer, partition, b"0").await).await.unwrap();
    }
    fake.silence(|broker, _| broker == 0);
    let deliveries = [send(&producer, 0, b"1").await, send(&producer, 1, b"1").await];
    // At first the batches do not move to another broker, because the hung broker still leads in the metadata that the
    // producer fetches.
    fake.until("somebody else is asked", |state| state.connections[1..].iter().any(|count| *count > 0)).await;
    (fake.lock().leaders, fake.lock().leader_epoch) = (vec![1, 2], 1);
    for delivery in deliveries {
        in_time("what hung", delivery).await.unwrap();
    }
    assert_eq!([fake.values(0), fake.values(1)], [["0", "1"], ["0", "1"]]);
}

#[tokio::test]
async fn leader_hangs_a_single_request_moves_too() {
    let fake = Fake::start(2, 1).await;
    let settings = [("request.timeout.ms", "600000"), ("delivery.timeout.ms", "1200000")];
    let producer = producer(&fake.bootstrap(), &settings);
    fake.lock().leaders = vec![0];
    in_time("the first", send(&producer, 0, b"0").await).await.unwrap();
    fake.silence(|broker, _| broker == 0);
    let delivery = send(&producer, 0, b"1").await;
    // The hung broker sends no response, and no further record is sent. Only the timer for overdue responses can now
    // wake the task of the broker.
    fake.until("somebody else is asked", |state| state.connections[1] > 0).await;
    (fake.lock().leaders, fake.lock().leader_epoch) = (vec![1], 1);
    in_time("what hung", delivery).await.unwrap();
    assert_eq!(fake.values(0), ["0", "1"]);
}

/// Returns a producer that has a record for broker 1 and connects to it. Broker 1 hangs during the handshake.
async fn connecting_to_a_leader_that_hangs(fake: &Fake) -> (Producer, Delivery) {
    let settings = [("request.timeout.ms", "600000"), ("delivery.timeout.ms", "1200000")];
    let producer = producer(&fake.bootstrap(), &settings);
    fake.lock().leaders = vec![0];
    in_time("the first", send(&producer, 0, b"0").await).await.unwrap();
    // Broker 1 still accepts connections, as the operating system of a hung broker does.
    fake.silence(|broker, _| broker == 1);
    (fake.lock().leaders, fake.lock().leader_epoch) = (vec![1], 1);
    let delivery = send(&producer, 0, b"1").await;
    fake.until("it is connected to", |state| state.connections[1] > 0).await;
    (producer, delivery)
}

#[tokio::test]
async fn leader_hangs_in_the_handshake_batches_move_once_another_leads() {
    let fake = Fake::start(3, 1).await;
    let (_producer, delivery) = connecting_to_a_leader_that_hangs(&fake).await;
    (fake.lock().leaders, fake.lock().leader_epoch) = (vec![2], 2);
    in_time("the second", delivery).await.unwrap();
    assert_eq!(fake.values(0), ["0", "1"]);
}

#[tokio::test]
async fn a_producer_that_connects_to_a_leader_that_hangs_closes_in_time() {
    let fake = Fake::start(2, 1).await;
    let (producer, delivery) = connecting_to_a_leader_that_hangs(&fake).await;
    in_time("closing", producer.close(Duration::from_millis(100))).await;
    assert!(in_time("its result", delivery).await.is_err());
}
