//! How requests name topics, before and after topic ids (KIP-516), and how names reach partitions.

use crate::control::{Image, Topic};
use crate::node::Node;
use crate::partitions::{AnyPartition, ReadError};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// How long a request waits for logs that are being opened: most take a few milliseconds. After a crash one may take longer, and
/// clients give a connection up after half a minute, with all that they have asked for over it.
const OPENING_WAIT: Duration = Duration::from_secs(5);

/// The topic of a request that names it by `name`, or by `id` in the versions that have ids.
///
/// # Errors
/// UNKNOWN_TOPIC_ID or UNKNOWN_TOPIC_OR_PARTITION.
pub fn find<'i>(image: &'i Image, name: &Text, id: Uuid) -> Result<&'i Arc<Topic>, ErrorCode> {
    if id.is_zero() {
        image.topic(name).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
    } else {
        image.topic_by_id(id).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)
    }
}

/// One partition of a topic.
///
/// # Errors
/// UNKNOWN_TOPIC_OR_PARTITION. NOT_LEADER_OR_FOLLOWER where this broker serves no diskless topics, and others do. Either this or
/// KAFKA_STORAGE_ERROR where a write to its log may hang.
pub fn partition(broker: &Node, topic: &Topic, index: i32) -> Result<AnyPartition, ErrorCode> {
    let is_elsewhere =
        || topic.config.diskless && !broker.config.diskless.is_served && topic.partition(index).is_some();
    let found = broker.partitions.find_any(&topic.id, index).ok_or_else(|| match is_elsewhere() {
        true => ErrorCode::NOT_LEADER_OR_FOLLOWER,
        false => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
    })?;
    found.check_answers()?;
    Ok(found)
}

/// One partition of a topic, after [`open_all`]. Waits for one whose folder is made since then: its first record may have come in between.
///
/// # Errors
/// UNKNOWN_TOPIC_OR_PARTITION. NOT_LEADER_OR_FOLLOWER while its log is still being opened, at which every client asks again.
/// KAFKA_STORAGE_ERROR if that could not be opened: another try would take the thread with it.
pub async fn opened(broker: &Node, topic: &Topic, index: i32) -> Result<AnyPartition, ErrorCode> {
    let partition = partition(broker, topic, index)?;
    if !partition.is_settled() && partition.is_being_made() {
        Box::pin(partition.opened()).await;
    }
    settled(partition)
}

fn settled(partition: AnyPartition) -> Result<AnyPartition, ErrorCode> {
    match partition.is_settled() {
        true => Ok(partition),
        false if partition.is_being_opened() => Err(ErrorCode::NOT_LEADER_OR_FOLLOWER),
        false => Err(ErrorCode::KAFKA_STORAGE_ERROR),
    }
}

/// As [`opened`], and does not wait: whoever blocks on the log does so for one whose folder is being made.
pub fn opened_or_new(broker: &Node, topic: &Topic, index: i32) -> Result<AnyPartition, ErrorCode> {
    let partition = partition(broker, topic, index)?;
    // It is settled before and after, and in between it is being made; so it is found if both change during the looks.
    let is_usable = partition.is_settled() || partition.is_being_made();
    if is_usable { Ok(partition) } else { settled(partition) }
}

/// The partitions of these names that exist.
pub fn named<'n>(broker: &Node, image: &Image, names: impl Iterator<Item = (&'n Text, i32)>) -> Vec<AnyPartition> {
    names.filter_map(|(topic, index)| broker.partitions.find_any(&image.topic(topic)?.id, index)).collect()
}

/// Waits until nobody has to wait for any of these logs to be opened, without a thread, and not for long: what its client asks
/// for next waits behind it, of whatever partition. What keeps one from being open is told by who then uses it.
pub async fn open_all(partitions: Vec<AnyPartition>) {
    // All are asked for first: several are opened at a time.
    partitions.iter().for_each(AnyPartition::ask_to_open);
    let until = Instant::now() + OPENING_WAIT;
    for partition in partitions {
        // What keeps a new one from being open is no recovery.
        if partition.is_being_made() {
            partition.opened().await;
        } else {
            let _ = timeout_at(until, partition.opened()).await;
        }
    }
}

/// The same, and then has what is known of their offsets be no older than this call, also where other brokers write them; whether that is so of
/// diskless partitions.
pub async fn open_and_refresh(partitions: Vec<AnyPartition>) -> Result<(), ReadError> {
    open_all(partitions.clone()).await;
    AnyPartition::refresh(&partitions).await
}
