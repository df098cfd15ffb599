//! The brokers of the cluster as the client of a listener sees them, and who leads a partition (KIP-951).

use crate::broker::Shared;
use crate::control::{Endpoint, Image, Node};
use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::ErrorCode;

/// Nobody.
pub const NO_LEADER: i32 = -1;

/// The brokers that serve, with where a client of this listener reaches them, by id.
pub fn reached<'i>(
    broker: &'i Shared,
    image: &'i Image,
    listener: usize,
) -> impl Iterator<Item = (i32, &'i Node, &'i Endpoint)> {
    let name = broker.config.listeners.get(listener).map_or("", |listener| listener.name.as_str());
    let serving = image.nodes().iter().filter(|(_, node)| !node.registration.is_fenced);
    serving.filter_map(move |(id, node)| Some((*id, node, node.endpoint(name)?)))
}

/// The leader's id, or why clients find none.
pub fn leader(image: &Image, partition: &PartitionRegistration) -> (i32, ErrorCode) {
    match partition.leader {
        Some(id) if image.node(id).is_some() => (id, ErrorCode::NONE),
        _ => (NO_LEADER, ErrorCode::LEADER_NOT_AVAILABLE),
    }
}

/// Replicas whose brokers do not serve.
pub fn offline(image: &Image, partition: &PartitionRegistration) -> Vec<i32> {
    let serves = |id: &i32| image.node(*id).is_some_and(|node| !node.registration.is_fenced);
    partition.replicas.iter().copied().filter(|id| !serves(id)).collect()
}
