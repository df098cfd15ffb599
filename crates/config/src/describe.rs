//! The entries that DescribeConfigs returns for a topic, a broker or another resource.
//!
//! The API's handler and its wire types are in other crates. Values are written as Kafka's tools print them. The source
//! of an entry is the place where the value in force was set.

use std::collections::BTreeMap;

use super::broker::BrokerConfig;
use super::broker_keys::broker_keys;
use super::dynamic::{BrokerValues, DynamicConfig};
use super::error::ConfigError;
use super::key::{Key, Source, Type};
use super::lookup::{ConfigValue, broker_chain, resource_chain};
use super::plane::{CONTROL_PLANE, without_user};
use super::resources::Resource;
use super::topic::{self, check_overrides};
use super::topic_keys::TOPIC_KEYS;

/// A setting as DescribeConfigs returns it. The response encodes `source` and `of`, the setting's type, as numbers:
/// `source as i8` and `of as i8`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigEntry {
    pub name: &'static str,
    /// `None` if the key is unset and has no default.
    pub value: Option<String>,
    pub source: Source,
    pub of: Type,
    /// True if the setting cannot be changed while the broker runs.
    pub read_only: bool,
    pub sensitive: bool,
    /// All values that are set for the key or its synonyms. The first one is in force.
    pub synonyms: Vec<ConfigSynonym>,
    pub documentation: &'static str,
}

/// A value that is set for an entry's key or for one of its synonyms, or the default of one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSynonym {
    pub name: &'static str,
    pub value: String,
    pub source: Source,
}

/// Returns every setting of a topic with `overrides`, in the table's order.
pub fn describe_topic(
    broker: &BrokerConfig,
    dynamic: &DynamicConfig,
    overrides: &BTreeMap<String, String>,
) -> Result<Vec<ConfigEntry>, ConfigError> {
    let checked = check_overrides(overrides)?;
    let chain = |key| topic::chain(key, &checked, broker.values(dynamic));
    Ok(TOPIC_KEYS.iter().map(|key| in_base_unit(key, chain(key))).collect())
}

/// Returns every setting of a group or of a client metrics subscription, in the table's order. `set` has the values
/// that were set for it.
pub fn describe_resource(
    broker: &BrokerConfig,
    dynamic: &DynamicConfig,
    resource: Resource,
    set: &BTreeMap<String, String>,
) -> Vec<ConfigEntry> {
    let of_resource = |key: &Key| set.get(key.name).map(|value| (value.as_str(), resource.source()));
    let chain = |key| resource_chain(key, of_resource(key), broker.values(dynamic));
    resource.keys().iter().map(|key| in_base_unit(key, chain(key))).collect()
}

fn in_base_unit(key: &'static Key, chain: Vec<ConfigValue>) -> ConfigEntry {
    let value = chain.first().map(ConfigValue::in_base_unit);
    entry(key, value, chain, false)
}

/// Returns every setting of this broker, in the table's order.
pub fn describe_broker(broker: &BrokerConfig, dynamic: &DynamicConfig) -> Vec<ConfigEntry> {
    broker_keys().map(|key| of_broker(key, broker_chain(key, broker.values(dynamic)))).collect()
}

/// Returns the settings that have a dynamic value for all brokers. All other settings are left out, as in Kafka.
pub fn describe_cluster(broker: &BrokerConfig, dynamic: &DynamicConfig) -> Vec<ConfigEntry> {
    let set_for_all = |key: &'static Key| {
        let mut chain = broker_chain(key, broker.values(dynamic));
        chain.retain(|found| found.source == Source::DynamicDefaultBroker);
        dynamic.cluster.contains_key(key.name).then(|| of_broker(key, chain))
    };
    broker_keys().filter_map(set_for_all).collect()
}

/// Returns the value of a broker key that is now in force; None if the key is unknown or unset. If `for_all` is true,
/// ignores a dynamic value that was set for this broker alone.
pub fn in_force(broker: &BrokerConfig, dynamic: &DynamicConfig, name: &str, for_all: bool) -> Option<String> {
    let values: BrokerValues<'_> = broker.values(dynamic);
    let chain = broker_chain(super::broker_keys::broker_key(name)?, values);
    let found = chain.into_iter().find(|found| !(for_all && found.source == Source::DynamicBroker));
    found.map(|found| found.value)
}

fn of_broker(key: &'static Key, mut chain: Vec<ConfigValue>) -> ConfigEntry {
    if key.name == CONTROL_PLANE {
        chain.iter_mut().for_each(|found| found.value = without_user(&found.value));
    }
    let in_own_unit = |found: &ConfigValue| {
        if key.unit_ms == 1 { found.in_base_unit() } else { found.value.clone() }
    };
    let value = chain.first().map(in_own_unit);
    entry(key, value, chain, !key.dynamic)
}

fn entry(key: &'static Key, value: Option<String>, chain: Vec<ConfigValue>, read_only: bool) -> ConfigEntry {
    ConfigEntry {
        name: key.name,
        value,
        source: chain.first().map_or(Source::Default, |found| found.source),
        of: key.of,
        read_only,
        sensitive: key.of == Type::Password,
        synonyms: chain
            .into_iter()
            .map(|ConfigValue { name, value, source, .. }| ConfigSynonym { name, value, source })
            .collect(),
        documentation: key.doc,
    }
}

#[cfg(test)]
mod tests {
    use super::super::dynamic::NOTHING;
    use super::super::properties::Properties;
    use super::*;

    fn broker(text: &str) -> BrokerConfig {
        BrokerConfig::from_properties(&Properties::parse(text).expect("valid")).expect("valid").0
    }

