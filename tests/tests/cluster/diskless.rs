//! Diskless topics of several brokers that share a store and an index. Whichever broker accepts a batch, every broker
//! must return the batch once and in order.

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use fullbore_tests::s3::{S3, S3Fault};
use fullbore_tests::{Batch, Client, Cluster, ClusterPlan, produce_request, serve_refused, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::produce::ProduceRequest;
use tempfile::TempDir;

use crate::faults::ALL;
use crate::workload::{Load, produced_while};

pub const TOPIC: &str = "diskless";
const PARTITIONS: i32 = 3;
/// A short session timeout. Only its expiry shows that a broker has ended, because a diskless topic has no replicas
/// that would notice.
pub const SESSION: &str = "broker.session.timeout.ms=4000";
pub const CALL: &str = "control.plane.timeout.ms=4000";
const SOON: Duration = Duration::from_secs(60);
const BACK_MAX: Duration = Duration::from_secs(60);

/// A cluster whose brokers share a store. The store is dropped after the cluster.
pub struct Shared {
    pub cluster: Cluster,
    _store: TempDir,
}

/// Starts three brokers with the given settings and creates a diskless topic. The default session timeout applies, so
/// the cluster is slow to notice that a broker has ended.
pub fn shared(sets: &[&str], partitions: i32) -> Shared {
    shared_by(ClusterPlan::new(3, sets), partitions)
}

/// Does the same as [`shared`] with a short session timeout, for a test that kills or freezes brokers.
pub fn shared_with_short_sessions(sets: &[&str], partitions: i32) -> Shared {
    shared_by(ClusterPlan::new(3, &[&[SESSION, CALL], sets].concat()), partitions)
}

pub fn shared_by(mut plan: ClusterPlan, partitions: i32) -> Shared {
    let store = tempfile::tempdir().expect("a directory");
    set_store(&mut plan, store.path());
    let mut cluster = plan.start();
    cluster.create(TOPIC, partitions, 1, &["diskless.enable=true"]);
    for id in ALL {
        wait_until("every broker serves the topic", SOON, || {
            let mut client = cluster.broker(id).client();
            (0..partitions).all(|partition| client.list_offset(TOPIC, partition, -1).error_code == ErrorCode::NONE)
        });
    }
    Shared { cluster, _store: store }
}

pub fn set_store(plan: &mut ClusterPlan, directory: &Path) {
    (0..3).for_each(|index| plan.set(index, "diskless.storage", directory.to_str().expect("a path")));
}

/// Starts three brokers that share a store. The cluster has its own PostgreSQL.
fn shared_with_own_postgres(partitions: i32) -> Shared {
    shared_by(ClusterPlan::with_own_postgres(3, &[SESSION, CALL]), partitions)
}

/// After the copy was made, only diskless topics were written. The copy's metadata is therefore current, and only its
/// index is older.
#[test]
fn older_copy_of_the_index_refuses_brokers_and_the_newest_continues() {
    let plan = ClusterPlan::with_own_postgres(3, &["broker.session.timeout.ms=30000", CALL]);
    let mut shared = shared_by(plan, 1);
    let cluster = &mut shared.cluster;
    let produced = |cluster: &mut Cluster, text: &str| {
        wait_until("it is written", BACK_MAX, || {
            cluster.broker(1).client().produce(TOPIC, 0, &Batch::of(&[text])).error_code == ErrorCode::NONE
        });
    };
    produced(cluster, "before");
    cluster.postgres().copy();
    produced(cluster, "since");
    ALL.iter().for_each(|id| cluster.broker(*id).kill());
    cluster.postgres().swap();
    let sets: Vec<String> = cluster.sets_of(1).to_vec();
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let refused = serve_refused(cluster.broker(1).data_dir(), &sets);
    let line = refused.stderr.lines().last().expect("it says why");
    assert!(!refused.status.success() && line.contains("without the missing records"), "{}", refused.stderr);
    // A start that has waited for the database must not skip the check.
    cluster.postgres().stop();
    let broker = cluster.broker(1);
    broker.begin_restart();
    broker.wait_for_stderr("cannot use the cluster's database yet");
    cluster.postgres().start_again();
    let broker = cluster.broker(1);
    broker.wait_for_stderr("without the missing records");
    assert!(!broker.wait_for_end().success());
    cluster.postgres().swap();
    cluster.broker(1).restart();
    let records = cluster.broker(1).client().fetch_records(TOPIC, 0);
    let texts: Vec<_> = records.iter().map(|record| record.text()).collect();
    assert_eq!((texts.first().map(String::as_str), texts.last().map(String::as_str)), (Some("before"), Some("since")));
}

#[test]
fn index_hangs_the_producers_are_refused_before_the_tool_gives_up() {
    // A call of the database may take 30 s with these settings. The request has its own limit of 8 s, and must end
    // then.
    let plan =
        ClusterPlan::with_own_postgres(3, &["broker.session.timeout.ms=60000", "control.plane.timeout.ms=30000"]);
    let mut shared = shared_by(plan, 1);
    let cluster = &mut shared.cluster;
    cluster.postgres().freeze();
    let reported = cluster.refused(&["transactions", "describe-producers", "--topic", TOPIC, "--partition", "0"]);
    cluster.postgres().thaw();
    let expected = "are not known: the database of diskless topics, or the disk, gave no answer in 8s";
    assert!(reported.contains(expected), "{reported}");
}

/// Runs `under_fault` on a new cluster while clients produce and consume.
fn under_fault(under_fault: impl FnOnce(&mut Cluster, &Load)) {
    under_fault_in(shared_with_short_sessions(&[], PARTITIONS), under_fault);
}

fn under_fault_in(mut shared: Shared, under_fault: impl FnOnce(&mut Cluster, &Load)) {
    produced_while(&mut shared.cluster, TOPIC, |cluster, load| {
        under_fault(cluster, load);
        cluster.wait_for_brokers(&ALL);
    });
}

fn others(id: i32) -> Vec<i32> {
    ALL.into_iter().filter(|other| *other != id).collect()
}

#[test]
fn killed_broker_loses_no_diskless_record() {
    under_fault(|cluster, load| {
        for id in ALL {
            cluster.broker(id).kill();
            cluster.wait_for_brokers(&others(id));
            load.goes_on();
            cluster.broker(id).restart();
            cluster.wait_for_brokers(&ALL);
        }
    });
}

#[test]
fn rolling_restart_loses_no_diskless_record() {
    under_fault(|cluster, load| {
        for id in ALL {
            cluster.broker(id).stop();
            cluster.broker(id).restart();
            cluster.wait_for_brokers(&ALL);
            load.goes_on();
        }
    });
}

#[test]
fn wiped_disk_loses_no_diskless_record() {
    under_fault(|cluster, load| {
        for id in ALL {
            cluster.broker(id).kill();
            cluster.wait_for_brokers(&others(id));
            let directory = cluster.broker(id).data_dir().to_owned();
            for entry in std::fs::read_dir(&directory).expect("its directory") {
                let path = entry.expect("an entry").path();
                let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
                removed.expect("it is removed");
            }
            cluster.broker(id).restart();
            cluster.wait_for_brokers(&ALL);
            load.goes_on();
        }
    });
}

/// The batches that the broker accepted before it hung arrive late. The partition must have each of them once.
#[test]
fn broker_hung_past_its_session_loses_no_diskless_record() {
    under_fault(|cluster, load| {
        for id in ALL {
            cluster.broker(id).freeze();
            cluster.wait_for_brokers(&others(id));
            load.goes_on();
            cluster.broker(id).thaw();
            cluster.wait_for_brokers(&ALL);
        }
    });
}

#[test]
fn database_outage_delays_diskless_batches() {
    under_fault_in(shared_with_own_postgres(PARTITIONS), |cluster, load| {
        // The test's batches go to another topic, because a refused batch may be written nevertheless. The load's topic
        // must have only the load's records.
        const ASIDE: &str = "aside";
        cluster.create(ASIDE, 1, 1, &["diskless.enable=true"]);
        cluster.postgres().stop();
        is_refused(&mut cluster.broker(1).client(), ASIDE);
        cluster.postgres().start_again();
        load.goes_on_within(BACK_MAX);
        cluster.postgres().freeze();
        is_refused(&mut cluster.broker(2).client(), ASIDE);
        cluster.postgres().thaw();
        load.goes_on_within(BACK_MAX);
    });
}

/// Checks that a produce request with a timeout of one second fails with a retriable error.
fn is_refused(client: &mut Client, topic: &str) {
    let request = ProduceRequest { timeout_ms: 1_000, ..produce_request(topic, 0, Batch::of(&["too early"]).bytes()) };
    let answer = client.call(&request, 9).responses.remove(0).partition_responses.remove(0);
    assert!(answer.error_code.is_err() && answer.error_code.is_retriable(), "{:?}", answer.error_code);
}

/// While the older copy is in place, the cluster must accept no batch. Otherwise it would assign offsets twice.
#[test]
fn older_copy_of_the_database_accepts_no_batch() {
    let mut shared = shared_with_own_postgres(1);
    let cluster = &mut shared.cluster;
    let mut clients: Vec<Client> = ALL.iter().map(|id| cluster.broker(*id).client()).collect();
    for client in &mut clients {
        client.produced(TOPIC, 0, &Batch::of(&["before"]));
    }
    cluster.postgres().copy();
    // The database was stopped for a while to make the copy, so a broker may refuse the first attempts.
    let mut offsets = Vec::new();
    for client in &mut clients {
        wait_until("it is taken", SOON, || {
            let answer = client.produce(TOPIC, 0, &Batch::of(&["after"]));
            offsets.extend((answer.error_code == ErrorCode::NONE).then_some(answer.base_offset));
            answer.error_code == ErrorCode::NONE
        });
    }
    cluster.postgres().swap();
    clients.iter_mut().for_each(|client| is_refused(client, TOPIC));
    cluster.postgres().swap();
    for client in &mut clients {
        wait_until("it is taken again", SOON, || {
            let answer = client.produce(TOPIC, 0, &Batch::of(&["with the newest"]));
            offsets.extend((answer.error_code == ErrorCode::NONE).then_some(answer.base_offset));
            answer.error_code == ErrorCode::NONE
        });
    }
    let count = offsets.len();
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), count, "no offset is given twice: {offsets:?}");
}

