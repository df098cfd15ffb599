//! Failovers of many partitions, measured on a PostgreSQL at full speed and at a quarter of it:
//! `cargo test --release -p fullbore-broker --lib membership::tests::measure -- --ignored --nocapture`

use super::*;
use crate::control::tests::start_in;
use crate::control::{CreateTopic, CreateTopics};
use fullbore_tests::postgres::PostgresServer;
use std::sync::atomic::{AtomicBool, Ordering};

/// Of a tenth of a second, as cpulimit has it, the database runs this part.
const ROUND: Duration = Duration::from_millis(100);
const RUNS: Duration = Duration::from_millis(25);
const SESSION_MS: i64 = 2_000;
const PER_TOPIC: i32 = 1_000;
/// A failover that takes longer is printed as such.
const PATIENCE: Duration = Duration::from_secs(120);

/// Stops and continues all processes of the server by turns, while it lives.
struct Slowed(Arc<AtomicBool>, Option<std::thread::JoinHandle<Duration>>, Instant);

impl Slowed {
    fn new(server: &'static PostgresServer) -> Slowed {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let work = move || {
            let mut ran = Duration::ZERO;
            while !told.load(Ordering::Relaxed) {
                server.freeze();
                std::thread::sleep(ROUND - RUNS);
                server.thaw();
                let began = Instant::now();
                std::thread::sleep(RUNS);
                ran += began.elapsed();
            }
            ran
        };
        Slowed(is_over, Some(std::thread::spawn(work)), Instant::now())
    }

    fn end(mut self) {
        self.0.store(true, Ordering::Relaxed);
        let ran = self.1.take().expect("once").join().expect("no panic");
        println!("  the database ran {:.0} % of the time", 100.0 * ran.as_secs_f64() / self.2.elapsed().as_secs_f64());
    }
}

fn has_left(image: &Image, id: i32) -> bool {
    let gone = |of: &fullbore_rules::replica::PartitionRegistration| of.leader != Some(id) && !of.isr.contains(&id);
    image.topics().all(|topic| topic.partitions.iter().all(|of| gone(of)))
}

/// Until all brokers show this, from now on.
async fn until_shown(controls: &[&Control], is_so: impl Fn(&Image) -> bool) -> String {
    let began = Instant::now();
    for control in controls {
        let mut images = control.watch();
        if tokio::time::timeout(PATIENCE.saturating_sub(began.elapsed()), images.wait_for(|image| is_so(image)))
            .await
            .is_err()
        {
            return format!("not within {PATIENCE:?}");
        }
    }
    format!("{:.2} s", began.elapsed().as_secs_f64())
}

async fn measure(server: &'static PostgresServer, partitions: i32, is_slowed: bool) {
    let database = server.database();
    let more = format!("broker.session.timeout.ms={SESSION_MS}\n");
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("tempdir")).collect();
    let start = |id: i32| start_in(folders[id as usize - 1].path(), &server.url(&database), id, &more);
    let mut opened: Vec<_> = (1..=3).map(|id| start(id).expect("opens")).collect();
    for first in (0..partitions / PER_TOPIC).step_by(5) {
        let topic =
            |number| CreateTopic { num_partitions: PER_TOPIC, replication_factor: 3, ..wanted(&format!("t{number}")) };
        let topics = (first..(first + 5).min(partitions / PER_TOPIC)).map(topic).collect();
        let created = opened[0].control.create_topics(CreateTopics { topics, validate_only: false }).await;
        assert!(created.iter().all(Result::is_ok), "{created:?}");
    }
    server.run(&database, "CHECKPOINT");
    println!("{partitions} partitions, {}:", if is_slowed { "a quarter of the speed" } else { "full speed" });
    let mut controls: Vec<Control> = opened.iter().map(|opened| opened.control.clone()).collect();
    let stops: Vec<_> = controls[..2]
        .iter()
        .zip(1..)
        .map(|(control, id)| {
            let (stop, ended) = (watch::Sender::new(false), Arc::new(watch::Sender::new(None)));
            let membership = new_member(control, id, SESSION_MS);
            tokio::spawn(membership.run(control.beats().expect("a cluster"), stop.subscribe(), ended));
            stop
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(2 * SESSION_MS as u64)).await;
    let slowed = is_slowed.then(|| Slowed::new(server));
    // A kill: heartbeats end without a word.
    controls.pop();
    opened.pop();
    tokio::time::sleep(Duration::from_millis(SESSION_MS as u64)).await;
    let survivors = [&controls[0], &controls[1]];
    println!(
        "  a broker dies, from the end of its session: fenced after {}",
        until_shown(&survivors, is_fenced(3)).await
    );
    println!("    and nothing left to it after {} more", until_shown(&survivors, |image| has_left(image, 3)).await);
    let began = Instant::now();
    let third = start(3);
    println!(
        "  it starts: {} after {:.2} s",
        if third.is_ok() { "registered" } else { "failed" },
        began.elapsed().as_secs_f64()
    );
    let began = Instant::now();
    hand_over_all(&controls[1]).await;
    let is_left = has_left(&controls[0].image(), 2);
    println!(
        "  another stops: {} after {:.2} s",
        if is_left { "handed over" } else { "not handed over" },
        began.elapsed().as_secs_f64()
    );
    slowed.into_iter().for_each(Slowed::end);
    for stop in &stops {
        stop.send_replace(true);
    }
    drop((third, opened, controls));
    server.run("postgres", &format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)"));
}

#[ignore = "a measurement"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_partitions_fail_over() {
    let server = Box::leak(Box::new(PostgresServer::start()));
    let counts = std::env::var("PARTITIONS").unwrap_or_else(|_| "10000,100000,200000".to_owned());
    for partitions in counts.split(',').map(|count| count.parse().expect("a number")) {
        for is_slowed in [false, true] {
            measure(server, partitions, is_slowed).await;
        }
    }
}
