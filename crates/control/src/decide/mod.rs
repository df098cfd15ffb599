//! The rules by which the control plane changes topics, settings and brokers. They are functions of an image.
//!
//! [`Draft`] decides the commands of a transaction one after another. Each command sees the changes of the commands
//! before it. The functions use no I/O, clock or randomness, and the caller passes in new ids. Invariant: every store
//! uses these decisions. The rules and error codes are the same as in Kafka's ReplicationControlManager and
//! ConfigurationControlManager.

mod diskless;
mod draft;
mod features;
mod grow;
mod known;
mod lead;
mod members;
mod only_complete;
mod place;
mod settle;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fullbore_wire::{ErrorCode, Uuid};

use super::change::{Change, Partitions};
use super::command::{
    AlterBrokerConfig, AlterResourceConfig, AlterTopicConfig, BrokerScope, ConfigChange, CreateTopic, Refusal, TopicRef,
};
use super::image::{Image, Inapplicable, Topic};
use super::internal::CLUSTER_METADATA_TOPIC;
use fullbore_config::{BrokerConfig, Key, Resource, TOPIC_KEYS, Type};
use fullbore_config::{broker_keys, check_dynamic, check_dynamic_limits, check_resource, describe_topic, in_force};

pub use draft::{Draft, Drafted, PRODUCER_ID_BLOCK};
use grow::grow;
pub use known::{PARTITIONS_MAX, PARTITIONS_PER_TOPIC_MAX};
use known::{check_requested, check_total, known};
use lead::{alter_isrs, elect};
use members::{Registering, change_broker, register, relaxed, report_log_ends, resign};
pub use only_complete::{OnlyComplete, OnlyCompletePartitions};
pub use place::check_replicas;
use place::{place, registered};
#[cfg(test)]
pub use settle::unsettled;
pub use settle::{ChangeBudget, first_unsettled};
use settle::{settle_all, settle_these};

/// Maximum length of a topic's name, as in Kafka. With the partition number appended, a longer name would not fit into
/// a directory name.
pub const TOPIC_NAME_CHARS_MAX: usize = 249;
/// Maximum size of a setting's value in bytes. DescribeConfigs could not return a longer value, since a response cannot
/// contain longer strings.
const VALUE_BYTES_MAX: usize = i16::MAX as usize;
/// Maximum number of groups and client metrics subscriptions that have settings.
pub const CONFIGURED_RESOURCES_MAX: usize = 10_000;
/// Maximum number of client metrics subscriptions. They are limited because the broker matches each client that
/// requests subscriptions against the patterns of all of them.
pub const SUBSCRIPTIONS_MAX: usize = 100;

/// Returns the change that creates the topic. The topic's settings are checked later, in `Draft::after`.
fn create(image: &Image, broker: &BrokerConfig, wanted: &CreateTopic, topic: Uuid) -> Result<Change, Refusal> {
    check_name(&wanted.name)?;
    if wanted.name == CLUSTER_METADATA_TOPIC {
        let message = format!("Creation of internal topic {} is prohibited.", wanted.name);
        return Err(Refusal::new(ErrorCode::INVALID_REQUEST, message));
    }
    check_new(image, &wanted.name)?;
    let mut overrides = overrides_of(&wanted.configs)?;
    let is_diskless = diskless::at_creation(broker, &wanted.name, &mut overrides)?;
    let partitions = partitions(image, broker, wanted, topic, is_diskless)?;
    Ok(Change::TopicCreated { topic, name: wanted.name.clone(), partitions, overrides })
}

/// Returns the topic that the client requests to delete.
fn delete(image: &Image, broker: &BrokerConfig, target: &TopicRef) -> Result<Arc<Topic>, Refusal> {
    if !broker.topics.delete_enable {
        return Err(Refusal::new(
            ErrorCode::TOPIC_DELETION_DISABLED,
            "Topic deletion is off (delete.topic.enable=false).",
        ));
    }
    match target {
        TopicRef::Name(name) => known(image, name).cloned(),
        TopicRef::Id(id) => {
            let unknown = || Refusal::new(ErrorCode::UNKNOWN_TOPIC_ID, "This server does not host this topic ID.");
            image.topic_by_id(*id).cloned().ok_or_else(unknown)
        }
    }
}

