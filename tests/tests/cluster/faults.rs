//! Faults while clients produce and consume: brokers are killed, restarted and frozen.

use crate::workload::{Load, logs_are_equal, produced_while};
use fullbore_tests::{Cluster, wait_until};
use std::time::Duration;

pub const TOPIC: &str = "befallen";
pub const PARTITIONS: i32 = 3;
pub const ALL: [i32; 3] = [1, 2, 3];
pub const SOON: Duration = Duration::from_secs(60);
/// The maximum growth of a process's memory from any earlier round to a later one, in bytes.
const MEMORY_SPREAD: u64 = 8 << 20;

/// Starts three brokers with the given settings and creates a topic that needs two replicas in sync.
pub fn cluster(sets: &[&str]) -> Cluster {
    with_topic(Cluster::start(3, sets))
}

/// Creates the topic in a running cluster.
pub fn with_topic(cluster: Cluster) -> Cluster {
    cluster.create(TOPIC, PARTITIONS, 3, &["min.insync.replicas=2"]);
    ALL.iter().for_each(|id| cluster.wait_for_isr(*id, TOPIC, 3));
    cluster
}

/// Runs `under_fault` while clients produce and consume. Afterwards compares the logs of the replicas.
pub fn under_fault(mut cluster: Cluster, under_fault: impl FnOnce(&mut Cluster, &Load)) {
    produced_while(&mut cluster, TOPIC, |cluster, load| {
        under_fault(cluster, load);
        cluster.wait_for_isr(1, TOPIC, 3);
    });
    logs_are_equal(&mut cluster, TOPIC, PARTITIONS, &ALL);
}

/// Applies a fault to each of the brokers `ids` in turn. Waits after each until all replicas are in sync. Each broker
/// leads some partitions and follows others.
pub fn befalls_each(cluster: Cluster, ids: &[i32], each: impl Fn(&mut Cluster, &Load, i32)) {
    under_fault(cluster, |cluster, load| {
        for id in ids {
            each(cluster, load, *id);
            cluster.wait_for_isr(*id, TOPIC, 3);
        }
    });
}

#[test]
fn killed_and_restarted_broker_loses_no_record() {
    befalls_each(cluster(&[]), &ALL, |cluster, load, id| {
        cluster.broker(id).kill();
        cluster.wait_for_isr(id % 3 + 1, TOPIC, 2);
        load.goes_on();
        cluster.broker(id).restart();
    });
}

#[test]
fn broker_restarted_at_once_loses_no_record() {
    befalls_each(cluster(&[]), &ALL, |cluster, _, id| {
        cluster.broker(id).kill();
        cluster.broker(id).restart();
    });
}

#[test]
fn rolling_restart_loses_no_record() {
    befalls_each(cluster(&[]), &ALL, |cluster, _, id| {
        cluster.broker(id).stop();
        cluster.broker(id).restart();
    });
}

#[test]
fn faults_of_other_brokers_leave_nothing_in_a_broker_that_stayed() {
    let mut cluster = Cluster::start(3, &[]);
    let descriptors = cluster.broker(1).descriptors();
    let mut memory_max = u64::MAX;
    for _ in 0..3 {
        cluster = with_topic(cluster);
        produced_while(&mut cluster, TOPIC, |cluster, load| {
            for id in [2, 3] {
                cluster.broker(id).kill();
                cluster.wait_for_isr(1, TOPIC, 2);
                load.goes_on();
                cluster.broker(id).restart();
                cluster.wait_for_isr(1, TOPIC, 3);
            }
        });
        cluster.run(&["topics", "delete", "--topic", TOPIC]);
        wait_until("it has closed what it opened", SOON, || cluster.broker(1).descriptors() <= descriptors);
        wait_until("its memory is what it was", SOON, || cluster.broker(1).rss() <= memory_max);
        // The first round has no limit, because the process may retain the memory that it has allocated there.
        memory_max = memory_max.min(cluster.broker(1).rss() + MEMORY_SPREAD);
    }
}
