//! Topics that get more partitions, or are made again with fewer, while a producer writes to them.

use crate::alone::{producer, settle};
use crate::fake::Fake;
use fullbore_producer::{ProducerRecord, SendError};
use fullbore_wire::Uuid;
use std::time::Duration;

/// A key that chooses partition 3 of 4.
const KEY: &[u8] = b"k14";

#[tokio::test]
async fn a_partition_that_a_topic_has_got_meanwhile_takes_records_at_once() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[]);
    settle(vec![producer.send(ProducerRecord::new("t", b"0").partition(0)).await.unwrap()]).await;
    fake.lock().leaders = vec![0; 3];
    let delivery = producer.send(ProducerRecord::new("t", b"1").partition(2)).await.unwrap();
    settle(vec![delivery]).await;
    assert_eq!(fake.values(2), ["1"]);
    let missing = producer.send(ProducerRecord::new("t", b"2").partition(3)).await.unwrap_err();
    assert!(matches!(missing, SendError::NoPartition { partition: 3, .. }), "{missing}");
}

#[tokio::test]
async fn a_topic_created_again_with_fewer_partitions_gets_records_for_those_it_has() {
    let fake = Fake::start(1, 4).await;
    let producer = producer(&fake, &[("metadata.max.age.ms", "50")]);
    let first = producer.send(ProducerRecord::new("t", b"0").key(KEY)).await.unwrap();
    assert_eq!(first.partition(), 3);
    settle(vec![first]).await;
    {
        let mut state = fake.lock();
        state.logs.clear();
        state.leaders = vec![0];
        state.topic_id = Uuid([8; 16]);
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while producer.partitions("t").await.unwrap() != 1 {
        assert!(std::time::Instant::now() < deadline, "the producer never learns that partitions are gone");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    settle(vec![producer.send(ProducerRecord::new("t", b"1").key(KEY)).await.unwrap()]).await;
    assert_eq!(fake.values(0), ["1"]);
    let gone = producer.send(ProducerRecord::new("t", b"2").partition(3)).await.unwrap_err();
    assert!(matches!(gone, SendError::NoPartition { partition: 3, .. }), "{gone}");
}
