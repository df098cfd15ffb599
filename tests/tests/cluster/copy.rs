//! `fullbore copy` in a cluster whose brokers are killed one after another. The target must get each record of the
//! source once.

use fullbore_tests::{Cluster, Copied, CopyProcess, wait_until};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(180);
const PARTITIONS: usize = 6;
const RECORDS: usize = 2_000;

#[test]
fn kill_of_each_broker_under_two_copiers_copies_each_record_once() {
    // The records of this test have timestamps in 2023. Retention would delete them 30 s after the start of a broker,
    // when it first checks for expired segments.
    let mut cluster = Cluster::start(3, &["group.initial.rebalance.delay.ms=0", "log.retention.ms=-1"]);
    for topic in ["a", "b"] {
        cluster.create(topic, PARTITIONS as i32, 3, &["min.insync.replicas=2"]);
    }
    let bootstrap = cluster.bootstrap();
    let copied = Copied::new(&bootstrap, "a", "b", PARTITIONS);
    copied.fill(RECORDS, 0);
    let flags = ["--group", "in-a-cluster", "--transaction-records", "10"];
    let copiers = [(); 2].map(|()| CopyProcess::start(&bootstrap, ("a", "b"), &flags));
    for id in cluster.ids() {
        copied.goes_on(200);
        cluster.broker(id).kill();
        copied.fill(RECORDS, id as u64);
        copied.goes_on(200);
        cluster.broker(id).restart();
        cluster.wait_for_isr(id, "b", 3);
    }
    wait_until("everything is copied", SOON, || copied.count() >= 4 * RECORDS);
    for copier in copiers {
        copier.terminate();
    }
    copied.check("in-a-cluster");
}
