//! The configuration of a topic, with all defaults filled in.
//!
//! A `TopicConfig` is made only from values that have passed their checks.

use fullbore_wire::batch::{Compression, Level};
use fullbore_wire::did_you_mean;
use std::collections::BTreeMap;

use super::dynamic::BrokerValues;
use super::error::ConfigError;
use super::key::{Key, Source};
use super::lookup::{ConfigValue, chain_beside, resource_chain};
use super::properties::Properties;
use super::reader::ConfigReader;
use super::topic_keys::{BATCHES_TO_RETAIN, DISKLESS_ENABLE, PRODUCE_VALIDATION, TOPIC_KEYS, topic_key};

/// Maximum of index.interval.bytes. A read may scan as many bytes of a segment on a thread that serves clients.
const INDEX_INTERVAL_MAX: u64 = 1 << 20;

/// The clock that stamps a record. The number is the value of the bit in a batch's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's clock.
    CreateTime,
    /// The broker's clock, at the time of the append.
    LogAppendTime,
}

/// How compaction and retention treat old records (cleanup.policy). If both flags are false, all records are kept
/// forever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanupPolicy {
    /// Deletes old records.
    pub delete: bool,
    /// Keeps the newest record of each key.
    pub compact: bool,
}

impl CleanupPolicy {
    fn parse(list: &str) -> Self {
        let has = |policy| list.split(',').any(|element| element.trim() == policy);
        Self { delete: has("delete"), compact: has("compact") }
    }
}

/// The codec that batches are stored with, and the level that the broker compresses with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredAs {
    pub codec: Compression,
    pub level: Level,
}

/// How thoroughly the broker checks a compressed batch that it stores without changes (fullbore.produce.validation).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProduceValidation {
    /// The broker decompresses the batch and counts its records.
    Records,
    /// The broker trusts the batch's header.
    Header,
}

/// A share from 0 to 1, both included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio(pub f64);

// `Eq` requires that every value equals itself, as NaN does not. The check of a key accepts no NaN.
impl Eq for Ratio {}

/// The settings of a topic that are in force. The names and meanings are Kafka's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicConfig {
    /// True if the records are in an object store. The value is fixed when the topic is created, and does not follow
    /// later changes of the broker's default.
    pub diskless: bool,
    pub segment_bytes: u64,
    pub segment_ms: u64,
    pub segment_index_bytes: u64,
    pub index_interval_bytes: u64,
    /// Maximum size of a batch, including the 12 bytes of its offset and length.
    pub max_message_bytes: usize,
    /// The codec and level to store batches with. With `None`, batches are stored as they were sent.
    pub compression: Option<StoredAs>,
    pub produce_validation: ProduceValidation,
    /// The size of a partition above which its oldest segments are deleted; `None` for no limit.
    pub retention_bytes: Option<u64>,
    /// The age at which records are deleted; `None` for no limit.
    pub retention_ms: Option<i64>,
    pub file_delete_delay_ms: u64,
    pub cleanup: CleanupPolicy,
    /// The share of a log that must be dirty before the log is compacted.
    pub min_cleanable_dirty_ratio: Ratio,
    /// Minimum time that a record stays uncompacted.
    pub min_compaction_lag_ms: i64,
    /// Maximum time that a record stays uncompacted; `i64::MAX` for no limit.
    pub max_compaction_lag_ms: i64,
    /// How long compaction keeps a tombstone, counted from the first cleaning that has read it.
    pub delete_retention_ms: i64,
    /// The number of unflushed records at which a partition's log is flushed; `None` for no limit.
    pub flush_messages: Option<u64>,
    /// How long a record may stay unflushed; `None` for no limit.
    pub flush_ms: Option<u64>,
    pub message_timestamp_type: TimestampType,
    /// How far a timestamp may lie behind the broker's clock; `i64::MAX` for no limit.
    pub message_timestamp_before_max_ms: i64,
    /// How far a timestamp may lie ahead of the broker's clock; `i64::MAX` for no limit.
    pub message_timestamp_after_max_ms: i64,
    pub min_insync_replicas: usize,
    /// True if a replica that lacks acknowledged records may become the leader when no other replica is available.
    pub unclean_leader_election_enable: bool,
    /// How many batches of each producer a partition remembers (KIP-1269).
    pub producer_state_batches_to_retain: usize,
}

