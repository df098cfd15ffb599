//! Redirects a consumer to the broker of its rack for a diskless partition (KIP-392).
//!
//! Every broker can serve the partition; the redirect keeps traffic in the consumer's zone. Invariant: a broker
//! redirects no consumer of its own rack, so that none is redirected twice.

use crate::api::shown;
use crate::node::Node;
use fullbore_control::{Image, Topic};
use fullbore_rules::cluster::Zones;
use fullbore_wire::Text;

/// Consumer in another rack than this broker.
#[derive(Clone)]
pub struct CrossRackClient {
    rack: Text,
    /// Index of the listener that the consumer connected to.
    listener: usize,
}

impl CrossRackClient {
    /// Returns the client of a fetch with this rack; None if the rack is this broker's or empty. Copies the rack's
    /// name, since a slice would retain the request's whole frame.
    pub fn of(broker: &Node, listener: usize, rack: &Text) -> Option<Self> {
        let is_here = broker.config.node.rack.as_deref() == Some(rack.as_str());
        (!rack.is_empty() && !is_here).then(|| Self { rack: Text::from(rack.as_str()), listener })
    }

    /// Returns the router to the brokers of the client's rack in this image.
    pub fn router<'h>(&'h self, broker: &'h Node, image: &'h Image) -> RackRouter<'h> {
        RackRouter { zones: shown::zones(broker, image, self.listener), rack: &self.rack }
    }
}

/// Router to the brokers of one rack.
pub struct RackRouter<'h> {
    zones: Zones<'h>,
    rack: &'h Text,
}

impl RackRouter<'_> {
    /// Returns the broker of the rack for this partition; None for a classic partition or a rack without brokers.
    pub fn broker_of(&self, topic: &Topic, index: i32) -> Option<i32> {
        let is_diskless = topic.config.diskless && topic.partition(index).is_some();
        self.zones.broker_in(self.rack, shown::key(topic.id, index)).filter(|_| is_diskless)
    }
}
