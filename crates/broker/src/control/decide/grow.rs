//! Whether a topic may have more partitions, and what the replicas of a partition may be on a cluster of one broker.
//!
//! Rules and words are those of Kafka's ReplicationControlManager, but for the topic that groups are in: Kafka lets it grow, and no longer
//! finds groups where they are.

use fullbore_wire::ErrorCode;

use super::super::command::{GrowTopic, Refusal};
use super::super::image::{Image, Topic};
use super::super::internal::CONSUMER_OFFSETS;
use super::{PARTITIONS_MAX, PARTITIONS_PER_TOPIC_MAX, known};

/// The topic with as many partitions as are wanted, which are more than it has.
pub fn grow(image: &Image, node_id: i32, wanted: &GrowTopic) -> Result<Topic, Refusal> {
    let topic = known(image, &wanted.name)?;
    if topic.name == CONSUMER_OFFSETS {
        let message = format!(
            "The partitions of {CONSUMER_OFFSETS} cannot be changed: groups are spread over as many as there are."
        );
        return Err(Refusal::new(ErrorCode::INVALID_REQUEST, message));
    }
    check_count(topic, wanted.count)?;
    let added = usize::try_from(wanted.count - topic.partitions).expect("the count goes up");
    let total = image.partition_count() + added;
    if total > PARTITIONS_MAX {
        let message = format!("The broker would have {total} partitions; it may have {PARTITIONS_MAX}.");
        return Err(Refusal::new(ErrorCode::POLICY_VIOLATION, message));
    }
    if let Some(assignments) = &wanted.assignments {
        if assignments.len() != added {
            let count = assignments.len();
            let message = format!(
                "Attempted to add {added} additional partition(s), but only {count} assignment(s) were specified."
            );
            return Err(Refusal::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message));
        }
        assignments.iter().try_for_each(|replicas| check_replicas(node_id, replicas))?;
    }
    Ok(Topic { partitions: wanted.count, ..Topic::clone(topic) })
}

fn check_count(topic: &Topic, count: i32) -> Result<(), Refusal> {
    let (name, has) = (&topic.name, topic.partitions);
    let message = if count == has {
        format!("Topic already has {has} partition(s).")
    } else if count < has {
        format!("The topic {name} currently has {has} partition(s); {count} would not be an increase.")
    } else if count > PARTITIONS_PER_TOPIC_MAX {
        format!("Number of partitions must be at most {PARTITIONS_PER_TOPIC_MAX}.")
    } else {
        return Ok(());
    };
    Err(Refusal::new(ErrorCode::INVALID_PARTITIONS, message))
}

/// The replicas of one partition: this broker, the only one there is, and once.
pub fn check_replicas(node_id: i32, replicas: &[i32]) -> Result<(), Refusal> {
    let includes = if replicas.is_empty() {
        "an empty replica list".to_owned()
    } else if let Some(other) = replicas.iter().find(|&&replica| replica != node_id) {
        format!("broker {other}, but no such broker is registered")
    } else if replicas.len() > 1 {
        format!("the broker {node_id} more than once")
    } else {
        return Ok(());
    };
    let message = format!("The manual partition assignment includes {includes}.");
    Err(Refusal::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message))
}
