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
        // The restarted follower connects to this broker, which needs a descriptor for the connection.
        cluster.broker(other).restart();
        wait_until("it has none left", SOON, || {
            // The limit is lowered each time, because the broker may have closed a descriptor meanwhile and could open
            // another one.
            cluster.broker(id).refuse_descriptors();
            drop(cluster.broker(id).client());
            cluster.broker(id).stderr().contains("Too many open files")
        });
        cluster.broker(id).allow_descriptors();
    });
}
