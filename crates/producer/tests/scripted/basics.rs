//! Tests the behaviour without failures, and the limits of a producer.

use crate::fake::{Fake, Fate};
use fullbore_producer::{ProduceError, Producer, ProducerConfig, ProducerRecord, SendError};
use fullbore_wire::ErrorCode;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn producer(fake: &Fake, more: &[(&str, &str)]) -> Producer {
    let bootstrap = fake.bootstrap();
    let base = [("bootstrap.servers", bootstrap.as_str()), ("linger.ms", "0"), ("retry.backoff.ms", "5")];
    Producer::from_properties(base.into_iter().chain(more.iter().copied())).unwrap()
}

#[tokio::test]
async fn a_batch_that_cannot_leave_grows_past_batch_size() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[("batch.size", "2000"), ("max.request.size", "20000")]);
    fake.hold(true);
    let first = producer.send(ProducerRecord::new("t", b"first")).await.unwrap();
    fake.until("the first batch arrives", |state| state.seen.len() == 1).await;
    let mut deliveries = Vec::new();
    for i in 0..15 {
        let value = format!("{i:0>1000}");
        deliveries.push(producer.send(ProducerRecord::new("t", value.as_bytes())).await.unwrap());
    }
    assert!(deliveries[0].same_batch(&deliveries[14]) && !first.same_batch(&deliveries[0]));
    fake.hold(false);
    for (i, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, i as i64 + 1);
    }
    assert_eq!(fake.seen(0).len(), 2);
}

#[tokio::test]
async fn a_batch_size_of_0_gives_each_record_a_batch_of_its_own() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[("batch.size", "0"), ("linger.ms", "20")]);
    let mut deliveries = Vec::new();
    for i in 0..20 {
        deliveries.push(producer.send(ProducerRecord::new("t", format!("{i}").as_bytes())).await.unwrap());
    }
    for (i, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, i as i64);
    }
    assert!(fake.seen(0).iter().all(|batch| batch.values.len() == 1));
}

#[tokio::test]
async fn memory_in_use_makes_send_wait_and_max_block_ends_the_wait() {
    let fake = Fake::start(1, 1).await;
    let limits =
        [("batch.size", "1024"), ("max.request.size", "4096"), ("buffer.memory", "8192"), ("max.block.ms", "2000")];
    let producer = producer(&fake, &limits);
    producer.partitions("t").await.unwrap();
    fake.hold(true);
    let value = [b'v'; 900];
    let mut deliveries = Vec::new();
    let full = loop {
        match producer.send(ProducerRecord::new("t", &value)).await {
            Ok(delivery) => deliveries.push(delivery),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, SendError::Timeout { .. }) && full.is_retryable(), "{full}");
    assert!(matches!(producer.try_send(ProducerRecord::new("t", &value)), Err(SendError::Full)));
    assert!((4..=8).contains(&deliveries.len()), "{}", deliveries.len());
    fake.hold(false);
    for delivery in deliveries {
        delivery.await.unwrap();
    }
    producer.send(ProducerRecord::new("t", &value)).await.unwrap().await.unwrap();
}

#[tokio::test]
async fn memory_bounds_batches_that_a_broker_refuses_whatever_their_codec() {
    for codec in ["none", "zstd"] {
        let fake = Fake::start(1, 20).await;
        let sizes = [("batch.size", "50000"), ("max.request.size", "50000"), ("buffer.memory", "500000")];
        let producer =
            producer(&fake, &[&sizes[..], &[("compression.type", codec), ("max.block.ms", "4000")]].concat());
        for partition in 0..20 {
            let first = ProducerRecord::new("t", b"first").partition(partition);
            producer.send(first).await.unwrap().await.unwrap();
        }
        fake.script(|_| Fate::Refused(ErrorCode::NOT_ENOUGH_REPLICAS));
        let (text, mut taken) = (noise(4_000_000), 0);
        for (value, partition) in text.chunks(4000).zip((0..20).cycle()) {
            match producer.send(ProducerRecord::new("t", value).partition(partition)).await {
                Ok(_) => taken += value.len(),
                Err(_) => break,
            }
        }
        assert!(taken < 1_000_000, "{codec}: {taken} bytes");
    }
}

#[tokio::test]
async fn memory_of_a_single_record_takes_one_of_that_size_after_another() {
    let fake = Fake::start(1, 2).await;
    let producer = producer(&fake, &[("max.request.size", "20000"), ("buffer.memory", "20000")]);
    for number in 0..4 {
        let record = ProducerRecord::new("t", &[b'v'; 19_000]).partition(number % 2);
        let delivery = producer.send(record).await.unwrap();
        assert_eq!(delivery.await.unwrap().offset, i64::from(number / 2));
    }
}

