//! The brokers of the cluster as a client of one listener sees them, and the leaders of classic partitions (KIP-951).
//!
//! A diskless partition has no leader. `shown.rs` chooses the brokers that a client should use for it.

use crate::node::MetadataServices;
use fullbore_control::{Endpoint, Image, RegisteredBroker, Topic};
use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::produce::{LeaderIdAndEpoch, NodeEndpoint};
use std::collections::BTreeSet;

/// The leader's id in responses about a partition without a leader.
pub const NO_LEADER: i32 = -1;

/// Returns the brokers that serve clients, in the order of their ids, with their addresses on this listener.
pub fn reached<'i>(
    metadata: &'i MetadataServices,
    image: &'i Image,
    listener: usize,
) -> impl Iterator<Item = (i32, &'i RegisteredBroker, &'i Endpoint)> {
    registered(metadata, image, listener).filter(|(id, ..)| is_live(metadata, image, *id))
}

/// Returns true if clients may use the broker: it is registered and not fenced. This broker is left out while it stands
/// down, as it is by the other brokers. Otherwise a client that knows only this broker would not turn to another one.
fn is_live(metadata: &MetadataServices, image: &Image, id: i32) -> bool {
    let stands_down = image.stands_down() && id == metadata.config.node.id;
    !stands_down && image.node(id).is_some_and(|node| !node.registration.is_fenced)
}

/// Returns all registered brokers, including fenced ones.
pub fn registered<'i>(
    metadata: &'i MetadataServices,
    image: &'i Image,
    listener: usize,
) -> impl Iterator<Item = (i32, &'i RegisteredBroker, &'i Endpoint)> {
    let name = name_of(metadata, listener);
    image.nodes().iter().filter_map(move |(id, node)| Some((*id, node, node.endpoint(name)?)))
}

fn name_of(metadata: &MetadataServices, listener: usize) -> &str {
    metadata.config.network.listeners.get(listener).map_or("", |listener| listener.name.as_str())
}

/// Returns the leader's id and NONE, or -1 and LEADER_NOT_AVAILABLE if there is no leader that clients of this listener
/// can reach.
pub fn leader(
    metadata: &MetadataServices,
    image: &Image,
    listener: usize,
    partition: &PartitionRegistration,
) -> (i32, ErrorCode) {
    let has_listener = |node: &RegisteredBroker| node.endpoint(name_of(metadata, listener)).is_some();
    let is_reached = |id: &i32| is_live(metadata, image, *id) && image.node(*id).is_some_and(has_listener);
    match partition.leader.filter(is_reached) {
        Some(id) => (id, ErrorCode::NONE),
        None => (NO_LEADER, ErrorCode::LEADER_NOT_AVAILABLE),
    }
}

/// Returns the leader of a partition that another broker leads, so that a client with old metadata can send its request
/// there.
///
/// Returns `None` if this broker leads the partition or the client cannot reach any leader. Also returns `None` for a
/// diskless partition, which has no leader.
pub fn leader_elsewhere(
    metadata: &MetadataServices,
    image: &Image,
    listener: usize,
    topic: &Topic,
    index: i32,
) -> Option<LeaderIdAndEpoch> {
    let registered = topic.partition(index).filter(|_| !topic.config.diskless)?;
    let (leader_id, _) = leader(metadata, image, listener, registered);
    (leader_id != NO_LEADER && leader_id != metadata.config.node.id).then(|| LeaderIdAndEpoch {
        leader_id,
        leader_epoch: registered.leader_epoch,
        ..Default::default()
    })
}

/// Returns the addresses of these brokers on this listener.
pub fn endpoints(
    metadata: &MetadataServices,
    image: &Image,
    listener: usize,
    ids: &BTreeSet<i32>,
) -> Vec<NodeEndpoint> {
    let named = reached(metadata, image, listener).filter(|(id, ..)| ids.contains(id));
    let endpoint = |(node_id, node, at): (i32, &RegisteredBroker, &Endpoint)| NodeEndpoint {
        node_id,
        host: at.host.clone(),
        port: i32::from(at.port),
        rack: node.rack.clone(),
        ..Default::default()
    };
    named.map(endpoint).collect()
}

/// Returns the replicas whose brokers are fenced, stand down or are not registered.
pub fn offline(metadata: &MetadataServices, image: &Image, partition: &PartitionRegistration) -> Vec<i32> {
    partition.replicas.iter().copied().filter(|id| !is_live(metadata, image, *id)).collect()
}
