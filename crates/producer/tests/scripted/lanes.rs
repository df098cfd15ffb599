//! Tests several connections to one broker. A partition uses one of them, or all of them if the broker parks
//! out-of-order batches.

use crate::alone::{self, send, settle};
use crate::fake::{Announced, Fake, Fate, Seen, State};
use fullbore_producer::{Delivery, Producer};
use fullbore_wire::ErrorCode;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

fn producer(fake: &Fake, more: &[(&str, &str)]) -> Producer {
    let base = [("max.in.flight.requests.per.connection", "1000"), ("metadata.max.age.ms", "300000")];
    alone::producer(fake, &[&base, more].concat())
}

async fn flood(producer: &Producer, partitions: i32, values: std::ops::Range<usize>) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for i in values {
        for partition in 0..partitions {
            deliveries.push(send(producer, partition, &i.to_string()).await);
        }
    }
    deliveries
}

/// Sends one record at a time until `lanes` connections are open. Returns how many records it sent.
async fn open(producer: &Producer, lanes: usize) -> usize {
    let mut sent = 0;
    while producer.brokers().first().is_none_or(|broker| broker.lanes.len() < lanes) {
        settle(vec![send(producer, 0, &sent.to_string()).await]).await;
        sent += 1;
    }
    sent
}

fn turns(producer: &Producer) -> u64 {
    producer.brokers().iter().map(|broker| broker.turns).sum()
}

fn expected(count: usize) -> Vec<String> {
    (0..count).map(|i| i.to_string()).collect()
}

