//! Windows of more than five batches (KIP-1269). The broker must remember them completely, also after restarts and
//! while the size changes.
//!
//! The values that producers get are tested in `configs`. Rows 2 and 7 of the list of bugs in `sequence` are tested
//! here with larger windows, and in `sequence` with the default window.

use fullbore_tests::{Batch, Broker, Client};
use fullbore_wire::ErrorCode;
use std::ops::Range;

const OF_TOPIC: &str = "producer.state.batches.to.retain";
const OF_BROKER: &str = "max.idempotence.batches.to.retain";
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// The only producer of a partition. Its batch `n` is one record with sequence `n` and offset `n`.
struct Producer {
    topic: String,
    id: i64,
    value: Vec<u8>,
    next: i32,
}

impl Producer {
    fn new(client: &mut Client, topic: &str, value_len: usize) -> Producer {
        Producer { topic: topic.to_owned(), id: client.init_producer_id(), value: vec![b'x'; value_len], next: 0 }
    }

    fn batch(&self, n: i32) -> Batch {
        Batch::of(&[&self.value]).from_producer(self.id, 0, n)
    }

    /// Sends batches without waiting between them. Returns the error code and offset of each response.
    fn send(&self, client: &mut Client, batches: Range<i32>) -> Vec<(ErrorCode, i64)> {
        let mut answers = Vec::new();
        for chunk in batches.clone().step_by(64).map(|first| first..batches.end.min(first + 64)) {
            chunk.clone().for_each(|n| {
                client.send_produce(&self.topic, 0, &self.batch(n));
            });
            answers.extend(chunk.map(|_| client.receive_produced()).map(|it| (it.error_code, it.base_offset)));
        }
        answers
    }

    /// Writes `count` new batches.
    fn write(&mut self, client: &mut Client, count: i32) {
        self.assert_at_their_offsets(client, self.next..self.next + count);
        self.next += count;
        assert_eq!(client.latest(&self.topic, 0), i64::from(self.next));
    }

    fn assert_at_their_offsets(&self, client: &mut Client, batches: Range<i32>) {
        for (n, answer) in batches.clone().zip(self.send(client, batches)) {
            assert_eq!(answer, (ErrorCode::NONE, i64::from(n)), "batch {n} of {}", self.topic);
        }
    }