#[tokio::test]
async fn compressed_batches_grow_beyond_a_request_and_are_split_once_records_stop_compressing() {
    let fake = Fake::start(1, 1).await;
    let settings = [("compression.type", "zstd"), ("batch.size", "1000"), ("max.request.size", "8000")];
    let producer = producer(&fake, &settings);
    producer.partitions("t").await.unwrap();
    let (mut deliveries, mut seed) = (Vec::new(), 1u64);
    let mut noise = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        char::from(b'!' + (seed >> 33) as u8 % 90)
    };
    for number in 0..900 {
        // From the first batches the producer learns how well letters compress. The responses to later batches are held
        // back, so that batches grow by this ratio.
        let (letters, held) = (number < 600, number >= 400);
        fake.hold(held);
        let value: String = (0..100).map(|_| if letters { 'a' } else { noise() }).collect();
        deliveries.push(producer.send(ProducerRecord::new("t", value.as_bytes())).await.unwrap());
        if (!held && number % 50 == 49) || number == 599 {
            fake.hold(false);
            producer.flush().await;
        }
    }
    fake.hold(false);
    producer.flush().await;
    for (offset, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, offset as i64);
    }
    let largest = |letters: bool| {
        let is_letters = |values: &Vec<String>| values[0].starts_with("aaaa") == letters;
        fake.seen(0).into_iter().map(|batch| batch.values).filter(is_letters).map(|values| values.len()).max()
    };
    assert!(largest(true) > Some(100), "more than a request has before compression: {:?}", largest(true));
    assert!(largest(false) < Some(100), "no more than a request has: {:?}", largest(false));
}

/// Returns text that snappy does not compress.
fn noise(len: usize) -> Vec<u8> {
    let mut seed = 1u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        b'!' + (seed >> 40) as u8 % 90
    };
    (0..len).map(|_| next()).collect()
}

#[tokio::test]
async fn a_record_that_its_codec_makes_too_large_is_possibly_written_while_it_is_under_way() {
    let fake = Fake::start(1, 1).await;
    let settings = [("compression.type", "snappy"), ("batch.size", "0"), ("max.request.size", "2000")];
    let producer = producer(&fake, &settings);
    producer.partitions("t").await.unwrap();
    fake.hold(true);
    let largest = (0..2000).rev().find_map(|len| producer.try_send(ProducerRecord::new("t", &noise(len))).ok());
    fake.until("it arrives", |state| state.seen.len() == 1).await;
    producer.close(Duration::ZERO).await;
    let error = largest.expect("some size is taken").await.unwrap_err();
    assert!(matches!(error, ProduceError::Closed { possibly_written: true }), "{error}");
}

#[tokio::test]
async fn memory_full_of_batches_that_linger_is_freed_for_a_caller_that_never_waits() {
    let fake = Fake::start(1, 4).await;
    let sizes = [("batch.size", "65536"), ("max.request.size", "65536"), ("buffer.memory", "131072")];
    let times = [("linger.ms", "60000"), ("delivery.timeout.ms", "200000")];
    let producer = producer(&fake, &[&sizes[..], &times[..]].concat());
    producer.partitions("t").await.unwrap();
    let value = [b'v'; 1000];
    let send = |number: i32| producer.try_send(ProducerRecord::new("t", &value).partition(number % 4));
    let full = (0..1000).find(|number| send(*number).is_err()).expect("memory is bounded");
    tokio::time::timeout(Duration::from_secs(40), async {
        while send(full).is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .expect("long before they have lingered");
}

#[tokio::test]
async fn flush_sends_batches_that_linger() {
    let fake = Fake::start(1, 2).await;
    let producer = producer(&fake, &[("linger.ms", "60000"), ("delivery.timeout.ms", "100000")]);
    let deliveries = [
        producer.send(ProducerRecord::new("t", b"a").partition(0)).await.unwrap(),
        producer.send(ProducerRecord::new("t", b"b").partition(1)).await.unwrap(),
    ];
    producer.flush().await;
    for delivery in deliveries {
        assert!(delivery.completed_at().is_some());
        delivery.try_result().unwrap().unwrap();
    }
}

#[tokio::test]
async fn close_sends_the_rest_and_fails_records_not_sent_in_time() {
    let fake = Fake::start(1, 1).await;
    let first = producer(&fake, &[("linger.ms", "5000")]);
    let sent = first.send(ProducerRecord::new("t", b"a")).await.unwrap();
    first.close(Duration::from_secs(10)).await;
    assert_eq!(sent.await.unwrap().offset, 0);
    let second = producer(&fake, &[]);
    fake.hold(true);
    let held = second.send(ProducerRecord::new("t", b"b")).await.unwrap();
    fake.until("it arrives", |state| state.seen.len() == 2).await;
    second.close(Duration::from_millis(20)).await;
    let error = held.await.unwrap_err();
    assert!(matches!(error, ProduceError::Closed { possibly_written: true }), "{error}");
}

#[tokio::test]
async fn dropping_a_producer_gives_every_record_its_result() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[("linger.ms", "5000")]);
    let lingering = producer.send(ProducerRecord::new("t", b"a")).await.unwrap();
    drop(producer);
    let error = lingering.await.unwrap_err();
    assert!(matches!(error, ProduceError::Closed { possibly_written: false }), "{error}");
}

