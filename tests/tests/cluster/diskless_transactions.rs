//! Transactions on diskless topics of several brokers. Whichever broker accepts a batch or writes a marker, every
//! broker must return the committed records.

use std::time::Duration;

use fullbore_tests::{Batch, Client, Cluster, ClusterPlan, Protocol, Transactional, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;

use crate::diskless::{TOPIC, shared, shared_with_short_sessions};
use crate::faults::ALL;

const SOON: Duration = Duration::from_secs(60);

/// Returns the coordinator of a transactional id. Waits until the broker `requested` knows the coordinator.
fn coordinator(cluster: &mut Cluster, requested: i32, transactional_id: &str) -> i32 {
    let mut found = -1;
    wait_until("the id has a coordinator", SOON, || {
        let keys = vec![transactional_id.into()];
        let request = FindCoordinatorRequest { key_type: 1, coordinator_keys: keys, ..Default::default() };
        let answer = cluster.broker(requested).client().call(&request, 4).coordinators.remove(0);
        found = answer.node_id;
        answer.error_code == ErrorCode::NONE
    });
    found
}

/// Starts a producer at the coordinator of its id.
fn begin(cluster: &mut Cluster, requested: i32, name: &str, protocol: Protocol) -> (Transactional, i32, Client) {
    let id = format!("{name}-{protocol:?}");
    let at = coordinator(cluster, requested, &id);
    let mut client = cluster.broker(at).client();
    (Transactional::begin(&mut client, &id, protocol), at, client)
}

/// Writes a batch through a broker, and retries as a client does.
fn write(cluster: &mut Cluster, coordinator: &mut Client, producer: &mut Transactional, by: i32, value: &str) {
    if producer.protocol == Protocol::Old {
        producer.add(coordinator, TOPIC, &[0]);
    }
    let batch = producer.batch(TOPIC, 0, &[value]);
    let mut client = cluster.broker(by).client();
    wait_until("the batch is taken", SOON, || {
        let code = producer.send(&mut client, TOPIC, 0, &batch).error_code;
        let again = [ErrorCode::NOT_ENOUGH_REPLICAS, ErrorCode::KAFKA_STORAGE_ERROR];
        assert!(code == ErrorCode::NONE || again.contains(&code), "{code}");
        code == ErrorCode::NONE
    });
}

/// Waits until a broker sees no open transaction. Returns the committed records that it serves.
fn settled(client: &mut Client) -> Vec<String> {
    wait_until("no transaction is open", SOON, || client.stable(TOPIC, 0) == client.latest(TOPIC, 0));
    client.committed_texts(TOPIC, 0)
}

fn end(producer: &mut Transactional, client: &mut Client, is_commit: bool) {
    wait_until("the end is decided", SOON, || {
        let response = producer.try_end(client, is_commit);
        let is_decided = response.error_code == ErrorCode::NONE;
        if is_decided {
            producer.ended(&response);
        }
        is_decided
    });
}

#[test]
fn transaction_written_through_all_brokers_is_read_by_its_end_at_each() {
    let mut brokers = shared(&[], 1);
    let cluster = &mut brokers.cluster;
    let mut expected = Vec::new();
    for protocol in Protocol::BOTH {
        let (mut producer, _, mut client) = begin(cluster, 1, "by-all", protocol);
        for (round, is_commit) in [true, false, true].into_iter().enumerate() {
            for by in ALL {
                let value = format!("{protocol:?} {round} by {by}");
                write(cluster, &mut client, &mut producer, by, &value);
                if is_commit {
                    expected.push(value);
                }
            }
            end(&mut producer, &mut client, is_commit);
        }
        for id in ALL {
            assert_eq!(settled(&mut cluster.broker(id).client()), expected, "broker {id}");
        }
    }
    // All brokers restart, so that they must read the transactions from the index.
    for id in ALL {
        cluster.broker(id).kill();
        cluster.broker(id).restart();
    }
    cluster.wait_for_brokers(&ALL);
    for id in ALL {
        assert_eq!(settled(&mut cluster.broker(id).client()), expected, "broker {id}");
    }
}

/// The broker that serves the long poll learns the last stable offset together with the records.
#[test]
fn marker_of_another_broker_wakes_a_long_poll_at_read_committed() {
    let mut brokers = shared(&[], 1);
    let cluster = &mut brokers.cluster;
    let (mut producer, at, mut client) = begin(cluster, 1, "wakes", Protocol::New);
    for id in ALL.into_iter().filter(|id| *id != at) {
        for is_commit in [true, false] {
            let mut consumer = cluster.broker(id).client();
            let from = settled_end(&mut consumer);
            consumer.send_committed_poll(TOPIC, 0, from, 1, 300_000);
            write(cluster, &mut client, &mut producer, at, "waits for its marker");
            end(&mut producer, &mut client, is_commit);
            let data = consumer.receive_long_poll();
            let batches = Batch::parse_all(data.records.as_ref().and_then(|records| records.memory()).expect("read"));
            // The response has the record. It may lack the marker, because the broker may not have read the marker's
            // object yet.
            assert_eq!(batches[0].records[0].text(), "waits for its marker");
            assert_eq!(data.last_stable_offset, from + 2);
            assert_eq!(data.aborted_transactions.unwrap_or_default().len(), usize::from(!is_commit));
        }
    }
}

fn settled_end(client: &mut Client) -> i64 {
    settled(client);
    client.latest(TOPIC, 0)
}

/// Each PUT takes two seconds. The coordinator is killed during that time, so it has written no marker. Another broker
/// must write it.
#[test]
fn kill_of_the_coordinator_before_the_marker_lets_another_broker_write_it() {
    let mut brokers = shared_with_short_sessions(&["fullbore.diskless.put.delay.ms=2000"], 1);
    let cluster = &mut brokers.cluster;
    let mut expected = Vec::new();
    for protocol in Protocol::BOTH {
        let (mut producer, at, mut client) = begin(cluster, 1, "killed", protocol);
        let other = at % 3 + 1;
        expected.push(format!("{protocol:?}"));
        write(cluster, &mut client, &mut producer, other, &expected[expected.len() - 1]);
        end(&mut producer, &mut client, true);
        cluster.broker(at).kill();
        assert_eq!(settled(&mut cluster.broker(other).client()), expected);
        cluster.broker(at).restart();
        cluster.wait_for_brokers(&ALL);
        assert_eq!(settled(&mut cluster.broker(at).client()), expected);
    }
}

/// Only the coordinator of the id has no object store. Other brokers must therefore write its markers.
#[test]
fn coordinator_without_a_store_has_its_markers_written_by_another_broker() {
    let store = tempfile::tempdir().expect("a directory");
    let mut plan = ClusterPlan::new(3, &[]);
    (0..2).for_each(|index| plan.set(index, "diskless.storage", store.path().to_str().expect("a path")));
    let mut cluster = plan.start();
    cluster.broker(1).client().create_topic(TOPIC, 1, &[("diskless.enable", "true")]);
    let mut expected = Vec::new();
    for protocol in Protocol::BOTH {
        let of_third = |name: &String| coordinator(&mut cluster, 1, &format!("{name}-{protocol:?}")) == 3;
        let name = (0..200).map(|n| format!("storeless-{n}")).find(of_third).expect("one in three");
        let (mut producer, _, mut client) = begin(&mut cluster, 1, &name, protocol);
        for (value, is_commit) in [("first", true), ("aborted", false), ("last", true)] {
            write(&mut cluster, &mut client, &mut producer, 1, value);
            end(&mut producer, &mut client, is_commit);
            if is_commit {
                expected.push(value);
            }
            for id in [1, 2] {
                assert_eq!(settled(&mut cluster.broker(id).client()), expected, "broker {id}");
            }
        }
    }
}
