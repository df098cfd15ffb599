//! A disk that hangs: a file system of its own is frozen, so that writes to it do not come back. Skipped, with a line that says so, where
//! mounting is not permitted.

use fullbore_tests::{Batch, Broker, Client, Disk, wait_until};
use std::time::Duration;

const TOPIC: &str = "hung";
/// More than the broker has threads that serve clients.
const PARTITIONS: i32 = 4;
const SETS: [&str; 2] = ["fullbore.worker.threads=2", "fullbore.admin.listener=127.0.0.1:0"];
const SOON: Duration = Duration::from_secs(60);

/// A broker on a disk, and a client for each partition of the topic, which has a record.
fn on_a_disk(disk: &Disk) -> (Broker, Vec<Client>) {
    let broker = Broker::start_in(&disk.data(), &SETS);
    broker.client().create_topic(TOPIC, PARTITIONS, &[]);
    let clients = (0..PARTITIONS).map(|partition| {
        let mut client = broker.client();
        client.produced(TOPIC, partition, &Batch::of(&["before"]));
        client
    });
    let clients = clients.collect();
    (broker, clients)
}

#[test]
fn disk_hangs_probes_are_answered_and_name_it_until_it_answers_again() {
    let Some(disk) = Disk::make() else { return };
    let (broker, mut clients) = on_a_disk(&disk);
    let frozen = disk.freeze();
    for (partition, client) in (0..).zip(&mut clients) {
        client.send_produce(TOPIC, partition, &Batch::of(&["while it hangs"]));
    }
    wait_until("the disk is named", SOON, || {
        let ready = broker.admin_page("/readyz");
        ready.contains(" 503 ") && ready.contains("hangs: a write has not come back")
    });
    assert!(broker.admin_page("/livez").contains(" 200 "), "a new start would change nothing");
    let metrics = broker.admin_page("/metrics");
    assert!(metrics.contains("\nfullbore_disk_hung 1\n"), "{metrics}");
    broker.wait_for_stderr("the disk hangs: a write has not come back");
    drop(frozen);
    wait_until("it is ready", SOON, || broker.admin_page("/readyz").contains(" 200 "));
    broker.wait_for_stderr("the disk answers again");
}
