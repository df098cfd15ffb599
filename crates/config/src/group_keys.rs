//! The broker keys of consumer groups, and the coordinator's settings that are read from them.

use super::error::{ConfigError, Mistakes};
use super::key::{Allowed, Key, Type};
use super::reader::ConfigReader;
use fullbore_rules::group::consumer::assignor::Assignor;
use fullbore_rules::group::consumer::{self, Migration};
use fullbore_rules::group::{GroupSettings, classic};
use fullbore_wire::batch::Compression;

/// Rows of the table of broker keys: groups.
pub(super) const GROUP_KEYS: &[Key] = &[
    Key::int(
        "group.min.session.timeout.ms",
        Some("6000"),
        0,
        "The shortest session timeout a member of a classic group may request.",
    ),
    Key::int(
        "group.max.session.timeout.ms",
        Some("1800000"),
        0,
        "The longest session timeout a member of a classic group may request.",
    ),
    Key::int(
        "group.initial.rebalance.delay.ms",
        Some("3000"),
        0,
        "Time that an empty classic group waits for more members after the first has joined, in milliseconds. The time begins again with each new member, up to the largest rebalance timeout of the members.",
    ),
    Key::int("group.max.size", Some("2147483647"), 1, "Members of a classic group."),
    Key::new(
        "group.coordinator.rebalance.protocols",
        Type::List,
        Some("classic,consumer"),
        "Kinds of groups that the broker serves. Without `consumer`, the broker answers ConsumerGroupHeartbeat with UNSUPPORTED_VERSION.",
    )
    .allow(Allowed::OneOf(&["classic", "consumer"]))
    .differs("`share` and `streams` are not offered, and `classic` is served even if it is left out"),
    Key::int(
        "group.consumer.session.timeout.ms",
        Some("45000"),
        1,
        "Time without a heartbeat after which a member of the consumer protocol is removed from its group, in milliseconds. A group's consumer.session.timeout.ms overrides this key. Must lie between group.consumer.min.session.timeout.ms and group.consumer.max.session.timeout.ms.",
    ),
    Key::int("group.consumer.min.session.timeout.ms", Some("45000"), 1, "The shortest session timeout of the consumer protocol."),
    Key::int("group.consumer.max.session.timeout.ms", Some("60000"), 1, "The longest session timeout of the consumer protocol."),
    Key::int(
        "group.consumer.heartbeat.interval.ms",
        Some("5000"),
        1,
        "Time between two heartbeats of a member of the consumer protocol, in milliseconds. A group's consumer.heartbeat.interval.ms overrides it. Must lie between group.consumer.min. and .max.heartbeat.interval.ms.",
    ),
    Key::int("group.consumer.min.heartbeat.interval.ms", Some("5000"), 1, "The shortest heartbeat interval of the consumer protocol."),
    Key::int("group.consumer.max.heartbeat.interval.ms", Some("15000"), 1, "The longest heartbeat interval of the consumer protocol."),
    Key::int(
        "fullbore.group.consumer.unsettled.heartbeat.interval.ms",
        Some("1000"),
        0,
        "Time between two heartbeats of a member of the consumer protocol during the 3 seconds after its group's members, subscriptions or topics have changed, in milliseconds. Afterwards the group's usual interval (group.consumer.heartbeat.interval.ms) applies again; for a member that waits for other members' partitions, the time grows to it gradually. The time is at least eight round trips to the client, and at most the group's usual interval. With 0 the usual interval always applies, as in Kafka.",
    )
    .allow(Allowed::Between(0, 60_000))
    .differs("not a Kafka key"),
    Key::int(
        "group.consumer.assignment.interval.ms",
        Some("1000"),
        0,
        "Least time between two assignments of a group of the consumer protocol, in milliseconds, so that members that join together are assigned together. A group's consumer.assignment.interval.ms overrides it. Must lie between group.consumer.min. and .max.assignment.interval.ms.",
    )
    .dynamic(),
    Key::int("group.consumer.min.assignment.interval.ms", Some("0"), 0, "The shortest assignment interval of the consumer protocol."),
    Key::int("group.consumer.max.assignment.interval.ms", Some("15000"), 0, "The longest assignment interval of the consumer protocol."),
    Key::int("group.consumer.max.size", Some("2147483647"), 1, "Members of a group of the consumer protocol."),
    Key::new(
        "group.consumer.assignors",
        Type::List,
        Some("uniform,range"),
        "Assignors that members of the consumer protocol may request. The first serves groups that request none.",
    )
    .allow(Allowed::OneOf(&["uniform", "range"]))
    .differs("Java classes cannot be loaded"),
    Key::new(
        "group.consumer.migration.policy",
        Type::String,
        Some("bidirectional"),
        "Directions in which a group with members may change its protocol. `upgrade`: from classic to consumer when a member of the consumer protocol joins. `downgrade`: back when the last such member has left. `bidirectional`: both. `disabled`: neither.",
    )
    .allow(Allowed::OneOf(&[
        "bidirectional",
        "upgrade",
        "downgrade",
        "disabled",
        "BIDIRECTIONAL",
        "UPGRADE",
        "DOWNGRADE",
        "DISABLED",
    ])),
    Key::int(
        "group.consumer.regex.refresh.interval.ms",
        Some("600000"),
        10_000,
        "Time after which the broker matches consumers' regular expressions with the topics again even if no topic has changed, in milliseconds.",
    )
    .differs("Kafka's tools do not list it"),
    Key::int(
        "offsets.topic.num.partitions",
        Some("50"),
        1,
        "Partitions of __consumer_offsets, over which groups are spread. Read when the topic is created, at the first use of a group.",
    )
    .allow(Allowed::Between(1, 1_000))
    .differs("at most 1000"),
    Key::int(
        "offsets.topic.replication.factor",
        Some("3"),
        1,
        "Replicas of each partition of __consumer_offsets. Read when the topic is created. No group can begin before the cluster has this number of brokers.",
    )
    .allow(Allowed::Between(1, 32_767))
    .differs("1 for a standalone broker, whatever is set"),
    Key::int(
        "offsets.topic.segment.bytes",
        Some("104857600"),
        1,
        "segment.bytes and max.message.bytes of __consumer_offsets. Read when the topic is created.",
    )
    .allow(Allowed::Between(1_048_576, 2_147_483_647))
    .differs("at least 1 MiB"),
    Key::int(
        "offsets.topic.compression.codec",
        Some("0"),
        0,
        "Compression of the records of groups: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    )
    .allow(Allowed::Between(0, 4)),
    Key::int(
        "fullbore.groups.max",
        Some("100000"),
        1,
        "Maximum number of groups, including those that only have offsets; beyond this number, a new group is refused with GROUP_MAX_SIZE_REACHED.",
    )
    .allow(Allowed::Between(1, 10_000_000))
    .differs("not a Kafka key"),
    Key::long(
        "fullbore.groups.bytes.max",
        Some("268435456"),
        1_048_576,
        "Memory for the subscriptions, metadata and assignments of the members of all groups, in bytes. Beyond this limit, new members and large requests of other members are refused.",
    )
    .differs("not a Kafka key"),
];

/// Settings with which the broker creates the topic `__consumer_offsets`, and with which it compresses the records.
#[derive(Debug, Clone, Copy)]
pub struct OffsetsTopicConfig {
    pub partitions: i32,
    /// Number of replicas of each partition in a cluster.
    pub replication_factor: i16,
    pub segment_bytes: i32,
    pub compression: Compression,
}

impl OffsetsTopicConfig {
    fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Self {
        Self {
            partitions: values.number("offsets.topic.num.partitions"),
            replication_factor: values.number("offsets.topic.replication.factor"),
            segment_bytes: values.number("offsets.topic.segment.bytes"),
            compression: match values.number::<i32>("offsets.topic.compression.codec") {
                1 => Compression::Gzip,
                2 => Compression::Snappy,
                3 => Compression::Lz4,
                4 => Compression::Zstd,
                _ => Compression::None,
            },
        }
    }

    /// Returns the topic settings with which `__consumer_offsets` is created. Unlike in Kafka, a batch may be as large
    /// as a segment, because the whole state of a group is one record.
    pub fn configs(&self) -> Vec<(String, Option<String>)> {
        let segment_bytes = self.segment_bytes.to_string();
        [
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("segment.bytes", &segment_bytes),
            ("max.message.bytes", &segment_bytes),
        ]
        .map(|(key, value)| (key.to_owned(), Some(value.to_owned())))
        .into()
    }
}

/// Limits of committed offsets.
#[derive(Debug, Clone)]
pub struct OffsetsConfig {
    /// Maximum size of the metadata of a single offset, in bytes (`offset.metadata.max.bytes`).
    pub metadata_max_bytes: usize,
    /// `offsets.retention.minutes`, converted to milliseconds.
    pub retention_ms: u64,
    /// offsets.retention.check.interval.ms
    pub check_interval_ms: u64,
    /// Maximum number of committed offsets in all groups together (`fullbore.offsets.max`).
    pub offsets_max: usize,
    /// Maximum size of the metadata of all committed offsets together, in bytes
    /// (`fullbore.offsets.metadata.bytes.max`).
    pub all_metadata_max_bytes: usize,
}

impl OffsetsConfig {
    fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Self {
        Self {
            metadata_max_bytes: values.number("offset.metadata.max.bytes"),
            retention_ms: values.number("offsets.retention.minutes"),
            check_interval_ms: values.number("offsets.retention.check.interval.ms"),
            offsets_max: values.number("fullbore.offsets.max"),
            all_metadata_max_bytes: values.number("fullbore.offsets.metadata.bytes.max"),
        }
    }
}

/// Settings of the group coordinator.
#[derive(Debug, Clone)]
pub struct GroupConfig {
    pub offsets_topic: OffsetsTopicConfig,
    pub offsets: OffsetsConfig,
    pub groups_max: usize,
    pub groups_bytes_max: usize,
    pub session_timeout_min_ms: i32,
    pub session_timeout_max_ms: i32,
    pub initial_rebalance_delay_ms: i32,
    pub classic_members_max: usize,
    /// The broker-wide settings of groups with the consumer protocol. A group may override them.
    pub consumer: consumer::ConsumerGroupSettings,
}

impl GroupConfig {
    pub(super) fn read<F: Fn(&str) -> Option<String>>(values: &ConfigReader<F>) -> Result<Self, Mistakes> {
        Ok(Self {
            offsets_topic: OffsetsTopicConfig::read(values),
            offsets: OffsetsConfig::read(values),
            groups_max: values.number("fullbore.groups.max"),
            groups_bytes_max: values.number("fullbore.groups.bytes.max"),
            session_timeout_min_ms: values.number("group.min.session.timeout.ms"),
            session_timeout_max_ms: values.number("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms: values.number("group.initial.rebalance.delay.ms"),
            classic_members_max: values.number("group.max.size"),
            consumer: consumer_settings(values)?,
        })
    }

    /// Returns the settings for the state machine of a group.
    pub fn settings(&self) -> GroupSettings {
        GroupSettings {
            classic: classic::ClassicGroupSettings {
                session_timeout_min_ms: self.session_timeout_min_ms,
                session_timeout_max_ms: self.session_timeout_max_ms,
                initial_rebalance_delay_ms: self.initial_rebalance_delay_ms,
                members_max: self.classic_members_max,
            },
            consumer: self.consumer,
        }
    }
}

fn consumer_settings<F: Fn(&str) -> Option<String>>(
    values: &ConfigReader<F>,
) -> Result<consumer::ConsumerGroupSettings, Mistakes> {
    let text = |name| values.text(name).unwrap_or_default();
    let (protocols, assignors) = ("group.coordinator.rebalance.protocols", "group.consumer.assignors");
    let names = text(assignors);
    let assignors = Assignor::list(&names)
        .ok_or_else(|| ConfigError::of_value(assignors, &names, "must be uniform, range, or both with a comma"));
    let mut mistakes = Mistakes::default();
    let found = (
        mistakes.keep(assignors),
        mistakes.keep(between(values, "group.consumer.session.timeout.ms", SESSION)),
        mistakes.keep(between(values, "group.consumer.heartbeat.interval.ms", HEARTBEAT)),
        mistakes.keep(between(values, "group.consumer.assignment.interval.ms", ASSIGNMENT)),
    );
    let (Some(assignors), Some(session_timeout_ms), Some(heartbeat_interval_ms), Some(assignment_interval_ms)) = found
    else {
        return Err(mistakes);
    };
    let settings = consumer::ConsumerGroupSettings {
        is_enabled: text(protocols).split(',').any(|protocol| protocol.trim() == "consumer"),
        session_timeout_ms,
        heartbeat_interval_ms,
        unsettled_interval_ms: values.number("fullbore.group.consumer.unsettled.heartbeat.interval.ms"),
        assignment_interval_ms,
        members_max: values.number("group.consumer.max.size"),
        assignors,
        regex_refresh_ms: values.number("group.consumer.regex.refresh.interval.ms"),
        migration: match &*text("group.consumer.migration.policy").to_ascii_lowercase() {
            "upgrade" => Migration::Upgrade,
            "downgrade" => Migration::Downgrade,
            "disabled" => Migration::Disabled,
            _ => Migration::Bidirectional,
        },
    };
    if settings.heartbeat_interval_ms >= settings.session_timeout_ms {
        let (name, session) = ("group.consumer.heartbeat.interval.ms", settings.session_timeout_ms);
        let message = format!("must be less than group.consumer.session.timeout.ms={session}");
        return Err(ConfigError::of_value(name, &settings.heartbeat_interval_ms.to_string(), message).into());
    }
    Ok(settings)
}

/// The names of the broker keys that limit a group's setting: the minimum, then the maximum.
type LimitKeys = (&'static str, &'static str);
const SESSION: LimitKeys = ("group.consumer.min.session.timeout.ms", "group.consumer.max.session.timeout.ms");
const HEARTBEAT: LimitKeys = ("group.consumer.min.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms");
const ASSIGNMENT: LimitKeys =
    ("group.consumer.min.assignment.interval.ms", "group.consumer.max.assignment.interval.ms");

fn between<F: Fn(&str) -> Option<String>>(
    values: &ConfigReader<F>,
    name: &'static str,
    (min, max): LimitKeys,
) -> Result<i32, ConfigError> {
    let (value, least, most): (i32, i32, i32) = (values.number(name), values.number(min), values.number(max));
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    let message = format!("must be between {min}={least} and {max}={most}");
    Err(ConfigError::of_value(name, &value.to_string(), message))
}
