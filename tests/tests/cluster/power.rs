//! Power losses of one machine or of all of them. Each disk has only what a power loss would leave. Skipped without
//! root.

use crate::faults::{ALL, PARTITIONS, SOON, TOPIC, befalls_each, cluster, under_fault};
use fullbore_tests::{Batch, Cluster, ClusterPlan, Disk, another_boot, wait_until};
use std::cell::RefCell;
use std::path::PathBuf;

/// Starts three brokers, each on its own disk, and creates a topic with the given settings. `None` if a disk cannot be
/// mounted.
fn on_disks(configs: &[&str]) -> Option<(Vec<Disk>, Cluster)> {
    let disks = [(); 3].map(|()| Disk::make());
    let disks: Vec<Disk> = disks.into_iter().collect::<Option<_>>()?;
    let directories: Vec<PathBuf> = disks.iter().map(Disk::data).collect();
    let cluster = ClusterPlan::new(3, &[]).in_directories(&directories).start();
    cluster.create(TOPIC, PARTITIONS, 3, configs);
    ALL.iter().for_each(|id| cluster.wait_for_isr(*id, TOPIC, 3));
    Some((disks, cluster))
}

/// Cuts the power of the brokers `ids` at the same moment. Then starts them again, with disks that have only what a
/// power loss would leave.
pub fn cut_power(cluster: &mut Cluster, disks: &mut [Disk], ids: &[i32]) {
    ids.iter().for_each(|id| cluster.broker(*id).freeze());
    for id in ids {
        let disk = &mut disks[usize::try_from(id - 1).expect("ids begin with 1")];
        let left = disk.cut_power();
        cluster.broker(*id).kill();
        cluster.broker(*id).move_to(&left.data());
        another_boot(&left.data());
        *disk = left;
    }
    ids.iter().for_each(|id| cluster.broker(*id).restart());
}

#[test]
fn flushed_records_survive_a_power_loss_of_all_machines() {
    let Some((mut disks, cluster)) = on_disks(&["min.insync.replicas=2", "flush.messages=1"]) else { return };
    under_fault(cluster, |cluster, load| {
        for _ in 0..2 {
            cut_power(cluster, &mut disks, &ALL);
            cluster.wait_for_isr(1, TOPIC, 3);
            load.goes_on();
        }
    });
}

#[test]
fn power_losses_of_one_machine_after_the_other_lose_no_record() {
    let Some((disks, cluster)) = on_disks(&["min.insync.replicas=2"]) else { return };
    let disks = RefCell::new(disks);
    befalls_each(cluster, &[1, 2], |cluster, _, id| cut_power(cluster, &mut disks.borrow_mut(), &[id]));
}

#[test]
fn broker_with_a_replaced_disk_is_refilled_by_the_others() {
    befalls_each(cluster(&[]), &[1, 2], |cluster, _, id| {
        cluster.broker(id).kill();
        let directory = cluster.broker(id).data_dir().to_owned();
        std::fs::remove_dir_all(&directory).expect("ours");
        // A broker with an empty directory may not start before the cluster considers its former process failed.
        cluster.wait_for_isr(id % 3 + 1, TOPIC, 2);
        cluster.broker(id).restart();
    });
}

/// The power fails on all machines, so a partition gets no leader before every broker has reported its log end. At
/// first, one broker cannot open its log, as if it had no free descriptors.
#[test]
fn log_unopenable_after_a_power_loss_of_all_is_reported_once_it_opens() {
    let mut cluster = cluster(&[]);
    let led = |cluster: &Cluster| -> Vec<bool> {
        let mut partitions = cluster.partitions(1, TOPIC);
        partitions.sort_by_key(|of| of.partition_index);
        partitions.iter().map(|of| of.leader_id >= 0).collect()
    };
    for partition in 0..PARTITIONS {
        let leader =
            cluster.partitions(1, TOPIC).iter().find(|of| of.partition_index == partition).expect("there").leader_id;
        cluster.broker(leader).client().produced(TOPIC, partition, &Batch::of(&["v"]));
    }
    ALL.iter().for_each(|id| cluster.broker(*id).kill());
    ALL.iter().for_each(|id| another_boot(cluster.broker(*id).data_dir()));
    let segment = cluster.broker(2).data_dir().join(format!("{TOPIC}-0/00000000000000000000.log"));
    let aside = segment.with_extension("aside");
    std::fs::rename(&segment, &aside).expect("moved");
    std::fs::create_dir(&segment).expect("made");
    ALL.iter().for_each(|id| cluster.broker(*id).restart());
    cluster.broker(2).wait_for_stderr("cannot open the logs of some partitions without a leader");
    // At first, broker 1 may return the leaders from before the power loss.
    let all_but_the_first: Vec<bool> = (0..PARTITIONS).map(|partition| partition != 0).collect();
    wait_until("only the partition with an unknown log end has no leader", SOON, || led(&cluster) == all_but_the_first);
    std::fs::remove_dir(&segment).expect("removed");
    std::fs::rename(&aside, &segment).expect("moved back");
    cluster.wait_for_isr(1, TOPIC, 3);
}
