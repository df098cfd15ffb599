//! The keys of consumer groups, and what the coordinator needs to know of them.

use super::key::{Allowed, Key};
use super::lookup::Reader;
use fullbore_rules::group::{Settings, classic};

/// A part of the broker's table.
pub(super) const GROUP_KEYS: &[Key] = &[
    Key::int(
        "group.min.session.timeout.ms",
        Some("6000"),
        0,
        "The shortest session timeout a member of a classic group may ask for.",
    ),
    Key::int(
        "group.max.session.timeout.ms",
        Some("1800000"),
        0,
        "The longest session timeout a member of a classic group may ask for.",
    ),
    Key::int(
        "group.initial.rebalance.delay.ms",
        Some("3000"),
        0,
        "How long an empty classic group waits for more members after one has joined; begins anew with each, up to the largest rebalance timeout of theirs.",
    ),
    Key::int("group.max.size", Some("2147483647"), 1, "Members of a classic group."),
    Key::int(
        "fullbore.groups.max",
        Some("100000"),
        1,
        "Groups, whether they have members or only offsets; past it a new group is refused.",
    )
    .allow(Allowed::Between(1, 10_000_000))
    .differs("not a Kafka key"),
];

/// What the coordinator needs to know.
#[derive(Debug, Clone)]
pub struct GroupConfig {
    pub groups_max: usize,
    pub session_timeout_min_ms: i32,
    pub session_timeout_max_ms: i32,
    pub initial_rebalance_delay_ms: i32,
    pub classic_members_max: usize,
}

impl GroupConfig {
    pub(super) fn read<F: Fn(&str) -> Option<String>>(values: &Reader<F>) -> Self {
        Self {
            groups_max: values.number("fullbore.groups.max"),
            session_timeout_min_ms: values.number("group.min.session.timeout.ms"),
            session_timeout_max_ms: values.number("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms: values.number("group.initial.rebalance.delay.ms"),
            classic_members_max: values.number("group.max.size"),
        }
    }

    /// What groups' machines are held to.
    pub fn settings(&self) -> Settings {
        Settings {
            classic: classic::Settings {
                session_timeout_min_ms: self.session_timeout_min_ms,
                session_timeout_max_ms: self.session_timeout_max_ms,
                initial_rebalance_delay_ms: self.initial_rebalance_delay_ms,
                members_max: self.classic_members_max,
            },
        }
    }
}
