//! A broker that runs out of file descriptors. Full disks are tested in `full_disk`.

use crate::faults::{TOPIC, befalls_each, cluster};
use fullbore_tests::wait_until;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(120);

#[test]
fn broker_without_descriptors_for_a_while_loses_no_record() {
    befalls_each(cluster(&[]), &[1], |cluster, _, id| {
        let other = id % 3 + 1;
        cluster.broker(other).kill();
        cluster.wait_for_isr(id, TOPIC, 2);
        cluster.broker(id).refuse_descriptors();
        // After the other broker's restart, the broker needs a descriptor for a new connection of this follower.
        cluster.broker(other).restart();
        wait_until("it has none left", SOON, || {
            // If the broker has closed a descriptor in the meantime, it could open another one. The limit is therefore
            // lowered again.
            cluster.broker(id).refuse_descriptors();
            drop(cluster.broker(id).client());
            cluster.broker(id).stderr().contains("Too many open files")
        });
        cluster.broker(id).allow_descriptors();
    });
}