/// Two brokers get the same batches of one producer at the same time. Both must return the same offset for each batch.
#[test]
fn one_batch_sent_to_two_brokers_at_once_has_one_offset() {
    let mut shared = shared(&["diskless.produce.commit.interval.ms=1"], 1);
    let cluster = &mut shared.cluster;
    let producer_id = cluster.broker(1).client().init_producer_id();
    let rounds = 1_000;
    let barrier = Barrier::new(2);
    let sent: Vec<Vec<i64>> = std::thread::scope(|scope| {
        let of = [1, 2].map(|id| {
            let (mut client, barrier) = (cluster.broker(id).client(), &barrier);
            scope.spawn(move || {
                let send = |round: i32| {
                    let batch = Batch::of(&["one", "two"]).from_producer(producer_id, 0, 2 * round);
                    barrier.wait();
                    client.produced(TOPIC, 0, &batch)
                };
                (0..rounds).map(send).collect()
            })
        });
        of.into_iter().map(|one| one.join().expect("each batch is taken")).collect()
    });
    assert_eq!(sent[0], sent[1]);
    assert!(sent[0].is_sorted_by(|one, next| one < next), "{sent:?}");
    assert_eq!(cluster.broker(3).client().latest(TOPIC, 0), sent[0][0] + 2 * i64::from(rounds));
}

