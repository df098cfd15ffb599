//! Measures how long commits, searches and polls for changes take.

use super::*;
use crate::index::CommitQuestion;

/// Prints the durations and asserts nothing. Run it with `--ignored --nocapture`.
#[test]
#[ignore = "measures"]
fn measure_commits_and_finds() {
    let mut opened = OpenedOnPostgres::new(1_600);
    let partitions = opened.partitions.clone();
    let mut took = Vec::new();
    for round in 0..20 {
        let id = opened.object();
        let at = |(at, partition): (usize, &DisklessPartitionId)| batch(*partition, at as u32 * 100, round * 10);
        let batches = partitions.iter().enumerate().map(at).collect();
        let started = Instant::now();
        opened.index.commit(&[UploadedObject { id, batches }], NOW).expect("committed");
        took.push(started.elapsed());
    }
    println!("1,600 partitions: {}", quantiles(&mut took));
    let mut took = Vec::new();
    for round in 0..500 {
        let id = opened.object();
        let at = |at: i32| by(8, batch(partitions[0], at as u32 * 100, (round * 8 + at) * 10));
        let started = Instant::now();
        opened.index.commit(&[UploadedObject { id, batches: (0..8).map(at).collect() }], NOW).expect("committed");
        took.push(started.elapsed());
    }
    println!("8 batches of one partition: {}", quantiles(&mut took));
    opened.back_end.database.run(&format!(
        "INSERT INTO fullbore.diskless_runs SELECT {}, n * 10, n, 0, {NOW}, batches
           FROM generate_series(1, 100000) AS n, (SELECT batches FROM fullbore.diskless_runs LIMIT 1) AS of",
        partitions[1] + 1_000_000
    ));
    let mut finder = opened.back_end.finder();
    let mut took = Vec::new();
    for round in 0..2_000 {
        let offset = (round * 7_919 % 100_000) * 10 + 13;
        let started = Instant::now();
        assert_eq!(finder.runs_from(partitions[1] + 1_000_000, offset, 16).expect("read")[0].base_offset, offset - 3);
        took.push(started.elapsed());
    }
    println!("runs_from of 100,000: {}", quantiles(&mut took));
    let mut changes = opened.back_end.broker(2).2;
    changes.changed().expect("told");
    let mut took = Vec::new();
    for _ in 0..500 {
        let started = Instant::now();
        changes.changed().expect("told");
        took.push(started.elapsed());
    }
    println!("changed, nothing: {}", quantiles(&mut took));
}

/// There are 200 partitions with 50 producers each, and 128 batches are retained of every producer. This makes
/// 1,280,000 rows.
#[test]
#[ignore = "measures"]
fn measure_reads_and_removals_of_rows_of_very_many_producers() {
    let mut opened = OpenedOnPostgres::new(200);
    let partitions = opened.partitions.clone();
    opened.back_end.database.run(&format!(
        "INSERT INTO fullbore.diskless_producers (partition, base_offset, producer_id, written_ms, batches)
           SELECT id, n * 10, 100 + n % 50, {NOW},
             int2send(0::int2) || int4send((n / 50 * 10)::int4) || int4send(10) || int8send(n * 10) || int8send({NOW})
           FROM fullbore.diskless_partitions, generate_series(0, 6399) AS n;
         UPDATE fullbore.diskless_partitions SET next_offset = 64000; ANALYZE fullbore.diskless_producers"
    ));
    let started = Instant::now();
    let question = CommitQuestion { partitions: partitions.iter().map(|id| (*id, 0)).collect(), objects: Vec::new() };
    let found = opened.index.store.begin(&question);
    opened.index.store.abandon();
    println!("in one question: {:?}, {:?}", found.map(|found| found.producers.len()), started.elapsed());
    let at = |(at, partition): (usize, &DisklessPartitionId)| batch(*partition, at as u32 * 100, 0);
    let uploaded = UploadedObject { id: opened.object(), batches: partitions.iter().enumerate().map(at).collect() };
    let started = Instant::now();
    let answer = opened.index.commit(&[uploaded], NOW).expect("committed");
    println!("a commit in pieces: {} rows, {:?}", answer.producers.len(), started.elapsed());
    opened.index.delete(TOPIC, &partitions).expect("deleted");
    let (mut took, begun) = (Vec::new(), Instant::now());
    loop {
        let started = Instant::now();
        let has_more = opened.index.tidy(256, NOW).expect("tidied");
        took.push(started.elapsed());
        if !has_more {
            break;
        }
    }
    println!("removed within {:?}, in {} pieces: {}", begun.elapsed(), took.len(), quantiles(&mut took));
}

/// Searches among 100,000 aborted transactions of a partition. The later rounds have a transaction that stays open.
#[test]
#[ignore = "measures"]
fn measure_finds_of_aborted_transactions() {
    for (stable, is_analyzed) in [("last_offset + 1", true), ("5", true), ("5", false)] {
        let opened = OpenedOnPostgres::new(1);
        opened.back_end.database.run(&format!(
            "INSERT INTO fullbore.diskless_aborted SELECT 1, last_offset, last_offset - 9, {stable}, 7, 4
               FROM (SELECT n * 10 + 9 AS last_offset FROM generate_series(0, 99999) AS n) AS of; {}",
            if is_analyzed { "ANALYZE fullbore.diskless_aborted" } else { "" }
        ));
        let mut finder = opened.back_end.finder();
        for (length, count) in [(1_000, 10_001), (1_000_000, 512)] {
            let mut took = Vec::new();
            for number in 0..1_000 {
                let start = number * 7_919 % 100_000 * 10;
                let started = Instant::now();
                assert!(finder.aborted(1, start..start + length, count).expect("read").transactions.len() <= 513);
                took.push(started.elapsed());
            }
            let of = format!("{length} offsets, stable up to {stable}, analyzed {is_analyzed}");
            println!("aborted among 100,000, {of}: {}", quantiles(&mut took));
        }
    }
}

fn quantiles(took: &mut [Duration]) -> String {
    took.sort_unstable();
    let at = |part: usize| took[(took.len() - 1) * part / 100];
    format!("min {:?}, p50 {:?}, p99 {:?}, max {:?}", took[0], at(50), at(99), took[took.len() - 1])
}
