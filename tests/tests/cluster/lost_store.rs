//! Brokers that lose the object store of diskless topics, either one of them or all at once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use fullbore_tests::s3::S3;
use fullbore_tests::{Batch, Cluster, ClusterPlan, Link, Relay, wait_until};
use fullbore_wire::ErrorCode;

use crate::diskless::TOPIC;
use crate::faults::ALL;
use crate::workload::produced_while;

/// How many partitions each topic has. With this number, each broker is given some of them, whatever ids the topics
/// get.
const PARTITIONS: i32 = 36;
/// The topic to which the test itself writes. The load writes to another one.
const OWN: &str = "own";
/// How long clients may be sent to a broker that has lost its store. The broker reports the loss after 4 s, and other
/// brokers learn of it from a heartbeat. A busy machine takes longer.
const LEFT_OUT_MAX: Duration = Duration::from_secs(40);
/// How long it may take until clients are sent to a broker again. First its store must respond for 5 s, or for up to 40
/// s if the broker has lost the store before.
const BACK_MAX: Duration = Duration::from_secs(120);

/// The store of three brokers, and the link of each broker to it.
struct Store {
    ways: Vec<Relay>,
    _s3: S3,
}

impl Store {
    fn set(&self, id: i32, link: Link) {
        self.ways[id as usize - 1].set(None, link);
    }
}

/// Starts three brokers with two topics: one for a steady load, and one for the test's own writes.
fn started() -> (Cluster, Store) {
    let s3 = S3::start();
    let at = s3.endpoint().trim_start_matches("http://").parse().expect("an address");
    let ways: Vec<Relay> = ALL.iter().map(|_| Relay::to(at)).collect();
    let mut plan = ClusterPlan::new(3, &["fullbore.admin.listener=127.0.0.1:0"]);
    for (index, way) in ways.iter().enumerate() {
        for set in s3.sets() {
            let (key, value) = set.split_once('=').expect("a setting");
            plan.set(index, key, value);
        }
        plan.set(index, "diskless.storage.s3.endpoint.url", &format!("http://{}", way.address));
    }
    let cluster = plan.start();
    for topic in [TOPIC, OWN] {
        cluster.create(topic, PARTITIONS, 1, &["diskless.enable=true"]);
        for id in ALL {
            wait_until("all brokers are told to serve", BACK_MAX, || leaders(&cluster, id, topic) == ALL.into());
        }
    }
    (cluster, Store { ways, _s3: s3 })
}

fn leaders(cluster: &Cluster, id: i32, topic: &str) -> BTreeSet<i32> {
    cluster.partitions(id, topic).iter().map(|partition| partition.leader_id).collect()
}

/// Returns a partition of the test's own topic that broker `id` leads.
fn served_by(cluster: &Cluster, id: i32) -> i32 {
    let partitions = cluster.partitions(id, OWN);
    partitions.iter().find(|of| of.leader_id == id).expect("each serves some").partition_index
}

fn produce(cluster: &mut Cluster, id: i32, partition: i32, text: &str) -> ErrorCode {
    cluster.broker(id).client().produce(OWN, partition, &Batch::of(&[text])).error_code
}

/// Cuts only the link between broker 2 and the store, and restores it later.
fn broker_loses(link: Link) {
    let (mut cluster, store) = started();
    produced_while(&mut cluster, TOPIC, |cluster, load| {
        let partition = served_by(cluster, 2);
        wait_until("it takes a batch", LEFT_OUT_MAX, || produce(cluster, 2, partition, "before") == ErrorCode::NONE);
        store.set(2, link);
        let began = Instant::now();
        let mut client = cluster.broker(2).client();
        // The broker returns a retriable error at first, because its store may soon respond again.
        let refused = loop {
            let code = client.produce(OWN, partition, &Batch::of(&["meanwhile"])).error_code;
            if code != ErrorCode::KAFKA_STORAGE_ERROR {
                break code;
            }
            assert!(began.elapsed() < LEFT_OUT_MAX, "the broker still waits for the store");
        };
        assert_eq!(refused, ErrorCode::NOT_LEADER_OR_FOLLOWER);
        assert!(began.elapsed() < LEFT_OUT_MAX, "after {:?}", began.elapsed());
        for id in ALL {
            wait_until("it is left out", LEFT_OUT_MAX, || leaders(cluster, id, OWN) == [1, 3].into());
        }
        assert_eq!(client.fetch(OWN, partition, 0).error_code, ErrorCode::NOT_LEADER_OR_FOLLOWER);
        let successor = cluster.partitions(1, OWN)[partition as usize].leader_id;
        assert_eq!(produce(cluster, successor, partition, "after"), ErrorCode::NONE);
        load.goes_on();
        let broker = cluster.broker(2);
        broker.wait_for_stderr("cannot reach the object store");
        let ready = broker.admin_page("/readyz");
        assert!(ready.contains(" 200 ") && ready.contains("requests to the object store have failed for "), "{ready}");
        let metrics = broker.admin_page("/metrics");
        let failures = metrics.lines().find(|line| line.starts_with("fullbore_diskless_put_failures_total "));
        assert!(failures.is_some_and(|line| !line.ends_with(" 0")), "{failures:?}");
        store.set(2, Link::Open);
        wait_until("it is back", BACK_MAX, || leaders(cluster, 1, OWN) == ALL.into());
        wait_until("it takes a batch", LEFT_OUT_MAX, || produce(cluster, 2, partition, "again") == ErrorCode::NONE);
        load.goes_on();
    });
}

#[test]
fn broker_cut_off_the_store_is_replaced_until_it_is_back() {
    broker_loses(Link::Cut);
}

#[test]
fn broker_with_a_hung_store_is_replaced_until_it_is_back() {
    broker_loses(Link::Held);
}

#[test]
fn loss_of_the_store_at_all_brokers_leaves_one_leader_until_it_is_back() {
    let (mut cluster, store) = started();
    produced_while(&mut cluster, TOPIC, |cluster, load| {
        ALL.iter().for_each(|id| store.set(*id, Link::Held));
        wait_until("one broker is left", LEFT_OUT_MAX, || leaders(cluster, 1, OWN).len() == 1);
        let last = leaders(cluster, 1, OWN);
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            assert_eq!(leaders(cluster, 1, OWN), last, "nothing flaps");
        }
        ALL.iter().for_each(|id| store.set(*id, Link::Open));
        wait_until("all are back", BACK_MAX, || leaders(cluster, 1, OWN) == ALL.into());
        load.goes_on();
    });
}
