//! The disk of a killed broker has lost its last writes, although the machine did not boot.

use crate::frozen::SESSION;
use fullbore_tests::{Batch, Client, Cluster, wait_until};
use std::fs;
use std::time::Duration;

const TOPIC: &str = "lost_writes";
const RECORDS: usize = 100;
const DEADLINE: Duration = Duration::from_secs(120);
/// The high watermark is not stored, so it does not reveal that records are missing.
const NO_CHECKPOINT: &str = "replica.high.watermark.checkpoint.interval.ms=3600000";

/// Both replicas are killed, and one has lost its last writes. It starts first and may lead, but must wait for the
/// other one.
#[test]
fn disk_of_a_killed_broker_lost_its_last_writes_no_acknowledged_record_is_lost() {
    let mut cluster = Cluster::start(3, &[SESSION, NO_CHECKPOINT]);
    cluster.create(TOPIC, 1, 2, &["min.insync.replicas=2"]);
    let (damaged, whole) = match *cluster.partitions(1, TOPIC)[0].replica_nodes {
        [damaged, whole] => (damaged, whole),
        ref replicas => panic!("{replicas:?}"),
    };
    let other = 6 - damaged - whole;
    cluster.wait_for_isr(other, TOPIC, 2);
    let leader = cluster.wait_for_leader(other, TOPIC, 0, -1);
    let mut client = Client::connect(cluster.address(leader));
    let batch = Batch::of(&["v"]);
    (0..RECORDS).for_each(|_| _ = client.produced(TOPIC, 0, &batch));

    [damaged, whole].iter().for_each(|id| cluster.broker(*id).kill());
    let leader = |cluster: &Cluster| cluster.partitions(other, TOPIC)[0].leader_id;
    wait_until("no broker leads", DEADLINE, || leader(&cluster) == -1);
    let log = cluster.broker(damaged).partition_files(TOPIC, 0, "log").pop().expect("there");
    let mut bytes = fs::read(&log).expect("ours");
    let lost_from = bytes.len() - 3 * batch.bytes().len();
    bytes[lost_from..].fill(0);
    fs::write(&log, &bytes).expect("ours");
    cluster.broker(damaged).restart();
    cluster.broker(damaged).wait_for_stderr("the disk has lost writes from byte");
    wait_until("it resigns", DEADLINE, || leader(&cluster) == -1);

    cluster.broker(whole).restart();
    wait_until("the whole replica leads", DEADLINE, || leader(&cluster) == whole);
    cluster.wait_for_isr(other, TOPIC, 2);
    // The high watermark, which is not stored, rises only with the follower's next fetch.
    let mut client = Client::connect(cluster.address(whole));
    wait_until("all records are there", DEADLINE, || client.fetch_records(TOPIC, 0).len() == RECORDS);
}
