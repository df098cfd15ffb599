//! AlterConfigs, which replaces all settings of a resource at once, and ListConfigResources.

use fullbore_tests::{Broker, Client};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::alter_configs::{AlterConfigsRequest, AlterConfigsResource, AlterableConfig};
use fullbore_wire::apis::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use fullbore_wire::apis::list_config_resources::ListConfigResourcesRequest;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;
/// The values of `ConfigSource` that mark a resource's own settings.
const SET: [i8; 5] = [1, 2, 3, 7, 8];

fn resource(resource_type: i8, name: &str, configs: &[(&str, Option<&str>)]) -> AlterConfigsResource {
    let config = |(name, value): &(&str, Option<&str>)| AlterableConfig {
        name: (*name).into(),
        value: value.map(Into::into),
        ..Default::default()
    };
    let configs = configs.iter().map(config).collect();
    AlterConfigsResource { resource_type, resource_name: name.into(), configs, ..Default::default() }
}

fn alter(
    client: &mut Client,
    resources: Vec<AlterConfigsResource>,
    validate_only: bool,
    version: i16,
) -> Vec<ErrorCode> {
    let requested: Vec<_> = resources.iter().map(|of| (of.resource_type, of.resource_name.clone())).collect();
    let request = AlterConfigsRequest { resources, validate_only, ..Default::default() };
    let responses = client.call(&request, version).responses;
    let answered: Vec<_> = responses.iter().map(|of| (of.resource_type, of.resource_name.clone())).collect();
    assert_eq!(answered, requested);
    responses.into_iter().map(|response| response.error_code).collect()
}

/// Returns the resource's own settings, sorted by name.
fn set_by(client: &mut Client, resource_type: i8, name: &str) -> Vec<(String, String)> {
    let resource = DescribeConfigsResource { resource_type, resource_name: name.into(), ..Default::default() };
    let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    let described = client.call(&request, 4).results.remove(0);
    assert_eq!(described.error_code, ErrorCode::NONE);
    let of_it = described.configs.into_iter().filter(|config| SET.contains(&config.config_source));
    let mut set: Vec<_> =
        of_it.map(|config| (config.name.to_string(), config.value.expect("a value").to_string())).collect();
    set.sort();
    set
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.into(), value.into())
}

#[test]
fn own_settings_are_replaced_as_a_whole_in_every_version() {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    for version in 0..=2 {
        let topic = format!("t{version}");
        client.create_topic(&topic, 1, &[("retention.ms", "7000000"), ("segment.bytes", "2000000")]);
        let new = resource(TOPIC, &topic, &[("segment.bytes", Some("3000000")), ("flush.messages", Some("7"))]);
        assert_eq!(alter(&mut client, vec![new], false, version), [ErrorCode::NONE]);
    }
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    for version in 0..=2 {
        let set = set_by(&mut client, TOPIC, &format!("t{version}"));
        assert_eq!(set, [pair("flush.messages", "7"), pair("segment.bytes", "3000000")], "version {version}");
    }
    assert_eq!(alter(&mut client, vec![resource(TOPIC, "t0", &[])], false, 2), [ErrorCode::NONE]);
    assert!(set_by(&mut client, TOPIC, "t0").is_empty());
}

#[test]
fn settings_of_brokers_groups_and_subscriptions_are_replaced() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    for (kind, name, one, other) in [
        (BROKER, "1", ("message.max.bytes", "1500000"), ("log.retention.ms", "7000000")),
        (CLIENT_METRICS, "s", ("metrics", "a."), ("interval.ms", "5000")),
        (GROUP, "g", ("consumer.session.timeout.ms", "50000"), ("consumer.heartbeat.interval.ms", "6000")),
    ] {
        client.set_config(kind, name, one.0, one.1);
        assert_eq!(set_by(&mut client, kind, name), [pair(one.0, one.1)]);
        let new = resource(kind, name, &[(other.0, Some(other.1))]);
        assert_eq!(alter(&mut client, vec![new], false, 2), [ErrorCode::NONE], "{name}");
        assert_eq!(set_by(&mut client, kind, name), [pair(other.0, other.1)]);
    }
}