#[tokio::test]
async fn records_that_cannot_be_sent_are_refused_at_once() {
    let fake = Fake::start(1, 2).await;
    let producer = producer(&fake, &[("max.request.size", "20000")]);
    let big = [0; 20_000];
    let too_large = producer.send(ProducerRecord::new("t", &big)).await.unwrap_err();
    assert!(matches!(too_large, SendError::RecordTooLarge { max: 20_000, .. }) && !too_large.is_retryable());
    assert!(too_large.to_string().ends_with("more than max.request.size=20000"), "{too_large}");
    let nowhere = producer.send(ProducerRecord::new("t", b"v").partition(2)).await.unwrap_err();
    assert!(matches!(nowhere, SendError::NoPartition { partition: 2, .. }));
    fake.lock().topic_error = Some(ErrorCode::TOPIC_AUTHORIZATION_FAILED);
    let other = self::producer(&fake, &[]);
    let forbidden = other.send(ProducerRecord::new("t", b"v")).await.unwrap_err();
    assert!(matches!(forbidden, SendError::Topic { code: ErrorCode::TOPIC_AUTHORIZATION_FAILED, .. }), "{forbidden}");
    fake.lock().topic_error = Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let unknown = self::producer(&fake, &[("max.block.ms", "4000")]);
    let error = unknown.send(ProducerRecord::new("t", b"v")).await.unwrap_err();
    assert!(matches!(error, SendError::Timeout { what: "metadata of the topic", .. }), "{error}");
    assert!(error.to_string().contains("(max.block.ms): topic t: UNKNOWN_TOPIC_OR_PARTITION: "), "{error}");
}

#[tokio::test]
async fn keys_choose_partitions_as_java_does_and_others_are_spread() {
    let fake = Fake::start(1, 7).await;
    let producer = producer(&fake, &[("batch.size", "100")]);
    let keyed = producer.send(ProducerRecord::new("t", b"v").key(b"foobar")).await.unwrap();
    // murmur2("foobar") is -790332482 in Kafka's own test.
    assert_eq!(keyed.partition(), (-790_332_482i32 & i32::MAX) % 7);
    let mut used = [false; 7];
    for _ in 0..10_000 {
        used[producer.send(ProducerRecord::new("t", &[b'v'; 50])).await.unwrap().partition() as usize] = true;
    }
    assert_eq!(used, [true; 7]);
}

#[tokio::test]
async fn partitioner_ignores_keys_records_with_keys_are_spread() {
    let fake = Fake::start(1, 7).await;
    let producer = producer(&fake, &[("partitioner.ignore.keys", "true"), ("batch.size", "100")]);
    let mut used = [false; 7];
    for _ in 0..10_000 {
        let record = ProducerRecord::new("t", &[b'v'; 50]).key(b"foobar");
        used[producer.send(record).await.unwrap().partition() as usize] = true;
    }
    assert_eq!(used, [true; 7]);
}

#[tokio::test]
async fn a_connection_that_is_idle_is_closed_and_the_next_record_opens_another() {
    let fake = Fake::start(1, 1).await;
    let limits = [("connections.max.idle.ms", "50"), ("request.timeout.ms", "1000"), ("connections.per.broker", "1")];
    let producer = producer(&fake, &limits);
    assert_eq!(producer.send(ProducerRecord::new("t", b"a")).await.unwrap().await.unwrap().offset, 0);
    fake.until("the broker sees it closed", |state| state.closed > 0 && state.closed == state.connections[0]).await;
    assert_eq!(producer.send(ProducerRecord::new("t", b"b")).await.unwrap().await.unwrap().offset, 1);
    assert_eq!(fake.values(0), ["a", "b"]);
}

