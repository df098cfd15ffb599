//! What befalls a cluster while records go out: kills, restarts, pauses, an absent database.

use crate::records::{logs_are_equal, produced_while};
use fullbore_tests::Cluster;
use std::time::Duration;

const TOPIC: &str = "befallen";
const PARTITIONS: i32 = 3;
const ALL: [i32; 3] = [1, 2, 3];

fn cluster() -> Cluster {
    let cluster = Cluster::start(3, &[]);
    cluster.create(TOPIC, PARTITIONS, 3, &["min.insync.replicas=2"]);
    cluster
}

#[test]
fn a_broker_that_is_killed_and_comes_back_costs_no_record() {
    let mut cluster = cluster();
    produced_while(&mut cluster, TOPIC, |cluster| {
        for id in ALL {
            let other = id % 3 + 1;
            cluster.broker(id).kill();
            cluster.wait_for_isr(other, TOPIC, 2);
            cluster.broker(id).restart();
            cluster.wait_for_isr(other, TOPIC, 3);
        }
    });
    logs_are_equal(&mut cluster, TOPIC, PARTITIONS, &ALL);
}

#[test]
fn a_broker_that_is_restarted_at_once_costs_no_record() {
    let mut cluster = cluster();
    produced_while(&mut cluster, TOPIC, |cluster| {
        for id in ALL {
            cluster.broker(id).kill();
            cluster.broker(id).restart();
            cluster.wait_for_isr(id, TOPIC, 3);
        }
    });
    logs_are_equal(&mut cluster, TOPIC, PARTITIONS, &ALL);
}

#[test]
fn a_rolling_restart_costs_no_record() {
    let mut cluster = cluster();
    produced_while(&mut cluster, TOPIC, |cluster| {
        for id in ALL {
            cluster.broker(id).stop();
            cluster.broker(id).restart();
            cluster.wait_for_isr(id, TOPIC, 3);
        }
    });
    logs_are_equal(&mut cluster, TOPIC, PARTITIONS, &ALL);
}

#[test]
fn records_go_on_without_a_database() {
    let mut cluster = cluster();
    produced_while(&mut cluster, TOPIC, |cluster| {
        cluster.postgres().stop();
        std::thread::sleep(Duration::from_secs(3));
        cluster.postgres().start_again();
        cluster.create("afterwards", 1, 3, &[]);
    });
    logs_are_equal(&mut cluster, TOPIC, PARTITIONS, &ALL);
}
