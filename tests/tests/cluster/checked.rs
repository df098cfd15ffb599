//! `fullbore admin check` of a stopped broker, and its findings about the data directory and the database.

use crate::frozen::SESSION;
use fullbore_tests::{Batch, Cluster, binary, wait_until};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(120);

/// Runs `fullbore admin check`. Returns true if its lines about the data directory report nothing wrong, and these
/// lines.
pub fn checked(cluster: &Cluster, sets: &[&str], directory: &Path) -> (bool, String) {
    lines_about(cluster, sets, directory, "data directory ")
}

/// Runs `fullbore admin check`. Returns true if its lines that contain `subject` report nothing wrong, and these lines.
fn lines_about(cluster: &Cluster, sets: &[&str], directory: &Path, subject: &str) -> (bool, String) {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("server.properties");
    let of_cluster = cluster.sets_of(1).iter().map(String::as_str);
    let kept = of_cluster.filter(|set| !sets.iter().any(|other| is_of_one_key(set, other)));
    let mut lines: Vec<String> = kept.chain(sets.iter().copied()).map(str::to_owned).collect();
    lines.push(format!("log.dirs={}", directory.display()));
    fs::write(&file, lines.join("\n")).expect("written");
    let mut command = Command::new(binary());
    let output = command.args(["admin", "check", "--config"]).arg(&file).output().expect("it runs");
    let report = String::from_utf8(output.stdout).expect("text");
    let about: Vec<&str> = report.lines().filter(|line| line.contains(subject)).collect();
    // Other lines may report something wrong, for example that the databases of tests run with fsync=off.
    assert_eq!(output.status.success(), !report.contains("WRONG"), "{report}");
    let reported = about.join("\n");
    (!reported.contains("WRONG"), reported)
}

fn is_of_one_key(one: &str, other: &str) -> bool {
    one.split('=').next() == other.split('=').next()
}

#[test]
fn check_names_each_difference_of_data_directory_and_database() {
    let (mut cluster, another) = (Cluster::start(1, &[]), Cluster::start(1, &[]));
    for topic in ["kept", "gone"] {
        cluster.create(topic, 1, 1, &[]);
        cluster.broker(1).client().produced(topic, 0, &Batch::of(&["one"]));
    }
    let directory = cluster.broker(1).data_dir().to_owned();
    let (is_well, reported) = checked(&cluster, &[], &directory);
    assert!(is_well && reported.ends_with("it belongs to this broker, and has 2 partitions"), "{reported}");
    let absent = directory.join("absent");
    let (is_well, reported) = checked(&cluster, &["node.id=2"], &absent);
    assert!(is_well && reported.ends_with("it does not exist; the first start creates it"), "{reported}");
    let empty = tempfile::tempdir().expect("a directory");
    let (is_well, reported) = checked(&cluster, &[], empty.path());
    assert!(
        !is_well && reported.contains("the broker with node.id=1 is running with another data directory ("),
        "{reported}"
    );
    let (is_well, reported) = checked(&cluster, &["node.id=7"], &directory);
    assert!(!is_well && reported.contains("it belongs to node.id=1, but node.id=7 is set"), "{reported}");
    let other = another.sets_of(1).iter().find(|set| set.starts_with("control.plane=")).expect("set").clone();
    let (is_well, reported) = checked(&cluster, &[&other], &directory);
    assert!(
        !is_well && reported.contains("it belongs to cluster ") && reported.contains("but the database has cluster "),
        "{reported}"
    );

    cluster.broker(1).stop();
    // Removes the topic from the database, as a deletion does while the broker is down.
    cluster.query("DELETE FROM fullbore.topics WHERE name = 'gone'");
    let (is_well, reported) = checked(&cluster, &[], &directory);
    assert!(
        is_well
            && reported.contains("partitions of the topic gone (")
            && reported.contains("the next start deletes them"),
        "{reported}"
    );
    let identity = fs::read_to_string(directory.join("cluster")).expect("there");
    fs::remove_file(directory.join("cluster")).expect("there");
    let (is_well, reported) = checked(&cluster, &[], &directory);
    assert!(!is_well && reported.contains("so move them away if they are needed"), "{reported}");
    fs::write(directory.join("cluster"), &identity).expect("written");

    fs::rename(directory.join("kept-0"), directory.join("away")).expect("there");
    let (is_well, reported) = checked(&cluster, &[], &directory);
    assert!(!is_well && reported.contains("it lacks kept-0, which had records up to offset 1"), "{reported}");
    fs::rename(directory.join("away"), directory.join("kept-0")).expect("there");

    let id = identity.lines().find_map(|line| line.strip_prefix("cluster.id=")).expect("it says");
    let noted = format!("cluster.id={id}\nbroker.7={:020}\n", 9);
    fs::write(directory.join("diskless-counter"), noted.repeat(2)).expect("written");
    let (is_well, reported) = checked(&cluster, &[], &directory);
    assert!(!is_well && reported.contains("it knows of 9 changes that broker 7 made to diskless topics"), "{reported}");
    fs::remove_file(directory.join("diskless-counter")).expect("there");

    // Removes the newest version, so that the database is like an older copy.
    cluster.query("DELETE FROM fullbore.versions WHERE version = (SELECT version FROM fullbore.cluster)");
    cluster.query("UPDATE fullbore.cluster SET version = version - 1");
    let (is_well, reported) = checked(&cluster, &[], &directory);
    assert!(!is_well && reported.contains("of the metadata, which the database lacks"), "{reported}");
}

