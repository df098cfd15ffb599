//! The settings that a sweep can vary, under the names that users type. The producer or the broker checks their values.
//!
//! Invariant: a name has the same meaning in `--over` and in `--set`, and two spellings of it are the same [`Setting`].

use crate::link::units;
use fullbore_producer::config::{notice, settings};
use fullbore_wire::did_you_mean;
use std::time::Duration;

/// The longest round trip.
pub const RTT_MAX: Duration = Duration::from_secs(10);
/// Maximum size of a record, in bytes.
const RECORD_SIZE_MAX: u64 = 1 << 24;
/// Maximum number of partitions, as in the broker.
const PARTITIONS_MAX: u64 = 100_000;

const IN_FLIGHT: &str = "max.in.flight.requests.per.connection";

/// Alternative names, each with the setting's own name.
const SHORT: &[(&str, &str)] = &[
    ("max.in.flight", IN_FLIGHT),
    ("in.flight", IN_FLIGHT),
    ("linger", "linger.ms"),
    ("compression", "compression.type"),
    ("idempotence", "enable.idempotence"),
    ("num.records", "records"),
    ("replicas", "replication.factor"),
];

/// Kafka's topic configurations whose names no producer setting has. To set another one, users type `topic.<config>`.
const TOPIC_CONFIGS: &[&str] = &[
    "cleanup.policy",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "max.message.bytes",
    "message.timestamp.type",
    "min.insync.replicas",
    "preallocate",
    "producer.state.batches.to.retain",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
    "unclean.leader.election.enable",
];

/// The producer settings that users cannot set, because the sweep itself sets them. Each has a hint for the error
/// message.
const DECIDED: &[(&str, &str)] = &[
    ("bootstrap.servers", "name the clusters with --bootstrap-server or --against"),
    ("client.id", "it is the same for every point"),
];

/// A setting in which points can differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Setting {
    /// A setting of the producer, by Kafka's name.
    Producer(String),
    /// A setting of the topic, by Kafka's name.
    Topic(String),
    /// The number of partitions of the topic.
    Partitions,
    /// The number of replicas of each partition.
    ReplicationFactor,
    /// The size of each value, in bytes.
    RecordSize,
    /// The number of records of a measurement.
    Records,
    /// The number of records per second, or -1 for no limit.
    Throughput,
    /// The round trip of the link, in milliseconds.
    Rtt,
    /// The bytes per second of the link.
    Bandwidth,
}

impl Setting {
    /// Returns the setting of this name. `-` and `_` count as dots.
    ///
    /// # Errors
    /// Returns an error message with the nearest known name if `typed` is not a setting.
    pub fn parse(typed: &str) -> Result<Setting, String> {
        let dotted = typed.trim().replace(['-', '_'], ".");
        let name = SHORT.iter().find(|(short, _)| *short == dotted).map_or(dotted.as_str(), |(_, long)| *long);
        if let Some((_, why)) = DECIDED.iter().find(|(key, _)| *key == name) {
            return Err(format!("{name} cannot be set here: {why}"));
        }
        if let Some(config) = name.strip_prefix("topic.") {
            return match config.is_empty() {
                true => Err("topic. must be followed by a topic configuration, as in topic.flush.messages".to_owned()),
                false => Ok(Setting::Topic(config.to_owned())),
            };
        }
        Ok(match name {
            "partitions" => Setting::Partitions,
            "replication.factor" => Setting::ReplicationFactor,
            "record.size" => Setting::RecordSize,
            "records" => Setting::Records,
            "throughput" => Setting::Throughput,
            "rtt" => Setting::Rtt,
            "bandwidth" => Setting::Bandwidth,
            _ => match notice(name) {
                None => Setting::Producer(name.to_owned()),
                Some(_) if TOPIC_CONFIGS.contains(&name) => Setting::Topic(name.to_owned()),
                Some(why) => return Err(unknown(typed, name, &why)),
            },
        })
    }

    /// Returns the setting's name in reports and files.
    pub fn name(&self) -> String {
        match self {
            Setting::Producer(key) if key == IN_FLIGHT => "max.in.flight".to_owned(),
            Setting::Producer(key) => key.clone(),
            Setting::Topic(config) => format!("topic.{config}"),
            Setting::Partitions => "partitions".to_owned(),
            Setting::ReplicationFactor => "replication-factor".to_owned(),
            Setting::RecordSize => "record-size".to_owned(),
            Setting::Records => "records".to_owned(),
            Setting::Throughput => "throughput".to_owned(),
            Setting::Rtt => "rtt".to_owned(),
            Setting::Bandwidth => "bandwidth".to_owned(),
        }
    }

    /// Returns true if the setting defines the amount or the kind of work, such as the record size, and not how it is
    /// done. Points with different values of this setting are not compared.
    pub fn is_circumstance(&self) -> bool {
        matches!(self, Setting::RecordSize | Setting::Records | Setting::Throughput | Setting::Rtt | Setting::Bandwidth)
    }

    /// Returns true if the setting's value is secret, so that no report may show it.
    pub fn is_secret(&self) -> bool {
        matches!(self, Setting::Producer(key) if is_secret_key(key))
    }
}

/// Returns true if the property of this name has a secret value.
pub fn is_secret_key(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["password", "secret", "jaas", "ssl.keystore.key", "ssl_keystore_key", "token"]
        .iter()
        .any(|part| key.contains(part))
}

