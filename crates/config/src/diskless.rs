//! The broker's settings of diskless topics and of the object store that keeps their records.
//!
//! The settings of a single topic are in `topic`. Invariant: the memory for uncommitted batches can hold at least one
//! object.

use super::diskless_keys::TWINS;
use super::diskless_storage::{DisklessStorage, STORAGE};
use super::error::{ConfigError, Mistakes};
use super::plane::{CONTROL_PLANE, is_database};
use super::properties::Properties;
use super::reader::ConfigReader;

/// Error message for a diskless topic, or for `log.diskless.enable`, on a broker in a cluster without a configured
/// object store.
pub const NEEDS_STORAGE: &str = "needs diskless.storage to be set in a cluster, the same for all its brokers: a directory that they share, or \
                                 s3://bucket/prefix";

/// Settings of diskless topics. The broker reads them only at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisklessConfig {
    /// True if the broker serves diskless topics. A standalone broker always does. A broker in a cluster does if
    /// `diskless.storage` is set.
    pub is_served: bool,
    /// The store of the objects. The broker uses it only if `is_served` is true.
    pub storage: DisklessStorage,
    /// The size in bytes at which an object is closed and uploaded.
    pub object_bytes_max: usize,
    /// How long an object collects batches before it is closed, counted from its first batch; at least 1.
    pub commit_interval_ms: u64,
    /// Number of uploads per second below which an object may be closed before it is full or due. The broker then
    /// closes an object as soon as an upload slot is idle. With 0, no object is closed early.
    pub puts_per_second_max: u32,
    /// How many times the broker tries to upload an object before it refuses the object's batches; at least 1.
    pub upload_attempts_max: u32,
    /// How long the broker waits between two attempts to upload an object.
    pub upload_backoff_ms: u64,
    /// Maximum number of uploads at the same time; at least 1.
    pub upload_slots: usize,
    /// Maximum memory for batches that are not committed yet, in bytes; at least `object_bytes_max`.
    pub memory_bytes: usize,
    /// How many bytes of objects are cached for consumers: half for objects that this broker has uploaded, and half for
    /// fetched ones. The half for fetched objects is enlarged if it is too small for reading ahead.
    pub cache_bytes: usize,
    /// When unused objects are deleted.
    pub cleaner: ObjectCleanerConfig,
    /// How many batches of each producer a partition of a diskless topic remembers, if the topic does not set a number
    /// itself.
    pub batches_to_retain: usize,
    /// A delay added to each PUT, to simulate a distant store in experiments.
    pub put_delay_ms: u64,
    /// A delay added to each GET, to simulate a distant store in experiments.
    pub get_delay_ms: u64,
}

/// When unused objects are deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectCleanerConfig {
    /// How long the cleaner waits between two scans for unused objects; at least 1.
    pub interval_ms: u64,
    /// How long an unused object is kept for readers that have already found it; at least 1.
    pub retention_period_ms: u64,
}

impl DisklessConfig {
    /// Reads the settings of diskless topics. `checked` has the values of the file, without defaults.
    pub(super) fn read<F: Fn(&str) -> Option<String>>(
        values: &ConfigReader<F>,
        checked: &Properties,
    ) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::default();
        for (ours, theirs) in TWINS {
            mistakes.keep(check_twins(checked, ours, theirs));
        }
        let is_served = is_served(values);
        mistakes.keep(check_default(values, is_served));
        let storage = mistakes.keep(DisklessStorage::read(values));
        let memory_bytes = mistakes.keep(memory_bytes(values));
        let (Some(storage), Some(memory_bytes), true) = (storage, memory_bytes, mistakes.is_empty()) else {
            return Err(mistakes);
        };
        Ok(Self {
            is_served,
            storage,
            object_bytes_max: values.number("diskless.produce.buffer.max.bytes"),
            commit_interval_ms: values.number("diskless.produce.commit.interval.ms"),
            puts_per_second_max: values.number("diskless.puts.per.second.max"),
            upload_attempts_max: values.number("diskless.produce.max.upload.attempts"),
            upload_backoff_ms: values.number("diskless.produce.upload.backoff.ms"),
            upload_slots: values.number("diskless.produce.upload.thread.pool.size"),
            memory_bytes,
            cache_bytes: values.number("diskless.consume.cache.max.bytes"),
            cleaner: ObjectCleanerConfig {
                interval_ms: values.number("diskless.file.cleaner.interval.ms"),
                retention_period_ms: values.number("diskless.file.cleaner.retention.period.ms"),
            },
            batches_to_retain: values.number("diskless.producer.state.batches.to.retain"),
            put_delay_ms: values.number("fullbore.diskless.put.delay.ms"),
            get_delay_ms: values.number("fullbore.diskless.get.delay.ms"),
        })
    }
}

