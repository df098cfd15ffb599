//! Compares the tables with Apache Kafka's own list of keys (`kafka-4.3-configs.tsv`, written by
//! `tests/clients/config-keys`).
//!
//! Every key of Kafka must have a row. If its type, default or range is not Kafka's, the row must give a reason
//! (`differs`). The synonyms of keys of topics and other resources must be Kafka's. A key that has an effect here must
//! be dynamic if Kafka's key is dynamic, unless `AT_START` lists it. No key that is static in Kafka may be dynamic
//! here.

use std::collections::BTreeSet;

use super::broker_keys::{broker_key, broker_keys};
use super::key::{Allowed, Effect, Key, Type};
use super::resource_keys::{CLIENT_METRICS_KEYS, GROUP_CONFIG_KEYS};
use super::topic_keys::{TOPIC_KEYS, topic_key};

/// Internal keys of Kafka, which are missing in its list of keys.
const INTERNAL: [&str; 1] = ["producer.id.expiration.check.interval.ms"];

/// Prefixes of keys that are dynamic in Kafka, but that this broker reads only at its start.
const AT_START: [&str; 5] = [
    "listeners",
    "listener.security.protocol.map",
    "ssl.",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
];

/// A line of Kafka's list of keys.
struct Theirs {
    resource: &'static str,
    name: &'static str,
    of: &'static str,
    /// The default, or `None` if the key is unset by default.
    default: Option<&'static str>,
    dynamic: bool,
    allowed: &'static str,
    synonyms: &'static str,
}

fn theirs() -> Vec<Theirs> {
    let lines = include_str!("../kafka-4.3-configs.tsv").lines();
    let line = |line: &'static str| {
        let fields: Vec<&'static str> = line.split('\t').collect();
        let [resource, name, of, default, mode, allowed, synonyms] = fields[..] else { panic!("{line}") };
        let dynamic = matches!(mode, "cluster-wide" | "per-broker");
        Theirs { resource, name, of, default: default.strip_prefix('='), dynamic, allowed, synonyms }
    };
    lines.map(line).collect()
}

fn ours(theirs: &Theirs) -> Option<&'static Key> {
    let named = |keys: &'static [Key]| keys.iter().find(|key| key.name == theirs.name);
    match theirs.resource {
        "broker" => broker_key(theirs.name),
        "topic" => topic_key(theirs.name),
        "group" => named(GROUP_CONFIG_KEYS),
        "client-metrics" => named(CLIENT_METRICS_KEYS),
        other => panic!("{other} is no resource"),
    }
}

/// Returns the value of a key if nothing is set: its own default, or otherwise the first default among its synonyms.
/// Converts the default of a synonym in hours or minutes to milliseconds.
fn default_of(key: &Key) -> Option<String> {
    let synonyms = key.synonyms.iter().filter_map(|name| broker_key(name));
    let of_synonym = |synonym: &Key| {
        let count: Option<i64> = synonym.default?.parse().ok();
        Some(
            count.map_or_else(|| synonym.default.unwrap_or_default().to_owned(), |n| (n * synonym.unit_ms).to_string()),
        )
    };
    key.default.map(str::to_owned).or_else(|| synonyms.into_iter().find_map(of_synonym))
}

/// Returns the range as Kafka writes it, if the key has one: `[1,...]`, `[1,...,9]`, `[1,...,9] or -1`, `[a, b]`.
fn range_text(key: &Key) -> Option<String> {
    let widest = match key.of {
        Type::Short => i64::from(i16::MAX),
        Type::Int => i64::from(i32::MAX),
        _ => i64::MAX,
    };
    match key.allowed {
        Allowed::Between(min, max) if max >= widest => Some(format!("[{min},...]")),
        Allowed::Between(min, max) => Some(format!("[{min},...,{max}]")),
        Allowed::MinusOneOr(min, max) => Some(format!("[{min},...,{max}] or -1")),
        Allowed::OneOf(values) | Allowed::SomeOf(values) => {
            Some(format!("[{}]", BTreeSet::from_iter(values).into_iter().copied().collect::<Vec<_>>().join(", ")))
        }
        Allowed::Share => Some("[0,...,1]".to_owned()),
        Allowed::Positive | Allowed::Any => None,
    }
}

