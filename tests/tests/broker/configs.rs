//! Settings of KIP-1269 and IncrementalAlterConfigs as clients see them: which settings are permitted, which values
//! producers get, what DescribeConfigs returns, and what remains after a restart.
//!
//! The behaviour of the window itself is tested in `window`.

use fullbore_tests::{Batch, Broker, Client, alter_resource, produce_request, serve_refused, topic_data, wait_until};
use fullbore_wire::apis::api_versions::ApiVersionsRequest;
use fullbore_wire::apis::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult,
};
use fullbore_wire::apis::produce::{ProduceRequest, ProduceResponse};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::time::Duration;

const OF_TOPIC: &str = "producer.state.batches.to.retain";
const OF_BROKER: &str = "max.idempotence.batches.to.retain";
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;
const SESSION: &str = "consumer.session.timeout.ms";
const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;
const SOON: Duration = Duration::from_secs(30);

/// Produces one batch without a producer id to the topic with this id.
fn produce(client: &mut Client, id: Uuid, version: i16) -> ProduceResponse {
    let bytes = Batch::of(&["v"]).bytes();
    let mut topic = topic_data("", &[(0, bytes.clone())]);
    topic.topic_id = id;
    client.call(&ProduceRequest { topic_data: vec![topic], ..produce_request("", 0, bytes) }, version)
}

/// Returns the values in the response to Produce 14: the broker's value, the topic's, and the one that a producer
/// derives from both.
fn reported(client: &mut Client, id: Uuid) -> (i32, i32, i32) {
    let response = produce(client, id, 14);
    let topic = &response.responses[0];
    assert_eq!(topic.partition_responses[0].error_code, ErrorCode::NONE);
    let of_broker = response.max_idempotence_batches_to_retain;
    (of_broker, topic.producer_state_batches_to_retain, response.batches_to_retain(topic))
}

fn described(client: &mut Client, kind: i8, name: &str, key: &str) -> Option<DescribeConfigsResourceResult> {
    let resource = DescribeConfigsResource {
        resource_type: kind,
        resource_name: Text::from(name),
        configuration_keys: Some(vec![Text::from(key)]),
        ..Default::default()
    };
    let request = DescribeConfigsRequest { resources: vec![resource], include_synonyms: true, ..Default::default() };
    let mut result = client.call(&request, 4).results.remove(0);
    assert_eq!(result.error_code, ErrorCode::NONE, "{:?}", result.error_message);
    result.configs.pop()
}

/// Formats a configuration as one line: its value and source, `read-only` if the setting is read-only, and the values
/// and sources of its synonyms.
fn line(client: &mut Client, kind: i8, name: &str, key: &str) -> String {
    let Some(config) = described(client, kind, name, key) else { return "absent".to_owned() };
    let value = |value: &Option<Text>| value.as_ref().map_or("null".to_owned(), Text::to_string);
    let synonyms: Vec<String> =
        config.synonyms.iter().map(|it| format!("{}={}@{}", it.name, value(&it.value), it.source)).collect();
    let read_only = if config.read_only { " read-only" } else { "" };
    format!("{}@{}{read_only} {}", value(&config.value), config.config_source, synonyms.join(" "))
}

#[test]
fn kip_1269_values_outside_the_limits_are_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for value in ["4", "0", "-1", "10001", "2147483648", "many", ""] {
        let refused = serve_refused(directory.path(), &[&format!("{OF_BROKER}={value}")]);
        assert!(!refused.status.success());
        let message = format!("{OF_BROKER}={value}: must be between 5 and 10000");
        assert!(refused.stderr.contains(&message), "{}", refused.stderr);
        assert_eq!(refused.stderr.trim_end().lines().count(), 1, "{}", refused.stderr);
    }
    let broker = Broker::start(&[&format!("{OF_BROKER}=10000")]);
    let mut client = broker.client();
    client.create_topic("valid", 1, &[(OF_TOPIC, "5")]);
    for value in ["4", "0", "-1", "10001", "many"] {
        for (kind, name, key) in [(TOPIC, "valid", OF_TOPIC), (BROKER, "1", OF_BROKER), (BROKER, "", OF_BROKER)] {
            let altered = client.alter(vec![alter_resource(kind, name, &[(key, SET, Some(value))])], false).remove(0);
            assert_eq!(altered.error_code, ErrorCode::INVALID_CONFIG);
            let message = format!("{key}={value}: must be between 5 and 10000");
            assert_eq!(altered.error_message.as_deref(), Some(message.as_str()));
        }
    }
    for value in ["5", "10000"] {
        client.set_config(TOPIC, "valid", OF_TOPIC, value);
        client.set_config(BROKER, "1", OF_BROKER, value);
    }
}