/// The producer moves to another broker before its former broker has responded. Its batches must still be written in
/// order.
#[test]
fn producer_moving_with_batches_in_flight_stays_in_order() {
    const IN_FLIGHT: usize = 5;
    let mut shared = shared(&["fullbore.diskless.put.delay.ms=50"], 1);
    let cluster = &mut shared.cluster;
    let producer_id = cluster.broker(1).client().init_producer_id();
    let mut clients: Vec<Client> = ALL.iter().map(|id| cluster.broker(*id).client()).collect();
    let mut next = 0;
    let mut offsets = Vec::new();
    for round in 0..30 {
        for at in 0..clients.len() {
            let client = &mut clients[(round + at) % ALL.len()];
            for _ in 0..IN_FLIGHT {
                client.send_produce(TOPIC, 0, &Batch::of(&[next.to_string()]).from_producer(producer_id, 0, next));
                next += 1;
            }
        }
        for at in 0..clients.len() {
            let client = &mut clients[(round + at) % ALL.len()];
            for _ in 0..IN_FLIGHT {
                let answer = client.receive_produced();
                assert_eq!(answer.error_code, ErrorCode::NONE, "in round {round}");
                offsets.push(answer.base_offset);
            }
        }
    }
    assert!(offsets.is_sorted_by(|one, next| one + 1 == *next), "{offsets:?}");
    let records = cluster.broker(2).client().fetch_records(TOPIC, 0);
    let read: Vec<String> = records.iter().map(|record| record.text()).collect();
    assert_eq!(read[read.len() - next as usize..], (0..next).map(|of| of.to_string()).collect::<Vec<_>>());
}

