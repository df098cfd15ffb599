//! Looks up topics by name or id (KIP-516), and their partitions.

use crate::partitions::{AnyPartition, Partitions, ReadError};
use fullbore_control::{Image, Topic};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::sync::Arc;

/// Returns the topic that a request names by `name`, or by `id` if the version has ids.
///
/// # Errors
/// Fails with UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION if there is no such topic.
pub fn find<'i>(image: &'i Image, name: &Text, id: Uuid) -> Result<&'i Arc<Topic>, ErrorCode> {
    if id.is_zero() {
        image.topic(name).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
    } else {
        image.topic_by_id(id).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)
    }
}

/// Finds a partition of a topic, even if it cannot serve requests at present.
///
/// # Errors
/// Fails with UNKNOWN_TOPIC_OR_PARTITION if there is no such partition, and with NOT_LEADER_OR_FOLLOWER if the topic is
/// diskless and only other brokers serve such topics.
pub fn existing(partitions: &Partitions, topic: &Topic, index: i32) -> Result<AnyPartition, ErrorCode> {
    let is_elsewhere = || topic.config.diskless && partitions.diskless().is_none() && topic.partition(index).is_some();
    partitions.find_any(&topic.id, index).ok_or_else(|| match is_elsewhere() {
        true => ErrorCode::NOT_LEADER_OR_FOLLOWER,
        false => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
    })
}

/// Finds a partition as [`existing`] does, and checks that it can answer at present.
///
/// # Errors
/// Fails as [`existing`] and [`AnyPartition::check_answers`] do.
pub fn partition(partitions: &Partitions, topic: &Topic, index: i32) -> Result<AnyPartition, ErrorCode> {
    let found = existing(partitions, topic, index)?;
    found.check_answers()?;
    Ok(found)
}

/// Finds a partition. The caller must have opened the partitions of its request with [`AnyPartition::open_all`]. If the
/// first record of the partition arrived after that call, another thread may still be creating the directory. This
/// function waits until the directory exists.
///
/// # Errors
/// Fails as [`partition`] does. Fails with NOT_LEADER_OR_FOLLOWER while the log is being opened, since every client
/// retries after this error. Fails with KAFKA_STORAGE_ERROR if the log could not be opened, because another attempt
/// would block the thread.
pub async fn opened(partitions: &Partitions, topic: &Topic, index: i32) -> Result<AnyPartition, ErrorCode> {
    let partition = partition(partitions, topic, index)?;
    if partition.is_being_made() {
        Box::pin(partition.opened()).await;
    }
    partition.check_usable()?;
    Ok(partition)
}

/// Returns the partitions with these names, except those that do not exist.
pub fn named<'n>(
    partitions: &Partitions,
    image: &Image,
    names: impl Iterator<Item = (&'n Text, i32)>,
) -> Vec<AnyPartition> {
    names.filter_map(|(topic, index)| partitions.find_any(&image.topic(topic)?.id, index)).collect()
}

/// Opens `partitions` as [`AnyPartition::open_all`] does. Then refreshes the offsets of diskless partitions, since
/// other brokers also write to these. The refreshed offsets are at least as new as this call.
///
/// # Errors
/// Fails if the offsets cannot be refreshed.
pub async fn open_and_refresh(partitions: Vec<AnyPartition>) -> Result<(), ReadError> {
    AnyPartition::open_all(partitions.clone()).await;
    AnyPartition::refresh(&partitions).await
}
