//! A cluster that continues on an older copy of its database (`fullbore admin accept-copy`). The data directories then
//! have partitions and records that the metadata lack, and the index of diskless topics is older than the classic logs.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fullbore_tests::{Batch, Cluster, ClusterPlan, Protocol, Transactional, binary, wait_until};
use fullbore_wire::ErrorCode;
use tempfile::TempDir;

use crate::diskless::TOPIC;

const ACCEPTED_MAX: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(120);
const SETS: [&str; 6] = [
    "broker.session.timeout.ms=2000",
    "auto.leader.rebalance.enable=false",
    "log.retention.check.interval.ms=1000",
    "offsets.topic.replication.factor=1",
    "transaction.state.log.replication.factor=1",
    "transaction.state.log.min.isr=1",
];

/// Starts a cluster and its object store. The caller must drop the cluster before the store.
fn start(brokers: usize) -> (Cluster, TempDir) {
    let store = TempDir::new().expect("a directory");
    let mut plan = ClusterPlan::with_own_postgres(brokers, &SETS);
    (0..brokers).for_each(|index| plan.set(index, "diskless.storage", store.path().to_str().expect("a path")));
    (plan.start(), store)
}

/// Replaces the database by its copy, accepts the copy, and starts all brokers again.
fn continue_on_copy(cluster: &mut Cluster) {
    let ids: Vec<i32> = cluster.ids().collect();
    ids.iter().for_each(|id| cluster.broker(*id).stop());
    cluster.postgres().swap();
    let url = cluster.sets_of(1).iter().find_map(|set| set.strip_prefix("control.plane=")).expect("set").to_owned();
    wait_until("the copy is accepted", ACCEPTED_MAX, || {
        let run = Command::new(binary()).args(["admin", "accept-copy", "--control-plane", &url]).output();
        run.expect("the binary starts").status.success()
    });
    ids.iter().for_each(|id| cluster.broker(*id).restart());
    cluster.wait_for_brokers(&ids);
}

/// Produces records one by one, each until a broker acknowledges it.
fn produce(cluster: &mut Cluster, broker: i32, topic: &str, partition: i32, texts: &[String]) {
    for text in texts {
        wait_until("it is written", SOON, || {
            let mut client = cluster.broker(broker).client();
            client.produce(topic, partition, &Batch::of(&[text])).error_code == ErrorCode::NONE
        });
    }
}

fn texts(cluster: &mut Cluster, broker: i32, topic: &str, partition: i32) -> Vec<String> {
    let records = cluster.broker(broker).client().fetch_records(topic, partition);
    records.iter().map(|record| record.text()).collect()
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(copied.success(), "{} is copied", from.display());
}

fn numbered(word: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{word} {number}")).collect()
}

/// Adds a second partition on the brokers of `assignment`, preferred leader first.
fn grow(cluster: &Cluster, assignment: &str) {
    let all = format!("1:2,{assignment}");
    cluster.run(&["topics", "alter", "--topic", "grown", "--partitions", "2", "--replica-assignment", &all]);
}

/// Starts three brokers and copies the database. Then the topic gets a second partition with records. The copy does not
/// have this partition.
fn grown_after_the_copy() -> (Cluster, TempDir) {
    let (mut cluster, store) = start(3);
    cluster.run(&["topics", "create", "--topic", "grown", "--replica-assignment", "1:2"]);
    cluster.postgres().copy();
    cluster.wait_for_brokers(&[1, 2, 3]);
    grow(&cluster, "1:2");
    produce(&mut cluster, 1, "grown", 1, &numbered("lost", 30));
    (cluster, store)
}

/// Adds the partition again while broker 1 is stopped. Broker 1 then starts as a follower, and the leader is killed.
/// Broker 1 must have only the records that were written since the partition was added again.
fn add_again_and_lose_leader(cluster: &mut Cluster) {
    grow(cluster, "3:1");
    produce(cluster, 3, "grown", 1, &numbered("new", 60));
    cluster.broker(1).restart();
    cluster.wait_for_isr(2, "grown", 2);
    cluster.broker(3).kill();
    assert_eq!(cluster.wait_for_leader(2, "grown", 1, 3), 1);
    assert_eq!(texts(cluster, 1, "grown", 1), numbered("new", 60));
}

/// The partition 1 that existed before the copy was accepted has left its records on a follower. Then a new partition 1
/// is added.
#[test]
fn partition_is_added_again_after_an_accepted_copy_its_replicas_have_only_its_own_records() {
    let (mut cluster, _store) = grown_after_the_copy();
    continue_on_copy(&mut cluster);
    let directory = cluster.broker(1).data_dir().to_owned();
    let entries = fs::read_dir(&directory).expect("listed").map(|entry| entry.expect("listed").file_name());
    let names: Vec<String> = entries.map(|name| name.into_string().expect("text")).collect();
    let is_aside = names.iter().any(|name| name.starts_with("grown-1.") && name.ends_with("-stray"));
    assert!(is_aside && !names.iter().any(|name| name == "grown-1"), "{names:?}");
    cluster.broker(1).wait_for_stderr("set aside directories of partitions");
    // The follower is stopped, so it learns of the new partition 1 only when it starts again.
    cluster.broker(1).stop();
    add_again_and_lose_leader(&mut cluster);
}