#[test]
fn consumer_at_another_broker_is_woken_and_sees_acknowledged_records() {
    let mut shared = shared(&[], 1);
    let cluster = &mut shared.cluster;
    let mut clients: Vec<Client> = ALL.iter().map(|id| cluster.broker(*id).client()).collect();
    let mut end = clients[0].latest(TOPIC, 0);
    for round in 0..20 {
        let writer = round % 3;
        clients[(writer + 1) % 3].send_long_poll(TOPIC, 0, end);
        assert_eq!(clients[writer].produced(TOPIC, 0, &Batch::of(&["record"])), end);
        end += 1;
        // A broker that has no record at the requested offset refreshes from the index before it responds.
        let empty = clients[(writer + 2) % 3].fetch(TOPIC, 0, end);
        assert_eq!((empty.error_code, empty.high_watermark), (ErrorCode::NONE, end));
        assert_eq!(clients[(writer + 2) % 3].latest(TOPIC, 0), end);
        let woken = clients[(writer + 1) % 3].receive_long_poll();
        assert_eq!((woken.error_code, woken.high_watermark), (ErrorCode::NONE, end));
    }
    let past = clients[0].fetch(TOPIC, 0, end + 1);
    assert_eq!(past.error_code, ErrorCode::OFFSET_OUT_OF_RANGE);
    clients[1].delete_records(TOPIC, 0, end - 1);
    for client in &mut clients {
        assert_eq!(client.earliest(TOPIC, 0), end - 1);
        wait_until("what was deleted elsewhere is not read", SOON, || {
            client.fetch(TOPIC, 0, 0).error_code == ErrorCode::OFFSET_OUT_OF_RANGE
        });
    }
}

#[test]
fn recreated_topic_is_empty_at_all_brokers() {
    let mut shared = shared(&[], 1);
    let cluster = &mut shared.cluster;
    for round in 0..10 {
        // Waits until all brokers know of the deletion. Otherwise a broker could append its record to the deleted
        // topic.
        cluster.wait_for_same_topic(TOPIC);
        for id in ALL {
            let mut client = cluster.broker(id).client();
            wait_until("it takes records", SOON, || {
                client.produce(TOPIC, 0, &Batch::of(&[format!("{round}")])).error_code == ErrorCode::NONE
            });
        }
        for id in ALL {
            let mut client = cluster.broker(id).client();
            let read: Vec<String> = client.fetch_records(TOPIC, 0).iter().map(|record| record.text()).collect();
            assert!(read.len() >= 3 && read.iter().all(|of| *of == round.to_string()), "{read:?} in round {round}");
        }
        cluster.run(&["topics", "delete", "--topic", TOPIC]);
        cluster.create(TOPIC, 1, 1, &["diskless.enable=true"]);
    }
}