impl TopicConfig {
    /// Returns the limits of retention, in bytes and in ms. Both are None if the policy does not delete records.
    pub fn retention(&self) -> (Option<u64>, Option<i64>) {
        if self.cleanup.delete { (self.retention_bytes, self.retention_ms) } else { (None, None) }
    }

    /// Returns the age in ms at which a segment is closed. In a compacted topic, this is at most max.compaction.lag.ms.
    pub fn roll_after_ms(&self) -> u64 {
        match u64::try_from(self.max_compaction_lag_ms) {
            Ok(lag_ms) if self.cleanup.compact => self.segment_ms.min(lag_ms),
            _ => self.segment_ms,
        }
    }

    /// Returns true if a producer's timestamp is close enough to `now_ms`, the time of the broker's clock. -1 stands
    /// for no timestamp, and is always allowed.
    pub fn allows_timestamp(&self, timestamp: i64, now_ms: i64) -> bool {
        timestamp == -1
            || (now_ms.saturating_sub(timestamp) <= self.message_timestamp_before_max_ms
                && timestamp.saturating_sub(now_ms) <= self.message_timestamp_after_max_ms)
    }

    /// Returns the settings of a topic without overrides. `broker` must have passed every check.
    pub(super) fn defaults(broker: &Properties) -> Self {
        Self::read(&reader(BrokerValues::at_start(broker), &BTreeMap::new()))
    }

    pub(super) fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Self {
        let believes_header = values.text(PRODUCE_VALIDATION).is_some_and(|value| value == "header");
        let append_time = values.text("message.timestamp.type").is_some_and(|value| value == "LogAppendTime");
        Self {
            diskless: values.boolean(DISKLESS_ENABLE),
            segment_bytes: values.number("segment.bytes"),
            segment_ms: values.number("segment.ms"),
            segment_index_bytes: values.number("segment.index.bytes"),
            index_interval_bytes: values.number::<u64>("index.interval.bytes").min(INDEX_INTERVAL_MAX),
            max_message_bytes: values.number("max.message.bytes"),
            compression: compression(values),
            produce_validation: if believes_header { ProduceValidation::Header } else { ProduceValidation::Records },
            retention_bytes: values.unless_minus_one("retention.bytes"),
            retention_ms: values.unless_minus_one("retention.ms"),
            file_delete_delay_ms: values.number("file.delete.delay.ms"),
            cleanup: CleanupPolicy::parse(&values.text("cleanup.policy").unwrap_or_default()),
            min_cleanable_dirty_ratio: Ratio(values.double("min.cleanable.dirty.ratio")),
            min_compaction_lag_ms: values.number("min.compaction.lag.ms"),
            max_compaction_lag_ms: values.number("max.compaction.lag.ms"),
            delete_retention_ms: values.number("delete.retention.ms"),
            flush_messages: values.unless_max("flush.messages"),
            flush_ms: values.unless_max("flush.ms"),
            message_timestamp_type: if append_time { TimestampType::LogAppendTime } else { TimestampType::CreateTime },
            message_timestamp_before_max_ms: values.number("message.timestamp.before.max.ms"),
            message_timestamp_after_max_ms: values.number("message.timestamp.after.max.ms"),
            min_insync_replicas: values.number("min.insync.replicas"),
            unclean_leader_election_enable: values.text("unclean.leader.election.enable").as_deref() == Some("true"),
            producer_state_batches_to_retain: values.number(BATCHES_TO_RETAIN),
        }
    }
}

fn compression<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Option<StoredAs> {
    let gzip: Level = values.unless_minus_one("compression.gzip.level");
    let lz4: i32 = values.number("compression.lz4.level");
    let zstd: i32 = values.number("compression.zstd.level");
    let (codec, level) = match values.text("compression.type")?.as_str() {
        "uncompressed" => (Compression::None, None),
        "gzip" => (Compression::Gzip, gzip),
        "snappy" => (Compression::Snappy, None),
        "lz4" => (Compression::Lz4, Some(lz4)),
        "zstd" => (Compression::Zstd, Some(zstd)),
        _ => return None,
    };
    Some(StoredAs { codec, level })
}