/// Parses a whole number from `min` to `max`.
pub(super) fn whole(value: &str, min: u64, max: u64) -> Result<u64, String> {
    let parsed = value.parse().ok().filter(|number| (min..=max).contains(number));
    parsed.ok_or_else(|| format!("must be a whole number from {min} to {max}"))
}

pub(super) fn partitions(value: &str) -> Result<i32, String> {
    whole(value, 1, PARTITIONS_MAX).map(|count| count as i32)
}

pub(super) fn replicas(value: &str) -> Result<i16, String> {
    whole(value, 1, i16::MAX as u64).map(|count| count as i16)
}

pub(super) fn record_size(value: &str) -> Result<usize, String> {
    whole(value, 1, RECORD_SIZE_MAX).map(|size| size as usize)
}

pub(super) fn throughput(value: &str) -> Result<f64, String> {
    match value.parse::<f64>() {
        Ok(rate) if rate == -1.0 || (rate > 0.0 && rate.is_finite()) => Ok(rate),
        _ => Err("must be records a second above 0, or -1 for as fast as it goes".to_owned()),
    }
}

/// Parses a round trip, such as `150`, `150ms` or `0.5ms`.
pub(super) fn rtt(value: &str) -> Result<Duration, String> {
    let rtt = units::milliseconds(value)?;
    if rtt <= RTT_MAX { Ok(rtt) } else { Err(format!("must be at most {} ms", RTT_MAX.as_millis())) }
}

/// Parses bytes per second, such as `200mbit` or `1.5gbit`. `unlimited` becomes `None`.
pub(super) fn bandwidth(value: &str) -> Result<Option<u64>, String> {
    match value {
        "unlimited" => Ok(None),
        _ => units::rate(value).map(Some).map_err(|allowed| format!("{allowed}; or unlimited")),
    }
}

fn unknown(typed: &str, name: &str, why: &str) -> String {
    if why.starts_with("has no effect") {
        return format!("{typed} {why}");
    }
    let own = ["partitions", "replication.factor", "record.size", "records", "throughput", "rtt", "bandwidth"];
    let short = SHORT.iter().map(|(short, _)| *short);
    let names = settings().map(|setting| setting.name).chain(TOPIC_CONFIGS.iter().copied()).chain(own).chain(short);
    let meant = did_you_mean(name, names);
    let otherwise = "; use a producer setting by Kafka's name, topic.<config>, partitions, replication-factor, record-size, \
                     records, throughput, rtt or bandwidth";
    format!("{typed} is not a setting that can vary{}", if meant.is_empty() { otherwise } else { &meant })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_spellings_are_one_setting() {
        for (typed, name) in [
            ("max.in.flight", "max.in.flight"),
            ("max-in-flight", "max.in.flight"),
            ("max.in.flight.requests.per.connection", "max.in.flight"),
            ("batch-size", "batch.size"),
            ("linger", "linger.ms"),
            ("record_size", "record-size"),
            ("num-records", "records"),
            ("flush.messages", "topic.flush.messages"),
            ("topic.compression.type", "topic.compression.type"),
            ("compression.type", "compression.type"),
            ("min-insync-replicas", "topic.min.insync.replicas"),
            ("rtt", "rtt"),
        ] {
            let setting = Setting::parse(typed).unwrap_or_else(|error| panic!("{typed}: {error}"));
            assert_eq!(setting.name(), name, "{typed}");
            assert_eq!(Setting::parse(&setting.name()), Ok(setting), "a name in a report can be typed again");
        }
    }

    #[test]
    fn a_misspelt_name_is_refused_with_the_nearest() {
        for (typed, reported) in [
            ("lingr.ms", "did you mean linger.ms?"),
            ("partition", "did you mean partitions?"),
            ("record-sise", "did you mean record.size?"),
            ("colour", "use a producer setting by Kafka's name"),
            ("interceptor.classes", "has no effect on this producer"),
            ("bootstrap.servers", "--against"),
            ("topic.", "topic.flush.messages"),
        ] {
            let refusal = Setting::parse(typed).expect_err(typed);
            assert!(refusal.contains(reported), "{typed}: {refusal}");
        }
    }

    #[test]
    fn values_with_units() {
        assert_eq!(rtt("150"), Ok(Duration::from_millis(150)));
        assert_eq!(rtt("0.5ms"), Ok(Duration::from_micros(500)));
        assert_eq!(bandwidth("200mbit"), Ok(Some(25_000_000)));
        assert_eq!(bandwidth("unlimited"), Ok(None));
        for wrong in ["", "-1", "ms", "1e9", "NaN", "20s"] {
            assert!(rtt(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "200", "0mbit", "-1gbit", "NaNmbit", "mbit"] {
            assert!(bandwidth(wrong).is_err(), "{wrong}");
        }
        assert_eq!((throughput("-1"), throughput("1000.5")), (Ok(-1.0), Ok(1000.5)));
        assert!(["0", "-2", "inf", "x"].iter().all(|wrong| throughput(wrong).is_err()));
    }

    #[test]
    fn passwords_and_keys_are_secret() {
        assert!(is_secret_key("ssl.key.password") && is_secret_key("sasl.jaas.config"));
        assert!(!is_secret_key("acks") && !is_secret_key("ssl.truststore.location"));
    }
}
