//! Load while a fault hits the cluster. The clients' observations are then compared with the promises
//! (`history_check`).

use crate::history_check::Seen;
use crate::offsets;
use fullbore_tests::{Acknowledged, Broker, Cluster};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Number of keys. The records of each key are in order.
const KEYS: usize = 20;
/// Number of records written before each pause. In the pauses the producer prints acknowledgements, because it has
/// nothing else to do.
const BURST: usize = 100;
const PACE: Duration = Duration::from_millis(50);
/// Longest time from the fault until everything written must be readable.
const READABLE_MAX: Duration = Duration::from_secs(30);
/// Longest time until the next acknowledgement during an event that may delay acknowledgements only shortly.
const GOES_ON_MAX: Duration = Duration::from_secs(30);

/// Load that runs while a fault hits the cluster.
pub struct Load {
    acknowledged: Acknowledged,
}

impl Load {
    /// Waits until more records are acknowledged.
    pub fn goes_on(&self) {
        self.goes_on_within(GOES_ON_MAX);
    }

    /// Waits until more records are acknowledged, within `deadline`.
    pub fn goes_on_within(&self, deadline: Duration) {
        self.acknowledged.goes_on_within(deadline, 200);
    }
}

/// Produces with acks=all and idempotence, and consumes, while `under_fault` runs. Compares the observations with the
/// promises afterwards.
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
            // Records after the fault show that everything continues.
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
        // Ends the producer's input even after a panic, because the test would hang otherwise.
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

/// Waits until every replica is in sync, kills all brokers, and compares the replicas' logs of the topic byte by byte.
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

/// Returns the bytes of a replica's log on the disk.
pub fn log_of(broker: &Broker, topic: &str, partition: i32) -> Vec<u8> {
    let read = |file: PathBuf| std::fs::read(file).expect("readable");
    broker.partition_files(topic, partition, "log").into_iter().flat_map(read).collect()
}
