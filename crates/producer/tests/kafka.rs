//! Tests the producer against a real broker, Apache Kafka or Fullbore:
//! `FULLBORE_TEST_KAFKA=host:port cargo test -p fullbore-producer --test kafka`.
//!
//! Without the variable the tests print a message and pass. `make test` runs them with both brokers through
//! `tests/clients/producer.sh`, where a skipped test is a failure. `FULLBORE_TEST_PRODUCER="key=value ..."` adds
//! producer settings.

use fullbore_client::ClientConfig;
use fullbore_client::tokio::{Cluster, Connection};
use fullbore_producer::{Header, Producer, ProducerRecord};
use fullbore_wire::apis::create_topics::{CreatableTopic, CreatableTopicConfig, CreateTopicsRequest};
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchTopic, PartitionData};
use fullbore_wire::batch::{BatchView, RecordIter, batches, decompress};
use fullbore_wire::{Records, Text, Uuid};
use std::time::{Duration, SystemTime};

fn bootstrap() -> Option<String> {
    let found = std::env::var("FULLBORE_TEST_KAFKA").ok().filter(|address| !address.is_empty());
    if found.is_none() {
        eprintln!("skipped: set FULLBORE_TEST_KAFKA=host:port to run this test against a broker");
    }
    found
}

fn producer(bootstrap: &str, settings: &[(&str, &str)]) -> Producer {
    let more = std::env::var("FULLBORE_TEST_PRODUCER").unwrap_or_default();
    let more = more.split_whitespace().filter_map(|setting| setting.split_once('='));
    let all = [("bootstrap.servers", bootstrap)].into_iter().chain(settings.iter().copied()).chain(more);
    Producer::from_properties(all).unwrap()
}

/// A record as it is stored in the log.
#[derive(Debug, PartialEq)]
struct Stored {
    offset: i64,
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

struct Topic {
    cluster: Cluster,
    name: Text,
    id: Uuid,
}

impl Topic {
    async fn create(bootstrap: &str, name: &str, partitions: i32, configs: &[(&str, &str)]) -> Topic {
        let cluster = Cluster::new(vec![bootstrap.to_owned()], ClientConfig::default());
        let stamp = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos();
        let name = Text::from(format!("{name}-{stamp}"));
        let mut topic = CreatableTopic { name: name.clone(), num_partitions: partitions, ..Default::default() };
        topic.replication_factor = 1;
        for (key, value) in configs {
            let config =
                CreatableTopicConfig { name: Text::from(*key), value: Some(Text::from(*value)), ..Default::default() };
            topic.configs.push(config);
        }
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
        let connection = cluster.any().await.unwrap();
        let response = connection.call(&request).await.unwrap();
        assert!(!response.topics[0].error_code.is_err(), "{:?}", response.topics[0]);
        let topic = Topic { cluster, id: response.topics[0].topic_id, name };
        topic.wait_until_led(partitions).await;
        topic
    }

