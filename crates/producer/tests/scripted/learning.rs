//! Tests the windows that brokers grant to a producer (KIP-1269), and the producer's behaviour before it knows them.

use crate::alone::{producer, send, settle};
use crate::fake::{Announced, Fake, Fate, State};
use fullbore_producer::{Delivery, Producer};
use fullbore_wire::ErrorCode;
use std::time::Duration;

async fn written(producer: &Producer, partition: i32) {
    settle(vec![send(producer, partition, "one").await]).await;
}

async fn flood(producer: &Producer, partitions: std::ops::Range<i32>, count: usize) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for i in 0..count {
        for partition in partitions.clone() {
            deliveries.push(send(producer, partition, &i.to_string()).await);
        }
    }
    deliveries
}

/// Sends more batches than any window allows while responses are held back. Asserts that exactly `expected` batches of
/// each partition arrive.
async fn arrive(fake: &Fake, producer: &Producer, partitions: std::ops::Range<i32>, expected: usize) {
    let before = fake.lock().seen.len();
    fake.hold(true);
    let deliveries = flood(producer, partitions.clone(), expected + 10).await;
    let counts = move |state: &State| -> Vec<usize> {
        let seen = &state.seen[before..];
        partitions.clone().map(|p| seen.iter().filter(|batch| batch.partition == p).count()).collect()
    };
    let all = move |state: &State| counts(state).iter().all(|count| *count == expected);
    fake.until(&format!("{expected} batches of each partition are in flight"), all.clone()).await;
    stays(fake, all).await;
    fake.hold(false);
    settle(deliveries).await;
}

/// Asserts that `condition` holds for a while. This is the only way to see that an event does not happen.
async fn stays(fake: &Fake, condition: impl Fn(&State) -> bool) {
    for _ in 0..30 {
        assert!(condition(&fake.lock()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

const MANY: &[(&str, &str)] = &[("max.in.flight.requests.per.connection", "1000")];

#[tokio::test]
async fn the_window_is_the_brokers_value_and_follows_it_up_and_down() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, MANY);
    written(&producer, 0).await;
    for retain in [5, 20, 64, 20, 5] {
        fake.lock().announced[0].retain = retain;
        written(&producer, 0).await;
        arrive(&fake, &producer, 0..1, retain as usize).await;
    }
}

#[tokio::test]
async fn a_topics_own_value_goes_before_the_brokers() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, MANY);
    fake.lock().announced[0] = Announced { retain: 30, retain_of_topic: 12, reorder: 0 };
    written(&producer, 0).await;
    arrive(&fake, &producer, 0..1, 12).await;
    fake.lock().announced[0].retain_of_topic = -1;
    written(&producer, 0).await;
    arrive(&fake, &producer, 0..1, 30).await;
}

#[tokio::test]
async fn value_learnt_on_one_partition_holds_for_the_others_of_the_node() {
    let fake = Fake::start(1, 2).await;
    let producer = producer(&fake, MANY);
    fake.lock().announced[0].retain = 12;
    // The second partition needs an acknowledgement of its own before it uses its window. The size of the window is
    // known from the first partition.
    written(&producer, 1).await;
    fake.lock().announced[0].retain = 20;
    written(&producer, 0).await;
    arrive(&fake, &producer, 1..2, 20).await;
}

#[tokio::test]
async fn a_new_leader_starts_at_five_and_an_old_one_is_remembered() {
    let fake = Fake::start(2, 2).await;
    let producer = producer(&fake, MANY);
    fake.lock().announced[0].retain = 20;
    written(&producer, 0).await;
    written(&producer, 1).await;
    let lead = |partition: usize, broker: i32| {
        let mut state = fake.lock();
        state.leaders[partition] = broker;
        state.leader_epoch += 1;
    };
    // Broker 1 has the default window and sends no value.
    lead(0, 1);
    written(&producer, 0).await;
    arrive(&fake, &producer, 0..1, 5).await;
    arrive(&fake, &producer, 1..2, 20).await;
    lead(0, 0);
    written(&producer, 0).await;
    arrive(&fake, &producer, 0..1, 20).await;
    // The other partition moves to broker 1, which now grants more.
    fake.lock().announced[1].retain = 64;
    lead(1, 1);
    written(&producer, 1).await;
    arrive(&fake, &producer, 1..2, 64).await;
    arrive(&fake, &producer, 0..1, 20).await;
}

