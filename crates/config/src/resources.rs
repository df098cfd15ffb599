//! The configuration of a group, and of a client metrics subscription.
//!
//! The control plane stores the values, which passed [`check_resource`] when they were set. The broker's limits may
//! have changed since then, so a group's value that is now outside the limits is replaced by the nearest limit.

use std::collections::BTreeMap;

use fullbore_wire::did_you_mean;
use regex_lite::{Regex, RegexBuilder};

use super::broker::BrokerConfig;
use super::dynamic::{BrokerValues, DynamicConfig, NOTHING};
use super::error::ConfigError;
use super::key::{Key, Source};
use super::lookup::{reader, resource_chain};
use super::reader::ConfigReader;
use super::resource_keys::{CLIENT_METRICS_KEYS, GROUP_CONFIG_KEYS};

/// A kind of resource with its own configuration, besides topics and brokers. The number is the code of Kafka's
/// `ConfigResource.Type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// A client metrics subscription (KIP-714).
    ClientMetrics = 16,
    /// A consumer group.
    Group = 32,
}

impl Resource {
    /// Returns the kind of resource that has this code, if there is one.
    pub fn from_code(code: i8) -> Option<Self> {
        [Self::ClientMetrics, Self::Group].into_iter().find(|resource| *resource as i8 == code)
    }

    /// Returns the keys of this kind of resource.
    pub fn keys(self) -> &'static [Key] {
        match self {
            Self::ClientMetrics => CLIENT_METRICS_KEYS,
            Self::Group => GROUP_CONFIG_KEYS,
        }
    }

    pub(super) fn source(self) -> Source {
        match self {
            Self::ClientMetrics => Source::ClientMetrics,
            Self::Group => Source::Group,
        }
    }

    fn noun(self) -> &'static str {
        match self {
            Self::ClientMetrics => "client metrics",
            Self::Group => "group",
        }
    }
}

/// The timeouts in force for the members of a group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupTimeouts {
    /// How long a member of the consumer protocol may be silent before it is removed from its group.
    pub consumer_session_timeout_ms: i32,
    /// How long a member of the consumer protocol waits between two heartbeats.
    pub consumer_heartbeat_interval_ms: i32,
    /// Minimum time between two assignments of a group of the consumer protocol.
    pub consumer_assignment_interval_ms: i32,
}

impl GroupTimeouts {
    /// Returns the timeouts of a group with `overrides`. A value outside this broker's limits is replaced by the
    /// nearest limit.
    pub fn resolve(broker: &BrokerConfig, dynamic: &DynamicConfig, overrides: &BTreeMap<String, String>) -> Self {
        let values = ConfigReader::new(|name| in_force(Resource::Group, overrides, broker.values(dynamic), name));
        let limits = reader(broker.values(dynamic));
        let within = |name, min, max| {
            let value: i32 = values.number(name);
            value.min(limits.number(max)).max(limits.number(min))
        };
        let (session, heartbeat, assignment) = (SESSION, HEARTBEAT, ASSIGNMENT);
        Self {
            consumer_session_timeout_ms: within(session.0, session.1, session.2),
            consumer_heartbeat_interval_ms: within(heartbeat.0, heartbeat.1, heartbeat.2),
            consumer_assignment_interval_ms: within(assignment.0, assignment.1, assignment.2),
        }
    }
}

/// A key of a group, and the broker keys with its minimum and maximum.
const SESSION: (&str, &str, &str) =
    ("consumer.session.timeout.ms", "group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms");
const HEARTBEAT: (&str, &str, &str) = (
    "consumer.heartbeat.interval.ms",
    "group.consumer.min.heartbeat.interval.ms",
    "group.consumer.max.heartbeat.interval.ms",
);

const ASSIGNMENT: (&str, &str, &str) = (
    "consumer.assignment.interval.ms",
    "group.consumer.min.assignment.interval.ms",
    "group.consumer.max.assignment.interval.ms",
);

/// Broker key with the assignment interval of all groups that do not set one themselves. The key is dynamic.
const BROKER_ASSIGNMENT: &str = "group.consumer.assignment.interval.ms";

