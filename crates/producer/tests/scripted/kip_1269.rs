//! Tests the items of KIP-1269's own test plan for producers, except those in `learning`. Also tests two bugs of other
//! producers (see `rows`), and a broker whose responses have the correlation ids of other requests. The cases of the
//! test plan with old producers are in the tests of the broker.

use crate::alone::{self, PADDING};
use crate::fake::{Announced, Fake, Fate, Garble, State};
use fullbore_producer::{Delivery, Producer, ProducerConfig, ProducerRecord};
use fullbore_wire::ErrorCode;
use std::time::Duration;

fn producer(fake: &Fake, in_flight: &str) -> Producer {
    alone::producer(fake, &[("max.in.flight.requests.per.connection", in_flight)])
}

async fn send(producer: &Producer, partition: i32, values: std::ops::Range<usize>) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for value in values {
        let value = value.to_string();
        let record = ProducerRecord::new("t", value.as_bytes()).key(&PADDING).partition(partition);
        deliveries.push(producer.send(record).await.unwrap());
    }
    deliveries
}

/// Waits until every record is written. The offsets must begin at `first`.
async fn written(deliveries: Vec<Delivery>, first: usize) {
    for (at, delivery) in (first..).zip(deliveries) {
        let settled = tokio::time::timeout(Duration::from_secs(60), delivery).await;
        assert_eq!(settled.expect("every record gets a result").unwrap().offset, at as i64);
    }
}

fn numbers(count: usize) -> Vec<String> {
    (0..count).map(|value| value.to_string()).collect()
}

