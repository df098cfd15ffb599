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

/// A topic with two replicas, of which one will miss the second half of the records.
struct Halves {
    cluster: Cluster,
    /// The broker whose replica will miss the second half.
    short: i32,
    /// The broker that has all records.
    whole: i32,
    /// The broker without a replica.
    other: i32,
}

impl Halves {
    /// Starts the cluster, creates the topic and writes the first half.
    fn start() -> Halves {
        let cluster = Cluster::start(3, &[SESSION]);
        cluster.create(TOPIC, 1, 2, &["min.insync.replicas=1"]);
        let (short, whole) = match *cluster.partitions(1, TOPIC)[0].replica_nodes {
            [short, whole] => (short, whole),
            ref replicas => panic!("{replicas:?}"),
        };
        let other = 6 - short - whole;
        cluster.wait_for_isr(other, TOPIC, 2);
        write(&cluster, "kept");
        Halves { cluster, short, whole, other }
    }

    /// Writes the second half to one replica alone.
    fn write_to_one(&mut self) {
        self.cluster.broker(self.short).kill();
        self.cluster.wait_for_isr(self.other, TOPIC, 1);
        write(&self.cluster, "lost");
    }

    /// Makes the replica that misses the second half the leader, when the other one is gone. Writes other records.
    fn elect(&mut self) {
        let Halves { cluster, short, whole, other } = self;
        cluster.broker(*whole).kill();
        let leader = |cluster: &Cluster| cluster.partitions(*other, TOPIC)[0].leader_id;
        wait_until("no broker leads", DEADLINE, || leader(cluster) == -1);
        cluster.broker(*short).restart();
        cluster.wait_for_brokers(&[*short, *other]);
        cluster.run(&["topics", "elect-leaders", "--election-type", "unclean", "--topic", TOPIC, "--partition", "0"]);
        wait_until("it leads", DEADLINE, || leader(cluster) == *short);
        write(cluster, "new");
    }
}

#[test]
fn unclean_election_loses_read_records_a_reader_continues_at_the_first_lost_offset() {
    let mut halves = Halves::start();
    let reader = halves.cluster.consuming_with(TOPIC, &["-X", "auto.offset.reset=earliest"]);
    halves.write_to_one();
    reader.wait_for(2 * HALF, DEADLINE);
    halves.elect();
    reader.wait_for_stderr("lost offsets 100 to 199 after they were read: the read continues at offset 100");
    let read = reader.finish(3 * HALF, DEADLINE);
    let expected =
        (0..).zip(["kept", "lost"]).flat_map(|(half, value)| (0..HALF).map(move |at| (half * HALF + at, value)));
    let expected = expected.chain((HALF..2 * HALF).map(|offset| (offset, "new")));
    let read = read.iter().map(|record| (usize::try_from(record.offset).expect("an offset"), &*record.value));
    assert!(read.eq(expected));
}

/// The log ends again at the group's committed offset, which only the leader epoch distinguishes.
#[test]
fn unclean_election_between_two_reads_of_a_group_loses_records_the_second_continues_at_the_first_lost_offset() {
    let mut halves = Halves::start();
    let read = |cluster: &Cluster| {
        let flags = ["--topic", TOPIC, "--group", "g", "--from-beginning", "--exit", "--format", "%o %s\\n"];
        cluster.run(&[&["consume"][..], &flags].concat())
    };
    assert_eq!(read(&halves.cluster).lines().count(), HALF);
    halves.write_to_one();
    assert_eq!(read(&halves.cluster).lines().count(), HALF);
    halves.elect();
    let expected: Vec<String> = (HALF..2 * HALF).map(|offset| format!("{offset} new")).collect();
    assert_eq!(read(&halves.cluster).lines().collect::<Vec<_>>(), expected);
}
