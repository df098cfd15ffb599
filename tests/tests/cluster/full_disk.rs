//! A broker whose disk is full: its partitions go on at other brokers.

use crate::faults::{SOON, TOPIC, befalls, with_topic};
use crate::watched::metric;
use fullbore_tests::{Batch, Client, Cluster, ClusterPlan, Disk, produce_request, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A lag that lasts longer than a test.
pub const NEVER: &str = "3600000";

/// Writes until nothing more fits.
fn fill(folder: &Path) -> PathBuf {
    let path = folder.join("ballast");
    let mut file = File::options().append(true).create(true).open(&path).expect("ours");
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
    path
}

/// A cluster whose broker 1 has a small disk. No leader leaves a follower behind that lags for less than `lag`.
pub fn on_a_small_disk(lag: &str) -> Option<(Disk, [TempDir; 2], Cluster)> {
    let others = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let small = Disk::make()?;
    let folders: Vec<PathBuf> = [small.data(), others[0].path().to_owned(), others[1].path().to_owned()].into();
    let plan = ClusterPlan::new(3, &[&format!("replica.lag.time.max.ms={lag}"), "fullbore.admin.listener=127.0.0.1:0"])
        .in_folders(&folders);
    Some((small, others, with_topic(plan.start())))
}

/// Fills the disk of broker 1 until that leads nothing, and no leader waits for it.
fn fill_until_it_is_out(small: &Disk, cluster: &Cluster) -> PathBuf {
    let ballast = fill(&small.path());
    wait_until("others lead, and wait for two replicas", SOON, || {
        // Room comes free as replicas are given up.
        fill(&small.path());
        let partitions = cluster.partitions(2, TOPIC);
        partitions.iter().all(|of| of.leader_id > 1 && !of.isr_nodes.contains(&1))
    });
    ballast
}

#[test]
fn disk_full_its_broker_hands_over_and_nobody_waits_for_it() {
    let Some((small, _others, cluster)) = on_a_small_disk(NEVER) else { return };
    befalls(cluster, |cluster, load| {
        let ballast = fill_until_it_is_out(&small, cluster);
        load.goes_on();
        cluster.broker(1).wait_for_stderr("the disk is full: other brokers lead");
        let mut shows = |id: i32, wanted: f64| {
            let names = ["fullbore_disk_full", "fullbore_control_plane_disk_full"];
            names.iter().all(|name| metric(cluster, id, name) == Some(wanted))
        };
        wait_until("its metrics tell that the disk is full, and that it is out for that", SOON, || {
            fill(&small.path());
            shows(1, 1.0)
        });
        assert!(shows(2, 0.0), "others have room");
        fs::remove_file(ballast).expect("ours");
        wait_until("its metrics tell that it is back", SOON, || shows(1, 0.0));
    });
}

#[test]
fn room_on_a_full_disk_flaps_acks_all_goes_on() {
    let Some((small, _others, cluster)) = on_a_small_disk(NEVER) else { return };
    befalls(cluster, |cluster, load| {
        let ballast = fill_until_it_is_out(&small, cluster);
        for _ in 0..3 {
            let kept = fs::metadata(&ballast).expect("ours").len();
            let file = File::options().write(true).open(&ballast).expect("ours");
            file.set_len(kept.saturating_sub(1 << 20)).expect("ours");
            load.goes_on();
            fill(&small.path());
            load.goes_on();
        }
        fs::remove_file(ballast).expect("ours");
    });
}

#[test]
fn disk_full_the_groups_of_its_broker_commit_at_another() {
    let Some((small, _others, cluster)) = on_a_small_disk(NEVER) else { return };
    let groups: Vec<String> = (0..20).map(|number| format!("g{number}")).collect();
    let commits = |group: &String| commit(&cluster, group) == ErrorCode::NONE;
    wait_until("every group commits", SOON, || groups.iter().all(commits));
    assert!(groups.iter().any(|group| coordinator(&cluster, group) == 1), "broker 1 coordinates some of them");
    fill_until_it_is_out(&small, &cluster);
    wait_until("every group commits again", SOON, || groups.iter().all(commits));
    assert!(groups.iter().all(|group| coordinator(&cluster, group) > 1));
}

fn coordinator(cluster: &Cluster, group: &str) -> i32 {
    let find = FindCoordinatorRequest { key: group.into(), ..Default::default() };
    Client::connect(cluster.address(2)).call(&find, 3).node_id
}

/// Commits an offset at the group's coordinator.
fn commit(cluster: &Cluster, group: &str) -> ErrorCode {
    let coordinator = coordinator(cluster, group);
    if coordinator < 0 {
        return ErrorCode::COORDINATOR_NOT_AVAILABLE;
    }
    let partition = OffsetCommitRequestPartition { partition_index: 0, committed_offset: 1, ..Default::default() };
    let topic = OffsetCommitRequestTopic { name: TOPIC.into(), partitions: vec![partition], ..Default::default() };
    let request = OffsetCommitRequest { group_id: group.into(), topics: vec![topic], ..Default::default() };
    let response = Client::connect(cluster.address(coordinator)).call(&request, 8);
    response.topics[0].partitions[0].error_code
}

/// Between two records of a partition.
const PACE: Duration = Duration::from_millis(20);

/// Produces to one partition with acks=all. Returns the times of the acknowledgements.
pub fn acknowledged(addresses: &[SocketAddr], partition: i32, is_over: &AtomicBool) -> Vec<Instant> {
    let mut times = Vec::new();
    let mut at = 0;
    let value = vec![b'.'; 1000];
    while !is_over.load(Ordering::Relaxed) {
        let Ok(mut client) = Client::try_connect(addresses[at % addresses.len()]) else { continue };
        client.set_read_timeout(Duration::from_secs(120));
        let request = produce_request(TOPIC, partition, Batch::of(&[&value]).bytes());
        while let Some(response) = client.try_call(&request, 9) {
            let answer = &response.responses[0].partition_responses[0];
            if answer.error_code != ErrorCode::NONE {
                break;
            }
            times.push(Instant::now());
            std::thread::sleep(PACE);
            if is_over.load(Ordering::Relaxed) {
                break;
            }
        }
        at += 1;
        std::thread::sleep(PACE);
    }
    times
}
