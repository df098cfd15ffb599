//! A broker whose disk is full. The other brokers must take over its partitions.

use crate::faults::{SOON, TOPIC, under_fault, with_topic};
use crate::health::metric;
use crate::workload::produced_while;
use fullbore_tests::{Client, Cluster, ClusterPlan, Disk, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A `replica.lag.time.max.ms` that is longer than any test.
const NEVER: &str = "3600000";

/// Writes to a file until the disk is full. Returns the file's path.
fn fill(directory: &Path) -> PathBuf {
    let path = directory.join("ballast");
    let mut file = File::options().append(true).create(true).open(&path).expect("ours");
    for size in [1 << 20, 4096, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
    path
}

/// Starts a cluster whose broker 1 has a small disk. Followers stay in the ISR however far they lag. `None` if a disk
/// cannot be mounted.
pub fn on_a_small_disk() -> Option<(Disk, [TempDir; 2], Cluster)> {
    let others = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let small = Disk::make()?;
    let directories: Vec<PathBuf> = [small.data(), others[0].path().to_owned(), others[1].path().to_owned()].into();
    let plan =
        ClusterPlan::new(3, &[&format!("replica.lag.time.max.ms={NEVER}"), "fullbore.admin.listener=127.0.0.1:0"])
            .in_directories(&directories);
    Some((small, others, with_topic(plan.start())))
}

/// Keeps the disk of broker 1 full until the broker leads no partition and is in no ISR.
fn fill_until_it_is_out(small: &Disk, cluster: &Cluster) -> PathBuf {
    let ballast = fill(&small.path());
    wait_until("others lead, and wait for two replicas", SOON, || {
        // The broker deletes the files of replicas that it gives up, which frees space. Fills this space again.
        fill(&small.path());
        let partitions = cluster.partitions(2, TOPIC);
        partitions.iter().all(|of| of.leader_id > 1 && !of.isr_nodes.contains(&1))
    });
    ballast
}

#[test]
fn full_disk_hands_leadership_over_and_leaves_the_isrs() {
    let Some((small, _others, cluster)) = on_a_small_disk() else { return };
    under_fault(cluster, |cluster, load| {
        let ballast = fill_until_it_is_out(&small, cluster);
        load.goes_on();
        cluster.broker(1).wait_for_stderr("the disk is full: other in-sync replicas take over");
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
fn flapping_free_space_does_not_stop_acks_all() {
    let Some((small, _others, cluster)) = on_a_small_disk() else { return };
    under_fault(cluster, |cluster, load| {
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

/// Waits until brokers 2 and 3 lead all partitions of the topic and broker 1 is in no ISR.
fn wait_for_others(cluster: &Cluster) {
    wait_until("others lead, and wait for two replicas", SOON, || {
        let partitions = cluster.partitions(2, TOPIC);
        partitions.iter().all(|of| of.leader_id > 1 && !of.isr_nodes.contains(&1))
    });
}

/// Returns the number of partitions that broker 1 reports as not writable.
fn unwritable(cluster: &mut Cluster) -> Option<f64> {
    metric(cluster, 1, "fullbore_partitions_unwritable")
}

/// The data directory is moved away. As with wrong permissions, the broker cannot create files there, but can still
/// write to open files.
#[test]
fn unwritable_data_directory_hands_leadership_over_until_it_is_writable() {
    let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let paths: Vec<PathBuf> = directories.iter().map(|directory| directory.path().join("data")).collect();
    paths.iter().for_each(|path| fs::create_dir(path).expect("made"));
    let lag = format!("replica.lag.time.max.ms={NEVER}");
    let sets = [lag.as_str(), "log.roll.ms=500", "fullbore.admin.listener=127.0.0.1:0"];
    let cluster = with_topic(ClusterPlan::new(3, &sets).in_directories(&paths).start());
    under_fault(cluster, |cluster, load| {
        let away = directories[0].path().join("away");
        fs::rename(&paths[0], &away).expect("moved");
        wait_for_others(cluster);
        load.goes_on();
        cluster
            .broker(1)
            .wait_for_stderr("cannot create files in the data directory: other in-sync replicas take over");
        fs::rename(&away, &paths[0]).expect("moved");
        cluster.broker(1).wait_for_stderr("files can be made in the data directory again");
    });
}

/// An empty directory is at the path of the data directory, as after an unmount. The broker could create files in it,
/// but their records would be lost after the next mount.
#[test]
fn data_directory_replaced_by_another_hands_leadership_over_until_it_is_back() {
    let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let paths: Vec<PathBuf> = directories.iter().map(|directory| directory.path().join("data")).collect();
    paths.iter().for_each(|path| fs::create_dir(path).expect("made"));
    let sets = [&format!("replica.lag.time.max.ms={NEVER}"), "fullbore.admin.listener=127.0.0.1:0"];
    let cluster = with_topic(ClusterPlan::new(3, &sets).in_directories(&paths).start());
    under_fault(cluster, |cluster, load| {
        let away = directories[0].path().join("away");
        fs::rename(&paths[0], &away).expect("moved");
        fs::create_dir(&paths[0]).expect("made");
        wait_for_others(cluster);
        load.goes_on();
        cluster
            .broker(1)
            .wait_for_stderr("cannot create files in the data directory: other in-sync replicas take over");
        fs::remove_dir(&paths[0]).expect("it is empty");
        fs::rename(&away, &paths[0]).expect("moved");
        cluster.broker(1).wait_for_stderr("files can be made in the data directory again");
    });
}

/// The kernel makes a file system read-only after an error of the disk. Open files cannot be written either.
#[test]
fn read_only_file_system_hands_leadership_over_and_repeats_no_error_line() {
    let Some((small, _others, mut cluster)) = on_a_small_disk() else { return };
    produced_while(&mut cluster, TOPIC, |cluster, load| {
        let since = Instant::now();
        small.fail();
        wait_for_others(cluster);
        load.goes_on();
        wait_until("every line could have come twice", SOON, || since.elapsed() > Duration::from_secs(13));
        let mut times = BTreeMap::new();
        for line in cluster.broker(1).stderr().lines().filter(|line| line.contains("ERROR")) {
            let (_, without_time) = line.split_once(' ').expect("a time");
            *times.entry(without_time.to_owned()).or_insert(0) += 1;
        }
        times.retain(|_, count| *count > 1);
        assert!(times.is_empty(), "{times:#?}");
    });
}

/// Broker 1 can create files in its data directory but not in the directories of some partitions. It leads some of
/// these partitions and follows others.
#[test]
fn unwritable_partition_directories_hand_leadership_over_until_they_are_writable() {
    let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let paths: Vec<PathBuf> = directories.iter().map(|directory| directory.path().to_owned()).collect();
    let lag = format!("replica.lag.time.max.ms={NEVER}");
    let sets = [lag.as_str(), "log.roll.ms=500", "fullbore.admin.listener=127.0.0.1:0"];
    let cluster = with_topic(ClusterPlan::new(3, &sets).in_directories(&paths).start());
    under_fault(cluster, |cluster, load| {
        let partitions = cluster.partitions(2, TOPIC);
        assert!(partitions.iter().any(|of| of.leader_id == 1), "broker 1 leads some");
        assert!(partitions.iter().any(|of| of.leader_id > 1), "and follows some");
        let away = tempfile::tempdir_in(paths[0].parent().expect("it has one")).expect("a directory");
        let moves = partitions.iter().map(|of| format!("{TOPIC}-{}", of.partition_index));
        let moves: Vec<[PathBuf; 2]> = moves.map(|name| [paths[0].join(&name), away.path().join(name)]).collect();
        moves.iter().for_each(|[from, to]| fs::rename(from, to).expect("moved"));
        wait_for_others(cluster);
        load.goes_on();
        cluster
            .broker(1)
            .wait_for_stderr("cannot append to a partition for seconds: another in-sync replica becomes leader");
        assert_eq!(unwritable(cluster), Some(partitions.len() as f64));
        assert_eq!(metric(cluster, 1, "fullbore_partitions_failed"), Some(0.0), "no start has to mend them");
        moves.iter().for_each(|[from, to]| fs::rename(to, from).expect("moved"));
        wait_until("they are writable again", SOON, || unwritable(cluster) == Some(0.0));
    });
}

/// Some segments cannot be opened, as if they belonged to another user. All brokers are killed, and the broker with
/// these segments starts first.
#[test]
fn unopenable_logs_of_a_leader_hand_leadership_over_until_they_open() {
    let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let paths: Vec<PathBuf> = directories.iter().map(|directory| directory.path().to_owned()).collect();
    let lag = format!("replica.lag.time.max.ms={NEVER}");
    let sets = [lag.as_str(), "fullbore.admin.listener=127.0.0.1:0"];
    let cluster = with_topic(ClusterPlan::new(3, &sets).in_directories(&paths).start());
    under_fault(cluster, |cluster, load| {
        load.goes_on();
        cluster.ids().for_each(|id| cluster.broker(id).kill());
        let segments: Vec<PathBuf> = dirs_of_topic(&paths[0]).flat_map(|dir| segments(&dir)).collect();
        take_away(&segments);
        cluster.ids().for_each(|id| cluster.broker(id).restart());
        wait_for_others(cluster);
        load.goes_on();
        wait_until("it shows", SOON, || unwritable(cluster).is_some_and(|of| of > 0.0));
        give_back(&segments);
        wait_until("they are writable again", SOON, || unwritable(cluster) == Some(0.0));
    });
}

/// The older segments of a leader cannot be opened, as if they belonged to another user. Appends and reads of newer
/// records must continue.
#[test]
fn unreadable_records_of_a_leader_hand_leadership_over_until_they_are_readable() {
    let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let paths: Vec<PathBuf> = directories.iter().map(|directory| directory.path().to_owned()).collect();
    let lag = format!("replica.lag.time.max.ms={NEVER}");
    let takes_back = "leader.imbalance.check.interval.seconds=1";
    let sets = [lag.as_str(), takes_back, "log.roll.ms=500", "fullbore.admin.listener=127.0.0.1:0"];
    let cluster = with_topic(ClusterPlan::new(3, &sets).in_directories(&paths).start());
    under_fault(cluster, |cluster, load| {
        wait_until("each partition has older segments", SOON, || {
            load.goes_on();
            dirs_of_topic(&paths[0]).all(|dir| segments(&dir).len() > 2)
        });
        // The restarted broker has not opened the older segments yet.
        cluster.broker(1).stop();
        cluster.broker(1).restart();
        cluster.wait_for_isr(2, TOPIC, 3);
        let led = || cluster.partitions(2, TOPIC).into_iter().find(|of| of.leader_id == 1);
        wait_until("broker 1 leads one", SOON, || led().is_some());
        let led = led().expect("broker 1 leads one").partition_index;
        let all = segments(&paths[0].join(format!("{TOPIC}-{led}")));
        // The first segment stays readable, because the load's clients read the log from its start.
        let older = &all[1..all.len() - 1];
        let base_offset = older[0].file_stem().and_then(|stem| stem.to_str()?.parse().ok()).expect("an offset");
        take_away(older);
        wait_until("another replica leads it", SOON, || {
            let data = Client::connect(cluster.address(1)).fetch(TOPIC, led, base_offset);
            assert!(data.error_code.is_err(), "the records cannot be read at broker 1");
            let of = cluster.partitions(2, TOPIC).into_iter().find(|of| of.partition_index == led).expect("there");
            of.leader_id > 1 && !of.isr_nodes.contains(&1)
        });
        load.goes_on();
        cluster
            .broker(1)
            .wait_for_stderr("cannot read records of a partition for seconds: another in-sync replica becomes leader");
        assert_eq!(unwritable(cluster), Some(1.0));
        give_back(older);
        wait_until("they can be read again", SOON, || unwritable(cluster) == Some(0.0));
    });
}

/// Returns the directories of the topic's partitions.
fn dirs_of_topic(data: &Path) -> impl Iterator<Item = PathBuf> {
    let is_of_topic = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&format!("{TOPIC}-"));
    let entries = fs::read_dir(data).expect("read").map(|entry| entry.expect("read"));
    entries.filter(is_of_topic).map(|entry| entry.path())
}

/// Returns the log files in a directory, oldest first.
fn segments(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).expect("read").map(|file| file.expect("read").path());
    let mut segments: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|end| end == "log")).collect();
    segments.sort();
    segments
}

/// Replaces files by symbolic links to themselves, which no process can open.
fn take_away(segments: &[PathBuf]) {
    for segment in segments {
        fs::rename(segment, segment.with_extension("away")).expect("moved");
        symlink(segment, segment).expect("a link to itself");
    }
}

/// Undoes [`take_away`].
fn give_back(segments: &[PathBuf]) {
    for segment in segments {
        fs::remove_file(segment).expect("removed");
        fs::rename(segment.with_extension("away"), segment).expect("moved");
    }
}

/// Broker 1 stops cleanly. Then directories of partitions are removed or replaced by older ones, as after a restore of
/// the disk. Broker 1 starts before the others.
#[test]
fn older_or_missing_partition_directories_after_a_clean_stop_lose_no_record() {
    let directories = [(); 3].map(|()| tempfile::tempdir().expect("a directory"));
    let paths: Vec<PathBuf> = directories.iter().map(|directory| directory.path().to_owned()).collect();
    let cluster = with_topic(ClusterPlan::new(3, &[]).in_directories(&paths).start());
    let copies = tempfile::tempdir().expect("a directory");
    under_fault(cluster, |cluster, load| {
        load.goes_on();
        cluster.broker(1).stop();
        let partitions = cluster.partitions(2, TOPIC);
        let dirs = partitions.iter().map(|of| format!("{TOPIC}-{}", of.partition_index));
        let dirs: Vec<[PathBuf; 2]> = dirs.map(|name| [paths[0].join(&name), copies.path().join(name)]).collect();
        dirs.iter().for_each(|[dir, copy]| copy_dir(dir, copy));
        cluster.broker(1).restart();
        for (is_gone, is_killed) in [(false, false), (true, false), (true, true)] {
            cluster.wait_for_isr(2, TOPIC, 3);
            load.goes_on();
            [2, 3, 1].iter().for_each(|id| cluster.broker(*id).stop());
            for [dir, copy] in &dirs {
                fs::remove_dir_all(dir).expect("removed");
                if !is_gone {
                    copy_dir(copy, dir);
                }
            }
            if is_killed {
                // The broker starts and is killed here, because its last start below must not follow a clean stop.
                cluster.broker(1).restart();
                cluster.broker(1).kill();
            }
            [1, 2, 3].iter().for_each(|id| cluster.broker(*id).restart());
            cluster.wait_for_isr(2, TOPIC, 3);
            load.goes_on();
        }
    });
}

/// Copies a directory of files.
fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir(to).expect("made");
    for file in fs::read_dir(from).expect("read") {
        let file = file.expect("read");
        fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
}

#[test]
fn full_disk_moves_the_groups_of_its_broker_to_another() {
    let Some((small, _others, cluster)) = on_a_small_disk() else { return };
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