/// The follower still has the directory of the former partition 1, as if it had not run since the copy was accepted.
#[test]
fn follower_comes_back_after_a_partition_is_added_again_it_drops_the_records_of_the_first() {
    let (mut cluster, _store) = grown_after_the_copy();
    let away = cluster.broker(1).data_dir().to_owned();
    let kept = TempDir::new().expect("a directory");
    copy(&away.join("grown-1"), kept.path());
    continue_on_copy(&mut cluster);
    cluster.broker(1).stop();
    // Restores the partition's directory, which the broker set aside when it started on the copy.
    copy(&kept.path().join("grown-1"), &away);
    add_again_and_lose_leader(&mut cluster);
}

/// librdkafka ignores metadata with an older leader epoch than it knows, even if the topic has another id. A topic that
/// is created after the copy was accepted must therefore begin with a larger leader epoch.
#[test]
fn topic_is_created_again_after_an_accepted_copy_its_leader_epoch_is_larger() {
    let (mut cluster, _store) = start(1);
    cluster.create("again", 1, 1, &[]);
    cluster.postgres().copy();
    cluster.wait_for_brokers(&[1]);
    continue_on_copy(&mut cluster);
    let known = cluster.partitions(1, "again")[0].leader_epoch;
    cluster.run(&["topics", "delete", "--topic", "again"]);
    cluster.create("again", 1, 1, &[]);
    let epoch = cluster.partitions(1, "again")[0].leader_epoch;
    assert!(epoch > known, "{epoch} after {known}");
}

/// The copy has a retention of one second. After the copy was made, the retention was removed and records were written.
#[test]
fn copy_with_a_shorter_retention_is_accepted_no_records_are_deleted_until_it_is_set_again() {
    let (mut cluster, _store) = start(1);
    let kinds = [("classic", "diskless.enable=false"), ("diskless", "diskless.enable=true")];
    for (topic, kind) in kinds {
        cluster.create(topic, 1, 1, &[kind, "retention.ms=1000"]);
    }
    cluster.create("other", 1, 1, &["diskless.enable=true"]);
    cluster.postgres().copy();
    cluster.wait_for_brokers(&[1]);
    for (topic, _) in kinds {
        cluster.run(&["configs", "alter", "--topic", topic, "--add-config", "retention.ms=-1"]);
    }
    produce(&mut cluster, 1, "classic", 0, &numbered("since", 3));
    continue_on_copy(&mut cluster);
    cluster.broker(1).wait_for_stderr("retention and compaction delete nothing for a while");
    // The copy of the index lacks the diskless records, so the test writes new ones.
    produce(&mut cluster, 1, "diskless", 0, &numbered("new", 3));
    // Writes to another topic for several intervals of the retention check.
    produce(&mut cluster, 1, "other", 0, &numbered("other", 20));
    assert_eq!(texts(&mut cluster, 1, "classic", 0), numbered("since", 3));
    assert_eq!(texts(&mut cluster, 1, "diskless", 0), numbered("new", 3));
}

/// The lost part of the index has the transaction's marker, while the coordinator knows that the transaction is
/// complete. The group has committed an offset past the end of the copy.
#[test]
fn copy_with_an_open_diskless_transaction_is_accepted_consumers_of_committed_records_continue() {
    let (mut cluster, _store) = start(1);
    cluster.create(TOPIC, 1, 1, &["diskless.enable=true"]);
    produce(&mut cluster, 1, TOPIC, 0, &["before".to_owned()]);
    let mut client = cluster.broker(1).client();
    let mut producer = Transactional::begin(&mut client, "open", Protocol::New);
    producer.write(&mut client, TOPIC, 0, &["open"]);
    let reset = ["groups", "reset-offsets", "--execute"];
    let to_latest = [&reset[..], &["--group", "g", "--topic", TOPIC, "--to-latest"]].concat();
    cluster.run(&to_latest);
    cluster.postgres().copy();
    cluster.wait_for_brokers(&[1]);
    wait_until("the transaction is committed", SOON, || {
        let response = producer.try_end(&mut client, true);
        response.error_code == ErrorCode::NONE
    });
    wait_until("the coordinator has completed it", SOON, || {
        client.describe_transaction("open").transaction_state.as_str() == "CompleteCommit"
    });
    produce(&mut cluster, 1, TOPIC, 0, &numbered("since", 3));
    cluster.run(&to_latest);
    continue_on_copy(&mut cluster);
    let mut client = cluster.broker(1).client();
    wait_until("no transaction is open", SOON, || {
        client.latest(TOPIC, 0) > 1 && client.stable(TOPIC, 0) == client.latest(TOPIC, 0)
    });
    assert_eq!(client.committed_texts(TOPIC, 0), ["before"], "the copy does not know of the commit");
    // The log has three offsets: the first record, the record of the transaction, and the marker.
    let reset = cluster.run(&[&reset[..], &["--all-groups", "--all-topics", "--shift-by", "0"]].concat());
    let row: Vec<&str> = reset.lines().last().expect("a row").split_whitespace().collect();
    assert_eq!(row, ["g", TOPIC, "0", "3"]);
    produce(&mut cluster, 1, TOPIC, 0, &["after".to_owned()]);
    wait_until("the new record is read", SOON, || client.committed_texts(TOPIC, 0) == ["before", "after"]);
}