#[tokio::test]
async fn a_broker_that_came_back_without_the_field_gets_five() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, MANY);
    fake.lock().announced[0].retain = 20;
    written(&producer, 0).await;
    arrive(&fake, &producer, 0..1, 20).await;
    fake.cut();
    (fake.lock().old, fake.lock().announced[0]) = (true, Announced::default());
    written(&producer, 0).await;
    arrive(&fake, &producer, 0..1, 5).await;
}

#[tokio::test]
async fn value_out_of_bounds_is_replaced_by_the_nearest_bound() {
    for (announced, window) in [(0, 5), (-1, 5), (i32::MIN, 5), (3, 5), (i32::MAX, 300)] {
        let fake = Fake::start(1, 1).await;
        let producer = producer(&fake, MANY);
        fake.lock().announced[0].retain = announced;
        written(&producer, 0).await;
        if window == 5 {
            arrive(&fake, &producer, 0..1, window).await;
        } else {
            // Ten thousand batches are allowed, but hundreds are enough for the test.
            let before = fake.lock().seen.len();
            fake.hold(true);
            let deliveries = flood(&producer, 0..1, window).await;
            fake.until("all are in flight", move |state| state.seen.len() == before + window).await;
            fake.hold(false);
            settle(deliveries).await;
        }
    }
}

#[tokio::test]
async fn a_broker_gets_one_request_until_its_first_success() {
    let fake = Fake::start(2, 4).await;
    fake.lock().leaders = vec![0, 0, 0, 1];
    let producer = producer(&fake, MANY);
    producer.partitions("t").await.unwrap();
    fake.hold(true);
    let mut deliveries = flood(&producer, 0..3, 3).await;
    fake.until("one request", |state| state.requests == 1).await;
    stays(&fake, |state| state.requests == 1).await;
    // The limit of one request applies to each broker separately.
    deliveries.extend(flood(&producer, 3..4, 3).await);
    fake.until("one request each", |state| state.requests == 2).await;
    stays(&fake, |state| state.requests == 2).await;
    // A refusal does not end the limit of one request, because it is no acknowledgement.
    let mut left = 3;
    fake.script(move |seen| {
        if seen.broker == 0 && left > 0 {
            left -= 1;
            return Fate::Refused(ErrorCode::NOT_ENOUGH_REPLICAS);
        }
        Fate::Normal
    });
    fake.hold(false);
    settle(deliveries).await;
    assert_eq!((0..4).map(|p| fake.values(p).len()).collect::<Vec<_>>(), [3; 4]);
}

#[tokio::test]
async fn one_in_flight_is_one_however_much_the_broker_remembers() {
    let fake = Fake::start(1, 3).await;
    fake.lock().announced[0].retain = 20;
    let producer = producer(&fake, &[("max.in.flight.requests.per.connection", "1")]);
    for partition in 0..3 {
        written(&producer, partition).await;
    }
    let before = fake.lock().requests;
    fake.hold(true);
    let deliveries = flood(&producer, 0..3, 5).await;
    fake.until("one request", move |state| state.requests == before + 1).await;
    stays(&fake, move |state| state.requests == before + 1).await;
    fake.hold(false);
    settle(deliveries).await;
}

#[tokio::test]
async fn twenty_partitions_have_a_hundred_batches_in_flight_on_an_ordinary_kafka() {
    let fake = Fake::start(1, 20).await;
    let producer = producer(&fake, MANY);
    for partition in 0..20 {
        written(&producer, partition).await;
    }
    arrive(&fake, &producer, 0..20, 5).await;
    let limited = self::producer(&fake, &[("max.in.flight.requests.per.connection", "7")]);
    for partition in 0..20 {
        written(&limited, partition).await;
    }
    let before = fake.lock().requests;
    fake.hold(true);
    let deliveries = flood(&limited, 0..20, 5).await;
    fake.until("seven requests", move |state| state.requests == before + 7).await;
    stays(&fake, move |state| state.requests == before + 7).await;
    fake.hold(false);
    settle(deliveries).await;
}
