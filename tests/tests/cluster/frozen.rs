//! Brokers that hang for longer than their session timeout and then continue.

use crate::faults::{ALL, TOPIC, befalls_each, cluster, under_fault};
use crate::workload::logs_are_equal;
use fullbore_tests::{Batch, Client, Cluster, wait_until};
use std::time::{Duration, Instant};

/// A short session timeout for tests. Even a busy machine does not suspend a broker for as long as this.
pub const SESSION: &str = "broker.session.timeout.ms=4000";
pub const SESSION_MAX: Duration = Duration::from_secs(4);
const SOON: Duration = Duration::from_secs(60);

#[test]
fn broker_hung_past_its_session_loses_no_record() {
    befalls_each(cluster(&[SESSION]), &[1, 2], |cluster, load, id| {
        cluster.broker(id).freeze();
        cluster.wait_for_isr(id % 3 + 1, TOPIC, 2);
        load.goes_on();
        cluster.broker(id).thaw();
    });
}

/// The former leader resumes. Until it learns of its successor, it believes that it still leads, but must not
/// acknowledge any record with acks=all.
#[test]
fn resumed_former_leader_acknowledges_nothing_with_acks_all() {
    const ONE: &str = "one";
    let mut cluster = Cluster::start(3, &[SESSION]);
    cluster.create(ONE, 1, 3, &["min.insync.replicas=1"]);
    ALL.iter().for_each(|id| cluster.wait_for_isr(*id, ONE, 3));
    let leader = cluster.partitions(1, ONE)[0].leader_id;
    let other = leader % 3 + 1;
    let mut early: Vec<Client> = (0..2).map(|_| cluster.broker(leader).client()).collect();
    early[0].produced(ONE, 0, &Batch::of(&["before"]));
    cluster.broker(leader).freeze();
    early[0].send_produce(ONE, 0, &Batch::of(&["to the sleeper"]));
    let successor = cluster.wait_for_leader(other, ONE, 0, leader);
    let mut client = cluster.broker(successor).client();
    assert_eq!(client.produced(ONE, 0, &Batch::of(&["after"])), 1);
    cluster.broker(leader).thaw();
    early[1].send_produce(ONE, 0, &Batch::of(&["to who has just woken"]));
    for client in &mut early {
        let answer = client.receive_produced();
        assert!(answer.error_code.is_err(), "it was acknowledged at {}", answer.base_offset);
    }
    cluster.wait_for_isr(successor, ONE, 3);
    let records: Vec<String> = client.fetch_records(ONE, 0).iter().map(|record| record.text()).collect();
    assert_eq!(records, ["before", "after"]);
    logs_are_equal(&mut cluster, ONE, 1, &ALL);
}

/// Checks that no leader changes during the time `during`, and that no broker is considered failed.
pub fn nobody_is_held_for_dead(cluster: &mut Cluster, topic: &str, during: Duration, epochs: &[i32]) {
    let started = Instant::now();
    while started.elapsed() < during {
        for id in ALL {
            assert_eq!(epochs_of(cluster, id, topic), epochs, "as broker {id} tells");
            let reported = cluster.broker(id).stderr();
            assert!(!reported.contains("fenced a broker"), "{reported}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the leader epoch of each partition according to the broker `id`.
pub fn epochs_of(cluster: &Cluster, id: i32, topic: &str) -> Vec<i32> {
    let mut partitions = cluster.partitions(id, topic);
    partitions.sort_by_key(|of| of.partition_index);
    partitions.iter().map(|of| of.leader_epoch).collect()
}

#[test]
fn brokers_hung_together_are_not_considered_failed() {
    under_fault(cluster(&[SESSION]), |cluster, load| {
        let epochs = epochs_of(cluster, 1, TOPIC);
        ALL.iter().for_each(|id| cluster.broker(*id).freeze());
        let heartbeats = "SELECT min(extract(epoch FROM clock_timestamp() - at)) > 8 FROM fullbore.beats";
        wait_until("all sessions are over", SOON, || cluster.query(heartbeats) == "t");
        ALL.iter().for_each(|id| cluster.broker(*id).thaw());
        load.goes_on();
        nobody_is_held_for_dead(cluster, TOPIC, 2 * SESSION_MAX, &epochs);
    });
}
