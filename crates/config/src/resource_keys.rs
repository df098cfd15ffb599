//! The keys of groups and of client metrics subscriptions, with Kafka's names, types, defaults and ranges.
//!
//! The limits for groups are broker keys (`group.*`). Every key here is read by `resources`, or has no effect and
//! accepts only its default.

use super::key::{Allowed, Key, Type};

const SHARE: &str = "has no effect: share groups are not offered";
const STREAMS: &str = "has no effect: streams groups are not offered";

/// The keys that a group may set.
pub static GROUP_CONFIG_KEYS: &[Key] = &[
    Key::int("consumer.heartbeat.interval.ms", None, 1, "Time between two heartbeats of a member of the consumer protocol, in milliseconds. Within the broker's group.consumer.min. and .max.heartbeat.interval.ms.")
        .or_else(&["group.consumer.heartbeat.interval.ms"]),
    Key::int("consumer.session.timeout.ms", None, 1, "Time without a heartbeat after which a member of the consumer protocol is removed from the group, in milliseconds. Within the broker's group.consumer.min. and .max.session.timeout.ms.")
        .or_else(&["group.consumer.session.timeout.ms"]),
    Key::int("consumer.assignment.interval.ms", None, 0, "Least time between two assignments of a group of the consumer protocol, in milliseconds. Within the broker's group.consumer.min. and .max.assignment.interval.ms.")
        .or_else(&["group.consumer.assignment.interval.ms"]),
    int("share.assignment.interval.ms", "1000", 0, SHARE).or_else(&["group.share.assignment.interval.ms"]),
    text("share.auto.offset.reset", "latest", Allowed::Any, SHARE),
    int("share.delivery.count.limit", "5", 2, SHARE).or_else(&["group.share.delivery.count.limit"]),
    int("share.heartbeat.interval.ms", "5000", 1, SHARE).or_else(&["group.share.heartbeat.interval.ms"]),
    text("share.isolation.level", "read_uncommitted", Allowed::OneOf(&["read_committed", "read_uncommitted"]), SHARE),
    int("share.partition.max.record.locks", "2000", 100, SHARE).or_else(&["group.share.partition.max.record.locks"]),
    int("share.record.lock.duration.ms", "30000", 1000, SHARE).or_else(&["group.share.record.lock.duration.ms"]),
    Key::without_effect("share.renew.acknowledge.enable", Type::Boolean, Some("true"), Allowed::Any, SHARE),
    int("share.session.timeout.ms", "45000", 1, SHARE).or_else(&["group.share.session.timeout.ms"]),
    int("streams.assignment.interval.ms", "1000", 0, STREAMS).or_else(&["group.streams.assignment.interval.ms"]),
    int("streams.heartbeat.interval.ms", "5000", 1, STREAMS).or_else(&["group.streams.heartbeat.interval.ms"]),
    int("streams.initial.rebalance.delay.ms", "3000", 0, STREAMS).or_else(&["group.streams.initial.rebalance.delay.ms"]),
    int("streams.num.standby.replicas", "0", 0, STREAMS).or_else(&["group.streams.num.standby.replicas"]),
    int("streams.session.timeout.ms", "45000", 1, STREAMS).or_else(&["group.streams.session.timeout.ms"]),
];

/// The keys of a client metrics subscription (KIP-714).
pub static CLIENT_METRICS_KEYS: &[Key] = &[
    Key::new(
        "interval.ms",
        Type::Int,
        Some("300000"),
        "Time between two pushes of a client's metrics, in milliseconds.",
    )
    .allow(Allowed::Between(100, 3_600_000)),
    Key::new(
        "match",
        Type::List,
        Some(""),
        "Clients of the subscription: name=pattern pairs, all of which must match; empty for every client. The names are client_instance_id, client_id, client_software_name, client_software_version, client_source_address and client_source_port.",
    ),
    Key::new(
        "metrics",
        Type::List,
        Some(""),
        "Prefixes of the names of the requested metrics; * for all, empty for none.",
    ),
];

const fn int(name: &'static str, default: &'static str, min: i64, why: &'static str) -> Key {
    Key::without_effect(name, Type::Int, Some(default), Allowed::Between(min, i32::MAX as i64), why)
}

const fn text(name: &'static str, default: &'static str, allowed: Allowed, why: &'static str) -> Key {
    Key::without_effect(name, Type::String, Some(default), allowed, why)
}
