//! Tests against a scripted broker that this producer does not have certain bugs of other producers. The row in the
//! name of a test is the number of the bug.

use crate::alone::{producer, send};
use crate::fake::{Fake, Fate, Seen, State};
use fullbore_producer::{Delivery, ProduceError, Producer, RecordMetadata};
use fullbore_wire::{ErrorCode, Uuid};
use std::time::Duration;

async fn written(producer: &Producer, partition: i32, value: &str) -> RecordMetadata {
    settled(send(producer, partition, value).await).await.unwrap()
}

async fn settled(delivery: Delivery) -> Result<RecordMetadata, ProduceError> {
    tokio::time::timeout(Duration::from_secs(60), delivery).await.expect("every record gets a result")
}

async fn send_all(producer: &Producer, values: &[&str]) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    for value in values {
        deliveries.push(send(producer, 0, value).await);
    }
    deliveries
}

/// Returns a script with a fate for the first attempt of each named value. Later attempts and other values are normal.
fn once(fates: &[(&'static str, Fate)]) -> impl FnMut(&Seen) -> Fate + Send + 'static {
    let mut left = fates.to_vec();
    move |seen| match left.iter().position(|(value, _)| seen.values.iter().any(|v| v == value)) {
        Some(at) => left.remove(at).1,
        None => Fate::Normal,
    }
}

#[tokio::test]
async fn row_17_a_batch_that_fails_for_good_does_not_renumber_one_that_is_retried() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[]);
    written(&producer, 0, "0").await;
    for code in [ErrorCode::MESSAGE_TOO_LARGE, ErrorCode::UNKNOWN_SERVER_ERROR] {
        let before = fake.values(0).len();
        fake.script(once(&[("k-1", Fate::WrittenBut(ErrorCode::REQUEST_TIMED_OUT)), ("k", Fate::Refused(code))]));
        fake.hold(true);
        let deliveries = send_all(&producer, &["k-1", "k"]).await;
        fake.until("both are in flight", |s| s.seen.last().is_some_and(|seen| seen.values == ["k"])).await;
        fake.hold(false);
        let mut results = Vec::new();
        for delivery in deliveries {
            results.push(settled(delivery).await);
        }
        assert_eq!(results[0].as_ref().unwrap().offset, before as i64);
        let error = results[1].as_ref().unwrap_err();
        assert_eq!(error.may_have_been_written(), code == ErrorCode::UNKNOWN_SERVER_ERROR, "{error}");
        written(&producer, 0, "next").await;
        assert_eq!(fake.values(0)[before..], ["k-1", "next"]);
    }
}

#[tokio::test]
async fn row_18_a_new_epoch_on_one_partition_leaves_the_others_alone() {
    let fake = Fake::start(1, 2).await;
    let producer = producer(&fake, &[]);
    written(&producer, 0, "a0").await;
    written(&producer, 1, "b0").await;
    fake.script(once(&[
        ("a1", Fate::Refused(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER)),
        ("b1", Fate::WrittenBut(ErrorCode::REQUEST_TIMED_OUT)),
    ]));
    let (a, b) = (send(&producer, 0, "a1").await, send(&producer, 1, "b1").await);
    assert_eq!((settled(a).await.unwrap().offset, settled(b).await.unwrap().offset), (1, 1));
    assert_eq!((fake.values(0), fake.values(1)), (vec!["a0".into(), "a1".into()], vec!["b0".into(), "b1".into()]));
    assert_eq!(fake.seen(0).last().unwrap().stamp.producer_epoch, 1);
    assert!(fake.seen(1).iter().all(|seen| seen.stamp.producer_epoch == 0));
}

#[tokio::test]
async fn row_19_a_partition_that_was_idle_during_a_new_epoch_goes_on() {
    let fake = Fake::start(1, 2).await;
    let producer = producer(&fake, &[]);
    written(&producer, 0, "a0").await;
    written(&producer, 1, "b0").await;
    fake.script(once(&[("bad", Fate::Refused(ErrorCode::INVALID_RECORD))]));
    let error = settled(send(&producer, 0, "bad").await).await.unwrap_err();
    assert!(!error.may_have_been_written() && !error.is_retryable());
    written(&producer, 0, "a1").await;
    written(&producer, 1, "b1").await;
    let stamp = fake.seen(0).last().unwrap().stamp;
    assert_eq!((stamp.producer_epoch, stamp.base_sequence), (1, 0));
    assert_eq!((fake.values(0).len(), fake.values(1).len()), (2, 2));
}

#[tokio::test]
async fn row_20_after_a_reset_batches_go_again_in_their_order() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[]);
    written(&producer, 0, "0").await;
    let five = ["1", "2", "3", "4", "5"];
    let refused = Fate::Refused(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    fake.script(once(&five.map(|value| (value, refused))));
    for (i, delivery) in send_all(&producer, &five).await.into_iter().enumerate() {
        assert_eq!(settled(delivery).await.unwrap().offset, i as i64 + 1);
    }
    assert_eq!(fake.values(0), ["0", "1", "2", "3", "4", "5"]);
    let again: Vec<i32> =
        fake.seen(0).iter().filter(|seen| seen.stamp.producer_epoch > 0).map(|seen| seen.stamp.base_sequence).collect();
    assert!(again.is_sorted() && again[0] == 0, "{again:?}");
}

