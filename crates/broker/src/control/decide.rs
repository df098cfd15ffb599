//! What may happen to topics: every rule of the control plane, as functions of what is known.
//!
//! No I/O, clock or randomness; ids come in as arguments. What is accepted here the store can write.
//! Rules and codes are those of Kafka's ReplicationControlManager and ConfigurationControlManager.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fullbore_wire::{ErrorCode, Uuid};

use super::command::{AlterTopicConfig, ConfigChange, CreateTopic, Refusal, TopicRef};
use super::image::{Image, Topic};
use crate::config::{BrokerConfig, ConfigError, TOPIC_KEYS, TopicConfig, Type};

/// Kafka's bound on a topic's name; longer ones do not fit a folder's name with the partition.
pub const TOPIC_NAME_CHARS_MAX: usize = 249;
/// Partitions of one topic.
pub const PARTITIONS_PER_TOPIC_MAX: i32 = 100_000;
/// Partitions of all topics of this broker: each has files and memory.
pub const PARTITIONS_MAX: usize = 200_000;

/// The topic that `wanted` would become, with this id.
pub fn create(
    image: &Image,
    broker: &BrokerConfig,
    wanted: &CreateTopic,
    id: Uuid,
) -> Result<Topic, Refusal> {
    check_name(&wanted.name)?;
    check_new(image, &wanted.name)?;
    let (partitions, replication_factor) = shape(broker, wanted)?;
    let total = image.partition_count() + usize::try_from(partitions).unwrap_or(usize::MAX);
    if total > PARTITIONS_MAX {
        let message =
            format!("The broker would have {total} partitions; it may have {PARTITIONS_MAX}.");
        return Err(Refusal::new(ErrorCode::POLICY_VIOLATION, message));
    }
    let overrides = overrides_of(&wanted.configs)?;
    let config = TopicConfig::resolve(broker, &overrides).map_err(invalid_config)?;
    Ok(Topic {
        name: wanted.name.clone(),
        id,
        partitions,
        replication_factor,
        overrides,
        config,
    })
}

/// The topic that `target` names, which may be deleted.
pub fn delete(
    image: &Image,
    broker: &BrokerConfig,
    target: &TopicRef,
) -> Result<Arc<Topic>, Refusal> {
    if !broker.delete_topic_enable {
        return Err(Refusal::new(
            ErrorCode::TOPIC_DELETION_DISABLED,
            "Topic deletion is off (delete.topic.enable=false).",
        ));
    }
    match target {
        TopicRef::Name(name) => known(image, name).cloned(),
        TopicRef::Id(id) => {
            let unknown = || {
                Refusal::new(
                    ErrorCode::UNKNOWN_TOPIC_ID,
                    "This server does not host this topic ID.",
                )
            };
            image.topic_by_id(*id).cloned().ok_or_else(unknown)
        }
    }
}

/// The topic with its configuration changed.
pub fn alter(
    image: &Image,
    broker: &BrokerConfig,
    wanted: &AlterTopicConfig,
) -> Result<Topic, Refusal> {
    let mut topic = Topic::clone(known(image, &wanted.name)?);
    for (name, change) in &wanted.changes {
        apply(&mut topic.overrides, broker, name, change)?;
    }
    topic.config = TopicConfig::resolve(broker, &topic.overrides).map_err(invalid_config)?;
    Ok(topic)
}

/// Which of `names` are there more than once: Kafka refuses all of them.
pub fn repeated<T: Ord>(names: impl Iterator<Item = T>) -> BTreeSet<T> {
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

/// Kafka's rule for a topic's name.
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
    Err(Refusal::new(
        ErrorCode::INVALID_TOPIC_EXCEPTION,
        format!("The topic name is illegal: {why}."),
    ))
}