/// Returns the change to the topic's settings. The new settings are checked later, in `Draft::after`.
fn alter(image: &Image, broker: &BrokerConfig, wanted: &AlterTopicConfig) -> Result<Change, Refusal> {
    let topic = known(image, &wanted.name)?;
    let mut overrides = topic.overrides.clone();
    diskless::check_agreed(wanted.changes.iter().filter_map(diskless::set_by))?;
    for (name, change) in &wanted.changes {
        let name = diskless::stored_name(name);
        let list = |overrides: &BTreeMap<String, String>| {
            let entries = describe_topic(broker, image.dynamic(), overrides).map_err(Refusal::of_config)?;
            Ok(entries.into_iter().find(|entry| entry.name == name).and_then(|entry| entry.value))
        };
        apply(&mut overrides, TOPIC_KEYS, list, name, change)?;
    }
    diskless::check_stays(topic, &overrides)?;
    Ok(Change::TopicConfigured { topic: topic.id, overrides })
}

/// Returns the change to the brokers' settings. `Draft::after` checks later that the new settings do not contradict the
/// settings of a topic.
fn alter_broker(image: &Image, broker: &BrokerConfig, wanted: &AlterBrokerConfig) -> Result<Change, Refusal> {
    let before = image.dynamic();
    let (whom, set_before) = match wanted.scope {
        BrokerScope::This => (Some(broker.node.id), &before.broker),
        BrokerScope::Every => (None, &before.cluster),
    };
    let mut values = set_before.clone();
    for (name, change) in &wanted.changes {
        let for_all = wanted.scope == BrokerScope::Every;
        let list = |values: &BTreeMap<String, String>| {
            Ok(values.get(name).cloned().or_else(|| in_force(broker, before, name, for_all)))
        };
        apply(&mut values, broker_keys(), list, name, change)?;
    }
    let overrides = check_dynamic(&values).map_err(Refusal::of_config)?;
    let is_as_before = |name: &String, value: &String| set_before.get(name) == Some(value);
    let changed = overrides.iter().filter(|(name, value)| !is_as_before(name, value));
    let changed = changed.map(|(name, value)| (name.clone(), value.clone())).collect();
    check_dynamic_limits(broker, &changed).map_err(Refusal::of_config)?;
    Ok(Change::BrokerConfigured { broker: whom, overrides })
}

/// Returns the change to the settings of a group or client metrics subscription.
fn alter_resource(image: &Image, broker: &BrokerConfig, wanted: &AlterResourceConfig) -> Result<Change, Refusal> {
    let resource = wanted.resource;
    let before = image.resource(resource, &wanted.name);
    if before.is_none() && image.resource_count() >= CONFIGURED_RESOURCES_MAX {
        let message =
            format!("{CONFIGURED_RESOURCES_MAX} groups and subscriptions have settings already; that is the limit.");
        return Err(Refusal::new(ErrorCode::POLICY_VIOLATION, message));
    }
    let is_subscription = resource == Resource::ClientMetrics;
    if before.is_none() && is_subscription && image.resource_names(resource).count() >= SUBSCRIPTIONS_MAX {
        let message =
            format!("There are {SUBSCRIPTIONS_MAX} subscriptions to clients' metrics already; that is the limit.");
        return Err(Refusal::new(ErrorCode::POLICY_VIOLATION, message));
    }
    let mut overrides = before.map(|before| before.overrides.clone()).unwrap_or_default();
    for (name, change) in &wanted.changes {
        let list = |overrides: &BTreeMap<String, String>| Ok(overrides.get(name).cloned());
        apply(&mut overrides, resource.keys(), list, name, change)?;
    }
    let overrides = check_resource(broker, image.dynamic(), resource, &overrides).map_err(Refusal::of_config)?;
    Ok(Change::ResourceConfigured { resource, name: wanted.name.clone(), overrides })
}

/// Returns the names that a request contains more than once. As in Kafka, the caller refuses all entries with such a
/// name.
fn repeated<T: Ord>(names: impl Iterator<Item = T>) -> BTreeSet<T> {
    let mut seen = BTreeSet::new();
    let mut repeated = BTreeSet::new();
    for name in names {
        if seen.contains(&name) {
            repeated.insert(name);
        } else {
            seen.insert(name);
        }
    }
    repeated
}

