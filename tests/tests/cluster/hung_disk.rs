//! A broker whose disk hangs, so that writes never return. The other brokers must take over its partitions.

use std::path::PathBuf;

use crate::diskless;
use crate::faults::{ALL, PARTITIONS, SOON, TOPIC, under_fault};
use crate::full_disk::on_a_small_disk;
use crate::workload::logs_are_equal;
use fullbore_tests::{Batch, Client, Cluster, ClusterPlan, Disk, wait_until};

/// Waits until broker 1 leads no partition and is in no ISR.
fn wait_until_it_is_out(cluster: &Cluster) {
    wait_until("others lead, and wait for two replicas", SOON, || {
        let partitions = cluster.partitions(2, TOPIC);
        partitions.iter().all(|of| of.leader_id > 1 && !of.isr_nodes.contains(&1))
    });
}

#[test]
fn hung_disk_hands_leadership_over_and_leaves_the_isrs() {
    let Some((disk, _others, cluster)) = on_a_small_disk() else { return };
    under_fault(cluster, |cluster, load| {
        let frozen = disk.freeze();
        wait_until_it_is_out(cluster);
        load.goes_on();
        cluster.broker(1).wait_for_stderr("the disk hangs: other in-sync replicas take over");
        drop(frozen);
    });
}

#[test]
fn hung_write_is_not_acknowledged_and_is_truncated_under_the_next_leader() {
    let Some((disk, _others, mut cluster)) = on_a_small_disk() else { return };
    let partitions = cluster.partitions(2, TOPIC);
    for of in &partitions {
        cluster.broker(of.leader_id).client().produced(TOPIC, of.partition_index, &Batch::of(&["before"]));
    }
    let partition = partitions.iter().find(|of| of.leader_id == 1).expect("each broker leads").partition_index;
    // There are more waiting clients than threads that serve clients.
    let mut clients: Vec<Client> = (0..8).map(|_| cluster.broker(1).client()).collect();
    let frozen = disk.freeze();
    for client in &mut clients {
        client.send_produce(TOPIC, partition, &Batch::of(&["hangs"]));
    }
    for client in &mut clients {
        let answer = client.try_receive_produced();
        assert!(answer.is_none_or(|answer| answer.error_code.is_err()), "it is hung up on, or refused");
    }
    wait_until_it_is_out(&cluster);
    let successor = cluster.wait_for_leader(2, TOPIC, partition, 1);
    let mut client = cluster.broker(successor).client();
    assert_eq!(client.produced(TOPIC, partition, &Batch::of(&["after"])), 1);
    drop(frozen);
    cluster.wait_for_isr(successor, TOPIC, 3);
    let records: Vec<String> = client.fetch_records(TOPIC, partition).iter().map(|record| record.text()).collect();
    assert_eq!(records, ["before", "after"]);
    logs_are_equal(&mut cluster, TOPIC, PARTITIONS, &ALL);
}

#[test]
fn hung_disk_does_not_stop_diskless_records() {
    let Some(small) = Disk::make() else { return };
    let others = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let directories: Vec<PathBuf> = [small.data(), others[0].path().to_owned(), others[1].path().to_owned()].into();
    let mut shared = diskless::shared_by(ClusterPlan::new(3, &[]).in_directories(&directories), 1);
    let mut client = shared.cluster.broker(1).client();
    client.produced(diskless::TOPIC, 0, &Batch::of(&["before"]));
    let frozen = small.freeze();
    for offset in 1..=5 {
        assert_eq!(client.produced(diskless::TOPIC, 0, &Batch::of(&["meanwhile"])), offset);
    }
    drop(frozen);
}