/// Names that differ only in `.` and `_` would be one name in metrics.
fn check_new(image: &Image, name: &str) -> Result<(), Refusal> {
    if image.topic(name).is_some() {
        return Err(Refusal::new(
            ErrorCode::TOPIC_ALREADY_EXISTS,
            format!("Topic '{name}' already exists."),
        ));
    }
    if !name.contains(['.', '_']) {
        return Ok(());
    }
    match image.topics().find(|topic| collide(&topic.name, name)) {
        None => Ok(()),
        Some(other) => {
            let message = format!(
                "Topic '{name}' collides with existing topic: {}",
                other.name
            );
            Err(Refusal::new(ErrorCode::INVALID_TOPIC_EXCEPTION, message))
        }
    }
}

fn collide(one: &str, other: &str) -> bool {
    let folded = |byte: u8| if byte == b'.' { b'_' } else { byte };
    one.len() == other.len() && one.bytes().map(folded).eq(other.bytes().map(folded))
}

/// Partitions and replication factor.
fn shape(broker: &BrokerConfig, wanted: &CreateTopic) -> Result<(i32, i16), Refusal> {
    if !wanted.assignments.is_empty() {
        return assigned_shape(broker, wanted);
    }
    let factor = match wanted.replication_factor {
        -1 => broker.default_replication_factor,
        factor => factor,
    };
    let partitions = match wanted.num_partitions {
        -1 => broker.num_partitions,
        partitions => partitions,
    };
    check_factor(factor)?;
    check_partitions(partitions)?;
    Ok((partitions, factor))
}

fn check_factor(factor: i16) -> Result<(), Refusal> {
    let message = match factor {
        1 => return Ok(()),
        ..1 => {
            "Replication factor must be larger than 0, or -1 to use the default value.".to_owned()
        }
        _ => {
            format!("The replication factor of {factor} cannot be reached: there is only 1 broker.")
        }
    };
    Err(Refusal::new(ErrorCode::INVALID_REPLICATION_FACTOR, message))
}

fn check_partitions(partitions: i32) -> Result<(), Refusal> {
    let message = match partitions {
        1..=PARTITIONS_PER_TOPIC_MAX => return Ok(()),
        ..1 => {
            "Number of partitions must be larger than 0, or -1 to use the default value.".to_owned()
        }
        _ => format!("Number of partitions must be at most {PARTITIONS_PER_TOPIC_MAX}."),
    };
    Err(Refusal::new(ErrorCode::INVALID_PARTITIONS, message))
}

fn assigned_shape(broker: &BrokerConfig, wanted: &CreateTopic) -> Result<(i32, i16), Refusal> {
    let both = |what: &str| {
        let message =
            format!("A manual partition assignment was specified, but {what} was not set to -1.");
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
    check_assignments(broker.node_id, &wanted.assignments)?;
    Ok((partitions, 1))
}

/// Partitions 0, 1, 2 ... once each, all on this broker, the only one there is.
fn check_assignments(node_id: i32, assignments: &[(i32, Vec<i32>)]) -> Result<(), Refusal> {
    let refuse =
        |message: String| Err(Refusal::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message));
    if let Some(partition) = repeated(assignments.iter().map(|(partition, _)| *partition)).first() {
        return refuse(format!(
            "Found multiple manual partition assignments for partition {partition}."
        ));
    }
    let numbers: BTreeSet<i32> = assignments
        .iter()
        .map(|(partition, _)| *partition)
        .collect();
    if !numbers
        .iter()
        .copied()
        .eq(0..i32::try_from(numbers.len()).unwrap_or(i32::MAX))
    {
        return refuse("Partitions must be numbered from 0 without gaps.".to_owned());
    }
    for (partition, replicas) in assignments {
        if let Some(other) = replicas.iter().find(|&&replica| replica != node_id) {
            return refuse(format!(
                "The manual partition assignment includes broker {other}, but no such broker is registered."
            ));
        }
        match replicas.len() {
            1 => (),
            0 => return refuse(format!("Partition {partition} has an empty replica list.")),
            _ => {
                return refuse(format!(
                    "Partition {partition} names broker {node_id} more than once."
                ));
            }
        }
    }
    Ok(())
}

