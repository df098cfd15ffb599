//! DescribeProducers 0: lists the producers whose sequence numbers a partition remembers (KIP-664). Both the leader and
//! a follower can answer.

use super::call::{Call, Fault, Reply, joined, once, words};
use super::topics;
use crate::node::MetadataServices;
use crate::partitions::AnyPartition;
use crate::partitions::Partitions;
use fullbore_control::Image;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_rules::sequence;
use fullbore_wire::apis::describe_producers::{
    DescribeProducersRequest, DescribeProducersResponse, PartitionResponse, ProducerState, TopicRequest, TopicResponse,
};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// Maximum time that a request waits for disks and for the index of diskless topics. Tools wait 10 s for the response.
const WAIT_MAX: Duration = Duration::from_secs(8);
/// Maximum number of producers that a diskless partition remembers.
const DISKLESS_PRODUCERS_MAX: usize = 10_000;
/// Reported as the first offset of a producer that has no open transaction.
const NO_TRANSACTION: i64 = -1;

pub async fn handle(
    call: &mut Call<'_>,
    metadata: &MetadataServices,
    hosted: &Partitions,
    reply: Reply,
) -> Result<Frame, Fault> {
    let request: DescribeProducersRequest = call.body(reply.version)?;
    let (image, deadline) = (metadata.control.image(), Instant::now() + WAIT_MAX);
    let requested = joined(
        request.topics,
        |topic| topic.name.clone(),
        |topic, again| topic.partition_indexes.extend(again.partition_indexes),
    );
    let named = requested.iter().flat_map(|topic| topic.partition_indexes.iter().map(|index| (&topic.name, *index)));
    // The response below has an error for each partition that is not open at the deadline.
    let _ = timeout_at(deadline, AnyPartition::open_all(topics::named(hosted, &image, named))).await;
    let mut topics = Vec::with_capacity(requested.len());
    for topic in requested {
        topics.push(describe(metadata, hosted, &image, topic, deadline).await);
    }
    reply.frame::<DescribeProducersRequest>(&DescribeProducersResponse { topics, ..Default::default() })
}

/// Estimates the number of producers in the response. A classic partition that is not open counts 0 producers, and a
/// diskless partition counts the maximum.
pub(super) fn count(metadata: &MetadataServices, hosted: &Partitions, request: &DescribeProducersRequest) -> usize {
    let image = metadata.control.image();
    let named =
        request.topics.iter().flat_map(|topic| topic.partition_indexes.iter().map(|index| (&topic.name, *index)));
    let named = once(named.collect(), |partition| *partition);
    let partitions = topics::named(hosted, &image, named.into_iter());
    let producers = partitions.into_iter().map(|partition| match partition {
        AnyPartition::Classic(replica) => replica.producers_len(),
        AnyPartition::Diskless(_) => DISKLESS_PRODUCERS_MAX,
    });
    producers.sum()
}

async fn describe(
    metadata: &MetadataServices,
    hosted: &Partitions,
    image: &Image,
    requested: TopicRequest,
    deadline: Instant,
) -> TopicResponse {
    let mut partitions = Vec::with_capacity(requested.partition_indexes.len());
    for partition_index in once(requested.partition_indexes, |index| *index) {
        let found = timeout_at(deadline, producers(metadata, hosted, image, &requested.name, partition_index)).await;
        let error = match found {
            Ok(Ok(producers)) => {
                let active_producers = producers.into_iter().map(state).collect();
                partitions.push(PartitionResponse { partition_index, active_producers, ..Default::default() });
                continue;
            }
            Ok(Err(code)) => (code, why(code, &requested.name, partition_index)),
            Err(_) => (ErrorCode::KAFKA_STORAGE_ERROR, late(&requested.name, partition_index)),
        };
        let (error_code, error_message) = (error.0, Some(error.1));
        partitions.push(PartitionResponse { partition_index, error_code, error_message, ..Default::default() });
    }
    TopicResponse { name: requested.name, partitions, ..Default::default() }
}

async fn producers(
    metadata: &MetadataServices,
    hosted: &Partitions,
    image: &Image,
    topic: &Text,
    index: i32,
) -> Result<Vec<sequence::ProducerState>, ErrorCode> {
    let topic = topics::find(image, topic, Uuid::ZERO)?;
    let partition = topics::opened(hosted, topic, index).await?;
    let is_replica = |of: &Arc<PartitionRegistration>| of.replicas.contains(&metadata.config.node.id);
    if !topic.config.diskless && !topic.partition(index).is_some_and(is_replica) {
        return Err(ErrorCode::NOT_LEADER_OR_FOLLOWER);
    }
    partition.producers().await.map_err(|error| error.code())
}

fn why(code: ErrorCode, topic: &Text, partition: i32) -> Text {
    words(match code {
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => format!("This server does not host {topic}-{partition}."),
        code => format!("The producers of {topic}-{partition} are not known: {code}"),
    })
}

fn late(topic: &Text, partition: i32) -> Text {
    words(format!(
        "The producers of {topic}-{partition} are not known: the database of diskless topics, or the disk, gave no \
         answer in {WAIT_MAX:?}; see the broker's log"
    ))
}

fn state(producer: sequence::ProducerState) -> ProducerState {
    ProducerState {
        producer_id: producer.producer_id,
        producer_epoch: i32::from(producer.producer_epoch),
        last_sequence: producer.last_sequence,
        last_timestamp: producer.last_timestamp,
        coordinator_epoch: producer.coordinator_epoch,
        current_txn_start_offset: producer.open_from.unwrap_or(NO_TRANSACTION),
        ..Default::default()
    }
}