#[test]
fn kip_1269_each_broker_returns_its_own_value() {
    for (sets, expected) in [(vec![], (5, 5, 5)), (vec!["max.idempotence.batches.to.retain=20"], (20, 20, 20))] {
        let broker = Broker::start(&sets);
        let mut client = broker.client();
        let follows = client.create_topic("follows", 1, &[]);
        let own = client.create_topic("own", 1, &[(OF_TOPIC, "64")]);
        assert_eq!(reported(&mut client, follows), expected);
        assert_eq!(reported(&mut client, own), (expected.0, 64, 64));
        let unknown = produce(&mut client, Uuid([3; 16]), 14);
        assert_eq!(unknown.responses[0].producer_state_batches_to_retain, -1, "nothing is known of it");
    }
}

#[test]
fn kip_1269_an_old_producer_at_a_new_broker_gets_no_new_fields() {
    let broker = Broker::start(&["max.idempotence.batches.to.retain=20"]);
    let mut client = broker.client();
    let id = client.create_topic("old", 1, &[]);
    let response = produce(&mut client, id, 13);
    let topic = &response.responses[0];
    assert_eq!(topic.partition_responses[0].error_code, ErrorCode::NONE);
    assert_eq!(response.batches_to_retain(topic), 5, "version 13 says nothing");
}

#[test]
fn a_broker_limited_to_produce_13_does_not_serve_14() {
    for (sets, max) in
        [(vec![], 14), (vec!["fullbore.produce.version.max=14"], 14), (vec!["fullbore.produce.version.max=13"], 13)]
    {
        let broker = Broker::start(&sets);
        let mut client = broker.client();
        let offered = client.call(&ApiVersionsRequest::default(), 0).api_keys;
        let produce_range = offered.iter().find(|api| api.api_key == 0).expect("Produce is offered");
        assert_eq!((produce_range.min_version, produce_range.max_version), (0, max));
        let id = client.create_topic("offered", 1, &[]);
        produce(&mut client, id, max);
        // The broker does not offer this version, so it closes the connection.
        let (mut beyond, bytes) = (broker.client(), Batch::of(&["v"]).bytes());
        if max == 13 {
            beyond.send(&produce_request("offered", 0, bytes), 14);
            assert!(beyond.try_receive::<ProduceRequest>(14).is_none());
            assert_eq!(client.latest("offered", 0), 1, "nothing was appended");
        }
    }
}