#[tokio::test]
async fn without_acks_a_record_is_done_when_it_is_written_to_the_socket() {
    let fake = Fake::start(1, 1).await;
    fake.hold(true);
    let producer = producer(&fake, &[("acks", "0")]);
    assert_eq!(producer.send(ProducerRecord::new("t", b"v")).await.unwrap().await.unwrap().offset, -1);
    fake.until("it arrives", |state| state.logs.get(&0).is_some_and(|log| log.values == ["v"])).await;
    assert_eq!(fake.seen(0)[0].stamp.producer_id, -1);
}

#[tokio::test]
async fn request_times_out_its_connection_ends_and_the_batch_is_sent_again() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[("request.timeout.ms", "100")]);
    producer.partitions("t").await.unwrap();
    fake.hold(true);
    let delivery = producer.send(ProducerRecord::new("t", b"v")).await.unwrap();
    fake.until("it goes again", |state| state.seen.len() >= 2).await;
    fake.hold(false);
    assert_eq!(delivery.await.unwrap().offset, 0);
    assert_eq!(fake.values(0), ["v"]);
}

#[tokio::test]
async fn retries_end_when_their_number_is_reached() {
    let fake = Fake::start(1, 1).await;
    fake.script(|_| Fate::Refused(ErrorCode::NOT_ENOUGH_REPLICAS));
    let producer = producer(&fake, &[("retries", "2")]);
    let error = producer.send(ProducerRecord::new("t", b"v")).await.unwrap().await.unwrap_err();
    assert!(matches!(error, ProduceError::Timeout { .. }) && !error.may_have_been_written(), "{error}");
    assert_eq!(fake.seen(0).len(), 3);
}

#[tokio::test]
async fn a_delivery_timeout_names_the_error_that_the_broker_gave_each_time() {
    let fake = Fake::start(1, 1).await;
    fake.script(|_| Fate::Refused(ErrorCode::NOT_ENOUGH_REPLICAS));
    // No attempt must be in flight at the timeout, because its outcome would be unknown. With these pauses, the last
    // attempt ends at least two seconds before the timeout.
    let pauses = [("retry.backoff.ms", "1500"), ("retry.backoff.max.ms", "60000")];
    let producer =
        producer(&fake, &[&[("delivery.timeout.ms", "8000"), ("request.timeout.ms", "6000")], &pauses[..]].concat());
    let error = producer.send(ProducerRecord::new("t", b"v")).await.unwrap().await.unwrap_err();
    assert!(fake.seen(0).len() > 1);
    assert!(!error.may_have_been_written());
    let reported = error.to_string();
    assert!(
        reported.ends_with(" s: the broker answered NOT_ENOUGH_REPLICAS: Fewer replicas are in sync than required."),
        "{reported}"
    );
}

#[tokio::test]
async fn a_delivery_timeout_names_the_broker_that_cannot_be_reached() {
    let fake = Fake::start(2, 1).await;
    fake.lock().leaders[0] = 1;
    // No process listens on this port.
    fake.lock().ports[1] = 1;
    // The warning is due after a second and the timeout after eight, so the warning comes first even on a busy machine.
    let producer = producer(&fake, &[("delivery.timeout.ms", "8000"), ("request.timeout.ms", "4000")]);
    let (reported, mut reports) = tokio::sync::mpsc::unbounded_channel();
    producer.on_trouble(move |why| drop(reported.send(why.to_owned())));
    let delivery = producer.send(ProducerRecord::new("t", b"v")).await.unwrap();
    let cause = "broker 1: cannot connect to 127.0.0.1:1: ";
    let report = reports.recv().await.unwrap();
    assert!(report.starts_with(&format!("partition 0 of topic t: {cause}")), "{report}");
    assert!(delivery.try_result().is_none(), "the warning comes before the end");
    let error = delivery.await.unwrap_err();
    assert!(!error.may_have_been_written() && error.to_string().contains(cause), "{error}");
    assert!(reports.try_recv().is_err(), "one report of one trouble");
}

#[tokio::test]
async fn requests_have_the_client_id() {
    use tokio::io::AsyncReadExt;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let producer = Producer::from_properties([("bootstrap.servers", address.as_str()), ("client.id", "me")]).unwrap();
    assert!(matches!(producer.try_send(ProducerRecord::new("t", b"v")), Err(SendError::NoMetadata)));
    let (mut socket, _) = listener.accept().await.unwrap();
    // The client id follows after the length of the frame, the API, the version, the correlation id, and its own length
    // in two bytes.
    let mut start = [0; 4 + 2 + 2 + 4 + 2 + 2];
    socket.read_exact(&mut start).await.unwrap();
    assert_eq!(&start[12..], b"\0\x02me");
}

