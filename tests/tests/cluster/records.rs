//! Records that go out while something befalls the cluster, and what is said of them afterwards.

use fullbore_tests::{Broker, Cluster};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Keys, each of which has an order of its own.
const KEYS: usize = 20;
/// Between two records.
const PACE: Duration = Duration::from_micros(500);

/// Produces with acks=all and idempotence while `befalls` goes on, and then holds the cluster to what was promised: every record once
/// and in order, and the same bytes on every replica.
pub fn produced_while(cluster: &mut Cluster, topic: &str, befalls: impl FnOnce(&mut Cluster)) {
    let mut producing = cluster.producing(topic);
    let is_over = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let lines = scope.spawn(|| {
            let mut sent = 0_usize;
            // Those after the end show that everything goes on.
            let mut left = 1_000;
            while left > 0 {
                producing.line(&format!("k{}", sent % KEYS), &(sent / KEYS).to_string());
                sent += 1;
                left -= usize::from(is_over.load(Ordering::Relaxed));
                std::thread::sleep(PACE);
            }
            producing.finish();
            sent
        });
        befalls(cluster);
        is_over.store(true, Ordering::Relaxed);
        lines.join().expect("every record was acknowledged")
    });
    let mut next: BTreeMap<String, usize> = BTreeMap::new();
    let found = cluster.consume(topic);
    for (partition, key, value) in &found {
        let due = next.entry(key.clone()).or_insert(0);
        assert_eq!(value, &due.to_string(), "key {key} in partition {partition}");
        *due += 1;
    }
    assert_eq!(found.len(), sent);
}

/// Waits until every replica is in sync, stops all brokers, and compares their logs of the topic byte by byte.
pub fn logs_are_equal(cluster: &mut Cluster, topic: &str, partitions: i32, ids: &[i32]) {
    cluster.wait_for_isr(ids[0], topic, ids.len());
    for id in ids {
        cluster.broker(*id).stop();
    }
    for partition in 0..partitions {
        let mut logs = ids.iter().map(|id| log_of(cluster.broker(*id), topic, partition));
        let first = logs.next().expect("a broker");
        for other in logs {
            assert!(first == other, "the logs of {topic}-{partition} differ");
        }
    }
}

fn log_of(broker: &Broker, topic: &str, partition: i32) -> Vec<u8> {
    let read = |file: PathBuf| std::fs::read(file).expect("readable");
    broker.partition_files(topic, partition, "log").into_iter().flat_map(read).collect()
}