    fn find<'a>(entries: &'a [ConfigEntry], name: &str) -> &'a ConfigEntry {
        entries.iter().find(|entry| entry.name == name).expect(name)
    }

    #[test]
    fn a_topics_entry_lists_its_values_from_the_one_in_force_down() {
        let overrides = BTreeMap::from([("segment.bytes".to_owned(), " 2000000".to_owned())]);
        let entries = describe_topic(&broker("log.segment.bytes=3000000\nlog.retention.hours=2"), &NOTHING, &overrides)
            .expect("valid");
        let segment = find(&entries, "segment.bytes");
        assert_eq!((segment.value.as_deref(), segment.source, segment.of as i8), (Some("2000000"), Source::Topic, 3));
        let listed: Vec<(&str, &str, i8)> =
            segment.synonyms.iter().map(|s| (s.name, s.value.as_str(), s.source as i8)).collect();
        assert_eq!(
            listed,
            [
                ("segment.bytes", "2000000", 1),
                ("log.segment.bytes", "3000000", 4),
                ("log.segment.bytes", "1073741824", 5)
            ]
        );
        let retention = find(&entries, "retention.ms");
        assert_eq!((retention.value.as_deref(), retention.source), (Some("7200000"), Source::StaticBroker));
        assert_eq!((retention.synonyms[0].name, retention.synonyms[0].value.as_str()), ("log.retention.hours", "2"));
        assert!(entries.iter().all(|entry| !entry.read_only && entry.value.is_some()));
    }

    #[test]
    fn a_topic_shows_whether_it_is_diskless_and_not_what_the_next_one_would_be() {
        let broker = broker("log.diskless.enable=true\ndiskless.producer.state.batches.to.retain=70");
        let reported = |value: Option<&str>, name: &str| {
            let set = value.map(|value| ("diskless.enable".to_owned(), value.to_owned()));
            let entries = describe_topic(&broker, &NOTHING, &set.into_iter().collect()).expect("valid");
            let entry = find(&entries, name);
            (entry.value.clone().expect("a value"), entry.source, entry.synonyms[0].name)
        };
        let (enable, retain) = ("diskless.enable", "producer.state.batches.to.retain");
        assert_eq!(reported(None, enable), ("false".into(), Source::Default, enable));
        assert_eq!(reported(Some("True"), enable), ("true".into(), Source::Topic, enable));
        assert_eq!(reported(Some("false"), enable), ("false".into(), Source::Topic, enable));
        let of_diskless = ("70".into(), Source::StaticBroker, "diskless.producer.state.batches.to.retain");
        assert_eq!(reported(Some("true"), retain), of_diskless);
        assert_eq!(reported(None, retain), ("5".into(), Source::Default, "max.idempotence.batches.to.retain"));
    }

    #[test]
    fn a_brokers_entries_have_sources_and_read_only_flags() {
        let entries = describe_broker(&broker("broker.id=4\nlog.retention.minutes=1"), &NOTHING);
        let node = find(&entries, "node.id");
        assert_eq!((node.value.as_deref(), node.source, node.read_only), (Some("4"), Source::StaticBroker, true));
        assert_eq!(find(&entries, "log.retention.ms").value.as_deref(), Some("60000"));
        assert_eq!(find(&entries, "log.retention.minutes").value.as_deref(), Some("1"));
        let hours = find(&entries, "log.retention.hours");
        assert_eq!((hours.value.as_deref(), hours.source), (Some("168"), Source::Default));
        assert_eq!(find(&entries, "broker.rack").value, None);
        assert!(hours.read_only && !find(&entries, "log.retention.ms").read_only);
    }

    #[test]
    fn a_key_without_meaning_here_is_shown_as_typed_or_with_kafkas_default() {
        let entries = describe_broker(&broker("num.io.threads=64"), &NOTHING);
        let (typed, default) = (find(&entries, "num.io.threads"), find(&entries, "num.network.threads"));
        assert_eq!((typed.value.as_deref(), typed.source, typed.read_only), (Some("64"), Source::StaticBroker, true));
        assert_eq!((default.value.as_deref(), default.source), (Some("3"), Source::Default));
        assert!(default.documentation.starts_with("has no effect: "));
    }

    #[test]
    fn dynamic_values_come_before_those_of_the_file() {
        let key = "max.idempotence.batches.to.retain";
        let of = |value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let dynamic = DynamicConfig { broker: of("40"), cluster: of("30") };
        let broker = broker("max.idempotence.batches.to.retain=20");
        let listed = |entry: &ConfigEntry| -> Vec<(String, i8)> {
            entry.synonyms.iter().map(|s| (s.value.clone(), s.source as i8)).collect()
        };
        let all = [("40", 2), ("30", 3), ("20", 4), ("5", 5)].map(|(value, source)| (value.to_owned(), source));
        let entries = describe_broker(&broker, &dynamic);
        assert_eq!(listed(find(&entries, key)), all);
        assert_eq!((find(&entries, key).value.as_deref(), find(&entries, key).read_only), (Some("40"), false));
        let entries = describe_topic(&broker, &dynamic, &BTreeMap::new()).expect("valid");
        let topics = find(&entries, "producer.state.batches.to.retain");
        assert_eq!(
            (topics.value.as_deref(), topics.source, listed(topics)),
            (Some("40"), Source::DynamicBroker, all.into())
        );
        let entries = describe_cluster(&broker, &dynamic);
        assert_eq!((entries.len(), entries[0].name, listed(&entries[0])), (1, key, vec![("30".to_owned(), 3)]));
        assert!(describe_cluster(&broker, &NOTHING).is_empty());
        assert_eq!(
            [false, true].map(|all| in_force(&broker, &dynamic, key, all)),
            [Some("40".into()), Some("30".into())]
        );
    }
}