#[tokio::test]
async fn row_21_after_a_lost_response_the_same_sequence_goes_again() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[]);
    written(&producer, 0, "0").await;
    fake.script(once(&[("1", Fate::ResponseLost)]));
    assert_eq!(written(&producer, 0, "1").await.offset, 1);
    // If a broker has forgotten the offset of a written batch, it answers the retry with DUPLICATE_SEQUENCE_NUMBER.
    // This is a success too.
    let duplicate = Fate::Refused(ErrorCode::DUPLICATE_SEQUENCE_NUMBER);
    fake.script(once(&[("2", Fate::ResponseLost), ("2", duplicate)]));
    assert_eq!(written(&producer, 0, "2").await.offset, -1);
    assert_eq!(written(&producer, 0, "3").await.offset, 3);
    assert_eq!(fake.values(0), ["0", "1", "2", "3"]);
    let seen = fake.seen(0);
    assert!(seen.iter().all(|seen| seen.stamp.producer_epoch == 0));
    for pair in [&seen[1..3], &seen[3..5]] {
        assert_eq!(pair[0].bytes, pair[1].bytes, "row 22: a retry is byte for byte the first try");
    }
}

#[tokio::test]
async fn row_22_a_batch_that_goes_again_takes_no_more_records() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[("max.request.size", "100000")]);
    written(&producer, 0, "0").await;
    fake.script(once(&[("1", Fate::WrittenBut(ErrorCode::REQUEST_TIMED_OUT))]));
    fake.hold(true);
    let mut deliveries = send_all(&producer, &["1"]).await;
    fake.until("the first attempt arrives", |s| s.seen.len() == 2).await;
    deliveries.extend(send_all(&producer, &["2", "3", "4"]).await);
    fake.hold(false);
    for delivery in deliveries {
        assert!(settled(delivery).await.unwrap().offset > 0);
    }
    assert_eq!(fake.values(0), ["0", "1", "2", "3", "4"]);
    let attempts: Vec<_> = fake.seen(0).into_iter().filter(|seen| seen.values.contains(&"1".to_owned())).collect();
    assert_eq!(attempts.len(), 2);
    assert_eq!(attempts[0].bytes, attempts[1].bytes);
}

#[tokio::test]
async fn row_23_a_topic_that_is_unknown_for_a_while_keeps_its_sequences() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[("metadata.max.age.ms", "1")]);
    written(&producer, 0, "0").await;
    for (i, value) in ["1", "2", "3"].into_iter().enumerate() {
        fake.lock().topic_error = Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        let requested = fake.lock().metadata_requested;
        fake.script(once(&[(value, Fate::Refused(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION))]));
        let delivery = send(&producer, 0, value).await;
        fake.until("metadata says unknown", move |s| s.metadata_requested > requested + 1).await;
        fake.lock().topic_error = None;
        assert_eq!(settled(delivery).await.unwrap().offset, i as i64 + 1);
    }
    assert_eq!(fake.values(0), ["0", "1", "2", "3"]);
    assert!(fake.seen(0).iter().all(|seen| seen.stamp.producer_epoch == 0));
}