/// Sorts the elements of a list in Kafka's text, so that their order does not matter in a comparison.
fn in_order(allowed: &str) -> String {
    match allowed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(list) if list.starts_with(|c: char| c.is_ascii_alphabetic()) => {
            let values = BTreeSet::from_iter(list.split(", "));
            format!("[{}]", values.into_iter().collect::<Vec<_>>().join(", "))
        }
        _ => allowed.to_owned(),
    }
}

#[test]
fn every_key_of_kafka_is_known() {
    let missing: Vec<_> = theirs().into_iter().filter(|key| ours(key).is_none()).collect();
    let names: Vec<_> = missing.iter().map(|key| format!("{} {}", key.resource, key.name)).collect();
    assert!(names.is_empty(), "without a row: {names:#?}");
}

#[test]
fn types_defaults_and_synonyms_are_kafkas() {
    let mut wrong = Vec::new();
    for theirs in theirs() {
        let Some(key) = ours(&theirs) else { continue };
        if format!("{:?}", key.of).to_uppercase() != theirs.of && key.differs.is_none() {
            wrong.push(format!("{}: type {:?}, Kafka's {}", key.name, key.of, theirs.of));
        }
        let default = if theirs.resource == "broker" { key.default.map(str::to_owned) } else { default_of(key) };
        if default.as_deref() != theirs.default && key.differs.is_none() {
            wrong.push(format!("{}: default {default:?}, Kafka's {:?}", key.name, theirs.default));
        }
        if theirs.resource != "broker" && key.synonyms.join(",") != theirs.synonyms {
            wrong.push(format!("{}: synonyms {:?}, Kafka's {}", key.name, key.synonyms, theirs.synonyms));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn ranges_are_kafkas() {
    let mut wrong = Vec::new();
    for theirs in theirs() {
        let Some(key) = ours(&theirs).filter(|key| key.differs.is_none()) else { continue };
        let range = range_text(key);
        let known = ["[", "("].iter().any(|start| theirs.allowed.starts_with(start))
            && !theirs.allowed.contains("insensitive")
            && !theirs.allowed.contains(':');
        if known && key.of != Type::Double && range.as_deref() != Some(&*in_order(theirs.allowed)) {
            wrong.push(format!("{}: {range:?}, Kafka's {}", key.name, theirs.allowed));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn honoured_keys_are_dynamic_where_kafkas_are() {
    let theirs: Vec<Theirs> = theirs().into_iter().filter(|theirs| theirs.resource == "broker").collect();
    let read_only: Vec<_> = theirs
        .iter()
        .filter(|theirs| theirs.dynamic)
        .filter_map(ours)
        .filter(|key| {
            key.effect == Effect::Honoured && !key.dynamic && !AT_START.iter().any(|start| key.name.starts_with(start))
        })
        .map(|key| key.name)
        .collect();
    assert!(read_only.is_empty(), "read at start only: {read_only:#?}");
    let more: Vec<_> = broker_keys()
        .filter(|key| key.dynamic && theirs.iter().any(|theirs| theirs.name == key.name && !theirs.dynamic))
        .map(|key| key.name)
        .collect();
    assert!(more.is_empty(), "Kafka reads these at start: {more:#?}");
}

#[test]
fn a_key_unknown_to_kafka_has_a_reason() {
    let theirs = theirs();
    for key in broker_keys().chain(TOPIC_KEYS).chain(GROUP_CONFIG_KEYS).chain(CLIENT_METRICS_KEYS) {
        let known = theirs.iter().any(|theirs| theirs.name == key.name);
        assert!(
            known || key.differs.is_some() || INTERNAL.contains(&key.name),
            "{} is not in Kafka's list and does not say so",
            key.name
        );
    }
}