#[test]
fn each_refusal_has_its_error_and_changes_nothing() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[("retention.ms", "7000000")]);
    client.create_topic("u", 1, &[]);
    for (requested, expected) in [
        (resource(TOPIC, "t", &[("no.such.key", Some("1"))]), ErrorCode::INVALID_CONFIG),
        (resource(TOPIC, "t", &[("retention.ms", Some("soon"))]), ErrorCode::INVALID_CONFIG),
        (resource(TOPIC, "t", &[("retention.ms", None)]), ErrorCode::INVALID_REQUEST),
        (resource(TOPIC, "t", &[("retention.ms", Some("1")), ("retention.ms", Some("2"))]), ErrorCode::INVALID_REQUEST),
        (resource(TOPIC, "nowhere", &[]), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
        (resource(TOPIC, "", &[]), ErrorCode::INVALID_REQUEST),
        (resource(BROKER, "77", &[]), ErrorCode::INVALID_REQUEST),
        (resource(BROKER, "one", &[]), ErrorCode::INVALID_REQUEST),
        (resource(99, "x", &[]), ErrorCode::INVALID_REQUEST),
    ] {
        let shown = format!("{requested:?}");
        assert_eq!(alter(&mut client, vec![requested], false, 2), [expected], "{shown}");
    }
    let twice = vec![
        resource(TOPIC, "t", &[]),
        resource(TOPIC, "u", &[("flush.messages", Some("7"))]),
        resource(TOPIC, "t", &[]),
    ];
    let refused = ErrorCode::INVALID_REQUEST;
    assert_eq!(alter(&mut client, twice, false, 2), [refused, ErrorCode::NONE, refused]);
    assert_eq!(set_by(&mut client, TOPIC, "u"), [pair("flush.messages", "7")]);
    assert_eq!(alter(&mut client, vec![resource(TOPIC, "t", &[])], true, 2), [ErrorCode::NONE], "only validated");
    assert_eq!(set_by(&mut client, TOPIC, "t"), [pair("retention.ms", "7000000")]);
}

fn listed(client: &mut Client, types: &[i8], version: i16) -> Vec<(i8, String)> {
    let request = ListConfigResourcesRequest { resource_types: types.to_vec(), ..Default::default() };
    let response = client.call(&request, version);
    assert_eq!(response.error_code, ErrorCode::NONE);
    let mut listed: Vec<_> =
        response.config_resources.iter().map(|of| (of.resource_type, of.resource_name.to_string())).collect();
    listed.sort();
    listed
}

#[test]
fn resources_are_listed_by_type() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic("t", 1, &[]);
    client.set_config(CLIENT_METRICS, "s", "metrics", "a.");
    client.set_config(GROUP, "g", "consumer.session.timeout.ms", "50000");
    let of = |kind: i8, name: &str| (kind, name.to_owned());
    let all = [of(TOPIC, "t"), of(BROKER, "1"), of(BROKER_LOGGER, "1"), of(CLIENT_METRICS, "s"), of(GROUP, "g")];
    assert_eq!(listed(&mut client, &[], 0), [of(CLIENT_METRICS, "s")]);
    assert_eq!(listed(&mut client, &[], 1), all);
    assert_eq!(listed(&mut client, &[GROUP, TOPIC, TOPIC], 1), [of(TOPIC, "t"), of(GROUP, "g")]);
    let request = ListConfigResourcesRequest { resource_types: vec![TOPIC, 99], ..Default::default() };
    let refused = client.call(&request, 1);
    assert_eq!((refused.error_code, refused.config_resources.len()), (ErrorCode::UNSUPPORTED_VERSION, 0));
}