/// A client metrics subscription: which clients push which metrics, and how often.
#[derive(Debug, Clone)]
pub struct ClientMetricsConfig {
    /// Prefixes of the metrics' names. `*` stands for every metric, and an empty list for none.
    pub metrics: Vec<String>,
    pub interval_ms: i32,
    /// The criteria, all of which a client must meet. A pattern must match the whole value.
    pub patterns: Vec<(ClientTrait, Regex)>,
}

/// A property of a client that a subscription can match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientTrait {
    InstanceId,
    Id,
    SoftwareName,
    SoftwareVersion,
    SourceAddress,
    SourcePort,
}

const TRAITS: [(&str, ClientTrait); 6] = [
    ("client_instance_id", ClientTrait::InstanceId),
    ("client_id", ClientTrait::Id),
    ("client_software_name", ClientTrait::SoftwareName),
    ("client_software_version", ClientTrait::SoftwareVersion),
    ("client_source_address", ClientTrait::SourceAddress),
    ("client_source_port", ClientTrait::SourcePort),
];

/// Maximum length of a pattern in characters. Matching a longer pattern against every client would take too long.
const PATTERN_CHARS_MAX: usize = 1024;
/// Maximum number of patterns in a subscription. Clients have only six properties to match, so few subscriptions need
/// 16 patterns.
const PATTERNS_MAX: usize = 16;
/// Maximum number of metrics in a subscription.
const METRICS_MAX: usize = 1000;
/// Maximum size of a compiled pattern, in bytes. Short patterns can be large when compiled: `((a{99}){99}){9}` takes
/// megabytes.
const COMPILED_BYTES_MAX: usize = 64 << 10;

impl ClientMetricsConfig {
    /// Creates the subscription from the settings in `set`.
    pub fn resolve(set: &BTreeMap<String, String>) -> Result<Self, ConfigError> {
        let nothing = DynamicConfig::default();
        let file = super::Properties::default();
        let broker = BrokerValues { properties: &file, dynamic: &nothing };
        let values = ConfigReader::new(|name| in_force(Resource::ClientMetrics, set, broker, name));
        let list = |name| elements(&values.text(name).unwrap_or_default());
        Ok(Self {
            metrics: list("metrics"),
            interval_ms: values.number("interval.ms"),
            patterns: list("match").iter().map(|pair| pattern(pair)).collect::<Result<_, _>>()?,
        })
    }
}

fn elements(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|element| !element.is_empty()).map(str::to_owned).collect()
}

fn pattern(pair: &str) -> Result<(ClientTrait, Regex), ConfigError> {
    let refused = |message: String| ConfigError::of_value("match", pair, message);
    let named = pair.split_once('=').and_then(|(name, pattern)| {
        let (_, which) = TRAITS.iter().find(|(known, _)| *known == name.trim())?;
        Some((*which, pattern.trim()))
    });
    let Some((which, pattern)) = named else {
        let names: Vec<&str> = TRAITS.iter().map(|(name, _)| *name).collect();
        return Err(refused(format!("must be name=pattern, with a name of {}", names.join(", "))));
    };
    if pattern.chars().count() > PATTERN_CHARS_MAX {
        return Err(refused(format!("a pattern may have at most {PATTERN_CHARS_MAX} characters")));
    }
    let compiled = RegexBuilder::new(&format!("^(?:{pattern})$")).size_limit(COMPILED_BYTES_MAX).build();
    let regex = compiled.map_err(|error| refused(error.to_string()))?;
    Ok((which, regex))
}

