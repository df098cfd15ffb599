//! Transactions on one broker, from outside: both protocols, what consumers read, bad input, kills.
//!
//! Not here: offsets in transactions, compaction, clusters.

mod answers;
mod bad_input;
mod bounds;
mod coordinator;
mod crash;
mod diskless;
mod hostile;
mod places;
mod power;
mod protocol;
mod reads;
mod steps;
mod striped;

use fullbore_tests::{Client, Protocol, Transactional, wait_until};
use std::time::Duration;

const TOPIC: &str = "written";
const DISKLESS: &[(&str, &str)] = &[("diskless.enable", "true")];
const SOON: Duration = Duration::from_secs(60);

/// Waits until the id is in this state.
fn wait_for_state(client: &mut Client, transactional_id: &str, state: &str) {
    wait_until(&format!("{transactional_id} is in {state}"), SOON, || {
        client.describe_transaction(transactional_id).transaction_state.as_str() == state
    });
}

/// Waits until every transaction of a partition has ended, and returns what is committed. The marker of a diskless
/// partition takes a PUT.
fn settled(client: &mut Client, topic: &str, partition: i32) -> Vec<String> {
    wait_until("no transaction is open", SOON, || client.stable(topic, partition) == client.latest(topic, partition));
    client.committed_texts(topic, partition)
}

/// Writes one record in a transaction of its own, and ends it.
fn one(client: &mut Client, producer: &mut Transactional, value: &str, is_commit: bool) -> i64 {
    let offset = producer.write(client, TOPIC, 0, &[value]);
    producer.end(client, is_commit);
    offset
}

/// A producer of each protocol, under names of their own.
fn both(client: &mut Client, name: &str) -> [Transactional; 2] {
    Protocol::BOTH.map(|protocol| Transactional::begin(client, &format!("{name}-{protocol:?}"), protocol))
}
