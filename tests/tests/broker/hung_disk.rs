//! A disk that hangs. Its file system is frozen, so writes do not return. If mounting is not permitted, the tests are
//! skipped with a line on standard error.

use fullbore_tests::{Batch, Broker, Client, Disk, wait_until};
use fullbore_wire::ErrorCode;
use std::time::Duration;

const TOPIC: &str = "hung";
/// How many partitions the topic has: more than there are threads that serve clients.
const PARTITIONS: i32 = 4;
const SETS: [&str; 2] = ["fullbore.worker.threads=2", "fullbore.admin.listener=127.0.0.1:0"];
const SOON: Duration = Duration::from_secs(60);

/// Starts a broker on a disk. Returns one client for each partition of the topic. Each partition has a record.
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

/// Sends a produce to each partition while the disk is frozen. Waits until the broker reports that its disk hangs.
fn hang(broker: &Broker, clients: &mut [Client]) {
    for (partition, client) in (0..).zip(clients) {
        client.send_produce(TOPIC, partition, &Batch::of(&["while it hangs"]));
    }
    broker.wait_for_stderr("the disk hangs: a write has not returned");
}

#[test]
fn hung_disk_serves_metadata_and_cached_records_and_refuses_writes() {
    const OTHER: &str = "other";
    let Some(disk) = Disk::make() else { return };
    let (broker, mut clients) = on_a_disk(&disk);
    broker.client().create_topic(OTHER, 1, &[]);
    broker.client().produced(OTHER, 0, &Batch::of(&["in memory"]));
    let frozen = disk.freeze();
    hang(&broker, &mut clients);
    for _ in 0..2 {
        // A new connection is assigned to a thread that does not hang.
        let mut client = broker.client();
        assert_eq!(client.metadata(&[OTHER]).topics[0].error_code, ErrorCode::NONE);
        let records: Vec<String> = client.fetch_records(OTHER, 0).iter().map(|record| record.text()).collect();
        assert_eq!(records, ["in memory"]);
        let partitions = (0..PARTITIONS).map(|partition| (TOPIC, partition));
        for (topic, partition) in partitions.clone().chain([(OTHER, 0)]) {
            let refused = client.produce(topic, partition, &Batch::of(&["refused"]));
            assert_eq!(refused.error_code, ErrorCode::KAFKA_STORAGE_ERROR);
        }
        let offsets = partitions.map(|(topic, partition)| client.list_offset(topic, partition, -1));
        let locked = offsets.filter(|answer| answer.error_code == ErrorCode::KAFKA_STORAGE_ERROR).count();
        assert!(locked > 0, "a log is locked by the write that hangs");
        assert_eq!(client.list_offset(OTHER, 0, -1).offset, 1);
    }
    drop(frozen);
    // Only a produce that a thread had begun before the broker noticed the hang can succeed. The broker refuses all
    // others.
    let has_hung: Vec<bool> =
        clients.iter_mut().map(|client| client.receive_produced().error_code == ErrorCode::NONE).collect();
    assert!(has_hung.contains(&true), "a write has come back");
    broker.wait_for_stderr("the disk answers again");
    for (partition, has_hung) in (0..).zip(has_hung) {
        let expected = if has_hung { &["before", "while it hangs"][..] } else { &["before"][..] };
        let found = broker.client().fetch_records(TOPIC, partition);
        let records: Vec<String> = found.iter().map(|record| record.text()).collect();
        assert_eq!(records, expected, "partition {partition}");
    }
    assert_eq!(broker.client().produced(OTHER, 0, &Batch::of(&["again"])), 1);
}

#[test]
fn hung_disk_is_named_by_probes_until_it_responds() {
    let Some(disk) = Disk::make() else { return };
    let (broker, mut clients) = on_a_disk(&disk);
    let frozen = disk.freeze();
    for (partition, client) in (0..).zip(&mut clients) {
        client.send_produce(TOPIC, partition, &Batch::of(&["while it hangs"]));
    }
    wait_until("the disk is named", SOON, || {
        let ready = broker.admin_page("/readyz");
        ready.contains(" 503 ") && ready.contains("hangs: a write has not returned")
    });
    assert!(broker.admin_page("/livez").contains(" 200 "), "a new start would change nothing");
    let metrics = broker.admin_page("/metrics");
    assert!(metrics.contains("\nfullbore_disk_hung 1\n"), "{metrics}");
    broker.wait_for_stderr("the disk hangs: a write has not returned");
    drop(frozen);
    wait_until("it is ready", SOON, || broker.admin_page("/readyz").contains(" 200 "));
    broker.wait_for_stderr("the disk answers again");
}
