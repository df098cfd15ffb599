//! A data directory that is moved away, or whose file system is unmounted, while the broker runs.

use fullbore_tests::{Batch, Broker, Client, Disk, wait_until};
use fullbore_wire::ErrorCode;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const ADMIN: &str = "fullbore.admin.listener=127.0.0.1:0";
const OLD: &str = "old";
const NEW: &str = "new";
const SOON: Duration = Duration::from_secs(30);

fn produce(client: &mut Client, topic: &str) -> ErrorCode {
    client.produce(topic, 0, &Batch::at(0, &["value"])).error_code
}

/// Creates the topic [`NEW`] while the data directory is away, and checks that its records are refused. Then `back`
/// brings the directory back, and all acknowledged records must survive a restart.
fn assert_nothing_is_lost(mut broker: Broker, data: &Path, back: impl FnOnce()) {
    let mut client = broker.client();
    client.create_topic(NEW, 1, &[]);
    for _ in 0..3 {
        assert_eq!(produce(&mut client, NEW), ErrorCode::KAFKA_STORAGE_ERROR);
    }
    let is_unready = |page: &str| page.starts_with("HTTP/1.1 503 ") && page.contains("moved or unmounted");
    wait_until("the broker is not ready", SOON, || is_unready(&broker.admin_page("/readyz")));
    broker.wait_for_stderr("cannot make files in the data directory");
    assert!(broker.stderr().contains("moved or unmounted"), "{}", broker.stderr());
    let page = broker.admin_page("/readyz");
    assert!(is_unready(&page), "{page}");
    let made = fs::read_dir(data).map_or(0, |found| found.count());
    assert_eq!(made, 0, "files below another directory");
    assert_eq!(produce(&mut client, OLD), ErrorCode::NONE, "an open log still has its files");
    back();
    wait_until("the broker is ready", SOON, || broker.admin_page("/readyz").starts_with("HTTP/1.1 200 "));
    assert_eq!(produce(&mut client, NEW), ErrorCode::NONE);
    broker.stop();
    broker.restart();
    let mut client = broker.client();
    assert_eq!((client.latest(OLD, 0), client.latest(NEW, 0)), (2, 1));
}

fn started(data: &Path) -> Broker {
    let broker = Broker::start_in(data, &[ADMIN]);
    let mut client = broker.client();
    client.create_topic(OLD, 1, &[]);
    assert_eq!(produce(&mut client, OLD), ErrorCode::NONE);
    broker
}

fn paths(parent: &Path) -> (PathBuf, PathBuf) {
    (parent.join("data"), parent.join("away"))
}

#[test]
fn moved_data_directory_refuses_new_partitions_and_is_not_made_again() {
    let parent = tempfile::tempdir().expect("a directory");
    let (data, away) = paths(parent.path());
    let broker = started(&data);
    fs::rename(&data, &away).expect("moved");
    assert_nothing_is_lost(broker, &data, || {
        fs::rename(&away, &data).expect("the path is free");
    });
}

#[test]
fn data_directory_replaced_by_an_empty_one_refuses_new_partitions() {
    let parent = tempfile::tempdir().expect("a directory");
    let (data, away) = paths(parent.path());
    let broker = started(&data);
    fs::rename(&data, &away).expect("moved");
    fs::create_dir(&data).expect("made");
    assert_nothing_is_lost(broker, &data, || {
        fs::remove_dir(&data).expect("it is empty");
        fs::rename(&away, &data).expect("the path is free");
    });
}

/// The data directory is the mount point itself. Its path therefore still exists after the unmount.
#[test]
fn unmounted_data_directory_refuses_new_partitions_until_it_is_mounted_again() {
    let Some(disk) = Disk::make() else { return };
    let mount = disk.path();
    let broker = started(&mount);
    let device = Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(&mount).output().expect("it runs").stdout;
    let device = String::from_utf8(device).expect("text");
    let run = |program: &str, args: &[&str]| {
        let ended = Command::new(program).args(args).arg(&mount).status().expect("it runs");
        assert!(ended.success(), "{program}");
    };
    run("umount", &["-l"]);
    assert_nothing_is_lost(broker, &mount, || run("mount", &[device.trim()]));
}
