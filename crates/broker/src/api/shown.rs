//! Decides which leader, replicas and ISR of a partition a client sees in its metadata.
//!
//! A classic partition is returned as it is registered. A diskless partition has no leader, since every broker that
//! serves diskless topics serves it. Its metadata is computed for each client (`rules/src/cluster/zones.rs`) from the
//! live brokers and their zones (`broker.rack`). One broker of each zone is shown as an in-sync replica, and the one in
//! the client's zone as the leader. A client names its zone in its client.id, as for Inkless.

use super::call::Call;
use super::nodes;
use crate::node::MetadataServices;
use fullbore_control::{Image, Topic};
use fullbore_rules::cluster::Zones;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::{ErrorCode, Uuid};

/// The names under which a client.id may contain the zone: ours, and that of Inkless.
const ZONE_NAMES: [&str; 2] = ["diskless_az", "inkless_az"];

/// A partition as one client sees it in its metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownPartition {
    pub error_code: ErrorCode,
    pub leader_id: i32,
    pub leader_epoch: i32,
    pub replicas: Vec<i32>,
    pub isr: Vec<i32>,
    pub eligible: Vec<i32>,
    pub lost: Vec<i32>,
    pub offline: Vec<i32>,
}

/// Shows the partitions of an image as one client sees them.
pub struct Viewer<'i> {
    metadata: &'i MetadataServices,
    image: &'i Image,
    listener: usize,
    zones: Zones<'i>,
    zone: Option<&'i str>,
}

impl<'i> Viewer<'i> {
    /// Creates the view of the image for the client that sent the request `call`.
    pub fn of(call: &'i Call<'_>, metadata: &'i MetadataServices, image: &'i Image) -> Self {
        let listener = call.listener;
        let zones = zones(metadata, image, listener);
        let zone = call.header.client_id.as_deref().and_then(zone_of).and_then(|name| zones.meant(name));
        Self { metadata, image, listener, zones, zone }
    }

    /// Returns the partition with this index, or `None` if it does not exist.
    pub fn partition(&self, topic: &Topic, index: i32) -> Option<ShownPartition> {
        let registered = topic.partition(index)?;
        Some(match topic.config.diskless {
            true => self.diskless(key(topic.id, index), registered),
            false => self.classic(registered),
        })
    }

    fn classic(&self, registered: &PartitionRegistration) -> ShownPartition {
        let (leader_id, error_code) = nodes::leader(self.metadata, self.image, self.listener, registered);
        ShownPartition {
            error_code,
            leader_id,
            leader_epoch: registered.leader_epoch,
            replicas: registered.replicas.clone(),
            isr: registered.isr.clone(),
            eligible: registered.elr.clone(),
            lost: registered.lost.clone(),
            offline: nodes::offline(self.metadata, self.image, registered),
        }
    }

    fn diskless(&self, partition: (u128, i32), registered: &PartitionRegistration) -> ShownPartition {
        let brokers = self.zones.brokers_of(partition, self.zone);
        let (error_code, leader_id) = match brokers.first() {
            Some(id) => (ErrorCode::NONE, *id),
            None => (ErrorCode::LEADER_NOT_AVAILABLE, nodes::NO_LEADER),
        };
        // If no broker is live, returns the replicas from the metadata, so that the partition does not seem to have
        // lost any.
        let replicas = if brokers.is_empty() { registered.replicas.clone() } else { brokers };
        let isr = replicas.clone();
        ShownPartition {
            error_code,
            leader_id,
            leader_epoch: registered.leader_epoch,
            replicas,
            isr,
            ..Default::default()
        }
    }
}

/// Groups by zone the brokers that clients of this listener may use for diskless partitions. Brokers that are stopping
/// are left out, unless all brokers are stopping.
pub fn zones<'i>(metadata: &'i MetadataServices, image: &'i Image, listener: usize) -> Zones<'i> {
    let named = |(id, node, _): (i32, &'i fullbore_control::RegisteredBroker, _)| {
        (node.registration.is_shutting_down, id, node.rack.as_deref().filter(|rack| !rack.is_empty()))
    };
    let reached = nodes::reached(metadata, image, listener).filter(|(_, node, _)| node.serves_diskless);
    let there: Vec<_> = reached.map(named).collect();
    let all_stop = there.iter().all(|(stops, ..)| *stops);
    Zones::new(there.into_iter().filter(|(stops, ..)| all_stop || !stops).map(|(_, id, zone)| (id, zone)))
}

/// Returns the partition's key for [`Zones::brokers_of`]: its topic id as a number, and its index.
pub fn key(topic_id: Uuid, index: i32) -> (u128, i32) {
    (u128::from_be_bytes(topic_id.0), index)
}

/// Returns the zone in a client.id such as `app,diskless_az=eu-1a`, or `None` if there is none. If it contains several
/// zones, the last one counts, because clients append to an id that they were given.
fn zone_of(client_id: &str) -> Option<&str> {
    let named = client_id.split(',').filter_map(|part| part.split_once('='));
    let mut zones = named.filter(|(name, _)| ZONE_NAMES.contains(&name.trim())).map(|(_, zone)| zone.trim());
    zones.next_back().filter(|zone| !zone.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_id_with_several_parts_names_its_zone() {
        for (client_id, zone) in [
            ("diskless_az=eu-1a", Some("eu-1a")),
            ("app,diskless_az=eu-1a", Some("eu-1a")),
            ("inkless_az=b,app", Some("b")),
            ("a=b, inkless_az = b ,c=d", Some("b")),
            ("diskless_az=a,inkless_az=b", Some("b")),
            ("inkless_az=b,diskless_az=a,diskless_az=c", Some("c")),
            ("diskless_az=a=b", Some("a=b")),
            ("diskless_az=a,inkless_az=", None),
            ("diskless_az=,x", None),
            ("app-diskless_az=a", None),
            ("diskless_az", None),
            ("app", None),
            ("", None),
        ] {
            assert_eq!(zone_of(client_id), zone, "{client_id}");
        }
    }
}
