//! Topics of a cluster: who has them, and what becomes of them while a broker is away.

use fullbore_tests::{Cluster, wait_until};
use std::time::Duration;

#[test]
fn what_one_broker_was_asked_for_all_of_them_show() {
    let cluster = Cluster::start(3, &[]);
    cluster.create("t", 6, 3, &[]);
    for id in 1..=3 {
        cluster.wait_for_isr(id, "t", 3);
        let leaders: Vec<i32> = cluster.partitions(id, "t").iter().map(|of| of.leader_id).collect();
        for leader in 1..=3 {
            assert_eq!(leaders.iter().filter(|id| **id == leader).count(), 2, "{leaders:?}");
        }
    }
    let mut producing = cluster.producing("t");
    (0..100).for_each(|number| producing.line(&number.to_string(), "v"));
    producing.finish();
    assert_eq!(cluster.consume("t").len(), 100);
}

#[test]
fn a_topic_deleted_and_made_again_while_a_broker_is_away_begins_anew_there() {
    let mut cluster = Cluster::start(3, &[]);
    let write = |cluster: &Cluster, topic: &str, count: i32| {
        let mut producing = cluster.producing(topic);
        (0..count).for_each(|number| producing.line(&number.to_string(), "v"));
        producing.finish();
    };
    for topic in ["again", "gone"] {
        cluster.create(topic, 1, 3, &[]);
        write(&cluster, topic, 50);
    }
    cluster.broker(2).kill();
    cluster.wait_for_isr(1, "again", 2);
    for topic in ["again", "gone"] {
        cluster.run(&["topics", "delete", "--topic", topic]);
    }
    cluster.create("again", 1, 2, &[]);
    cluster.run(&["topics", "delete", "--topic", "again"]);
    cluster.broker(2).restart();
    cluster.create("again", 1, 3, &[]);
    write(&cluster, "again", 7);
    cluster.wait_for_isr(1, "again", 3);
    crate::records::logs_are_equal(&mut cluster, "again", 1, &[1, 2, 3]);
    for id in 1..=3 {
        let folder = cluster.broker(id).partition_dir("gone", 0);
        wait_until("the deleted topic's folder is gone", Duration::from_secs(30), || !folder.exists());
    }
}
