//! Tests topics that get more partitions, or are recreated with fewer, while a producer writes to them.

use crate::alone::{producer, send, settle};
use crate::fake::{Fake, Fate};
use fullbore_producer::{ProducerRecord, SendError};
use fullbore_wire::{ErrorCode, Uuid};
use std::time::Duration;

/// A key that goes to partition 3 of 4.
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
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while producer.partitions("t").await.unwrap() != 1 {
        assert!(std::time::Instant::now() < deadline, "the producer never learns that partitions are gone");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    settle(vec![producer.send(ProducerRecord::new("t", b"1").key(KEY)).await.unwrap()]).await;
    assert_eq!(fake.values(0), ["1"]);
    let gone = producer.send(ProducerRecord::new("t", b"2").partition(3)).await.unwrap_err();
    assert!(matches!(gone, SendError::NoPartition { partition: 3, .. }), "{gone}");
}

/// While a batch to a recreated topic is in flight, a broker with stale metadata returns the id of the old topic.
#[tokio::test]
async fn a_broker_that_is_behind_has_nothing_written_twice_to_a_topic_made_again() {
    let fake = Fake::start(2, 1).await;
    let producer = producer(&fake, &[]);
    settle(vec![send(&producer, 0, "0").await]).await;
    {
        let mut state = fake.lock();
        state.logs.clear();
        state.topic_id = Uuid([8; 16]);
    }
    settle(vec![send(&producer, 0, "1").await]).await;
    fake.hold(true);
    let before = fake.lock().seen.len();
    let delivery = send(&producer, 0, "2").await;
    fake.until("it is in flight", |state| state.seen.len() > before).await;
    for id in [7, 8] {
        let requested = {
            let mut state = fake.lock();
            state.topic_id = Uuid([id; 16]);
            state.metadata_requested
        };
        fake.until("metadata was taken", |state| state.metadata_requested >= requested + 2).await;
    }
    fake.hold(false);
    settle(vec![delivery, send(&producer, 0, "3").await]).await;
    assert_eq!(fake.values(0), ["1", "2", "3"]);
    assert_eq!(fake.seen(0).last().map(|seen| seen.stamp.producer_epoch), Some(1), "one epoch for each topic");
}

/// The response to a batch for the old topic names the old topic's leader. It arrives when the producer already knows
/// the new topic. Idempotence is off, because with it the producer would close the connection once another broker leads
/// and the response is overdue.
#[tokio::test]
async fn the_leader_epoch_of_a_topic_that_is_gone_does_not_hold_for_the_new_one() {
    let fake = Fake::start(2, 1).await;
    (fake.lock().leader_epoch, fake.lock().names_topics) = (50, true);
    let producer = producer(&fake, &[("enable.idempotence", "false")]);
    settle(vec![send(&producer, 0, "0").await]).await;
    let mut refuse = true;
    fake.script(move |_| match std::mem::take(&mut refuse) {
        true => Fate::Refused(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        false => Fate::Normal,
    });
    fake.lock().names_leader = Some((0, 50));
    fake.hold(true);
    let before = fake.lock().seen.len();
    let delivery = send(&producer, 0, "1").await;
    fake.until("it is in flight", |state| state.seen.len() > before).await;
    let requested = {
        let mut state = fake.lock();
        state.logs.clear();
        (state.topic_id, state.leader_epoch, state.leaders) = (Uuid([8; 16]), 0, vec![1]);
        state.names_leader = None;
        state.metadata_requested
    };
    fake.until("metadata was taken", |state| state.metadata_requested >= requested + 2).await;
    fake.hold(false);
    settle(vec![delivery, send(&producer, 0, "2").await]).await;
    assert_eq!(fake.values(0), ["1", "2"]);
}

/// A broker with stale metadata returned an older topic of this name, and the producer took this for the newest topic.
#[tokio::test]
async fn leader_refuses_the_new_id_the_previous_one_is_used_again() {
    let fake = Fake::start(1, 1).await;
    let producer = producer(&fake, &[("metadata.max.age.ms", "60000")]);
    settle(vec![send(&producer, 0, "0").await]).await;
    fake.lock().logs.clear();
    for id in [9, 8] {
        fake.lock().topic_id = Uuid([id; 16]);
        // The leader refuses the known id, so the producer fetches metadata.
        settle(vec![send(&producer, 0, &id.to_string()).await]).await;
        fake.lock().logs.clear();
    }
    fake.lock().topic_id = Uuid([9; 16]);
    settle(vec![send(&producer, 0, "1").await]).await;
    assert_eq!(fake.values(0), ["1"]);
}

/// The topic is missing for a while and then recreated, as with Kafka 2.8 to 4.0.
#[tokio::test]
async fn topic_was_missing_refused_batches_go_to_the_one_created_later() {
    let fake = Fake::start(1, 1).await;
    fake.lock().names_topics = true;
    let producer = producer(&fake, &[]);
    settle(vec![send(&producer, 0, "0").await]).await;
    fake.script(|_| Fate::Refused(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    let before = fake.lock().seen.len();
    let delivery = send(&producer, 0, "1").await;
    fake.until("it was refused", |state| state.seen.len() > before + 2).await;
    let requested = {
        let mut state = fake.lock();
        state.logs.clear();
        state.topic_id = Uuid([8; 16]);
        state.metadata_requested
    };
    fake.until("metadata was taken", |state| state.metadata_requested >= requested + 2).await;
    fake.script(|_| Fate::Normal);
    settle(vec![delivery, send(&producer, 0, "2").await]).await;
    assert_eq!(fake.values(0), ["1", "2"]);
}
