//! Transactions across brokers. A transactional id that waits for its coordinator must not delay other ids.

use crate::faults::SOON;
use fullbore_tests::{Batch, Client, Cluster, Protocol, Transactional, wait_until};
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::{ErrorCode, Text};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

const COORDINATOR: i32 = 1;
const LEADER: i32 = 2;
const DEAD: i32 = 3;
const DEAD_TOPIC: &str = "dead";
const LIVE_TOPIC: &str = "live";

/// Returns `count` transactional ids that broker 1 coordinates.
fn coordinated(client: &mut Client, count: usize) -> Vec<String> {
    let names = (0..1_000).map(|n| format!("id-{n}"));
    let found: Vec<_> = names
        .filter(|id| {
            let coordinator_keys = vec![Text::from(id.as_str())];
            let request = FindCoordinatorRequest { key_type: 1, coordinator_keys, ..Default::default() };
            let mut node_id = -1;
            wait_until("the id has a coordinator", SOON, || {
                node_id = client.call(&request, 4).coordinators[0].node_id;
                node_id >= 0
            });
            node_id == COORDINATOR
        })
        .take(count)
        .collect();
    assert_eq!(found.len(), count);
    found
}

fn led_by(cluster: &Cluster, topic: &str, leader: i32) -> i32 {
    let partitions = cluster.partitions(COORDINATOR, topic);
    partitions.iter().find(|partition| partition.leader_id == leader).expect("each leads one").partition_index
}

/// Sends a batch until the partition accepts it.
fn sent(producer: &Transactional, client: &mut Client, partition: i32, batch: &Batch) {
    wait_until("the batch is taken", SOON, || {
        let code = producer.send(client, LIVE_TOPIC, partition, batch).error_code;
        assert!(!code.is_err() || code == ErrorCode::NOT_ENOUGH_REPLICAS, "{code}");
        !code.is_err()
    });
}

/// Many ids wait for a last marker that only a failed broker could write. For the next batch of each id, the leader
/// sends a request to the coordinator. The coordinator cannot confirm the batch before that marker is written.
#[test]
fn ids_with_markers_for_a_failed_broker_do_not_delay_batches_of_others() {
    const STUCK: usize = 20;
    const ROUNDS: usize = 5;
    let mut cluster = Cluster::start(
        3,
        &[
            "transaction.state.log.num.partitions=6",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
        ],
    );
    cluster.create(DEAD_TOPIC, 3, 1, &[]);
    cluster.create(LIVE_TOPIC, 3, 1, &[]);
    [DEAD_TOPIC, LIVE_TOPIC].iter().for_each(|topic| cluster.wait_for_same_topic(topic));
    let [mut coordinator, mut leader, mut dead] = [COORDINATOR, LEADER, DEAD].map(|id| cluster.broker(id).client());
    let (dead_partition, partition) = (led_by(&cluster, DEAD_TOPIC, DEAD), led_by(&cluster, LIVE_TOPIC, LEADER));
    let mut ids = coordinated(&mut coordinator, STUCK + 1);
    let honest = ids.pop().expect("one more");
    let mut stuck: Vec<_> = ids.iter().map(|id| Transactional::begin(&mut coordinator, id, Protocol::New)).collect();
    stuck.iter_mut().for_each(|producer| {
        let batch = producer.batch(DEAD_TOPIC, dead_partition, &["stuck"]);
        wait_until("the batch is taken", SOON, || {
            !producer.send(&mut dead, DEAD_TOPIC, dead_partition, &batch).error_code.is_err()
        });
    });
    cluster.broker(DEAD).kill();
    stuck.iter_mut().for_each(|producer| producer.end(&mut coordinator, true));
    let mut producer = Transactional::begin(&mut coordinator, &honest, Protocol::New);
    // The first batch connects the leader with the coordinator, before the count begins.
    let batch = producer.batch(LIVE_TOPIC, partition, &["first"]);
    sent(&producer, &mut leader, partition, &batch);
    producer.end(&mut coordinator, true);
    let refused = AtomicUsize::new(0);
    let mut done = 0;
    thread::scope(|scope| {
        for producer in &mut stuck {
            let (mut client, refused) = (cluster.broker(LEADER).client(), &refused);
            scope.spawn(move || {
                let batch = producer.batch(LIVE_TOPIC, partition, &["too early"]);
                while refused.load(Relaxed) < STUCK * ROUNDS {
                    let code = producer.send(&mut client, LIVE_TOPIC, partition, &batch).error_code;
                    assert_eq!(code, ErrorCode::NOT_ENOUGH_REPLICAS);
                    refused.fetch_add(1, Relaxed);
                }
            });
        }
        while refused.load(Relaxed) < STUCK * ROUNDS {
            let batch = producer.batch(LIVE_TOPIC, partition, &["honest"]);
            sent(&producer, &mut leader, partition, &batch);
            producer.end(&mut coordinator, true);
            done += 1;
        }
    });
    assert!(done >= 3 * ROUNDS, "{done} transactions while {STUCK} others were refused {ROUNDS} times each");
}
