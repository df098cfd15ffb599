//! Starts that are refused with one clear line and exit code 1, starts with warnings, and stops.

use crate::assert_serves;
use fullbore_tests::{Batch, Broker, FetchFrom, Refused, fetch_request, serve_refused};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::fetch::FetchRequest;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Checks that the exit code is 1 and that a single line contains all of `named`.
fn assert_one_line(refused: &Refused, named: &[&str]) {
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert_eq!(refused.stderr.trim_end().lines().count(), 1, "{}", refused.stderr);
    for name in named {
        assert!(refused.stderr.contains(name), "{name} is not in: {}", refused.stderr);
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

#[test]
fn a_port_that_is_taken_is_named() {
    let broker = Broker::start(&[]);
    let addr = broker.addr().to_string();
    let refused = serve_refused(directory().path(), &[&format!("listeners=PLAINTEXT://{addr}")]);
    assert_one_line(&refused, &[&addr, "taken"]);
    assert_serves(&broker);
}

#[test]
fn start_with_its_port_taken_leaves_no_data_directory() {
    let broker = Broker::start(&[]);
    let directory = directory();
    let data_dir = directory.path().join("data");
    let addr = broker.addr().to_string();
    serve_refused(&data_dir, &[&format!("listeners=PLAINTEXT://{addr}")]);
    let refused = serve_refused(&data_dir, &[&format!("fullbore.admin.listener={addr}")]);
    assert_one_line(&refused, &[&format!("fullbore.admin.listener={addr}"), "taken", "leave the key empty"]);
    assert!(!data_dir.exists());
}

#[test]
fn data_directory_that_is_a_file_is_refused_with_the_remedy() {
    let directory = directory();
    let file = directory.path().join("data");
    fs::write(&file, "").expect("ours");
    let named = [&*file.display().to_string(), "is not a directory; set log.dirs (--data-dir) to a directory"];
    assert_one_line(&serve_refused(&file, &[]), &named);
}

#[test]
fn data_directory_of_apache_kafka_is_refused_and_stays_unchanged() {
    let directory = directory();
    let file = directory.path().join("meta.properties");
    fs::write(&file, "version=1\nnode.id=1\n").expect("ours");
    assert_one_line(&serve_refused(directory.path(), &[]), &[&file.display().to_string(), "Kafka", "log.dirs"]);
    assert_eq!(fs::read_dir(directory.path()).expect("ours").count(), 1);
}

#[test]
fn a_broker_that_advertises_another_address_prints_both() {
    let broker = Broker::start(&["listeners=PLAINTEXT://0.0.0.0:0", "advertised.listeners=PLAINTEXT://127.0.0.1:9092"]);
    let stdout = broker.stdout();
    assert!(stdout.contains("0.0.0.0:") && stdout.contains("sent to 127.0.0.1:9092"), "{stdout}");
}

#[test]
fn stop_is_logged_at_the_default_level() {
    let mut broker = Broker::start(&[]);
    broker.terminate();
    broker.wait_for_stderr("stopping");
    broker.wait_for_stderr("stopped");
    assert_eq!(broker.wait_for_end().code(), Some(0));
}

#[test]
fn an_address_this_machine_does_not_have_is_named() {
    let refused = serve_refused(directory().path(), &["listeners=PLAINTEXT://203.0.113.7:9092"]);
    assert_one_line(&refused, &["203.0.113.7:9092"]);
}

#[test]
fn data_directory_in_use_is_named_with_its_broker() {
    let broker = Broker::start(&[]);
    let refused = serve_refused(broker.data_dir(), &[]);
    assert_one_line(&refused, &[&broker.data_dir().display().to_string(), "another broker"]);
    assert_serves(&broker);
}

#[test]
fn data_directory_is_free_after_kill_9() {
    let mut broker = Broker::start(&[]);
    broker.kill();
    broker.restart();
    assert_serves(&broker);
}

/// The data directory is in /sys, where not even root may create a directory.
#[test]
fn data_directory_without_permission_is_named() {
    let refused = serve_refused(Path::new("/sys/fullbore"), &[]);
    assert_one_line(&refused, &["/sys/fullbore", "ermi"]);
}

#[test]
fn bad_value_is_named_with_its_key_and_the_allowed_values() {
    for (set, named) in [
        ("num.partitions=many", ["num.partitions=many", "between 1 and"]),
        ("num.partitions=0", ["num.partitions=0", "between 1 and"]),
        ("auto.create.topics.enable=maybe", ["auto.create.topics.enable=maybe", "true or false"]),
        ("log.cleanup.policy=compress", ["log.cleanup.policy=compress", "delete"]),
        ("listeners=nonsense", ["listeners=nonsense", "://"]),
        ("fullbore.admin.listner=", ["fullbore.admin.listner", "not a key"]),
    ] {
        assert_one_line(&serve_refused(directory().path(), &[set]), &named);
    }
}

#[test]
fn several_bad_values_are_named_at_once_with_file_and_line() {
    let directory = directory();
    let file = directory.path().join("server.properties");
    fs::write(&file, "# ours\nnum.partitions=0\n\nlog.cleanup.policy=compress\n").expect("ours");
    let config = format!("--config={}", file.display());
    let refused = serve_refused(&directory.path().join("data"), &[&config, "auto.create.topics.enable=maybe"]);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    for line in [
        format!("{}:2: num.partitions=0: must be between 1 and", file.display()),
        format!("{}:4: log.cleanup.policy=compress: ", file.display()),
        "--set auto.create.topics.enable=maybe: must be true or false".to_owned(),
    ] {
        assert!(refused.stderr.lines().any(|logged| logged.starts_with(&line)), "{line} in:\n{}", refused.stderr);
    }
    assert_eq!(refused.stderr.lines().count(), 4, "{}", refused.stderr);
}

#[test]
fn an_unknown_key_warns_and_the_broker_starts() {
    let broker = Broker::start(&["num.partitons=3"]);
    assert_serves(&broker);
    broker.wait_for_stderr("num.partitons");
}

#[test]
fn broken_control_db_is_refused_by_name_and_stays_unchanged() {
    let mut broker = Broker::start(&[]);
    broker.client().create_topic("known", 1, &[]);
    broker.stop();
    let file = broker.data_dir().join("control.db");
    for garbage in [vec![0x5a_u8; 8192], b"SQLite format 3\0 and then something else".to_vec()] {
        fs::write(&file, &garbage).expect("ours");
        assert_one_line(&serve_refused(broker.data_dir(), &[]), &["control.db"]);
        assert!(fs::read(&file).expect("still there") == garbage, "the file was changed");
    }
}

#[test]
fn data_directory_of_another_node_is_refused() {
    let mut broker = Broker::start(&["node.id=1"]);
    broker.stop();
    assert_one_line(&serve_refused(broker.data_dir(), &["node.id=2"]), &["node.id=2"]);
}

/// The client sends a poll that waits for minutes, and then a produce. Both must get their response.
#[test]
fn sigterm_answers_admitted_requests_and_ends_with_code_0() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("stopping", 2, &[("flush.messages", "1")]);
    let mut waiting = broker.client();
    waiting.send(&fetch_request(&[FetchFrom { topic: "stopping", partition: 0, offset: 0 }], 1, 250_000), 12);
    waiting.send_produce("stopping", 1, &Batch::of(&["behind"]));
    fullbore_tests::wait_until("both are admitted", Duration::from_secs(30), || client.latest("stopping", 1) == 1);
    let requested = Instant::now();
    broker.terminate();
    let (_, response) = waiting.receive::<FetchRequest>(12);
    assert_eq!(response.error_code, ErrorCode::NONE);
    assert_eq!(waiting.receive_produced().error_code, ErrorCode::NONE);
    assert_eq!(waiting.wait_for_close(), 0);
    assert_eq!(broker.wait_for_end().code(), Some(0));
    assert!(requested.elapsed() < Duration::from_secs(9), "nobody was waited for: {:?}", requested.elapsed());
    broker.restart();
    assert_eq!(broker.client().fetch_records("stopping", 1)[0].text(), "behind");
}

/// The broker must stop even though one client is idle and another has sent only a part of a request.
#[test]
fn sigterm_waits_a_limited_time_for_clients() {
    let mut broker = Broker::start(&[]);
    let _idle = broker.client();
    let mut half = broker.client();
    half.send_bytes(&[0, 0, 1, 0, 0, 3]);
    broker.stop();
}