/// Checks values as [`check_resource`] does, but without the broker's limits.
pub fn check_values(
    resource: Resource,
    set: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, ConfigError> {
    let check = |(name, value): (&String, &String)| Ok((name.clone(), row(resource, name)?.check_change(value)?));
    set.iter().map(check).collect()
}

/// Checks the settings of a resource, and returns each value in canonical form.
pub fn check_resource(
    broker: &BrokerConfig,
    dynamic: &DynamicConfig,
    resource: Resource,
    set: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, ConfigError> {
    let checked = check_values(resource, set)?;
    match resource {
        Resource::ClientMetrics => check_client_metrics(&checked)?,
        Resource::Group => check_group(&reader(broker.values(dynamic)), &checked)?,
    }
    Ok(checked)
}

fn row(resource: Resource, name: &str) -> Result<&'static Key, ConfigError> {
    let unknown = || {
        let meant = did_you_mean(name, resource.keys().iter().map(|key| key.name));
        ConfigError::of_key(name, format!("unknown {} config name{meant}", resource.noun()))
    };
    resource.keys().iter().find(|key| key.name == name).ok_or_else(unknown)
}

/// Checks the settings of a client metrics subscription, including the limits that keep it cheap.
fn check_client_metrics(set: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    for (name, of, most) in [("match", "patterns", PATTERNS_MAX), ("metrics", "elements", METRICS_MAX)] {
        let count = set.get(name).map_or(0, |list| elements(list).len());
        if count > most {
            return Err(ConfigError::of_key(name, format!("has {count} {of}, and at most {most} are allowed")));
        }
    }
    ClientMetricsConfig::resolve(set).map(drop)
}

/// Checks that a group's settings are within the broker's limits.
fn check_group<F>(broker: &ConfigReader<F>, set: &BTreeMap<String, String>) -> Result<(), ConfigError>
where
    F: Fn(&str) -> Option<String>,
{
    [SESSION, HEARTBEAT, ASSIGNMENT]
        .into_iter()
        .try_for_each(|(name, min, max)| check_limits(broker, set, name, min, max))
}

/// Checks that dynamic settings are within the limits in the broker's file, which this broker reads only at its start.
///
/// # Errors
/// Returns [`ConfigError`] if a value is outside its limits.
pub fn check_dynamic_limits(broker: &BrokerConfig, set: &BTreeMap<String, String>) -> Result<(), ConfigError> {
    let (_, min, max) = ASSIGNMENT;
    check_limits(&reader(broker.values(&NOTHING)), set, BROKER_ASSIGNMENT, min, max)
}

fn check_limits<F>(
    broker: &ConfigReader<F>,
    set: &BTreeMap<String, String>,
    name: &str,
    min: &'static str,
    max: &'static str,
) -> Result<(), ConfigError>
where
    F: Fn(&str) -> Option<String>,
{
    let Some(value) = set.get(name) else { return Ok(()) };
    let (least, most) = (broker.number::<i64>(min), broker.number::<i64>(max));
    if value.parse::<i64>().is_ok_and(|value| (least..=most).contains(&value)) {
        return Ok(());
    }
    let message = format!("must be between {least} ({min}) and {most} ({max})");
    Err(ConfigError::of_value(name, value, message))
}

fn in_force(
    resource: Resource,
    set: &BTreeMap<String, String>,
    broker: BrokerValues<'_>,
    name: &str,
) -> Option<String> {
    let key = row(resource, name).ok()?;
    let of_resource = set.get(name).map(|value| (value.as_str(), resource.source()));
    Some(resource_chain(key, of_resource, broker).first()?.in_base_unit())
}

#[cfg(test)]
mod tests {
    use super::super::properties::Properties;
    use super::*;

    fn broker(text: &str) -> BrokerConfig {
        BrokerConfig::from_properties(&Properties::parse(text).expect("valid")).expect("valid").0
    }

    fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn refusal(resource: Resource, name: &str, value: &str) -> String {
        check_resource(&broker(""), &NOTHING, resource, &of(&[(name, value)])).expect_err(value).to_string()
    }

    #[test]
    fn a_group_has_its_own_timeouts_or_the_brokers_within_the_brokers_limits() {
        let timeouts = |file: &str, set: &[(&str, &str)]| {
            let timeouts = GroupTimeouts::resolve(&broker(file), &NOTHING, &of(set));
            (timeouts.consumer_session_timeout_ms, timeouts.consumer_heartbeat_interval_ms)
        };
        assert_eq!(timeouts("", &[]), (45_000, 5_000));
        assert_eq!(timeouts("group.consumer.session.timeout.ms=50000", &[]), (50_000, 5_000));
        let own = [("consumer.session.timeout.ms", "46000"), ("consumer.heartbeat.interval.ms", "6000")];
        assert_eq!(timeouts("group.consumer.session.timeout.ms=50000", &own), (46_000, 6_000));
        assert_eq!(
            timeouts("group.consumer.min.session.timeout.ms=48000\ngroup.consumer.session.timeout.ms=48000", &own),
            (48_000, 6_000)
        );
        assert_eq!(timeouts("group.consumer.max.heartbeat.interval.ms=5500", &own), (46_000, 5_500));
    }

    #[test]
    fn a_groups_refusals_name_the_allowed_values() {
        let refused = |name, value| refusal(Resource::Group, name, value);
        for value in ["44999", "60001"] {
            let found = refused("consumer.session.timeout.ms", value);
            assert_eq!(
                found,
                format!(
                    "consumer.session.timeout.ms={value}: must be between 45000 (group.consumer.min.session.timeout.ms) and \
                     60000 (group.consumer.max.session.timeout.ms)"
                )
            );
        }
        assert!(refused("consumer.heartbeat.interval.ms", "x").contains("must be between 1 and"));
        assert_eq!(refused("no.such", "1"), "no.such: unknown group config name");
        assert!(refused("share.session.timeout.ms", "46000").contains("share groups are not offered"));
        let default = of(&[("share.auto.offset.reset", "latest")]);
        assert_eq!(check_resource(&broker(""), &NOTHING, Resource::Group, &default), Ok(default));
    }

    #[test]
    fn a_subscription_to_clients_metrics_is_read() {
        let read = |set: &[(&str, &str)]| ClientMetricsConfig::resolve(&of(set)).expect("valid");
        let nothing = read(&[]);
        assert_eq!((nothing.metrics.len(), nothing.interval_ms, nothing.patterns.len()), (0, 300_000, 0));
        let some = read(&[
            ("metrics", "org.apache.kafka.producer., org.apache.kafka.consumer."),
            ("interval.ms", "100"),
            ("match", "client_id=a.*|b,client_source_port=9[0-9]"),
        ]);
        assert_eq!(some.metrics, ["org.apache.kafka.producer.", "org.apache.kafka.consumer."]);
        assert_eq!((some.interval_ms, some.patterns[1].0), (100, ClientTrait::SourcePort));
        let (which, ids) = &some.patterns[0];
        let fits = ["app", "b", "xa", "bb"].map(|id| ids.is_match(id));
        assert_eq!((*which, fits), (ClientTrait::Id, [true, true, false, false]));
    }

    #[test]
    fn a_subscriptions_refusals_name_the_allowed_values() {
        let refused = |name: &str, value: &str| refusal(Resource::ClientMetrics, name, value);
        for value in ["99", "3600001"] {
            assert_eq!(refused("interval.ms", value), format!("interval.ms={value}: must be between 100 and 3600000"));
        }
        for value in ["foo=a", "client_id"] {
            assert!(refused("match", value).starts_with(&format!("match={value}: must be name=pattern")));
        }
        assert!(refused("match", "client_id=[").starts_with("match=client_id=[: "));
        let large = refused("match", "client_id=((a{99}){99}){9}");
        assert!(large.starts_with("match=client_id=((a{99}){99}){9}: "), "{large}");
        let many = refused("match", &["client_id=a"; 17].join(","));
        assert_eq!(many, "match: has 17 patterns, and at most 16 are allowed");
        let many = refused("metrics", &vec!["a"; 1001].join(","));
        assert_eq!(many, "metrics: has 1001 elements, and at most 1000 are allowed");
        assert_eq!(refused("bogus", "1"), "bogus: unknown client metrics config name");
    }

    #[test]
    fn every_key_is_read_or_has_no_effect() {
        let nothing = BTreeMap::new();
        for resource in [Resource::Group, Resource::ClientMetrics] {
            for key in resource.keys() {
                let shown = super::super::describe_resource(&broker(""), &NOTHING, resource, &nothing);
                let entry = shown.iter().find(|entry| entry.name == key.name).expect(key.name);
                assert!(entry.value.is_some() && entry.source == Source::Default && !entry.read_only, "{}", key.name);
            }
        }
    }
}