    /// Waits until the broker leads the partitions. Kafka answers CreateTopics before it leads them, and meanwhile
    /// loses records that are sent with acks=0.
    async fn wait_until_led(&self, partitions: i32) {
        let connection = self.cluster.any().await.unwrap();
        for partition in 0..partitions {
            while self.fetch(&connection, partition, 0, Duration::ZERO).await.error_code.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }

    async fn fetch(&self, connection: &Connection, partition: i32, from: i64, wait: Duration) -> PartitionData {
        let mut at = FetchPartition { partition, fetch_offset: from, ..Default::default() };
        at.partition_max_bytes = 8 << 20;
        let topic =
            FetchTopic { topic: self.name.clone(), topic_id: self.id, partitions: vec![at], ..Default::default() };
        let request = FetchRequest {
            max_wait_ms: wait.as_millis() as i32,
            min_bytes: 1,
            max_bytes: 50 << 20,
            topics: vec![topic],
            ..Default::default()
        };
        let mut response = connection.call(&request).await.unwrap();
        response.responses.remove(0).partitions.remove(0)
    }

    /// Reads a partition from its first record on, up to `count` records.
    async fn read(&self, partition: i32, count: usize) -> Vec<Stored> {
        let connection = self.cluster.any().await.unwrap();
        let mut stored = Vec::new();
        while stored.len() < count {
            let from = stored.last().map_or(0, |last: &Stored| last.offset + 1);
            let answer = self.fetch(&connection, partition, from, Duration::from_millis(500)).await;
            assert!(!answer.error_code.is_err(), "{:?}", answer.error_code);
            let Some(Records::Memory(bytes)) = &answer.records else { panic!("no records") };
            for batch in batches(bytes) {
                unpack(&batch.unwrap(), from, &mut stored);
            }
        }
        stored
    }
}

fn unpack(batch: &BatchView<'_>, from: i64, stored: &mut Vec<Stored>) {
    batch.check_crc().unwrap();
    let payload = decompress(batch.compression().unwrap(), batch.payload(), 64 << 20).unwrap();
    for record in RecordIter::new(&payload, batch.record_count()) {
        let record = record.unwrap();
        if record.offset(batch) < from {
            continue;
        }
        stored.push(Stored {
            offset: record.offset(batch),
            timestamp: record.timestamp(batch),
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: record
                .headers
                .map(|(k, v)| (String::from_utf8(k.to_vec()).unwrap(), v.map(<[u8]>::to_vec)))
                .collect(),
        });
    }
}

#[tokio::test]
async fn records_are_stored_as_sent_and_at_the_offsets_of_their_deliveries() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = Topic::create(&bootstrap, "as-sent", 3, &[]).await;
    let producer = producer(&bootstrap, &[]);
    let headers = [Header { key: b"h", value: Some(b"1") }, Header { key: b"h", value: None }];
    let plain = ProducerRecord::new(&topic.name, b"value").partition(1).timestamp(1_700_000_000_123).headers(&headers);
    let nulls = ProducerRecord { key: None, value: None, headers: &[], ..plain };
    let first = producer.send(plain.key(b"key")).await.unwrap().await.unwrap();
    let second = producer.send(nulls).await.unwrap().await.unwrap();
    assert_eq!((first.partition, first.offset, second.offset), (1, 0, 1));
    producer.close(Duration::from_secs(10)).await;
    let stored = topic.read(1, 2).await;
    let twice = vec![("h".to_owned(), Some(b"1".to_vec())), ("h".to_owned(), None)];
    let timestamp = 1_700_000_000_123;
    let (key, value) = (Some(b"key".to_vec()), Some(b"value".to_vec()));
    assert_eq!(stored[0], Stored { offset: 0, timestamp, key, value, headers: twice });
    assert_eq!(stored[1], Stored { offset: 1, timestamp, key: None, value: None, headers: vec![] });
}

#[tokio::test]
async fn many_records_keep_their_order_on_every_partition_with_every_codec() {
    let Some(bootstrap) = bootstrap() else { return };
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = Topic::create(&bootstrap, codec, 4, &[]).await;
        let producer = producer(&bootstrap, &[("compression.type", codec)]);
        let mut deliveries = Vec::new();
        for i in 0..20_000u32 {
            let value = format!("{i:08}-{}", "x".repeat(100));
            let record = ProducerRecord::new(&topic.name, value.as_bytes()).partition((i % 4) as i32);
            deliveries.push(producer.send(record).await.unwrap());
        }
        for (i, delivery) in deliveries.into_iter().enumerate() {
            assert_eq!(delivery.await.unwrap().offset, i as i64 / 4);
        }
        for partition in 0..4 {
            let stored = topic.read(partition, 5_000).await;
            for (n, record) in stored.iter().enumerate() {
                let expected = format!("{:08}", n * 4 + partition as usize);
                assert_eq!(&record.value.as_ref().unwrap()[..8], expected.as_bytes(), "{codec}");
            }
        }
        producer.close(Duration::from_secs(10)).await;
    }
}

