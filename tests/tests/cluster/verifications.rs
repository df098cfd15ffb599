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
/// How many ids wait for their coordinator.
const STUCK: usize = 20;
/// How many times the batch of a waiting id is refused in one attempt, on average.
const ROUNDS: usize = 5;
const ATTEMPTS: usize = 10;

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

/// A producer whose batches are refused while its id waits, and its connection to the leader.
struct Stuck {
    producer: Transactional,
    batch: Batch,
    leader: Client,
}

/// Sends batches of the waiting ids until each batch was refused [`ROUNDS`] times on average. Returns how many times
/// `transaction` ran meanwhile.
fn ended_beside(stuck: &mut [Stuck], partition: i32, transaction: &mut impl FnMut()) -> usize {
    let refused = AtomicUsize::new(0);
    let goes_on = || refused.load(Relaxed) < STUCK * ROUNDS;
    let mut count = 0;
    thread::scope(|scope| {
        for Stuck { producer, batch, leader } in stuck {
            let (refused, goes_on) = (&refused, &goes_on);
            scope.spawn(move || {
                while goes_on() {
                    let code = producer.send(leader, LIVE_TOPIC, partition, batch).error_code;
                    assert_eq!(code, ErrorCode::NOT_ENOUGH_REPLICAS);
                    refused.fetch_add(1, Relaxed);
                }
            });
        }
        while goes_on() {
            transaction();
            count += 1;
        }
    });
    count
}

/// Many transactional ids wait for a last marker, which only a failed broker could write. Until then, the coordinator
/// cannot confirm their next batches. The leader nevertheless requests the confirmation of each batch.
#[test]
fn ids_with_markers_for_a_failed_broker_do_not_delay_batches_of_others() {
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
    // The first batch makes the leader connect to the coordinator. This must not be part of the measurement.
    let batch = producer.batch(LIVE_TOPIC, partition, &["first"]);
    sent(&producer, &mut leader, partition, &batch);
    producer.end(&mut coordinator, true);
    let mut stuck: Vec<Stuck> = stuck
        .into_iter()
        .map(|mut producer| {
            let batch = producer.batch(LIVE_TOPIC, partition, &["too early"]);
            Stuck { producer, batch, leader: cluster.broker(LEADER).client() }
        })
        .collect();
    let mut transaction = || {
        let batch = producer.batch(LIVE_TOPIC, partition, &["honest"]);
        sent(&producer, &mut leader, partition, &batch);
        producer.end(&mut coordinator, true);
    };
    // If the waiting ids delayed the producer, it would complete only about `ROUNDS` transactions: one in the time in
    // which each waiting id is refused once. A busy machine also delays the producer, but not in every attempt.
    let mut counts = Vec::new();
    while counts.len() < ATTEMPTS && counts.last().is_none_or(|count| *count < 3 * ROUNDS) {
        counts.push(ended_beside(&mut stuck, partition, &mut transaction));
    }
    let last = counts.last().expect("one attempt at least");
    assert!(*last >= 3 * ROUNDS, "{counts:?} transactions while {STUCK} others were refused {ROUNDS} times each");
}
