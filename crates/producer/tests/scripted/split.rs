//! Tests batches that the broker refuses as too large. The producer splits them until the parts fit or are single
//! records.

use crate::fake::{Fake, Fate, State};
use fullbore_producer::{ProduceError, Producer, ProducerRecord};
use fullbore_wire::ErrorCode;
use std::time::Duration;

/// Maximum size of a batch that the broker accepts, in bytes.
const BATCH_MAX: usize = 3000;

/// Starts a broker that refuses batches larger than [`BATCH_MAX`] with this error.
async fn strict(code: ErrorCode) -> Fake {
    let fake = Fake::start(1, 1).await;
    fake.script(move |seen| if seen.bytes.len() > BATCH_MAX { Fate::Refused(code) } else { Fate::Normal });
    fake
}

fn producer(fake: &Fake, codec: &str) -> Producer {
    let bootstrap = fake.bootstrap();
    let settings = [
        ("bootstrap.servers", bootstrap.as_str()),
        ("linger.ms", "60000"),
        ("batch.size", "100000"),
        ("retry.backoff.ms", "5"),
        ("compression.type", codec),
    ];
    Producer::from_properties(settings).unwrap()
}

/// Returns a text of about this length that no codec compresses well. Each seed gives another text.
fn noise(seed: u64, length: usize) -> String {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{:016x}", state ^ state >> 29)
    };
    (0..length / 16 + 1).map(|_| next()).collect()
}

#[tokio::test]
async fn a_batch_too_large_is_split_until_its_parts_fit_and_every_record_is_written_once() {
    for code in [ErrorCode::MESSAGE_TOO_LARGE, ErrorCode::RECORD_LIST_TOO_LARGE] {
        for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
            let fake = strict(code).await;
            let producer = producer(&fake, codec);
            let values: Vec<String> = (0..60).map(|n| noise(n, 600)).collect();
            let mut deliveries = Vec::new();
            for value in &values {
                deliveries.push(producer.send(ProducerRecord::new("t", value.as_bytes())).await.unwrap());
            }
            producer.flush().await;
            for (offset, delivery) in deliveries.iter().enumerate() {
                assert_eq!(delivery.try_result().unwrap().unwrap().offset, offset as i64, "{codec}");
            }
            assert_eq!(fake.values(0), values, "{codec}");
            let seen = fake.seen(0);
            assert_eq!(seen[0].values.len(), 60, "{codec}: it was one batch");
            // Each part is compressed again, like the whole batch before.
            assert!(seen.iter().all(|seen| (seen.bytes[22] & 7 == 0) == (codec == "none")), "{codec}");
            producer.close(Duration::from_secs(10)).await;
        }
    }
}

#[tokio::test]
async fn of_a_batch_too_large_only_the_record_that_never_fits_fails() {
    for codec in ["none", "zstd"] {
        let fake = strict(ErrorCode::MESSAGE_TOO_LARGE).await;
        let producer = producer(&fake, codec);
        let mut values: Vec<String> = (0..20).map(|n| noise(n, 200)).collect();
        values[7] = noise(7, 20_000);
        let mut deliveries = Vec::new();
        for value in &values {
            deliveries.push(producer.send(ProducerRecord::new("t", value.as_bytes())).await.unwrap());
        }
        producer.flush().await;
        let refused = deliveries.remove(7).try_result().unwrap().unwrap_err();
        assert!(
            matches!(refused, ProduceError::Broker { code: ErrorCode::MESSAGE_TOO_LARGE, .. }),
            "{codec}: {refused}"
        );
        assert!(!refused.may_have_been_written() && !refused.is_retryable(), "{codec}: {refused}");
        values.remove(7);
        for (offset, delivery) in deliveries.iter().enumerate() {
            assert_eq!(delivery.try_result().unwrap().unwrap().offset, offset as i64, "{codec}");
        }
        assert_eq!(fake.values(0), values, "{codec}");
        producer.close(Duration::from_secs(10)).await;
    }
}

