//! The kind of a topic, classic or diskless: decided when the topic is created, and never changed.
//!
//! Not here: storage of records; checks of a topic's other settings, which are in
//! `config/resolve.rs`. Invariant: a diskless topic has `diskless.enable` as an override. A changed default of the
//! broker therefore does not change existing topics.

use std::collections::BTreeMap;

use fullbore_wire::ErrorCode;

use super::super::command::{ConfigChange, CreateTopic, Refusal};
use super::super::image::Topic;
use super::super::internal::is_internal;
use fullbore_config::{BrokerConfig, ConfigError, DISKLESS_ENABLE, INKLESS_ENABLE, NEEDS_STORAGE, asked_diskless};

/// Returns the name under which the topic setting `name` is stored: `diskless.enable` for
/// `inkless.enable`, otherwise `name`.
pub fn stored_name(name: &str) -> &str {
    if name == INKLESS_ENABLE { DISKLESS_ENABLE } else { name }
}

/// Checks that a request that sets `diskless.enable` as well as `inkless.enable` gives both the same value.
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

/// Returns the name and the value that a change sets; None if the change sets no value.
pub fn set_by((name, change): &(String, ConfigChange)) -> Option<(&str, &str)> {
    match change {
        ConfigChange::Set(value) => Some((name, value)),
        _ => None,
    }
}

/// Returns true if a new topic with these settings is diskless. Adds `diskless.enable` to the `overrides` of a diskless
/// topic.
pub fn at_creation(
    broker: &BrokerConfig,
    name: &str,
    overrides: &mut BTreeMap<String, String>,
) -> Result<bool, Refusal> {
    let asked = asked_diskless(overrides).map_err(Refusal::of_config)?;
    if !asked.unwrap_or(broker.topics.diskless && !is_internal(name)) {
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

/// Checks that the new `overrides` keep the kind of an existing topic.
pub fn check_stays(topic: &Topic, overrides: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let is_diskless = topic.config.diskless;
    let settled = "that is decided when a topic is created, and cannot be changed";
    let error = match asked_diskless(overrides).map_err(Refusal::of_config)? {
        Some(asked) if asked != is_diskless => {
            let is = if is_diskless { "is diskless" } else { "is not diskless" };
            ConfigError::of_value(DISKLESS_ENABLE, &asked.to_string(), format!("topic {} {is}; {settled}", topic.name))
        }
        None if is_diskless => {
            let message = format!("topic {} is diskless and keeps diskless.enable=true; {settled}", topic.name);
            ConfigError::of_key(DISKLESS_ENABLE, message)
        }
        _ => return Ok(()),
    };
    Err(Refusal::of_config(error))
}

/// Checks that a new diskless topic has one replica of each partition.
pub fn check_replication(wanted: &CreateTopic) -> Result<(), Refusal> {
    match wanted.replication_factor {
        1 | -1 => check_replicas(wanted.assignments.iter().map(|(_, replicas)| replicas)),
        factor => Err(one_replica(&format!("a replication factor of {factor}"))),
    }
}

/// Checks that each partition of a diskless topic is assigned to one broker.
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