/// librdkafka fails permanently if the sequence of its next batch is refused. Every broker must therefore accept this
/// batch after the topic is recreated.
#[test]
fn recreated_topic_takes_the_next_batch_of_a_producer_at_any_broker() {
    let mut shared = shared(&[], 1);
    let cluster = &mut shared.cluster;
    let id = cluster.broker(1).client().init_producer_id();
    let one = |sequence: i32| Batch::of(&[sequence.to_string()]).from_producer(id, 0, sequence);
    let mut next = 0;
    for round in 0..12 {
        let mut client = cluster.broker(ALL[round % 3]).client();
        let mut taken = 0;
        while taken < 3 {
            let mut offset = -1;
            wait_until("the broker has heard of the topic", SOON, || {
                let answer = client.produce(TOPIC, 0, &one(next));
                let may_come = [ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, ErrorCode::KAFKA_STORAGE_ERROR];
                assert!(answer.error_code == ErrorCode::NONE || may_come.contains(&answer.error_code), "{answer:?}");
                offset = answer.base_offset;
                answer.error_code == ErrorCode::NONE
            });
            next += 1;
            // A broker that has not learned of the deletion yet may append the batch to the old topic.
            assert!(offset == taken || taken == 0 && offset >= 3, "{offset} after {taken}");
            taken += i64::from(offset == taken);
        }
        let mut other = cluster.broker(ALL[(round / 3) % 3]).client();
        other.delete_topic(TOPIC);
        if round == 6 {
            ALL.iter().for_each(|id| cluster.broker(*id).kill());
            ALL.iter().for_each(|id| cluster.broker(*id).restart());
            cluster.wait_for_brokers(&ALL);
        }
        cluster.create(TOPIC, 1, 1, &["diskless.enable=true"]);
    }
    let mut client = cluster.broker(2).client();
    wait_until("a known producer is held to its sequence", SOON, || {
        client.produce(TOPIC, 0, &one(next + 5)).error_code == ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER
    });
    // No broker knows this producer. It may have written to an earlier topic of this name, so it must get this error
    // code, after which it begins a new epoch. Another code would make it fail permanently.
    wait_until("an unknown producer begins a new epoch", SOON, || {
        let unknown = Batch::of(&["new"]).from_producer(id + 1, 0, 7);
        client.produce(TOPIC, 0, &unknown).error_code == ErrorCode::UNKNOWN_PRODUCER_ID
    });
}

/// If the response has a log start offset, Java's producer begins a new epoch. Otherwise it retries until
/// delivery.timeout.ms.
#[test]
fn unknown_producer_gets_the_log_start_offset() {
    let mut shared = shared(&["fullbore.reorder.wait.ms=500"], 1);
    let cluster = &mut shared.cluster;
    let mut client = cluster.broker(1).client();
    let ids = [client.init_producer_id(), client.init_producer_id()];
    let one = |of: usize, sequence: i32| Batch::of(&["a"]).from_producer(ids[of], 0, sequence);
    (0..2).for_each(|of| assert_eq!(client.produce(TOPIC, 0, &one(of, 0)).error_code, ErrorCode::NONE));
    cluster.run(&["topics", "delete", "--topic", TOPIC]);
    cluster.create(TOPIC, 1, 1, &["diskless.enable=true"]);
    let mut sequence = 1;
    wait_until("one of them has written to the new topic", SOON, || {
        let answer = client.produce(TOPIC, 0, &one(0, sequence));
        sequence += i32::from(answer.error_code == ErrorCode::NONE);
        answer.error_code == ErrorCode::NONE && answer.base_offset == 0
    });
    assert_eq!(client.produce(TOPIC, 0, &one(1, 1)).error_code, ErrorCode::NONE, "it is known where it stopped");
    let unknown = Batch::of(&["a"]).from_producer(client.init_producer_id(), 0, 7);
    let answer = client.produce(TOPIC, 0, &unknown);
    assert_eq!((answer.error_code, answer.log_start_offset), (ErrorCode::UNKNOWN_PRODUCER_ID, 0), "{answer:?}");
}