/// Asserts that `condition` holds for a while. This is the only way to see that an event does not happen.
async fn stays(fake: &Fake, condition: impl Fn(&State) -> bool) {
    for _ in 0..30 {
        assert!(condition(&fake.lock()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn more_than_five_in_flight_are_legal_with_idempotence_and_contradictions_are_named() {
    let config = |key, value| ProducerConfig::from_properties([("bootstrap.servers", "h:1"), (key, value)]);
    for in_flight in ["1", "5", "6", "20", "1000", "auto"] {
        let config = config("max.in.flight.requests.per.connection", in_flight).unwrap();
        assert!(config.is_idempotent(), "{in_flight}");
    }
    for in_flight in ["0", "-1", "many"] {
        let refused = config("max.in.flight.requests.per.connection", in_flight).unwrap_err().to_string();
        assert!(refused.contains("max.in.flight") && refused.contains(in_flight), "{refused}");
    }
    let both = [("bootstrap.servers", "h:1"), ("enable.idempotence", "true"), ("acks", "1")];
    let refused = ProducerConfig::from_properties(both).unwrap_err().to_string();
    assert!(refused.contains("enable.idempotence") && refused.contains("acks=1"), "{refused}");
}

#[tokio::test]
async fn ten_in_flight_with_five_retained_are_five_until_the_broker_retains_more() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, "10");
    written(send(&producer, 0, 0..1).await, 0).await;
    for (retain, from, in_flight) in [(5, 1, 5), (20, 31, 10), (7, 61, 7)] {
        fake.lock().announced[0].retain = retain;
        written(send(&producer, 0, from..from + 1).await, from).await;
        fake.hold(true);
        let before = fake.lock().seen.len();
        let deliveries = send(&producer, 0, from + 1..from + 30).await;
        let exactly = move |state: &State| state.seen.len() == before + in_flight;
        fake.until("as many as it may", exactly).await;
        stays(&fake, exactly).await;
        fake.hold(false);
        written(deliveries, from + 1).await;
    }
    assert_eq!(fake.values(0), numbers(91));
}

#[tokio::test]
async fn one_in_flight_with_twenty_retained_is_one() {
    let fake = Fake::start(1, 1).await;
    fake.lock().announced[0].retain = 20;
    let producer = producer(&fake, "1");
    written(send(&producer, 0, 0..1).await, 0).await;
    fake.hold(true);
    let deliveries = send(&producer, 0, 1..20).await;
    fake.until("one", |state| state.seen.len() == 2).await;
    stays(&fake, |state| state.seen.len() == 2).await;
    fake.hold(false);
    written(deliveries, 1).await;
}

#[tokio::test]
async fn two_brokers_with_different_values_get_as_many_as_each_retains() {
    let fake = Fake::start(2, 2).await;
    fake.lock().leaders = vec![0, 1];
    fake.lock().announced =
        vec![Announced { retain: 20, ..Announced::default() }, Announced { retain: 8, ..Announced::default() }];
    let producer = producer(&fake, "100");
    for partition in 0..2 {
        written(send(&producer, partition, 0..1).await, 0).await;
    }
    fake.hold(true);
    let (first, second) = (send(&producer, 0, 1..40).await, send(&producer, 1, 1..40).await);
    let counts = |state: &State| [0, 1].map(|p| state.seen.iter().filter(|seen| seen.partition == p).count() - 1);
    fake.until("twenty and eight", move |state| counts(state) == [20, 8]).await;
    stays(&fake, move |state| counts(state) == [20, 8]).await;
    fake.hold(false);
    written(first, 1).await;
    written(second, 1).await;
}

#[tokio::test]
async fn an_old_broker_gets_five_at_most() {
    let fake = Fake::start(1, 1).await;
    fake.lock().old = true;
    // This version of the Produce response has no field for the value.
    fake.lock().announced[0].retain = 20;
    let producer = producer(&fake, "100");
    written(send(&producer, 0, 0..1).await, 0).await;
    fake.hold(true);
    let deliveries = send(&producer, 0, 1..40).await;
    fake.until("five", |state| state.seen.len() == 6).await;
    stays(&fake, |state| state.seen.len() == 6).await;
    fake.hold(false);
    written(deliveries, 1).await;
}

#[tokio::test]
async fn row_2_the_window_stalls_on_its_oldest_batch_and_the_retry_gets_the_original_offset() {
    for window in [5, 20] {
        let fake = Fake::start(1, 1).await;
        fake.lock().announced[0].retain = window as i32;
        let producer = producer(&fake, "1000");
        written(send(&producer, 0, 0..1).await, 0).await;
        // The first of many batches is written, but the response has an error. The other batches are acknowledged. The
        // response to the first batch's second attempt is held back.
        let gate = fake.clone();
        let mut tries = 0;
        fake.script(move |seen| {
            tries += u32::from(seen.values == ["1"]);
            if seen.values == ["1"] && tries == 2 {
                gate.hold(true);
            }
            if seen.values == ["1"] && tries == 1 {
                Fate::WrittenBut(ErrorCode::REQUEST_TIMED_OUT)
            } else {
                Fate::Normal
            }
        });
        fake.hold(true);
        let deliveries = send(&producer, 0, 1..window + 20).await;
        fake.until("a full window", move |state| state.seen.len() == 1 + window).await;
        fake.hold(false);
        let again = move |state: &State| state.seen.len() == 2 + window && state.seen[1 + window].values == ["1"];
        fake.until("the first goes again", again).await;
        stays(&fake, again).await;
        fake.hold(false);
        written(deliveries, 1).await;
        assert_eq!(fake.values(0), numbers(window + 20));
    }
}

#[tokio::test]
async fn row_27_a_leader_with_a_smaller_window_gets_no_more_than_it_remembers_even_of_retries() {
    let fake = Fake::start(2, 1).await;
    fake.lock().announced[0].retain = 64;
    let producer = producer(&fake, "1000");
    written(send(&producer, 0, 0..1).await, 0).await;
    fake.script(|seen| if seen.broker == 0 { Fate::Refused(ErrorCode::NOT_LEADER_OR_FOLLOWER) } else { Fate::Normal });
    fake.hold(true);
    let deliveries = send(&producer, 0, 1..100).await;
    fake.until("a full window at the first", |state| state.seen.len() == 65).await;
    fake.lock().leaders[0] = 1;
    fake.lock().leader_epoch = 1;
    fake.hold(false);
    fake.until("the second gets some", |state| state.seen.iter().any(|seen| seen.broker == 1)).await;
    fake.hold(true);
    let at_second = |state: &State| state.seen.iter().filter(|seen| seen.broker == 1).count();
    let answered = move |state: &State| state.logs[&0].values.len() - 1;
    // The second broker may receive at most five records more than it acknowledged before its responses were held back
    // again.
    stays(&fake, move |state| at_second(state) <= answered(state) + 5).await;
    fake.hold(false);
    written(deliveries, 1).await;
    assert_eq!(fake.values(0), numbers(100));
}

#[tokio::test]
async fn response_ids_do_not_match_the_connection_ends_without_loss_or_duplicate() {
    for garble in [Garble::UnknownId, Garble::NextId] {
        let fake = Fake::start(1, 1).await;
        fake.lock().announced[0].retain = 20;
        let producer = producer(&fake, "1000");
        written(send(&producer, 0, 0..1).await, 0).await;
        for round in 0..3 {
            let from = 1 + round * 30;
            fake.hold(true);
            let before = fake.lock().seen.len();
            let accepted = fake.lock().connections[0];
            let deliveries = send(&producer, 0, from..from + 30).await;
            fake.until("many are in flight", move |state| state.seen.len() >= before + 5).await;
            fake.lock().garble = Some(garble);
            fake.hold(false);
            written(deliveries, from).await;
            assert!(fake.lock().garble.is_none(), "an answer was garbled");
            assert!(fake.lock().connections[0] > accepted, "the connection ended");
        }
        assert_eq!(fake.values(0), numbers(91));
    }
}