/// Checks that the two values are equal if a setting was set under both its name and its name in Inkless.
fn check_twins(checked: &Properties, ours: &str, theirs: &str) -> Result<(), ConfigError> {
    let number = |value: &str| value.parse::<i64>().ok();
    match (checked.get(ours), checked.get(theirs)) {
        (Some(one), Some(other)) if number(one) != number(other) => {
            Err(ConfigError::of_value(theirs, other, format!("must be the same as {ours}={one}, or left out")))
        }
        _ => Ok(()),
    }
}

/// Returns true if this broker can serve diskless topics. A broker in a cluster needs a configured store, because its
/// own directory would hold only a part of each topic.
fn is_served<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> bool {
    let is_in_cluster = values.text(CONTROL_PLANE).is_some_and(|plane| is_database(&plane));
    !is_in_cluster || values.text(STORAGE).is_some()
}

/// Refuses `log.diskless.enable` if this broker cannot serve diskless topics.
fn check_default<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>, is_served: bool) -> Result<(), ConfigError> {
    match values.boolean("log.diskless.enable") && !is_served {
        true => Err(ConfigError::of_value("log.diskless.enable", "true", NEEDS_STORAGE)),
        false => Ok(()),
    }
}

/// Returns the size of the memory for uncommitted batches. Refuses a size that is smaller than an object, because all
/// batches of an object stay in this memory until they are committed.
fn memory_bytes<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Result<usize, ConfigError> {
    let (memory, object): (usize, usize) =
        (values.number("diskless.produce.memory.bytes"), values.number("diskless.produce.buffer.max.bytes"));
    if memory < object {
        let message = format!("must be at least diskless.produce.buffer.max.bytes, which is {object}");
        return Err(ConfigError::of_value("diskless.produce.memory.bytes", &memory.to_string(), message));
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::super::broker::BrokerConfig;
    use super::super::broker_keys::broker_key;
    use super::super::describe::describe_broker;
    use super::super::dynamic::{NOTHING, dynamic_key};
    use super::super::key::Source;
    use super::*;
    use std::path::PathBuf;

    fn parse(text: &str) -> Result<BrokerConfig, String> {
        let typed = Properties::parse(text).expect("properties");
        BrokerConfig::from_properties(&typed).map(|(config, _)| config).map_err(|mistakes| mistakes.to_string())
    }

    fn of(text: &str) -> DisklessConfig {
        parse(text).expect(text).diskless
    }

    fn refusal(text: &str) -> String {
        parse(text).expect_err(text)
    }

    fn in_directory(path: &str) -> DisklessStorage {
        DisklessStorage::Directory(PathBuf::from(path))
    }

    #[test]
    fn defaults_are_a_directory_beside_the_logs_and_inkless_numbers() {
        let expected = DisklessConfig {
            is_served: true,
            storage: in_directory("fullbore-data/diskless"),
            object_bytes_max: 8 << 20,
            commit_interval_ms: 250,
            puts_per_second_max: 10,
            upload_attempts_max: 3,
            upload_backoff_ms: 10,
            upload_slots: 8,
            memory_bytes: 128 << 20,
            cache_bytes: 128 << 20,
            cleaner: ObjectCleanerConfig { interval_ms: 30_000, retention_period_ms: 60_000 },
            batches_to_retain: 128,
            put_delay_ms: 0,
            get_delay_ms: 0,
        };
        assert_eq!(of(""), expected);
        assert!(!parse("").expect("valid").topics.diskless);
    }

    #[test]
    fn every_setting_is_read() {
        let set = "diskless.storage=/objects\ndiskless.produce.buffer.max.bytes=2000000\ndiskless.produce.commit.interval.ms=1\n\
                   diskless.puts.per.second.max=0\ndiskless.produce.max.upload.attempts=7\ndiskless.produce.upload.backoff.ms=0\n\
                   diskless.produce.upload.thread.pool.size=1\ndiskless.produce.memory.bytes=2000000\n\
                   diskless.consume.cache.max.bytes=0\ndiskless.producer.state.batches.to.retain=5\nlog.diskless.enable=TRUE\n\
                   diskless.file.cleaner.interval.ms=10\ndiskless.file.cleaner.retention.period.ms=20\n\
                   fullbore.diskless.put.delay.ms=150\nfullbore.diskless.get.delay.ms=50";
        let expected = DisklessConfig {
            is_served: true,
            storage: in_directory("/objects"),
            object_bytes_max: 2_000_000,
            commit_interval_ms: 1,
            puts_per_second_max: 0,
            upload_attempts_max: 7,
            upload_backoff_ms: 0,
            upload_slots: 1,
            memory_bytes: 2_000_000,
            cache_bytes: 0,
            cleaner: ObjectCleanerConfig { interval_ms: 10, retention_period_ms: 20 },
            batches_to_retain: 5,
            put_delay_ms: 150,
            get_delay_ms: 50,
        };
        let config = parse(set).expect("valid");
        assert_eq!((config.diskless, config.topics.diskless), (expected, true));
    }

    #[test]
    fn inkless_names_are_the_same_settings() {
        let config = of("inkless.produce.buffer.max.bytes=2000000\ninkless.produce.commit.interval.ms=5\n\
                         inkless.produce.max.upload.attempts=4\ninkless.produce.upload.backoff.ms=6\n\
                         inkless.produce.upload.thread.pool.size=2\ninkless.consume.cache.max.bytes=9\n\
                         inkless.file.cleaner.interval.ms=7\ninkless.file.cleaner.retention.period.ms=8");
        let numbers = (config.object_bytes_max, config.commit_interval_ms, config.upload_attempts_max);
        assert_eq!(numbers, (2_000_000, 5, 4));
        assert_eq!((config.upload_backoff_ms, config.upload_slots, config.cache_bytes), (6, 2, 9));
        assert_eq!(config.cleaner, ObjectCleanerConfig { interval_ms: 7, retention_period_ms: 8 });
        for (ours, theirs) in TWINS {
            let (one, other) = (broker_key(ours).expect(ours), broker_key(theirs).expect(theirs));
            assert_eq!((one.allowed, one.of, one.synonyms), (other.allowed, other.of, &[*theirs][..]), "{ours}");
            let value = 1_048_576 >> if ours.ends_with(".bytes") { 0 } else { 16 };
            parse(&format!("{ours}={value}\n{theirs}=0{value}")).expect("the same number");
            let refused = refusal(&format!("{ours}={value}\n{theirs}={}", value + 1));
            let expected = format!("{theirs}={}: must be the same as {ours}={value}, or left out", value + 1);
            assert_eq!(refused, expected);
        }
    }

    #[test]
    fn a_setting_under_its_other_name_is_shown_with_its_source() {
        let entries = describe_broker(&parse("inkless.produce.commit.interval.ms=5").expect("valid"), &NOTHING);
        let entry = entries.iter().find(|entry| entry.name == "diskless.produce.commit.interval.ms").expect("there");
        assert_eq!((entry.value.as_deref(), entry.source), (Some("5"), Source::StaticBroker));
        assert_eq!(entry.synonyms[0].name, "inkless.produce.commit.interval.ms");
    }

    #[test]
    fn numbers_have_limits() {
        for (name, least, most) in [
            ("diskless.produce.buffer.max.bytes", 1 << 20, i64::from(i32::MAX)),
            ("diskless.produce.commit.interval.ms", 1, 60_000),
            ("diskless.puts.per.second.max", 0, 10_000),
            ("diskless.produce.max.upload.attempts", 1, 1000),
            ("diskless.produce.upload.backoff.ms", 0, 60_000),
            ("diskless.produce.upload.thread.pool.size", 1, 1024),
            ("diskless.produce.memory.bytes", 1 << 20, i64::MAX),
            ("diskless.consume.cache.max.bytes", 0, i64::MAX),
            ("diskless.file.cleaner.interval.ms", 1, i64::from(i32::MAX)),
            ("diskless.file.cleaner.retention.period.ms", 1, i64::from(i32::MAX)),
            ("diskless.producer.state.batches.to.retain", 5, 10_000),
        ] {
            let with = |value: i128| {
                let memory = if name.ends_with("buffer.max.bytes") { i64::MAX } else { 8 << 20 };
                parse(&format!(
                    "diskless.produce.memory.bytes={memory}\ndiskless.produce.buffer.max.bytes=1048576\n{name}={value}"
                ))
            };
            assert!(with(least.into()).is_ok() && with(most.into()).is_ok(), "{name}");
            for value in [i128::from(least) - 1, i128::from(most) + 1, -1] {
                let refused = with(value).expect_err(name);
                assert!(refused.starts_with(&format!("{name}={value}: must be ")), "{refused}");
            }
        }
    }

    #[test]
    fn an_object_fits_into_the_memory() {
        assert_eq!(
            refusal("diskless.produce.memory.bytes=8388607"),
            "diskless.produce.memory.bytes=8388607: must be at least diskless.produce.buffer.max.bytes, which is 8388608"
        );
        assert!(refusal("inkless.produce.buffer.max.bytes=134217729").contains("must be at least diskless.produce"));
        assert_eq!(of("diskless.produce.memory.bytes=8388608").memory_bytes, 8 << 20);
    }

    #[test]
    fn a_broker_of_a_cluster_serves_diskless_topics_where_all_have_a_store() {
        let cluster = "control.plane=postgres://ann@db/fullbore\n";
        assert_eq!(
            refusal(&format!("{cluster}log.diskless.enable=true")),
            "log.diskless.enable=true: needs diskless.storage to be set in a cluster, the same for all its brokers: a directory that they \
             share, or s3://bucket/prefix"
        );
        let unset = parse(&format!("{cluster}log.diskless.enable=false")).expect("valid");
        assert!(!unset.topics.diskless && !unset.diskless.is_served);
        for storage in ["/shared", "s3://bucket/p"] {
            let set = parse(&format!("{cluster}diskless.storage={storage}\nlog.diskless.enable=true")).expect("valid");
            assert!(set.topics.diskless && set.diskless.is_served);
        }
        assert!(of("").is_served && of("diskless.storage=/x").is_served && of("control.plane=sqlite").is_served);
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let refused = refusal(
            "diskless.storage=s3://b\ndiskless.produce.memory.bytes=1048576\ndiskless.produce.upload.backoff.ms=1\n\
             inkless.produce.upload.backoff.ms=2",
        );
        assert_eq!(refused.lines().count(), 3, "{refused}");
        let refused = refusal(
            "diskless.produce.memory.bytes=1048576\ncontrol.plane=postgres://ann@db/fullbore\nlog.diskless.enable=true",
        );
        assert_eq!(refused.lines().count(), 2, "{refused}");
    }

    #[test]
    fn no_diskless_setting_changes_while_the_broker_runs() {
        for key in super::super::diskless_keys::DISKLESS_KEYS {
            let refused = dynamic_key(key.name).expect_err(key.name).to_string();
            assert!(refused.contains("cannot be changed while the broker runs"), "{refused}");
        }
    }
}