#[test]
fn dynamic_settings_are_sent_described_and_survive_restarts() {
    let mut broker = Broker::start(&["max.idempotence.batches.to.retain=20"]);
    let mut client = broker.client();
    let id = client.create_topic("shown", 1, &[]);
    let file = "max.idempotence.batches.to.retain=20@4 max.idempotence.batches.to.retain=5@5";
    assert_eq!(line(&mut client, BROKER, "1", OF_BROKER), format!("20@4 {file}"));
    assert_eq!(line(&mut client, TOPIC, "shown", OF_TOPIC), format!("20@4 {file}"));
    assert_eq!(line(&mut client, BROKER, "", OF_BROKER), "absent");

    client.set_config(BROKER, "", OF_BROKER, "30");
    client.set_config(BROKER, "1", OF_BROKER, "40");
    client.set_config(TOPIC, "shown", OF_TOPIC, "50");
    let dynamic = format!("{OF_BROKER}=40@2 {OF_BROKER}=30@3 {file}");
    for end in [None, Some(Broker::stop as fn(&mut Broker)), Some(Broker::kill)] {
        if let Some(end) = end {
            end(&mut broker);
            broker.restart();
            client = broker.client();
        }
        assert_eq!(line(&mut client, BROKER, "1", OF_BROKER), format!("40@2 {dynamic}"));
        assert_eq!(line(&mut client, TOPIC, "shown", OF_TOPIC), format!("50@1 {OF_TOPIC}=50@1 {dynamic}"));
        assert_eq!(line(&mut client, BROKER, "", OF_BROKER), format!("30@3 {OF_BROKER}=30@3"));
        assert_eq!(reported(&mut client, id), (40, 50, 50));
    }

    let delete = |key| [(key, DELETE, None)];
    let resources =
        vec![alter_resource(TOPIC, "shown", &delete(OF_TOPIC)), alter_resource(BROKER, "1", &delete(OF_BROKER))];
    assert!(client.alter(resources, false).iter().all(|altered| altered.error_code == ErrorCode::NONE));
    assert_eq!(reported(&mut client, id), (30, 30, 30));
    client.alter(vec![alter_resource(BROKER, "", &delete(OF_BROKER))], false);
    assert_eq!(reported(&mut client, id), (20, 20, 20));
    assert_eq!(line(&mut client, TOPIC, "shown", OF_TOPIC), format!("20@4 {file}"));
}

#[test]
fn settings_of_groups_and_client_metrics_are_described_and_deleted() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let cases = [(GROUP, SESSION, "46000", "45000@5", 8), (CLIENT_METRICS, "interval.ms", "500", "300000@5", 7)];
    for (kind, key, value, default, source) in cases {
        let shown = |client: &mut Client| {
            let entry = described(client, kind, "name", key).expect(key);
            format!("{}@{}", entry.value.as_deref().unwrap_or_default(), entry.config_source)
        };
        assert_eq!(shown(&mut client), default);
        for validate_only in [true, false] {
            let set = alter_resource(kind, "name", &[(key, SET, Some(value))]);
            assert_eq!(client.alter(vec![set], validate_only)[0].error_code, ErrorCode::NONE);
            let expected = if validate_only { default.to_owned() } else { format!("{value}@{source}") };
            assert_eq!(shown(&mut client), expected);
        }
        let delete = alter_resource(kind, "name", &[(key, DELETE, None)]);
        assert_eq!(client.alter(vec![delete], false)[0].error_code, ErrorCode::NONE);
        assert_eq!(shown(&mut client), default);
    }
}