/// Checks that a topic's name is legal by Kafka's rules.
pub fn check_name(name: &str) -> Result<(), Refusal> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let why = if name.is_empty() {
        "it is empty".to_owned()
    } else if name == "." || name == ".." {
        format!("it is '{name}'")
    } else if name.chars().count() > TOPIC_NAME_CHARS_MAX {
        format!("it is longer than {TOPIC_NAME_CHARS_MAX} characters")
    } else if !name.chars().all(legal) {
        format!("'{name}' has characters other than ASCII letters and digits, '.', '_' and '-'")
    } else {
        return Ok(());
    };
    Err(Refusal::new(ErrorCode::INVALID_TOPIC_EXCEPTION, format!("The topic name is illegal: {why}.")))
}

/// Checks that no topic has the name of a new topic. The names must also differ in metrics, where `.` and `_` are
/// equal.
fn check_new(image: &Image, name: &str) -> Result<(), Refusal> {
    if image.topic(name).is_some() {
        return Err(Refusal::new(ErrorCode::TOPIC_ALREADY_EXISTS, format!("Topic '{name}' already exists.")));
    }
    match image.topic_colliding_with(name) {
        None => Ok(()),
        Some(other) => {
            let message = format!("Topic '{name}' collides with existing topic: {}", other.name);
            Err(Refusal::new(ErrorCode::INVALID_TOPIC_EXCEPTION, message))
        }
    }
}

/// Returns the number of partitions that the new topic will have.
fn requested_partitions(broker: &BrokerConfig, wanted: &CreateTopic) -> i32 {
    match wanted.num_partitions {
        _ if !wanted.assignments.is_empty() => i32::try_from(wanted.assignments.len()).unwrap_or(i32::MAX),
        -1 => broker.topics.partitions,
        partitions => partitions,
    }
}

/// Returns the new topic's partitions, each with its replicas.
fn partitions(
    image: &Image,
    broker: &BrokerConfig,
    wanted: &CreateTopic,
    topic: Uuid,
    is_diskless: bool,
) -> Result<Partitions, Refusal> {
    if is_diskless {
        diskless::check_replication(wanted)?;
    }
    if !wanted.assignments.is_empty() {
        return assigned(image, wanted);
    }
    let factor = match wanted.replication_factor {
        -1 if is_diskless => 1,
        -1 => broker.topics.replication_factor,
        factor => factor,
    };
    let partitions = requested_partitions(broker, wanted);
    let factor = check_factor(image, factor)?;
    check_partitions(partitions)?;
    check_total(image, usize::try_from(partitions).unwrap_or(0))?;
    place(image, topic, 0..partitions, factor, image.first_leader_epoch(&wanted.name))
}

fn check_factor(image: &Image, factor: i16) -> Result<usize, Refusal> {
    let brokers = image.nodes().len();
    let message = match usize::try_from(factor) {
        Ok(wanted @ 1..) if wanted <= brokers => return Ok(wanted),
        Ok(1..) if brokers == 1 => {
            format!("The replication factor of {factor} cannot be reached: there is only 1 broker.")
        }
        Ok(1..) => format!("The replication factor of {factor} cannot be reached: there are only {brokers} brokers."),
        _ => "Replication factor must be larger than 0, or -1 to use the default value.".to_owned(),
    };
    Err(Refusal::new(ErrorCode::INVALID_REPLICATION_FACTOR, message))
}

fn check_partitions(partitions: i32) -> Result<(), Refusal> {
    let message = match partitions {
        1..=PARTITIONS_PER_TOPIC_MAX => return Ok(()),
        ..1 => "Number of partitions must be larger than 0, or -1 to use the default value.".to_owned(),
        _ => format!("Number of partitions must be at most {PARTITIONS_PER_TOPIC_MAX}."),
    };
    Err(Refusal::new(ErrorCode::INVALID_PARTITIONS, message))
}

/// Returns the new topic's partitions, with the replicas that the request assigns.
fn assigned(image: &Image, wanted: &CreateTopic) -> Result<Partitions, Refusal> {
    let both = |what: &str| {
        let message = format!("A manual partition assignment was specified, but {what} was not set to -1.");
        Err(Refusal::new(ErrorCode::INVALID_REQUEST, message))
    };
    if wanted.replication_factor != -1 {
        return both("replication factor");
    }
    if wanted.num_partitions != -1 {
        return both("number of partitions");
    }
    let partitions = i32::try_from(wanted.assignments.len()).unwrap_or(i32::MAX);
    check_partitions(partitions)?;
    check_assignments(image, &wanted.assignments)?;
    check_total(image, wanted.assignments.len())?;
    let by_number: BTreeMap<i32, &Vec<i32>> = wanted.assignments.iter().map(|(index, of)| (*index, of)).collect();
    let replicas = by_number.into_values().map(Vec::as_slice);
    registered(image, replicas, image.first_leader_epoch(&wanted.name))
}