#[tokio::test]
async fn a_delivery_timeout_without_a_response_has_that_cause() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[("delivery.timeout.ms", "3000"), ("request.timeout.ms", "2999")]);
    producer.partitions("t").await.unwrap();
    fake.hold(true);
    let error = producer.send(ProducerRecord::new("t", b"v")).await.unwrap().await.unwrap_err();
    assert!(error.may_have_been_written() && error.to_string().contains("no response"), "{error}");
}

#[tokio::test]
async fn broker_returns_after_a_while_it_gets_every_record() {
    let fake = Fake::start(2, 1).await;
    fake.lock().leaders[0] = -1;
    let producer = producer(&fake, &[("metadata.max.age.ms", "20")]);
    let delivery = producer.send(ProducerRecord::new("t", b"v")).await.unwrap();
    let requested = fake.lock().metadata_requested;
    fake.until("it asks again", move |state| state.metadata_requested > requested + 2).await;
    fake.lock().leaders[0] = 1;
    assert_eq!(delivery.await.unwrap().offset, 0);
}

#[tokio::test]
async fn many_threads_share_a_producer_and_each_keeps_its_order() {
    let fake = Fake::start(1, 1).await;
    let producer = std::sync::Arc::new(producer(&fake, &[("buffer.memory", "2000000")]));
    producer.partitions("t").await.unwrap();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let producer = producer.clone();
            std::thread::spawn(move || {
                for i in 0..5000 {
                    let value = format!("{thread}-{i:05}");
                    while let Err(error) = producer.try_send(ProducerRecord::new("t", value.as_bytes())) {
                        assert_eq!(error, SendError::Full);
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let joined = tokio::task::spawn_blocking(|| threads.into_iter().for_each(|thread| thread.join().unwrap()));
    joined.await.unwrap();
    producer.flush().await;
    let log = fake.values(0);
    assert_eq!(log.len(), 20_000);
    for thread in ["0-", "1-", "2-", "3-"] {
        assert!(log.iter().filter(|value| value.starts_with(thread)).is_sorted());
    }
}

#[tokio::test]
async fn every_connection_takes_the_detour() {
    let fake = Fake::start(1, 1).await;
    // The first name does not resolve, so the producer can reach the bootstrap server only through its relay. The
    // address in the cluster's metadata has another relay.
    let mut relayed = Vec::new();
    let mut detours = HashMap::new();
    for at in ["nowhere.invalid:1".to_owned(), fake.bootstrap()] {
        let relay = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        detours.insert(at, relay.local_addr().unwrap().to_string());
        let (count, to) = (Arc::new(AtomicUsize::new(0)), fake.bootstrap());
        relayed.push(count.clone());
        tokio::spawn(async move {
            while let Ok((mut near, _)) = relay.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let mut far = tokio::net::TcpStream::connect(&to).await.unwrap();
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
            }
        });
    }
    let mut config = ProducerConfig::new("nowhere.invalid:1");
    config.client.detours = Arc::new(detours);
    let producer = Producer::new(config).unwrap();
    producer.send(ProducerRecord::new("t", b"a")).await.unwrap().await.unwrap();
    let relayed: Vec<usize> = relayed.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    assert_eq!(relayed, [1, 1], "metadata by the first, records by the second");
}

#[tokio::test]
async fn a_broker_that_is_known_by_two_names_is_connected_to_once() {
    let fake = Fake::start(1, 1).await;
    let port = fake.bootstrap().rsplit(':').next().unwrap().to_owned();
    let producer = Producer::new(ProducerConfig::new(&format!("localhost:{port}"))).unwrap();
    producer.reach().await.unwrap();
    producer.send(ProducerRecord::new("t", b"a")).await.unwrap().await.unwrap();
    assert_eq!(fake.lock().connections, [1]);
}

#[tokio::test]
async fn a_record_lingers_no_longer_because_another_has_no_answer_yet() {
    let fake = Fake::start(1, 1).await;
    // Idempotence is off, because with it an overdue response would also cause the later record to be sent.
    let producer = producer(&fake, &[("linger.ms", "20"), ("enable.idempotence", "false")]);
    let send = |value: &'static str| producer.send(ProducerRecord::new("t", value.as_bytes()));
    send("0").await.unwrap().await.unwrap();
    fake.hold(true);
    let held = send("1").await.unwrap();
    fake.until("it has come", |state| state.seen.iter().any(|seen| seen.values == ["1"])).await;
    let behind = send("2").await.unwrap();
    // The response to record 1 is held back, so only the linger time lets record 2 leave.
    fake.until("it has come, too", |state| state.seen.iter().any(|seen| seen.values == ["2"])).await;
    fake.hold(false);
    held.await.unwrap();
    behind.await.unwrap();
}