/// The records of both halves share one outcome. If one half may have been written and the other is refused, the error
/// must not claim that all records are certainly not written.
#[tokio::test]
async fn a_half_that_may_be_written_is_not_surely_lost_where_the_other_half_is_refused() {
    let fake = Fake::start(1, 1).await;
    let bootstrap = fake.bootstrap();
    let settings = [
        ("bootstrap.servers", bootstrap.as_str()),
        ("linger.ms", "60000"),
        ("retry.backoff.ms", "5"),
        ("retry.backoff.max.ms", "20"),
        ("request.timeout.ms", "4000"),
        ("delivery.timeout.ms", "64000"),
    ];
    let producer = Producer::from_properties(settings).unwrap();
    // After the first acknowledgement of the broker, both halves are sent before either gets a response.
    drop(producer.send(ProducerRecord::new("t", b"first")).await.unwrap());
    producer.flush().await;
    let (mut whole, mut first_half) = (true, true);
    fake.script(move |seen| {
        if std::mem::take(&mut whole) {
            Fate::Refused(ErrorCode::MESSAGE_TOO_LARGE)
        } else if seen.values.iter().any(|value| value == "0") && std::mem::take(&mut first_half) {
            Fate::WrittenBut(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        } else {
            Fate::Refused(ErrorCode::NOT_ENOUGH_REPLICAS)
        }
    });
    let mut deliveries = Vec::new();
    for value in ["0", "1"] {
        deliveries.push(producer.send(ProducerRecord::new("t", value.as_bytes())).await.unwrap());
    }
    let of = |state: &State, value: &str| state.seen.iter().filter(|seen| seen.values == [value]).count();
    tokio::select! {
        () = producer.flush() => panic!("neither half is ever written"),
        () = fake.until("both halves were refused", |state| of(state, "0") >= 3 && of(state, "1") >= 3) => {}
    }
    producer.close(Duration::ZERO).await;
    let error = deliveries.remove(0).try_result().unwrap().unwrap_err();
    assert!(error.may_have_been_written(), "{error}");
}

/// Sends `records` records of 100 bytes, which the producer gathers in a few large batches. Returns the notices.
async fn send_all(fake: &Fake, records: u64) -> Vec<String> {
    fake.hold(true);
    let bootstrap = fake.bootstrap();
    let settings = [
        ("bootstrap.servers", bootstrap.as_str()),
        ("max.in.flight.requests.per.connection", "5"),
        ("linger.ms", "0"),
        ("batch.size", "2000"),
        ("max.request.size", "100000"),
        ("retry.backoff.ms", "5"),
    ];
    let producer = Producer::from_properties(settings).unwrap();
    let (notices, noticed) = std::sync::mpsc::channel();
    producer.on_notice(move |notice| drop(notices.send(notice.to_owned())));
    let mut deliveries = Vec::new();
    for n in 0..records {
        deliveries.push(producer.send(ProducerRecord::new("t", noise(n, 100).as_bytes())).await.unwrap());
    }
    fake.hold(false);
    producer.flush().await;
    for (offset, delivery) in deliveries.iter().enumerate() {
        assert_eq!(delivery.try_result().unwrap().unwrap().offset, offset as i64);
    }
    producer.close(Duration::from_secs(10)).await;
    noticed.try_iter().collect()
}

#[tokio::test]
async fn a_batch_is_refused_for_its_size_the_topics_limit_is_fetched_once_and_filled() {
    let fake = strict(ErrorCode::MESSAGE_TOO_LARGE).await;
    fake.lock().topic_limit = Some(Ok(BATCH_MAX));
    let notices = send_all(&fake, 4000).await;
    assert_eq!((fake.lock().configs_requested, notices.len()), (1, 1), "{notices:?}");
    let taken: Vec<usize> = fake.seen(0).iter().map(|seen| seen.bytes.len()).filter(|len| *len <= BATCH_MAX).collect();
    let full = taken.iter().filter(|len| **len > BATCH_MAX - 200).count();
    assert!(full * 4 > taken.len() * 3, "{full} of {}: {taken:?}", taken.len());
}

#[tokio::test]
async fn the_topics_limit_is_not_readable_it_is_searched_for() {
    let fake = strict(ErrorCode::MESSAGE_TOO_LARGE).await;
    fake.lock().topic_limit = Some(Err(ErrorCode::TOPIC_AUTHORIZATION_FAILED));
    let notices = send_all(&fake, 4000).await;
    assert_eq!((fake.lock().configs_requested, notices.len()), (1, 1), "{notices:?}");
}

#[tokio::test]
async fn one_record_of_a_batch_is_too_large_its_error_comes_without_a_notice() {
    let fake = strict(ErrorCode::MESSAGE_TOO_LARGE).await;
    fake.lock().topic_limit = Some(Ok(BATCH_MAX));
    let producer = producer(&fake, "none");
    let (notices, noticed) = std::sync::mpsc::channel();
    producer.on_notice(move |notice| drop(notices.send(notice.to_owned())));
    let mut deliveries = Vec::new();
    for length in [10, 5000, 10] {
        deliveries.push(producer.send(ProducerRecord::new("t", noise(1, length).as_bytes())).await.unwrap());
    }
    producer.flush().await;
    let failed = deliveries.iter().map(|delivery| delivery.try_result().unwrap().is_err());
    assert_eq!(failed.collect::<Vec<_>>(), [false, true, false]);
    // The producer may request the limit only after it has sent the parts, so the test waits for that request.
    fake.until("the limit is asked for", |state| state.configs_requested == 1).await;
    producer.close(Duration::from_secs(10)).await;
    assert_eq!(noticed.try_iter().collect::<Vec<_>>(), Vec::<String>::new());
}

/// Batches grow to max.request.size while the window is full. What the producer learns from the first refusals must
/// apply to all batches behind them.
#[tokio::test]
async fn a_topic_that_takes_less_than_a_request_refuses_each_size_once_and_is_named_in_one_notice() {
    for (codec, partitions, in_flight) in [("none", 1, "auto"), ("zstd", 1, "5"), ("none", 3, "auto"), ("none", 1, "1")]
    {
        let fake = Fake::start(1, partitions).await;
        let refused = Fate::Refused(ErrorCode::MESSAGE_TOO_LARGE);
        fake.script(move |seen| if seen.bytes.len() > BATCH_MAX { refused } else { Fate::Normal });
        fake.hold(true);
        let bootstrap = fake.bootstrap();
        let settings = [
            ("bootstrap.servers", bootstrap.as_str()),
            ("max.in.flight.requests.per.connection", in_flight),
            ("linger.ms", "0"),
            ("batch.size", "2000"),
            ("max.request.size", "100000"),
            ("retry.backoff.ms", "5"),
            ("compression.type", codec),
        ];
        let producer = Producer::from_properties(settings).unwrap();
        let (notices, noticed) = std::sync::mpsc::channel();
        producer.on_notice(move |notice| drop(notices.send(notice.to_owned())));
        let values: Vec<String> = (0..4000).map(|n| noise(n, 100)).collect();
        let mut deliveries = Vec::new();
        for (n, value) in values.iter().enumerate() {
            let record = ProducerRecord::new("t", value.as_bytes()).partition((n % partitions) as i32);
            deliveries.push(producer.send(record).await.unwrap());
        }
        fake.hold(false);
        producer.flush().await;
        let case = format!("{codec}, {partitions} partitions, {in_flight} in flight");
        for (n, delivery) in deliveries.iter().enumerate() {
            assert_eq!(delivery.try_result().unwrap().unwrap().offset, (n / partitions) as i64, "{case}");
        }
        for partition in 0..partitions {
            let seen = fake.seen(partition as i32);
            let refused = seen.iter().filter(|seen| seen.bytes.len() > BATCH_MAX).count();
            // At most five batches are in flight, and each is refused at most six times, because each refusal halves
            // it.
            assert!(refused <= 5 * 6, "{case}: {refused} refused of {}", seen.len());
            assert!(seen.len() <= 4000 / 8, "{case}: {} batches are small ones", seen.len());
        }
        let noticed: Vec<String> = noticed.try_iter().collect();
        assert_eq!(noticed.len(), 1, "{case}: {noticed:?}");
        assert!(noticed[0].contains(" bytes exceed max.message.bytes of topic t: "), "{}", noticed[0]);
        producer.close(Duration::from_secs(10)).await;
    }
}