/// Checks every override, and returns the values in canonical form.
pub(super) fn check_overrides(overrides: &BTreeMap<String, String>) -> Result<BTreeMap<String, String>, ConfigError> {
    let check = |(name, value): (&String, &String)| {
        let key = topic_key(name).ok_or_else(|| ConfigError::of_key(name, unknown_text(name)))?;
        Ok((name.clone(), key.check_change(value)?))
    };
    overrides.iter().map(check).collect()
}

fn unknown_text(name: &str) -> String {
    match KAFKA_ONLY.iter().find(|(prefix, _)| name.starts_with(prefix)) {
        Some((_, why)) => (*why).to_owned(),
        None => match TOPIC_KEYS.iter().find(|key| key.synonyms.contains(&name)) {
            Some(key) => format!("is a key of the broker; the topic's key is {}", key.name),
            None => {
                let meant = did_you_mean(name, TOPIC_KEYS.iter().map(|key| key.name));
                format!("unknown topic config name{meant}")
            }
        },
    }
}

/// Prefixes of Kafka's topic keys that are refused here.
const KAFKA_ONLY: &[(&str, &str)] = &[
    ("message.format.version", "Kafka 4 removed it; the record format is always the newest"),
    ("message.downconversion.enable", "Kafka 4 removed it; records are never down-converted"),
];

pub(super) fn reader<'a>(
    broker: BrokerValues<'a>,
    checked: &'a BTreeMap<String, String>,
) -> ConfigReader<impl Fn(&str) -> Option<String> + 'a> {
    ConfigReader::new(move |name| {
        let key = topic_key(name)?;
        Some(chain(key, checked, broker).first()?.in_base_unit())
    })
}

/// Returns the values of a topic's key, given the checked overrides of the topic. The first value is in force.
pub(super) fn chain(
    key: &'static Key,
    checked: &BTreeMap<String, String>,
    broker: BrokerValues<'_>,
) -> Vec<ConfigValue> {
    let set = checked.get(key.name).map(|value| (value.as_str(), Source::Topic));
    match key.name == BATCHES_TO_RETAIN && checked.get(DISKLESS_ENABLE).is_some_and(|value| value == "true") {
        true => chain_beside(key, set, &["diskless.producer.state.batches.to.retain"], broker),
        false => resource_chain(key, set, broker),
    }
}

/// Returns true if `overrides` request a diskless topic, and false if they request a topic on disk. Returns `None` if
/// `diskless.enable` is not set, so that the broker's default applies.
pub fn requested_diskless(overrides: &BTreeMap<String, String>) -> Result<Option<bool>, ConfigError> {
    let key = topic_key(DISKLESS_ENABLE).expect("it is in the table");
    let value = overrides.get(DISKLESS_ENABLE).map(|value| key.check_change(value)).transpose()?;
    Ok(value.map(|value| value == "true"))
}

#[cfg(test)]
mod tests {
    use super::super::broker::BrokerConfig;
    use super::super::dynamic::{DynamicConfig, NOTHING};
    use super::super::key::Effect;
    use super::super::live::LiveConfig;
    use super::*;

    fn broker(pairs: &[(&str, &str)]) -> BrokerConfig {
        let mut properties = Properties::default();
        pairs.iter().for_each(|&(key, value)| properties.set(key, value));
        BrokerConfig::from_properties(&properties).expect("valid").0
    }

