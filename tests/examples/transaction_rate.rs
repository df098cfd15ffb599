//! Transactions a second of producers that commit ten records of 100 bytes each time, one after the other.
//!
//! `FULLBORE_BIN=target/release/fullbore cargo run --release -p fullbore-tests --example transaction_rate --
//! PRODUCERS SECONDS FOLDER [KEY=VALUE...]` starts a broker in FOLDER, whose disk counts, with these settings:
//! `fullbore.transaction.flush=true` for commits that survive a power cut.

use fullbore_tests::{Broker, Client, Protocol, Transactional};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const TOPIC: &str = "t";
const PARTITIONS: i32 = 6;

static STOPS: AtomicBool = AtomicBool::new(false);
static COMMITTED: AtomicUsize = AtomicUsize::new(0);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [producers, seconds, folder, sets @ ..] = &arguments[..] else { panic!("PRODUCERS SECONDS FOLDER") };
    let (producers, seconds): (i32, u64) = (producers.parse().expect("a number"), seconds.parse().expect("a number"));
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let broker = Broker::start_in(&Path::new(folder).join(format!("rate-{}", std::process::id())), &sets);
    broker.client().create_topic(TOPIC, PARTITIONS, &[]);
    let start = |n| {
        let mut client = broker.client();
        std::thread::spawn(move || run(&mut client, n))
    };
    let running: Vec<_> = (0..producers).map(start).collect();
    std::thread::sleep(Duration::from_secs(1));
    let (began, before) = (Instant::now(), COMMITTED.load(Ordering::Relaxed));
    std::thread::sleep(Duration::from_secs(seconds));
    let (committed, elapsed) = (COMMITTED.load(Ordering::Relaxed) - before, began.elapsed());
    STOPS.store(true, Ordering::Relaxed);
    let mut latencies: Vec<Duration> = running.into_iter().flat_map(|thread| thread.join().expect("it ran")).collect();
    latencies.sort_unstable();
    let at = |share: usize| latencies.get(latencies.len() * share / 100).copied().unwrap_or_default();
    println!(
        "{producers} producers, {sets:?}: {:.0} transactions/s, EndTxn p50 {:.2} ms, p99 {:.2} ms",
        committed as f64 / elapsed.as_secs_f64(),
        at(50).as_secs_f64() * 1e3,
        at(99).as_secs_f64() * 1e3
    );
}

/// Commits until it is to stop, and returns what each EndTxn took.
fn run(client: &mut Client, n: i32) -> Vec<Duration> {
    let mut producer = Transactional::begin(client, &format!("rate-{n}"), Protocol::New);
    let values = vec!["x".repeat(100); 10];
    let mut latencies = Vec::new();
    while !STOPS.load(Ordering::Relaxed) {
        producer.write(client, TOPIC, n % PARTITIONS, &values);
        let began = Instant::now();
        producer.end(client, true);
        latencies.push(began.elapsed());
        COMMITTED.fetch_add(1, Ordering::Relaxed);
    }
    latencies
}
