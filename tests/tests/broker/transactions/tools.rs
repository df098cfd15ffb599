//! `fullbore transactions` for transactions that have a coordinator, and for those that have none.

use super::TOPIC;
use fullbore_tests::{Broker, Client, Protocol, Transactional, binary};
use fullbore_wire::ErrorCode;
use std::process::{Command, Output};

/// Runs `transactions abort` for the transaction that begins at offset 0.
fn abort(broker: &Broker, flags: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(["transactions", "abort", "--topic", TOPIC, "--partition", "0", "--start-offset", "0"]);
    command.args(["--bootstrap-server", &broker.addr().to_string()]).args(flags).output().expect("the binary starts")
}

fn state(client: &mut Client, id: &str) -> String {
    client.describe_transaction(id).transaction_state.to_string()
}

#[test]
fn abort_of_a_coordinated_transaction_is_refused_unless_forced() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut producer = Transactional::begin(&mut client, "owned", Protocol::New);
    producer.write(&mut client, TOPIC, 0, &["open"]);
    let refused = abort(&broker, &[]);
    let reported = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{reported}");
    assert!(reported.contains("the coordinator of transactional id 'owned' knows it (Ongoing for "), "{reported}");
    assert_eq!((client.stable(TOPIC, 0), client.latest(TOPIC, 0)), (0, 1));
    let forced = abort(&broker, &["--force"]);
    assert!(forced.status.success(), "{}", String::from_utf8_lossy(&forced.stderr));
    assert_eq!((client.stable(TOPIC, 0), client.latest(TOPIC, 0)), (2, 2));
    assert_eq!(state(&mut client, "owned"), "Ongoing");
    assert!(client.committed_texts(TOPIC, 0).is_empty());
}

#[test]
fn transaction_without_a_coordinator_is_aborted() {
    let broker = Broker::start(&["transaction.partition.verification.enable=false"]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let mut producer = Transactional::begin(&mut client, "unverified", Protocol::Old);
    let batch = producer.batch(TOPIC, 0, &["hangs"]);
    assert_eq!(producer.send(&mut client, TOPIC, 0, &batch).error_code, ErrorCode::NONE);
    let aborted = abort(&broker, &[]);
    assert!(aborted.status.success(), "{}", String::from_utf8_lossy(&aborted.stderr));
    assert_eq!((client.stable(TOPIC, 0), client.latest(TOPIC, 0)), (2, 2));
    assert_eq!(state(&mut client, "unverified"), "Empty");
}