    /// Checks that retries of the last `window` batches return their offsets, and that the batch before them gets
    /// DUPLICATE_SEQUENCE_NUMBER. A batch after a gap must be refused as out of order. No batch may be appended.
    fn assert_remembers(&self, client: &mut Client, window: i32) {
        self.assert_at_their_offsets(client, self.next - window..self.next);
        if window < self.next {
            let older = self.send(client, self.next - window - 1..self.next - window);
            assert_eq!(older, [(ErrorCode::DUPLICATE_SEQUENCE_NUMBER, -1)], "older than {window} of {}", self.topic);
        }
        let ahead = self.send(client, self.next + 1..self.next + 2);
        assert_eq!(ahead, [(ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]);
        assert_eq!(client.latest(&self.topic, 0), i64::from(self.next), "nothing was appended twice");
    }
}

type End = fn(&mut Broker);

#[test]
fn row_02_every_batch_within_the_window_has_its_first_offset_and_the_one_before_is_a_duplicate() {
    for window in [5, 20] {
        let broker = Broker::start(&[&format!("{OF_BROKER}={window}")]);
        let mut client = broker.client();
        client.create_topic("window", 1, &[]);
        let mut producer = Producer::new(&mut client, "window", 1);
        // The response to the first batch is lost, and the others are acknowledged. The window is then full, so a
        // correct producer would not send a new batch.
        let mut lost = broker.client();
        lost.send_produce("window", 0, &producer.batch(0));
        lost.wait_for_answer();
        drop(lost);
        producer.next = 1;
        producer.write(&mut client, window - 1);
        producer.assert_remembers(&mut client, window);
        // This producer sends a new batch nevertheless. The broker then no longer remembers the first batch, and must
        // answer its retry with a duplicate error, so that the producer does not retry for ever.
        producer.write(&mut client, 1);
        producer.assert_remembers(&mut client, window);
    }
}

/// The snapshot has the first half of the batches, and only the log has the second half. Each topic has a window of its
/// own size.
fn windows_survive(end: End) {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    let mut producers = Vec::new();
    for (window, value_len) in [(5, 150_000), (64, 20_000), (1024, 1_000)] {
        let (name, set) = (format!("window-{window}"), window.to_string());
        client.create_topic(&name, 1, &[(OF_TOPIC, &set), ("segment.bytes", "1048576")]);
        producers.push((window, Producer::new(&mut client, &name, value_len)));
    }
    for _ in 0..2 {
        for (window, producer) in &mut producers {
            producer.write(&mut client, 2 * *window);
        }
        end(&mut broker);
        broker.restart();
        client = broker.client();
        for (window, producer) in &producers {
            assert!(!broker.partition_files(&producer.topic, 0, "snapshot").is_empty(), "a segment was rolled");
            producer.assert_remembers(&mut client, *window);
        }
    }
    for (window, producer) in &mut producers {
        producer.write(&mut client, 1);
        producer.assert_remembers(&mut client, *window);
    }
}

#[test]
fn row_07_windows_of_5_64_and_1024_survive_a_clean_restart() {
    windows_survive(Broker::stop);
}

#[test]
fn row_07_windows_of_5_64_and_1024_survive_kill_9() {
    windows_survive(Broker::kill);
}

/// A larger window applies at once. A smaller one applies only once the producer must know it from a response. `end`
/// stops or kills the broker between the changes.
fn window_changes(key: &str, kind: i8, name: &str, end: End) {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("changes", 1, &[]);
    let mut producer = Producer::new(&mut client, "changes", 1);
    producer.write(&mut client, 10);
    producer.assert_remembers(&mut client, 5);
    client.set_config(kind, name, key, "64");
    producer.write(&mut client, 59);
    producer.assert_remembers(&mut client, 64);
    end(&mut broker);
    broker.restart();
    client = broker.client();
    producer.assert_remembers(&mut client, 64);
    client.set_config(kind, name, key, "5");
    producer.write(&mut client, 3);
    producer.assert_remembers(&mut client, 64);
    end(&mut broker);
    broker.restart();
    client = broker.client();
    producer.assert_remembers(&mut client, 64);
    producer.write(&mut client, 64);
    producer.assert_remembers(&mut client, 64);
    producer.write(&mut client, 1);
    producer.assert_remembers(&mut client, 5);
    end(&mut broker);
    broker.restart();
    client = broker.client();
    producer.write(&mut client, 10);
    // After a kill, the broker may remember more batches. The log does not show when the producer learned of the
    // smaller window.
    producer.assert_at_their_offsets(&mut client, producer.next - 5..producer.next);
    assert_eq!(client.latest("changes", 0), i64::from(producer.next));
}

#[test]
fn a_topics_window_changes_while_it_runs_and_through_clean_restarts() {
    window_changes(OF_TOPIC, TOPIC, "changes", Broker::stop);
}

#[test]
fn a_topics_window_changes_while_it_runs_and_through_kill_9() {
    window_changes(OF_TOPIC, TOPIC, "changes", Broker::kill);
}

#[test]
fn a_brokers_window_changes_while_it_runs_and_through_clean_restarts() {
    window_changes(OF_BROKER, BROKER, "1", Broker::stop);
}

#[test]
fn every_brokers_window_changes_while_it_runs_and_through_kill_9() {
    window_changes(OF_BROKER, BROKER, "", Broker::kill);
}

/// The broker had granted a window of 64, which the producer has not filled yet. The producer may still use all of it.
fn a_restart_with_a_smaller_window(end: End) {
    let wide = format!("{OF_BROKER}=64");
    let mut broker = Broker::start(&[&wide]);
    let mut client = broker.client();
    client.create_topic("smaller", 1, &[]);
    let mut producer = Producer::new(&mut client, "smaller", 1);
    producer.write(&mut client, 10);
    end(&mut broker);
    broker.restart_with(&[]);
    client = broker.client();
    producer.write(&mut client, 54);
    producer.assert_remembers(&mut client, 64);
    end(&mut broker);
    broker.restart();
    client = broker.client();
    producer.assert_remembers(&mut client, 64);
    producer.write(&mut client, 65);
    producer.assert_remembers(&mut client, 5);
    end(&mut broker);
    broker.restart_with(&[&wide]);
    client = broker.client();
    producer.write(&mut client, 59);
    let known = producer.send(&mut client, producer.next - 64..producer.next);
    assert!(known.iter().all(|(code, _)| *code == ErrorCode::NONE), "{known:?}");
}

#[test]
fn clean_restart_with_a_smaller_window_keeps_the_granted_window() {
    a_restart_with_a_smaller_window(Broker::stop);
}

#[test]
fn kill_9_and_a_smaller_window_keep_the_granted_window() {
    a_restart_with_a_smaller_window(Broker::kill);
}