#[test]
fn each_refusal_has_kafkas_code_and_other_resources_of_the_request_are_altered() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    client.create_topic("good", 1, &[]);
    let set = |value| [("retention.ms", SET, Some(value))];
    let table = [
        (TOPIC, "absent", set("1").to_vec(), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, "does not exist"),
        (TOPIC, "bad name", set("1").to_vec(), ErrorCode::INVALID_TOPIC_EXCEPTION, "illegal"),
        (TOPIC, "", set("1").to_vec(), ErrorCode::INVALID_REQUEST, "Default topic resources"),
        (TOPIC, "t", set("soon").to_vec(), ErrorCode::INVALID_CONFIG, "retention.ms=soon: must be"),
        (TOPIC, "t", vec![("no.such.key", SET, Some("1"))], ErrorCode::INVALID_CONFIG, "unknown topic config name"),
        (TOPIC, "t", vec![("retention.ms", SET, None)], ErrorCode::INVALID_REQUEST, "Null value"),
        (TOPIC, "t", vec![("retention.ms", 4, Some("1"))], ErrorCode::INVALID_REQUEST, "Unknown operation"),
        (TOPIC, "t", vec![("retention.ms", APPEND, Some("1"))], ErrorCode::INVALID_CONFIG, "its type is not LIST"),
        (TOPIC, "t", vec![("cleanup.policy", APPEND, Some("x"))], ErrorCode::INVALID_CONFIG, "must be a list of"),
        (TOPIC, "t", vec![("retention.ms", SUBTRACT, Some("1"))], ErrorCode::INVALID_CONFIG, "its type is not LIST"),
        (TOPIC, "t", [set("1"), set("2")].concat(), ErrorCode::INVALID_REQUEST, "duplicate config keys"),
        (
            BROKER,
            "2",
            vec![(OF_BROKER, SET, Some("9"))],
            ErrorCode::INVALID_REQUEST,
            "Unexpected broker id, expected 1",
        ),
        (BROKER, "one", vec![(OF_BROKER, SET, Some("9"))], ErrorCode::INVALID_REQUEST, "must be an integer"),
        (
            BROKER,
            "1",
            vec![("node.id", SET, Some("9"))],
            ErrorCode::INVALID_CONFIG,
            "cannot be changed while the broker",
        ),
        (BROKER, "", vec![("no.such.key", SET, Some("9"))], ErrorCode::INVALID_CONFIG, "is not a key of this broker"),
        (
            BROKER,
            "",
            vec![("num.io.threads", SET, Some("9"))],
            ErrorCode::INVALID_CONFIG,
            "threads follow the number of",
        ),
        (
            BROKER,
            "1",
            vec![("max.connections.per.ip.overrides", SET, Some("here"))],
            ErrorCode::INVALID_CONFIG,
            "max.connections.per.ip.overrides=here: ",
        ),
        (TOPIC, "t", vec![("remote.storage.enable", SET, Some("true"))], ErrorCode::INVALID_CONFIG, "tiered storage"),
        (
            TOPIC,
            "t",
            vec![("compression.gzip.level", SET, Some("10"))],
            ErrorCode::INVALID_CONFIG,
            "must be -1 or between 1 and 9",
        ),
        (BROKER, "1", vec![("sasl.jaas.config", SET, Some("x"))], ErrorCode::INVALID_CONFIG, "SASL"),
        (
            BROKER,
            "",
            vec![("group.consumer.assignment.interval.ms", SET, Some("60000"))],
            ErrorCode::INVALID_CONFIG,
            "must be between 0 (group.consumer.min.assignment.interval.ms) and 15000 (",
        ),
        (
            LOGGER,
            "1",
            vec![("root", SET, Some("LOUD"))],
            ErrorCode::INVALID_CONFIG,
            "Valid log levels are DEBUG, ERROR,",
        ),
        (
            LOGGER,
            "1",
            vec![("no.such", SET, Some("INFO"))],
            ErrorCode::INVALID_CONFIG,
            "Logger no.such does not exist!",
        ),
        (LOGGER, "1", vec![("root", DELETE, None)], ErrorCode::INVALID_REQUEST, "root logger is not allowed"),
        (
            LOGGER,
            "1",
            vec![("root", APPEND, Some("INFO"))],
            ErrorCode::INVALID_REQUEST,
            "APPEND operation is not allowed",
        ),
        (LOGGER, "2", vec![("root", SET, Some("INFO"))], ErrorCode::INVALID_REQUEST, "Expected 1, but received 2"),
        (LOGGER, "", vec![("root", SET, Some("INFO"))], ErrorCode::INVALID_REQUEST, "must be an integer"),
        (GROUP, "g", vec![(SESSION, SET, Some("1"))], ErrorCode::INVALID_CONFIG, "must be between 45000"),
        (GROUP, "g", vec![("no.such", SET, Some("1"))], ErrorCode::INVALID_CONFIG, "unknown group config name"),
        (GROUP, "", vec![(SESSION, SET, Some("46000"))], ErrorCode::INVALID_REQUEST, "Default group resources"),
        (CLIENT_METRICS, "m", vec![("match", SET, Some("x"))], ErrorCode::INVALID_CONFIG, "must be name=pattern"),
        (CLIENT_METRICS, "", vec![("interval.ms", SET, Some("100"))], ErrorCode::INVALID_REQUEST, "can't be empty"),
        (7, "m", vec![("interval.ms", SET, Some("100"))], ErrorCode::INVALID_REQUEST, "Resource type 7"),
    ];
    for (kind, name, changes, code, message) in table {
        let good =
            alter_resource(TOPIC, "good", &[("flush.ms", SET, Some("7")), ("cleanup.policy", APPEND, Some("delete"))]);
        let answers = client.alter(vec![alter_resource(kind, name, &changes), good], false);
        let reported = answers[0].error_message.as_deref().unwrap_or_default();
        assert_eq!((answers[0].error_code, answers[0].resource_name.as_str()), (code, name), "{reported}");
        assert!(reported.contains(message), "{reported} should say {message}");
        assert_eq!(answers[1].error_code, ErrorCode::NONE, "{:?}", answers[1].error_message);
    }
    let twice = vec![alter_resource(TOPIC, "t", &set("1")), alter_resource(TOPIC, "t", &set("2"))];
    assert!(client.alter(twice, false).iter().all(|answer| answer.error_code == ErrorCode::INVALID_REQUEST));
    assert_eq!(described(&mut client, TOPIC, "t", "retention.ms").expect("there").config_source, 5, "nothing was set");
    assert_eq!(described(&mut client, TOPIC, "good", "flush.ms").expect("there").value.as_deref(), Some("7"));
}

