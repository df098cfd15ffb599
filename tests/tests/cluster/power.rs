//! Power cuts: the machine of one broker, or of all of them, as their disks leave them. Skipped without root.

use crate::faults::{ALL, PARTITIONS, TOPIC, befalls, befalls_each, cluster};
use fullbore_tests::{Cluster, ClusterPlan, Disk, another_boot};
use std::cell::RefCell;
use std::path::PathBuf;

/// Three brokers, each with a disk of its own, and a topic with these settings.
fn on_disks(configs: &[&str]) -> Option<(Vec<Disk>, Cluster)> {
    let disks = [(); 3].map(|()| Disk::make());
    let disks: Vec<Disk> = disks.into_iter().collect::<Option<_>>()?;
    let folders: Vec<PathBuf> = disks.iter().map(Disk::data).collect();
    let cluster = ClusterPlan::new(3, &[]).in_folders(&folders).start();
    cluster.create(TOPIC, PARTITIONS, 3, configs);
    ALL.iter().for_each(|id| cluster.wait_for_isr(*id, TOPIC, 3));
    Some((disks, cluster))
}

/// Cuts the power of the machines of these brokers at one moment, and starts them again. The disks that this leaves.
fn cut_power(cluster: &mut Cluster, disks: &mut [Disk], ids: &[i32]) {
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
fn what_is_flushed_survives_the_power_cut_of_all_machines() {
    let Some((mut disks, cluster)) = on_disks(&["min.insync.replicas=2", "flush.messages=1"]) else { return };
    befalls(cluster, |cluster, load| {
        for _ in 0..2 {
            cut_power(cluster, &mut disks, &ALL);
            cluster.wait_for_isr(1, TOPIC, 3);
            load.goes_on();
        }
    });
}

#[test]
fn the_power_cut_of_one_machine_after_the_other_costs_no_record() {
    let Some((disks, cluster)) = on_disks(&["min.insync.replicas=2"]) else { return };
    let disks = RefCell::new(disks);
    befalls_each(cluster, &[1, 2], |cluster, _, id| cut_power(cluster, &mut disks.borrow_mut(), &[id]));
}

#[test]
fn a_broker_whose_disk_is_replaced_is_filled_by_the_others() {
    befalls_each(cluster(&[]), &[1, 2], |cluster, _, id| {
        cluster.broker(id).kill();
        let folder = cluster.broker(id).data_dir().to_owned();
        std::fs::remove_dir_all(&folder).expect("ours");
        // A new folder takes nobody's place who lives.
        cluster.wait_for_isr(id % 3 + 1, TOPIC, 2);
        cluster.broker(id).restart();
    });
}
