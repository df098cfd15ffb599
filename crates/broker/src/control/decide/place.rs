//! Which brokers have the replicas of a new partition, and what a client may ask for.
//!
//! Rules and words are those of Kafka's ReplicationControlManager.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::ErrorCode;

use super::super::change::Partitions;
use super::super::command::Refusal;
use super::super::image::Image;

/// New partitions of these numbers, with so many replicas each: one broker after the other leads, and those that follow it have
/// the other replicas. There are at least so many brokers.
pub fn place(image: &Image, numbers: Range<i32>, factor: usize) -> Partitions {
    let ids: Vec<i32> = image.nodes().keys().copied().collect();
    if ids.is_empty() {
        return Partitions::new();
    }
    let replicas =
        |number: usize| -> Vec<i32> { (0..factor.min(ids.len())).map(|at| ids[(number + at) % ids.len()]).collect() };
    registered(numbers.map(|number| replicas(usize::try_from(number).unwrap_or(0))))
}

/// New partitions with these replicas, led by the first of each.
pub fn registered(replicas: impl Iterator<Item = impl AsRef<[i32]>>) -> Partitions {
    let mut partitions = Partitions::new();
    for replicas in replicas {
        let replicas = replicas.as_ref();
        // Those that are alike share one.
        let same = partitions.last().filter(|last: &&Arc<PartitionRegistration>| last.replicas == replicas).cloned();
        partitions.push_back(same.unwrap_or_else(|| Arc::new(new(replicas))));
    }
    partitions
}

fn new(replicas: &[i32]) -> PartitionRegistration {
    PartitionRegistration {
        replicas: replicas.to_vec(),
        isr: replicas.to_vec(),
        leader: replicas.first().copied(),
        ..PartitionRegistration::default()
    }
}

/// What may be the replicas of one partition: brokers that there are, each once.
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