#[tokio::test]
async fn a_batch_larger_than_the_topic_takes_is_split() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = Topic::create(&bootstrap, "small", 1, &[("max.message.bytes", "20000")]).await;
    let producer = producer(&bootstrap, &[("batch.size", "200000"), ("linger.ms", "50")]);
    let mut deliveries = Vec::new();
    for i in 0..200u32 {
        let value = format!("{i:04}-{}", "x".repeat(1000));
        deliveries.push(producer.send(ProducerRecord::new(&topic.name, value.as_bytes())).await.unwrap());
    }
    for (i, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, i as i64);
    }
    let big = vec![b'x'; 50_000];
    let refused = producer.send(ProducerRecord::new(&topic.name, &big)).await.unwrap().await.unwrap_err();
    assert!(!refused.may_have_been_written() && !refused.is_retryable(), "{refused}");
    let after = producer.send(ProducerRecord::new(&topic.name, b"after")).await.unwrap().await.unwrap();
    assert_eq!(after.offset, 200);
    producer.close(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn one_partition_over_four_connections_keeps_its_order() {
    let Some(bootstrap) = bootstrap() else { return };
    let topic = Topic::create(&bootstrap, "lanes", 1, &[]).await;
    let settings =
        [("connections.per.broker", "4"), ("linger.ms", "0"), ("max.request.size", "2048"), ("batch.size", "1024")];
    let producer = producer(&bootstrap, &settings);
    let mut deliveries = Vec::new();
    for i in 0..20_000u32 {
        let value = format!("{i:08}-{}", "x".repeat(200));
        deliveries.push(producer.send(ProducerRecord::new(&topic.name, value.as_bytes())).await.unwrap());
    }
    let lanes = producer.brokers().iter().map(|broker| broker.lanes.len()).max();
    for (i, delivery) in deliveries.into_iter().enumerate() {
        assert_eq!(delivery.await.unwrap().offset, i as i64);
    }
    let stored = topic.read(0, 20_000).await;
    for (i, record) in stored.iter().enumerate() {
        assert_eq!(&record.value.as_ref().unwrap()[..8], format!("{i:08}").as_bytes());
    }
    eprintln!("{lanes:?} lanes, {:?}", producer.brokers());
    producer.close(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn acks_0_and_1_work() {
    let Some(bootstrap) = bootstrap() else { return };
    for (acks, offset) in [("0", -1), ("1", 0)] {
        let topic = Topic::create(&bootstrap, "acks", 1, &[]).await;
        let producer = producer(&bootstrap, &[("acks", acks)]);
        let written = producer.send(ProducerRecord::new(&topic.name, b"v")).await.unwrap().await.unwrap();
        assert_eq!(written.offset, offset);
        producer.close(Duration::from_secs(10)).await;
        assert_eq!(topic.read(0, 1).await.len(), 1);
    }
}

/// `FULLBORE_TEST_RESTART` is a shell command that kills the broker and starts it again on the same data.
#[tokio::test]
async fn a_broker_that_is_killed_under_load_has_every_acknowledged_record_once() {
    let Some(bootstrap) = bootstrap() else { return };
    let Ok(restart) = std::env::var("FULLBORE_TEST_RESTART") else {
        eprintln!("skipped: set FULLBORE_TEST_RESTART to a command that kills the broker and starts it again");
        return;
    };
    let topic = Topic::create(&bootstrap, "killed", 1, &[]).await;
    let producer = producer(&bootstrap, &[("linger.ms", "0")]);
    let (loaded, load) = std::sync::mpsc::channel();
    let killer = tokio::task::spawn_blocking(move || {
        load.recv().unwrap();
        let done = std::process::Command::new("sh").args(["-c", &restart]).status();
        assert!(done.unwrap().success());
    });
    let mut deliveries = Vec::new();
    while !killer.is_finished() {
        let value = format!("{:08}", deliveries.len());
        deliveries.push(producer.send(ProducerRecord::new(&topic.name, value.as_bytes())).await.unwrap());
        if deliveries.len() == 2000 {
            loaded.send(()).unwrap();
        }
        if deliveries.len() % 20 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    killer.await.unwrap();
    let (mut acked, mut offsets) = (Vec::new(), 0);
    for (i, delivery) in deliveries.into_iter().enumerate() {
        match delivery.await {
            Ok(written) => {
                acked.push(format!("{i:08}"));
                offsets += usize::from(written.offset >= 0);
            }
            Err(error) => assert!(error.may_have_been_written(), "record {i}: {error}"),
        }
    }
    producer.close(Duration::from_secs(10)).await;
    let stored = topic.read(0, acked.len()).await;
    let values: Vec<String> = stored.into_iter().map(|r| String::from_utf8(r.value.unwrap()).unwrap()).collect();
    assert!(values.windows(2).all(|pair| pair[0] < pair[1]), "each once and in order");
    let missing: Vec<_> = acked.iter().filter(|value| values.binary_search(value).is_err()).collect();
    assert!(missing.is_empty(), "acknowledged and not there: {missing:?}");
    eprintln!("{} records, {} acknowledged, {offsets} with their offset", values.len(), acked.len());
}
