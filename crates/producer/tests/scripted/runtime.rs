//! Tests producers whose tasks run in a runtime of the caller.

use crate::fake::Fake;
use fullbore_producer::{ProduceError, Producer, ProducerConfig, ProducerRecord};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// A runtime without other tasks than those of producers, so that a test can count these.
struct Shared(Option<Runtime>);

impl Shared {
    fn new() -> Shared {
        Shared(Some(Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")))
    }

    fn producer(&self, fake: &Fake) -> Producer {
        let bootstrap = fake.bootstrap();
        // The timeouts exceed the duration of the test. A stop must therefore close a connection even if a response is
        // due on it.
        let timeouts = [("request.timeout.ms", "300000"), ("delivery.timeout.ms", "600000")];
        let settings = [("bootstrap.servers", bootstrap.as_str()), ("linger.ms", "0")];
        let settings = settings.into_iter().chain(timeouts);
        let config = ProducerConfig::from_properties(settings).expect("valid");
        Producer::in_runtime(config, self.handle()).expect("valid")
    }

    fn handle(&self) -> tokio::runtime::Handle {
        self.0.as_ref().expect("the runtime runs").handle().clone()
    }

    async fn until_idle(&self) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.handle().metrics().num_alive_tasks() > 0 {
            assert!(Instant::now() < deadline, "{} tasks are left", self.handle().metrics().num_alive_tasks());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.0.take().expect("the runtime runs").shutdown_background();
    }
}

#[tokio::test]
async fn producers_share_a_runtime_all_write_and_close_ends_their_tasks() {
    let (fake, shared) = (Fake::start(2, 4).await, Shared::new());
    let producers: Vec<_> = (0..8).map(|_| shared.producer(&fake)).collect();
    let mut deliveries = Vec::new();
    for partition in 0..4 {
        for producer in &producers {
            let record = ProducerRecord::new("t", b"value").partition(partition);
            deliveries.push(producer.send(record).await.expect("taken"));
        }
    }
    for delivery in deliveries {
        delivery.await.expect("written");
    }
    for producer in producers {
        producer.close(Duration::from_secs(30)).await;
    }
    shared.until_idle().await;
}

#[tokio::test]
async fn producer_in_a_shared_runtime_is_dropped_its_records_fail_and_its_tasks_end() {
    let (fake, shared) = (Fake::start(1, 1).await, Shared::new());
    let producer = shared.producer(&fake);
    producer.partitions("t").await.expect("metadata");
    fake.hold(true);
    let delivery = producer.send(ProducerRecord::new("t", b"value")).await.expect("taken");
    fake.until("the batch arrives", |state| state.seen.len() == 1).await;
    drop(producer);
    let failed = delivery.await.expect_err("the producer is gone");
    assert!(matches!(failed, ProduceError::Closed { .. }), "{failed}");
    shared.until_idle().await;
}

#[tokio::test]
async fn producer_in_a_shared_runtime_closes_without_a_broker_and_its_tasks_end() {
    let shared = Shared::new();
    let config = ProducerConfig::new("127.0.0.1:1");
    let producer = Producer::in_runtime(config, shared.handle()).expect("valid");
    producer.close(Duration::ZERO).await;
    shared.until_idle().await;
}