/// Regression: after a topic was recreated, only one producer could continue at once. The batches of all others were
/// parked until they expired.
#[test]
fn recreated_topic_takes_batches_of_several_producers_at_once_at_any_broker() {
    let mut shared = shared(&["fullbore.reorder.wait.ms=60000"], 1);
    let cluster = &mut shared.cluster;
    let ids = [0; 3].map(|_| cluster.broker(1).client().init_producer_id());
    let one = |of: usize, sequence: i32| Batch::of(&["a"]).from_producer(ids[of], 0, sequence);
    let mut client = cluster.broker(1).client();
    for sequence in 0..2 {
        (0..3).for_each(|of| assert_eq!(client.produce(TOPIC, 0, &one(of, sequence)).error_code, ErrorCode::NONE));
    }
    for round in 0..3 {
        cluster.run(&["topics", "delete", "--topic", TOPIC]);
        cluster.create(TOPIC, 1, 1, &["diskless.enable=true"]);
        cluster.wait_for_same_topic(TOPIC);
        // Producer 0 resends its last batch, as after a lost response. Producer 2 writes to a broker that has just
        // restarted.
        for (of, sequence) in [(0, round + 1), (1, round + 2), (2, round + 2)] {
            let broker = ALL[(of + round as usize) % 3];
            if of == 2 {
                cluster.broker(broker).stop();
                cluster.broker(broker).restart();
                cluster.wait_for_brokers(&ALL);
            }
            let mut client = cluster.broker(broker).client();
            let requested = Instant::now();
            wait_until("it is taken", SOON, || {
                let answer = client.produce(TOPIC, 0, &one(of, sequence));
                let may_come = [ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, ErrorCode::KAFKA_STORAGE_ERROR];
                assert!(answer.error_code == ErrorCode::NONE || may_come.contains(&answer.error_code), "{answer:?}");
                answer.error_code == ErrorCode::NONE
            });
            assert!(requested.elapsed() < Duration::from_secs(30), "{:?} for {of} in {round}", requested.elapsed());
        }
        // Producer 0 has resent a batch and is one batch behind the others, so it now sends its next one.
        let mut client = cluster.broker(1).client();
        assert_eq!(client.produce(TOPIC, 0, &one(0, round + 2)).error_code, ErrorCode::NONE);
    }
}

/// Regression: the idle producer's batch was parked for `fullbore.reorder.wait.ms`, although no earlier batch was
/// missing, and was then refused permanently.
#[test]
fn idle_producer_continues_at_once_at_any_broker_after_two_recreations() {
    let mut shared = shared(&["fullbore.reorder.wait.ms=60000"], 1);
    let cluster = &mut shared.cluster;
    let [idle, busy] = [0; 2].map(|_| cluster.broker(1).client().init_producer_id());
    let one = |of: i64, sequence: i32| Batch::of(&["a"]).from_producer(of, 0, sequence);
    let take = |client: &mut Client, batch: &Batch| {
        let requested = Instant::now();
        wait_until("it is taken", SOON, || {
            let answer = client.produce(TOPIC, 0, batch);
            let may_come = [ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, ErrorCode::KAFKA_STORAGE_ERROR];
            assert!(answer.error_code == ErrorCode::NONE || may_come.contains(&answer.error_code), "{answer:?}");
            answer.error_code == ErrorCode::NONE
        });
        assert!(requested.elapsed() < Duration::from_secs(30), "{:?}", requested.elapsed());
    };
    let mut client = cluster.broker(1).client();
    take(&mut client, &one(idle, 0));
    for sequence in 0..4 {
        take(&mut client, &one(busy, sequence));
        cluster.run(&["topics", "delete", "--topic", TOPIC]);
        cluster.create(TOPIC, 1, 1, &["diskless.enable=true"]);
        cluster.wait_for_same_topic(TOPIC);
    }
    take(&mut cluster.broker(2).client(), &one(idle, 1));
    take(&mut cluster.broker(3).client(), &one(busy, 4));
    take(&mut cluster.broker(3).client(), &one(idle, 2));
}

