//! Clients produce and consume while a fault is injected. Afterwards `history_check` compares what they saw with the
//! promises.

use crate::history_check::Seen;
use crate::offsets;
use fullbore_tests::{Acknowledged, Broker, Cluster};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How many keys the records have. The records of each key must stay in order.
const KEYS: usize = 20;
/// How many records are written before each pause. The producer prints its acknowledgements only during a pause.
const BURST: usize = 100;
const PACE: Duration = Duration::from_millis(50);
/// How long after the fault every record must be readable.
const READABLE_MAX: Duration = Duration::from_secs(120);
/// How long the producer may wait for acknowledgements during a fault that should hardly delay it.
const GOES_ON_MAX: Duration = Duration::from_secs(60);

/// The clients that run while a fault is injected.
pub struct Load {
    acknowledged: Acknowledged,
}

impl Load {
    /// Waits until 200 more records are acknowledged, for at most [`GOES_ON_MAX`].
    pub fn goes_on(&self) {
        self.goes_on_within(GOES_ON_MAX);
    }

    /// Waits until 200 more records are acknowledged, for at most `deadline`.
    pub fn goes_on_within(&self, deadline: Duration) {
        self.acknowledged.goes_on_within(deadline, 200);
    }
}

/// Runs an idempotent producer with acks=all, and a consumer, while `under_fault` runs. Then compares what these
/// clients saw with the promises.
pub fn produced_while(cluster: &mut Cluster, topic: &str, under_fault: impl FnOnce(&mut Cluster, &Load)) {
    let consuming = cluster.consuming(topic);
    let mut producing = cluster.producing(topic);
    let load = Load { acknowledged: producing.acknowledged() };
    let is_over = AtomicBool::new(false);
    let addresses: Vec<_> = cluster.ids().map(|id| (id, cluster.address(id))).collect();
    let (sent, acknowledged, marks) = std::thread::scope(|scope| {
        let watching = addresses.iter().map(|(id, address)| {
            let is_over = &is_over;
            scope.spawn(move || offsets::watched(*id, *address, topic, is_over))
        });
        let watching: Vec<_> = watching.collect();
        let lines = scope.spawn(|| {
            let mut sent = Vec::new();
            // More records are written after the fault, to show that the cluster works again.
            let mut left = 1_000;
            while left > 0 {
                let key = format!("k{}", sent.len() % KEYS);
                producing.line(&key, &sent.len().to_string());
                sent.push(key);
                left -= usize::from(is_over.load(Ordering::Relaxed));
                if sent.len().is_multiple_of(BURST) {
                    std::thread::sleep(PACE);
                }
            }
            (sent, producing.finish())
        });
        // Sets `is_over` when it is dropped, even by a panic. Otherwise the producer would write for ever and the test
        // would hang.
        let ended = EndOfScope(&is_over);
        load.goes_on();
        under_fault(cluster, &load);
        drop(ended);
        let (sent, acknowledged) = lines.join().expect("every record was acknowledged");
        let marks: Vec<_> = watching.into_iter().flat_map(|one| one.join().expect("it answers or closes")).collect();
        (sent, acknowledged, marks)
    });
    assert!(!marks.is_empty(), "somebody was asked while it led");
    let polled = consuming.finish(sent.len(), READABLE_MAX);
    let found = cluster.consume(topic);
    let partitions = cluster.partitions(1, topic);
    let end = |of: i32| {
        let leader = cluster.wait_for_leader(1, topic, of, -1);
        fullbore_tests::Client::connect(cluster.address(leader)).latest(topic, of)
    };
    let ends = partitions.iter().map(|of| (of.partition_index, end(of.partition_index))).collect();
    let violations = Seen { sent, acknowledged, polled, found, ends, marks }.violations();
    assert!(violations.is_empty(), "{} violations: {:#?}", violations.len(), &violations[..violations.len().min(20)]);
}

struct EndOfScope<'a>(&'a AtomicBool);

impl Drop for EndOfScope<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until every replica is in sync and kills all brokers. Then compares the replicas' logs byte by byte.
pub fn logs_are_equal(cluster: &mut Cluster, topic: &str, partitions: i32, ids: &[i32]) {
    cluster.wait_for_isr(ids[0], topic, ids.len());
    ids.iter().for_each(|id| cluster.broker(*id).kill());
    for partition in 0..partitions {
        let mut logs = ids.iter().map(|id| log_of(cluster.broker(*id), topic, partition));
        let first = logs.next().expect("a broker");
        for other in logs {
            assert!(first == other, "the logs of {topic}-{partition} differ");
        }
    }
}

/// Returns the bytes that a replica's log has on the disk.
pub fn log_of(broker: &Broker, topic: &str, partition: i32) -> Vec<u8> {
    let read = |file: PathBuf| std::fs::read(file).expect("readable");
    broker.partition_files(topic, partition, "log").into_iter().flat_map(read).collect()
}
