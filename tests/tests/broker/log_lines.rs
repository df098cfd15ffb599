//! Lines that the broker logs at its default level: recoveries, and changes of topics and configurations with the
//! client that made them.

use fullbore_tests::{Batch, Broker, alter_resource, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::delete_topics::DeleteTopicsRequest;
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};
use std::time::Duration;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const SOON: Duration = Duration::from_secs(30);

/// Waits for a line that contains all of `words`. There must be only one, which is returned.
fn line(broker: &Broker, words: &[&str]) -> String {
    let found = || {
        let stderr = broker.stderr();
        let lines = stderr.lines().filter(|line| words.iter().all(|word| line.contains(word)));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    wait_until(&format!("a line with {words:?}"), SOON, || !found().is_empty());
    let mut lines = found();
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}

#[test]
fn each_change_of_topics_and_configurations_is_one_line_with_its_client() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let id = client.create_topic("made", 3, &[("retention.ms", "77000")]).to_string();
    client.set_config(TOPIC, "made", "max.message.bytes", "5555");
    client.set_config(BROKER, "", "log.retention.ms", "88000");
    let topics = vec![CreatePartitionsTopic { name: "made".into(), count: 5, ..Default::default() }];
    let grown = client.call(&CreatePartitionsRequest { topics, timeout_ms: 30_000, ..Default::default() }, 3);
    assert_eq!(grown.results[0].error_code, ErrorCode::NONE);
    let requested = MetadataRequestTopic { name: Some("by-itself".into()), ..Default::default() };
    client.call(
        &MetadataRequest { topics: Some(vec![requested]), allow_auto_topic_creation: true, ..Default::default() },
        9,
    );
    client.delete_topic("made");
    for words in [
        ["topics created", "made", "partitions=3", "retention.ms=77000", &id],
        ["topics created", "by-itself", "partitions=1", "", ""],
        ["topics configured", "made", "max.message.bytes=5555", "", ""],
        ["brokers configured", "every broker", "log.retention.ms=88000", "", ""],
        ["partitions added", "made", "5", "", ""],
        ["topics deleted", "made", &id, "", ""],
    ] {
        let reported = line(&broker, &words);
        assert!(reported.contains(" INFO ") && reported.contains("127.0.0.1:"), "{reported}");
    }
}

#[test]
fn refused_and_validated_changes_are_not_logged_and_line_breaks_stay_in_one_line() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    let alter = |value| vec![alter_resource(TOPIC, "t", &[("retention.ms", 0, Some(value))])];
    assert!(client.alter(alter("soon\nERROR forged"), false)[0].error_code.is_err());
    assert_eq!(client.alter(alter("123456"), true)[0].error_code, ErrorCode::NONE);
    let metrics = alter_resource(16, "a\nERROR forged", &[("interval.ms", 0, Some("1000"))]);
    assert_eq!(client.alter(vec![metrics], false)[0].error_code, ErrorCode::NONE);
    line(&broker, &["clients' metrics configured", "interval.ms=1000"]);
    let stderr = broker.stderr();
    assert!(!stderr.contains("123456") && !stderr.lines().any(|line| line.starts_with("ERROR")), "{stderr}");
}

#[test]
fn a_thousand_topics_of_one_request_are_one_short_line() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let name = |n: usize| format!("bulk-{n:04}");
    let topic =
        |n| CreatableTopic { name: name(n).into(), num_partitions: 1, replication_factor: 1, ..Default::default() };
    client.call(&CreateTopicsRequest { topics: (0..1000).map(topic).collect(), ..Default::default() }, 7);
    let topic_names = (0..1000).map(|n| name(n).into()).collect();
    client.call(&DeleteTopicsRequest { topic_names, timeout_ms: 60_000, ..Default::default() }, 3);
    for what in ["topics created", "topics deleted"] {
        let reported = line(&broker, &[what, "bulk-0000", "count=1000"]);
        assert!(reported.len() < 2000 && reported.contains("bulk-0009") && reported.contains("990 more"), "{reported}");
    }
    assert_eq!(broker.stderr().matches("bulk-").count(), 20);
}

#[test]
fn start_after_a_kill_logs_its_recovery_and_after_a_stop_none() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 7, &[]);
    client.produced("t", 0, &Batch::of(&["v"]));
    broker.kill();
    broker.restart();
    line(&broker, &["unclean shutdown", "partitions=7"]);
    line(&broker, &["recovered", "partitions=7", "took_ms="]);
    broker.stop();
    broker.restart();
    broker.client().create_topic("after", 1, &[]);
    line(&broker, &["topics created"]);
    assert!(!broker.stderr().contains("recover"), "{}", broker.stderr());
}
