//! What befalls a cluster while records go out: kills, restarts, pauses, an absent database.

use crate::records::{logs_are_equal, produced_while};
use fullbore_tests::Cluster;

const TOPIC: &str = "befallen";
const PARTITIONS: i32 = 3;
const ALL: [i32; 3] = [1, 2, 3];

fn cluster() -> Cluster {
    let cluster = Cluster::start(3, &[]);
    cluster.create(TOPIC, PARTITIONS, 3, &["min.insync.replicas=2"]);
    cluster
}

/// Has this befall one broker after the other, each once all replicas are in sync again.
fn befalls_each(befalls: impl Fn(&mut Cluster, i32)) {
    let mut cluster = cluster();
    produced_while(&mut cluster, TOPIC, |cluster| {
        for id in ALL {
            befalls(cluster, id);
            cluster.wait_for_isr(id, TOPIC, 3);
        }
    });
    logs_are_equal(&mut cluster, TOPIC, PARTITIONS, &ALL);
}

#[test]
fn a_broker_that_is_killed_and_comes_back_costs_no_record() {
    befalls_each(|cluster, id| {
        cluster.broker(id).kill();
        cluster.wait_for_isr(id % 3 + 1, TOPIC, 2);
        cluster.broker(id).restart();
    });
}

#[test]
fn a_broker_that_is_restarted_at_once_costs_no_record() {
    befalls_each(|cluster, id| {
        cluster.broker(id).kill();
        cluster.broker(id).restart();
    });
}

#[test]
fn a_rolling_restart_costs_no_record() {
    befalls_each(|cluster, id| {
        cluster.broker(id).stop();
        cluster.broker(id).restart();
    });
}

#[test]
fn records_go_on_without_a_database() {
    let mut cluster = cluster();
    produced_while(&mut cluster, TOPIC, |cluster| {
        cluster.postgres().stop();
        let refused = cluster.refused(&["topics", "create", "--topic", "meanwhile", "--partitions", "1"]);
        assert!(refused.contains("cannot be changed now"), "{refused}");
        cluster.postgres().start_again();
        cluster.create("afterwards", 1, 3, &[]);
    });
    logs_are_equal(&mut cluster, TOPIC, PARTITIONS, &ALL);
}
