//! A reader of a log that an unclean election truncates, after the reader has read the lost records.

use crate::frozen::SESSION;
use fullbore_tests::{Cluster, wait_until};
use std::time::Duration;

const TOPIC: &str = "truncated";
const HALF: usize = 100;
const DEADLINE: Duration = Duration::from_secs(120);

fn write(cluster: &Cluster, value: &str) {
    let mut producing = cluster.producing(TOPIC);
    (0..HALF).for_each(|_| producing.line("k", value));
    assert_eq!(producing.finish().len(), HALF);
}

/// The replica that misses the second half of the records becomes leader when the other one is gone.
#[test]
fn unclean_election_loses_read_records_a_reader_continues_at_the_first_lost_offset() {
    let mut cluster = Cluster::start(3, &[SESSION]);
    cluster.create(TOPIC, 1, 2, &["min.insync.replicas=1"]);
    let (short, gone) = match *cluster.partitions(1, TOPIC)[0].replica_nodes {
        [short, gone] => (short, gone),
        ref replicas => panic!("{replicas:?}"),
    };
    let other = 6 - short - gone;
    cluster.wait_for_isr(other, TOPIC, 2);
    let reader = cluster.consuming_with(TOPIC, &["-X", "auto.offset.reset=earliest"]);
    write(&cluster, "kept");
    cluster.broker(short).kill();
    cluster.wait_for_isr(other, TOPIC, 1);
    write(&cluster, "lost");
    reader.wait_for(2 * HALF, DEADLINE);
    cluster.broker(gone).kill();
    let leader = |cluster: &Cluster| cluster.partitions(other, TOPIC)[0].leader_id;
    wait_until("no broker leads", DEADLINE, || leader(&cluster) == -1);
    cluster.broker(short).restart();
    cluster.wait_for_brokers(&[short, other]);
    cluster.run(&["topics", "elect-leaders", "--election-type", "unclean", "--topic", TOPIC, "--partition", "0"]);
    wait_until("it leads", DEADLINE, || leader(&cluster) == short);
    write(&cluster, "new");
    reader.wait_for_stderr("lost offsets 100 to 199 after they were read: the read continues at offset 100");
    let read = reader.finish(3 * HALF, DEADLINE);
    let expected =
        (0..).zip(["kept", "lost"]).flat_map(|(half, value)| (0..HALF).map(move |at| (half * HALF + at, value)));
    let expected = expected.chain((HALF..2 * HALF).map(|offset| (offset, "new")));
    let read = read.iter().map(|record| (usize::try_from(record.offset).expect("an offset"), &*record.value));
    assert!(read.eq(expected));
}
