//! Tests the leader epochs of a log whose first batch is after its log start. Such a log is a copy: its leader had
//! compacted the records before that batch, with the epochs that began there.

use fullbore_broker::partitions::{Acks, EpochEnd, FromLeader};

use crate::directory::*;
use crate::replicas::{Cluster, records_of};

/// The offset of the first batch in the copy.
const FIRST: i64 = 30;

/// Broker 1 leads in the next three epochs. Broker 2 then copies its only batch, which is of the third of them and
/// begins at [`FIRST`].
fn copy_compacted(cluster: &mut Cluster) {
    cluster.change(|registered| registered.isr = vec![1]);
    (0..3).for_each(|_| cluster.elect(1));
    let mut records = plain(10, b"v");
    records[..8].copy_from_slice(&FIRST.to_be_bytes());
    records[12..16].copy_from_slice(&3_i32.to_be_bytes());
    let from =
        FromLeader { leader_epoch: 3, from: 0, records: &records.freeze(), high_watermark: FIRST + 10, log_start: 0 };
    cluster.partition(2).append_from_leader(from).expect("appended");
    cluster.change(|registered| registered.isr = vec![1, 2]);
    cluster.elect(2);
}

/// If the first epoch began at the log start, consumers in an earlier epoch would go back there.
#[test]
fn leader_has_copied_a_compacted_log_earlier_epochs_end_at_its_first_batch() {
    let mut cluster = Cluster::new(2, |_| {});
    copy_compacted(&mut cluster);
    for state in ["copied", "deleted before", "killed", "without its file"] {
        match state {
            "deleted before" => _ = cluster.partition(2).delete_records_before(5).expect("deleted"),
            "killed" => cluster.restart(2, false),
            "without its file" => {
                let file = cluster.of(2).directory.file("leader-epoch-checkpoint");
                std::fs::remove_file(file).expect("removed");
                cluster.restart(2, false);
            }
            _ => assert_eq!(cluster.partition(2).offsets().expect("open").log_start, 0),
        }
        let leader = cluster.partition(2);
        for (epoch, end_offset) in [(0, FIRST), (1, FIRST), (2, FIRST), (3, FIRST + 10), (4, FIRST + 10)] {
            let end = leader.epoch_end_offset(epoch).expect("open");
            assert_eq!(end, EpochEnd { leader_epoch: epoch, end_offset }, "{state}, epoch {epoch}");
        }
        for (offset, expected) in [(9, None), (FIRST, None), (FIRST + 1, Some((2, FIRST)))] {
            let diverging = leader.divergence(offset, 2).expect("open").map(|end| (end.epoch, end.end_offset));
            assert_eq!(diverging, expected, "{state}, offset {offset}");
        }
    }
}

/// The leader has none of the follower's records, so it cannot compare them. If the follower kept them, it could have
/// records that were never committed.
#[test]
fn follower_is_in_an_epoch_before_the_first_its_log_becomes_equal_to_the_leaders() {
    let mut cluster = Cluster::new(3, |_| {});
    cluster.append(&plain(10, b"old"), Acks::Leader).expect("appended");
    cluster.catch_up(3);
    copy_compacted(&mut cluster);
    cluster.change(|registered| registered.isr = vec![2, 3]);
    assert_eq!(cluster.fetch(3), Ok(-10), "all of its records");
    cluster.catch_up(3);
    assert_eq!(records_of(&cluster, 3), records_of(&cluster, 2));
    assert_eq!(cluster.partition(3).epoch_end_offset(2), cluster.partition(2).epoch_end_offset(2));
}
