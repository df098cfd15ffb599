//! Chooses the brokers for the replicas of new partitions, and checks the brokers that clients choose.
//!
//! The rules and messages are the same as in Kafka's ReplicationControlManager and StripedReplicaPlacer, except that
//! racks are ignored.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use fullbore_rules::replica::{BrokerRegistration, PartitionRegistration};
use fullbore_wire::{ErrorCode, Uuid};

use super::super::change::Partitions;
use super::super::command::Refusal;
use super::super::image::Image;

/// Places `factor` replicas of each new partition in `numbers`, which begins in `leader_epoch`. The caller must check
/// that there are enough brokers. The brokers lead in turn, and the topic's id determines which one leads first. After
/// each round, the followers are shifted by one broker, so that a leader does not always have the same followers. A
/// broker that is fenced, is shutting down or has a full disk gets a replica only if there are too few other brokers.
/// Such a replica starts outside the ISR. If the disks of all unfenced brokers are full, full disks are ignored.
pub fn place(
    image: &Image,
    topic: Uuid,
    numbers: Range<i32>,
    factor: usize,
    leader_epoch: i32,
) -> Result<Partitions, Refusal> {
    let active = active(image, image.nodes().keys().copied());
    let fenced: Vec<i32> = image.nodes().keys().copied().filter(|id| !active.contains(id)).collect();
    if active.is_empty() {
        return Err(Refusal::new(ErrorCode::INVALID_REPLICATION_FACTOR, "All brokers are currently fenced."));
    }
    let begin = (u128::from_be_bytes(topic.0) % 1009) as usize;
    let replicas = |number: i32| -> Vec<i32> {
        let number = begin + usize::try_from(number).unwrap_or(0);
        let followers = striped(&active, number).chain(fenced.iter().copied());
        followers.take(factor).collect()
    };
    registered(image, numbers.map(replicas), leader_epoch)
}

/// Returns the brokers in their order for one partition: first the leader, then the followers. `turn` is the number of
/// partitions before this one. After each round of leaders, the followers are shifted by one broker.
fn striped(ids: &[i32], turn: usize) -> impl Iterator<Item = i32> {
    let (count, others) = (ids.len(), ids.len().saturating_sub(1).max(1));
    let first = turn % count;
    let shift = turn / count;
    let follower = move |at: usize| ids[(first + 1 + (shift + at) % others) % count];
    std::iter::once(ids[first]).chain((0..count - 1).map(follower))
}

/// Returns the brokers of `ids` that can be in the ISR of a new partition. These are the brokers that are not fenced or
/// shutting down and whose disks are not full. If there is no such broker, full disks are ignored.
fn active(image: &Image, ids: impl Iterator<Item = i32> + Clone) -> Vec<i32> {
    let has =
        |id: &i32, may: fn(&BrokerRegistration) -> bool| image.node(*id).is_some_and(|node| may(&node.registration));
    let fit: Vec<i32> = ids.clone().filter(|id| has(id, BrokerRegistration::is_fit)).collect();
    match fit.is_empty() {
        true => ids.filter(|id| has(id, BrokerRegistration::stays)).collect(),
        false => fit,
    }
}

/// Creates partitions with these replicas, in `leader_epoch`. The ISR consists of the active replicas, and the first of
/// them leads.
pub fn registered(
    image: &Image,
    replicas: impl Iterator<Item = impl AsRef<[i32]>>,
    leader_epoch: i32,
) -> Result<Partitions, Refusal> {
    let mut partitions = Partitions::new();
    for replicas in replicas {
        let replicas = replicas.as_ref();
        // Consecutive partitions with equal replicas share one registration, to save memory.
        let same = partitions.last().filter(|last: &&Arc<PartitionRegistration>| last.replicas == replicas).cloned();
        let registered = match same {
            Some(same) => same,
            None => Arc::new(new(image, replicas, leader_epoch)?),
        };
        partitions.push_back(registered);
    }
    Ok(partitions)
}

fn new(image: &Image, replicas: &[i32], leader_epoch: i32) -> Result<PartitionRegistration, Refusal> {
    let isr = active(image, replicas.iter().copied());
    let Some(leader) = isr.first().copied() else {
        let message = "All brokers specified in the manual partition assignment are fenced or in controlled shutdown.";
        return Err(Refusal::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message));
    };
    let leader = Some(leader);
    Ok(PartitionRegistration { replicas: replicas.to_vec(), isr, leader, leader_epoch, ..Default::default() })
}

/// Checks that a partition's replicas are on registered brokers, at most one on each broker.
pub fn check_replicas(image: &Image, replicas: &[i32]) -> Result<(), Refusal> {
    let mut seen = BTreeSet::new();
    let includes = if replicas.is_empty() {
        "an empty replica list".to_owned()
    } else if let Some(other) = replicas.iter().find(|id| image.node(**id).is_none()) {
        format!("broker {other}, but no such broker is registered")
    } else if let Some(twice) = replicas.iter().find(|id| !seen.insert(**id)) {
        format!("the broker {twice} more than once")
    } else {
        return Ok(());
    };
    let message = format!("The manual partition assignment includes {includes}.");
    Err(Refusal::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message))
}
