//! Transactions on one broker: both protocols, consumers, bad input and kills.
//!
//! Offsets in transactions, compaction and clusters are tested elsewhere.

mod answers;
mod bad_input;
mod bounds;
mod coordinator;
mod crash;
mod diskless;
mod hostile;
mod lost_state;
mod places;
mod power;
mod protocol;
mod reads;
mod steps;
mod striped;
mod tools;

use fullbore_tests::{Batch, Client, Protocol, Transactional, transactional_request, wait_until};
use fullbore_wire::ErrorCode;
use std::time::Duration;

const TOPIC: &str = "written";
const DISKLESS: &[(&str, &str)] = &[("diskless.enable", "true")];
const SOON: Duration = Duration::from_secs(60);

/// Waits until the transactional id is in the given state.
fn wait_for_state(client: &mut Client, transactional_id: &str, state: &str) {
    wait_until(&format!("{transactional_id} is in {state}"), SOON, || {
        client.describe_transaction(transactional_id).transaction_state.as_str() == state
    });
}

/// Waits until every transaction of a partition has ended. For a diskless partition this takes a PUT. Returns the
/// committed records.
fn settled(client: &mut Client, topic: &str, partition: i32) -> Vec<String> {
    wait_until("no transaction is open", SOON, || client.stable(topic, partition) == client.latest(topic, partition));
    client.committed_texts(topic, partition)
}

/// Writes one record in its own transaction, and commits or aborts it.
fn one(client: &mut Client, producer: &mut Transactional, value: &str, is_commit: bool) -> i64 {
    let offset = producer.write(client, TOPIC, 0, &[value]);
    producer.end(client, is_commit);
    offset
}

/// Returns one producer of each protocol. Their ids begin with `name`.
fn both(client: &mut Client, name: &str) -> [Transactional; 2] {
    Protocol::BOTH.map(|protocol| Transactional::begin(client, &format!("{name}-{protocol:?}"), protocol))
}

/// Writes to a partition that the client has not added to the transaction. Older versions of Produce refuse this with
/// different errors, and newer ones add the partition. Returns the producer, whose transaction has the record
/// `unadded`.
fn write_unadded(client: &mut Client) -> Transactional {
    let mut producer = Transactional::begin(client, "unadded", Protocol::Old);
    producer.add(client, TOPIC, &[1]);
    let batch = producer.batch(TOPIC, 0, &["unadded"]);
    let request = transactional_request("unadded", TOPIC, 0, batch.bytes());
    // From version 12 on, a batch adds its own partition.
    let codes = [(9, ErrorCode::INVALID_TXN_STATE), (11, ErrorCode::TRANSACTION_ABORTABLE), (12, ErrorCode::NONE)];
    for (version, code) in codes {
        assert_eq!(client.latest(TOPIC, 0), 0);
        let response = client.call(&request, version).responses.remove(0).partition_responses.remove(0);
        assert_eq!(response.error_code, code, "version {version}");
    }
    producer
}

/// Writes offsets 0 to 3: a plain record, a record of each of two open transactions, and another plain record. Returns
/// the two producers.
fn two_open(client: &mut Client) -> [Transactional; 2] {
    client.produced(TOPIC, 0, &Batch::of(&["plain"]));
    let mut eldest = Transactional::begin(client, "eldest", Protocol::New);
    let mut second = Transactional::begin(client, "second", Protocol::Old);
    eldest.write(client, TOPIC, 0, &["1"]);
    second.write(client, TOPIC, 0, &["2"]);
    client.produced(TOPIC, 0, &Batch::of(&["plain, too"]));
    assert_eq!((client.stable(TOPIC, 0), client.latest(TOPIC, 0)), (1, 4));
    [eldest, second]
}