    fn overrides(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn defaults_are_kafkas() {
        let topic = TopicConfig::resolve(&broker(&[]), &NOTHING, &BTreeMap::new()).expect("valid");
        let expected = TopicConfig {
            diskless: false,
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 3_600_000,
            segment_index_bytes: 10 << 20,
            index_interval_bytes: 4096,
            max_message_bytes: 1_048_588,
            compression: None,
            produce_validation: ProduceValidation::Records,
            retention_bytes: None,
            retention_ms: Some(7 * 24 * 3_600_000),
            file_delete_delay_ms: 60_000,
            cleanup: CleanupPolicy { delete: true, compact: false },
            min_cleanable_dirty_ratio: Ratio(0.5),
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            delete_retention_ms: 86_400_000,
            flush_messages: None,
            flush_ms: None,
            message_timestamp_type: TimestampType::CreateTime,
            message_timestamp_before_max_ms: i64::MAX,
            message_timestamp_after_max_ms: 3_600_000,
            min_insync_replicas: 1,
            unclean_leader_election_enable: false,
            producer_state_batches_to_retain: 5,
        };
        assert_eq!(topic, expected);
    }

    #[test]
    fn every_topic_key_is_read_or_has_one_value() {
        let (broker, nothing) = (Properties::default(), BTreeMap::new());
        let values = reader(BrokerValues::at_start(&broker), &nothing);
        TopicConfig::read(&values);
        for key in TOPIC_KEYS {
            assert!(
                key.effect != Effect::Honoured || key.is_fixed() || values.requested().contains(key.name),
                "{} is stored and ignored",
                key.name
            );
        }
    }

    #[test]
    fn interval_of_the_index_has_a_ceiling() {
        let interval = |value| {
            let topic = TopicConfig::resolve(&broker(&[]), &NOTHING, &overrides(&[("index.interval.bytes", value)]));
            topic.expect("valid").index_interval_bytes
        };
        assert_eq!((interval("100"), interval("2147483647")), (100, INDEX_INTERVAL_MAX));
    }

    #[test]
    fn the_topic_comes_before_the_broker_and_hours_become_milliseconds() {
        let broker = broker(&[("log.retention.hours", "2"), ("log.roll.hours", "3"), ("log.segment.bytes", "2000000")]);
        let topic =
            TopicConfig::resolve(&broker, &NOTHING, &overrides(&[("segment.bytes", "3000000")])).expect("valid");
        assert_eq!(
            (topic.retention_ms, topic.segment_ms, topic.segment_bytes),
            (Some(7_200_000), 10_800_000, 3_000_000)
        );
        let topic = TopicConfig::resolve(&broker, &NOTHING, &overrides(&[("retention.ms", "-1")])).expect("valid");
        assert_eq!(topic.retention_ms, None);
    }

    #[test]
    fn milliseconds_come_before_minutes_before_hours() {
        let all = [("log.retention.hours", "1"), ("log.retention.minutes", "1"), ("log.retention.ms", "1")];
        assert_eq!(broker(&all).topics.defaults.retention_ms, Some(1));
        assert_eq!(broker(&all[..2]).topics.defaults.retention_ms, Some(60_000));
        assert_eq!(broker(&[("log.retention.hours", "-1")]).topics.defaults.retention_ms, None);
    }

    #[test]
    fn the_topic_then_this_broker_then_every_broker_then_the_file() {
        let broker = broker(&[("max.idempotence.batches.to.retain", "20")]);
        let retained = |dynamic: &DynamicConfig, set: &[(&str, &str)]| {
            let topic = TopicConfig::resolve(&broker, dynamic, &overrides(set)).expect("valid");
            topic.producer_state_batches_to_retain
        };
        let key = "max.idempotence.batches.to.retain";
        let cluster = DynamicConfig { cluster: overrides(&[(key, "30")]), ..DynamicConfig::default() };
        let both = DynamicConfig { broker: overrides(&[(key, "40")]), ..cluster.clone() };
        assert_eq!([&NOTHING, &cluster, &both].map(|dynamic| retained(dynamic, &[])), [20, 30, 40]);
        assert_eq!(
            [&NOTHING, &cluster, &both]
                .map(|dynamic| LiveConfig::resolve(&broker, dynamic).expect("valid").batches_to_retain),
            [20, 30, 40]
        );
        assert_eq!(retained(&both, &[("producer.state.batches.to.retain", "5")]), 5);
    }

    #[test]
    fn a_topic_is_diskless_by_its_own_setting_alone() {
        let of = |file: &[(&str, &str)], set: &[(&str, &str)]| {
            TopicConfig::resolve(&broker(file), &NOTHING, &overrides(set)).map(|topic| topic.diskless)
        };
        let by_default = [("log.diskless.enable", "true")];
        assert_eq!(of(&by_default, &[]), Ok(false));
        assert_eq!(of(&by_default, &[("diskless.enable", "false")]), Ok(false));
        assert_eq!(of(&[], &[("diskless.enable", "TRUE")]), Ok(true));
        assert!(!broker(&by_default).topics.defaults.diskless);
        let refused = of(&[], &[("diskless.enable", "yes")]).expect_err("refused").to_string();
        assert_eq!(refused, "diskless.enable=yes: must be true or false");
        let refused = of(&[], &[("log.diskless.enable", "true")]).expect_err("refused").to_string();
        assert_eq!(refused, "log.diskless.enable: is a key of the broker; the topic's key is diskless.enable");
    }

    #[test]
    fn a_diskless_topic_retains_the_batches_of_the_brokers_diskless_setting() {
        let file = [("diskless.producer.state.batches.to.retain", "70"), ("max.idempotence.batches.to.retain", "20")];
        let dynamic = DynamicConfig {
            cluster: overrides(&[("max.idempotence.batches.to.retain", "30")]),
            ..DynamicConfig::default()
        };
        let retained = |file: &[(&str, &str)], set: &[(&str, &str)]| {
            let topic = TopicConfig::resolve(&broker(file), &dynamic, &overrides(set)).expect("valid");
            topic.producer_state_batches_to_retain
        };
        let (diskless, own) = (("diskless.enable", "true"), ("producer.state.batches.to.retain", "5"));
        assert_eq!([retained(&file, &[diskless]), retained(&[], &[diskless])], [70, 128]);
        assert_eq!([retained(&file, &[diskless, own]), retained(&file, &[])], [5, 30]);
    }

    #[test]
    fn a_diskless_topic_is_not_compacted() {
        let diskless = ("diskless.enable", "true");
        let of = |file: &[(&str, &str)], set: &[(&str, &str)]| {
            TopicConfig::resolve(&broker(file), &NOTHING, &overrides(set)).expect("valid")
        };
        let refused = |config: &TopicConfig| config.contradiction().expect("refused").to_string();
        let expected =
            "compaction of diskless topics is not supported yet, and this topic is diskless (diskless.enable=true)";
        let own = of(&[], &[diskless, ("cleanup.policy", "compact")]);
        assert_eq!(refused(&own), format!("cleanup.policy=compact: {expected}"));
        let both = of(&[("log.cleanup.policy", "delete,compact")], &[diskless]);
        assert_eq!(refused(&both), format!("cleanup.policy=compact,delete: {expected}"));
        let both = both.without_contradiction();
        assert_eq!((both.cleanup.delete, both.cleanup.compact), (true, false));
        let classic = of(&[], &[("cleanup.policy", "compact"), ("diskless.enable", "false")]);
        assert!(classic.contradiction().is_none() && classic.without_contradiction().cleanup.compact);
    }

    #[test]
    fn a_topic_deletes_or_compacts_or_both_or_neither() {
        let policy = |value: &str| {
            let set = overrides(&[("cleanup.policy", value), ("max.compaction.lag.ms", "7000")]);
            let topic = TopicConfig::resolve(&broker(&[]), &NOTHING, &set).expect("valid");
            let CleanupPolicy { delete, compact } = topic.cleanup;
            (delete, compact, topic.retention().1.is_some(), topic.roll_after_ms())
        };
        let week_ms = 7 * 24 * 3_600_000;
        assert_eq!(policy("delete"), (true, false, true, week_ms));
        assert_eq!(policy("compact"), (false, true, false, 7000));
        assert_eq!(policy("compact, delete"), (true, true, true, 7000));
        assert_eq!(policy(""), (false, false, false, week_ms));
    }

    #[test]
    fn a_codec_has_its_own_level_or_the_brokers_or_kafkas_default() {
        let broker = broker(&[("compression.type", "gzip"), ("compression.zstd.level", "-7")]);
        let stored = |set: &[(&str, &str)]| {
            let topic = TopicConfig::resolve(&broker, &NOTHING, &overrides(set)).expect("valid");
            topic.compression.map(|StoredAs { codec, level }| (codec, level))
        };
        let of = |codec| stored(&[("compression.type", codec)]);
        assert_eq!(stored(&[]), Some((Compression::Gzip, None)));
        assert_eq!(stored(&[("compression.gzip.level", "9")]), Some((Compression::Gzip, Some(9))));
        assert_eq!(of("producer"), None);
        assert_eq!(of("uncompressed"), Some((Compression::None, None)));
        assert_eq!(of("snappy"), Some((Compression::Snappy, None)));
        assert_eq!(of("lz4"), Some((Compression::Lz4, Some(9))));
        assert_eq!(of("zstd"), Some((Compression::Zstd, Some(-7))));
        let both = [("compression.type", "zstd"), ("compression.zstd.level", "22"), ("compression.lz4.level", "1")];
        assert_eq!(stored(&both), Some((Compression::Zstd, Some(22))));
    }

    #[test]
    fn a_topic_believes_headers_by_its_own_setting_or_the_brokers() {
        let believing = [("fullbore.produce.validation", "header")];
        let validation = |file: &[(&str, &str)], set: &[(&str, &str)]| {
            let topic = TopicConfig::resolve(&broker(file), &NOTHING, &overrides(set)).expect("valid");
            topic.produce_validation
        };
        assert_eq!(validation(&[], &[]), ProduceValidation::Records);
        assert_eq!(validation(&believing, &[]), ProduceValidation::Header);
        assert_eq!(validation(&[], &believing), ProduceValidation::Header);
        let careful = [("fullbore.produce.validation", "records")];
        assert_eq!(validation(&believing, &careful), ProduceValidation::Records);
    }

    #[test]
    fn min_compaction_lag_above_the_max_is_refused() {
        let lags = overrides(&[("min.compaction.lag.ms", "8"), ("max.compaction.lag.ms", "7")]);
        let config = TopicConfig::resolve(&broker(&[]), &NOTHING, &lags).expect("valid");
        let refusal = config.contradiction().expect("refused").to_string();
        assert_eq!(refusal, "min.compaction.lag.ms=8: must not be more than max.compaction.lag.ms, which is 7");
        assert_eq!(config.without_contradiction().min_compaction_lag_ms, 7);
    }

    #[test]
    fn refusals_name_key_value_and_what_is_allowed() {
        let refusal = |key: &str, value: &str| {
            TopicConfig::resolve(&broker(&[]), &NOTHING, &overrides(&[(key, value)])).expect_err("refused").to_string()
        };
        assert_eq!(refusal("segment.bytes", "12"), "segment.bytes=12: must be between 1048576 and 2147483647");
        assert_eq!(
            refusal("cleanup.policy", "compress"),
            "cleanup.policy=compress: must be a list of compact and delete, or empty"
        );
        for value in ["4", "0", "-1", "10001", "many", ""] {
            assert_eq!(
                refusal("producer.state.batches.to.retain", value),
                format!("producer.state.batches.to.retain={value}: must be between 5 and 10000")
            );
        }
        assert_eq!(
            refusal("segment.byte", "1"),
            "segment.byte: unknown topic config name; did you mean segment.bytes?"
        );
        assert_eq!(refusal("no.such.key", "1"), "no.such.key: unknown topic config name");
        assert_eq!(
            refusal("log.segment.bytes", "1"),
            "log.segment.bytes: is a key of the broker; the topic's key is segment.bytes"
        );
        assert_eq!(
            refusal("min.cleanable.dirty.ratio", "1.5"),
            "min.cleanable.dirty.ratio=1.5: must be a number from 0 to 1"
        );
        assert_eq!(refusal("retention.ms", "soon"), "retention.ms=soon: must be a number of at least -1");
        for (key, value) in
            [("compression.type", "none"), ("segment.jitter.ms", "1"), ("preallocate", "true"), ("flush.messages", "0")]
        {
            assert!(refusal(key, value).starts_with(&format!("{key}={value}: must be ")));
        }
    }
}