#[tokio::test]
async fn row_24_a_topic_created_again_takes_new_records_from_the_start() {
    // After the topic was recreated, a broker with topic ids refuses the old id, and one without ids refuses the old
    // sequence. A lenient broker without ids refuses neither.
    for (old, lenient) in [(false, false), (true, false), (true, true)] {
        let fake = Fake::start(1, 1).await;
        (fake.lock().old, fake.lock().lenient) = (old, lenient);
        let producer = producer(&fake, &[]);
        for value in ["0", "1", "2"] {
            written(&producer, 0, value).await;
        }
        {
            let mut state = fake.lock();
            state.logs.clear();
            state.topic_id = Uuid([8; 16]);
        }
        for (i, delivery) in send_all(&producer, &["a", "b", "c"]).await.into_iter().enumerate() {
            assert_eq!(settled(delivery).await.unwrap().offset, i as i64);
        }
        assert_eq!(fake.values(0), ["a", "b", "c"]);
    }
}

#[tokio::test]
async fn row_25_records_that_expired_in_flight_are_neither_swallowed_nor_repeated() {
    for fate in [Fate::Normal, Fate::Dropped] {
        let fake = Fake::start(1, 1).await;
        let settings = [("delivery.timeout.ms", "5000"), ("request.timeout.ms", "4000")];
        let producer = producer(&fake, &settings);
        written(&producer, 0, "0").await;
        fake.script(move |_| fate);
        fake.hold(true);
        // The fake reads no request before all five are in flight. With `Fate::Dropped` it would close the connection
        // at the first request, and the next batch would be sent alone.
        fake.lock().stalled.extend(0..100);
        let five = ["1", "2", "3", "4", "5"];
        let deliveries = send_all(&producer, &five).await;
        fake.until("all are on their way", |_| {
            producer.brokers()[0].lanes.iter().map(|lane| lane.requests).sum::<usize>() == 5
        })
        .await;
        fake.lock().stalled.clear();
        fake.until("all six have come", |state| state.seen.len() >= 6).await;
        for delivery in deliveries {
            let error = settled(delivery).await.unwrap_err();
            assert!(matches!(error, ProduceError::Timeout { .. }) && error.may_have_been_written(), "{error}");
        }
        fake.script(|_| Fate::Normal);
        fake.hold(false);
        let next = written(&producer, 0, "next").await;
        let log = fake.values(0);
        assert_eq!(log[next.offset as usize], "next");
        let mut once = log.clone();
        once.dedup();
        assert_eq!(log, once);
        assert!(log == ["0", "next"] || log == ["0", "1", "2", "3", "4", "5", "next"], "{log:?}");
    }
}

#[tokio::test]
async fn row_26_the_order_holds_while_the_leader_moves() {
    let fake = Fake::start(2, 1).await;
    let producer = producer(&fake, &[]);
    let mut deliveries = Vec::new();
    for i in 0..300 {
        if i % 30 == 29 {
            let arrived = fake.lock().seen.len();
            deliveries.push(send(&producer, 0, &i.to_string()).await);
            let at_leader = move |s: &State| s.seen[arrived..].iter().any(|seen| seen.broker == s.leaders[0]);
            fake.until("something arrives at the leader", at_leader).await;
            let mut state = fake.lock();
            state.leaders[0] = 1 - state.leaders[0];
            state.leader_epoch += 1;
        } else {
            deliveries.push(send(&producer, 0, &i.to_string()).await);
        }
    }
    for (i, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(settled(delivery).await.unwrap().offset, i as i64);
    }
    let expected: Vec<String> = (0..300).map(|i| i.to_string()).collect();
    assert_eq!(fake.values(0), expected);
    assert!(fake.seen(0).iter().any(|seen| seen.broker == 1));
}