fn overrides_of(configs: &[(String, Option<String>)]) -> Result<BTreeMap<String, String>, Refusal> {
    let with_value = |(name, value): &(String, Option<String>)| match value {
        Some(value) => Ok((name.clone(), value.trim().to_owned())),
        None => Err(Refusal::new(
            ErrorCode::INVALID_CONFIG,
            format!("Null value not supported for topic configs: {name}"),
        )),
    };
    configs.iter().map(with_value).collect()
}

fn apply(
    overrides: &mut BTreeMap<String, String>,
    broker: &BrokerConfig,
    name: &str,
    change: &ConfigChange,
) -> Result<(), Refusal> {
    match change {
        ConfigChange::Set(value) => {
            overrides.insert(name.to_owned(), value.trim().to_owned());
        }
        ConfigChange::Delete => {
            overrides.remove(name);
        }
        ConfigChange::Append(more) => {
            let mut items = list_in_force(overrides, broker, name, "APPEND")?;
            let new: Vec<String> = split_list(more)
                .filter(|item| !items.contains(item))
                .collect();
            items.extend(new);
            overrides.insert(name.to_owned(), items.join(","));
        }
        ConfigChange::Subtract(less) => {
            let mut items = list_in_force(overrides, broker, name, "SUBTRACT")?;
            items.retain(|item| !split_list(less).any(|gone| gone == *item));
            overrides.insert(name.to_owned(), items.join(","));
        }
    }
    Ok(())
}

fn list_in_force(
    overrides: &BTreeMap<String, String>,
    broker: &BrokerConfig,
    name: &str,
    operation: &str,
) -> Result<Vec<String>, Refusal> {
    if !TOPIC_KEYS
        .iter()
        .any(|key| key.name == name && key.of == Type::List)
    {
        let message = format!("Can't {operation} to key {name} because its type is not LIST.");
        return Err(Refusal::new(ErrorCode::INVALID_CONFIG, message));
    }
    let entries = crate::config::describe_topic(broker, overrides).map_err(invalid_config)?;
    let value = entries
        .into_iter()
        .find(|entry| entry.name == name)
        .and_then(|entry| entry.value);
    Ok(split_list(&value.unwrap_or_default()).collect())
}

fn split_list(list: &str) -> impl Iterator<Item = String> {
    list.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(str::to_owned)
}

fn known<'a>(image: &'a Image, name: &str) -> Result<&'a Arc<Topic>, Refusal> {
    let unknown = || {
        Refusal::new(
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            format!("The topic '{name}' does not exist."),
        )
    };
    image.topic(name).ok_or_else(unknown)
}