/// Checks that the request assigns replicas to the partitions 0, 1, 2 and so on, exactly once for each, and only to
/// registered brokers.
fn check_assignments(image: &Image, assignments: &[(i32, Vec<i32>)]) -> Result<(), Refusal> {
    let refuse = |message: String| Err(Refusal::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message));
    if let Some(partition) = repeated(assignments.iter().map(|(partition, _)| *partition)).first() {
        return refuse(format!("Found multiple manual partition assignments for partition {partition}."));
    }
    let numbers: BTreeSet<i32> = assignments.iter().map(|(partition, _)| *partition).collect();
    if !numbers.iter().copied().eq(0..i32::try_from(numbers.len()).unwrap_or(i32::MAX)) {
        return refuse("Partitions must be numbered from 0 without gaps.".to_owned());
    }
    let factor = assignments.first().map_or(0, |(_, replicas)| replicas.len());
    assignments.iter().try_for_each(|(partition, replicas)| {
        check_replicas(image, replicas)?;
        match replicas.len() == factor {
            true => Ok(()),
            false => refuse(format!("Partition {partition} has {} replicas, others have {factor}.", replicas.len())),
        }
    })
}

fn overrides_of(configs: &[(String, Option<String>)]) -> Result<BTreeMap<String, String>, Refusal> {
    let with_value = |(name, value): &(String, Option<String>)| match value {
        Some(value) => Ok((diskless::stored_name(name).to_owned(), value.trim().to_owned())),
        None => {
            Err(Refusal::new(ErrorCode::INVALID_CONFIG, format!("Null value not supported for topic configs: {name}")))
        }
    };
    diskless::check_agreed(configs.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_deref()?))))?;
    configs.iter().map(with_value).collect()
}

/// Applies one change to `values`, the settings of a topic, broker or other resource. For a setting that is a list,
/// `list` must return its current value.
fn apply(
    values: &mut BTreeMap<String, String>,
    keys: impl IntoIterator<Item = &'static Key>,
    list: impl Fn(&BTreeMap<String, String>) -> Result<Option<String>, Refusal>,
    name: &str,
    change: &ConfigChange,
) -> Result<(), Refusal> {
    let is_list = keys.into_iter().any(|key| key.name == name && key.of == Type::List);
    let items = |operation: &str| {
        if !is_list {
            let message = format!("Can't {operation} to key {name} because its type is not LIST.");
            return Err(Refusal::new(ErrorCode::INVALID_CONFIG, message));
        }
        Ok(split_list(&list(values)?.unwrap_or_default()).collect::<Vec<_>>())
    };
    let value = match change {
        ConfigChange::Set(value) => value.trim().to_owned(),
        ConfigChange::DeleteAll => {
            values.clear();
            return Ok(());
        }
        ConfigChange::Delete => {
            values.remove(name);
            return Ok(());
        }
        ConfigChange::Append(more) => {
            let mut items = items("APPEND")?;
            let new: Vec<String> = split_list(more).filter(|item| !items.contains(item)).collect();
            items.extend(new);
            items.join(",")
        }
        ConfigChange::Subtract(less) => {
            let mut items = items("SUBTRACT")?;
            items.retain(|item| !split_list(less).any(|gone| gone == *item));
            items.join(",")
        }
    };
    if value.len() > VALUE_BYTES_MAX {
        let message =
            format!("The value of {name} would have {} bytes; at most {VALUE_BYTES_MAX} are allowed.", value.len());
        return Err(Refusal::new(ErrorCode::INVALID_CONFIG, message));
    }
    values.insert(name.to_owned(), value);
    Ok(())
}

fn split_list(list: &str) -> impl Iterator<Item = String> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned)
}

/// Converts the reason why a change cannot be applied into a refusal for the client.
fn inapplicable(error: Inapplicable) -> Refusal {
    match error {
        Inapplicable::Topic { source, .. } | Inapplicable::Broker(source) | Inapplicable::Resource(source) => {
            Refusal::of_config(source)
        }
        Inapplicable::NoTopic(_) | Inapplicable::Gap { .. } | Inapplicable::Skipped { .. } => {
            Refusal::new(ErrorCode::UNKNOWN_SERVER_ERROR, error.to_string())
        }
    }
}

#[cfg(test)]
mod tests;
