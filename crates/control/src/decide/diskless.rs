//! Decides whether a topic is classic or diskless. A topic's kind is fixed when the topic is created.
//!
//! `config/resolve.rs` checks a topic's other settings. Invariant: each diskless topic has the override
//! `diskless.enable`, so a new default of the broker does not affect existing topics.

use std::collections::BTreeMap;

use fullbore_wire::ErrorCode;

use super::super::command::{ConfigChange, CreateTopic, Refusal};
use super::super::image::Topic;
use super::super::internal::is_internal;
use fullbore_config::{BrokerConfig, ConfigError, DISKLESS_ENABLE, INKLESS_ENABLE, NEEDS_STORAGE, requested_diskless};

/// Returns the name under which a topic setting is stored. `inkless.enable` is stored as `diskless.enable`. All other
/// settings are stored under their own names.
pub fn stored_name(name: &str) -> &str {
    if name == INKLESS_ENABLE { DISKLESS_ENABLE } else { name }
}

/// Checks that a request does not set `diskless.enable` and `inkless.enable` to different values.
pub fn check_agreed<'a>(set: impl Iterator<Item = (&'a str, &'a str)>) -> Result<(), Refusal> {
    let mut first: Option<(&str, &str)> = None;
    for (name, value) in set.filter(|(name, _)| stored_name(name) == DISKLESS_ENABLE) {
        match first {
            Some((other, set)) if !set.trim().eq_ignore_ascii_case(value.trim()) => {
                let message = format!("must be the same as {other}={set} of this request, or left out");
                return Err(Refusal::of_config(ConfigError::of_value(name, value, message)));
            }
            _ => first = Some((name, value)),
        }
    }
    Ok(())
}

/// Returns the setting's name and new value, or `None` if the change does not set a value.
pub fn set_by((name, change): &(String, ConfigChange)) -> Option<(&str, &str)> {
    match change {
        ConfigChange::Set(value) => Some((name, value)),
        _ => None,
    }
}

/// Returns true if a new topic with these settings is diskless. If so, adds `diskless.enable` to `overrides`.
pub fn at_creation(
    broker: &BrokerConfig,
    name: &str,
    overrides: &mut BTreeMap<String, String>,
) -> Result<bool, Refusal> {
    let requested = requested_diskless(overrides).map_err(Refusal::of_config)?;
    if !requested.unwrap_or(broker.topics.diskless && !is_internal(name)) {
        return Ok(false);
    }
    let refused = |why: &str| Err(Refusal::of_config(ConfigError::of_value(DISKLESS_ENABLE, "true", why)));
    if is_internal(name) {
        return refused("an internal topic cannot be diskless");
    }
    if !broker.diskless.is_served {
        return refused(&format!("{NEEDS_STORAGE}; broker {}, which was asked, has none", broker.node.id));
    }
    overrides.insert(DISKLESS_ENABLE.to_owned(), "true".to_owned());
    Ok(true)
}

/// Checks that the new settings do not make an existing classic topic diskless, or a diskless topic classic.
pub fn check_stays(topic: &Topic, overrides: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let is_diskless = topic.config.diskless;
    let settled = "that is decided when a topic is created, and cannot be changed";
    let error = match requested_diskless(overrides).map_err(Refusal::of_config)? {
        Some(requested) if requested != is_diskless => {
            let is = if is_diskless { "is diskless" } else { "is not diskless" };
            ConfigError::of_value(
                DISKLESS_ENABLE,
                &requested.to_string(),
                format!("topic {} {is}; {settled}", topic.name),
            )
        }
        None if is_diskless => {
            let message = format!("topic {} is diskless and keeps diskless.enable=true; {settled}", topic.name);
            ConfigError::of_key(DISKLESS_ENABLE, message)
        }
        _ => return Ok(()),
    };
    Err(Refusal::of_config(error))
}

/// Checks that each partition of a new diskless topic gets exactly one replica.
pub fn check_replication(wanted: &CreateTopic) -> Result<(), Refusal> {
    match wanted.replication_factor {
        1 | -1 => check_replicas(wanted.assignments.iter().map(|(_, replicas)| replicas)),
        factor => Err(one_replica(&format!("a replication factor of {factor}"))),
    }
}

/// Checks that each partition of a diskless topic is assigned to exactly one broker.
pub fn check_replicas<'a>(mut assignments: impl Iterator<Item = &'a Vec<i32>>) -> Result<(), Refusal> {
    match assignments.find(|replicas| replicas.len() != 1) {
        Some(replicas) => Err(one_replica(&format!("an assignment of {} replicas", replicas.len()))),
        None => Ok(()),
    }
}

fn one_replica(found: &str) -> Refusal {
    let message = format!(
        "A diskless topic has a replication factor of 1, or -1 to use the default, since the object store replicates its \
         records; {found} was asked for."
    );
    Refusal::new(ErrorCode::INVALID_REPLICATION_FACTOR, message)
}
