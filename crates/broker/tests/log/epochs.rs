//! Tests the leader epochs of a log whose first batch is after its log start. Such a log is a copy: its leader had
//! compacted the records before that batch, with the epochs that began there.

use fullbore_broker::partitions::{Acks, EpochEnd};
use fullbore_config::{CleanupPolicy, Ratio};
use fullbore_wire::batch::BatchView;

use crate::directory::*;
use crate::replicas::{Cluster, read_all_bytes, records_of};

/// Returns brokers 1 to `count`, whose logs are compacted only by [`write_and_compact`].
fn compacted(count: i32) -> Cluster {
    let mut cluster = Cluster::new(count, |config| {
        config.segment_bytes = 300;
        config.cleanup = CleanupPolicy { delete: false, compact: true };
        config.min_cleanable_dirty_ratio = Ratio(0.0);
    });
    for broker in &mut cluster.brokers {
        let cleaner = &mut broker.directory.settings.storage.cleaner;
        (cleaner.threads, cleaner.dedupe_buffer_bytes, cleaner.io_buffer_bytes) = (0, 1 << 20, 0);
    }
    (1..=count).for_each(|id| cluster.restart(id, true));
    cluster
}

/// Broker 1 writes to each of the next three epochs, and then compacts its log. Returns the offset of the first batch
/// that is left, which is of the third of these epochs.
fn write_and_compact(cluster: &mut Cluster) -> i64 {
    cluster.change(|registered| registered.isr = vec![1]);
    for _ in 0..3 {
        cluster.elect(1);
        cluster.append(&plain(10, b"v"), Acks::Leader).expect("appended");
    }
    // All records have the same key, but the last segment is not compacted.
    cluster.append(&plain(10, b"v"), Acks::Leader).expect("appended");
    while cluster.of(1).directory.logs.clean_dirtiest(NOW + 1) {}
    let left = read_all_bytes(cluster.partition(1));
    let first = BatchView::first(&left).expect("a batch");
    assert_eq!(first.partition_leader_epoch(), 3, "compaction has removed the earlier epochs");
    first.base_offset()
}

/// If the first epoch began at the log start, consumers in an earlier epoch would go back there.
#[test]
fn leader_has_copied_a_compacted_log_earlier_epochs_end_at_its_first_batch() {
    let mut cluster = compacted(2);
    let first = write_and_compact(&mut cluster);
    cluster.change(|registered| registered.isr = vec![1, 2]);
    cluster.catch_up(2);
    cluster.elect(2);
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
        for (epoch, end_offset) in [(0, first), (1, first), (2, first), (3, 40), (4, 40)] {
            let end = leader.epoch_end_offset(epoch).expect("open");
            assert_eq!(end, EpochEnd { leader_epoch: epoch, end_offset }, "{state}, epoch {epoch}");
        }
        for (offset, expected) in [(9, None), (first, None), (first + 1, Some((2, first)))] {
            let diverging = leader.divergence(offset, 2).expect("open").map(|end| (end.epoch, end.end_offset));
            assert_eq!(diverging, expected, "{state}, offset {offset}");
        }
    }
}

/// The leader has none of the follower's records, so it cannot compare them. If the follower kept them, it could have
/// records that were never committed.
#[test]
fn follower_is_in_an_epoch_before_the_first_its_log_becomes_equal_to_the_leaders() {
    let mut cluster = compacted(3);
    cluster.append(&plain(10, b"old"), Acks::Leader).expect("appended");
    cluster.catch_up(3);
    let first = write_and_compact(&mut cluster);
    cluster.change(|registered| registered.isr = vec![1, 2]);
    cluster.catch_up(2);
    cluster.elect(2);
    cluster.change(|registered| registered.isr = vec![2, 3]);
    assert!(first > 10);
    assert_eq!(cluster.fetch(3), Ok(-10), "all of its records");
    cluster.catch_up(3);
    assert_eq!(records_of(&cluster, 3), records_of(&cluster, 2));
    assert_eq!(cluster.partition(3).epoch_end_offset(2), cluster.partition(2).epoch_end_offset(2));
}
