//! Bugs that were found by attacking the cluster, with one test for each.

use fullbore_tests::{Batch, Client, Cluster};

const TOPIC: &str = "hunted";

#[test]
fn kill_of_the_leader_restores_no_deleted_record() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.create(TOPIC, 1, 3, &["min.insync.replicas=2"]);
    (1..=3).for_each(|id| cluster.wait_for_isr(id, TOPIC, 3));
    let leader = cluster.partitions(1, TOPIC)[0].leader_id;
    let mut client = Client::connect(cluster.address(leader));
    for _ in 0..20 {
        client.produced(TOPIC, 0, &Batch::of(&["v"]));
    }
    client.delete_records(TOPIC, 0, 15);
    cluster.broker(leader).kill();
    let other = leader % 3 + 1;
    cluster.wait_for_isr(other, TOPIC, 2);
    let new_leader = cluster.wait_for_leader(other, TOPIC, 0, leader);
    assert_eq!(Client::connect(cluster.address(new_leader)).earliest(TOPIC, 0), 15);
}
