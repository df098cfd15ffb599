//! Refusals. Clients get Kafka's error codes, and a broker that refuses to start prints one clear line.

use crate::frozen::SESSION;
use crate::health::metric;
use fullbore_tests::postgres::PostgresServer;
use fullbore_tests::{Batch, Client, Cluster, produce_request, serve_refused, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::fetch::FetchRequest;
use fullbore_wire::apis::metadata::MetadataRequest;
use std::path::Path;
use std::time::Duration;

const TOPIC: &str = "refused";
const SOON: Duration = Duration::from_secs(120);

fn produce(client: &mut Client, acks: i16, value: &str) -> ErrorCode {
    let request = fullbore_wire::apis::produce::ProduceRequest {
        acks,
        timeout_ms: 10_000,
        ..produce_request(TOPIC, 0, Batch::of(&[value]).bytes())
    };
    client.call(&request, 9).responses.remove(0).partition_responses.remove(0).error_code
}

fn fetch(client: &mut Client, current_leader_epoch: i32) -> ErrorCode {
    let from = fullbore_tests::FetchFrom { topic: TOPIC, partition: 0, offset: 0 };
    let mut request: FetchRequest = fullbore_tests::fetch_request(&[from], 0, 0);
    request.topics[0].partitions[0].current_leader_epoch = current_leader_epoch;
    client.call(&request, 12).responses.remove(0).partitions.remove(0).error_code
}

#[test]
fn clients_get_kafkas_error_codes() {
    let mut cluster = Cluster::start(3, &["broker.session.timeout.ms=6000"]);
    let topic = |replication_factor| CreatableTopic {
        name: TOPIC.into(),
        num_partitions: 1,
        replication_factor,
        ..Default::default()
    };
    let mut create = |factor| {
        let request = CreateTopicsRequest { topics: vec![topic(factor)], timeout_ms: 30_000, ..Default::default() };
        cluster.broker(1).client().call(&request, 7).topics[0].error_code
    };
    assert_eq!(create(4), ErrorCode::INVALID_REPLICATION_FACTOR);
    assert_eq!(create(3), ErrorCode::NONE);
    cluster.wait_for_isr(1, TOPIC, 3);
    // A new leader is elected, so that a request can name an outdated leader epoch.
    let first = cluster.partitions(1, TOPIC)[0].leader_id;
    cluster.broker(first).stop();
    cluster.broker(first).restart();
    cluster.wait_for_isr(1, TOPIC, 3);
    let of = cluster.partitions(1, TOPIC).remove(0);
    let follower = of.leader_id % 3 + 1;
    cluster.wait_for_isr(of.leader_id, TOPIC, 3);
    cluster.wait_for_isr(follower, TOPIC, 3);
    let mut client = cluster.broker(of.leader_id).client();
    client.set_config(2, TOPIC, "min.insync.replicas", "3");
    assert_eq!(produce(&mut client, 2, "two"), ErrorCode::INVALID_REQUIRED_ACKS);
    assert_eq!(produce(&mut client, -1, "all"), ErrorCode::NONE);
    for acks in [-1, 1] {
        let mut other = cluster.broker(follower).client();
        assert_eq!(produce(&mut other, acks, "not here"), ErrorCode::NOT_LEADER_OR_FOLLOWER);
    }
    assert_eq!(fetch(&mut client, of.leader_epoch), ErrorCode::NONE);
    assert_eq!(fetch(&mut client, of.leader_epoch - 1), ErrorCode::FENCED_LEADER_EPOCH);
    assert_eq!(fetch(&mut client, of.leader_epoch + 1), ErrorCode::UNKNOWN_LEADER_EPOCH);

    cluster.broker(follower).freeze();
    // The frozen follower leaves the ISR while the request waits. The ISR is then smaller than min.insync.replicas, so
    // the high watermark does not advance. The request times out, as in Kafka since KIP-966.
    assert_eq!(produce(&mut client, -1, "in between"), ErrorCode::REQUEST_TIMED_OUT);
    cluster.wait_for_isr(of.leader_id, TOPIC, 2);
    assert_eq!(produce(&mut client, -1, "too late"), ErrorCode::NOT_ENOUGH_REPLICAS);
    assert_eq!(produce(&mut client, 1, "one"), ErrorCode::NONE);
    cluster.broker(follower).thaw();
    cluster.wait_for_isr(of.leader_id, TOPIC, 3);
    assert_eq!(produce(&mut client, -1, "again"), ErrorCode::NONE);
    let records: Vec<String> = client.fetch_records(TOPIC, 0).iter().map(|record| record.text()).collect();
    assert_eq!(records, ["all", "in between", "one", "again"]);
}

/// Starts a broker, which must fail. Returns the last line of its output.
fn refusal(directory: &Path, sets: &[String]) -> String {
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let refused = serve_refused(directory, &sets);
    assert!(!refused.status.success());
    let (last, before) = refused.stderr.trim_end().rsplit_once('\n').map_or((&*refused.stderr, ""), |(b, l)| (l, b));
    assert!(
        last.starts_with("fullbore: ") && !before.contains("ERROR") && !before.contains("fullbore: "),
        "{}",
        refused.stderr
    );
    last.trim_end().to_owned()
}

fn with(sets: &[String], key: &str, value: &str) -> Vec<String> {
    let others = sets.iter().filter(|set| !set.starts_with(&format!("{key}=")) && !set.starts_with("listeners="));
    others.cloned().chain([format!("{key}={value}")]).collect()
}

#[test]
fn broker_foreign_to_the_cluster_does_not_start_and_names_the_reason() {
    let (mut cluster, mut another) = (Cluster::start(1, &[]), Cluster::start(1, &[]));
    let own = cluster.sets_of(1).to_vec();
    let new = tempfile::tempdir().expect("a directory");
    let reported = refusal(new.path(), &with(&own, "node.id", "1"));
    assert!(reported.contains("A broker with node.id=1 is running with another data directory"), "{reported}");
    another.broker(1).kill();
    let reported = refusal(another.broker(1).data_dir(), &with(&own, "node.id", "1"));
    assert!(reported.contains(" belongs to cluster ") && reported.contains(" has cluster "), "{reported}");
    cluster.broker(1).kill();
    let directory = cluster.broker(1).data_dir().to_owned();
    let reported = refusal(&directory, &with(&own, "node.id", "2"));
    assert!(reported.contains("belongs to node.id=1, but node.id=2 is set"), "{reported}");
    let reported = refusal(&directory, &with(&own, "control.plane", "sqlite"));
    assert!(reported.contains("marks this directory as that of a broker in a cluster"), "{reported}");

    let server = PostgresServer::shared();
    let reported = refusal(new.path(), &with(&own, "control.plane", &server.url("nowhere")));
    assert!(reported.contains(r#"database "nowhere" does not exist"#), "{reported}");
    let database = server.database();
    server.run(&database, "CREATE SCHEMA fullbore; CREATE TABLE fullbore.t (x int)");
    let reported = refusal(new.path(), &with(&own, "control.plane", &server.url(&database)));
    assert!(reported.contains("the database has a schema named fullbore that another program created"), "{reported}");
    server.run(&database, "CREATE ROLE secretive LOGIN PASSWORD 's3cr3t-w0rd'");
    let url = format!("postgres://secretive:wr0ng-w0rd@{}/{database}", server.address());
    let reported = refusal(new.path(), &with(&own, "control.plane", &url));
    assert!(reported.contains("password authentication failed") && !reported.contains("w0rd"), "{reported}");
}

#[test]
fn failed_write_of_the_owner_file_leaves_the_broker_unregistered_and_the_directory_free() {
    // With this timeout, the session of broker 2 cannot expire during the test. Broker 2 must leave the cluster because
    // its start fails.
    let mut cluster = Cluster::start(1, &["broker.session.timeout.ms=120000"]);
    let sets = with(cluster.sets_of(1), "node.id", "2");
    let new = tempfile::tempdir().expect("a directory");
    // The broker writes the file `cluster` as `cluster.tmp` and then renames it. A directory has this name, so the
    // write fails.
    std::fs::create_dir(new.path().join("cluster.tmp")).expect("made");
    for _ in 0..2 {
        let reported = refusal(new.path(), &sets);
        assert!(
            reported.contains("without this file, the directory cannot be distinguished from another broker's"),
            "{reported}"
        );
        let mut client = cluster.broker(1).client();
        wait_until("it has left", SOON, || client.call(&MetadataRequest::default(), 9).brokers.len() == 1);
    }
    // The start must also fail with an empty database, for which the broker would be the first of a new cluster.
    let server = PostgresServer::shared();
    let sets = with(cluster.sets_of(1), "control.plane", &server.url(&server.database()));
    for _ in 0..2 {
        let reported = refusal(new.path(), &sets);
        assert!(
            reported.contains("without this file, the directory cannot be distinguished from another broker's"),
            "{reported}"
        );
    }
}

/// Brokers 2 and 3, the last members of the ISR, are down. Broker 1 starts alone. It must not lead, and it cannot reach
/// the brokers that lead.
#[test]
fn broker_started_alone_logs_each_unreachable_leader_once_and_follows_later() {
    let mut cluster = Cluster::start(3, &[SESSION]);
    cluster.create(TOPIC, 6, 3, &["min.insync.replicas=2"]);
    cluster.wait_for_isr(1, TOPIC, 3);
    cluster.broker(1).kill();
    cluster.wait_for_isr(2, TOPIC, 2);
    // Both brokers are frozen before they are killed. Otherwise broker 3 might notice the end of broker 2.
    [2, 3].iter().for_each(|id| cluster.broker(*id).freeze());
    [2, 3].iter().for_each(|id| cluster.broker(*id).kill());
    cluster.broker(1).restart();
    for dead in [2, 3] {
        cluster.broker(1).wait_for_stderr(&format!("fenced a broker that has failed broker_id={dead}"));
    }
    wait_until("nobody leads", SOON, || cluster.partitions(1, TOPIC).iter().all(|of| of.leader_id == -1));
    assert_eq!(produce(&mut cluster.broker(1).client(), -1, "alone"), ErrorCode::NOT_LEADER_OR_FOLLOWER);
    let reported = cluster.broker(1).stderr();
    for leader in [2, 3] {
        let is_it =
            |line: &&str| line.contains("cannot fetch from the leader") && line.contains(&format!("leader={leader}"));
        let lines: Vec<&str> = reported.lines().filter(is_it).collect();
        assert!(lines.len() == 1 && lines[0].contains("refused"), "{reported}");
    }
    cluster.broker(2).restart();
    cluster.broker(3).restart();
    cluster.wait_for_isr(1, TOPIC, 3);
    let leader = cluster.wait_for_leader(1, TOPIC, 0, -1);
    assert_eq!(produce(&mut cluster.broker(leader).client(), -1, "together"), ErrorCode::NONE);
}

#[test]
fn replica_without_its_topic_id_leaves_the_isr_until_the_id_is_back() {
    let mut cluster = Cluster::start(3, &[SESSION, "fullbore.admin.listener=127.0.0.1:0"]);
    cluster.create(TOPIC, 1, 3, &["min.insync.replicas=2"]);
    (1..=3).for_each(|id| cluster.wait_for_isr(id, TOPIC, 3));
    let leader = cluster.wait_for_leader(1, TOPIC, 0, -1);
    let other = leader % 3 + 1;
    assert_eq!(produce(&mut cluster.broker(leader).client(), -1, "before"), ErrorCode::NONE);
    let file = cluster.broker(leader).partition_dir(TOPIC, 0).join("partition.metadata");
    let whole = std::fs::read_to_string(&file).expect("there");
    cluster.broker(leader).stop();
    std::fs::write(&file, "xx\n").expect("written");
    cluster.broker(leader).restart();
    let refused = "fullbore_partitions_refused";
    wait_until("it is refused", SOON, || metric(&mut cluster, leader, refused) == Some(1.0));
    cluster.broker(leader).wait_for_stderr("partition.metadata: the file has no topic id");
    cluster.wait_for_isr(other, TOPIC, 2);
    let second = cluster.wait_for_leader(other, TOPIC, 0, leader);
    assert_eq!(produce(&mut cluster.broker(second).client(), -1, "meanwhile"), ErrorCode::NONE);
    cluster.broker(leader).stop();
    std::fs::write(&file, whole).expect("written");
    cluster.broker(leader).restart();
    cluster.wait_for_isr(other, TOPIC, 3);
    let records: Vec<String> =
        cluster.broker(second).client().fetch_records(TOPIC, 0).iter().map(|record| record.text()).collect();
    assert_eq!(records, ["before", "meanwhile"]);
}