async fn stays(fake: &Fake, condition: impl Fn(&State) -> bool) {
    for _ in 0..30 {
        assert!(condition(&fake.lock()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn striped(retain: i32, reorder: i32) -> Fake {
    let fake = Fake::start(1, 1).await;
    fake.lock().announced[0] = Announced { retain, reorder, ..Announced::default() };
    fake
}

const FOUR: &[(&str, &str)] = &[("connections.per.broker", "4")];

#[tokio::test]
async fn a_partition_keeps_to_one_connection_and_partitions_take_turns() {
    let fake = Fake::start(1, 8).await;
    let producer = producer(&fake, FOUR);
    open(&producer, 4).await;
    settle(flood(&producer, 8, 0..1).await).await;
    let before = fake.lock().seen.len();
    settle(flood(&producer, 8, 1..100).await).await;
    let seen = fake.lock().seen[before..].to_vec();
    assert!(seen.iter().all(|batch| !batch.reorder));
    let mut homes = HashMap::new();
    for batch in &seen {
        assert_eq!(*homes.entry(batch.partition).or_insert(batch.connection), batch.connection);
    }
    for connection in 0..4 {
        assert_eq!(homes.values().filter(|home| **home == connection).count(), 2, "{homes:?}");
    }
}

#[tokio::test]
async fn a_striped_partition_uses_every_connection_and_keeps_its_order() {
    let fake = striped(64, 63).await;
    let producer = producer(&fake, FOUR);
    let first = open(&producer, 4).await;
    let before = fake.lock().seen.len();
    // The broker stops reading one connection after another, each for 10 ms, so that batches arrive out of order.
    let stall = tokio::spawn({
        let fake = fake.clone();
        async move {
            for turn in 0.. {
                fake.lock().stalled = HashSet::from([turn % 4]);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    settle(flood(&producer, 1, first..first + 500).await).await;
    stall.abort();
    assert_eq!(fake.values(0), expected(first + 500));
    let seen = fake.lock().seen[before..].to_vec();
    assert_eq!(seen.len(), 500, "the broker puts them in order: none goes again");
    assert!(seen.iter().filter(|batch| batch.reorder).count() > 400, "all but those that were alone");
    assert_eq!(seen.iter().map(|batch| batch.connection).collect::<HashSet<_>>().len(), 4);
    assert!(!seen.is_sorted_by_key(|batch| batch.stamp.base_sequence), "some were early");
}

/// A batch that is alone in flight does not permit parking. Otherwise a broker that has forgotten the producer would
/// park it for fullbore.reorder.wait.ms.
#[tokio::test]
async fn a_batch_alone_does_not_permit_reordering() {
    let fake = striped(64, 63).await;
    let producer = producer(&fake, FOUR);
    let first = open(&producer, 4).await;
    settle(flood(&producer, 1, first..first + 1).await).await;
    assert!(fake.seen(0).iter().all(|batch| !batch.reorder));
}

#[tokio::test]
async fn no_more_are_in_flight_than_the_broker_holds_or_remembers() {
    for (retain, reorder, window) in [(64, 9, 10), (20, 63, 20)] {
        let fake = striped(retain, reorder).await;
        let producer = producer(&fake, FOUR);
        let first = open(&producer, 4).await;
        let before = fake.lock().seen.len();
        fake.hold(true);
        let deliveries = flood(&producer, 1, first..first + 100).await;
        fake.until("the window is full", move |state| state.seen.len() == before + window).await;
        stays(&fake, move |state| state.seen.len() == before + window).await;
        fake.hold(false);
        settle(deliveries).await;
        assert_eq!(fake.values(0), expected(first + 100));
    }
}

#[tokio::test]
async fn one_connection_alone_never_permits_reordering() {
    let fake = striped(64, 63).await;
    let producer = producer(&fake, &[("connections.per.broker", "1")]);
    settle(flood(&producer, 1, 0..200).await).await;
    assert!(fake.seen(0).iter().all(|batch| !batch.reorder && batch.connection == 0));
    assert_eq!(fake.values(0), expected(200));
}

#[tokio::test]
async fn a_connection_that_dies_mid_way_costs_neither_order_nor_records() {
    for connection in 0..4 {
        let fake = striped(64, 63).await;
        let producer = producer(&fake, FOUR);
        let begin = open(&producer, 4).await;
        let before = fake.lock().seen.len();
        fake.hold(true);
        let deliveries = flood(&producer, 1, begin..begin + 200).await;
        fake.until("many are in flight", move |state| state.seen.len() == before + 64).await;
        fake.end(connection);
        fake.hold(false);
        settle(deliveries).await;
        assert_eq!(fake.values(0), expected(begin + 200));
        // The batches whose responses were lost were sent again in one round, over one connection. The broker
        // recognised these retries.
        let seen = fake.lock().seen[before..].to_vec();
        let mut firsts = HashSet::new();
        let (again, first): (Vec<_>, Vec<_>) = seen.iter().partition(|batch| !firsts.insert(batch.stamp.base_sequence));
        let lost: HashSet<i32> = first
            .iter()
            .filter(|batch| batch.connection == connection)
            .map(|batch| batch.stamp.base_sequence)
            .collect();
        assert!(!again.is_empty());
        assert!(again.iter().all(|batch| lost.contains(&batch.stamp.base_sequence)), "the others' answers came");
        assert!(again.is_sorted_by_key(|batch| batch.stamp.base_sequence));
        assert_eq!(again.iter().map(|batch| batch.connection).collect::<HashSet<_>>().len(), 1);
    }
}

#[tokio::test]
async fn all_lanes_but_one_die_the_missing_batch_reaches_those_that_wait() {
    let fake = striped(64, 63).await;
    fake.lock().connections_max = 4;
    let producer = producer(&fake, FOUR);
    let first = open(&producer, 4).await;
    for connection in 1..4 {
        // The broker does not read from these three connections before they end, so their requests are lost.
        fake.lock().stalled.insert(connection);
    }
    let before = fake.lock().seen.len();
    let deliveries = flood(&producer, 1, first..first + 200).await;
    fake.until("some arrive", move |state| state.seen.len() > before + 10).await;
    (1..4).for_each(|connection| fake.end(connection));
    let all = tokio::time::timeout(Duration::from_secs(40), settle(deliveries)).await;
    all.expect("sooner than the broker gives up those that wait");
    assert_eq!(fake.values(0), expected(first + 200));
}

#[tokio::test]
async fn remaining_lane_is_full_the_missing_batch_leaves_over_it() {
    let fake = striped(64, 63).await;
    fake.lock().connections_max = 2;
    let settings = [("connections.per.broker", "2"), ("max.in.flight.requests.per.connection", "5")];
    let producer = producer(&fake, &settings);
    let first = open(&producer, 2).await;
    fake.lock().stalled.insert(1);
    let before = fake.lock().seen.len();
    let deliveries = flood(&producer, 1, first..first + 200).await;
    let is_full = move |state: &State| {
        let is_early = |batch: &&Seen| !state.logs[&0].values.contains(&batch.values[0]);
        state.seen[before..].iter().filter(is_early).count() == 5
    };
    fake.until("the lane is full", is_full).await;
    fake.end(1);
    let all = tokio::time::timeout(Duration::from_secs(40), settle(deliveries)).await;
    all.expect("sooner than the broker gives up those that wait");
    assert_eq!(fake.values(0), expected(first + 200));
}

#[tokio::test]
async fn a_batch_that_is_refused_takes_those_behind_it_along_in_order() {
    let fake = striped(64, 63).await;
    let producer = producer(&fake, FOUR);
    let first = open(&producer, 4).await;
    let mut refused = HashSet::new();
    fake.script(move |seen| match seen.stamp.base_sequence {
        sequence if sequence % 40 == 7 && refused.insert(sequence) => Fate::Refused(ErrorCode::NOT_ENOUGH_REPLICAS),
        _ => Fate::Normal,
    });
    settle(flood(&producer, 1, first..first + 300).await).await;
    assert_eq!(fake.values(0), expected(first + 300));
}

#[tokio::test]
async fn striping_ends_when_the_broker_stops_offering_it() {
    let fake = striped(64, 63).await;
    let producer = producer(&fake, FOUR);
    let first = open(&producer, 4).await;
    settle(flood(&producer, 1, first..first + 200).await).await;
    fake.lock().announced[0].reorder = 0;
    fake.hold(true);
    let mut deliveries = flood(&producer, 1, first + 200..first + 300).await;
    let before = fake.lock().seen.len();
    fake.hold(false);
    deliveries.extend(flood(&producer, 1, first + 300..first + 400).await);
    settle(deliveries).await;
    assert_eq!(fake.values(0), expected(first + 400));
    let seen = fake.lock().seen[before..].to_vec();
    let last = seen.last().unwrap().connection;
    let since = seen.iter().rposition(|batch| batch.connection != last || batch.reorder).map_or(0, |at| at + 1);
    assert!(since < seen.len() - 100, "the last hundreds keep to one lane");
    // The broker parks out-of-order batches again, so a partition may use all connections.
    fake.lock().announced[0].reorder = 63;
    let before = fake.lock().seen.len();
    settle(flood(&producer, 1, first + 400..first + 600).await).await;
    let seen = fake.lock().seen[before..].to_vec();
    assert!(seen.iter().any(|batch| batch.connection != last && batch.reorder));
    assert_eq!(fake.values(0), expected(first + 600));
}

#[tokio::test]
async fn a_broker_that_takes_fewer_connections_is_served_over_those() {
    let fake = striped(64, 63).await;
    fake.lock().connections_max = 2;
    let producer = producer(&fake, FOUR);
    let first = open(&producer, 2).await;
    settle(flood(&producer, 1, first..first + 200).await).await;
    assert_eq!(fake.values(0), expected(first + 200));
    let used: HashSet<usize> = fake.seen(0).iter().map(|batch| batch.connection).collect();
    assert!(used.is_subset(&HashSet::from([0, 1])), "{used:?}");
}

#[tokio::test]
async fn the_leader_moves_while_a_partition_is_striped() {
    let fake = Fake::start(2, 1).await;
    fake.lock().announced = vec![Announced { retain: 64, reorder: 63, ..Announced::default() }, Announced::default()];
    let producer = producer(&fake, FOUR);
    let mut deliveries = Vec::new();
    for turn in 0..10 {
        deliveries.extend(flood(&producer, 1, turn * 100..turn * 100 + 100).await);
        let mut state = fake.lock();
        state.leaders[0] = 1 - state.leaders[0];
        state.leader_epoch += 1;
    }
    settle(deliveries).await;
    assert_eq!(fake.values(0), expected(1000));
    // The other broker refuses out-of-order batches.
    assert!(fake.seen(0).iter().all(|batch| batch.broker == 0 || !batch.reorder));
}

#[tokio::test]
async fn producer_idle_or_blocked_its_task_does_not_spin() {
    let fake = striped(64, 63).await;
    // The broker refuses the fourth connection again and again. In the long pause between two attempts, a task that
    // spins would make many passes.
    fake.lock().connections_max = 3;
    let settings =
        [("connections.per.broker", "4"), ("reconnect.backoff.ms", "10000"), ("reconnect.backoff.max.ms", "10000")];
    let producer = producer(&fake, &settings);
    let first = open(&producer, 3).await;
    let quiet = async |what: &str| {
        // A task that spins makes many passes in every interval. A correct task on a loaded machine may still be
        // handling the last responses, but only in the first intervals. All intervals are within the pause.
        let (mut turned, mut quiet_intervals) = (u64::MAX, 0);
        for _ in 0..25 {
            let before = turns(&producer);
            tokio::time::sleep(Duration::from_millis(200)).await;
            turned = turns(&producer) - before;
            quiet_intervals = if turned <= 2 { quiet_intervals + 1 } else { 0 };
            if quiet_intervals == 5 {
                return;
            }
        }
        panic!("{what}: {turned} turns");
    };
    quiet("idle").await;
    fake.hold(true);
    let before = fake.lock().seen.len();
    let deliveries = flood(&producer, 1, first..first + 100).await;
    fake.until("the window is full", move |state| state.seen.len() == before + 64).await;
    quiet("batches wait for answers").await;
    fake.hold(false);
    settle(deliveries).await;
    quiet("idle again").await;
    assert_eq!(fake.values(0), expected(first + 100));
}

#[tokio::test]
async fn status_has_requests_in_flight() {
    let fake = striped(64, 63).await;
    let producer = producer(&fake, FOUR);
    let first = open(&producer, 4).await;
    fake.hold(true);
    let before = fake.lock().seen.len();
    let deliveries = flood(&producer, 1, first..first + 100).await;
    fake.until("the window is full", move |state| state.seen.len() == before + 64).await;
    let seen = &producer.brokers()[0];
    assert_eq!((seen.id, seen.batches_to_retain, seen.reorder_batches, seen.lanes.len()), (0, 64, 63, 4));
    assert_eq!(seen.lanes.iter().map(|lane| lane.requests).sum::<usize>(), 64);
    assert!(seen.lanes.iter().all(|lane| lane.requests > 4 && lane.bytes > 4 * 600));
    fake.hold(false);
    settle(deliveries).await;
    assert!(producer.brokers()[0].lanes.iter().all(|lane| lane.least.is_some() && lane.bytes_per_second > 0.0));
}