#[tokio::test]
async fn row_27_the_window_bounds_each_partition_and_max_in_flight_the_connection() {
    let fake = Fake::start(1, 3).await;
    let producer = producer(&fake, &[("max.in.flight.requests.per.connection", "20")]);
    fake.hold(true);
    let mut deliveries = Vec::new();
    for partition in 0..3 {
        for i in 0..20 {
            deliveries.push(send(&producer, partition, &i.to_string()).await);
        }
    }
    let counts = |s: &State| [0, 1, 2].map(|p| s.seen.iter().filter(|seen| seen.partition == p).count());
    // Until a broker has acknowledged a batch, one request to it is in flight.
    fake.until("one", move |s| counts(s) == [1, 0, 0]).await;
    stays(&fake, move |s| counts(s) == [1, 0, 0]).await;
    fake.script(|seen| if seen.nth == 1 { Fate::WrittenBut(ErrorCode::REQUEST_TIMED_OUT) } else { Fate::Normal });
    fake.hold(false);
    for delivery in deliveries {
        settled(delivery).await.unwrap();
    }
    fake.script(|_| Fate::Normal);
    fake.hold(true);
    let mut deliveries = Vec::new();
    for partition in 0..3 {
        for i in 20..40 {
            deliveries.push(send(&producer, partition, &i.to_string()).await);
        }
    }
    let newest = |s: &State| {
        [0, 1, 2].map(|p| {
            let of = s.seen.iter().filter(|seen| seen.partition == p);
            of.filter(|seen| seen.values[0].parse::<u32>().is_ok_and(|v| v >= 20)).count()
        })
    };
    fake.until("five of each", move |s| newest(s) == [5; 3]).await;
    stays(&fake, move |s| newest(s) == [5; 3]).await;
    fake.hold(false);
    for delivery in deliveries {
        settled(delivery).await.unwrap();
    }
    let expected: Vec<String> = (0..40).map(|i| i.to_string()).collect();
    (0..3).for_each(|partition| assert_eq!(fake.values(partition), expected));
}

/// Asserts that `condition` holds for a while. This is the only way to see that an event does not happen.
async fn stays(fake: &Fake, condition: impl Fn(&State) -> bool) {
    for _ in 0..30 {
        assert!(condition(&fake.lock()));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_lost_response_stalls_the_window_before_the_broker_forgets_the_batch() {
    // As in fluss#2826, the first of many batches has no known result while later batches are acknowledged. Each record
    // must still get its offset.
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[("max.in.flight.requests.per.connection", "50")]);
    written(&producer, 0, "0").await;
    fake.script(once(&[("1", Fate::WrittenBut(ErrorCode::REQUEST_TIMED_OUT))]));
    let values: Vec<String> = (1..50).map(|i| i.to_string()).collect();
    let values: Vec<&str> = values.iter().map(String::as_str).collect();
    for (i, delivery) in send_all(&producer, &values).await.into_iter().enumerate() {
        assert_eq!(settled(delivery).await.unwrap().offset, i as i64 + 1);
    }
    assert_eq!(fake.values(0).len(), 50);
}

#[tokio::test]
async fn a_broker_that_restarts_with_one_retained_batch_causes_no_duplicate() {
    // All responses are lost. Then the broker restarts with only the newest batch, as Kafka 4.3 does. Java's producer
    // now writes duplicates, and librdkafka's fails. This producer must do neither.
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[]);
    written(&producer, 0, "0").await;
    fake.hold(true);
    let five = ["1", "2", "3", "4", "5"];
    let deliveries = send_all(&producer, &five).await;
    fake.until("all are written", |s| s.logs[&0].values.len() == 6).await;
    fake.cut();
    fake.lock().forget_all_but_the_newest();
    fake.hold(false);
    for delivery in deliveries {
        let offset = settled(delivery).await.unwrap().offset;
        assert!(offset == -1 || offset == 5, "{offset}");
    }
    written(&producer, 0, "6").await;
    assert_eq!(fake.values(0), ["0", "1", "2", "3", "4", "5", "6"]);
}

#[tokio::test]
async fn a_new_topic_loses_nothing_on_a_broker_that_takes_any_first_sequence() {
    // As in KAFKA-15591, the broker refuses the first batch but would accept the following ones. No record may be lost
    // or written out of order.
    for _ in 0..50 {
        let fake = Fake::start(1, 1).await;
        fake.lock().lenient = true;
        fake.script(once(&[("0", Fate::Refused(ErrorCode::NOT_LEADER_OR_FOLLOWER))]));
        let producer = producer(&fake, &[]);
        for (i, delivery) in send_all(&producer, &["0", "1", "2", "3", "4", "5"]).await.into_iter().enumerate() {
            assert_eq!(settled(delivery).await.unwrap().offset, i as i64);
        }
        assert_eq!(fake.values(0), ["0", "1", "2", "3", "4", "5"]);
    }
}

#[tokio::test]
async fn an_old_broker_gets_requests_in_its_versions() {
    let fake = Fake::start(1, 1).await;
    fake.lock().old = true;
    let producer = producer(&fake, &[]);
    assert_eq!(written(&producer, 0, "0").await.offset, 0);
    producer.close(Duration::from_secs(5)).await;
}
