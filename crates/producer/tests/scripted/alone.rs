//! A producer that sends each record in a batch of its own, so that a test can count batches by counting records.

use crate::fake::Fake;
use fullbore_producer::{Delivery, Producer, ProducerRecord};
use std::time::Duration;

/// A value so large that a request of 1,024 bytes has room for only one record.
pub const PADDING: [u8; 600] = [b'p'; 600];

/// Creates a producer with short pauses, and with the settings `more`.
pub fn producer(fake: &Fake, more: &[(&str, &str)]) -> Producer {
    let bootstrap = fake.bootstrap();
    let base = [
        ("bootstrap.servers", bootstrap.as_str()),
        ("batch.size", "1024"),
        ("max.request.size", "1024"),
        ("linger.ms", "0"),
        ("retry.backoff.ms", "5"),
        ("retry.backoff.max.ms", "20"),
        ("reconnect.backoff.ms", "5"),
        ("metadata.max.age.ms", "50"),
    ];
    Producer::from_properties(base.into_iter().chain(more.iter().copied())).unwrap()
}

pub async fn send(producer: &Producer, partition: i32, value: &str) -> Delivery {
    producer.send(ProducerRecord::new("t", value.as_bytes()).key(&PADDING).partition(partition)).await.unwrap()
}

/// Waits until every record is written.
pub async fn settle(deliveries: Vec<Delivery>) {
    for delivery in deliveries {
        tokio::time::timeout(Duration::from_secs(60), delivery).await.expect("every record gets a result").unwrap();
    }
}
