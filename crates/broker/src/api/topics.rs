//! How requests name topics, before and after topic ids (KIP-516), and how names reach partitions.

use crate::broker::Shared;
use crate::classic::Partition;
use crate::control::{Image, Topic};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::sync::Arc;

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
/// UNKNOWN_TOPIC_OR_PARTITION.
pub fn partition(broker: &Shared, topic: &Topic, index: i32) -> Result<Arc<Partition>, ErrorCode> {
    broker.logs.find(&topic.id, index).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
}

/// One partition of a topic, after [`open_all`].
///
/// # Errors
/// UNKNOWN_TOPIC_OR_PARTITION; KAFKA_STORAGE_ERROR if its log could not be opened: another try would take the thread with it.
pub fn opened(broker: &Shared, topic: &Topic, index: i32) -> Result<Arc<Partition>, ErrorCode> {
    let partition = partition(broker, topic, index)?;
    if partition.is_settled() { Ok(partition) } else { Err(ErrorCode::KAFKA_STORAGE_ERROR) }
}

/// Those of these partitions that there are.
pub fn named<'n>(broker: &Shared, image: &Image, names: impl Iterator<Item = (&'n Text, i32)>) -> Vec<Arc<Partition>> {
    names.filter_map(|(topic, index)| broker.logs.find(&image.topic(topic)?.id, index)).collect()
}

/// Waits until nobody has to wait for any of these logs to be opened, without a thread. What keeps one from being
/// opened is told by who then uses it.
pub async fn open_all(partitions: Vec<Arc<Partition>>) {
    // All are asked for first: several are opened at a time.
    partitions.iter().for_each(Partition::ask_to_open);
    for partition in partitions {
        let _ = partition.opened().await;
    }
}

/// Compares the leader epoch a client believes in with the one in force (KIP-320); -1 means it has none.
///
/// # Errors
/// FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
pub fn check_leader_epoch(believed: i32, in_force: i32) -> Result<(), ErrorCode> {
    match believed {
        -1 => Ok(()),
        epoch if epoch < in_force => Err(ErrorCode::FENCED_LEADER_EPOCH),
        epoch if epoch > in_force => Err(ErrorCode::UNKNOWN_LEADER_EPOCH),
        _ => Ok(()),
    }
}
