//! Placement of a new partition's replicas on brokers, and checks of assignments by clients.
//!
//! Rules and messages are those of Kafka's ReplicationControlManager and StripedReplicaPlacer, without racks.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use fullbore_rules::replica::{BrokerRegistration, PartitionRegistration};
use fullbore_wire::{ErrorCode, Uuid};

use super::super::change::Partitions;
use super::super::command::Refusal;
use super::super::image::Image;

/// Places the new partitions `numbers` of a topic with `factor` replicas each; the caller checks that there are
/// `factor` brokers. Brokers lead in rotation, beginning with the one that the topic's id determines. In each further
/// rotation the followers begin one broker later, so that a leader does not always have the same followers. A fenced
/// broker, or a broker with a full disk, gets a replica only if there are too few others. Such a replica is out of sync
/// at first.
pub fn place(image: &Image, topic: Uuid, numbers: Range<i32>, factor: usize) -> Result<Partitions, Refusal> {
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
    registered(image, numbers.map(replicas))
}

/// Returns all brokers `ids` in their order for partition number `turn`: first the leader, then the followers. After
/// each rotation of the leaders, the followers begin one broker later.
fn striped(ids: &[i32], turn: usize) -> impl Iterator<Item = i32> {
    let (count, others) = (ids.len(), ids.len().saturating_sub(1).max(1));
    let first = turn % count;
    let shift = turn / count;
    let follower = move |at: usize| ids[(first + 1 + (shift + at) % others) % count];
    std::iter::once(ids[first]).chain((0..count - 1).map(follower))
}

/// Returns the brokers of `ids` that may be in the ISR of a new partition. If no disk has space, returns the brokers
/// that are neither fenced nor shutting down.
fn active(image: &Image, ids: impl Iterator<Item = i32> + Clone) -> Vec<i32> {
    let has =
        |id: &i32, may: fn(&BrokerRegistration) -> bool| image.node(*id).is_some_and(|node| may(&node.registration));
    let fit: Vec<i32> = ids.clone().filter(|id| has(id, BrokerRegistration::is_fit)).collect();
    match fit.is_empty() {
        true => ids.filter(|id| has(id, BrokerRegistration::stays)).collect(),
        false => fit,
    }
}

/// Returns new partitions with these replicas. The active replicas form the ISR, and the first active one leads.
pub fn registered(image: &Image, replicas: impl Iterator<Item = impl AsRef<[i32]>>) -> Result<Partitions, Refusal> {
    let mut partitions = Partitions::new();
    for replicas in replicas {
        let replicas = replicas.as_ref();
        // Adjacent partitions with equal replicas share one registration.
        let same = partitions.last().filter(|last: &&Arc<PartitionRegistration>| last.replicas == replicas).cloned();
        let registered = match same {
            Some(same) => same,
            None => Arc::new(new(image, replicas)?),
        };
        partitions.push_back(registered);
    }
    Ok(partitions)
}

fn new(image: &Image, replicas: &[i32]) -> Result<PartitionRegistration, Refusal> {
    let isr = active(image, replicas.iter().copied());
    let Some(leader) = isr.first().copied() else {
        let message = "All brokers specified in the manual partition assignment are fenced or in controlled shutdown.";
        return Err(Refusal::new(ErrorCode::INVALID_REPLICA_ASSIGNMENT, message));
    };
    let leader = Some(leader);
    Ok(PartitionRegistration { replicas: replicas.to_vec(), isr, leader, ..PartitionRegistration::default() })
}

/// Checks that the replicas of one partition are registered brokers, each named once.
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