fn invalid_config(error: ConfigError) -> Refusal {
    Refusal::new(ErrorCode::INVALID_CONFIG, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Properties;
    use proptest::prelude::*;

    fn broker(text: &str) -> BrokerConfig {
        BrokerConfig::from_properties(&Properties::parse(text).expect("valid"))
            .expect("valid")
            .0
    }

    fn wanted(name: &str) -> CreateTopic {
        CreateTopic {
            name: name.into(),
            num_partitions: -1,
            replication_factor: -1,
            ..CreateTopic::default()
        }
    }

    fn image_of(topics: &[(&str, i32)]) -> Image {
        let mut image = Image::default();
        for (index, (name, partitions)) in topics.iter().enumerate() {
            let wanted = CreateTopic {
                num_partitions: *partitions,
                ..wanted(name)
            };
            let id = Uuid((index as u128 + 1).to_be_bytes());
            image.put(Arc::new(
                create(&image, &broker(""), &wanted, id).expect("valid"),
            ));
        }
        image
    }

    fn refused(image: &Image, wanted: &CreateTopic) -> (ErrorCode, String) {
        let refusal = create(image, &broker(""), wanted, Uuid::ZERO).expect_err("refused");
        (refusal.code, refusal.message)
    }

    #[test]
    fn defaults_come_from_the_broker() {
        let topic = create(
            &Image::default(),
            &broker("num.partitions=7"),
            &wanted("t"),
            Uuid::ZERO,
        )
        .expect("valid");
        assert_eq!((topic.partitions, topic.replication_factor), (7, 1));
    }

    #[test]
    fn existing_and_colliding_names() {
        let image = image_of(&[("a.b", 1), ("plain", 1)]);
        assert_eq!(
            refused(&image, &wanted("plain")).0,
            ErrorCode::TOPIC_ALREADY_EXISTS
        );
        let (code, message) = refused(&image, &wanted("a_b"));
        assert_eq!(
            (code, message.as_str()),
            (
                ErrorCode::INVALID_TOPIC_EXCEPTION,
                "Topic 'a_b' collides with existing topic: a.b"
            )
        );
        create(&image, &broker(""), &wanted("a-b"), Uuid::ZERO).expect("'-' does not collide");
    }

    #[test]
    fn partitions_and_replication_factor() {
        let image = Image::default();
        let with = |num_partitions, replication_factor| {
            refused(
                &image,
                &CreateTopic {
                    num_partitions,
                    replication_factor,
                    ..wanted("t")
                },
            )
            .0
        };
        for partitions in [0, -2, i32::MIN, PARTITIONS_PER_TOPIC_MAX + 1, i32::MAX] {
            assert_eq!(
                with(partitions, -1),
                ErrorCode::INVALID_PARTITIONS,
                "{partitions}"
            );
        }
        for factor in [0, -2, 2, 3, i16::MAX] {
            assert_eq!(
                with(1, factor),
                ErrorCode::INVALID_REPLICATION_FACTOR,
                "{factor}"
            );
        }
    }

    #[test]
    fn the_broker_has_a_limit_of_partitions() {
        let image = image_of(&[("a", 100_000), ("b", 99_999)]);
        assert_eq!(
            refused(
                &image,
                &CreateTopic {
                    num_partitions: 2,
                    ..wanted("c")
                }
            )
            .0,
            ErrorCode::POLICY_VIOLATION
        );
        create(&image, &broker(""), &wanted("c"), Uuid::ZERO).expect("exactly the limit");
    }

    #[test]
    fn manual_assignments() {
        let image = Image::default();
        let assigned = |assignments: &[(i32, &[i32])]| CreateTopic {
            assignments: assignments
                .iter()
                .map(|(partition, replicas)| (*partition, replicas.to_vec()))
                .collect(),
            ..wanted("t")
        };
        let topic = create(
            &image,
            &broker("node.id=4"),
            &assigned(&[(1, &[4]), (0, &[4])]),
            Uuid::ZERO,
        )
        .expect("valid");
        assert_eq!((topic.partitions, topic.replication_factor), (2, 1));
        for wrong in [
            &[(0, &[2][..])][..],
            &[(0, &[1, 1])],
            &[(0, &[])],
            &[(1, &[1])],
            &[(0, &[1]), (0, &[1])],
            &[(-1, &[1])],
        ] {
            assert_eq!(
                refused(&image, &assigned(wrong)).0,
                ErrorCode::INVALID_REPLICA_ASSIGNMENT,
                "{wrong:?}"
            );
        }
        let both = CreateTopic {
            num_partitions: 1,
            ..assigned(&[(0, &[1])])
        };
        assert_eq!(refused(&image, &both).0, ErrorCode::INVALID_REQUEST);
        let both = CreateTopic {
            replication_factor: 1,
            ..assigned(&[(0, &[1])])
        };
        assert_eq!(refused(&image, &both).0, ErrorCode::INVALID_REQUEST);
    }

    #[test]
    fn configs() {
        let image = Image::default();
        let with = |name: &str, value: Option<&str>| CreateTopic {
            configs: vec![(name.to_owned(), value.map(str::to_owned))],
            ..wanted("t")
        };
        let topic = create(
            &image,
            &broker(""),
            &with("retention.ms", Some("5")),
            Uuid::ZERO,
        )
        .expect("valid");
        assert_eq!(
            (topic.config.retention_ms, topic.overrides.len()),
            (Some(5), 1)
        );
        for (name, value) in [
            ("retention.ms", Some("x")),
            ("no.such", Some("1")),
            ("retention.ms", None),
            ("cleanup.policy", Some("compact")),
        ] {
            let (code, message) = refused(&image, &with(name, value));
            assert_eq!(code, ErrorCode::INVALID_CONFIG);
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn deletion_names_a_topic_that_is_there() {
        let image = image_of(&[("a", 1)]);
        let code = |target: TopicRef, text: &str| {
            delete(&image, &broker(text), &target).map_err(|refusal| refusal.code)
        };
        let id = image.topic("a").expect("there").id;
        assert!(code(TopicRef::Name("a".into()), "").is_ok() && code(TopicRef::Id(id), "").is_ok());
        assert_eq!(
            code(TopicRef::Name("b".into()), ""),
            Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
        );
        assert_eq!(
            code(TopicRef::Id(Uuid::ZERO), ""),
            Err(ErrorCode::UNKNOWN_TOPIC_ID)
        );
        assert_eq!(
            code(TopicRef::Id(id), "delete.topic.enable=false"),
            Err(ErrorCode::TOPIC_DELETION_DISABLED)
        );
    }

    #[test]
    fn changes_of_configuration() {
        let image = image_of(&[("a", 1)]);
        let change = |changes: &[(&str, ConfigChange)]| {
            let changes = changes
                .iter()
                .map(|(name, change)| ((*name).to_owned(), change.clone()))
                .collect();
            alter(
                &image,
                &broker(""),
                &AlterTopicConfig {
                    name: "a".into(),
                    changes,
                },
            )
        };
        let set = ConfigChange::Set("7".into());
        let topic = change(&[("retention.ms", set.clone())]).expect("valid");
        assert_eq!(topic.config.retention_ms, Some(7));
        let topic = change(&[
            ("retention.ms", set.clone()),
            ("retention.ms", ConfigChange::Delete),
        ])
        .expect("valid");
        assert!(topic.overrides.is_empty());
        let topic = change(&[("cleanup.policy", ConfigChange::Append("delete".into()))])
            .expect("already in the list");
        assert_eq!(topic.overrides["cleanup.policy"], "delete");
        for refused in [
            ("retention.ms", ConfigChange::Append("1".into())),
            ("cleanup.policy", ConfigChange::Append("compact".into())),
            ("cleanup.policy", ConfigChange::Subtract("delete".into())),
            ("segment.bytes", set),
        ] {
            assert_eq!(
                change(std::slice::from_ref(&refused))
                    .expect_err("refused")
                    .code,
                ErrorCode::INVALID_CONFIG,
                "{refused:?}"
            );
        }
        let unknown = alter(
            &image,
            &broker(""),
            &AlterTopicConfig {
                name: "b".into(),
                changes: vec![],
            },
        );
        assert_eq!(
            unknown.expect_err("unknown").code,
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        );
    }

    proptest! {
        #[test]
        fn names_of_legal_characters_are_legal(name in "[a-zA-Z0-9._-]{1,249}") {
            let dots = name == "." || name == "..";
            prop_assert_eq!(check_name(&name).is_ok(), !dots);
        }

        #[test]
        fn one_other_character_makes_a_name_illegal(before in "[a-z.]{0,9}", other in "[^a-zA-Z0-9._-]", after in "[a-z.]{0,9}") {
            let refusal = check_name(&format!("{before}{other}{after}")).expect_err("illegal");
            prop_assert_eq!(refusal.code, ErrorCode::INVALID_TOPIC_EXCEPTION);
        }

        #[test]
        fn too_long_names_are_illegal(length in 250usize..2000) {
            prop_assert!(check_name(&"a".repeat(length)).is_err());
        }

        #[test]
        fn legal_names_are_safe_as_folders(name in ".{0,260}") {
            if check_name(&name).is_ok() {
                prop_assert!(!name.contains(['/', '\\', '\0']) && name != "." && name != ".." && !name.is_empty());
                prop_assert!(name.len() <= TOPIC_NAME_CHARS_MAX);
            }
        }

        #[test]
        fn names_collide_exactly_when_their_metrics_would(one in "[ab._]{1,4}", other in "[ab._]{1,4}") {
            prop_assert_eq!(collide(&one, &other), one.replace('.', "_") == other.replace('.', "_"));
        }
    }
}
