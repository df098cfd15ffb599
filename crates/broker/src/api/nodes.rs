//! The brokers of the cluster as the client of a listener sees them, and who leads a partition (KIP-951).

use crate::broker::Shared;
use crate::control::{Endpoint, Image, Node, Topic};
use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::produce::{LeaderIdAndEpoch, NodeEndpoint};
use std::collections::BTreeSet;

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

/// The leader of a partition that another broker leads, as the answer to one who takes this broker for it tells.
pub fn leader_elsewhere(broker: &Shared, image: &Image, topic: &Topic, index: i32) -> Option<LeaderIdAndEpoch> {
    let registered = topic.partition(index)?;
    let leader_id =
        registered.leader.filter(|leader| *leader != broker.config.node_id && image.node(*leader).is_some())?;
    Some(LeaderIdAndEpoch { leader_id, leader_epoch: registered.leader_epoch, ..Default::default() })
}

/// Where the client of a listener reaches these brokers, each once.
pub fn endpoints(broker: &Shared, image: &Image, listener: usize, ids: &BTreeSet<i32>) -> Vec<NodeEndpoint> {
    let named = reached(broker, image, listener).filter(|(id, ..)| ids.contains(id));
    let endpoint = |(node_id, node, at): (i32, &Node, &Endpoint)| NodeEndpoint {
        node_id,
        host: at.host.clone(),
        port: i32::from(at.port),
        rack: node.rack.clone(),
        ..Default::default()
    };
    named.map(endpoint).collect()
}

/// Replicas whose brokers do not serve.
pub fn offline(image: &Image, partition: &PartitionRegistration) -> Vec<i32> {
    let serves = |id: &i32| image.node(*id).is_some_and(|node| !node.registration.is_fenced);
    partition.replicas.iter().copied().filter(|id| !serves(id)).collect()
}