#[test]
fn dynamic_log_levels_apply_until_the_broker_stops() {
    const NAME: &str = "fullbore.protocol";
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    let mut alter = |change: (&str, i8, Option<&str>), validate_only| {
        let answers = client.alter(vec![alter_resource(LOGGER, "1", &[change])], validate_only);
        assert_eq!(answers[0].error_code, ErrorCode::NONE, "{:?}", answers[0].error_message);
    };
    let level = |broker: &Broker, name: &str| line(&mut broker.client(), LOGGER, "1", name);
    assert_eq!((level(&broker, "root"), level(&broker, NAME)), ("WARN@6 ".to_owned(), "WARN@6 ".to_owned()));
    alter((NAME, SET, Some("DEBUG")), true);
    assert_eq!(level(&broker, NAME), "WARN@6 ");
    assert!(!broker.stderr().contains("fullbore::protocol"), "{}", broker.stderr());
    alter((NAME, SET, Some("DEBUG")), false);
    assert_eq!(level(&broker, NAME), "DEBUG@6 ");
    broker.wait_for_stderr("DescribeConfigs");
    alter((NAME, DELETE, None), false);
    assert_eq!(level(&broker, NAME), "WARN@6 ");
    alter((NAME, SET, Some("ERROR")), false);
    broker.stop();
    broker.restart();
    assert_eq!(level(&broker, NAME), "WARN@6 ", "as with Kafka");
}

#[test]
fn validate_only_returns_each_result_and_changes_nothing() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let id = client.create_topic("kept", 1, &[]);
    let resources = |value| {
        let topic = alter_resource(TOPIC, "kept", &[(OF_TOPIC, SET, Some(value))]);
        vec![topic, alter_resource(BROKER, "1", &[(OF_BROKER, SET, Some(value))])]
    };
    let codes = |client: &mut Client, value| -> Vec<ErrorCode> {
        client.alter(resources(value), true).iter().map(|answer| answer.error_code).collect()
    };
    assert_eq!(codes(&mut client, "9"), [ErrorCode::NONE; 2]);
    assert_eq!(codes(&mut client, "4"), [ErrorCode::INVALID_CONFIG; 2]);
    assert_eq!(reported(&mut client, id), (5, 5, 5));
}

/// No client uses the partition, so retention must notice the change by itself.
#[test]
fn a_dynamic_retention_applies_to_an_unused_partition() {
    for (kind, name, key) in [(TOPIC, "quiet", "retention.ms"), (BROKER, "", "log.retention.ms")] {
        let broker = Broker::start(&["log.retention.check.interval.ms=100"]);
        let mut client = broker.client();
        client.create_topic("quiet", 1, &[]);
        client.produced("quiet", 0, &Batch::at(1_700_000_000_000 - 86_400_000 * 30, &["old"]));
        // The test looks at the file names, because ListOffsets would use the partition.
        client.set_config(kind, name, key, "1000");
        wait_until("the segment is rolled and the old one goes", SOON, || {
            let files = broker.partition_files("quiet", 0, "log");
            files.iter().all(|file| file.file_stem().is_some_and(|stem| stem != "00000000000000000000"))
        });
        assert_eq!(client.earliest("quiet", 0), 1);
    }
}
