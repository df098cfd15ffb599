//! Decides whether a topic gets more partitions.
//!
//! The rules and messages are the same as in Kafka's ReplicationControlManager, with one difference: the topics of the
//! group and transaction coordinators cannot get more partitions. Kafka allows that, although clients then no longer
//! find existing groups and transactional ids.

use fullbore_wire::ErrorCode;

use super::super::change::Change;
use super::super::command::{GrowTopic, Refusal};
use super::super::image::{Image, Topic};
use super::super::internal::{CONSUMER_OFFSETS, TRANSACTION_STATE};
use super::diskless;
use super::known::{PARTITIONS_PER_TOPIC_MAX, check_total, known};
use super::place::{check_replicas, place, registered};

/// Returns the change that adds partitions to the topic. Fails if the new number of partitions is not larger than the
/// current one.
pub fn grow(image: &Image, wanted: &GrowTopic) -> Result<Change, Refusal> {
    let topic = known(image, &wanted.name)?;
    let spread = [(CONSUMER_OFFSETS, "groups"), (TRANSACTION_STATE, "transactional ids")];
    if let Some((name, keys)) = spread.into_iter().find(|(name, _)| topic.name == *name) {
        let message = format!(
            "The number of partitions of {name} cannot be changed, since it determines the partitions of {keys}."
        );
        return Err(Refusal::new(ErrorCode::INVALID_REQUEST, message));
    }
    check_count(topic, wanted.count)?;
    let has = topic.partition_count();
    let added = usize::try_from(wanted.count - has).unwrap_or(0);
    check_total(image, added)?;
    let leader_epoch = image.first_leader_epoch(&wanted.name);
    let partitions = if let Some(assignments) = &wanted.assignments {
        if assignments.len() != added {
            let count = assignments.len();
            let message = format!(
                "Attempted to add {added} additional partition(s), but only {count} assignment(s) were specified."
            );
            return Err(Refusal::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message));
        }
        if topic.config.diskless {
            diskless::check_replicas(assignments.iter())?;
        }
        assignments.iter().try_for_each(|replicas| check_replicas(image, replicas))?;
        registered(image, assignments.iter().map(Vec::as_slice), leader_epoch)?
    } else {
        let factor = usize::try_from(topic.replication_factor()).unwrap_or(1);
        place(image, topic.id, has..wanted.count, factor, leader_epoch)?
    };
    Ok(Change::PartitionsChanged { topic: topic.id, first: topic.partitions.len(), partitions })
}

fn check_count(topic: &Topic, count: i32) -> Result<(), Refusal> {
    let (name, has) = (&topic.name, topic.partition_count());
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
