//! `fullbore admin check` of a stopped broker, and its findings about the data directory and the database.

use fullbore_tests::{Batch, Cluster, binary};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs the check. Returns true if the data directory is consistent with the database, and the lines about the
/// directory.
pub fn checked(cluster: &Cluster, sets: &[&str], directory: &Path) -> (bool, String) {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("server.properties");
    let of_cluster = cluster.sets_of(1).iter().map(String::as_str);
    let kept = of_cluster.filter(|set| !sets.iter().any(|other| is_of_one_key(set, other)));
    let mut lines: Vec<String> = kept.chain(sets.iter().copied()).map(str::to_owned).collect();
    lines.push(format!("log.dirs={}", directory.display()));
    fs::write(&file, lines.join("\n")).expect("written");
    let mut command = Command::new(binary());
    let output = command.args(["admin", "check", "--config"]).arg(&file).output().expect("it runs");
    let said = String::from_utf8(output.stdout).expect("text");
    let of_directory: Vec<&str> = said.lines().filter(|line| line.contains("data directory ")).collect();
    // The databases of tests run with fsync=off, which the check also reports.
    assert_eq!(output.status.success(), !said.contains("WRONG"), "{said}");
    let told = of_directory.join("\n");
    (!told.contains("WRONG"), told)
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
    let (is_well, told) = checked(&cluster, &[], &directory);
    assert!(is_well && told.ends_with("it is this broker's, and has 2 of its partitions"), "{told}");
    let absent = directory.join("absent");
    let (is_well, told) = checked(&cluster, &["node.id=2"], &absent);
    assert!(is_well && told.ends_with("it does not exist; the first start creates it"), "{told}");
    let empty = tempfile::tempdir().expect("a directory");
    let (is_well, told) = checked(&cluster, &[], empty.path());
    assert!(!is_well && told.contains("node.id=1 lives, and has another data directory ("), "{told}");
    let (is_well, told) = checked(&cluster, &["node.id=7"], &directory);
    assert!(!is_well && told.contains("it is of node.id=1, and node.id=7 is set"), "{told}");
    let other = another.sets_of(1).iter().find(|set| set.starts_with("control.plane=")).expect("set").clone();
    let (is_well, told) = checked(&cluster, &[&other], &directory);
    assert!(!is_well && told.contains("it is of cluster ") && told.contains("and the database has cluster "), "{told}");

    cluster.broker(1).stop();
    // Removing the rows has the same effect as deleting the topic while the broker is down.
    cluster.query("DELETE FROM fullbore.topics WHERE name = 'gone'");
    let (is_well, told) = checked(&cluster, &[], &directory);
    assert!(
        is_well && told.contains("partitions of the topic gone (") && told.contains("the next start deletes them"),
        "{told}"
    );
    let identity = fs::read_to_string(directory.join("cluster")).expect("there");
    fs::remove_file(directory.join("cluster")).expect("there");
    let (is_well, told) = checked(&cluster, &[], &directory);
    assert!(!is_well && told.contains("so move them away if they are needed"), "{told}");
    fs::write(directory.join("cluster"), &identity).expect("written");

    fs::rename(directory.join("kept-0"), directory.join("away")).expect("there");
    let (is_well, told) = checked(&cluster, &[], &directory);
    assert!(!is_well && told.contains("it lacks kept-0, which had records up to offset 1"), "{told}");
    fs::rename(directory.join("away"), directory.join("kept-0")).expect("there");

    let id = identity.lines().find_map(|line| line.strip_prefix("cluster.id=")).expect("it says");
    let noted = format!("cluster.id={id}\nbroker.7={:020}\n", 9);
    fs::write(directory.join("diskless-counter"), noted.repeat(2)).expect("written");
    let (is_well, told) = checked(&cluster, &[], &directory);
    assert!(!is_well && told.contains("it knows of 9 changes that broker 7 made to diskless topics"), "{told}");
    fs::remove_file(directory.join("diskless-counter")).expect("there");

    // This is the state that an older copy of the database would have.
    cluster.query("DELETE FROM fullbore.versions WHERE version = (SELECT version FROM fullbore.cluster)");
    cluster.query("UPDATE fullbore.cluster SET version = version - 1");
    let (is_well, told) = checked(&cluster, &[], &directory);
    assert!(!is_well && told.contains("of the metadata, which the database lacks"), "{told}");
}
