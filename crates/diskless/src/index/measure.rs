//! Measures the index of a single broker. Run it with
//! `cargo test --release -p fullbore-diskless --lib index::measure -- --ignored --nocapture`.
//!
//! The index file is in the temporary directory (TMPDIR). Each commit waits for the disk of that directory.

use std::time::Instant;

use fullbore_rules::commit::{BatchKind, ObjectBatch};
use fullbore_rules::sequence::Stamp;
use fullbore_wire::Uuid;

use super::*;

const NOW: i64 = 1_700_000_000_000;
/// Number of partitions in the published measurements of Inkless, which is Kafka with diskless topics.
const PARTITIONS: i32 = 1600;
const COMMITS: usize = 200;
const FINDS: usize = 20_000;
/// Maximum number of extents that a reader behind the log end requests at a time.
const RUNS_FOUND: usize = 24;
const RECORDS: i32 = 10;

/// Formats the median, the 99th percentile and the maximum in milliseconds.
fn summary(mut took: Vec<f64>) -> String {
    took.sort_unstable_by(f64::total_cmp);
    let (p50, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    format!("p50 {p50:.3} ms, p99 {p99:.3} ms, max {:.3} ms", took[took.len() - 1])
}

fn ms_since(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e3
}

/// An index to which the test commits objects one by one. Each object has a batch for every partition, and each
/// partition has its own producer.
struct Commits {
    index: Index<SqliteIndex>,
    partitions: Vec<DisklessPartitionId>,
    made: i32,
}

impl Commits {
    fn one(&mut self) -> f64 {
        let id = self.index.store.register(1, NOW).expect("registered").remove(0);
        let batch = |(position, partition): (u32, &DisklessPartitionId)| {
            let base_sequence = self.made * RECORDS;
            let stamp = Stamp { producer_id: *partition, producer_epoch: 0, base_sequence, record_count: RECORDS };
            ObjectBatch {
                partition: *partition,
                position,
                size: 1000,
                stamp,
                max_timestamp: NOW,
                kind: BatchKind::Plain,
                confirmation: None,
            }
        };
        let batches = (0..).step_by(1000).zip(&self.partitions).map(batch).collect();
        let object = UploadedObject { id, batches };
        let began = Instant::now();
        let answer = self.index.commit(&[object], NOW).expect("committed");
        let took = ms_since(began);
        let is_appended = |verdict: &CommitVerdict| matches!(verdict, CommitVerdict::Appended { .. });
        assert!(answer.verdicts[0].iter().all(is_appended), "each batch is appended");
        self.made += 1;
        // Run the GC, as the index thread does between commits.
        while self.index.tidy(RUNS_FOUND, NOW).expect("tidied") {}
        took
    }

    fn runs(&self) -> i64 {
        i64::from(self.made) * i64::from(PARTITIONS)
    }
}

/// Runs searches at random positions and returns their durations.
async fn finds(finder: &RunFinder, partitions: &[DisklessPartitionId], end: i64) -> Vec<f64> {
    let mut took = Vec::with_capacity(FINDS);
    let mut place = 1_u64;
    for _ in 0..FINDS {
        // Knuth's multiplier for random numbers, of which only the upper bits are random enough.
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let partition = partitions[(place >> 33) as usize % partitions.len()];
        let offset = ((place >> 17) % end.unsigned_abs()).cast_signed();
        let began = Instant::now();
        let runs = finder.runs_from(partition, offset, RUNS_FOUND).await.expect("read");
        took.push(ms_since(began));
        assert!(runs.first().is_some_and(|run| run.base_offset <= offset && offset < run.end_offset()), "found");
    }
    took
}

#[ignore = "a measurement"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_of_many_partitions_and_finds() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let mut store = SqliteIndex::open(directory.path()).expect("made");
    let rows = store.create("topic", Uuid([1; 16]), PARTITIONS).expect("made");
    let partitions: Vec<_> = rows.iter().map(|row| row.id).collect();
    let mut commits = Commits { index: Index::new(store, 128), partitions: partitions.clone(), made: 0 };
    let took = (0..COMMITS).map(|_| commits.one()).collect();
    println!("commit of {PARTITIONS} partitions: {}", summary(took));
    let finder = RunFinder::open(directory.path()).expect("opened");
    let end = i64::from(commits.made * RECORDS);
    finds(&finder, &partitions, end).await;
    let alone = finds(&finder, &partitions, end).await;
    println!("find among {} runs: {}", commits.runs(), summary(alone));
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    let committing = tokio::task::spawn_blocking(move || {
        let mut took = Vec::new();
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            took.push(commits.one());
        }
        (took, commits.runs())
    });
    let beside = finds(&finder, &partitions, end).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let (took, runs) = committing.await.expect("no panic");
    println!("find beside commits one after the other, up to {runs} runs: {}", summary(beside));
    println!("commit of {PARTITIONS} partitions beside finds one after the other: {}", summary(took));
}

/// Searches among 100,000 aborted transactions of a partition. The second round has a transaction that stays open.
#[ignore = "a measurement"]
#[tokio::test]
async fn aborted_transactions_of_one_partition() {
    for stable in [None, Some(5)] {
        let directory = tempfile::tempdir().expect("temporary directory");
        SqliteIndex::open(directory.path()).expect("made").add_aborted(100_000, stable);
        let finder = RunFinder::open(directory.path()).expect("opened");
        for (length, count) in [(1_000, 10_001), (1_000_000, 512)] {
            let mut took = Vec::new();
            for number in 0..2_000 {
                let start = number * 7_919 % 100_000 * 10;
                let began = Instant::now();
                let found = finder.aborted(1, start..start + length, count).await.expect("read");
                took.push(ms_since(began));
                assert!(found.transactions.len() <= 513, "{} found", found.transactions.len());
            }
            println!("aborted among 100,000, {length} offsets, stable up to {stable:?}: {}", summary(took));
        }
    }
}