#[test]
fn check_before_a_start_with_a_new_directory_names_the_only_complete_replicas() {
    let mut cluster = Cluster::start(1, &[SESSION]);
    cluster.create("sole", 3, 1, &[]);
    cluster.broker(1).client().produced("sole", 0, &Batch::of(&["one"]));
    cluster.broker(1).stop();
    let empty = tempfile::tempdir().expect("a directory");
    let named = "node.id=1 had the only complete replica of 3 partitions in another one, for example sole-0: ";
    for directory in [empty.path().join("absent"), empty.path().to_owned()] {
        let (mut is_well, mut reported) = (true, String::new());
        wait_until("the session has expired", SOON, || {
            (is_well, reported) = checked(&cluster, &[], &directory);
            !reported.contains("is running with another data directory")
        });
        assert!(
            !is_well && reported.contains(named) && reported.contains("the broker does not start; mount "),
            "{reported}"
        );
        let (is_well, reported) = checked(&cluster, &["fullbore.lost.directory.accept=true"], &directory);
        assert!(
            is_well && reported.contains(named) && reported.contains("the start gives up the records"),
            "{reported}"
        );
    }
    let own = cluster.broker(1).data_dir().to_owned();
    let (is_well, reported) = checked(&cluster, &[], &own);
    assert!(is_well && !reported.contains("only complete"), "{reported}");
}

#[test]
fn check_of_a_running_cluster_with_an_offline_partition_fails_unless_its_broker_is_about_to_start() {
    let mut cluster = Cluster::start(2, &[SESSION]);
    cluster.create("single", 2, 1, &[]);
    let directories = [1, 2].map(|id| cluster.broker(id).data_dir().to_owned());
    let about_offline = |cluster: &Cluster, id: usize| {
        lines_about(cluster, &[&format!("node.id={id}")], &directories[id - 1], "have no leader")
    };
    assert_eq!(about_offline(&cluster, 1), (true, String::new()));
    cluster.broker(2).stop();
    wait_until("a partition is offline", SOON, || {
        cluster.partitions(1, "single").iter().filter(|of| of.leader_id == -1).count() == 1
    });
    let (is_well, reported) = about_offline(&cluster, 1);
    assert!(!is_well && reported.contains("1 partitions have no leader, for example single-"), "{reported}");
    let (is_well, reported) = about_offline(&cluster, 2);
    assert!(is_well && reported.contains("1 partitions have no leader until node.id=2 starts"), "{reported}");
    cluster.broker(1).stop();
    let (is_well, reported) = about_offline(&cluster, 2);
    assert!(is_well, "no broker runs: {reported}");
    cluster.broker(1).restart();
    cluster.broker(2).restart();
    cluster.wait_for_isr(1, "single", 1);
    assert_eq!(about_offline(&cluster, 1), (true, String::new()));
}
