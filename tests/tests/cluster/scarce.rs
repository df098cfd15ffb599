//! A broker that runs out of what a machine gives it: room on its disk, descriptors.

use crate::faults::{TOPIC, befalls, befalls_each, cluster, with_topic};
use fullbore_tests::{Cluster, ClusterPlan, Disk, wait_until};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// Writes until nothing more fits.
fn fill(folder: &Path) -> PathBuf {
    let path = folder.join("ballast");
    let mut file = File::options().append(true).create(true).open(&path).expect("ours");
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
    path
}

#[test]
fn a_broker_whose_disk_is_full_for_a_while_costs_no_record() {
    let disks = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
    let Some(small) = Disk::make() else { return };
    let folders: Vec<PathBuf> = [small.data(), disks[1].path().to_owned(), disks[2].path().to_owned()].into();
    let plan = ClusterPlan::new(3, &["replica.lag.time.max.ms=1500"]).in_folders(&folders);
    befalls(with_topic(plan.start()), |cluster, _| {
        let ballast = fill(&small.path());
        let is_out_where_others_lead = |cluster: &Cluster| {
            let partitions = cluster.partitions(2, TOPIC);
            partitions.iter().all(|of| of.leader_id >= 0 && of.isr_nodes.contains(&1) == (of.leader_id == 1))
        };
        wait_until("what others lead goes on without it", SOON, || {
            // It may take a little room again as others give it up.
            fill(&small.path());
            is_out_where_others_lead(cluster)
        });
        cluster.broker(1).wait_for_stderr("full");
        std::fs::remove_file(ballast).expect("ours");
    });
}

#[test]
fn a_broker_without_descriptors_for_a_while_costs_no_record() {
    befalls_each(cluster(&[]), &[1], |cluster, _, id| {
        let other = id % 3 + 1;
        cluster.broker(other).kill();
        cluster.wait_for_isr(id, TOPIC, 2);
        cluster.broker(id).refuse_descriptors();
        // It wants to follow this one, and cannot.
        cluster.broker(other).restart();
        wait_until("it has none left", SOON, || {
            // What was closed meanwhile was free again.
            cluster.broker(id).refuse_descriptors();
            drop(cluster.broker(id).client());
            cluster.broker(id).stderr().contains("Too many open files")
        });
        cluster.broker(id).allow_descriptors();
    });
}
