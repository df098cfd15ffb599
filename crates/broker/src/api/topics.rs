//! Lookup of topics by name or id (KIP-516), and of their partitions.

use crate::node::Node;
use crate::partitions::{AnyPartition, ReadError};
use fullbore_control::{Image, Topic};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::sync::Arc;

/// Returns the topic that a request names by `name`, or by `id` in versions with ids.
///
/// # Errors
/// UNKNOWN_TOPIC_ID for an unknown id; UNKNOWN_TOPIC_OR_PARTITION for an unknown name.
pub fn find<'i>(image: &'i Image, name: &Text, id: Uuid) -> Result<&'i Arc<Topic>, ErrorCode> {
    if id.is_zero() {
        image.topic(name).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
    } else {
        image.topic_by_id(id).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)
    }
}

/// Finds a partition of a topic, in service or not.
///
/// # Errors
/// UNKNOWN_TOPIC_OR_PARTITION if there is no such partition. NOT_LEADER_OR_FOLLOWER if only other brokers serve
/// diskless topics.
pub fn existing(broker: &Node, topic: &Topic, index: i32) -> Result<AnyPartition, ErrorCode> {
    let is_elsewhere =
        || topic.config.diskless && !broker.config.diskless.is_served && topic.partition(index).is_some();
    broker.partitions.find_any(&topic.id, index).ok_or_else(|| match is_elsewhere() {
        true => ErrorCode::NOT_LEADER_OR_FOLLOWER,
        false => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
    })
}

/// Finds a partition as [`existing`] does, and refuses it if it cannot answer at present.
///
/// # Errors
/// The error code of [`existing`] if this broker has no such partition; that of [`AnyPartition::check_answers`] if the
/// partition cannot answer at present.
pub fn partition(broker: &Node, topic: &Topic, index: i32) -> Result<AnyPartition, ErrorCode> {
    let found = existing(broker, topic, index)?;
    found.check_answers()?;
    Ok(found)
}

/// Finds a partition after the caller has opened the request's partitions by [`AnyPartition::open_all`]. Waits while
/// the partition's directory is being created, because its first record may have come after that call.
///
/// # Errors
/// Errors of [`partition`]. NOT_LEADER_OR_FOLLOWER while the log is being opened: every client retries.
/// KAFKA_STORAGE_ERROR if the log could not be opened, since another attempt would block the thread.
pub async fn opened(broker: &Node, topic: &Topic, index: i32) -> Result<AnyPartition, ErrorCode> {
    let partition = partition(broker, topic, index)?;
    if partition.is_being_made() {
        Box::pin(partition.opened()).await;
    }
    partition.check_usable()?;
    Ok(partition)
}

/// Returns the partitions of these names that exist.
pub fn named<'n>(broker: &Node, image: &Image, names: impl Iterator<Item = (&'n Text, i32)>) -> Vec<AnyPartition> {
    names.filter_map(|(topic, index)| broker.partitions.find_any(&image.topic(topic)?.id, index)).collect()
}

/// Waits for `partitions` as [`AnyPartition::open_all`] does. Then refreshes the offsets of diskless ones, which other
/// brokers also write, so that they are no older than this call. Returns the outcome of the refresh.
pub async fn open_and_refresh(partitions: Vec<AnyPartition>) -> Result<(), ReadError> {
    AnyPartition::open_all(partitions.clone()).await;
    AnyPartition::refresh(&partitions).await
}