/// Regression: five batches of a producer were parked because an earlier batch was missing, which had gone to the
/// deleted topic. The broker must refuse the five at once: a client with five batches in flight cannot resend the
/// earlier one.
#[test]
fn recreated_topic_refuses_an_overtaking_batch_at_once_at_any_broker() {
    let mut shared = shared(&["fullbore.reorder.wait.ms=60000"], 1);
    let cluster = &mut shared.cluster;
    let id = cluster.broker(1).client().init_producer_id();
    let one = |sequence: i32| Batch::of(&["a"]).from_producer(id, 0, sequence);
    let mut next = 0;
    for broker in ALL {
        let mut client = cluster.broker(broker).client();
        for _ in 0..2 {
            wait_until("it is taken", SOON, || client.produce(TOPIC, 0, &one(next)).error_code == ErrorCode::NONE);
            next += 1;
        }
        cluster.run(&["topics", "delete", "--topic", TOPIC]);
        cluster.create(TOPIC, 1, 1, &["diskless.enable=true"]);
        cluster.wait_for_same_topic(TOPIC);
        let requested = Instant::now();
        wait_until("it is refused", SOON, || {
            let codes = [1, 2].map(|ahead| client.produce(TOPIC, 0, &one(next + ahead)).error_code);
            let may_come = [ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, ErrorCode::KAFKA_STORAGE_ERROR];
            let refused = ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER;
            assert!(codes.iter().all(|code| *code == refused || may_come.contains(code)), "{codes:?}");
            codes == [refused; 2]
        });
        assert!(requested.elapsed() < Duration::from_secs(30), "{:?} at {broker}", requested.elapsed());
    }
}

/// If each broker had its own store, each would have only a part of the records.
#[test]
fn broker_with_another_store_does_not_start() {
    let mut shared = shared(&[], 1);
    let cluster = &mut shared.cluster;
    cluster.broker(3).stop();
    let other = tempfile::tempdir().expect("a directory");
    let is_other = |set: &&String| !set.starts_with("diskless.storage=");
    let mut sets: Vec<String> = cluster.sets_of(3).iter().filter(is_other).cloned().collect();
    sets.push(format!("diskless.storage={}", other.path().display()));
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let refused = serve_refused(cluster.broker(3).data_dir(), &sets);
    let line = refused.stderr.lines().last().expect("it says why");
    assert!(
        !refused.status.success() && line.contains("this store does not have this cluster's records"),
        "{}",
        refused.stderr
    );
    // The broker that refused to start must be fenced at once. Otherwise it would get replicas and clients until its
    // session expires.
    assert_eq!(cluster.query("SELECT fenced FROM fullbore.brokers WHERE broker_id = 3"), "t");
    cluster.broker(3).restart();
    cluster.wait_for_brokers(&ALL);
}

/// The broker starts while its store is unreachable. The store that it later reaches belongs to another cluster, so the
/// broker must not write to it.
#[test]
fn broker_that_later_reaches_another_store_writes_nothing_there() {
    let s3 = S3::start();
    let mut plan = ClusterPlan::new(3, &[SESSION, CALL]);
    for set in s3.sets() {
        let (key, value) = set.split_once('=').expect("a setting");
        (0..3).for_each(|index| plan.set(index, key, value));
    }
    let mut cluster = plan.start();
    cluster.create(TOPIC, 1, 1, &["diskless.enable=true"]);
    wait_until("it takes a batch", SOON, || {
        cluster.broker(1).client().produce(TOPIC, 0, &Batch::of(&["before"])).error_code == ErrorCode::NONE
    });
    cluster.broker(3).stop();
    let sets: Vec<String> = cluster.sets_of(3).iter().map(|set| set.replace("/prefix", "/other")).collect();
    for method in ["PUT", "GET", "DELETE"] {
        s3.every(method, S3Fault::Status(503, "SlowDown"));
    }
    cluster.broker(3).restart_with(&sets.iter().map(String::as_str).collect::<Vec<_>>());
    s3.heal();
    cluster.broker(3).wait_for_stderr("this store does not have this cluster's records");
    let mut client = cluster.broker(3).client();
    // The other brokers reach the cluster's store, so clients of broker 3 are soon sent to them.
    wait_until("it is left out", SOON, || {
        let code = client.produce(TOPIC, 0, &Batch::of(&["a"])).error_code;
        assert!([ErrorCode::KAFKA_STORAGE_ERROR, ErrorCode::NOT_LEADER_OR_FOLLOWER].contains(&code), "{code:?}");
        code == ErrorCode::NOT_LEADER_OR_FOLLOWER
    });
    assert_eq!(client.fetch(TOPIC, 0, 0).error_code, ErrorCode::NOT_LEADER_OR_FOLLOWER);
    assert!(!s3.directory().join("other").exists(), "nothing was put there");
}
