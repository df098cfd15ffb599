//! Measures replication. To run: cargo test --release -p fullbore-broker --lib replication::tests::measure -- --ignored
//! --nocapture

use super::*;
use fullbore_client::tokio::Connection;
use std::time::{Duration, Instant};

/// Produces one record at a time. Returns the median and the 99th percentile of the latency, in microseconds.
async fn one_at_a_time(client: &Connection, acks: i16, records: usize) -> (u128, u128) {
    let mut took = Vec::with_capacity(records);
    for _ in 0..records {
        let began = Instant::now();
        produce(client, "t", 0, acks, batch(&[7; 100])).await.expect("acknowledged");
        took.push(began.elapsed().as_micros());
    }
    took.sort_unstable();
    (took[records / 2], took[records * 99 / 100])
}

#[ignore = "a measurement"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_record_at_a_time() {
    let cluster = Cluster::start(3, "").await;
    cluster.topic("t", 1, &[("min.insync.replicas", "3")]).await;
    let client = cluster.client(1).await;
    one_at_a_time(&client, -1, 2000).await;
    for round in 0..3 {
        let all = one_at_a_time(&client, -1, 5000).await;
        let one = one_at_a_time(&client, 1, 5000).await;
        println!("round {round}: p50 and p99 in us: acks=all {all:?}, acks=1 {one:?}");
    }
    cluster.stop().await;
}

/// Forwards connections to `to`, and delays each byte by `delay` in both directions.
fn relay(listener: tokio::net::TcpListener, to: String, delay: Duration) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = tokio::net::TcpStream::connect(&to).await else { return };
            for socket in [&near, &far] {
                socket.set_nodelay(true).expect("a socket");
            }
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            for (mut from, mut into) in [(near_in, far_out), (far_in, near_out)] {
                let (sender, mut waiting) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
                tokio::spawn(async move {
                    let mut buffer = vec![0; 1 << 18];
                    while let Ok(count @ 1..) = from.read(&mut buffer).await {
                        if sender.send((Instant::now() + delay, buffer[..count].to_vec())).is_err() {
                            return;
                        }
                    }
                });
                tokio::spawn(async move {
                    while let Some((due, bytes)) = waiting.recv().await {
                        tokio::time::sleep_until(due.into()).await;
                        if into.write_all(&bytes).await.is_err() {
                            return;
                        }
                    }
                });
            }
        }
    });
}

/// Produces `total` records of `size` bytes, with `window` of them in flight. Returns bytes per second, and the median
/// latency in microseconds.
async fn throughput(client: &Connection, acks: i16, size: usize, window: usize, total: usize) -> (f64, u128) {
    let began = Instant::now();
    let mut under_way = tokio::task::JoinSet::new();
    let (mut sent, mut took) = (0, Vec::new());
    while sent < total || !under_way.is_empty() {
        while sent < total && under_way.len() < window {
            let client = client.clone();
            sent += 1;
            under_way.spawn(async move {
                let began = Instant::now();
                produce(&client, "t", 0, acks, batch(&vec![7; size])).await.expect("acknowledged");
                began.elapsed().as_micros()
            });
        }
        took.push(under_way.join_next().await.expect("one is").expect("no panic"));
    }
    took.sort_unstable();
    ((total * size) as f64 / began.elapsed().as_secs_f64(), took[took.len() / 2])
}

#[ignore = "a measurement"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn follower_20_ms_away() {
    let mut cluster = Cluster::start(0, "").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let far = listener.local_addr().expect("bound");
    cluster.start_with(1, &format!("advertised.listeners=PLAINTEXT://{far}")).await;
    relay(listener, cluster.address(1), Duration::from_millis(10));
    cluster.start_one(2).await;
    cluster.topic("t", 1, &[("min.insync.replicas", "2")]).await;
    let client = cluster.client(1).await;
    throughput(&client, -1, 1000, 64, 2000).await;
    let paced = paced(&client, Duration::from_millis(1), 5000).await;
    println!("paced 1,000/s: p50 and p99 in us {paced:?}");
    for (size, window, total) in [(1000, 64, 5000), (16_384, 512, 20_000), (100_000, 64, 5000)] {
        let all = throughput(&client, -1, size, window, total).await;
        let one = throughput(&client, 1, size, window, total).await;
        println!(
            "{size} bytes, {window} under way: acks=all {:.1} MB/s, p50 {} us; acks=1 {:.1} MB/s, p50 {} us",
            all.0 / 1e6,
            all.1,
            one.0 / 1e6,
            one.1
        );
    }
    cluster.stop().await;
}

/// Produces a record every `every`. Returns the median and the 99th percentile of the latency, in microseconds.
async fn paced(client: &Connection, every: Duration, records: usize) -> (u128, u128) {
    let mut under_way = tokio::task::JoinSet::new();
    let mut next = tokio::time::interval(every);
    for _ in 0..records {
        next.tick().await;
        let client = client.clone();
        under_way.spawn(async move {
            let began = Instant::now();
            produce(&client, "t", 0, -1, batch(&[7; 100])).await.expect("acknowledged");
            began.elapsed().as_micros()
        });
    }
    let mut took = under_way.join_all().await;
    took.sort_unstable();
    (took[records / 2], took[records * 99 / 100])
}
