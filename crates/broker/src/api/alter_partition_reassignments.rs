//! AlterPartitionReassignments 0-1. Partitions cannot move yet, so only a reassignment to the present replicas
//! succeeds. No reassignment is ever in progress, so none can be cancelled.

use super::call::{Call, Fault, Reply, code_and_message, joined, once};
use crate::node::MetadataServices;
use fullbore_control::{Image, Refusal, check_replicas};
use fullbore_wire::apis::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse, ReassignablePartition,
    ReassignablePartitionResponse, ReassignableTopic, ReassignableTopicResponse,
};
use fullbore_wire::{ErrorCode, Frame, Text};

pub fn handle(call: &mut Call<'_>, metadata: &MetadataServices, reply: Reply) -> Result<Frame, Fault> {
    let request: AlterPartitionReassignmentsRequest = call.body(reply.version)?;
    let image = metadata.control.image();
    let requested =
        joined(request.topics, |topic| topic.name.clone(), |topic, again| topic.partitions.extend(again.partitions));
    let responses = requested.into_iter().map(|topic| reassign(&image, topic)).collect();
    reply.frame::<AlterPartitionReassignmentsRequest>(&AlterPartitionReassignmentsResponse {
        allow_replication_factor_change: request.allow_replication_factor_change,
        responses,
        ..Default::default()
    })
}

fn reassign(image: &Image, requested: ReassignableTopic) -> ReassignableTopicResponse {
    let partition = |partition: ReassignablePartition| {
        let (error_code, error_message) = code_and_message(check(image, &requested.name, &partition));
        let partition_index = partition.partition_index;
        ReassignablePartitionResponse { partition_index, error_code, error_message, ..Default::default() }
    };
    let partitions = once(requested.partitions, |partition| partition.partition_index);
    ReassignableTopicResponse {
        name: requested.name.clone(),
        partitions: partitions.into_iter().map(partition).collect(),
        ..Default::default()
    }
}

fn check(image: &Image, topic: &Text, requested: &ReassignablePartition) -> Result<(), Refusal> {
    let unknown = |message| Err(Refusal::new(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, message));
    let index = requested.partition_index;
    let Some(known) = image.topic(topic) else {
        return unknown(format!("Unable to find a topic named {topic}."));
    };
    let Some(registered) = known.partition(index) else {
        return unknown(format!("Unable to find partition {topic}-{index}."));
    };
    match &requested.replicas {
        Some(_) if known.config.diskless => {
            let message = format!(
                "Topic {topic} is diskless: every broker serves its partitions, and there are no replicas to move."
            );
            Err(Refusal::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message))
        }
        Some(replicas) => {
            check_replicas(image, replicas)?;
            if *replicas == registered.replicas {
                return Ok(());
            }
            let has = &registered.replicas;
            let message =
                format!("This broker does not move partitions between brokers yet; {topic}-{index} is on {has:?}.");
            Err(Refusal::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message))
        }
        None => {
            let message = format!("No partition reassignment is in progress for {topic}-{index}.");
            Err(Refusal::new(ErrorCode::NO_REASSIGNMENT_IN_PROGRESS, message))
        }
    }
}
